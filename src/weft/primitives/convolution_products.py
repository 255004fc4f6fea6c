"""How convolutions are computed: as matrix products of views that show windows, without copying the windows, or as sums
over the elements of windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as combinations
from math import prod

import weft.primitives as p
from weft import dtypes
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Elementwise
from weft.primitives.batching import move_axis
from weft.primitives.convolution_phases import in_phases, used_phases, weights_in_phases
from weft.primitives.convolution_windows import Geometry, reversed_along, windows, with_padding, with_zeros

__all__ = ["multiply_add"]

MOST_TAPS = 256
"""If channels are not summed, at most this many elements of a window are added one after the other."""

MOST_TAPS_OF_ONE = 64
"""The same for one channel with one output, whose products of matrices need no code of their own for each window."""

TURNING = 15
"""Transposing an element of a result takes as long as packing this many terms of a window."""

FEW_OUTPUTS, LONG_LINE = 8, 16
"""Lanes go along windows if there are at most this many outputs, and at least this many windows along the last axis."""

LONG_SUM, SMALL_RESULT, MOST_PARTS = 1 << 13, 1 << 14, 16
"""Sums of at least this many terms are computed in parts, if there are few such sums, so that threads can share
them."""

multiply_add = Elementwise(
    "multiply_add",
    lambda L, x, y, total: L.fma(x, y, total),
    (lambda t, out, x, y, total: t * y, lambda t, out, x, y, total: t * x, 1),
    accepts=lambda dtype: dtype.is_floating and dtype.size >= 4,
)
"""``x * y + total``, rounded once."""


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
        padded = with_zeros(x, (0, *low, 0), (0, *high, 0)) if any(low) or any(high) else x

    def part_of(taps: Array, one: Geometry, results: Shape) -> Array:
        inside = one._replace(low=_less(one.low, low), high=_less(one.high, high))
        if are_few:
            return _products_for_few(with_padding(padded, inside), taps, inside, results)
        return convolved(padded, taps, inside, results)

    return in_phases(x, w, geometry, counts, part_of)


def _largest(numbers: Sequence[Shape], rank: int) -> Shape:
    """The largest number of each axis, and at least 0."""
    return tuple([max([0, *axis]) for axis in zip(*numbers, strict=True)]) or (0,) * rank


def _not_above_zero(numbers: Shape) -> Shape:
    return tuple([min(n, 0) for n in numbers])


def _less(numbers: Shape, others: Shape) -> Shape:
    return tuple([n - m for n, m in zip(numbers, others, strict=True)])


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
        stored = with_zeros(stored, (0, *low[:-1], 0, low[-1]), (0, *high[:-1], 0, high[-1]))
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
    right = p.reshape(by_group(ct, groups), shape=(parts, inside, outputs // groups))
    if goes_over_columns(terms, outputs):
        if groups == channels == 1:
            rows = _lines_of_elements(shown, parts, len(sizes))
        else:
            rows = p.matrix_transpose(p.reshape(by_group(shown, groups), shape=(parts, inside, elements)))
        return weights_from_columns(_summed(p.matmul(rows, right), groups), groups, sizes, channels)
    left = p.reshape(by_group(shown, groups), shape=(parts, inside, elements))
    ordered = _summed(p.matmul(p.matrix_transpose(right), left), groups)
    return p.reshape(ordered, shape=(outputs, *sizes, channels))


def _lines_of_elements(shown: Array, parts: int, rank: int) -> Array:
    """Windows ``(N, counts, sizes, 1)`` as ``(parts, sizes, N / parts * counts)``. If they are copied, lanes go along
    lines of windows: of a single channel, few neighbouring elements of a window are neighbours in the array."""
    count, *others, _ = shown.node.shape
    counts, sizes = others[:rank], others[rank:]
    apart = p.reshape(shown, shape=(parts, count // parts, *counts, *sizes))
    order = (0, *range(2 + rank, 2 + 2 * rank), *range(1, 2 + rank))
    return p.reshape(p.transpose(apart, axes=order), shape=(parts, prod(sizes), count // parts * prod(counts)))


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
