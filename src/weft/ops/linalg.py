"""Linear algebra: ``mx.linalg``. Norms and cross products are in `weft.ops.norms`, eigenvalues
in `weft.ops.eigenvalues`.

Matrices are the last two axes; further axes in front make a stack. Where a matrix has no result (it is singular, not
positive definite, or an iteration does not converge), the result is NaN.
"""

from __future__ import annotations

import operator
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of
from weft.dtypes import Dtype
from weft.graph.extents import agree, decide, decide_equal, product, smallest
from weft.ops.arguments import (
    Array,
    array_argument,
    broadcast,
    broadcasted_shape,
    promoted,
    shape_text,
    to_dtype,
)
from weft.ops.decompositions import QRResult, SlogdetResult, SVDResult, limit_of
from weft.ops.entrance import on_stream
from weft.ops.joining import part
from weft.primitives.products import matrix_transpose
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "cholesky",
    "cholesky_inv",
    "det",
    "inv",
    "lu",
    "lu_factor",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "tri_inv",
]

_ACCEPTED = (dtypes.float32, dtypes.float64, dtypes.complex64)


def require_dtype(name: str, dtype: Dtype) -> None:
    """Raise if there are no routines for a dtype."""
    if dtype not in _ACCEPTED:
        raise ValueError(
            f"[linalg.{name}] Matrices must be float32, float64 or complex64; got {dtype.name}. "
            "Convert them first, for example with astype(mx.float32)."
        )


def require_matrices(name: str, x: Array, argument: str = "a", square: bool = True) -> None:
    """Raise if an argument is not a stack of matrices or, if ``square``, of square matrices."""
    shape = x.node.shape
    if len(shape) < 2:
        raise ValueError(f"[linalg.{name}] {argument} needs at least two dimensions; got shape {shape_text(shape)}.")
    if square and not decide_equal(shape[-1], shape[-2]):
        raise ValueError(f"[linalg.{name}] {argument} must be a square matrix; got shape {shape_text(shape)}.")


def matrices(name: str, a: Any, square: bool = True) -> Array:
    x = array_argument(f"linalg.{name}", a)
    require_matrices(name, x, square=square)
    require_dtype(name, x.node.dtype)
    return x


@on_stream
def inv(a: Array, *, stream: StreamOrDevice = None) -> Array:
    """The inverses of square matrices; NaN for those that are singular.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64.

    Raises:
        ValueError: another dtype, or matrices are not square.

    >>> mx.linalg.inv(mx.array([[2.0, 1.0], [1.0, 1.0]]))
    array([[1, -1],
           [-1, 2]], dtype=float32)
    """
    return p.inverse_matrix(matrices("inv", a))


