"""Functions that sort elements, select some of them, or search in sorted ones.

The order is NumPy's: NaN comes after all numbers, -0 equals 0, and complex numbers are ordered by real, then by
imaginary part.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import shortened, wrong_type
from weft.graph.extents import agree, decide, product, value_of
from weft.ops.arguments import (
    Array,
    array_argument,
    array_of,
    axes_of,
    axis_of,
    count_of,
    extent_constant,
    inexact,
    integer_of,
    promoted,
    shape_text,
    to_dtype,
)
from weft.ops.entrance import on_stream
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["argpartition", "argsort", "median", "partition", "searchsorted", "sort", "topk", "unique"]


def _rows(name: str, a: Any, axis: int | None) -> tuple[Array, int]:
    """An array whose last axis is to be sorted, and the original position of that axis."""
    x = array_argument(name, a)
    if axis is None:
        return p.reshape(x, shape=(x.node.size,)), 0
    along = axis_of(name, axis, x.node.ndim)
    return p.move_axis(x, along, x.node.ndim - 1), along


def _moved_back(x: Array, axis: int) -> Array:
    return p.move_axis(x, x.node.ndim - 1, axis)


@replayed
def sort(
    a: Array,
    /,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    stream: StreamOrDevice = None,
) -> Array:
    """The elements along an axis in ascending order; equal elements keep their order.

    Args:
        a: an array of any dtype. NaN comes after all numbers; complex numbers are ordered by real, then by imaginary
            part.
        axis: the axis; None for the flattened array.
        descending: sort from NaN and the largest element to the smallest.
        stable: makes no difference, because equal elements always keep their order.

    Returns:
        An array of the shape (flat, if ``axis`` is None) and dtype of ``a``.

    Raises:
        IndexError: there is no such axis.

    >>> mx.sort(mx.array([[3, 1, 2], [6, 5, 4]]))
    array([[1, 2, 3],
           [4, 5, 6]], dtype=int32)
    """
    x, along = _rows("sort", a, axis)
    found = p.sort(x, start=0, count=x.node.shape[-1])
    return _moved_back(p.reversed_rows(found) if descending else found, along)


@replayed
def argsort(
    a: Array,
    /,
    axis: int | None = -1,
    *,
    descending: bool = False,
    stable: bool = True,
    stream: StreamOrDevice = None,
) -> Array:
    """The indices that put the elements along an axis in ascending order; equal elements keep their order.

    Args:
        a: an array of any dtype, ordered as by `sort`.
        axis: the axis; None for the flattened array.
        descending: sort from NaN and the largest element to the smallest.
        stable: makes no difference, because equal elements always keep their order.

    Returns:
        uint32 indices along the axis: ``mx.take_along_axis(a, mx.argsort(a), -1)`` is ``mx.sort(a)``.

    Raises:
        IndexError: there is no such axis.

    >>> mx.argsort(mx.array([3.0, mx.nan, 1.0, 1.0]))
    array([2, 3, 0, 1], dtype=uint32)
    """
    x, along = _rows("argsort", a, axis)
    extent = x.node.shape[-1]
    if not descending or agree(extent, 0):
        return _moved_back(p.argsort(x, start=0, count=extent), along)
    found = p.reversed_rows(
        p.argsort(p.reversed_rows(x), start=0, count=extent)
    )  # reversing twice keeps equal ones in order
    last = p.fill(extent_constant(extent - 1, dtypes.uint32), found.node.shape)
    return _moved_back(p.subtract(last, found), along)


def _parted(primitive: Any, x: Array, kth: Any, axis: int) -> Array:
    number, extent = integer_of(primitive.name, "kth", kth), x.node.shape[-1]
    if not (decide(operator.lt, number, extent) if number >= 0 else decide(operator.le, -number, extent)):
        raise ValueError(f"[{primitive.name}] kth is {shortened(kth)}, but there are {extent} elements along the axis.")
    return _moved_back(primitive(x, kth=number if number >= 0 else extent + number), axis)


@replayed
def partition(a: Array, /, kth: int, axis: int | None = -1, *, stream: StreamOrDevice = None) -> Array:
    """The elements along an axis, rearranged so that the one at index ``kth`` is the one that `sort` puts there.

    Args:
        a: an array of any dtype, ordered as by `sort`.
        kth: the index; negative ones count from the end. No element before it is larger, none after it is smaller.
        axis: the axis; None for the flattened array.

    Returns:
        An array of the shape (flat, if ``axis`` is None) and dtype of ``a``.

    Raises:
        IndexError: there is no such axis.
        ValueError: there is no such element.

    >>> mx.partition(mx.array([5, 4, 3, 2, 1]), 2)[2]
    array(3, dtype=int32)
    """
    x, along = _rows("partition", a, axis)
    return _parted(p.partition, x, kth, along)


@replayed
def argpartition(a: Array, /, kth: int, axis: int | None = -1, *, stream: StreamOrDevice = None) -> Array:
    """Indices that rearrange the elements along an axis as `partition` does.

    Args:
        a: an array of any dtype, ordered as by `sort`.
        kth: the index of the element that is put where `sort` puts it; negative ones count from the end.
        axis: the axis; None for the flattened array.

    Returns:
        uint32 indices along the axis.

    Raises:
        IndexError: there is no such axis.
        ValueError: there is no such element.

    >>> mx.argpartition(mx.array([5, 4, 3, 2, 1]), 2)[2]
    array(2, dtype=uint32)
    """
    x, along = _rows("argpartition", a, axis)
    return _parted(p.argpartition, x, kth, along)


@replayed
def topk(a: Array, /, k: int, axis: int | None = -1, *, stream: StreamOrDevice = None) -> Array:
    """The ``k`` largest elements along an axis, in ascending order.

    Args:
        a: an array of any dtype, ordered as by `sort`: NaN is the largest.
        k: how many elements.
        axis: the axis; None for the flattened array.

    Returns:
        An array of the dtype of ``a``, with ``k`` elements along the axis.

    Raises:
        IndexError: there is no such axis.
        ValueError: there are fewer than ``k`` elements.

    >>> mx.topk(mx.array([5, 9, 3, 7, 1]), 2)
    array([7, 9], dtype=int32)
    """
    x, along = _rows("topk", a, axis)
    number, extent = count_of("topk", "k", k), x.node.shape[-1]
    if value_of(extent) < number:
        raise ValueError(f"[topk] k is {number}, but there are {extent} elements along the axis.")
    return _moved_back(p.sort(x, start=extent - number, count=number), along)


@replayed
def median(
    a: Array,
    /,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The median over axes: the middle element, or the mean of the two middle ones; NaN if an element is NaN.

    Args:
        a: an array of any dtype.
        axis: an axis, several, or None for all.
        keepdims: keep the axes, with extent 1.

    Returns:
        An array of the dtype of ``a``, or float32 for integers and booleans.

    Raises:
        IndexError: there is no such axis.
        ValueError: there are no elements.

    >>> mx.median(mx.array([[1, 9, 2], [4, 3, 8]]), axis=1)
    array([2, 4], dtype=float32)
    """
    x = array_argument("median", a)
    shape = x.node.shape
    axes = axes_of("median", axis, len(shape))
    if any(agree(shape[one], 0) for one in axes):
        raise ValueError(f"[median] There are no elements along axes {axes} of an array of shape {shape_text(shape)}.")
    parallel = [one for one in range(len(shape)) if one not in axes]
    extent = product([shape[one] for one in axes])
    moved = p.transpose(x, axes=(*parallel, *axes))
    result = _median_of_rows(p.reshape(moved, shape=(*[shape[one] for one in parallel], extent)))
    return p.expand(result, axes=axes) if keepdims and axes else result


