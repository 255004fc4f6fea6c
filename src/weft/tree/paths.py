"""Positions in a tree as text, with dots: ``layers.0.weight``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["dotted", "join_path"]


def dotted(keys: Iterable[Any]) -> str:
    """The path made of these keys and indices.

    >>> dotted(("layers", 0))
    'layers.0'
    """
    return ".".join(map(str, keys))


def join_path(path: str, key: Any) -> str:
    """The path of the entry ``key`` in the container at ``path``, which is empty for the root.

    >>> join_path("layers", 0)
    'layers.0'
    """
    return f"{path}.{key}" if path else str(key)
