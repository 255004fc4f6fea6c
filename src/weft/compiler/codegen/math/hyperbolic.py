"""tanh, sinh, cosh and their inverses."""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math.exponential import exp_of_negative, half_exp
from weft.compiler.codegen.math.logarithm import log1p_pair
from weft.compiler.codegen.math.parts import (
    FLOAT32,
    FLOAT64,
    Pair,
    Table,
    at_most,
    divide_to_pair,
    fast_two_sum,
    format_of,
    two_sum,
)
from weft.compiler.codegen.values import Value

# tanh(x) = x + x s P(s), s = x^2, for abs(x) <= 0.8 (tools/fit.py tanh)
TANH: Table = {
    FLOAT32: (0.0015870387, -0.00741417, 0.021306526, -0.053853597, 0.13332242, -0.333333),
    FLOAT64: (
        -1.2330762486398622e-06,
        8.54664290061404e-06,
        -3.205179961250905e-05,
        9.193618733537506e-05,
        -0.00023668597538986882,
        0.0005891694283005396,
        -0.0014556197633786253,
        0.003592090416141156,
        -0.008863231048627214,
        0.021869488191608635,
        -0.05396825395257293,
        0.13333333333297281,
        -0.33333333333333043,
    ),
}
TANH_SPLIT = 0.8
TANH_IS_ONE = {FLOAT32: 9.5, FLOAT64: 19.5}
# sinh(x) = x + x s P(s), s = x^2, for abs(x) <= 1 (tools/fit.py sinh)
SINH: Table = {
    FLOAT32: (2.7822132e-06, 0.00019842896, 0.0083333105, 0.16666667),
    FLOAT64: (
        6.483087145798351e-15,
        7.503152927426097e-13,
        1.6061339524171112e-10,
        2.5052089412764777e-08,
        2.7557319310090705e-06,
        0.0001984126984106116,
        0.008333333333333573,
        0.16666666666666666,
    ),
}
# Beyond these, arcsinh and arccosh equal log(2 x) in all digits, and the square of x may overflow.
ASYMPTOTIC = {FLOAT32: 2.0**13, FLOAT64: 2.0**28}


def tanh(L: Lanes, x: Value) -> Value:
    format_ = format_of(x)
    size = L.absolute(x)
    square = x * x
    small = L.fma(size * square, L.polynomial(square, TANH[format_]), size)
    z = exp_of_negative(L, at_most(L, size, TANH_IS_ONE[format_]) * -2.0)
    large = 1.0 - (z + z) / (1.0 + z)
    return L.copysign(L.select(size >= TANH_SPLIT, large, small), x)


def sinh(L: Lanes, x: Value) -> Value:
    size = L.absolute(x)
    square = x * x
    small = L.fma(size * square, L.polynomial(square, SINH[format_of(x)]), size)
    half = half_exp(L, size)
    return L.copysign(L.select(size >= 1.0, half - 0.25 / half, small), x)


def cosh(L: Lanes, x: Value) -> Value:
    half = half_exp(L, L.absolute(x))
    return half + 0.25 / half


def arcsinh(L: Lanes, x: Value) -> Value:
    """``log1p(u)`` with ``u = abs(x) + x^2 / (1 + sqrt(1 + x^2))``."""
    size = L.absolute(x)
    large = size > ASYMPTOTIC[format_of(x)]
    a = L.select(large, 1.0, size)
    square = a * a
    u = fast_two_sum(a, square / (1.0 + L.sqrt(1.0 + square)))
    return L.copysign(_log1p_or_log_of_double(L, u, large, size), x)


def _log1p_or_log_of_double(L: Lanes, u: Pair, large: Value, x: Value) -> Value:
    """``log1p(u)``, or ``log(2 x)`` for a large x."""
    y = log1p_pair(L, Pair(L.select(large, x, u.high), L.select(large, -1.0, u.low)))
    return L.select(large, y + 0.6931471805599453, y)


def arccosh(L: Lanes, x: Value) -> Value:
    """``log1p(t + sqrt(t (t + 2)))`` with ``t = x - 1``, which is exact for small x."""
    large = x > ASYMPTOTIC[format_of(x)]
    t = L.select(large, 1.0, x - 1.0)
    double = t + t
    square = L.fma(t, t, double)
    root = L.sqrt(square)
    # What is lost by rounding the square and its root, to first order.
    lost = L.fma(-root, root, square) + L.fma(t, t, double - square)
    correction = L.select(square > 0.0, lost / (root + root), 0.0)
    u = two_sum(t, root)
    y = _log1p_or_log_of_double(L, Pair(u.high, u.low + correction), large, x)
    return L.select(x < 1.0, float("nan"), y)


def arctanh(L: Lanes, x: Value) -> Value:
    """``log1p(2 x / (1 - x)) / 2`` for positive x."""
    size = L.absolute(x)
    zero = L.constant(0.0, x.dtype)
    denominator = fast_two_sum(L.constant(1.0, x.dtype), -size)
    ratio = divide_to_pair(L, Pair(size + size, zero), denominator)
    y = 0.5 * log1p_pair(L, ratio)
    y = L.select(L.equal(size, 1.0), float("inf"), y)
    return L.copysign(y, x)
