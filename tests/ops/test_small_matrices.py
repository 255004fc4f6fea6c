"""Matrices that generated code computes: accuracy, and bits that depend neither on the stack nor on neighbours in
it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.sampling import Cases

DTYPES = ("float32", "float64")
ROWS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33)
"""Small matrices have at most 32 rows; larger ones are computed by LAPACK."""


def in_weft(x: np.ndarray) -> mx.array:
    return mx.array(x, dtype=getattr(mx, x.dtype.name))


def several(result: Any) -> list[np.ndarray]:
    return [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]


def definite(a: Any) -> Any:
    return a @ a.swapaxes(-1, -2) + 2 * mx.eye(a.shape[-1], dtype=a.dtype)


def turned_solution(a: mx.array) -> Any:
    """The gradient of a solution solves the transposed system."""
    return mx.grad(lambda b: mx.sum(mx.linalg.solve(a, b) * a[..., :3]))(a[..., ::-1][..., :3])


FUNCTIONS: dict[str, Callable[[mx.array], Any]] = {
    "inv": mx.linalg.inv,
    "tri_inv": mx.linalg.tri_inv,
    "tri_inv upper": lambda a: mx.linalg.tri_inv(a, upper=True),
    "cholesky": lambda a: mx.linalg.cholesky(definite(a)),
    "cholesky upper": lambda a: mx.linalg.cholesky(definite(a), upper=True),
    "lu_factor": mx.linalg.lu_factor,
    "lu": mx.linalg.lu,
    "det": mx.linalg.det,
    "qr": mx.linalg.qr,
    "qr tall": lambda a: mx.linalg.qr(a[..., : -(-a.shape[-1] // 2)]),
    "qr wide": lambda a: mx.linalg.qr(a[..., : -(-a.shape[-2] // 2), :]),
    "solve": lambda a: mx.linalg.solve(a, a[..., :1] * 2),
    "solve many": lambda a: mx.linalg.solve(a, mx.concatenate([a[..., ::-1], a], axis=-1)),
    "solve transposed": turned_solution,
    "solve_triangular": lambda a: mx.linalg.solve_triangular(a, a[..., :1]),
    "solve_triangular upper": lambda a: mx.linalg.solve_triangular(a, a[..., ::-1], upper=True),
}


def random_stack(rng: np.random.Generator, count: int, rows: int, dtype: str) -> np.ndarray:
    return rng.normal(size=(count, rows, rows)).astype(dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_matrix_alone_has_the_bits_that_it_has_in_a_stack(name: str, cases: Cases, rng: np.random.Generator) -> None:
    function = FUNCTIONS[name]
    for rows, dtype in cases.some(2, list(itertools.product(ROWS[:-1], DTYPES))):
        a = random_stack(rng, 37, rows, dtype)
        whole = several(function(in_weft(a)))
        compiled = several(mx.compile(function)(in_weft(a)))
        alone, few = several(function(in_weft(a[20]))), several(function(in_weft(a[19:21])))
        for stacked, same, one, two in zip(whole, compiled, alone, few, strict=True):
            assert stacked.tobytes() == same.tobytes()
            assert one.tobytes() == stacked[20].tobytes()
            assert two.tobytes() == stacked[19:21].tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_neighbours_do_not_disturb_each_other(name: str, cases: Cases, rng: np.random.Generator) -> None:
    """Other lanes of the vector have matrices that are singular, infinite or NaN."""
    for rows, dtype in cases.some(2, list(itertools.product(ROWS[1:-1], DTYPES))):
        a = random_stack(rng, 20, rows, dtype)
        wrong = a.copy()
        wrong[3], wrong[7], wrong[11, 0] = np.nan, 0, np.inf
        for good, found in zip(
            several(FUNCTIONS[name](in_weft(a))), several(FUNCTIONS[name](in_weft(wrong))), strict=True
        ):
            rest = [number for number in range(20) if number not in (3, 7, 11)]
            assert good[rest].tobytes() == found[rest].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_residuals_are_those_of_rounding(dtype: str, cases: Cases, rng: np.random.Generator) -> None:
    for rows, count in cases.some(3, list(itertools.product(ROWS, (1, 20)))):
        a = rng.normal(size=(count, rows, rows)).astype(dtype)
        b = rng.normal(size=(count, rows, 5)).astype(dtype)
        x = np.array(mx.linalg.solve(in_weft(a), in_weft(b))).astype(np.float64)
        eps = 4 * rows * np.finfo(dtype).eps
        exact = a.astype(np.float64)
        size = np.linalg.norm(exact, axis=(-2, -1), keepdims=True) * np.linalg.norm(x, axis=(-2, -1), keepdims=True)
        assert (abs(exact @ x - b) <= eps * size).all()
        inverse = np.array(mx.linalg.inv(in_weft(a))).astype(np.float64)
        size = np.linalg.norm(exact, axis=(-2, -1), keepdims=True) * np.linalg.norm(
            inverse, axis=(-2, -1), keepdims=True
        )
        assert (abs(exact @ inverse - np.eye(rows)) <= eps * size).all()
        square = a @ np.swapaxes(a, -1, -2) + np.eye(rows, dtype=dtype)
        factor = np.array(mx.linalg.cholesky(in_weft(square))).astype(np.float64)
        assert (abs(factor @ np.swapaxes(factor, -1, -2) - square) <= eps * abs(square).max()).all()


def test_the_first_of_the_largest_elements_is_the_pivot(rng: np.random.Generator) -> None:
    """Among whole numbers, many have the same size."""
    for rows, columns in ((4, 4), (3, 7), (7, 3), (32, 32), (1, 5), (20, 32)):
        a = rng.integers(-2, 3, (20, rows, columns)).astype(np.float64)
        factors, pivots = several(mx.linalg.lu_factor(in_weft(a)))
        np.testing.assert_array_equal(pivots[:, 0], abs(a[:, :, 0]).argmax(axis=1))
        order, lower, upper = several(mx.linalg.lu(in_weft(a)))
        assert (abs(lower) <= 1).all()
        exchanged = np.take_along_axis(lower, order[..., None].astype(np.int64), axis=1)
        np.testing.assert_allclose(exchanged @ upper, a, atol=1e-11)
        np.testing.assert_array_equal(np.triu(factors)[:, : min(rows, columns)], upper)


def test_orthonormal_columns(cases: Cases, rng: np.random.Generator) -> None:
    """Also for columns that are zero, tiny, huge or multiples of others."""
    for dtype, rows, columns in cases.some(4, list(itertools.product(DTYPES, (1, 3, 16, 32), (1, 2, 17, 32)))):
        a = rng.normal(size=(20, rows, columns)).astype(dtype)
        a[3], a[4, :, 0], a[5, :, -1] = 0, 0, a[5, :, 0]
        a[6] *= np.sqrt(np.finfo(dtype).tiny) * 1e-3
        a[7] *= np.sqrt(np.finfo(dtype).max) * 1e3
        size = abs(a).max(axis=(1, 2), keepdims=True).astype(np.float64)
        q, r = [x.astype(np.float64) for x in several(mx.linalg.qr(in_weft(a)))]
        eps = 4 * max(rows, columns) * np.finfo(dtype).eps
        assert (abs(np.swapaxes(q, -1, -2) @ q - np.eye(q.shape[-1])) <= eps).all()
        assert (abs(q @ r - a) <= eps * size).all()
        assert (np.tril(r, -1) == 0).all()
