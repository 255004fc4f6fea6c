"""Scans, which no public function is, and the derivatives of `prod` that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p

LENGTHS = [0, 1, 2, 3, 7, 64, 100]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-1.5, 1.5, shape).astype(dtype)


def running_sum(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=-1)


def products_before(x: np.ndarray) -> np.ndarray:
    before = [np.prod(x[..., :n], axis=-1) for n in range(x.shape[-1])]
    return np.stack(before, axis=-1) if before else x


def recurrence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    h = np.zeros_like(a)
    for n in range(1, a.shape[-1]):
        h[..., n] = a[..., n - 1] * h[..., n - 1] + b[..., n - 1]
    return h


SCANS: dict[str, tuple[Any, Callable[..., np.ndarray], int]] = {
    "running_sum": (p.running_sum, running_sum, 1),
    "products_before": (p.products_before, products_before, 1),
    "recurrence": (p.recurrence, recurrence, 2),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("length", LENGTHS)
def test_values(name: str, length: int) -> None:
    scan, oracle, count = SCANS[name]
    for shape in [(length,), (3, length), (2, 1, length), (0, length)]:
        arguments = [numbers(*shape, seed=n) for n in range(count)]
        got = np.array(scan(*[mx.array(x, mx.float64) for x in arguments]))
        np.testing.assert_allclose(got, oracle(*arguments), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", ["int32", "float32", "float16", "bfloat16", "complex64"])
def test_dtypes(name: str, dtype: str) -> None:
    scan, oracle, count = SCANS[name]
    whole = [np.random.default_rng(n).integers(-1, 3, (2, 9)) for n in range(count)]
    got = scan(*[mx.array(x).astype(getattr(mx, dtype)) for x in whole])
    assert got.dtype == getattr(mx, dtype)
    np.testing.assert_array_equal(np.array(got.astype(mx.complex64)), oracle(*whole).astype(np.complex64))


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("complex_numbers", [False, True])
def test_derivatives(name: str, complex_numbers: bool) -> None:
    scan, oracle, count = SCANS[name]
    turn = 1 + 0.5j if complex_numbers else 1.0
    x, t = ([numbers(2, 6, seed=n) * turn for n in range(first, first + count)] for first in (0, 10))
    step = 1e-4 if complex_numbers else 1e-6
    ahead, behind = (oracle(*[a + sign * step * b for a, b in zip(x, t, strict=True)]) for sign in (1, -1))
    dtype = mx.complex64 if complex_numbers else mx.float64
    primals, tangents = ([mx.array(one).astype(dtype) for one in them] for them in (x, t))
    _, (got,) = mx.jvp(scan, primals, tangents)
    tolerance = 2e-4 if complex_numbers else 1e-7
    np.testing.assert_allclose(np.array(got), (ahead - behind) / (2 * step), rtol=tolerance, atol=tolerance)
    v = mx.array(numbers(2, 6, seed=5) * turn).astype(dtype)
    _, cotangents = mx.vjp(scan, primals, [v])
    left = sum(np.vdot(np.array(c), np.array(u)).real for c, u in zip(cotangents, tangents, strict=True))
    np.testing.assert_allclose(left, np.vdot(np.array(v), np.array(got)).real, rtol=1e-4 if complex_numbers else 1e-12)


@pytest.mark.parametrize("name", SCANS)
def test_vmap(name: str) -> None:
    scan, oracle, count = SCANS[name]
    arguments = [numbers(4, 3, 5, seed=n) for n in range(count)]
    for axis in range(3):
        for axes in [(axis,) * count, *((axis, None)[:count] for _ in range(count > 1))]:
            rows = [x if a is not None else np.take(x, 0, axis) for x, a in zip(arguments, axes, strict=True)]
            got = mx.vmap(scan, in_axes=axes)(*[mx.array(x, mx.float64) for x in rows])
            moved = [
                np.moveaxis(x, a, 0) if a is not None else np.broadcast_to(x, (arguments[0].shape[axis], *x.shape))
                for x, a in zip(rows, axes, strict=True)
            ]
            np.testing.assert_allclose(np.array(got), oracle(*moved), rtol=1e-12, atol=1e-12)


def derivative_of_product(x: Sequence[float], order: int) -> np.ndarray:
    """All derivatives of an order: the products of the factors that are left, where none is taken twice."""
    found = np.zeros((len(x),) * order)
    for chosen in permutations(range(len(x)), order):
        found[chosen] = np.prod([one for index, one in enumerate(x) if index not in chosen])
    return found


def jacobian(function: Callable[[mx.array], mx.array], x: mx.array, *, forwards: bool) -> mx.array:
    """All derivatives of all results, with the axes of ``x`` last."""
    if forwards:
        columns = mx.vmap(lambda t: mx.jvp(function, [x], [t])[1][0])(mx.eye(x.size, dtype=x.dtype))
        return mx.moveaxis(columns, 0, -1)
    value = function(x)
    cotangents = mx.eye(value.size, dtype=x.dtype).reshape(value.size, *value.shape)
    return mx.vmap(lambda v: mx.vjp(function, [x], [v])[1][0])(cotangents).reshape(*value.shape, *x.shape)


ZEROS = [[1.5, -2.0, 0.5, 3.0], [1.5, 0.0, 0.5, 3.0], [0.0, -2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 2.0], [2.0], [0.0, 4.0]]


@pytest.mark.parametrize("x", ZEROS, ids=str)
@pytest.mark.parametrize("ways", ["f", "r", "ff", "fr", "rf", "rr", "frf", "rrr"])
def test_derivatives_of_products_are_exact(x: list[float], ways: str) -> None:
    function: Callable[[mx.array], mx.array] = mx.prod
    for way in ways:
        function = partial(jacobian, function, forwards=way == "f")
    got = function(mx.array(x, mx.float64))
    np.testing.assert_array_equal(np.array(got), derivative_of_product(x, len(ways)))


@pytest.mark.parametrize("axis", [None, 0, (0, 2), -1])
def test_gradient_over_axes(axis: Any) -> None:
    x = np.round(numbers(3, 4, 5) * 2)
    gradient = mx.grad(lambda a: mx.sin(mx.prod(a, axis=axis)).sum())(mx.array(x, mx.float64))
    product = np.cos(np.prod(x, axis=axis, keepdims=True))
    axes = tuple(range(3)) if axis is None else axis
    expected = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        others = x.copy()
        others[index] = 1
        expected[index] = (product * np.prod(others, axis=axes, keepdims=True))[
            tuple(0 if n in np.atleast_1d(np.array(axes) % 3) else i for n, i in enumerate(index))
        ]
    np.testing.assert_allclose(np.array(gradient), expected, rtol=1e-12, atol=1e-12)


def test_infinite_factors_stay_with_their_elements() -> None:
    gradient = mx.grad(mx.prod)
    assert gradient(mx.array([2.0, mx.inf, 3.0])).tolist() == [mx.inf, 6.0, mx.inf]
    assert gradient(mx.array([1e30, 1e30, 1e30, 0.0])).tolist() == [0.0, 0.0, 0.0, mx.inf]


def test_the_gradient_of_a_long_product() -> None:
    x = np.random.default_rng(0).uniform(0.9, 1.1, 50_000)
    gradient = mx.grad(mx.prod)(mx.array(x, mx.float64))
    np.testing.assert_allclose(np.array(gradient), np.prod(x) / x, rtol=1e-9)
