"""Matrix functions of the array API standard's ``linalg`` that MLX has elsewhere or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import decide_equal, product
from weft.ops.arguments import Array, array_argument, axes_of, integer_of, to_dtype
from weft.ops.decompositions import limit_of
from weft.ops.diagonals import diagonal_of
from weft.ops.entrance import on_stream
from weft.ops.joining import part
from weft.ops.linalg import inv, matrices, require_matrices
from weft.ops.norms import norm_over
from weft.ops.products import matmul
from weft.ops.reductions import sum as total
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["diagonal", "matrix_norm", "matrix_power", "matrix_rank", "svdvals", "trace", "vector_norm"]


@replayed
def diagonal(a: Array, /, *, offset: int = 0, stream: StreamOrDevice = None) -> Array:
    """Diagonals of the matrices in the last two axes.

    Args:
        a: ``(..., M, N)``, any dtype.
        offset: the diagonal; positive numbers are above the main diagonal.

    Raises:
        ValueError: there are less than two dimensions.

    >>> mx.linalg.diagonal(mx.array([[1, 2], [3, 4]]))
    array([1, 4], dtype=int32)
    """
    return _diagonal("diagonal", a, offset)


def _diagonal(name: str, a: Any, offset: Any) -> Array:
    x = array_argument(f"linalg.{name}", a)
    require_matrices(name, x, square=False)
    return diagonal_of(f"linalg.{name}", x, offset, -2, -1)


@replayed
def trace(a: Array, /, *, offset: int = 0, dtype: Dtype | None = None, stream: StreamOrDevice = None) -> Array:
    """The sums of diagonals of the matrices in the last two axes.

    Args:
        a: ``(..., M, N)``, any dtype.
        offset: which diagonal: positive ones are above the main one.
        dtype: the dtype to which elements are converted before they are added.

    Raises:
        ValueError: there are less than two dimensions.

    >>> mx.linalg.trace(mx.array([[1, 2], [3, 4]]))
    array(5, dtype=int32)
    """
    return total(_diagonal("trace", a, offset), -1, dtype=None if dtype is None else as_dtype(dtype))


@replayed
def matrix_norm(a: Array, /, *, keepdims: bool = False, ord: Any = "fro", stream: StreamOrDevice = None) -> Array:
    """Norms of the matrices in the last two axes; see `mx.linalg.norm` for ``ord``.

    Args:
        a: ``(..., M, N)``.
        keepdims: keep the axes, with extent 1.
        ord: the norm.

    Raises:
        ValueError: there is no such norm, or there are less than two dimensions.

    >>> mx.linalg.matrix_norm(mx.array([[3.0, 0.0], [0.0, 4.0]]))
    array(5, dtype=float32)
    """
    x = array_argument("linalg.matrix_norm", a)
    require_matrices("matrix_norm", x, square=False)
    return norm_over("linalg.matrix_norm", x, ord, (x.node.ndim - 2, x.node.ndim - 1), keepdims)


@replayed
def vector_norm(
    a: Array,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
    stream: StreamOrDevice = None,
) -> Array:
    """Norms of vectors along one axis or several; see `mx.linalg.norm` for ``ord``.

    Args:
        a: any shape.
        axis: an axis, several, or None for all.
        keepdims: keep the axes, with extent 1.
        ord: the norm, a number.

    Raises:
        IndexError: there is no such axis.

    >>> mx.linalg.vector_norm(mx.array([[3.0, 0.0], [0.0, 4.0]]))
    array(5, dtype=float32)
    """
    x = array_argument("linalg.vector_norm", a)
    ndim, shape = x.node.ndim, x.node.shape
    axes = axes_of("linalg.vector_norm", axis, ndim)
    others = [one for one in range(ndim) if one not in axes]
    moved = p.transpose(x, axes=(*others, *axes)) if ndim else x
    size = product([shape[one] for one in axes])
    rows = p.reshape(moved, shape=(*[shape[one] for one in others], size))
    found = norm_over("linalg.vector_norm", rows, ord, (len(others),), False)
    return p.expand(found, axes=axes) if keepdims and axes else found


@on_stream
def matrix_power(a: Array, n: int, /, *, stream: StreamOrDevice = None) -> Array:
    """Powers of square matrices; for negative ``n``, powers of their inverses.

    Args:
        a: ``(..., N, N)``, floating or complex.
        n: the exponent; 0 gives identity matrices.

    Raises:
        ValueError: matrices are not square.

    >>> mx.linalg.matrix_power(mx.array([[1.0, 1.0], [0.0, 1.0]]), 3)
    array([[1, 3],
           [0, 1]], dtype=float32)
    """
    x = array_argument("linalg.matrix_power", a)
    require_matrices("matrix_power", x)
    exponent = integer_of("linalg.matrix_power", "n", n)
    if exponent == 0:
        return _units(x)
    square = inv(x) if exponent < 0 else x
    exponent, result = abs(exponent), None
    while exponent:
        if exponent & 1:
            result = square if result is None else matmul(result, square)
        exponent >>= 1
        square = matmul(square, square) if exponent else square
    return result


def _units(x: Array) -> Array:
    """Identity matrices in the shape and dtype of ``x``."""
    row, column = [p.iota(shape=x.node.shape, axis=x.node.ndim - k, dtype=dtypes.int32) for k in (2, 1)]
    return to_dtype(p.equal(row, column), x.node.dtype)


@on_stream
def svdvals(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Singular values in descending order: `mx.linalg.svd` without vectors.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.

    Returns:
        ``(..., min(M, N))``.

    >>> mx.linalg.svdvals(mx.array([[0.0, 2.0], [3.0, 0.0]]))
    array([3, 2], dtype=float32)
    """
    return p.svd(matrices("svdvals", a, square=False), vectors=False, full=False)[0]


@on_stream
def matrix_rank(a: Array, /, *, rtol: Any = None, stream: StreamOrDevice = None) -> Array:
    """How many singular values of matrices are larger than ``rtol`` times the largest one.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.
        rtol: a number, or an array ``(...)``; ``max(M, N) * eps`` by default.

    Returns:
        int32 ranks ``(...)``.

    >>> mx.linalg.matrix_rank(mx.array([[1.0, 2.0], [2.0, 4.0]]))
    array(1, dtype=int32)
    """
    x = matrices("matrix_rank", a, square=False)
    *batch, rows, columns = x.node.shape
    if decide_equal(rows, 0) or decide_equal(columns, 0):
        return p.zeros(tuple(batch), dtypes.int32)
    values = p.svd(p.stop_gradient(x), vectors=False, full=False)[0]
    last = values.node.ndim - 1
    limit = limit_of("linalg.matrix_rank", part(values, last, 0, 1), rows, columns, 1, rtol)
    above = p.greater(values, p.broadcast(limit, shape=values.node.shape))
    return p.sum(to_dtype(above, dtypes.int32), axes=(last,))
