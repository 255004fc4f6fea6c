"""The memory plan: temporaries that are not alive at the same time share memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from weft.compiler.open_numbers import as_a_whole
from weft.runtime.memory import ALIGNMENT


class Interval(NamedTuple):
    """``size`` bytes that are needed from step ``first`` to step ``last``."""

    size: int
    first: int
    last: int


class _Space:
    """Free and taken blocks of an arena. Adjacent free blocks are merged."""

    def __init__(self) -> None:
        self.total = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_before: dict[int, int] = {}

    def take(self, size: int) -> int:
        """The start of a block: the smallest free one that is large enough, or new space at the end."""
        position = bisect_left(self._by_size, (size, -1))
        if position < len(self._by_size):
            found, start = self._by_size[position]
            self._remove(start, found)
            if found > size:
                self._insert(start + size, found - size)
            return start
        start = self._start_before.get(self.total, self.total)
        if start < self.total:
            self._remove(start, self.total - start)
        self.total = start + size
        return start

    def give(self, start: int, size: int) -> None:
        before = self._start_before.get(start)
        if before is not None:
            self._remove(before, start - before)
            start, size = before, size + start - before
        after = self._size_at.get(start + size)
        if after is not None:
            self._remove(start + size, after)
            size += after
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start

    def _remove(self, start: int, size: int) -> None:
        self._by_size.pop(bisect_left(self._by_size, (size, start)))
        del self._size_at[start]
        del self._start_before[start + size]


@as_a_whole
def arrange(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """An offset for each interval, such that intervals that are alive together do not overlap, and the total size.

    Intervals are placed in the order in which they begin, each in the smallest free block that holds it. An interval of
    no bytes takes no space.
    """
    offsets = [0] * len(intervals)
    space = _Space()
    alive: list[tuple[int, int, int]] = []
    for number in sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -intervals[i].size)):
        interval = intervals[number]
        size = -(-interval.size // ALIGNMENT) * ALIGNMENT
        if not size:
            continue
        while alive and alive[0][0] < interval.first:
            _, start, freed = heappop(alive)
            space.give(start, freed)
        offsets[number] = space.take(size)
        heappush(alive, (interval.last, offsets[number], size))
    return offsets, space.total
