"""Boxes of arrays and how to cut around them, and whether two kernels access the same elements of an array."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.kernel import Access, Launch
from weft.compiler.open_numbers import as_a_whole
from weft.graph.node import Shape
from weft.runtime.memory import contiguous_strides

gcd = as_a_whole(math.gcd)


class Box(NamedTuple):
    """Neighbouring elements of an array: the index of the first one, and how many there are on each axis."""

    starts: Shape
    sizes: Shape


def around(shape: Shape, inner: Box) -> list[Box]:
    """The rest of an array around a box in it, as boxes that do not overlap. Boxes cut on outer axes come first: they
    are contiguous more often."""
    found: list[Box] = []
    starts, sizes = [0] * len(shape), list(shape)
    for axis, (start, size, extent) in enumerate(zip(*inner, shape, strict=True)):
        for first, count in ((0, start), (start + size, extent - start - size)):
            if count:
                starts[axis], sizes[axis] = first, count
                found.append(Box(tuple(starts), tuple(sizes)))
        starts[axis], sizes[axis] = start, size
    return [box for box in found if 0 not in box.sizes]


class Reach(NamedTuple):
    """The indices of an access on one axis of an array: ``low``, ``low + step``, and so on up to ``high``. A ``step``
    of 0 means a single index."""

    low: int
    high: int
    step: int

    def misses(self, other: Reach) -> bool:
        """Whether the two have no index in common."""
        if self.high < other.low or other.high < self.low:
            return True
        step = gcd(self.step, other.step)
        return step > 1 and (self.low - other.low) % step != 0


def are_apart(left: Access, left_launch: Launch, right: Access, right_launch: Launch, shape: Shape) -> bool:
    """Whether two accesses to an array of ``shape`` certainly never reach the same element."""
    shape = shape or (1,)
    one, other = _reach(left, left_launch, shape), _reach(right, right_launch, shape)
    if one is None or other is None:
        return False
    return any(mine.misses(theirs) for mine, theirs in zip(one, other, strict=True))


def meeting(
    ones: Sequence[tuple[Access, Launch]], others: Sequence[tuple[Access, Launch] | None], shape: Shape
) -> list[list[int]]:
    """For each access to an array of ``shape``, the positions of those of ``others`` that may reach the same elements.
    None stands for an access that may reach all of them. It takes a time in proportion to the accesses and to what is
    found."""
    shape = shape or (1,)
    reaches = [_reach(*one, shape) or () for one in ones]
    return _meeting(reaches, [_reach(*other, shape) or () if other is not None else () for other in others], len(shape))


@as_a_whole
def _meeting(ones: Sequence[Sequence[Reach]], others: Sequence[Sequence[Reach]], ndim: int) -> list[list[int]]:
    """The result of `meeting`, from what is reached on each axis; what is not known is empty. It compares on the axis
    where most of ``ones`` differ. Ranges of similar lengths are sorted: those that meet a range are neighbours."""
    axis = max(range(ndim), key=lambda axis: len({reach[axis].low for reach in ones if reach}))
    unknown = [number for number, reach in enumerate(others) if not reach]
    by_length: dict[int, list[tuple[int, int]]] = {}
    for number, reach in enumerate(others):
        if reach:
            low, high, _ = reach[axis]
            by_length.setdefault((high - low).bit_length(), []).append((low, number))
    ranges = [((1 << bits) - 1, sorted(alike)) for bits, alike in by_length.items()]
    found: list[list[int]] = []
    for one in ones:
        if not one:
            found.append(list(range(len(others))))
            continue
        low, high, _ = one[axis]
        near = [alike[bisect_left(alike, (low - most,)) : bisect_left(alike, (high + 1,))] for most, alike in ranges]
        found.append(sorted([*unknown, *[number for part in near for _, number in part]]))
    return found


def _reach(access: Access, launch: Launch, shape: Shape) -> list[Reach] | None:
    """Which indices an access may have on each axis of a contiguous array; None if that is not known."""
    if access.computed:
        return None
    extents = (*launch.row_extents, *launch.sweep_extents, launch.lane_extent)
    loops = list(zip((*access.rows, *access.sweeps, access.lane), extents, strict=True))
    rest = access.offset + sum(stride * (extent - 1) for stride, extent in loops if stride < 0)
    weights = contiguous_strides(shape)
    reach: list[Reach] = []
    for weight in weights:
        reach.append(Reach(rest // weight, rest // weight, 0))
        rest %= weight
    for stride, extent in loops:
        if stride and extent > 1:
            axis = next((number for number, weight in enumerate(weights) if stride % weight == 0), None)
            if axis is None:
                return None
            low, high, step = reach[axis]
            steps = abs(stride) // weights[axis]
            reach[axis] = Reach(low, high + steps * (extent - 1), gcd(step, steps))
    return _carried(reach, shape)


def _carried(reach: list[Reach], shape: Shape) -> list[Reach]:
    """The reach of an access whose index exceeds the extent of an axis, and which so continues in the next row. On that
    axis it may reach any index, in steps of the greatest common divisor of its step and the extent."""
    for axis in reversed(range(1, len(shape))):
        over = reach[axis].high // shape[axis]
        if over:
            low, high, _ = reach[axis - 1]
            reach[axis - 1] = Reach(low, high + over, 1)
            step = gcd(reach[axis].step, shape[axis])
            reach[axis] = Reach(reach[axis].low % step, shape[axis] - 1, step)
    return reach