def _median_of_rows(x: Array) -> Array:
    dtype = inexact(x.node.dtype)
    wide = dtypes.float32 if dtype.size == 2 else dtype
    last, extent = x.node.ndim - 1, x.node.shape[-1]
    count = 2 - extent % 2
    middle = to_dtype(p.sort(x, start=(extent - 1) // 2, count=count), wide)
    result = to_dtype(p.divide(p.sum(middle, axes=(last,)), extent_constant(count, wide)), dtype)
    if not x.node.dtype.is_inexact:
        return result
    nan = p.any_(p.not_equal(x, x), axes=(last,))
    return p.select(nan, p.full(result.node.shape, float("nan"), dtype), result)


def _order_of(rows: Array, sorter: Any) -> Array:
    """Indices that sort a vector, checked."""
    order = array_argument("searchsorted", sorter, "sorter")
    if not order.node.dtype.is_integer or not agree(order.node.shape, rows.node.shape):
        raise ValueError(
            f"[searchsorted] sorter has integers and the shape {shape_text(rows.node.shape)} of the sequence; got "
            f"{order.node.dtype.name} of shape {shape_text(order.node.shape)}."
        )
    return order


@replayed
def searchsorted(
    sorted_sequence: Array,
    values: Array,
    /,
    side: str = "left",
    *,
    sorter: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The indices at which values can be inserted so that a sorted sequence stays sorted.

    Args:
        sorted_sequence: a vector in ascending order, as `sort` gives it.
        values: numbers of any shape; both arrays are compared in their common dtype.
        sorter: indices that put the sequence in ascending order, if it is not sorted.
        side: "left" counts the elements smaller than a value, "right" also those equal to it.

    Returns:
        uint32 indices of the shape of ``values``, from 0 to the length of the sequence.

    Raises:
        ValueError: the sequence is no vector, or there is no such side.

    >>> mx.searchsorted(mx.array([1, 2, 2, 4]), mx.array([0, 2, 3, 5]), side="right")
    array([0, 3, 3, 4], dtype=uint32)
    """
    rows = array_argument("searchsorted", sorted_sequence, "sorted_sequence")
    if rows.node.ndim != 1:
        raise ValueError(f"[searchsorted] The sorted sequence must be a vector, not of shape {rows.node.shape}.")
    if sorter is not None:
        rows = p.take_from_rows(rows, _order_of(rows, sorter))
    if not isinstance(side, str):
        raise wrong_type("searchsorted", "side", 'a string, "left" or "right"', side)
    if side not in ("left", "right"):
        raise ValueError(f'[searchsorted] side must be "left" or "right", not {shortened(side)}.')
    rows, wanted = promoted("searchsorted", (rows, values), words=("sorted_sequence", "values"))
    return p.searchsorted(rows, wanted, right=side == "right")


@on_stream
def unique(
    a: Array,
    /,
    size: int,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    fill_value: Any = None,
    *,
    stream: StreamOrDevice = None,
) -> Array | tuple[Array, ...]:
    """The different elements of the flattened array in ascending order, the first ``size`` of them.

    The shape of the result does not depend on values, so ``a`` is not evaluated. NaN differs from every element.

    Args:
        a: an array of any dtype.
        size: the number of elements of the result. If ``a`` has more different ones, the largest are left out.
        return_index: also return the index in the flattened array of the first of equal elements, as uint32.
        return_inverse: also return for each element of ``a`` its position among the different ones, as uint32; for
            those that are left out, the last position.
        return_counts: also return how often each element occurs, as int32; 0 for elements that only fill the result.
        fill_value: fills the result if there are fewer different elements, a number or an array with one element; None
            repeats the smallest element.

    Returns:
        The elements; or a tuple of elements, index, inverse and counts, as far as they were asked for.

    Raises:
        ValueError: ``size`` is negative, ``fill_value`` has several elements, or nothing can fill the result.

    >>> mx.unique(mx.array([2, 1, 2, 3, 1]), 4, return_counts=True, fill_value=0)
    (array([1, 2, 3, 0], dtype=int32), array([2, 2, 1, 0], dtype=int32))
    """
    x = array_argument("unique", a)
    size = count_of("unique", "size", size)
    if size and fill_value is None and agree(x.node.size, 0):
        raise ValueError("[unique] An empty array has no elements to fill up with; give a fill_value.")
    elements = SortedElements(x, return_index or return_inverse)
    values, index, inverse, counts = elements.distinct(size, return_index, return_inverse, return_counts)
    number = p.fill(elements.number, (size,))
    present = p.less(p.iota(shape=(size,), axis=0, dtype=dtypes.int32), number)
    results = [p.select(present, values, _filling(fill_value, x.node.dtype, elements.values, size))]
    if index is not None:
        smallest = _filling(0 if agree(x.node.size, 0) else None, dtypes.uint32, elements.order, size)
        results.append(p.select(present, index, smallest))
    if inverse is not None:
        results.append(inverse)
    if counts is not None:
        results.append(p.select(present, counts, p.zeros((size,), dtypes.int32)))
    return tuple(results) if len(results) > 1 else results[0]


class SortedElements:
    """The elements of a flattened array in ascending order; with ``indices``, also their original indices.

    ``first`` says of each element whether it differs from the one before, and ``number`` counts these.
    """

    def __init__(self, x: Array, indices: bool) -> None:
        extent = x.node.size
        flat = p.reshape(x, shape=(extent,))
        self.shape, self.extent = x.node.shape, extent
        self.order = p.argsort(flat, start=0, count=extent) if indices else None
        self.values = p.sort(flat, start=0, count=extent) if self.order is None else p.take_from_rows(flat, self.order)
        self.first = self._are_first()
        self.number = p.sum(p.cast(self.first, dtype=dtypes.int32), axes=(0,))

    def _are_first(self) -> Array:
        if agree(self.extent, 0):
            return p.zeros((0,), dtypes.bool_)
        neighbours = [p.slice_(self.values, starts=(start,), sizes=(self.extent - 1,), steps=(1,)) for start in (1, 0)]
        return p.pad(p.not_equal(*neighbours), p.full((), True, dtypes.bool_), low=(1,), high=(0,))

    def distinct(
        self, size: int, index: bool, inverse: bool, counts: bool
    ) -> tuple[Array, Array | None, Array | None, Array | None]:
        """The results of `unique` for the first ``size`` different elements, None for those not asked for. If there are
        fewer different elements, the remaining entries are arbitrary."""
        chosen = self._indices_of_first(size)
        values = self._taken(self.values, chosen)
        return (
            values,
            self._taken(self.order, chosen) if index else None,
            self._inverse(size) if inverse else None,
            self._counts(size, chosen) if counts else None,
        )

    def _indices_of_first(self, size: int) -> Array:
        """The positions of the first ``size`` different elements."""
        indices = p.pad(p.marked_first(self.first), p.zeros((), dtypes.uint32), low=(0,), high=(size,))
        return p.slice_(indices, starts=(0,), sizes=(size,), steps=(1,))

    def _taken(self, x: Any, indices: Array) -> Array:
        return p.zeros(indices.node.shape, x.node.dtype) if agree(self.extent, 0) else p.take_from_rows(x, indices)

    def _inverse(self, size: int) -> Array:
        rank = p.cumsum(p.cast(self.first, dtype=dtypes.int32), axis=0, reverse=False, inclusive=True) - 1
        nearest = p.minimum(rank, p.full(rank.node.shape, max(size - 1, 0), dtypes.int32))
        found = p.put_in_rows(p.zeros_like(self.order), self.order, p.cast(nearest, dtype=dtypes.uint32))
        return p.reshape(found, shape=self.shape)

    def _counts(self, size: int, indices: Array) -> Array:
        """How many elements there are up to the next different one, or up to the end."""
        following = p.slice_(self._indices_of_first(size + 1), starts=(1,), sizes=(size,), steps=(1,))
        end = p.fill(extent_constant(self.extent, dtypes.uint32), (size,))
        behind = p.iota(shape=(size,), axis=0, dtype=dtypes.int32) + 1
        is_last = p.greater_equal(behind, p.fill(self.number, (size,)))
        return p.cast(p.select(is_last, end, following) - indices, dtype=dtypes.int32)


def _filling(value: Any, dtype: dtypes.Dtype, ordered: Array, size: int) -> Array:
    """``size`` copies of the fill value, or of the smallest element."""
    if value is None:
        smallest = p.slice_(ordered, starts=(0,), sizes=(min(size, 1),), steps=(1,))
        return p.broadcast(smallest, shape=(size,))
    filler = to_dtype(array_of("unique", "fill_value", value) if not hasattr(value, "node") else value, dtype)
    if not agree(filler.node.size, 1):
        raise ValueError(f"[unique] fill_value must be one element, not of shape {shape_text(filler.node.shape)}.")
    return p.broadcast(p.reshape(filler, shape=(1,)), shape=(size,))
