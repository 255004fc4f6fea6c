"""log and related functions.

With ``x = 2^e (1 + f)`` and ``sqrt(1/2) <= 1 + f <= sqrt(2)``: ``log(x) = e ln 2 + f - f^2 / 2 + f^3 P(f)``, where the
coefficients of P are a minimax fit (``tools/fit.py log``).
"""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import exponential
from weft.compiler.codegen.math.parts import FLOAT32, FLOAT64, INFINITY, NAN, Pair, Table, format_of, two_sum
from weft.compiler.codegen.values import Value

LN2, LN2_LOST = 0.6931471805599453, 2.3190468138462996e-17
P: Table = {
    FLOAT32: (-0.07635416, 0.12762852, -0.13160217, 0.14201465, -0.16623335, 0.20001249, -0.25000823, 0.3333333),
    FLOAT64: (
        0.02612298199383274,
        -0.05977383239221856,
        0.0650196188930414,
        -0.056784452658926475,
        0.05668832430146512,
        -0.06196664362191046,
        0.06684544885713511,
        -0.07149438195661716,
        0.0769153210257037,
        -0.08332913523503865,
        0.09090923844847039,
        -0.10000015212569363,
        0.11111111150168214,
        -0.12499999691248988,
        0.1428571428004339,
        -0.1666666666982784,
        0.20000000000067003,
        -0.24999999999987968,
        0.3333333333333314,
    ),
}
LOG2_E: Table = {
    FLOAT32: (1.4426950216293335, 1.925963033500011e-08),
    FLOAT64: (1.4426950408889634, 2.0355273740931033e-17),
}
LOG10_E: Table = {
    FLOAT32: (0.4342944920063019, -1.0103049952192578e-08),
    FLOAT64: (0.4342944819032518, 1.098319650216765e-17),
}
LOG10_2: Table = {
    FLOAT32: (0.3010300099849701, -1.432098883924482e-08),
    FLOAT64: (0.3010299956639812, -2.8037281277851704e-18),
}
SQRT_HALF_BITS = {FLOAT32: 0x3F3504F3, FLOAT64: 0x3FE6A09E667F3BCD}


def split(L: Lanes, x: Value) -> tuple[Value, Value]:
    """The exponent ``e`` as a floating-point number and ``f``, for positive finite x."""
    format_ = format_of(x)
    raised = format_.fraction_bits + 2
    tiny = x < format_.smallest_normal
    bits = L.bitcast(L.select(tiny, x * 2.0**raised, x), format_.signed)
    exponent = (bits - SQRT_HALF_BITS[format_]) >> format_.fraction_bits
    fraction = L.bitcast(bits - (exponent << format_.fraction_bits), format_.dtype)
    e = integer_to_float(L, exponent, x)
    return L.select(tiny, e - float(raised), e), fraction - 1.0


def integer_to_float(L: Lanes, n: Value, like: Value) -> Value:
    """A small integer as a float. For 64 bits it is made with integer and float additions, because few processors
    convert vectors of 64-bit integers."""
    format_ = format_of(like)
    if format_ is FLOAT64:
        return L.bitcast(n + SHIFTER_BITS, format_.dtype) - format_.shifter
    converted: Value = L.convert(n, format_.dtype)
    return converted


SHIFTER_BITS = 0x4338000000000000


def with_special_values(L: Lanes, x: Value, y: Value) -> Value:
    """``y``, or the special value of a logarithm where x is zero, negative, infinite or NaN."""
    y = L.select(x < INFINITY, y, x)
    y = L.select(L.equal(x, 0.0), -INFINITY, y)
    return L.select(x < 0.0, NAN, y)


def log(L: Lanes, x: Value) -> Value:
    e, f = split(L, x)
    return with_special_values(L, x, _put_together(L, e, f))


def log_to_pair(L: Lanes, x: Value) -> Pair:
    """``log(x)`` and the rounding error of its last sum. Where the first is infinite or NaN, the second means
    nothing."""
    e, f = split(L, x)
    rest = _rest(L, e, f)
    high = L.fma(e, LN2, rest)
    return Pair(with_special_values(L, x, high), L.fma(e, LN2, -high) + rest)


def _put_together(L: Lanes, e: Value, f: Value) -> Value:
    """``e ln 2 + log(1 + f)``."""
    return L.fma(e, LN2, _rest(L, e, f))


def _rest(L: Lanes, e: Value, f: Value) -> Value:
    """``log(1 + f)``, plus ``e`` times the rounding error of ``LN2``."""
    tail = _tail(L, f)
    if format_of(f) is FLOAT64:  # in float32 the error of LN2 is too small to matter
        tail = L.fma(e, LN2_LOST, tail)
    return f + tail


def _tail(L: Lanes, f: Value) -> Value:
    """``log(1 + f) - f``."""
    return f * f * L.fma(f, L.polynomial(f, P[format_of(f)]), -0.5)


def log2(L: Lanes, x: Value) -> Value:
    high, low = LOG2_E[format_of(x)]
    e, f = split(L, x)
    return with_special_values(L, x, e + L.fma(f, high, L.fma(_tail(L, f), high, f * low)))


def log10(L: Lanes, x: Value) -> Value:
    format_ = format_of(x)
    (high, low), (two_high, two_low) = LOG10_E[format_], LOG10_2[format_]
    e, f = split(L, x)
    rest = L.fma(_tail(L, f), high, L.fma(e, two_low, f * low))
    return with_special_values(L, x, L.fma(e, two_high, L.fma(f, high, rest)))


def log1p(L: Lanes, x: Value) -> Value:
    y = log1p_pair(L, Pair(x, L.constant(0.0, x.dtype)))
    return L.select(L.equal(x, 0.0), x, y)


def log1p_pair(L: Lanes, x: Pair) -> Value:
    """``log(1 + x)`` of a pair."""
    total = two_sum(L.constant(1.0, x.high.dtype), x.high)
    return log_pair(L, Pair(total.high, total.low + x.low))


def log_pair(L: Lanes, x: Pair) -> Value:
    """The logarithm of a pair of normal numbers: the lower one, divided by the power of two, is added to the
    fraction."""
    format_ = format_of(x.high)
    low = L.select(x.high < INFINITY, x.low, 0.0)
    bits = L.bitcast(x.high, format_.signed)
    exponent = (bits - SQRT_HALF_BITS[format_]) >> format_.fraction_bits
    shifted = exponent << format_.fraction_bits
    # 2^(1 - e) is used because 2^-e is out of range for the largest e.
    factor = L.bitcast(L.constant((format_.bias + 1) << format_.fraction_bits, bits.dtype) - shifted, format_.dtype)
    f = L.fma(low * 0.5, factor, L.bitcast(bits - shifted, format_.dtype) - 1.0)
    e = integer_to_float(L, exponent, x.high)
    return with_special_values(L, x.high, _put_together(L, e, f))


def logaddexp(L: Lanes, x: Value, y: Value) -> Value:
    """``log(exp(x) + exp(y))`` without overflow. The error is small relative to the largest of x, y and the result."""
    difference = L.select(L.equal(x, y), 0.0, -L.absolute(x - y))
    return L.maximum(x, y) + log1p(L, exponential.exp(L, difference))
