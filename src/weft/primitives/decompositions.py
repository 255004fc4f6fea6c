"""Decompositions of matrices, and functions that use them for their values but not for their derivatives.

Derivatives of factors exist where the factors are unique up to signs or phases. Where eigenvalues or singular values
are equal, these derivatives are infinite or NaN, while derivatives of the values alone exist.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import decide, decide_equal, smallest
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, Tangent, conjugate_of
from weft.primitives.conversions import to_dtype
from weft.primitives.linalg import (
    MatrixFunction,
    MatrixFunctions,
    adjoint_of,
    band,
    diagonal_of,
    matrix_routine,
    real_dtype_of,
    require_matrices,
    symmetric_part,
    with_diagonal,
)
from weft.primitives.products import matrix_transpose
from weft.primitives.routine import Routine

__all__ = [
    "adjugate_of",
    "determinant_of",
    "determinant_sign_of",
    "eig",
    "eigh",
    "log_determinant_of",
    "lu_factors",
    "pseudoinverse_of",
    "qr",
    "svd",
]


def _part(x: Array, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None) -> Array:
    """A block of matrices; ``rows`` and ``columns`` are pairs of a start and a count."""
    *batch, height, width = x.node.shape
    starts, sizes = zip((0, height) if rows is None else rows, (0, width) if columns is None else columns, strict=True)
    return p.slice_(x, starts=(*[0] * len(batch), *starts), sizes=(*batch, *sizes), steps=(1,) * x.node.ndim)


def _joined(first: Array, second: Array, axis: int) -> Array:
    return p.concatenate(first, second, axis=first.node.ndim + axis)


def _with_zeros(x: Array, axis: int, extent: int) -> Array:
    """``x`` padded with zeros at the end of an axis, up to an extent."""
    high = [0] * x.node.ndim
    high[axis] = extent - x.node.shape[axis]
    return p.pad(x, p.zeros((), x.node.dtype), low=(0,) * x.node.ndim, high=tuple(high))


def _as_row(x: Array) -> Array:
    """Vectors as matrices with one row."""
    return p.expand(x, axes=(x.node.ndim - 1,))


def _as_column(x: Array) -> Array:
    return p.expand(x, axes=(x.node.ndim,))


def _reciprocal_off_diagonal(x: Array) -> Array:
    """The reciprocals of the elements of matrices, and zeros on the diagonals."""
    return with_diagonal(1 / with_diagonal(x, 1), 0)


def _solved(a: Array, b: Array) -> Array:
    factors, pivots, _ = lu_factors(a)
    return p.solve_factored(a, factors, pivots, b, adjoint=False)


def _over_triangle(x: Array, upper: Array) -> Array:
    """X U^-1."""
    return adjoint_of(p.solve_triangular(upper, adjoint_of(x), upper=True, adjoint=True))


class LUFactors(MatrixFunctions):
    """The factors of the transpose of a matrix, ``A^T = P L U``, with LAPACK's pivots (counted from zero) and, for each
    row of A^T, the index of the row of L that it became.

    The first result has the shape of the input and is transposed too: it stores U, and L without its diagonal of ones.
    """

    name = "lu_factor"
    routine: Routine = matrix_routine()

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        (x,) = inputs
        require_matrices(self.name, x, square=False)
        *batch, columns, rows = x.shape
        return [
            (x.shape, x.dtype),
            ((*batch, smallest(rows, columns)), dtypes.uint32),
            ((*batch, rows), dtypes.uint32),
        ]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Any, /, **params: Any) -> Any:
        """With ``F = L^-1 (P^T dA) U^-1`` for the square part, dL is L times the part of F below the diagonal, and dU
        the rest of F times U."""
        factors = matrix_transpose(output[0])
        rows, columns = factors.node.shape[-2:]
        change = self._in_order_of_factors(matrix_transpose(tangents[0]), output[2])
        if decide(operator.ge, rows, columns):
            square, more = _part(factors, rows=(0, columns)), (columns, rows - columns)
            result, of_upper = self._of_square(square, _part(change, rows=(0, columns)))
            if not decide_equal(rows, columns):
                rest = _part(change, rows=more) - p.matmul(_part(factors, rows=more), of_upper)
                result = _joined(result, _over_triangle(rest, square), -2)
        else:
            square, more = _part(factors, columns=(0, rows)), (rows, columns - rows)
            result, of_upper = self._of_square(square, _part(change, columns=(0, rows)))
            of_lower = result - of_upper
            rest = _part(change, columns=more) - p.matmul(of_lower, _part(factors, columns=more))
            result = _joined(result, p.solve_triangular(square, rest, unit=True), -1)
        return [matrix_transpose(result), None, None]

    def _of_square(self, factors: Array, change: Array) -> tuple[Array, Array]:
        """The changes of both triangles of square factors in one matrix, and that of the upper triangle."""
        inner = _over_triangle(p.solve_triangular(factors, change, unit=True), factors)
        lower, upper = with_diagonal(band(factors, upper=False), 1), band(factors, upper=True)
        of_upper = p.matmul(band(inner, upper=True), upper)
        of_lower = p.matmul(lower, band(inner, upper=False, strict=True))
        return of_lower + of_upper, of_upper

    def _in_order_of_factors(self, x: Array, order: Array) -> Array:
        """Rows sorted like those of L: a product with a permutation matrix, which is exact."""
        shape = (*order.node.shape, order.node.shape[-1])
        row = p.iota(shape=shape, axis=len(shape) - 2, dtype=order.node.dtype)
        chosen = p.equal(row, p.broadcast(_as_row(order), shape=shape))
        return p.matmul(p.cast(chosen, dtype=x.node.dtype), x)


class QR(MatrixFunctions):
    """``A = Q R`` with Q of ``min(M, N)`` orthonormal columns and an upper triangular R.

    With ``M = Q^H dA R^-1`` for the square part of R, ``Q^H dQ`` is the antihermitian matrix W that equals M below the
    diagonal and has M's imaginary parts on the diagonal.
    """

    name = "qr"
    routine: Routine = matrix_routine(factor=4)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        (x,) = inputs
        require_matrices(self.name, x, square=False)
        *batch, rows, columns = x.shape
        inner = smallest(rows, columns)
        return [((*batch, rows, inner), x.dtype), ((*batch, inner, columns), x.dtype)]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Any, /, **params: Any) -> Any:
        q, r = output
        inner = r.node.shape[-2]
        square = _part(r, columns=(0, inner))
        ratio = _over_triangle(_part(tangents[0], columns=(0, inner)), square)
        rotated = p.matmul(adjoint_of(q), ratio)
        below = band(rotated, upper=False, strict=True)
        turn = below - adjoint_of(below)
        if q.node.dtype.is_complex:
            turn = with_diagonal(turn, rotated - to_dtype(p.real(rotated), q.node.dtype))
        of_q = ratio + p.matmul(q, turn - rotated)
        of_r = p.matmul(adjoint_of(q), tangents[0]) - p.matmul(turn, r)
        return [of_q, band(of_r, upper=True)]


class SVD(MatrixFunctions):
    """``A = U diag(s) V^H``: only s unless ``vectors``, else U, s and V^H. With ``full``, U and V are square.

    With ``P = U^H dA V``, ``ds = Re diag(P)``, and dU and dV are U and V times antihermitian matrices. The columns
    added by ``full`` are any orthonormal basis; the derivative is that of the basis that turns least.
    """

    name = "svd"
    parameters = ("vectors", "full")
    routine: Routine = matrix_routine(factor=20)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        (x,) = inputs
        require_matrices(self.name, x, square=False, squares=params["vectors"])
        *batch, rows, columns = x.shape
        inner = smallest(rows, columns)
        values = ((*batch, inner), real_dtype_of(x.dtype))
        if not params["vectors"]:
            return [values]
        left, right = (rows, columns) if params["full"] else (inner, inner)
        return [((*batch, rows, left), x.dtype), values, ((*batch, right, columns), x.dtype)]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Any, /, **params: Any) -> Any:
        change: Array = tangents[0]
        if not params["vectors"]:
            u, _, vh = self(inputs[0], vectors=True, full=False)
            return [_real(p.sum(p.matmul(adjoint_of(u), change) * conjugate_of(vh), axes=(vh.node.ndim - 1,)))]
        u, s, vh = output
        inner = s.node.shape[-1]
        row, column = _as_row(s), _as_column(s)
        projected = p.matmul(change, adjoint_of(vh))
        rotated = p.matmul(adjoint_of(u), projected)
        beside = _part(rotated, columns=(0, inner))
        turn = self._turn(_with_zeros(beside * row, -1, u.node.shape[-1]), s)
        if u.node.dtype.is_complex:
            phases = _with_zeros(beside / row, -1, u.node.shape[-1])
            turn = with_diagonal(turn, phases - to_dtype(p.real(phases), u.node.dtype))
        of_u = p.matmul(u, turn)
        turn = self._turn(_with_zeros(_part(rotated, rows=(0, inner)) * column, -2, vh.node.shape[-2]), s)
        of_vh = -p.matmul(turn, vh)
        if not params["full"]:
            rows, columns = change.node.shape[-2:]
            if decide(operator.gt, rows, columns):
                of_u = of_u + (projected - p.matmul(u, rotated)) / row
            elif decide(operator.lt, rows, columns):
                of_vh = of_vh + (p.matmul(adjoint_of(u), change) - p.matmul(rotated, vh)) / column
        return [of_u, _real(diagonal_of(_part(beside, rows=(0, inner)))), of_vh]

    def _turn(self, x: Array, s: Array) -> Array:
        """``(X + X^H)[i, j] / (s[j]^2 - s[i]^2)``, with s padded with zeros; zero where both indices are beyond the end
        of s."""
        size = x.node.shape[-1]
        values = _with_zeros(s, -1, size)
        row, column = _as_row(values), _as_column(values)
        squares = with_diagonal((row - column) * (row + column), 1)
        axis = squares.node.ndim - 1
        behind = [
            p.greater_equal(p.iota(shape=squares.node.shape, axis=k, dtype=dtypes.int32), s.node.shape[-1])
            for k in (axis - 1, axis)
        ]
        scale = 1 / p.select(p.logical_and(*behind), p.ones_like(squares), squares)
        return with_diagonal((x + adjoint_of(x)) * scale, 0)


class Eigh(MatrixFunctions):
    """Eigenvalues w in ascending order of hermitian matrices, of which the ``upper`` or the lower triangle is read; if
    ``vectors``, also the adjoint of the matrix whose columns are the eigenvectors.

    With ``C = V^H dA V``, ``dw = diag(C)`` and ``dV = V F``, where ``F[i, j] = C[i, j] / (w[j] - w[i])``. The
    derivative assumes that A is hermitian.
    """

    name = "eigh"
    parameters = ("upper", "vectors")
    routine: Routine = matrix_routine(factor=9)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        (x,) = inputs
        require_matrices(self.name, x, square=True, squares=params["vectors"])
        values = (x.shape[:-1], real_dtype_of(x.dtype))
        return [values, (x.shape, x.dtype)] if params["vectors"] else [values]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Any, /, **params: Any) -> Any:
        change = symmetric_part(tangents[0])
        values, vh = output if params["vectors"] else self(inputs[0], upper=params["upper"], vectors=True)
        rotated = p.matmul(p.matmul(vh, change), adjoint_of(vh))
        of_values = _real(diagonal_of(rotated))
        if not params["vectors"]:
            return [of_values]
        scale = _reciprocal_off_diagonal(_as_row(values) - _as_column(values))
        return [of_values, p.matmul(adjoint_of(rotated * scale), vh)]


class Eig(MatrixFunctions):
    """Eigenvalues of the transpose of a matrix; if ``vectors``, also the matrix whose rows are its eigenvectors.

    Eigenvectors have length 1 and a real largest element. With ``G = V^-1 dA V``, ``dw = diag(G)``; dV is the part of V
    F, with ``F[i, j] = G[i, j] / (w[j] - w[i])``, that preserves these lengths and phases.
    """

    name = "eig"
    parameters = ("vectors",)
    routine: Routine = matrix_routine(factor=25)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        (x,) = inputs
        require_matrices(self.name, x, square=True)
        if x.dtype is dtypes.float64:
            raise ValueError(f"{self.name}: there is no complex dtype for float64")
        values = (x.shape[:-1], dtypes.complex64)
        return [values, (x.shape, dtypes.complex64)] if params["vectors"] else [values]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Any, /, **params: Any) -> Any:
        change = to_dtype(matrix_transpose(tangents[0]), dtypes.complex64)
        values, rows = output if params["vectors"] else self(inputs[0], vectors=True)
        vectors = matrix_transpose(rows)
        rotated = _solved(vectors, p.matmul(change, vectors))
        of_values = diagonal_of(rotated)
        if not params["vectors"]:
            return [of_values]
        scale = _reciprocal_off_diagonal(_as_row(values) - _as_column(values))
        return [of_values, _normalised(matrix_transpose(p.matmul(vectors, rotated * scale)), rows)]


def _real(x: Array) -> Array:
    return p.real(x) if x.node.dtype.is_complex else x


def _normalised(change: Array, rows: Array) -> Array:
    """The part of a change of vectors (the rows) that preserves their lengths and the phases of their largest
    elements."""
    last = (rows.node.ndim - 1,)
    along = _as_column(p.real(p.sum(conjugate_of(rows) * change, axes=last)))
    change = change - rows * along
    size = p.real(rows * conjugate_of(rows))
    column = p.iota(shape=rows.node.shape, axis=last[0], dtype=dtypes.uint32)
    largest = p.equal(column, p.broadcast(_as_column(p.argmax(size, axes=last)), shape=rows.node.shape))
    zeros = p.zeros_like(rows)
    ratio = p.sum(p.select(largest, change, zeros), axes=last) / p.sum(p.select(largest, rows, zeros), axes=last)
    return change - rows * _as_column(to_dtype(p.imag(ratio), rows.node.dtype) * 1j)


DecompositionRule = Callable[[Array, Array, Array], Tangent]


class Defined(MatrixFunction):
    """The value of the first input, which was computed from the second; ``rule(tangent, a, output)`` is its derivative.

    So the derivative does not depend on the way in which the value was computed.
    """

    def __init__(self, name: str, rule: DecompositionRule) -> None:
        self.name = name
        self.rule = rule

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        value, a = inputs
        require_matrices(self.name, a, square=False)
        return value.shape, value.dtype

    def alias(self, node: Node) -> Node | None:
        return node.inputs[0]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None if tangents[1] is None else self.rule(tangents[1], inputs[1], output)


def _pseudoinverse_rule(t: Array, a: Array, x: Array) -> Tangent:
    """The derivative for matrices of constant rank. (G. Golub and V. Pereyra, The differentiation of pseudo-inverses
    and nonlinear least squares problems whose variables separate, 1973.)"""
    adjoint, adjoint_inverse = adjoint_of(t), adjoint_of(x)
    first = p.matmul(p.matmul(x, t), x)
    second = p.matmul(p.matmul(x, adjoint_inverse), adjoint - p.matmul(p.matmul(adjoint, a), x))
    third = p.matmul(adjoint - p.matmul(x, p.matmul(a, adjoint)), p.matmul(adjoint_inverse, x))
    return second + third - first


def _relative_change(t: Array, a: Array) -> Array:
    """The trace of A^-1 dA, which is the relative change of the determinant."""
    last = a.node.ndim - 1
    return p.sum(p.multiply(matrix_transpose(p.inverse_matrix(a)), t), axes=(last - 1, last))


def _adjugate_rule(t: Array, a: Array, adjugate: Array) -> Tangent:
    """The derivative for matrices that have an inverse; NaN for others."""
    change = p.matmul(p.inverse_matrix(a), t)
    last = a.node.ndim - 1
    trace = p.sum(diagonal_of(change), axes=(last - 1,))
    return adjugate * _as_column(_as_column(trace)) - p.matmul(change, adjugate)


def _adjugate(a: Array) -> Array:
    """The transposed cofactors, ``det(A) A^-1``, which exist also for singular matrices: with ``A = U diag(s) V^H``
    they are ``det(U V^H) V diag(r) U^H``, where r has the products of all singular values but one."""
    fixed = p.stop_gradient(a)
    u, s, vh = svd(fixed, vectors=True, full=True)
    shape = (*s.node.shape, s.node.shape[-1])
    rest = p.prod(with_diagonal(p.broadcast(_as_row(s), shape=shape), 1), axes=(len(shape) - 1,))
    turn = p.matmul(u, vh)
    factors, pivots, _ = lu_factors(turn)
    step = p.iota(shape=pivots.node.shape, axis=pivots.node.ndim - 1, dtype=dtypes.uint32)
    diagonal = diagonal_of(factors)
    signs = p.select(p.equal(pivots, step), diagonal, -diagonal)
    phase = p.sign(p.prod(signs, axes=(signs.node.ndim - 1,)))
    scaled = adjoint_of(vh) * _as_row(rest)
    return adjugate_of(p.matmul(scaled, adjoint_of(u)) * _as_column(_as_column(phase)), a)


def _determinant_rule(t: Array, a: Array, determinant: Array) -> Tangent:
    last = a.node.ndim - 1
    return p.sum(matrix_transpose(_adjugate(a)) * t, axes=(last - 1, last))


def _sign_rule(t: Array, a: Array, sign: Array) -> Tangent:
    if not sign.node.dtype.is_complex:
        return None
    return sign * (to_dtype(p.imag(_relative_change(t, a)), sign.node.dtype) * 1j)


lu_factors: LUFactors = LUFactors()
qr: QR = QR()
svd: SVD = SVD()
eigh: Eigh = Eigh()
eig: Eig = Eig()
pseudoinverse_of: Defined = Defined("pseudoinverse_of", _pseudoinverse_rule)
adjugate_of: Defined = Defined("adjugate_of", _adjugate_rule)
determinant_of: Defined = Defined("determinant_of", _determinant_rule)
log_determinant_of: Defined = Defined("log_determinant_of", lambda t, a, out: _real(_relative_change(t, a)))
determinant_sign_of: Defined = Defined("determinant_sign_of", _sign_rule)
