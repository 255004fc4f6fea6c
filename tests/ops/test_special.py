"""Special values for which no oracle agrees with the specification, one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft.core as mx


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("a", "b", "quotient"),
    [
        (math.inf, 3.0, math.inf),
        (-math.inf, 3.0, -math.inf),
        (5.0, 0.0, math.inf),
        (-5.0, 0.0, -math.inf),
        (0.0, 0.0, math.nan),
        (math.nan, 1.0, math.nan),
        (1.0, math.nan, math.nan),
        (-7.0, 2.0, -4.0),
    ],
)
def test_floor_divide(dtype: mx.Dtype, a: float, b: float, quotient: float) -> None:
    result = mx.floor_divide(mx.array(a, dtype), mx.array(b, dtype)).item()
    np.testing.assert_equal(result, quotient)


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([1.9, -1.9, 0.0], mx.int32, [1, -1, 0]),
        ([0.0, -0.0, 0.5, math.nan, math.inf], mx.bool_, [False, False, True, True, True]),
        ([65519.0, 65520.0, -1e9], mx.float16, [65504.0, math.inf, -math.inf]),
        ([math.nan, math.inf, -math.inf], mx.float16, [math.nan, math.inf, -math.inf]),
        ([math.nan, math.inf, 3.4e38], mx.bfloat16, [math.nan, math.inf, math.inf]),
    ],
)
def test_conversions(values: list[float], dtype: mx.Dtype, wanted: list[float]) -> None:
    np.testing.assert_equal(mx.array(values).astype(dtype).tolist(), wanted)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nan_wins_extremes(name: str) -> None:
    result = getattr(mx, name)(mx.array([2.0, math.nan, 3.0])).item()
    assert result == 1 if name.startswith("arg") else math.isnan(result)


@pytest.mark.parametrize("axis", [None, 0])
def test_logsumexp_of_infinities(axis: int | None) -> None:
    assert mx.logsumexp(mx.array([-math.inf, -math.inf]), axis=axis).item() == -math.inf
    assert mx.logsumexp(mx.array([math.inf, 0.0]), axis=axis).item() == math.inf
    assert math.isnan(mx.logsumexp(mx.array([math.nan, 0.0]), axis=axis).item())
    assert mx.logsumexp(mx.zeros((0,)), axis=axis).item() == -math.inf


def test_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(np.array(mx.softmax(mx.array([1000.0, 1000.0, -1000.0]))), [0.5, 0.5, 0.0])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_softmax_of_halves_is_rounded_once(dtype: mx.Dtype) -> None:
    """The sum of 100,000 exponentials is larger than any number of float16."""
    x = mx.zeros((2, 100_000), dtype)
    np.testing.assert_array_equal(np.array(mx.softmax(x, axis=-1)[0, 0].astype(mx.float32)), _half(1e-5, dtype))
    cotangent = mx.zeros_like(x).at[:, 0].add(1)
    (gradient,) = mx.vjp(lambda x: mx.softmax(x, axis=-1), [x], [cotangent])[1]
    np.testing.assert_array_equal(np.array(gradient[1, 0].astype(mx.float32)), _half(1e-5 - 1e-10, dtype))


def _half(number: float, dtype: mx.Dtype) -> float:
    return float(mx.array(number, dtype).item())


def test_means_of_halves_do_not_overflow() -> None:
    assert mx.mean(mx.full((70000,), 1.0, mx.float16)).item() == 1.0
    assert mx.std(mx.array([300.0, -300.0], mx.float16)).item() == 300.0


@pytest.mark.parametrize(
    "numbers",
    [(-3, 3, 0.7), (1.9, 9, 2.2), (3, 0.1, -0.7), (-0.5, 3, 1), (0.5, 4, 0.5), (0, 1, 0.1), (-2.5, 2.5, 1.5), (5.9,)],
    ids=str,
)
def test_ranges_of_whole_numbers_from_floats(numbers: tuple[float, ...]) -> None:
    """As in NumPy and MLX, the step is the difference of the first two elements, after their conversion."""
    assert _range(mx, numbers).tolist() == _range(np, numbers).tolist()


def _range(namespace: Any, numbers: tuple[float, ...]) -> Any:
    return namespace.arange(*numbers, dtype=namespace.int32)


def test_rounding_of_integers_stays_in_the_dtype() -> None:
    assert mx.round(mx.array([-128, 127, 50, -50], mx.int8), -2).tolist() == [-100, 100, 0, 0]
    assert mx.round(mx.array([200], mx.uint8), -3).tolist() == [0]


def test_powers_at_zero() -> None:
    x, y = mx.array([0.0, 0.0, 2.0]), mx.array([0.0, 2.0, 0.0])
    assert mx.power(x, y).tolist() == [1.0, 0.0, 1.0]
    slope = mx.grad(lambda x: mx.sum(mx.power(x, y)))(x)
    assert slope.tolist() == [0.0, 0.0, 0.0]


def test_powers_by_products_and_roots() -> None:
    exponents = [3, 4, -1, -2, -3, -4, 0.5, -0.5]
    x = mx.array([0.3, 1.7, 2.0])
    found = mx.stack([x**exponent for exponent in exponents])
    expected = np.array(x, np.float64) ** np.array(exponents)[:, None]
    np.testing.assert_allclose(np.array(found), expected, rtol=4 * 2.0**-23)
    assert (mx.array([5, -3]) ** 3).tolist() == [125, -27]
    slopes = mx.grad(lambda x: mx.sum(x**3 + x**-2))(mx.array([0.0, 4.0]))
    assert slopes.tolist() == [-np.inf, 47.96875]


def test_stop_gradient_is_constant_in_every_order() -> None:
    f = lambda x: mx.stop_gradient(x) * x * x  # noqa: E731 - a formula
    x = mx.array(3.0)
    assert mx.grad(f)(x).item() == 18.0
    assert mx.grad(mx.grad(f))(x).item() == 6.0
    assert mx.jvp(mx.stop_gradient, [x], [mx.array(1.0)])[1][0].item() == 0.0


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_derivative_of_a_tie_is_that_of_the_second_operand(name: str) -> None:
    """As in MLX, forwards and backwards; if a number is NaN, both derivatives are zero."""
    function = getattr(mx, name)
    x, y = mx.array([2.0, math.nan, 2.0]), mx.array([2.0, 2.0, math.nan])
    _, (left, right) = mx.vjp(function, [x, y], [mx.ones(3)])
    assert (left.tolist(), right.tolist()) == ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    _, (moved,) = mx.jvp(function, [x, y], [mx.full(3, 1.0), mx.full(3, 10.0)])
    assert moved.tolist() == [10.0, 0.0, 0.0]


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "pairs", "wanted"),
    [
        ("hypot", [(0.0, INF), (3.0, -INF), (NAN, INF), (INF, NAN), (-INF, NAN)], INF),
        ("hypot", [(NAN, 0.0), (1.0, NAN)], NAN),
        ("nextafter", [(1.0, NAN), (0.0, NAN), (INF, NAN), (NAN, 1.0), (NAN, NAN)], NAN),
        ("arctan2", [(NAN, 1.0), (NAN, -1.0), (NAN, 0.0), (NAN, INF), (NAN, -INF)], NAN),
        ("arctan2", [(1.0, NAN), (-1.0, NAN), (0.0, NAN), (-0.0, NAN), (INF, NAN), (-INF, NAN), (NAN, -NAN)], NAN),
    ],
)
def test_infinities_and_nan_on_either_side(
    name: str, pairs: list[tuple[float, float]], wanted: float, dtype: mx.Dtype
) -> None:
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    found = getattr(mx, name)(mx.array(left, dtype), mx.array(right, dtype)).tolist()
    np.testing.assert_equal(found, [wanted] * len(pairs))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16], ids=str)
def test_arccosh_below_one(dtype: mx.Dtype) -> None:
    below = [0.99, 0.75, 0.5, 0.25, 0.0, -0.5, -1.0, -2.0, -3.0, -1e4, -INF, NAN]
    assert mx.all(mx.isnan(mx.arccosh(mx.array(below, dtype)))).item()


@pytest.mark.parametrize("divisor", [(INF, 0), (0, INF), (-INF, 1), (1, -INF), (INF, -INF), (INF, NAN), (NAN, -INF)])
def test_finite_complex_numbers_by_infinity_are_zero(divisor: tuple[float, float]) -> None:
    quotients = mx.array([1 + 2j, -3 + 0.5j, 3e38 - 3e38j], mx.complex64) / mx.array(complex(*divisor))
    assert quotients.tolist() == [0j, 0j, 0j]
