"""Scans beyond the operation table: recurrences, the derivatives of `prod` that are made of scans, long rows."""

from __future__ import annotations

import math
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


def inclusive_recurrence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    h = b.copy()
    for n in range(1, a.shape[-1]):
        h[..., n] += a[..., n] * h[..., n - 1]
    return h


def along_rows(scan: p.Scan, inclusive: bool) -> Callable[..., mx.array]:
    return lambda *x: scan(*x, axis=x[0].ndim - 1, reverse=False, inclusive=inclusive)


SCANS: dict[str, tuple[Any, Callable[..., np.ndarray], int]] = {
    "running_sum": (along_rows(p.cumsum, True), running_sum, 1),
    "products_before": (along_rows(p.cumprod, False), products_before, 1),
    "recurrence": (along_rows(p.recurrence, False), recurrence, 2),
    "recurrence with the element itself": (along_rows(p.recurrence, True), inclusive_recurrence, 2),
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
    """All derivatives of an order: the products of the remaining factors; 0 for a factor that is taken twice."""
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


NAN, INF = math.nan, math.inf
SPECIAL: list[tuple[str, list[float], list[float]]] = [
    ("cumsum", [1, INF, 2, -INF, 1], [1, INF, INF, NAN, NAN]),
    ("cumsum", [-0.0, -0.0, 0.0], [-0.0, -0.0, 0.0]),
    ("cumprod", [2, 0, INF, 3], [2, 0, NAN, NAN]),
    ("cumprod", [1e30, 1e30, 1e-30, 1e-30], [1e30, INF, 1e30, 1]),
    ("cummax", [-INF, 1, NAN, INF, 2], [-INF, 1, NAN, NAN, NAN]),
    ("cummin", [INF, 1, NAN, -INF, 2], [INF, 1, NAN, NAN, NAN]),
    ("logcumsumexp", [-INF, -INF, 1, 1000, 1000, INF, 3], [-INF, -INF, 1, 1000, 1000 + math.log(2), INF, INF]),
    ("logcumsumexp", [1, NAN, 2], [1, NAN, NAN]),
    ("logcumsumexp", [INF, INF, -INF], [INF, INF, INF]),
]


@pytest.mark.parametrize(("name", "x", "expected"), SPECIAL)
def test_special_values(name: str, x: list[float], expected: list[float]) -> None:
    scan = getattr(mx, name)
    wanted = np.array(expected, np.float32)
    for got in (
        scan(mx.array(x)),
        scan(mx.array(x[::-1]), reverse=True)[::-1],
        scan(mx.array(x + [0.0] * 20))[: len(x)],
        scan(mx.array([[one, 1.0] for one in x]), axis=0)[:, 0],
    ):
        np.testing.assert_allclose(np.array(got), wanted, rtol=1e-6)
        numbers = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(np.array(got))[numbers], np.signbit(wanted)[numbers])


def test_complex_infinities_stay_what_they_are() -> None:
    x = mx.array([complex(INF, 0), complex(1, 1)])
    assert np.array(mx.cumprod(x))[0] == complex(INF, 0)
    assert np.array(mx.cumprod(x, inclusive=False)).tolist() == [1, complex(INF, 0)]


def test_complex_numbers_are_compared_by_real_and_imaginary_parts() -> None:
    x = mx.array([1 + 1j, 2, 2 - 1j, 2 + 1j, 0])
    assert mx.cummax(x).tolist() == [1 + 1j, 2, 2, 2 + 1j, 2 + 1j]
    assert mx.cummin(x, reverse=True).tolist() == [0, 0, 0, 0, 0]
    assert mx.cummin(x[:4], reverse=True).tolist() == [1 + 1j, 2 - 1j, 2 - 1j, 2 + 1j]
    assert np.isinf(np.array(mx.cummax(x, inclusive=False))[0])


