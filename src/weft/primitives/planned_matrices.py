"""Operations on arrays, mostly matrices, for planned graphs, which no constant can be added to."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Shape, wrap
from weft.primitives.base import Array


def zeros(shape: Shape, dtype: Dtype) -> Array:
    return wrap(p.planned_zeros(shape, dtype))


def filled(number: int, like: Array) -> Array:
    """An array like ``like`` in which every element is ``number``."""
    return p.fill(wrap(p.planned_number(number, like.node.dtype)), like.node.shape)


def _rows_and_columns(shape: Shape) -> tuple[Array, Array]:
    last = len(shape) - 1
    row, column = (p.iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in (last - 1, last))
    return row, column


def part(x: Array, rows: int, columns: int) -> Array:
    """The first rows and columns of matrices."""
    *batch, _, _ = x.node.shape
    return p.slice_(x, starts=(0,) * x.node.ndim, sizes=(*batch, rows, columns), steps=(1,) * x.node.ndim)


def banded(x: Array, upper: bool, strict: bool = False) -> Array:
    """The upper or lower triangles of matrices, with zeros elsewhere, also on the diagonal if ``strict``."""
    row, column = _rows_and_columns(x.node.shape)
    comparison = p.less if strict else p.less_equal
    kept = comparison(row, column) if upper else comparison(column, row)
    return p.select(kept, x, zeros(x.node.shape, x.node.dtype))


def identities(shape: Shape, dtype: Dtype) -> Array:
    return p.cast(p.equal(*_rows_and_columns(shape)), dtype=dtype)


def failed(info: Array, shape: Shape) -> Array:
    """Which matrices of a stack have a code other than 0."""
    return p.reshape(p.not_equal(info, zeros(info.node.shape, info.node.dtype)), shape=shape)


def has_zero_on_diagonal(x: Array) -> Array:
    """Which square matrices have a zero on the diagonal."""
    *batch, n, _ = x.node.shape
    flat = p.reshape(x, shape=(*batch, n * n))
    first, steps = (0,) * (len(batch) + 1), (*[1] * len(batch), n + 1)
    diagonal = p.slice_(flat, starts=first, sizes=(*batch, n), steps=steps)
    return p.any_(p.equal(diagonal, zeros((*batch, n), x.node.dtype)), axes=(len(batch),))


def are_finite(x: Array) -> Array:
    """Which matrices contain no infinities and no NaN."""
    difference = p.subtract(x, x)
    last = x.node.ndim - 1
    return p.all_(p.equal(difference, zeros(x.node.shape, x.node.dtype)), axes=(last - 1, last))


def spread(condition: Array, shape: Shape) -> Array:
    """A condition of each matrix or vector, repeated for its elements."""
    axes = tuple(range(condition.node.ndim, len(shape)))
    return p.broadcast(p.expand(condition, axes=axes), shape=shape)


def spoiled(x: Array, condition: Array) -> Array:
    """``x`` with NaN in all matrices or vectors for which a condition holds."""
    nothing = zeros((), x.node.dtype)
    shape = x.node.shape
    return p.select(spread(condition, shape), p.fill(p.divide(nothing, nothing), shape), x)
