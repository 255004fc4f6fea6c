"""Powers, remainders and roots of floating-point numbers.

``pow(x, y) = 2^(y log2(x))``. The logarithm needs as many extra bits as the exponent of the result has, so it is a pair
of numbers. With ``x = 2^e (1 + f)`` and ``s = f / (2 + f)``,

    log2(x) = e + s (2 / ln 2 + s^2 (2 / (3 ln 2) + s^2 P(s^2)))

where all but P is computed in pairs. The coefficients are a minimax fit (``tools/fit.py log2_odd``).
"""

from __future__ import annotations

from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import exponential, logarithm
from weft.compiler.codegen.math.parts import (
    FLOAT32,
    FLOAT64,
    INFINITY,
    NAN,
    Pair,
    Table,
    divide_to_pair,
    fast_two_sum,
    flip_sign,
    format_of,
    multiply_pairs,
    sign_of,
)
from weft.compiler.codegen.math.scalars import call_each_lane, replace_lanes
from weft.compiler.codegen.shared_functions import REMAINDER
from weft.compiler.codegen.values import Value

# 2 / ln 2 and 2 / (3 ln 2), each as a pair
FIRST: Table = {
    FLOAT32: (2.885390043258667, 3.851926067000022e-08),
    FLOAT64: (2.8853900817779268, 4.0710547481862066e-17),
}
THIRD: Table = {
    FLOAT32: (0.9617967009544373, -7.028461812552678e-09),
    FLOAT64: (0.9617966939259756, 5.0577616648125907e-17),
}
P: Table = {
    FLOAT32: (0.33782083, 0.41184992, 0.5770802),
    FLOAT64: (
        0.17311738423535572,
        0.16841988609638023,
        0.1924026247227518,
        0.22195224425078006,
        0.26230819891159535,
        0.3205988979118332,
        0.4121985831113457,
        0.5770780163555851,
    ),
}


def rsqrt(L: Lanes, x: Value) -> Value:
    return 1.0 / L.sqrt(x)


def hypot(L: Lanes, x: Value, y: Value) -> Value:
    """``sqrt(x^2 + y^2)``, infinite where x or y is: in float64 for smaller dtypes, else from the quotient of x and
    y."""
    if x.dtype.size < 8:
        wide, other = L.convert(x, dtypes.float64), L.convert(y, dtypes.float64)
        root = L.convert(L.sqrt(L.fma(wide, wide, other * other)), x.dtype)
    else:
        x, y = L.absolute(x), L.absolute(y)
        high, low = L.maximum(x, y), L.minimum(x, y)
        quotient = low / L.select(L.equal(high, 0), 1.0, high)
        root = high * L.sqrt(L.fma(quotient, quotient, 1.0))
    infinite = L.equal(L.absolute(x), INFINITY) | L.equal(L.absolute(y), INFINITY)
    return L.select(infinite, INFINITY, root)


def log2_pair(L: Lanes, x: Value) -> Pair:
    """``log2(x)`` as a pair, for positive finite x."""
    format_ = format_of(x)
    e, f = logarithm.split(L, x)
    zero = L.constant(0.0, f.dtype)
    s = divide_to_pair(L, Pair(f, zero), fast_two_sum(L.constant(2.0, f.dtype), f))
    square = multiply_pairs(L, s, s)
    third = _constant_plus(L, THIRD[format_], square.high * L.polynomial(square.high, P[format_]), zero)
    inner = multiply_pairs(L, square, third)
    m = multiply_pairs(L, s, _constant_plus(L, FIRST[format_], inner.high, inner.low))
    total = fast_two_sum(e, m.high)
    return Pair(total.high, total.low + m.low)


def _constant_plus(L: Lanes, constant: tuple[float, ...], high: Value, low: Value) -> Pair:
    """The sum of a constant pair and a smaller pair."""
    total = fast_two_sum(L.constant(constant[0], high.dtype), high)
    return Pair(total.high, total.low + (low + constant[1]))