@on_stream
def tri_inv(a: Array, upper: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The inverses of triangular matrices; NaN for those that are singular.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64.
        upper: read the upper triangle of each matrix, else the lower one; the other triangle is not read.

    Raises:
        ValueError: another dtype, or matrices are not square.

    >>> mx.linalg.tri_inv(mx.array([[2.0, 0.0], [2.0, 1.0]]))
    array([[0.5, 0],
           [-1, 1]], dtype=float32)
    """
    return p.triangular_inverse(matrices("tri_inv", a), upper=bool(upper))


@on_stream
def cholesky(a: Array, upper: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The triangular factors L of positive definite matrices, A = L L^H.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64; symmetric or hermitian. One triangle is read.
        upper: return U = L^H, with A = U^H U, computed from the upper triangle of A.

    Returns:
        The factors, with zeros in the other triangle; NaN for matrices that are not positive definite. Derivatives
        assume symmetric or hermitian matrices, and are symmetric or hermitian.

    Raises:
        ValueError: another dtype, or matrices are not square.

    >>> mx.linalg.cholesky(mx.array([[4.0, 2.0], [2.0, 10.0]]))
    array([[2, 0],
           [1, 3]], dtype=float32)
    """
    return p.cholesky(matrices("cholesky", a), upper=bool(upper))


@on_stream
def cholesky_inv(a: Array, upper: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The inverses of matrices whose Cholesky factors are given.

    Args:
        a: the factors ``(..., N, N)``: lower triangular matrices L of L L^H.
        upper: whether they are upper triangular matrices U of U^H U.

    Raises:
        ValueError: another dtype, or matrices are not square.

    >>> mx.linalg.cholesky_inv(mx.array([[2.0, 0.0], [0.0, 1.0]]))
    array([[0.25, 0],
           [0, 1]], dtype=float32)
    """
    inverse = p.triangular_inverse(matrices("cholesky_inv", a), upper=bool(upper))
    adjoint = p.adjoint_of(inverse)
    return p.matmul(inverse, adjoint) if upper else p.matmul(adjoint, inverse)


@on_stream
def lu_factor(a: Array, *, stream: StreamOrDevice = None) -> tuple[Array, Array]:
    """LU decompositions in compact form, with partial pivoting: of A with exchanged rows, L below the diagonal (without
    its diagonal of ones) and U on and above it.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.

    Returns:
        The factors ``(..., M, N)``, and pivots ``(..., min(M, N))`` in uint32: in step i row i was exchanged with row
        ``pivots[i]``.

    Raises:
        ValueError: another dtype, or less than two dimensions.

    >>> mx.linalg.lu_factor(mx.array([[1.0, 2.0], [4.0, 4.0]]))
    (array([[4, 4],
           [0.25, 1]], dtype=float32), array([1, 1], dtype=uint32))
    """
    factors, pivots, _ = p.lu_factors(matrix_transpose(matrices("lu_factor", a, square=False)))
    return matrix_transpose(factors), pivots


@on_stream
def lu(a: Array, *, stream: StreamOrDevice = None) -> tuple[Array, Array, Array]:
    """LU decompositions with partial pivoting: A = L[P, :] U.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.

    Returns:
        P ``(..., M)`` in uint32, the lower triangular L ``(..., M, K)`` with ones on its diagonal, and the upper
        triangular U ``(..., K, N)``, where K is min(M, N).

    Raises:
        ValueError: another dtype, or less than two dimensions.

    >>> mx.linalg.lu(mx.array([[1.0, 2.0], [4.0, 4.0]]))
    (array([1, 0], dtype=uint32), array([[1, 0],
           [0.25, 1]], dtype=float32), array([[4, 4],
           [0, 1]], dtype=float32))
    """
    transposed, _, order = p.lu_factors(matrix_transpose(matrices("lu", a, square=False)))
    factors = matrix_transpose(transposed)
    *batch, rows, columns = factors.node.shape
    inner = smallest(rows, columns)
    starts, steps = (0,) * factors.node.ndim, (1,) * factors.node.ndim
    left = p.slice_(factors, starts=starts, sizes=(*batch, rows, inner), steps=steps)
    right = p.slice_(factors, starts=starts, sizes=(*batch, inner, columns), steps=steps)
    return order, p.with_diagonal(p.band(left, upper=False, strict=True), 1), p.band(right, upper=True)


def _right_sides(name: str, a: Any, b: Any) -> tuple[Array, Array, bool]:
    """Square matrices and right sides of the same dtype, and whether these are a vector."""
    x, y = promoted(f"linalg.{name}", (a, b))
    require_matrices(name, x)
    require_dtype(name, x.node.dtype)
    left, right = x.node.shape, y.node.shape
    is_vector = len(right) == 1
    if not right or not agree(right[0 if is_vector else -2], left[-1]):
        raise ValueError(
            f"[linalg.{name}] a of shape {shape_text(left)} and b of shape {shape_text(right)} do not fit: the "
            f"{'only' if is_vector else 'second to last'} axis of b must have the extent of a matrix."
        )
    return x, p.expand(y, axes=(1,)) if is_vector else y, is_vector


def _solved(name: str, x: Array, y: Array, is_vector: bool, solution: Any) -> Array:
    """``solution(matrices, right sides)`` for broadcast stacks. All right sides of one matrix become columns of one
    array."""
    if x.node.ndim == 2 and y.node.ndim > 2:
        *batch, rows, columns = y.node.shape
        flat = p.reshape(p.move_axis(y, y.node.ndim - 2, 0), shape=(rows, product(batch) * columns))
        found = p.reshape(solution(x, flat), shape=(rows, *batch, columns))
        return p.move_axis(found, 0, y.node.ndim - 2)
    batch = broadcasted_shape(f"linalg.{name}", (x.node.shape[:-2], y.node.shape[:-2]))
    y = broadcast(y, (*batch, *y.node.shape[-2:]))
    found = solution(broadcast(x, (*batch, *x.node.shape[-2:])), y)
    return p.squeeze(found, axes=(found.node.ndim - 1,)) if is_vector else found


@on_stream
def solve(a: Array, b: Array, *, stream: StreamOrDevice = None) -> Array:
    """Solutions of systems of linear equations, A X = B; NaN where A is singular.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64.
        b: ``(..., N, K)`` or one vector ``(N,)``. Axes in front are broadcast.

    Returns:
        ``(..., N, K)`` or ``(..., N)``.

    Raises:
        ValueError: another dtype, or shapes do not fit.

    >>> mx.linalg.solve(mx.array([[2.0, 0.0], [0.0, 4.0]]), mx.array([2.0, 2.0]))
    array([1, 0.5], dtype=float32)
    """
    x, y, is_vector = _right_sides("solve", a, b)

    def solution(x: Array, y: Array) -> Array:
        factors, pivots, _ = p.lu_factors(p.stop_gradient(x))
        return p.solve_factored(x, factors, pivots, y, adjoint=False)

    return _solved("solve", x, y, is_vector, solution)


@on_stream
def solve_triangular(a: Array, b: Array, *, upper: bool = False, stream: StreamOrDevice = None) -> Array:
    """Solutions of systems of linear equations with triangular matrices, A X = B; NaN where A is singular.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64.
        b: ``(..., N, K)`` or one vector ``(N,)``. Axes in front are broadcast.
        upper: read the upper triangle of each matrix, else the lower one; the other triangle is not read.

    Returns:
        ``(..., N, K)`` or ``(..., N)``.

    Raises:
        ValueError: another dtype, or shapes do not fit.

    >>> mx.linalg.solve_triangular(mx.array([[2.0, 0.0], [1.0, 1.0]]), mx.array([2.0, 2.0]))
    array([1, 1], dtype=float32)
    """
    x, y, is_vector = _right_sides("solve_triangular", a, b)

    def solution(x: Array, y: Array) -> Array:
        return p.solve_triangular(x, y, upper=bool(upper))

    return _solved("solve_triangular", x, y, is_vector, solution)


@on_stream
def qr(a: Array, *, mode: str = "reduced", stream: StreamOrDevice = None) -> QRResult:
    """QR decompositions: A = Q R, where the columns of Q are orthonormal and R is upper triangular.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.
        mode: "reduced", or "complete" for all M columns of Q.

    Returns:
        Q ``(..., M, K)`` and R ``(..., K, N)``, where K is min(M, N), or M if ``mode`` is "complete".

    Raises:
        ValueError: another dtype, or less than two dimensions.

    >>> q, r = mx.linalg.qr(mx.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> mx.allclose(q @ r, mx.array([[3.0, 1.0], [4.0, 2.0]]), atol=1e-5)
    array(True, dtype=bool)
    """
    x = matrices("qr", a, square=False)
    if one_of("linalg.qr", "mode", mode, ("reduced", "complete")) == "reduced":
        return QRResult(*p.qr(x))
    return _complete_qr(x)


def _complete_qr(x: Array) -> QRResult:
    """The decomposition with all columns of Q, which is that of ``x`` with columns of the identity matrix beside it."""
    *batch, rows, columns = x.node.shape
    if decide(operator.le, rows, columns):
        return QRResult(*p.qr(x))
    axis = x.node.ndim - 1
    unit = to_dtype(
        p.equal(*[p.iota(shape=(rows, rows - columns), axis=k, dtype=dtypes.int32) for k in (0, 1)]), x.node.dtype
    )
    q, r = p.qr(p.concatenate(x, broadcast(unit, (*batch, rows, rows - columns)), axis=axis))
    return QRResult(q, part(r, axis, 0, columns))


@on_stream
def svd(a: Array, compute_uv: bool = True, *, full_matrices: bool = True, stream: StreamOrDevice = None) -> Any:
    """Singular value decompositions: A = U diag(S) V^H, with singular values S in descending order.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.
        compute_uv: whether to return singular vectors.
        full_matrices: whether to return all singular vectors, not only the first min(M, N).

    Returns:
        U ``(..., M, M)``, S ``(..., min(M, N))`` and V^H ``(..., N, N)``; with ``full_matrices=False``, U ``(..., M,
        min(M, N))`` and V^H ``(..., min(M, N), N)``; S alone, if not ``compute_uv``. NaN for matrices with infinite or
        NaN elements. Signs or phases of singular vectors are not determined, nor are the vectors after the first
        min(M, N): derivatives are those of the choice that changes least.

    Raises:
        ValueError: another dtype, or less than two dimensions.

    >>> u, s, vt = mx.linalg.svd(mx.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> s
    array([3, 2], dtype=float32)
    """
    x = matrices("svd", a, square=False)
    if not compute_uv:
        return p.svd(x, vectors=False, full=False)[0]
    return SVDResult(*p.svd(x, vectors=True, full=bool(full_matrices)))


@on_stream
def pinv(a: Array, *, rtol: Any = None, stream: StreamOrDevice = None) -> Array:
    """The pseudo-inverses of matrices (Moore and Penrose).

    Singular values up to ``rtol`` times the largest one count as zero.

    Args:
        a: ``(..., M, N)``, float32, float64 or complex64.
        rtol: a number, or an array ``(...)``; ``10 * max(M, N) * eps`` by default.

    Returns:
        ``(..., N, M)``. Derivatives are valid where the rank does not change.

    Raises:
        ValueError: another dtype, or less than two dimensions.

    >>> mx.linalg.pinv(mx.array([[2.0, 0.0], [0.0, 0.0]]))
    array([[0.5, 0],
           [0, 0]], dtype=float32)
    """
    x = matrices("pinv", a, square=False)
    *batch, rows, columns = x.node.shape
    if decide_equal(rows, 0) or decide_equal(columns, 0):
        return p.zeros((*batch, columns, rows), x.node.dtype)
    u, s, vh = p.svd(p.stop_gradient(x), vectors=True, full=False)
    last = s.node.ndim - 1
    largest = p.slice_(s, starts=(0,) * s.node.ndim, sizes=(*batch, 1), steps=(1,) * s.node.ndim)
    dropped = p.less_equal(
        s, p.broadcast(limit_of("linalg.pinv", largest, rows, columns, 10, rtol), shape=s.node.shape)
    )
    factors = p.select(dropped, p.zeros_like(s), 1 / s)
    scaled = p.adjoint_of(vh) * p.expand(factors, axes=(last,))
    return p.pseudoinverse_of(p.matmul(scaled, p.adjoint_of(u)), x)


def _of_halves(function: Any, x: Array) -> Any:
    """Call a function of float32 for half precision and integers; half-precision results are rounded once."""
    dtype = x.node.dtype
    if dtype in _ACCEPTED:
        return function(x)
    found = function(p.cast(x, dtype=dtypes.float32))
    if not dtype.is_inexact:
        return found
    return tuple([p.cast(y, dtype=dtype) for y in found])


def _determinant_parts(x: Array) -> tuple[Array, Array]:
    """The diagonal of U, and signs whose product is the sign of the row exchanges."""
    factors, pivots, _ = p.lu_factors(p.stop_gradient(x))
    diagonal = p.diagonal_of(factors)
    step = p.iota(shape=pivots.node.shape, axis=pivots.node.ndim - 1, dtype=dtypes.uint32)
    ones = p.ones_like(diagonal)
    return diagonal, p.select(p.equal(pivots, step), ones, -ones)


def _det(x: Array) -> tuple[Array]:
    diagonal, signs = _determinant_parts(x)
    return (p.determinant_of(p.prod(diagonal * signs, axes=(diagonal.node.ndim - 1,)), x),)


def _slogdet(x: Array) -> tuple[Array, Array]:
    diagonal, signs = _determinant_parts(x)
    last = (diagonal.node.ndim - 1,)
    sign = p.prod(p.sign(diagonal) * signs, axes=last)
    logarithm = p.sum(p.log(p.absolute(diagonal)), axes=last)
    return p.determinant_sign_of(sign, x), p.log_determinant_of(logarithm, x)


def _square(name: str, a: Any) -> Array:
    x = array_argument(f"linalg.{name}", a)
    require_matrices(name, x)
    return x


@on_stream
def det(a: Array, *, stream: StreamOrDevice = None) -> Array:
    """The determinants of square matrices.

    Args:
        a: ``(..., N, N)``. Integers are converted to float32; half precision is computed in float32.

    Raises:
        ValueError: matrices are not square.

    >>> mx.linalg.det(mx.array([[2.0, 1.0], [1.0, 3.0]]))
    array(5, dtype=float32)
    """
    return _of_halves(_det, _square("det", a))[0]


@on_stream
def slogdet(a: Array, *, stream: StreamOrDevice = None) -> SlogdetResult:
    """The signs of determinants, and the logarithms of their absolute values.

    Args:
        a: ``(..., N, N)``. Integers are converted to float32; half precision is computed in float32.

    Returns:
        The sign (1, -1, or 0 for singular matrices; for complex matrices a number of absolute value 1), and the
        logarithm.

    Raises:
        ValueError: matrices are not square.

    >>> tuple(mx.linalg.slogdet(mx.array([[1.0, 2.0], [3.0, 5.0]])))
    (array(-1, dtype=float32), array(0, dtype=float32))
    """
    sign, logarithm = _of_halves(_slogdet, _square("slogdet", a))
    return SlogdetResult(sign, logarithm)
