"""The iterator over the first axis of an array."""

from __future__ import annotations

from typing import final

from weft.graph.node import wrap
from weft.graph.shown import shown_extent
from weft.ops.arguments import Array
from weft.ops.subscripts import getitem

__all__ = ["ArrayIterator"]


@final
class ArrayIterator:
    """The iterator that ``iter(a)`` returns: the entries of the first axis, as they were when it was made.

    >>> [row.tolist() for row in iter(mx.array([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """

    __slots__ = ("_array", "_count", "_next")
    __module__ = "weft.core"

    def __init__(self, array: Array) -> None:
        node = array.node
        if not node.shape:
            raise TypeError("Cannot iterate over a 0-d array.")
        self._array, self._next, self._count = wrap(node), 0, int(shown_extent(node.shape[0]))

    def __iter__(self) -> ArrayIterator:
        return self

    def __length_hint__(self) -> int:
        return self._count - self._next

    def __next__(self) -> Array:
        if self._next >= self._count:
            raise StopIteration
        entry = getitem(self._array, self._next)
        self._next += 1
        return entry
