"""The memory plan: temporaries that are not alive at the same time share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ALIGNMENT = 64


class Interval(NamedTuple):
    """``size`` bytes that are needed from step ``first`` to step ``last``."""

    size: int
    first: int
    last: int


def arrange(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """An offset for each interval such that those alive together do not overlap, and the size of the whole.

    Large ones are placed first, each at the lowest free offset.
    """
    offsets = [0] * len(intervals)
    total = 0
    placed: list[tuple[int, int, int, int]] = []
    for number in sorted(range(len(intervals)), key=lambda i: (-intervals[i].size, i)):
        interval = intervals[number]
        size = max(-(-interval.size // _ALIGNMENT) * _ALIGNMENT, _ALIGNMENT)
        taken = sorted(
            (start, end) for start, end, first, last in placed if first <= interval.last and interval.first <= last
        )
        offset = 0
        for start, end in taken:
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((offset, offset + size, interval.first, interval.last))
        total = max(total, offset + size)
    return offsets, total
