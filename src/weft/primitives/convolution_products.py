"""How convolutions are computed: as matrix products of views that show windows, without copying the windows, or as sums
over the elements of windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as combinations
from math import gcd, prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import derived, named, value_of
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Elementwise, View
from weft.primitives.batching import move_axis
from weft.primitives.index import AxisTerm
from weft.primitives.untrusted import check_numbers, require
from weft.primitives.updates import RegionWrite, Update, Write

__all__ = ["interleaved", "multiply_add", "windows"]

MOST_TAPS = 256
"""If channels are not summed, at most this many elements of a window are added one after the other."""

MOST_TAPS_OF_ONE = 64
"""The same for one channel with one output, whose products of matrices need no code of their own for each window."""

TURNING = 15
"""Transposing an element of a result takes as long as packing this many terms of a window."""

FEW_OUTPUTS, LONG_LINE = 8, 16
"""Lanes go along windows if there are at most this many outputs, and at least this many windows along the last axis."""

LARGE = 1 << 16
"""From this many elements on, two kernels are worth their launches."""

LONG_SUM, SMALL_RESULT, MOST_PARTS = 1 << 13, 1 << 14, 16
"""Sums of at least this many terms are computed in parts, if there are few such sums, so that threads can share
them."""


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


class Interleaved(Update):
    """Parts of an array, each in a strided region. Every element is in exactly one of the parts."""

    name = "interleaved"
    parameters = ("shape", "starts", "steps")
    disjoint = True

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return params["shape"], inputs[0].dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "it is made when a graph is planned")

    def writes(self, node: Node) -> list[Write]:
        _, starts, steps = node.params
        return [RegionWrite(position, start, steps) for position, start in enumerate(starts)]


interleaved = Interleaved()

multiply_add = Elementwise(
    "multiply_add",
    lambda L, x, y, total: L.fma(x, y, total),
    (lambda t, out, x, y, total: t * y, lambda t, out, x, y, total: t * x, 1),
    accepts=lambda dtype: dtype.is_floating and dtype.size >= 4,
)
"""``x * y + total``, rounded once."""


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


class _Phase(NamedTuple):
    """The results along an axis, from ``start`` on and ``apart`` from each other, whose windows have the same elements
    on elements of the array, and all others on zeros between them: ``taps`` elements, from ``first`` on, ``step``
    apart. In the array without these zeros they are windows that begin ``stride`` apart, of elements ``spacing`` apart,
    with ``low`` zeros before the array."""

    start: int
    apart: int
    results: int
    first: int
    step: int
    taps: int
    stride: int
    spacing: int
    low: int


def _phases(geometry: Geometry, axis: int, results: int, size: int) -> list[_Phase]:
    """All phases of an axis. A phase may have no results, or no taps."""
    stride, low, spacing, dilation = (numbers[axis] for numbers in geometry[:2] + geometry[3:5])
    period = dilation // gcd(stride, dilation)
    found = []
    for start in range(period):
        taps = [tap for tap in range(size) if (start * stride + tap * spacing - low) % dilation == 0]
        first = taps[0] if taps else 0
        step = taps[1] - first if len(taps) > 1 else 1
        apart = step * spacing // dilation if len(taps) > 1 else 1
        before = (low - start * stride - first * spacing) // dilation
        count = len(range(start, results, period))
        found.append(_Phase(start, period, count, first, step, len(taps), period * stride // dilation, apart, before))
    return found


def _undilated(geometry: Geometry, extents: Shape, results: Shape, sizes: Shape) -> Iterator[tuple[Any, ...]]:
    """The phases of all axes, each with the geometry of its convolution of the array without zeros between elements."""
    every = [_phases(geometry, axis, *axes) for axis, axes in enumerate(zip(results, sizes, strict=True))]
    for phases in combinations(*every):
        strides, spacings, low = (tuple([getattr(x, name) for x in phases]) for name in ("stride", "spacing", "low"))
        high = [
            (x.results - 1) * x.stride + spread(x.taps, x.spacing) - extent - x.low
            for x, extent in zip(phases, extents, strict=True)
        ]
        ones = (1,) * len(phases)
        yield phases, Geometry(strides, low, tuple(high), spacings, ones, geometry.groups, False)


def convolved(x: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """``(N, ..., C)`` and weights ``(O, ..., C / groups)`` give ``(N, counts, O)``."""
    outputs, *sizes, channels = w.node.shape
    rank = len(sizes)
    if geometry.flip:
        w = reversed_along(w, range(1, rank + 1))
    if any(dilation > 1 for dilation in geometry.dilations):
        return _convolved_in_phases(x, w, geometry, counts)
    if channels == 1 and not x.node.dtype.is_complex and 0 < prod(sizes) <= _most_taps(geometry.groups, outputs):
        return _sum_of_taps(with_padding(x, geometry), w, geometry, counts)
    if has_few_outputs(w, geometry, counts):
        cut = geometry._replace(low=_not_above_zero(geometry.low), high=_not_above_zero(geometry.high))
        around = _largest([geometry.low], rank), _largest([geometry.high], rank)
        return _products_for_few(_with_positions_beside(with_padding(x, cut), *around), w, geometry, counts)
    shown = _shown(with_padding(x, geometry), geometry, counts, tuple(sizes))
    return _products(shown, w, geometry.groups, rank)


def _most_taps(groups: int, outputs: int) -> int:
    """How many elements of a window, of a single channel per group, are added one after the other; 0 for none."""
    if groups > 1:
        return MOST_TAPS
    return MOST_TAPS_OF_ONE if outputs == 1 else 0


def _shown(padded: Array, geometry: Geometry, counts: Shape, sizes: Shape) -> Array:
    return windows(padded, counts=counts, sizes=sizes, steps=geometry.strides, spacings=geometry.spacings)


def _convolved_in_phases(x: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """As `convolved`, for an array with zeros between its elements, which are not multiplied: each phase is a
    convolution of its own."""
    used = used_phases(x, w, geometry, counts)
    # The array is padded once, with as many zeros as any phase needs.
    low, high = (_largest(zeros, len(counts)) for zeros in ([one.low for one in used], [one.high for one in used]))
    are_few = bool(used) and has_few_outputs(w, used[0], counts)
    if are_few:
        padded = _with_positions_beside(x, low, high)
    else:
        padded = _with_zeros(x, (0, *low, 0), (0, *high, 0)) if any(low) or any(high) else x

    def part_of(taps: Array, one: Geometry, results: Shape) -> Array:
        inside = one._replace(low=_less(one.low, low), high=_less(one.high, high))
        if are_few:
            return _products_for_few(with_padding(padded, inside), taps, inside, results)
        return convolved(padded, taps, inside, results)

    return in_phases(x, w, geometry, counts, part_of)


def used_phases(x: Array, w: Array, geometry: Geometry, counts: Shape) -> list[Geometry]:
    """The geometries of all phases that have results and taps."""
    found = []
    for phases, one in _undilated(geometry, x.node.shape[1:-1], counts, w.node.shape[1:-1]):
        if all(phase.taps and phase.results for phase in phases):
            found.append(one)
    return found


def in_phases(
    x: Array, w: Array, geometry: Geometry, counts: Shape, part_of: Callable[[Array, Geometry, Shape], Array]
) -> Array:
    """A convolution of an array with zeros between its elements, made of those of its phases, which ``part_of`` gives
    for the weights, the geometry and the counts of windows of each."""
    count, outputs = x.node.shape[0], w.node.shape[0]
    parts, starts = [], []
    for phases, without_zeros in _undilated(geometry, x.node.shape[1:-1], counts, w.node.shape[1:-1]):
        results = tuple([phase.results for phase in phases])
        if all(phase.taps and phase.results for phase in phases):
            part = part_of(_taps_of(w, phases), without_zeros, results)
        else:
            part = _zeros((count, *results, outputs), x.node.dtype)
        parts.append(part)
        starts.append((0, *[phase.start for phase in phases], 0))
    steps = (1, *[phase.apart for phase in phases], 1)
    return interleaved(*parts, shape=(count, *counts, outputs), starts=tuple(starts), steps=steps)


def _largest(numbers: Sequence[Shape], rank: int) -> Shape:
    """The largest number of each axis, and at least 0."""
    return tuple([max([0, *axis]) for axis in zip(*numbers, strict=True)]) or (0,) * rank


def _not_above_zero(numbers: Shape) -> Shape:
    return tuple([min(n, 0) for n in numbers])


def _less(numbers: Shape, others: Shape) -> Shape:
    return tuple([n - m for n, m in zip(numbers, others, strict=True)])


def _taps_of(w: Array, phases: Sequence[_Phase]) -> Array:
    """The weights that a phase uses."""
    outputs, *_, channels = w.node.shape
    starts, sizes, steps = (tuple([getattr(x, name) for x in phases]) for name in ("first", "taps", "step"))
    return p.slice_(w, starts=(0, *starts, 0), sizes=(outputs, *sizes, channels), steps=(1, *steps, 1))


def _zeros(shape: Shape, dtype: Dtype) -> Array:
    return wrap(p.planned_zeros(shape, dtype))


def weights_of(ct: Array, x: Array, geometry: Geometry, sizes: Shape) -> Array:
    """The cotangents of weights ``(O, sizes, C / groups)``: for each, the sum over windows of ``(N, ..., C)`` of the
    products of the element at its place with the cotangent ``(N, counts, O)``."""
    if geometry.flip:
        found = weights_of(ct, x, geometry._replace(flip=False), sizes)
        return reversed_along(found, range(1, len(sizes) + 1))
    if any(dilation > 1 for dilation in geometry.dilations):
        return weights_in_phases(ct, x, geometry, sizes, weights_of)
    counts, channels = ct.node.shape[1:-1], x.node.shape[-1] // geometry.groups
    shown = _shown(with_padding(x, geometry), geometry, counts, sizes)
    found = _sums_of_windows if channels == 1 and geometry.groups > 1 else _products_of_windows
    return found(ct, shown, geometry.groups, sizes)


def weights_in_phases(
    ct: Array, x: Array, geometry: Geometry, sizes: Shape, weights: Callable[[Array, Array, Geometry, Shape], Array]
) -> Array:
    """As `weights_of`, for an array with zeros between its elements: a weight is used in one phase, or in none.
    ``weights`` computes the cotangents of those of a phase."""
    count, *counts, outputs = ct.node.shape
    channels = x.node.shape[-1] // geometry.groups
    shape = (outputs, *sizes, channels)
    found = _zeros(shape, ct.node.dtype)
    for phases, without_zeros in _undilated(geometry, x.node.shape[1:-1], tuple(counts), sizes):
        taps, results = (tuple([getattr(x, name) for x in phases]) for name in ("taps", "results"))
        if all(taps) and all(results):
            starts, steps = (0, *[phase.start for phase in phases], 0), (1, *[phase.apart for phase in phases], 1)
            some = p.slice_(ct, starts=starts, sizes=(count, *results, outputs), steps=steps)
            part = weights(some, x, without_zeros, taps)
            starts, steps = (0, *[phase.first for phase in phases], 0), (1, *[phase.step for phase in phases], 1)
            found = p.slice_update(found, part, starts=starts, steps=steps)
    return found


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
    return _with_zeros(x, low, high) if any(low) or any(high) else x


def _with_zeros(x: Array, low: Shape, high: Shape) -> Array:
    """The array with zeros around it. A large array is copied into zeros, which is faster than comparing the index of
    each element with the borders."""
    shape = tuple([before + n + behind for before, n, behind in zip(low, x.node.shape, high, strict=True)])
    if prod(shape) < LARGE:
        return p.pad(x, wrap(p.planned_zeros((), x.node.dtype)), low=low, high=high)
    return p.slice_update(_zeros(shape, x.node.dtype), x, starts=low, steps=(1,) * len(shape))


def _dilated(x: Array, axis: int, spacing: int) -> Array:
    """The elements along an axis with zeros between them."""
    shape = x.node.shape
    if spacing == 1 or shape[axis] <= 1:
        return x
    apart = p.expand(x, axes=(axis + 1,))
    zeros = tuple([spacing - 1 if number == axis + 1 else 0 for number in range(len(shape) + 1)])
    separate = _with_zeros(apart, (0,) * len(zeros), zeros)
    whole = p.reshape(separate, shape=(*shape[:axis], shape[axis] * spacing, *shape[axis + 1 :]))
    sizes = (*shape[:axis], spread(shape[axis], spacing), *shape[axis + 1 :])
    return p.slice_(whole, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))


def _products(shown: Array, w: Array, groups: int, rank: int) -> Array:
    """Windows ``(N, counts, sizes, C)`` times weights ``(O, sizes, C / groups)``, as products of matrices."""
    outer, (outputs, *rest) = shown.node.shape[: rank + 1], w.node.shape
    batch = (groups,) if groups > 1 else ()
    rows = p.reshape(by_group(shown, groups), shape=(*batch, prod(outer), prod(rest)))
    columns = p.matrix_transpose(p.reshape(w, shape=(*batch, outputs // groups, prod(rest))))
    result = p.reshape(p.matmul(rows, columns), shape=(*batch, *outer, outputs // groups))
    return p.reshape(move_axis(result, 0, rank + 1), shape=(*outer, outputs)) if batch else result


def has_few_outputs(w: Array, geometry: Geometry, counts: Shape) -> bool:
    """Whether lanes should go along windows, because there are few outputs and windows overlap."""
    outputs, *sizes, channels = w.node.shape
    beside = prod(sizes) > 1 and bool(counts) and counts[-1] >= LONG_LINE and geometry.strides[-1] == 1
    return beside and geometry.groups == 1 and outputs <= FEW_OUTPUTS <= channels and not w.node.dtype.is_complex


def _with_positions_beside(x: Array, low: Shape, high: Shape) -> Array:
    """A padded array ``(N, ..., C)``, stored with the channels before the last spatial axis: what neighbouring windows
    read is near in memory."""
    rank = x.node.ndim - 2
    turned = move_axis(x, rank + 1, rank).node
    stored = wrap(Node(p.stored, (turned,), (), turned.shape, turned.dtype, None))
    if any(low) or any(high):
        stored = _with_zeros(stored, (0, *low[:-1], 0, low[-1]), (0, *high[:-1], 0, high[-1]))
    return move_axis(stored, rank, rank + 1)


def _products_for_few(padded: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """The transposed product of weights ``(O, sizes, C)`` with windows, which are columns."""
    outputs, *rest = w.node.shape
    shown = _shown(padded, geometry, counts, tuple(rest[:-1]))
    outer = shown.node.shape[: len(rest)]
    columns = p.matrix_transpose(p.reshape(shown, shape=(prod(outer), prod(rest))))
    result = p.matmul(p.reshape(w, shape=(outputs, prod(rest))), columns)
    return move_axis(p.reshape(result, shape=(outputs, *outer)), 0, len(rest))


def _products_of_windows(ct: Array, shown: Array, groups: int, sizes: Shape) -> Array:
    """Windows ``(N, counts, sizes, C)`` times ``(N, counts, O)``, summed over windows, as products of matrices."""
    terms, outputs = prod(ct.node.shape[:-1]), ct.node.shape[-1]
    channels = shown.node.shape[-1] // groups
    elements = prod(sizes) * channels
    parts = parts_of(ct.node.shape[0], terms, elements * outputs) if groups == 1 else groups
    inside = terms if groups > 1 else terms // parts
    left = p.reshape(by_group(shown, groups), shape=(parts, inside, elements))
    right = p.reshape(by_group(ct, groups), shape=(parts, inside, outputs // groups))
    if goes_over_columns(terms, outputs):
        return weights_from_columns(_summed(p.matmul(p.matrix_transpose(left), right), groups), groups, sizes, channels)
    ordered = _summed(p.matmul(p.matrix_transpose(right), left), groups)
    return p.reshape(ordered, shape=(outputs, *sizes, channels))


def goes_over_columns(terms: int, outputs: int) -> bool:
    """Whether outputs should be the columns of the product that gives the cotangents of weights, and not its rows: then
    the result has to be transposed."""
    return terms > TURNING * outputs


def weights_from_columns(found: Array, groups: int, sizes: Shape, channels: int) -> Array:
    """``(groups, elements of a window, outputs of a group)`` as ``(O, sizes, C / groups)``."""
    each = found.node.shape[-1]
    apart = p.reshape(found, shape=(groups, *sizes, channels, each))
    return p.reshape(move_axis(apart, len(sizes) + 2, 1), shape=(groups * each, *sizes, channels))


def by_group(x: Array, groups: int) -> Array:
    """The groups of the last axis as the first one, if there are several."""
    if groups == 1:
        return x
    *outer, channels = x.node.shape
    return move_axis(p.reshape(x, shape=(*outer, groups, channels // groups)), len(outer), 0)


def _summed(parts: Array, groups: int) -> Array:
    """The sum of parts along the first axis, unless that is the axis of groups."""
    return p.sum(parts, axes=(0,)) if groups == 1 and parts.node.shape[0] > 1 else parts


def parts_of(count: int, terms: int, results: int) -> int:
    """In how many parts sums over ``count`` examples are computed. The order of sums determines the bits of the result,
    so this depends on extents alone."""
    if terms < LONG_SUM or results > SMALL_RESULT:
        return 1
    return max(parts for parts in range(1, MOST_PARTS + 1) if count % parts == 0)


def _sum_of_taps(padded: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """A convolution where each channel is a group, or of one channel with one output, as a sum over the elements of a
    window."""
    groups, (outputs, *sizes, _) = geometry.groups, w.node.shape
    each, rank = outputs // groups, len(sizes)
    shape = (padded.node.shape[0], *counts, groups, each)
    by_tap = p.transpose(p.reshape(w, shape=(groups, each, prod(sizes))), axes=(2, 0, 1)).node
    # Transposed and stored, so that neighbouring channels are neighbours in memory.
    weights = wrap(Node(p.stored, (by_tap,), (), by_tap.shape, by_tap.dtype, None))
    total = None
    for number, elements in enumerate(_taps(padded, geometry, counts, tuple(sizes))):
        one = p.slice_(weights, starts=(number, 0, 0), sizes=(1, groups, each), steps=(1, 1, 1))
        right = p.broadcast(p.reshape(one, shape=((1,) * (rank + 1) + (groups, each))), shape=shape)
        left = p.broadcast(p.expand(elements, axes=(rank + 2,)), shape=shape)
        total = p.multiply(left, right) if total is None else multiply_add(left, right, total)
    return p.reshape(total, shape=(*shape[:-2], outputs))


def _taps(padded: Array, geometry: Geometry, counts: Shape, sizes: Shape) -> Iterator[Array]:
    """For each position in a window, the elements there of all windows: ``(N, counts, C)``."""
    count, *_, channels = padded.node.shape
    for index in combinations(*[range(size) for size in sizes]):
        starts = [number * spacing for number, spacing in zip(index, geometry.spacings, strict=True)]
        steps = (1, *geometry.strides, 1)
        yield p.slice_(padded, starts=(0, *starts, 0), sizes=(count, *counts, channels), steps=steps)


def _sums_of_windows(ct: Array, shown: Array, groups: int, sizes: Shape) -> Array:
    """The cotangents of weights where each channel is a group, as sums over windows. Sums along the innermost axis come
    first, while their elements are in caches; products are exact."""
    dtype, (*outer, outputs) = ct.node.dtype, ct.node.shape
    if dtype is dtypes.float32:
        ct, shown = (p.cast(x, dtype=dtypes.float64) for x in (ct, shown))
    rank, each = len(sizes), outputs // groups
    inner = len(outer) - 1
    # (N, counts but the last one, sizes, the last count, groups, outputs of a group)
    shape = (*outer[:-1], *sizes, outer[-1], groups, each)
    left = p.expand(move_axis(shown, inner, inner + rank), axes=(shown.node.ndim,))
    right = p.expand(p.reshape(ct, shape=(*outer, groups, each)), axes=tuple(range(inner, inner + rank)))
    terms = p.multiply(p.broadcast(left, shape=shape), p.broadcast(right, shape=shape))
    total = p.cast(p.sum(terms, axes=(inner + rank,)), dtype=dtype)
    if inner:
        total = p.sum(total, axes=tuple(range(inner)))
    return p.reshape(p.transpose(total, axes=(rank, rank + 1, *range(rank))), shape=(outputs, *sizes, 1))
