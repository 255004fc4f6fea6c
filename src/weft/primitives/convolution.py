"""Convolutions: sums of products of the elements in windows of an array with weights.

They are products of matrices, one of which shows the windows, and so are their derivatives, which are convolutions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, derived, named, product, value_of
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, View
from weft.primitives.batching import move_axis
from weft.primitives.index import AxisTerm
from weft.primitives.products import Bilinear
from weft.primitives.untrusted import LARGEST, check_inputs, check_number, check_numbers, require

__all__ = ["convolution", "windows"]


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
def _results(extent: int, low: int, high: int, size: int, spacing: int, dilation: int, step: int) -> int:
    """How many windows fit into an axis."""
    return max(0, (_spread(extent, dilation) + low + high - _spread(size, spacing)) // step + 1)


@named
def _spread(count: int, spacing: int) -> int:
    """How long ``count`` elements are that lie ``spacing`` apart."""
    return max(0, (count - 1) * spacing + 1)


class _Geometry(NamedTuple):
    """How windows lie, per spatial axis: how far apart they begin, how many zeros are put before and behind the array
    (or taken from it), how far apart the elements of a window are, and those of the array, between which are zeros; and
    how many groups of channels there are, and whether weights are read backwards."""

    strides: Shape
    low: Shape
    high: Shape
    spacings: Shape
    dilations: Shape
    groups: int
    flip: bool

    def results(self, extents: Shape, sizes: Shape) -> Shape:
        """How many windows of some sizes lie in axes of some extents."""
        numbers = zip(extents, self.low, self.high, sizes, self.spacings, self.dilations, self.strides, strict=True)
        return tuple([derived(_results, *axis) for axis in numbers])


class Convolution(Bilinear):
    """``(N, ..., C)`` and weights ``(O, ..., C / groups)`` give ``(N, ..., O)``: an element is the sum, over a window
    and the channels of a group, of products with weights."""

    name = "convolution"
    parameters = _Geometry._fields
    transposes = (
        lambda ct, x, w, **params: _for_array(ct, x, w, _Geometry(**params)),
        lambda ct, x, w, **params: _for_weights(ct, x, w, _Geometry(**params)),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, w = inputs
        geometry = _Geometry(**params)
        fits = x.ndim == w.ndim >= 2 and x.dtype is w.dtype and agree(w.shape[0] % geometry.groups, 0)
        if not fits or not agree(x.shape[-1], w.shape[-1] * geometry.groups):
            raise ValueError(
                f"convolution: {describe(x.shape, x.dtype)} and {describe(w.shape, w.dtype)} do not fit together in "
                f"{geometry.groups} groups"
            )
        return (x.shape[0], *geometry.results(x.shape[1:-1], w.shape[1:-1]), w.shape[0]), x.dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 2)
        geometry, rank = _Geometry(**params), inputs[0].ndim - 2
        require(inputs[0].dtype.is_inexact, "it takes floating and complex numbers")
        require(rank >= 0, "it has less than two axes")
        for numbers in (geometry.strides, geometry.spacings, geometry.dilations):
            check_numbers(numbers, rank, lowest=1)
        for numbers in (geometry.low, geometry.high):
            check_numbers(numbers, rank, lowest=-LARGEST)
        check_number(geometry.groups, lowest=1)
        require(type(geometry.flip) is bool, "flip is True or False")

    def expanded(self, node: Node) -> Node | None:
        """A product of the matrix that shows the windows. Where channels are not summed, it is no product of matrices
        but a sum over each window. Half precision is computed in float32 and rounded once."""
        geometry = _Geometry(*node.params)
        x, w = [wrap(source) for source in node.inputs]
        spatial = tuple(range(1, node.ndim - 1))
        wide = dtypes.float32 if node.dtype in (dtypes.float16, dtypes.bfloat16) else node.dtype
        x, w = [n if n.node.dtype is wide else p.cast(n, dtype=wide) for n in (x, w)]
        shown = windows(
            _padded(x, geometry),
            counts=node.shape[1:-1],
            sizes=w.node.shape[1:-1],
            steps=geometry.strides,
            spacings=geometry.spacings,
        )
        weights = _reversed(w, spatial) if geometry.flip else w
        channels = w.node.shape[-1]
        found = _channel_sums if channels == 1 and geometry.groups > 1 else _products
        whole = found(shown, weights, geometry.groups, len(spatial))
        result: Node = (whole if wide is node.dtype else p.cast(whole, dtype=node.dtype)).node
        return result

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        """Examples are rows of one convolution, sets of weights further outputs or, if both have them, groups."""
        (x, w), (x_axis, w_axis) = inputs, axes
        if w_axis is None:
            assert x_axis is not None
            moved = move_axis(x, x_axis, 0)
            size, count, *rest = moved.node.shape
            out = self(p.reshape(moved, shape=(size * count, *rest)), w, **params)
            return p.reshape(out, shape=(size, count, *out.node.shape[1:])), 0
        groups = params["groups"]
        moved = move_axis(w, w_axis, 0)
        size, outputs, *rest = moved.node.shape
        if x_axis is None:
            apart = p.reshape(moved, shape=(size, groups, outputs // groups, *rest))
            every = p.reshape(move_axis(apart, 1, 0), shape=(size * outputs, *rest))
            out = self(x, every, **params)
            shape = out.node.shape[:-1]
            by_group = p.reshape(out, shape=(*shape, groups, size, outputs // groups))
            together = move_axis(by_group, len(shape) + 1, 0)
            return p.reshape(together, shape=(size, *shape, outputs)), 0
        every = p.reshape(moved, shape=(size * outputs, *rest))
        last = move_axis(x, x_axis, x.node.ndim - 2)
        *outer, _, channels = last.node.shape
        x = p.reshape(last, shape=(*outer, size * channels))
        out = self(x, every, **{**params, "groups": groups * size})
        shape = out.node.shape[:-1]
        return move_axis(p.reshape(out, shape=(*shape, size, outputs)), len(shape), 0), 0


convolution = Convolution()


def _for_array(ct: Array, x: Array, w: Array, geometry: _Geometry) -> Array:
    """Each element of the array takes part in the windows that cover it: a convolution with the weights backwards."""
    strides, low, _, spacings, dilations, groups, flip = geometry
    outputs, *sizes, channels = w.node.shape
    before = tuple([derived(_spread, n, apart) - 1 - m for n, apart, m in zip(sizes, spacings, low, strict=True)])
    behind = tuple(
        [
            derived(_behind, *axis)
            for axis in zip(
                x.node.shape[1:-1], dilations, sizes, spacings, ct.node.shape[1:-1], strides, before, strict=True
            )
        ]
    )
    apart = p.reshape(w, shape=(groups, outputs // groups, *sizes, channels))
    turned = move_axis(move_axis(apart, apart.node.ndim - 1, 1), 2, apart.node.ndim - 1)
    weights = p.reshape(turned, shape=(groups * channels, *sizes, outputs // groups))
    return convolution(
        ct, weights, **_Geometry(dilations, before, behind, spacings, strides, groups, not flip)._asdict()
    )


def _for_weights(ct: Array, x: Array, w: Array, geometry: _Geometry) -> Array:
    """Each weight is multiplied with an element of every window: a convolution in which windows take the place of the
    spacing of elements, and examples that of channels."""
    strides, low, _, spacings, dilations, groups, flip = geometry
    sizes = w.node.shape[1:-1]
    behind = tuple(
        [
            derived(_behind, *axis)
            for axis in zip(
                sizes, spacings, ct.node.shape[1:-1], strides, x.node.shape[1:-1], dilations, low, strict=True
            )
        ]
    )
    count, *extents, channels = x.node.shape
    apart = p.reshape(x, shape=(count, *extents, groups, channels // groups))
    turned = move_axis(move_axis(apart, apart.node.ndim - 1, 0), 1, apart.node.ndim - 1)
    array = p.reshape(turned, shape=(channels // groups, *extents, groups * count))
    rank = len(sizes)
    cotangents = p.transpose(ct, axes=(rank + 1, *range(1, rank + 1), 0))
    crossed = _Geometry(spacings, low, behind, strides, dilations, groups, False)
    result = convolution(array, cotangents, **crossed._asdict())
    result = p.transpose(result, axes=(rank + 1, *range(1, rank + 1), 0))
    return _reversed(result, range(1, rank + 1)) if flip else result


@named
def _behind(results: int, step: int, size: int, spacing: int, extent: int, dilation: int, low: int) -> int:
    """How many zeros belong behind an axis for so many windows."""
    return (results - 1) * step + _spread(size, spacing) - _spread(extent, dilation) - low


def _reversed(x: Array, axes: Sequence[int]) -> Array:
    shape = x.node.shape
    starts = tuple([max(extent - 1, 0) if axis in axes else 0 for axis, extent in enumerate(shape)])
    steps = tuple([-1 if axis in axes else 1 for axis in range(len(shape))])
    return p.slice_(x, starts=starts, sizes=shape, steps=steps)


def _padded(x: Array, geometry: _Geometry) -> Array:
    """The array with zeros between and around its elements, and without those that windows do not reach."""
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
    return _with_zeros(x, low, high) if any(low) or any(high) else x


def _with_zeros(x: Array, low: Shape, high: Shape) -> Array:
    return p.pad(x, wrap(p.planned_zeros((), x.node.dtype)), low=low, high=high)


def _dilated(x: Array, axis: int, spacing: int) -> Array:
    """The elements along an axis with zeros between them."""
    shape = x.node.shape
    if spacing == 1 or shape[axis] <= 1:
        return x
    apart = p.expand(x, axes=(axis + 1,))
    zeros = tuple([spacing - 1 if number == axis + 1 else 0 for number in range(len(shape) + 1)])
    spread = _with_zeros(apart, (0,) * len(zeros), zeros)
    whole = p.reshape(spread, shape=(*shape[:axis], shape[axis] * spacing, *shape[axis + 1 :]))
    sizes = (*shape[:axis], _spread(shape[axis], spacing), *shape[axis + 1 :])
    return p.slice_(whole, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))


def _products(shown: Array, w: Array, groups: int, rank: int) -> Array:
    """Windows ``(N, counts, sizes, C)`` times weights ``(O, sizes, C / groups)``, as products of matrices."""
    count, *extents, channels = shown.node.shape
    counts, sizes = extents[:rank], extents[rank:]
    outputs, terms = w.node.shape[0], product(sizes) * (channels // groups)
    if groups == 1:
        rows = p.reshape(shown, shape=(count * product(counts), terms))
        columns = p.transpose(p.reshape(w, shape=(outputs, terms)), axes=(1, 0))
        return p.reshape(p.matmul(rows, columns), shape=(count, *counts, outputs))
    apart = p.reshape(shown, shape=(count, *extents, groups, channels // groups))
    rows = p.reshape(move_axis(apart, apart.node.ndim - 2, 0), shape=(groups, count * product(counts), terms))
    columns = p.transpose(p.reshape(w, shape=(groups, outputs // groups, terms)), axes=(0, 2, 1))
    result = p.reshape(p.matmul(rows, columns), shape=(groups, count, *counts, outputs // groups))
    return p.reshape(move_axis(result, 0, rank + 1), shape=(count, *counts, outputs))


def _channel_sums(shown: Array, w: Array, groups: int, rank: int) -> Array:
    """The same where each channel is a group."""
    shape = shown.node.shape
    count, counts, sizes = shape[0], shape[1 : 1 + rank], shape[1 + rank : -1]
    each = w.node.shape[0] // groups
    last = len(counts) + 1
    # (N, counts, groups, outputs of a group, sizes)
    order = (*range(last), last + rank, *range(last, last + rank))
    left = p.expand(p.transpose(shown, axes=order), axes=(last + 1,))
    right = p.expand(p.reshape(w, shape=(groups, each, *sizes)), axes=tuple(range(last)))
    joint = (count, *counts, groups, each, *sizes)
    terms = p.multiply(p.broadcast(left, shape=joint), p.broadcast(right, shape=joint))
    total = p.sum(terms, axes=tuple(range(last + 2, last + 2 + rank)))
    return p.reshape(total, shape=(count, *counts, groups * each))
