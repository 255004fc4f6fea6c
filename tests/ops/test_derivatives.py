"""jvp, vjp and second derivatives of every row of the operation table.

The tangent is compared with central differences of the NumPy oracle in double precision; the cotangent with the
tangent, through <v, J u> = <J' v, u>; and the derivative of the cotangent with its own central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import Row, checked, evaluated, flat, is_inexact, to_array, widened
from tests.ops.table import ROWS
from tests.sampling import Cases

STEP = 1e-5
SINGLE_STEP = 1e-2
"""The step of a difference of derivatives that are computed in single precision."""


def precise_dtype(row: Row) -> str | None:
    return next((dtype for dtype in ("float64", "float32", "complex64") if dtype in row.dtypes), None)


FLOATING = [row for row in ROWS if row.domains and precise_dtype(row) is not None]
DOUBLE = [row for row in FLOATING if "float64" in row.dtypes]
SINGLE = [row for row in FLOATING if "float64" not in row.dtypes]
COMPLEX = [row for row in FLOATING if "complex64" in row.dtypes]


class Problem:
    """A row at a point: the function from its inexact arguments to its inexact results."""

    def __init__(self, row: Row, dtype: str, seed: int) -> None:
        self.row = row
        self.dtype = dtype
        self.arguments = row.sample(seed, dtype)
        self.positions = [n for n, x in enumerate(self.arguments) if is_inexact(x)]
        self.rng = row.random(seed, "directions")
        self.point = [self.arguments[n] for n in self.positions]
        self.through_half = any(half in row.variant for half in ("float16", "bfloat16"))
        if not self.positions or not any(is_inexact(np.asarray(y)) for y in self.values(self.point)):
            pytest.skip("no floating numbers on both sides")

    def complete(self, point: Sequence[Any], others: Callable[[np.ndarray], Any]) -> list[Any]:
        """All arguments; the inexact ones are those of ``point``."""
        every = [None if n in self.positions else others(x) for n, x in enumerate(self.arguments)]
        for position, x in zip(self.positions, point, strict=True):
            every[position] = x
        return every

    def values(self, point: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of the oracle in double precision."""
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in flat(self.row.oracle(*self.complete([widened(x) for x in point], widened)))]

    def function(self, *point: Any) -> list[Any]:
        """The inexact results in Weft."""
        results = flat(self.row.function(mx, *self.complete(point, to_array)))
        return [y for y in results if mx.issubdtype(y.dtype, mx.inexact)]

    def directions(self, like: Sequence[Any]) -> list[np.ndarray]:
        """Random directions, in the shapes and dtypes of some arrays."""
        return [self._direction(np.shape(x), np.dtype(_numpy_name(x))) for x in like]

    def _direction(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        u = self.rng.uniform(-1, 1, shape)
        if dtype.kind == "c":
            u = u + 1j * self.rng.uniform(-1, 1, shape)
        return u.astype(dtype)

    def difference(self, u: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The central difference of the oracle along ``u``."""
        ahead = self.values([widened(x) + STEP * widened(d) for x, d in zip(self.point, u, strict=True)])
        behind = self.values([widened(x) - STEP * widened(d) for x, d in zip(self.point, u, strict=True)])
        pairs = [pair for pair in zip(ahead, behind, strict=True) if pair[0].dtype.kind in "fc"]
        # Equal infinities, which do not depend on the arguments, have a difference of 0.
        changes = [np.subtract(*pair, out=np.zeros_like(pair[0]), where=np.not_equal(*pair)) for pair in pairs]
        return [change / (2 * STEP) for change in changes]

    @property
    def tolerance(self) -> float:
        """The error that a derivative may have, absolute and relative."""
        if self.through_half:
            return 2e-2
        if self.dtype == "float64":
            return 1e-6
        return 1e-3


def _numpy_name(x: Any) -> str:
    return str(x.dtype).removeprefix("weft.core.")


def dot(v: Sequence[Any], u: Sequence[Any]) -> float:
    """The real inner product; complex numbers count as pairs."""
    return float(
        sum(np.sum(np.conj(widened(np.array(a))) * widened(np.array(b))).real for a, b in zip(v, u, strict=True))
    )


def check_jvp(problem: Problem) -> None:
    u = problem.directions(problem.point)
    tangents = evaluated(mx.jvp(problem.function, [to_array(x) for x in problem.point], [to_array(x) for x in u])[1])
    for got, want in zip(tangents, problem.difference(u), strict=True):
        np.testing.assert_allclose(np.array(got), want, problem.tolerance, problem.tolerance)


def check_vjp(problem: Problem) -> None:
    primals = [to_array(x) for x in problem.point]
    outputs = problem.function(*primals)
    u, v = problem.directions(problem.point), problem.directions(outputs)
    tangents = evaluated(mx.jvp(problem.function, primals, [to_array(x) for x in u])[1])
    cotangents = evaluated(mx.vjp(problem.function, primals, [to_array(x) for x in v])[1])
    for x, cotangent in zip(primals, cotangents, strict=True):
        assert (cotangent.shape, cotangent.dtype) == (x.shape, x.dtype)
    np.testing.assert_allclose(dot(cotangents, u), dot(v, tangents), problem.tolerance, problem.tolerance)


def check_second_order(problem: Problem, step: float = STEP, tolerance: float = 2e-5) -> None:
    """Check the derivative of the cotangent, forwards and backwards."""
    outputs = problem.function(*[to_array(x) for x in problem.point])
    v = [to_array(x) for x in problem.directions(outputs)]
    w, u = problem.directions(problem.point), problem.directions(problem.point)

    def gradient(*point: Any) -> list[Any]:
        return list(mx.vjp(problem.function, list(point), v)[1])

    def along(sign: int) -> float:
        moved = [(x + sign * step * d).astype(x.dtype) for x, d in zip(problem.point, w, strict=True)]
        return dot(evaluated(gradient(*[to_array(x) for x in moved])), u)

    numeric = (along(1) - along(-1)) / (2 * step)
    primals = [to_array(x) for x in problem.point]
    forwards = mx.jvp(gradient, primals, [to_array(x) for x in w])[1]
    backwards = mx.vjp(gradient, primals, [to_array(x) for x in u])[1]
    mx.eval(forwards, backwards)
    np.testing.assert_allclose(dot(forwards, u), numeric, tolerance, tolerance)
    np.testing.assert_allclose(dot(backwards, w), numeric, tolerance, tolerance)


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("jvp", FLOATING))
def test_jvp_is_the_derivative(row: Row, seed: int) -> None:
    check_jvp(Problem(row, precise_dtype(row) or "float64", seed))


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("vjp", FLOATING))
def test_vjp_is_the_transpose(row: Row, seed: int) -> None:
    check_vjp(Problem(row, precise_dtype(row) or "float64", seed))


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("second order", DOUBLE))
def test_second_order(row: Row, seed: int) -> None:
    check_second_order(Problem(row, "float64", seed))


def test_second_order_in_single_precision(cases: Cases, seed: int) -> None:
    """Mostly operations that move elements; for others, curvature and rounding errors limit the accuracy of
    differences."""
    rows = {one.id: row for one in checked("second order", SINGLE) for row in one.values if not one.marks}
    for name in cases.some(6, list(rows)):
        with suppress(pytest.skip.Exception):
            check_second_order(Problem(rows[name], precise_dtype(rows[name]) or "", seed), SINGLE_STEP, 2e-2)


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("jvp", COMPLEX))
def test_jvp_of_complex_numbers(row: Row, seed: int) -> None:
    check_jvp(Problem(row, "complex64", seed))


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("vjp", COMPLEX))
def test_vjp_of_complex_numbers(row: Row, seed: int) -> None:
    check_vjp(Problem(row, "complex64", seed))
