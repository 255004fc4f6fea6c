"""QR factors, eigenvalues of Hermitian matrices and singular values by cuSOLVER, which stores matrices by columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import weft.primitives as p
from weft.compiler.cuda.solvers.factors import divided
from weft.compiler.cuda.solvers.operations import declined, is_solved, never, number_of, solved
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array
from weft.primitives.planned_matrices import are_finite, banded, failed, identities, part, spoiled, spread, zeros
from weft.primitives.products import matrix_transpose
from weft.primitives.replacing import replaces
from weft.runtime.cuda.solvers.libraries import Triangle
from weft.runtime.cuda.solvers.problems import (
    SMALL,
    Eigenvalues,
    Orthonormal,
    Reflections,
    SingularValues,
    SmallSingularValues,
)
from weft.runtime.precision import REPRODUCIBLE

_TOGETHER = 256
"""The most rows of matrices whose eigenvalues, or QR factors, are computed for a whole stack in one call."""


_MANY_SVD = 128
"""The most rows and columns of matrices whose singular values are left to the CPU, if there is a stack of them: the CPU
uses all its cores, and cuSOLVER takes milliseconds for each matrix."""


@replaces("cuda", p.qr)
def _qr(node: Node, machine: Any) -> Sequence[Node] | None:
    """cuSOLVER factorises the matrix itself, which is copied to be stored by columns."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    *batch, m, n = a.shape
    k, turned = min(m, n), matrix_transpose(wrap(a))
    if prod(batch) > 1 and max(m, n) <= _TOGETHER:
        factored, q = _of_stack(machine, turned)
    else:
        problem = Orthonormal(number_of(a), prod(batch), False, m, n)
        results: list[tuple[Shape, Dtype]] = [((*batch, n, m), a.dtype), ((*batch, k, m), a.dtype)]
        factored, q, _ = solved(machine, problem, [turned], results, 4 * m * n * k)
        factored, q = matrix_transpose(factored), matrix_transpose(q)
    return [q.node, banded(part(factored, k, n), upper=True).node]


def _of_stack(machine: Any, a: Array) -> tuple[Array, Array]:
    """R, with the reflections below it, and Q of matrices that are stored by columns.

    Let V have the vectors of the reflections as columns, let S be the part of ``V^H V`` above the diagonal, and let D
    have their factors on the diagonal. Then the product of the reflections is ``I - V (I + D S)^-1 D V^H``.
    """
    *batch, n, m = a.node.shape
    dtype, k = a.node.dtype, min(m, n)
    problem = Reflections(number_of(a.node), prod(batch), True, m, n)
    results = [(a.node.shape, dtype), ((*batch, k), dtype)]
    factored, scales, _ = solved(machine, problem, [a], results, 2 * m * n * k)
    factored = matrix_transpose(factored)
    ones = identities((*batch, m, k), dtype)
    v = p.add(banded(part(factored, m, k), upper=False, strict=True), ones)
    column = p.expand(scales, axes=(scales.node.ndim,))
    square = (*batch, k, k)
    inner = p.matmul(p.adjoint_of(v), v, precision=REPRODUCIBLE)
    above = banded(p.multiply(p.broadcast(column, shape=square), inner), upper=True, strict=True)
    right = p.multiply(p.broadcast(column, shape=square), p.adjoint_of(part(v, k, k)))
    turned = divided(machine, above, right, upper=True, adjoint=False, unit=True)
    return factored, p.subtract(ones, p.matmul(v, turned, precision=REPRODUCIBLE))


@replaces("cuda", p.eigh)
def _eigh(node: Node, machine: Any) -> Sequence[Node] | None:
    """conj(A) = W diag(w) W^H, and W = conj(V) by columns is V^H by rows."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    *batch, n, _ = a.shape
    vectors = node.keywords["vectors"]
    triangle = Triangle.LOWER if node.keywords["upper"] else Triangle.UPPER
    together = prod(batch) > 1 and n <= _TOGETHER
    problem = Eigenvalues(number_of(a), prod(batch), together, n, triangle, vectors)
    results: list[tuple[Shape, Dtype]] = [((*batch, n), p.real_dtype_of(a.dtype))]
    if vectors:
        results.append((a.shape, a.dtype))
    x, finite = _harmless(wrap(a))
    return _unless_failed(solved(machine, problem, [x], results, 9 * n**3), finite)


@replaces("cuda", p.svd)
def _svd(node: Node, machine: Any) -> Sequence[Node] | None:
    """``A^T = W S Z^H``: W by columns is the V^H of A by rows, and the U of A is the conjugate of Z. If there are more
    rows than columns, A itself is decomposed."""
    (a,) = node.inputs
    if not is_solved(machine, a):
        return None
    *batch, m, n = a.shape
    vectors, full = node.keywords["vectors"], node.keywords["full"]
    if max(m, n) <= min(SMALL, _TOGETHER):
        return _small_svd(machine, wrap(a), vectors, full)
    if prod(batch) > 1 and max(m, n) <= _MANY_SVD:
        return None
    rows, columns = max(m, n), min(m, n)
    problem = SingularValues(number_of(a), prod(batch), False, rows, columns, vectors, full)
    results: list[tuple[Shape, Dtype]] = [((*batch, columns), p.real_dtype_of(a.dtype))]
    if vectors:
        width = rows if full else columns
        results += [((*batch, width, rows), a.dtype), ((*batch, columns, columns), a.dtype)]
    x, finite = _harmless(wrap(a))
    given = x if n >= m else matrix_transpose(x)
    found = _unless_failed(solved(machine, problem, [given], results, 20 * m * n * columns), finite)
    if not vectors:
        return found
    values, *columns_of = found
    left, right = map(wrap, columns_of)
    if n >= m:
        return [p.adjoint_of(right).node, values, left.node]
    return [matrix_transpose(left).node, values, p.conjugate_of(right).node]


def _small_svd(machine: Any, a: Array, vectors: bool, full: bool) -> Sequence[Node]:
    """``A^T = W S Z^H``, as for large matrices; all right vectors are computed."""
    *batch, m, n = a.node.shape
    dtype, k = a.node.dtype, min(m, n)
    problem = SmallSingularValues(number_of(a.node), prod(batch), True, n, m, vectors)
    results = [((*batch, k), p.real_dtype_of(dtype)), ((*batch, n, n), dtype), ((*batch, m, m), dtype)]
    x, finite = _harmless(a)
    values, left, right = map(wrap, _unless_failed(solved(machine, problem, [x], results, 20 * m * n * k), finite))
    if not vectors:
        return [values.node]
    u = p.adjoint_of(right)
    return [u.node if full else part(u, m, k).node, values.node, left.node if full else part(left, k, n).node]


def _harmless(a: Array) -> tuple[Array, Array]:
    """The matrices, with those that contain an infinity or a NaN replaced by zeros; and the condition that there is
    none."""
    shape = a.node.shape
    finite = are_finite(a)
    return p.select(spread(finite, shape), a, zeros(shape, a.node.dtype)), finite


def _unless_failed(found: Sequence[Array], finite: Array) -> list[Node]:
    """The results, with NaN for matrices that are not finite, or for which cuSOLVER reports a failure."""
    *results, info = found
    condition = p.logical_or(failed(info, finite.node.shape), p.logical_not(finite))
    return [spoiled(x, condition).node for x in results]


for _primitive in (p.qr, p.eigh, p.svd):
    _primitive.routine.on("cuda", declines=declined)(never)
