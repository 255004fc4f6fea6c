"""The windows of a convolution: where they are, and the array with the zeros that they read."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import derived, named, value_of
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, View
from weft.primitives.index import AxisTerm
from weft.primitives.planned_matrices import zeros
from weft.primitives.untrusted import check_numbers, require

__all__ = ["windows"]

LARGE = 1 << 16
"""From this many elements on, two kernels are worth their launches."""


def _infer_windows(x: Node, *, counts: Shape, sizes: Shape, steps: Shape, spacings: Shape) -> tuple[Shape, Dtype]:
    first, *spatial, last = x.shape
    for extent, count, size, step, spacing in zip(spatial, counts, sizes, steps, spacings, strict=True):
        numbers = [value_of(number) for number in (extent, count, size)]
        if all(numbers) and (numbers[1] - 1) * step + (numbers[2] - 1) * spacing >= numbers[0]:
            raise ValueError(f"windows: {count} of {size} elements do not fit into an axis of {extent}")
    return (first, *counts, *sizes, last), x.dtype


def _check_windows(x: Node, *, counts: Shape, sizes: Shape, steps: Shape, spacings: Shape) -> None:
    require(x.ndim >= 2, "it has less than two axes")
    for numbers, lowest in ((counts, 0), (sizes, 0), (steps, 1), (spacings, 1)):
        check_numbers(numbers, x.ndim - 2, lowest)


def _transpose_windows(ct: Array, x: Array, **params: Any) -> Array:
    raise NotImplementedError("[windows] They are made when a graph is planned, behind all transformations.")


def _terms_of_windows(source: Shape, counts: Shape, sizes: Shape, steps: Shape, spacings: Shape) -> list[AxisTerm]:
    rank = len(counts)
    terms = [
        AxisTerm(1 + axis, step, inner=1 + rank + axis, inner_step=spacing)
        for axis, (step, spacing) in enumerate(zip(steps, spacings, strict=True))
    ]
    return [AxisTerm(0), *terms, AxisTerm(1 + 2 * rank)]


windows: View = View(
    "windows",
    ("counts", "sizes", "steps", "spacings"),
    _infer_windows,
    _transpose_windows,
    _transpose_windows,
    axis_terms=_terms_of_windows,
    check=_check_windows,
)
"""``(N, ..., C)`` as ``(N, counts, sizes, C)``: windows that begin ``steps`` apart, of elements ``spacings`` apart."""


@named
def results_along(extent: int, low: int, high: int, size: int, spacing: int, dilation: int, step: int) -> int:
    """How many windows fit along an axis."""
    return max(0, (spread(extent, dilation) + low + high - spread(size, spacing)) // step + 1)


@named
def spread(count: int, spacing: int) -> int:
    """How long ``count`` elements at distance ``spacing`` are."""
    return max(0, (count - 1) * spacing + 1)


class Geometry(NamedTuple):
    """The windows, per spatial axis: the distance of their beginnings, how many zeros are put before and after the
    array (negative: elements taken away), the distance of a window's elements, and that of the array's elements,
    between which are zeros; and how many groups of channels there are, and whether weights are reversed."""

    strides: Shape
    low: Shape
    high: Shape
    spacings: Shape
    dilations: Shape
    groups: int
    flip: bool

    def results(self, extents: Shape, sizes: Shape) -> Shape:
        """How many windows of the given sizes fit into the given extents."""
        numbers = zip(extents, self.low, self.high, sizes, self.spacings, self.dilations, self.strides, strict=True)
        return tuple([derived(results_along, *axis) for axis in numbers])


def reversed_along(x: Array, axes: Sequence[int]) -> Array:
    shape = x.node.shape
    starts = tuple([max(extent - 1, 0) if axis in axes else 0 for axis, extent in enumerate(shape)])
    steps = tuple([-1 if axis in axes else 1 for axis in range(len(shape))])
    return p.slice_(x, starts=starts, sizes=shape, steps=steps)


def with_padding(x: Array, geometry: Geometry) -> Array:
    """The array with zeros between and around its elements, without elements that no window reaches."""
    for axis, spacing in enumerate(geometry.dilations, 1):
        x = _dilated(x, axis, spacing)
    shape = x.node.shape
    starts = (0, *[max(-n, 0) for n in geometry.low], 0)
    ends = (0, *[max(-n, 0) for n in geometry.high], 0)
    sizes = tuple([max(n - start - end, 0) for n, start, end in zip(shape, starts, ends, strict=True)])
    if sizes != shape:
        starts = tuple([start if size else 0 for start, size in zip(starts, sizes, strict=True)])
        x = p.slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    low = (0, *[max(n, 0) for n in geometry.low], 0)
    high = (0, *[max(n, 0) for n in geometry.high], 0)
    return with_zeros(x, low, high) if any(low) or any(high) else x


def with_zeros(x: Array, low: Shape, high: Shape) -> Array:
    """The array with zeros around it. A large array is copied into zeros, which is faster than comparing the index of
    each element with the borders."""
    shape = tuple([before + n + behind for before, n, behind in zip(low, x.node.shape, high, strict=True)])
    if prod(shape) < LARGE:
        return p.pad(x, wrap(p.planned_zeros((), x.node.dtype)), low=low, high=high)
    return p.slice_update(zeros(shape, x.node.dtype), x, starts=low, steps=(1,) * len(shape))


def _dilated(x: Array, axis: int, spacing: int) -> Array:
    """The elements along an axis with zeros between them."""
    shape = x.node.shape
    if spacing == 1 or shape[axis] <= 1:
        return x
    apart = p.expand(x, axes=(axis + 1,))
    behind = tuple([spacing - 1 if number == axis + 1 else 0 for number in range(len(shape) + 1)])
    separate = with_zeros(apart, (0,) * len(behind), behind)
    whole = p.reshape(separate, shape=(*shape[:axis], shape[axis] * spacing, *shape[axis + 1 :]))
    sizes = (*shape[:axis], spread(shape[axis], spacing), *shape[axis + 1 :])
    return p.slice_(whole, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))
