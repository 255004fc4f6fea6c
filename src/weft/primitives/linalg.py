"""Linear algebra on stacks of matrices: operations that routines compute as a whole.

Each derivative is written once, as a tangent; cotangents use its transpose (`Primitive.linear_jvp`). Matrices are the
last two axes. Where a routine reads or writes matrices stored by columns, the primitive has their transposes as inputs
or results, which the functions in `weft.ops` make as views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, product, values_of
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Primitive, Tangent, conjugate_of
from weft.primitives.products import matrix_transpose
from weft.primitives.routine import Routine, row_major
from weft.primitives.structure import Several

__all__ = [
    "MatrixFunction",
    "MatrixFunctions",
    "adjoint_of",
    "band",
    "cholesky",
    "diagonal_of",
    "inverse_matrix",
    "real_dtype_of",
    "solve_factored",
    "solve_triangular",
    "triangular_inverse",
    "with_diagonal",
]

DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64)


_NAMES = ("matrix routine", "matrix routines")


def matrix_routine(factor: int = 1) -> Routine:
    """A routine that does about ``factor * n ** 3`` multiplications for a matrix of n rows."""

    def arithmetic(node: Node) -> int:
        shape = node.inputs[0].shape
        rows, columns = shape[-2:]
        count = factor * product(shape) * min(rows, columns)
        return count * (4 if node.inputs[0].dtype.is_complex else 1)

    return Routine(arithmetic=arithmetic, loops=lambda node: (node.inputs[0].shape, ()), names=_NAMES)


def real_dtype_of(dtype: Dtype) -> Dtype:
    """The dtype of the real part."""
    return dtypes.float32 if dtype is dtypes.complex64 else dtype


def adjoint_of(x: Array) -> Array:
    """The conjugate transposes of matrices."""
    return conjugate_of(matrix_transpose(x))


def _rows_and_columns(x: Array) -> tuple[Array, Array]:
    last = x.node.ndim - 1
    return (
        p.iota(shape=x.node.shape, axis=last - 1, dtype=dtypes.int32),
        p.iota(shape=x.node.shape, axis=last, dtype=dtypes.int32),
    )


def band(x: Array, upper: bool, strict: bool = False) -> Array:
    """The upper or lower triangles of matrices, with zeros elsewhere, also on the diagonal if ``strict``."""
    row, column = _rows_and_columns(x)
    comparison = p.less if strict else p.less_equal
    kept = comparison(row, column) if upper else comparison(column, row)
    return p.select(kept, x, p.zeros_like(x))


def with_diagonal(x: Array, value: complex | Array) -> Array:
    """Matrices with ``value`` on their diagonals."""
    row, column = _rows_and_columns(x)
    if isinstance(value, (int, float, complex)):
        value = p.full(x.node.shape, value, x.node.dtype)
    return p.select(p.equal(row, column), value, x)


def diagonal_of(x: Array) -> Array:
    """The diagonals of square matrices."""
    row, column = _rows_and_columns(x)
    only = p.select(p.equal(row, column), x, p.zeros_like(x))
    return p.sum(only, axes=(x.node.ndim - 1,))


def symmetric_part(x: Array) -> Array:
    return (x + adjoint_of(x)) * 0.5


_LARGEST = 1 << 31
_LARGEST_DECOMPOSED = 20_000


def require_matrices(name: str, x: Node, square: bool, squares: bool = False) -> None:
    """Raise unless ``x`` is a stack of matrices whose extents fit LAPACK's 32-bit integers; with ``squares``, multiples
    of the square of the smaller extent must fit, too."""
    if x.ndim < 2 or x.dtype not in DTYPES or (square and not agree(x.shape[-1], x.shape[-2])):
        raise ValueError(f"{name}: got {describe(x.shape, x.dtype)}")
    extents = values_of(x.shape[-2:])
    if 64 * max(extents) >= _LARGEST or (squares and min(extents) > _LARGEST_DECOMPOSED):
        raise ValueError(f"[linalg.{name}] The matrices of {describe(x.shape, x.dtype)} are too large for LAPACK.")


class MatrixFunction(Primitive):
    """One result for a stack of matrices, or for several stacks of the same extents."""

    linear_jvp = True

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        (x,) = inputs
        require_matrices(self.name, x, square=True)
        return x.shape, x.dtype

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs, axes), **params), 0


class MatrixFunctions(Several):
    """Several results for a stack of matrices."""

    linear_jvp = True

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> Any:
        return [(result, 0) for result in self(*p.batch_first(inputs, axes), **params)]


class Cholesky(MatrixFunction):
    """The lower triangular L with ``A = L L^H``, from the lower triangle of A; or its adjoint, from the upper triangle.

    The derivative assumes that A is hermitian: with ``A = L L^H``, ``L^-1 dA L^-H = L^-1 dL + (L^-1 dL)^H``.
    """

    name = "cholesky"
    parameters = ("upper",)
    routine: Routine = matrix_routine()

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        upper = params["upper"]
        lower = adjoint_of(output) if upper else output
        half = solve_triangular(lower, symmetric_part(tangents[0]))
        inner = solve_triangular(lower, adjoint_of(half))
        change = p.matmul(lower, with_diagonal(band(inner, upper=False), inner * 0.5))
        return adjoint_of(change) if upper else change


class Inverse(MatrixFunction):
    """The inverses of matrices; NaN for those that have none."""

    name = "inverse"
    routine: Routine = matrix_routine(factor=2)

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return -p.matmul(p.matmul(output, tangents[0]), output)


class TriangularInverse(MatrixFunction):
    """The inverses of the upper or lower triangles of matrices."""

    name = "triangular_inverse"
    parameters = ("upper",)
    routine: Routine = matrix_routine()

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return -p.matmul(p.matmul(output, band(tangents[0], params["upper"])), output)


class _Solution(MatrixFunction):
    """X with ``A X = B`` or, if ``adjoint``, ``A^H X = B``. A is the first input, B the last one.

    It is linear in B and both modes exist, because the transpose of one solution is the other one.
    """

    linear_jvp = False

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        a, *known, b = inputs
        require_matrices(self.name, a, square=True)
        expected = self.known(a)
        if len(known) != len(expected) or any(
            not agree(x.shape, shape) or x.dtype is not dtype
            for x, (shape, dtype) in zip(known, expected, strict=False)
        ):
            raise ValueError(f"{self.name}: these are no factors of {describe(a.shape, a.dtype)}")
        if not agree(b.shape[:-1], a.shape[:-1]) or b.ndim != a.ndim or b.dtype is not a.dtype:
            raise ValueError(f"{self.name}: {describe(a.shape, a.dtype)} and {describe(b.shape, b.dtype)} do not fit")
        return b.shape, b.dtype

    def known(self, a: Node) -> list[tuple[Shape, Dtype]]:
        """Shapes and dtypes of the inputs between A and B."""
        return []

    def part(self, a: Array, **params: Any) -> Array:
        """The part of a change of A that changes the solution."""
        return a

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        change, of_a = tangents[-1], tangents[0]
        if of_a is not None:
            of_a = self.part(of_a, **params)
            product = p.matmul(adjoint_of(of_a) if params["adjoint"] else of_a, output)
            change = -product if change is None else change - product
        return None if change is None else self(*inputs[:-1], change, **params)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        adjoint = params["adjoint"]
        of_b = self(*inputs[:-1], cotangent, **{**params, "adjoint": not adjoint})
        of_a = None
        if wanted[0]:
            left, right = (output, of_b) if adjoint else (of_b, output)
            of_a = self.part(-p.matmul(left, adjoint_of(right)), **params)
        return [of_a, *[None] * (len(inputs) - 2), of_b]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        if axes[-1] is not None and all(axis is None for axis in axes[:-1]):
            return self._more_columns(inputs, axes[-1], **params)
        return super().vmap(inputs, axes, **params)

    def _more_columns(self, inputs: Sequence[Array], axis: int, **params: Any) -> tuple[Array, int]:
        """Mapped right sides of the same matrices become more columns."""
        last = inputs[0].node.ndim
        b = p.move_axis(inputs[-1], axis, last)
        *batch, columns, count = b.node.shape
        flat = p.reshape(b, shape=(*batch, columns * count))
        return p.reshape(self(*inputs[:-1], flat, **params), shape=b.node.shape), last


def _all_but_first(node: Node, position: int, strides: Shape) -> bool:
    """The routine gets the factors of the first operand and does not read the operand itself."""
    return position == 0 or row_major(node, position, strides)


class SolveFactored(_Solution):
    """Solutions for matrices whose factors are known: ``solve_factored(a, factors, pivots, b)``.

    ``factors`` are those that `lu_factors` gives for ``a``, which are those of its transpose. Only ``a`` and ``b`` have
    derivatives.
    """

    name = "solve"
    parameters = ("adjoint",)
    routine: Routine = Routine(
        accepts=_all_but_first,
        arithmetic=lambda node: 2 * node.size * node.shape[-2],
        loops=lambda node: (node.shape, ()),
        names=_NAMES,
    )

    def known(self, a: Node) -> list[tuple[Shape, Dtype]]:
        return [(a.shape, a.dtype), (a.shape[:-1], dtypes.uint32)]


class SolveTriangular(_Solution):
    """Solutions with the upper or lower triangle of ``a``, with ones on its diagonal if ``unit``."""

    name = "solve_triangular"
    parameters = ("upper", "adjoint", "unit")
    routine: Routine = Routine(
        arithmetic=lambda node: node.size * node.shape[-2],
        loops=lambda node: (node.shape, ()),
        names=_NAMES,
    )

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, **{"upper": False, "adjoint": False, "unit": False, **params})

    def part(self, a: Array, **params: Any) -> Array:
        return band(a, params["upper"], strict=params["unit"])


cholesky: Cholesky = Cholesky()
inverse_matrix: Inverse = Inverse()
triangular_inverse: TriangularInverse = TriangularInverse()
solve_factored: SolveFactored = SolveFactored()
solve_triangular: SolveTriangular = SolveTriangular()