def test_dtypes_of_results() -> None:
    flags = mx.array([True, True, False, True])
    assert_same(mx.cumsum(flags), [1, 2, 2, 3], mx.int32)
    assert_same(mx.cumprod(flags), [True, True, False, False], mx.bool_)
    assert_same(mx.cummax(flags, inclusive=False), [False, True, True, True], mx.bool_)
    assert_same(mx.cumsum(mx.array([200, 100], mx.uint8)), [200, 44], mx.uint8)
    assert_same(mx.cumprod(mx.array([100, 2, 100], mx.int8)), [100, -56, 32], mx.int8)
    assert_same(mx.cummin(mx.array([3, 1], mx.uint16), inclusive=False), [65535, 3], mx.uint16)
    assert_same(mx.cumsum(mx.array([1.5, 2.7]), dtype=mx.int32), [1, 3], mx.int32)
    assert_same(mx.cumprod(mx.array([2, 3]), dtype=mx.float16), [2, 6], mx.float16)
    assert mx.logcumsumexp(mx.array([1, 2])).dtype == mx.float32
    assert_same(mx.cumsum(mx.array(3.0)), [3.0], mx.float32)


def assert_same(got: mx.array, values: list[Any], dtype: mx.Dtype) -> None:
    assert (got.tolist(), got.dtype) == (values, dtype)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_shapes_without_elements_and_axes_of_one(name: str) -> None:
    scan = getattr(mx, name)
    for shape, axis in [((0,), 0), ((2, 0), 1), ((0, 2), 0), ((0, 2), 1), ((2, 0, 3), 2)]:
        assert scan(mx.zeros(shape), axis=axis).tolist() == np.zeros(shape).tolist()
        assert mx.grad(lambda x: scan(x, axis=axis).sum())(mx.zeros(shape)).shape == shape  # noqa: B023
    x = mx.array([[2.0], [3.0]])
    assert scan(x, axis=1).tolist() == x.tolist()
    nothing = scan(mx.array([1.0, 2.0]), inclusive=False)[0].item()
    assert scan(x, axis=-1, inclusive=False).tolist() == [[nothing], [nothing]]


def test_errors_name_the_function() -> None:
    with pytest.raises(IndexError, match=r"\[cumsum\] Axis 2 is out of range for an array with 2 dimensions"):
        mx.cumsum(mx.zeros((2, 3)), axis=2)
    with pytest.raises(IndexError, match=r"\[cummax\] Axis 0 is out of range"):
        mx.cummax(mx.array(1.0), axis=0)
    with pytest.raises(TypeError, match=r"\[logcumsumexp\]"):
        mx.logcumsumexp([1, 2])
    with pytest.raises(TypeError, match=r"\[cumprod\] An axis must be an int"):
        mx.cumprod(mx.zeros((2, 3)), axis=(0, 1))  # type: ignore[arg-type]  # what is refused


def test_sums_are_as_accurate_as_sum() -> None:
    x = mx.array(np.random.default_rng(0).uniform(0, 1, 1_000_003).astype(np.float32))
    exact = np.cumsum(np.array(x), dtype=np.float64)
    np.testing.assert_array_equal(np.array(mx.cumsum(x)), exact.astype(np.float32))
    assert mx.cumsum(x)[-1].item() == mx.sum(x).item()


TIES = [1.0, 3.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("name", "x", "manner", "expected"),
    [
        ("cummax", TIES, {}, [1, 10, 1100, 0]),
        ("cummin", [1.0, 3.0, 1.0, 2.0], {}, [11, 0, 1100, 0]),
        ("cummax", TIES, {"inclusive": False}, [10, 100, 1000, 0]),
        ("cummax", TIES, {"reverse": True}, [0, 11, 100, 1000]),
        ("cumprod", [1.0, 0.0, 3.0, 2.0], {}, [1, 6310, 0, 0]),
        ("logcumsumexp", [-INF, 0.0, 2000.0, 1.0], {}, [0, 10, 1100, 0]),
        ("logcumsumexp", [-INF, -INF, INF, 1.0], {}, [0, 0, 1100, 0]),
    ],
)
def test_gradients_at_ties_zeros_and_infinities(
    name: str, x: list[float], manner: dict[str, bool], expected: list[float]
) -> None:
    """Among equal elements the last one is the extreme, as in MLX; nothing is divided by a zero."""
    weights = mx.array([1.0, 10.0, 100.0, 1000.0])

    _, (gradient,) = mx.vjp(partial(getattr(mx, name), **manner), [mx.array(x)], [weights])
    assert gradient.tolist() == expected
    columns = [mx.jvp(partial(getattr(mx, name), **manner), [mx.array(x)], [one])[1][0] for one in mx.eye(4)]
    assert [mx.sum(column * weights).item() for column in columns] == expected
