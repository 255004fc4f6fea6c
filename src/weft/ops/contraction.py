"""In which order the operands of a sum of products are multiplied."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any

from weft.graph.extents import derived, fixed, values_of
from weft.runtime.atomic import without_interrupts

__all__ = ["Path", "contraction_path", "path_text"]

Path = tuple[tuple[int, ...], ...]
"""Positions in the list of operands that are multiplied in one step; the result goes to the end of the list."""

Labels = tuple[int, ...]


def contraction_path(inputs: Sequence[Sequence[Hashable]], output: Sequence[Hashable], extents: dict[Any, int]) -> Path:
    """The order of least cost, or of little cost where there are many operands. That of open extents is noted as a
    decision.

    ``inputs`` and ``output`` label axes, ``extents`` gives the extent of each label.
    """
    if len(inputs) <= 2:
        return (tuple(range(len(inputs))),)
    numbers = {label: number for number, label in enumerate(extents)}
    terms = tuple([tuple(sorted({numbers[label] for label in labels})) for labels in inputs])
    result = tuple(sorted([numbers[label] for label in output]))
    sizes = tuple(extents.values())
    found = _Order(terms, result)
    path = found.path(*values_of(sizes))
    fixed(derived(functools.partial(found.is_best, path), *sizes))
    return path


class _Order:
    """The order of a contraction as a function of its extents."""

    def __init__(self, terms: tuple[Labels, ...], result: Labels) -> None:
        self.terms, self.result = terms, result

    def path(self, *sizes: int) -> Path:
        return _best_path(self.terms, self.result, sizes)

    def is_best(self, path: Path, *sizes: int) -> bool:
        return self.path(*sizes) == path


@functools.lru_cache(maxsize=1024)
def _best_path(terms: tuple[Labels, ...], result: Labels, sizes: tuple[int, ...]) -> Path:
    # Labels are numbers: the order in which a set of letters is walked through differs from process to process.
    find = without_interrupts(_load)
    path = find([frozenset(labels) for labels in terms], frozenset(result), dict(enumerate(sizes)))
    return tuple([tuple(sorted(step)) for step in path])


def _load() -> Any:
    from opt_einsum.paths import auto

    return auto


def path_text(
    subscripts: str, path: Path, inputs: Sequence[Sequence[Hashable]], output: Sequence[Hashable], extents: Any
) -> str:
    """What a path costs, in words."""
    terms = [set(labels) for labels in inputs]
    every = set().union(*terms)
    naive = _operations(every, not every <= set(output), len(terms), extents)
    cost, scaling = 0, 0
    for step in path:
        involved = set().union(*[terms[position] for position in step])
        rest = [term for position, term in enumerate(terms) if position not in step]
        remaining = involved & set(output).union(*rest)
        cost += _operations(involved, remaining != involved, len(step), extents)
        scaling = max(scaling, len(involved))
        terms = [*rest, remaining]
    return (
        f"  Complete contraction:  {subscripts}\n"
        f"         Naive scaling:  {len(every)}\n"
        f"     Optimized scaling:  {scaling}\n"
        f"      Naive FLOP count:  {naive}\n"
        f"  Optimized FLOP count:  {cost}\n"
    )


def _operations(labels: set[Hashable], sums: bool, operands: int, extents: Any) -> int:
    """Multiplications and additions of one step."""
    return math.prod(extents[label] for label in labels) * (max(1, operands - 1) + sums)
