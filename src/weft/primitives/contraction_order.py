"""In which order the operands of a sum of products are multiplied."""

from __future__ import annotations

import functools
from typing import Any

from weft.runtime.atomic import without_interrupts

Labels = tuple[int, ...]
Path = tuple[tuple[int, ...], ...]
"""Positions in the list of operands that one step multiplies; the result is appended to the list."""


@functools.lru_cache(maxsize=1024)
def best_path(terms: tuple[Labels, ...], result: Labels, sizes: tuple[tuple[int, int], ...]) -> Path:
    """The cheapest order, or a cheap one if there are many operands.

    ``terms`` and ``result`` label axes, ``sizes`` are pairs of a label and its extent. Labels are numbers, because the
    order in which Python iterates over a set of strings differs between processes.
    """
    if len(terms) <= 2:
        return (tuple(range(len(terms))),)
    find = without_interrupts(_load)
    path = find([frozenset(labels) for labels in terms], frozenset(result), dict(sizes))
    return tuple([tuple(sorted(step)) for step in path])


def _load() -> Any:
    from opt_einsum.paths import auto

    return auto
