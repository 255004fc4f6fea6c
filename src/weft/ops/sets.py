"""Functions that treat arrays as sets, and functions that return positions of elements.

The shapes of most results depend on values, so these functions evaluate their argument: they cannot be called on
arguments of a function that is being transformed or compiled. `mx.unique`, whose result has a given size, can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.graph.extents import agree
from weft.ops.arguments import Array, array_argument, promoted, refuse_traced
from weft.ops.entrance import on_stream
from weft.ops.replays import replayed
from weft.ops.sorting import SortedElements
from weft.runtime.devices import StreamOrDevice

__all__ = ["isin", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


class UniqueAllResult(NamedTuple):
    """The result of `mx.unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """The result of `mx.unique_counts`."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """The result of `mx.unique_inverse`."""

    values: Array
    inverse_indices: Array


def _different(name: str, a: Any, indices: bool) -> tuple[SortedElements, int]:
    """The sorted elements of an array, and how many different ones there are."""
    x = array_argument(name, a)
    elements = SortedElements(x, indices)
    refuse_traced(x, name, "Use mx.unique(a, size), whose result has the size that you give.")
    return elements, elements.number.item()


@on_stream
def unique_all(x: Array, /, *, stream: StreamOrDevice = None) -> UniqueAllResult:
    """The different elements in ascending order, the first index of each, the position of each element among them, and
    counts.

    Args:
        x: an array of any dtype. It is evaluated, because shapes depend on its values. NaN differs from every element.

    Returns:
        values; indices, into the flattened array; inverse_indices, in the shape of ``x``; counts. Indices are uint32,
        counts int32.

    >>> mx.unique_all(mx.array([3, 1, 3])).counts
    array([1, 2], dtype=int32)
    """
    elements, size = _different("unique_all", x, indices=True)
    return UniqueAllResult(*elements.distinct(size, index=True, inverse=True, counts=True))


@on_stream
def unique_counts(x: Array, /, *, stream: StreamOrDevice = None) -> UniqueCountsResult:
    """The different elements in ascending order, and how often each occurs; see `unique_all`.

    >>> mx.unique_counts(mx.array([3, 1, 3])).counts
    array([1, 2], dtype=int32)
    """
    elements, size = _different("unique_counts", x, indices=False)
    values, _, _, counts = elements.distinct(size, index=False, inverse=False, counts=True)
    return UniqueCountsResult(values, counts)


@on_stream
def unique_inverse(x: Array, /, *, stream: StreamOrDevice = None) -> UniqueInverseResult:
    """The different elements in ascending order, and the position of each element among them; see `unique_all`.

    >>> mx.unique_inverse(mx.array([3, 1, 3])).inverse_indices
    array([1, 0, 1], dtype=uint32)
    """
    elements, size = _different("unique_inverse", x, indices=True)
    values, _, inverse, _ = elements.distinct(size, index=False, inverse=True, counts=False)
    return UniqueInverseResult(values, inverse)


@on_stream
def unique_values(x: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The different elements in ascending order; see `unique_all`.

    >>> mx.unique_values(mx.array([3, 1, 3]))
    array([1, 3], dtype=int32)
    """
    elements, size = _different("unique_values", x, indices=False)
    return elements.distinct(size, index=False, inverse=False, counts=False)[0]


@on_stream
def nonzero(x: Array, /, *, stream: StreamOrDevice = None) -> tuple[Array, ...]:
    """The indices of all elements that are not zero: a uint32 array for each axis, in row-major order.

    Args:
        x: an array of any dtype with at least one axis. It is evaluated, because shapes depend on its values.

    Raises:
        ValueError: there are no axes.

    >>> mx.nonzero(mx.array([[0, 7], [8, 0]]))
    (array([0, 1], dtype=uint32), array([1, 0], dtype=uint32))
    """
    array = array_argument("nonzero", x)
    shape = array.node.shape
    if not shape:
        raise ValueError("[nonzero] A 0-d array has no axes; use mx.atleast_1d first.")
    refuse_traced(array, "nonzero", "Use mx.where(condition, a, other), which keeps the shape.")
    rest = _nonzero_indices(p.reshape(array, shape=(array.node.size,)))
    indices = []
    for extent in reversed(shape[1:]):
        size = p.full(rest.node.shape, extent, dtypes.uint32)
        indices.append(p.remainder(rest, size))
        rest = p.floor_divide(rest, size)
    return (rest, *reversed(indices))


def _nonzero_indices(row: Array) -> Array:
    """The indices of the elements of a row that are not zero."""
    size = row.node.size
    marks = p.not_equal(row, p.zeros((size,), row.node.dtype))
    count = p.sum(p.cast(marks, dtype=dtypes.uint32), axes=(0,)).item()
    return p.slice_(p.marked_first(marks), starts=(0,), sizes=(count,), steps=(1,))


@replayed
def isin(x1: Any, x2: Any, /, *, invert: bool = False, stream: StreamOrDevice = None) -> Array:
    """For each element of ``x1`` whether it is among those of ``x2``; NaN is in no array.

    Args:
        x1: an array or a number.
        x2: an array or a number; both are compared in their common dtype.
        invert: return whether it is not.

    Returns:
        A boolean array of the shape of ``x1``.

    >>> mx.isin(mx.array([1, 2, 3]), mx.array([3, 1]))
    array([True, False, True], dtype=bool)
    """
    x, among = promoted("isin", (x1, x2), words=("x1", "x2"))
    size = among.node.size
    if agree(size, 0):
        return p.full(x.node.shape, bool(invert), dtypes.bool_)
    ordered = p.sort(p.reshape(among, shape=(size,)), start=0, count=size)
    before = p.searchsorted(ordered, x, right=False)
    behind = p.searchsorted(ordered, x, right=True)
    differs = p.logical_or(p.equal(before, behind), p.not_equal(x, x))
    return differs if invert else p.logical_not(differs)