def power(L: Lanes, x: Value, y: Value) -> Value:
    """``x^y`` with the special values of C99 (annex F.9.4.4)."""
    size = L.absolute(x)
    logarithm_ = log2_pair(L, size)
    high = L.select(size < INFINITY, L.select(L.equal(size, 0.0), -INFINITY, logarithm_.high), size)
    product = high * y
    lowest, highest = exponential.EXPONENTS[format_of(x)]
    inside = L.select(product > lowest, product <= highest, False)
    low = L.fma(logarithm_.low, y, L.fma(high, y, -product))
    result = exponential.exp2_pair(L, Pair(product, L.select(inside, low, 0.0)))
    return _with_signs_and_ones(L, x, y, size, result)


class Exponent(NamedTuple):
    """An exponent of numbers of half precision, and whether it is 2 or 3."""

    itself: Value
    is_two: Value
    is_three: Value


def exponent(L: Lanes, y: Value) -> Exponent:
    return Exponent(y, L.equal(y, 2.0), L.equal(y, 3.0))


def power_by(L: Lanes, x: Value, by: Exponent) -> Value:
    """``x^y``, where all lanes have the same y. In half precision, products of two and three in float32 are rounded to
    the same numbers as `power`, whatever x is; tests compare them all."""
    e, type_ = L.emitter, L.type_of(FLOAT32.dtype)
    result = e.slot(type_)
    by_products = L.any_lane(by.is_two | by.is_three)
    with e.when(by_products):
        size = L.absolute(x)
        e.store(type_, L.select(by.is_two, size * size, x * x * x).name, result)
    with e.when(e.assign(f"xor i1 {by_products}, true")):
        e.store(type_, power(L, x, by.itself).name, result)
    return Value(L, e.load(type_, result), FLOAT32.dtype)


def _with_signs_and_ones(L: Lanes, x: Value, y: Value, size: Value, result: Value) -> Value:
    integral = L.equal(L.rint(y), y)
    half = y * 0.5
    odd = L.select(L.not_equal(L.rint(half), half), integral, False)
    sign = sign_of(L, x)
    result = flip_sign(L, result, L.select(odd, sign, 0))
    undefined = L.select(x < 0.0, L.select(size < INFINITY, ~integral, False), False)
    result = L.select(undefined, NAN, result)
    one = L.equal(x, 1.0) | L.equal(y, 0.0)
    also_one = L.select(L.equal(x, -1.0), L.equal(L.absolute(y), INFINITY), False)
    return L.select(one | also_one, 1.0, result)


# Below this ratio the rounded quotient is at most one away from the exact one.
RATIO = {FLOAT32: 2.0**22, FLOAT64: 2.0**51}


def remainder(L: Lanes, x: Value, y: Value) -> Value:
    """``x - floor(x / y) y`` without intermediate rounding. The result, zero included, has the sign of y, as in
    Python."""
    rest, divisor = _remainder_of_sizes(L, L.absolute(x), L.absolute(y)), L.absolute(y)
    opposite = L.bitcast(sign_of(L, x) ^ sign_of(L, y), format_of(x).signed) < 0
    wrapped = L.select(opposite, L.select(L.equal(rest, 0.0), rest, divisor - rest), rest)
    return L.copysign(wrapped, y)


def _remainder_of_sizes(L: Lanes, x: Value, y: Value) -> Value:
    """C's fmod for numbers that are not negative."""
    format_ = format_of(x)
    quotient = L.trunc(x / y)
    rest = L.fma(-quotient, y, x)
    rest = L.select(rest < 0.0, rest + y, rest)
    rest = L.select(rest < y, rest, rest - y)
    rest = L.select(x < y, x, rest)
    far = L.select(quotient > RATIO[format_], x < INFINITY, False)
    far = L.select(y > 0.0, far, False)

    def exact(lanes: Value) -> list[Value]:
        arguments = [L.convert(L.select(lanes, value, 1.0), FLOAT64.dtype) for value in (x, y)]
        return [L.convert(call_each_lane(L, REMAINDER, *arguments), x.dtype)]

    return replace_lanes(L, far, [rest], exact)[0]


def floor_divide(L: Lanes, x: Value, y: Value) -> Value:
    """The rounded quotient, rounded down."""
    return L.floor(x / y)
