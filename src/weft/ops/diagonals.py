"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import AnyExtent, largest, smallest
from weft.ops.arguments import (
    Array,
    array_argument,
    axis_of,
    broadcast,
    count_of,
    integer_of,
    to_dtype,
)
from weft.ops.reductions import whole_sum_dtype
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["diag", "diagonal", "eye", "identity", "trace", "tri", "tril", "triu"]

_FAR = 1 << 30


def _rows_and_columns(rows: AnyExtent, columns: AnyExtent, offset: int) -> tuple[Array, Array]:
    """The row number plus ``offset``, and the column number, of each element of a matrix.

    A large offset is limited so that it fits the dtype: all offsets beyond the last row or column have the same effect.
    """
    offset = smallest(largest(offset, -_FAR), _FAR)
    row = p.iota(shape=(rows, columns), axis=0, dtype=dtypes.int32)
    column = p.iota(shape=(rows, columns), axis=1, dtype=dtypes.int32)
    return (p.add(row, offset) if offset else row), column


def _matrix_shape(name: str, n: Any, m: Any) -> tuple[int, int]:
    rows = count_of(name, "n", n)
    return rows, rows if m is None else count_of(name, "m", m)


@replayed
def eye(
    n: int,
    m: int | None = None,
    k: int = 0,
    dtype: Dtype | None = dtypes.float32,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """A matrix with ones on a diagonal and zeros elsewhere.

    Args:
        n: the number of rows.
        m: the number of columns, ``n`` by default.
        k: which diagonal: positive ones are above the main one.
        dtype: the dtype of the elements.

    >>> mx.eye(2, 3, 1)
    array([[0, 1, 0],
           [0, 0, 1]], dtype=float32)
    """
    return _eye("eye", n, m, k, dtype)


def _eye(name: str, n: Any, m: Any, k: Any, dtype: Dtype | None) -> Array:
    row, column = _rows_and_columns(*_matrix_shape(name, n, m), integer_of(name, "k", k))
    return to_dtype(p.equal(row, column), dtypes.float32 if dtype is None else as_dtype(dtype))


@replayed
def identity(n: int, dtype: Dtype | None = dtypes.float32, *, stream: StreamOrDevice = None) -> Array:
    """The identity matrix of ``n`` rows.

    Args:
        n: the number of rows and columns.
        dtype: the dtype of the elements.

    >>> mx.identity(2)
    array([[1, 0],
           [0, 1]], dtype=float32)
    """
    return _eye("identity", n, None, 0, dtype)


@replayed
def tri(
    n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = None, *, stream: StreamOrDevice = None
) -> Array:
    """A matrix with ones on and below a diagonal and zeros above.

    Args:
        n: the number of rows.
        m: the number of columns, ``n`` by default.
        k: which diagonal: positive ones are above the main one.
        dtype: float32 by default.

    >>> mx.tri(3)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=float32)
    """
    row, column = _rows_and_columns(*_matrix_shape("tri", n, m), integer_of("tri", "k", k))
    below = p.greater_equal(row, column)
    return to_dtype(below, dtypes.float32 if dtype is None else as_dtype(dtype))


def _triangle(name: str, x: Any, k: int, lower: bool) -> Array:
    a = array_argument(name, x, "x")
    if a.node.ndim < 2:
        raise ValueError(f"[{name}] A triangle needs at least 2 dimensions; the array has {a.node.ndim}.")
    rows, columns = a.node.shape[-2:]
    row, column = _rows_and_columns(rows, columns, integer_of(name, "k", k))
    inside = (p.greater_equal if lower else p.less_equal)(row, column)
    return p.select(broadcast(inside, a.node.shape), a, p.zeros_like(a))


@replayed
def tril(x: Array, k: int = 0, *, stream: StreamOrDevice = None) -> Array:
    """The matrices in the last two axes with zeros above diagonal ``k``.

    Args:
        x: at least 2 dimensions.
        k: which diagonal: positive ones are above the main one.

    >>> mx.tril(mx.array([[1, 2], [3, 4]]))
    array([[1, 0],
           [3, 4]], dtype=int32)
    """
    return _triangle("tril", x, k, True)


@replayed
def triu(x: Array, k: int = 0, *, stream: StreamOrDevice = None) -> Array:
    """The matrices in the last two axes with zeros below diagonal ``k``.

    Args:
        x: at least 2 dimensions.
        k: which diagonal: positive ones are above the main one.

    >>> mx.triu(mx.array([[1, 2], [3, 4]]))
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    return _triangle("triu", x, k, False)


@replayed
def diagonal(a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, stream: StreamOrDevice = None) -> Array:
    """The diagonals of the matrices in two axes; the diagonal is the last axis of the result.

    Args:
        a: at least 2 dimensions.
        offset: which diagonal: positive ones are above the main one.

    Raises:
        ValueError: fewer than 2 dimensions, or ``axis1`` and ``axis2`` are the same.

    >>> mx.diagonal(mx.array([[1, 2, 3], [4, 5, 6]]), 1)
    array([2, 6], dtype=int32)
    """
    x = array_argument("diagonal", a)
    return diagonal_of("diagonal", x, offset, axis1, axis2)


def diagonal_of(name: str, x: Array, offset: Any, axis1: int, axis2: int) -> Array:
    """`diagonal`. Messages name the function ``name``."""
    ndim = x.node.ndim
    if ndim < 2:
        raise ValueError(f"[{name}] A diagonal needs at least 2 dimensions; the array has {ndim}.")
    rows, columns = axis_of(name, axis1, ndim), axis_of(name, axis2, ndim)
    if rows == columns:
        raise ValueError(f"[{name}] axis1 and axis2 must be different axes; both are {rows}.")
    others = [axis for axis in range(ndim) if axis not in (rows, columns)]
    moved = p.transpose(x, axes=(*others, rows, columns))
    *outer, height, width = moved.node.shape
    offset = integer_of(name, "offset", offset)
    down, right = max(-offset, 0), max(offset, 0)
    length = largest(smallest(height - down, width - right), 0)
    index = p.iota(shape=(length,), axis=0, dtype=dtypes.int32)
    batch = len(outer)
    indices = [p.add(index, start) if start else index for start in (down, right)]
    found = p.gather(moved, *indices, axes=(batch, batch + 1), slice_sizes=(*outer, 1, 1))
    flat = p.squeeze(found, axes=(batch + 1, batch + 2))
    return p.transpose(flat, axes=(*range(1, batch + 1), 0)) if batch else flat


@replayed
def trace(
    a: Array,
    /,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Dtype | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The sums of the diagonals of the matrices in two axes.

    Args:
        a: at least 2 dimensions.
        offset: which diagonal: positive ones are above the main one.
        axis1, axis2: the axes of rows and of columns.
        dtype: of the sum; by default that of `sum`.

    >>> mx.trace(mx.array([[1, 2], [3, 4]]))
    array(5, dtype=int32)
    """
    elements = diagonal_of("trace", array_argument("trace", a), offset, axis1, axis2)
    total = whole_sum_dtype(elements.node.dtype) if dtype is None else as_dtype(dtype)
    return p.sum(to_dtype(elements, total), axes=(elements.node.ndim - 1,))


@replayed
def diag(a: Array, /, k: int = 0, *, stream: StreamOrDevice = None) -> Array:
    """The diagonal ``k`` of a matrix, or a matrix with a vector on its diagonal ``k`` and zeros elsewhere.

    Args:
        a: 1 or 2 dimensions.
        k: which diagonal: positive ones are above the main one.

    >>> mx.diag(mx.array([1, 2]))
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = array_argument("diag", a)
    k = integer_of("diag", "k", k)
    if x.node.ndim == 2:
        return diagonal_of("diag", x, k, 0, 1)
    if x.node.ndim != 1:
        raise ValueError(f"[diag] takes vectors and matrices; the array has {x.node.ndim} dimensions.")
    zero = p.zeros((), x.node.dtype)
    column = p.pad(x, zero, low=(max(-k, 0),), high=(max(k, 0),))
    size = column.node.shape[0]
    row_index, column_index = _rows_and_columns(size, size, k)
    spread = p.broadcast(p.expand(column, axes=(1,)), shape=(size, size))
    chosen = p.equal(row_index, column_index)
    return p.select(chosen, spread, p.zeros_like(spread))
