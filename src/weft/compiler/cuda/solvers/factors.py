"""Factors, solutions and inverses by cuSOLVER and cuBLAS.

The libraries store matrices by columns, so they see the transpose of each matrix. What is computed from that is said at
each rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cuda.solvers.operations import (
    declined,
    exchanged,
    is_solved,
    never,
    number_of,
    order_of_rows,
    solved,
)
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, conjugate_of
from weft.primitives.planned_matrices import banded, failed, filled, has_zero_on_diagonal, identities, spoiled
from weft.primitives.products import matrix_transpose
from weft.primitives.replacing import replaces
from weft.runtime.cuda.solvers.libraries import Triangle, Turn
from weft.runtime.cuda.solvers.problems import Cholesky, Factors, Solutions, Triangular

_TOGETHER = 256
"""The most rows of matrices that are computed for a whole stack in one call; larger ones take a call each."""


def _are_together(shape: Shape) -> bool:
    return prod(shape[:-2]) > 1 and shape[-1] <= _TOGETHER


def _triangle(upper: bool) -> Triangle:
    return Triangle.UPPER if upper else Triangle.LOWER


@replaces("cuda", p.cholesky)
def _cholesky(node: Node, machine: Any) -> Sequence[Node] | None:
    """The libraries are given lower triangles, because these take half the time. A lower triangle of A is copied to be
    stored by columns. For an upper one, the libraries see conj(A) = K K^H, and K by columns is K^T by rows, the adjoint
    of the factor of A."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    *batch, n, _ = a.shape
    upper = node.keywords["upper"]
    problem = Cholesky(number_of(a), prod(batch), _are_together(a.shape), n, Triangle.LOWER)
    given = wrap(a) if upper else matrix_transpose(wrap(a))
    factor, info = solved(machine, problem, [given], [(a.shape, a.dtype)], n**3 // 3)
    factor = factor if upper else matrix_transpose(factor)
    return [spoiled(banded(factor, upper), failed(info, tuple(batch))).node]


@replaces("cuda", p.lu_factors)
def _lu_factors(node: Node, machine: Any) -> Sequence[Node] | None:
    """Operand and result are the transposes of the matrix and of its factors."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    factors, pivots, _ = _factorised(machine, wrap(a))
    pivots = _from_zero(pivots)
    return [factors.node, pivots.node, order_of_rows(pivots, a.shape[-1]).node]


def _from_zero(pivots: Array) -> Array:
    return p.cast(p.subtract(pivots, filled(1, pivots)), dtype=dtypes.uint32)


def _factorised(machine: Any, a: Array) -> list[Array]:
    """Factors, pivots counted from one, and a code for each matrix."""
    node = a.node
    *batch, columns, rows = node.shape
    together = rows == columns and _are_together(node.shape)
    problem = Factors(number_of(node), prod(batch), together, rows, columns)
    smaller = min(rows, columns)
    results = [(node.shape, node.dtype), ((*batch, smaller), dtypes.int32)]
    return solved(machine, problem, [a], results, rows * columns * smaller)


@replaces("cuda", p.solve_factored)
def _solve_factored(node: Node, machine: Any) -> Sequence[Node] | None:
    """``A^T = P L U``. The adjoint of A is the conjugate of what the libraries see."""
    _, *known = node.inputs
    if not is_solved(machine, *known):
        return None
    factors, pivots, b = map(wrap, known)
    adjoint = node.keywords["adjoint"]
    singular = has_zero_on_diagonal(factors)
    if _are_together(factors.node.shape):
        return [spoiled(_solved_together(machine, factors, pivots, b, adjoint), singular).node]
    pivots = p.cast(p.minimum(pivots, filled(factors.node.shape[-1] - 1, pivots)), dtype=dtypes.int32)
    right = matrix_transpose(conjugate_of(b) if adjoint else b)
    x = _solved(machine, factors, p.add(pivots, filled(1, pivots)), right, Turn.NONE if adjoint else Turn.TRANSPOSE)
    x = matrix_transpose(conjugate_of(x) if adjoint else x)
    return [spoiled(x, singular).node]


def _solved(machine: Any, factors: Array, pivots: Array, right: Array, turn: Turn) -> Array:
    """Solutions for right sides that are stored by columns."""
    node = right.node
    *batch, columns, n = node.shape
    problem = Solutions(number_of(node), prod(batch), False, n, columns, turn)
    x, _ = solved(machine, problem, [factors, pivots, right], [(node.shape, node.dtype)], 2 * n * n * columns)
    return x


def _solved_together(machine: Any, factors: Array, pivots: Array, b: Array, adjoint: bool) -> Array:
    """``A X = B`` is ``X^T P L U = B^T``, and ``A^H X = B`` is ``X^T U^H L^H P^T = B^T``. By rows, the factors in
    memory are the transposes of L and U."""
    if adjoint:
        b = exchanged(b, pivots, backwards=False)
    for upper in (True, False) if adjoint else (False, True):
        b = divided(machine, factors, b, upper, adjoint, unit=upper)
    return b if adjoint else exchanged(b, pivots, backwards=True)


@replaces("cuda", p.inverse_matrix)
def _inverse(node: Node, machine: Any) -> Sequence[Node] | None:
    """The inverse of the transpose is the transpose of the inverse."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    factors, pivots, info = _factorised(machine, wrap(a))
    right = identities(a.shape, a.dtype)
    if _are_together(a.shape):
        x = _solved_together(machine, factors, _from_zero(pivots), right, adjoint=False)
    else:
        x = _solved(machine, factors, pivots, right, Turn.NONE)
    return [spoiled(x, failed(info, a.shape[:-2])).node]


@replaces("cuda", p.solve_triangular)
def _solve_triangular(node: Node, machine: Any) -> Sequence[Node] | None:
    a, b = map(wrap, node.inputs)
    if not is_solved(machine, *node.inputs):
        return None
    upper, adjoint, unit = (node.keywords[name] for name in ("upper", "adjoint", "unit"))
    x = divided(machine, a, b, upper, adjoint, unit)
    return [x.node if unit else spoiled(x, has_zero_on_diagonal(a)).node]


def divided(machine: Any, a: Array, b: Array, upper: bool, adjoint: bool, unit: bool) -> Array:
    """``A X = B`` is ``X^T A^T = B^T``, and ``A^H X = B`` is ``X^T conj(A) = B^T``."""
    *batch, n, columns = b.node.shape
    turn = Turn.ADJOINT if adjoint else Turn.NONE
    together = _are_together(a.node.shape)
    problem = Triangular(number_of(b.node), prod(batch), together, n, columns, _triangle(not upper), turn, unit)
    x, _ = solved(machine, problem, [a, b], [(b.node.shape, b.node.dtype)], n * n * columns)
    return x


@replaces("cuda", p.triangular_inverse)
def _triangular_inverse(node: Node, machine: Any) -> Sequence[Node] | None:
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    upper = node.keywords["upper"]
    x = divided(machine, wrap(a), identities(a.shape, a.dtype), upper, False, False)
    return [spoiled(banded(x, upper), has_zero_on_diagonal(wrap(a))).node]


for _primitive in (
    p.cholesky,
    p.lu_factors,
    p.solve_factored,
    p.inverse_matrix,
    p.solve_triangular,
    p.triangular_inverse,
):
    _primitive.routine.on("cuda", declines=declined)(never)
