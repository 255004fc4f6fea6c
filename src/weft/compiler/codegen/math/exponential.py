"""exp and related functions.

With ``x = n ln 2 + r`` and ``abs(r) <= ln(2) / 2``: ``exp(x) = 2^n (1 + r + r^2 Q(r))`` (Cody and Waite, 1980), where
the coefficients of Q are a minimax fit (``tools/fit.py exp exp2``).
"""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math.parts import (
    FLOAT32,
    FLOAT64,
    FloatFormat,
    Pair,
    Table,
    at_least,
    at_most,
    fast_two_sum,
    format_of,
)
from weft.compiler.codegen.math.scalars import replace_lanes
from weft.compiler.codegen.values import Value

LOG2_E = 1.4426950408889634
LN2: Table = {
    FLOAT32: (0.6931471824645996, -1.9046542121259336e-09),
    FLOAT64: (0.6931471805599453, 2.3190468138462996e-17),
}
Q: Table = {
    FLOAT32: (0.0013820124, 0.008369103, 0.041668277, 0.16666517, 0.49999994),
    FLOAT64: (
        2.5073212623715166e-08,
        2.763106172167358e-07,
        2.7557428289639757e-06,
        2.4801491111187872e-05,
        0.00019841269611043456,
        0.0013888888945223323,
        0.008333333333469814,
        0.0416666666665252,
        0.1666666666666643,
        0.5000000000000011,
    ),
}
# Beyond these the result is 0 or infinity. n is at most one more than the largest exponent.
RANGE: Table = {FLOAT32: (-104.0, 88.73), FLOAT64: (-746.0, 709.8)}
# 2^r = 1 + r Q(r) for abs(r) <= 1/2
EXP2: Table = {
    FLOAT32: (0.00015823996, 0.001341768, 0.009617065, 0.055502728, 0.24022655, 0.69314724),
    FLOAT64: (
        2.8681783946848622e-11,
        4.4733853837120805e-10,
        7.052975034645429e-09,
        1.0177931766923025e-07,
        1.321549128572306e-06,
        1.5252734168119808e-05,
        0.00015403530388915113,
        0.001333355814603251,
        0.009618129107630229,
        0.05550410866482338,
        0.2402265069591007,
        0.6931471805599453,
    ),
}
# The same for exponents of 2.
EXPONENTS: Table = {FLOAT32: (-152.0, 128.0), FLOAT64: (-1080.0, 1024.0)}

HALF_EXP_IS_INFINITE = {FLOAT32: 90.0, FLOAT64: 711.0}
EXPM1_IS_INFINITE = {FLOAT32: 89.0, FLOAT64: 710.0}


def reduce(L: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """``r``, ``n``, and ``n`` plus twice the exponent's bias in the lowest bits of an unsigned integer."""
    format_ = format_of(x)
    high, low = LN2[format_]
    shifter = format_.shifter + 2 * format_.bias
    shifted = L.fma(x, LOG2_E, shifter)
    n = shifted - shifter
    r = L.fma(n, -low, L.fma(n, -high, x))
    return r, n, L.bitcast(shifted, format_.unsigned)


def scale(L: Lanes, x: Value, bits: Value) -> Value:
    """``x * 2^n`` rounded once, in two factors because ``2^n`` may be out of the range of normal numbers."""
    format_: FloatFormat = format_of(x)
    half = bits >> 1
    first = L.bitcast(half << format_.fraction_bits, format_.dtype)
    second = L.bitcast((bits - half) << format_.fraction_bits, format_.dtype)
    return x * first * second


def scale_in_range(L: Lanes, x: Value, bits: Value, is_zero: Value | None = None) -> Value:
    """The same number for ``1/2 < x < 2`` and n of at most 128 (1024 for float64), without products that underflow.
    Where it ``is_zero`` the result is 0, whatever ``x`` and n are.

    Intel's processors take some 200 cycles for a vector in which a product is smaller than the normal numbers, also if
    it is rounded to 0.
    """
    if L.width == 1:  # on a GPU, which takes no longer for small numbers, or once for many lanes
        scaled = scale(L, x, bits)
    else:
        is_small = L.bitcast(bits, x.dtype) < format_of(x).shifter + format_of(x).bias + 2
        if is_zero is not None:
            is_small = L.select(is_zero, False, is_small)
        scaled = _scaled_lanes(L, x, bits, is_small)
    return scaled if is_zero is None else L.select(is_zero, 0.0, scaled)


def _scaled_lanes(L: Lanes, x: Value, bits: Value, is_small: Value) -> Value:
    """``x * 2^n``, with other operations where the result ``is_small``: below twice the smallest normal number."""
    format_: FloatFormat = format_of(x)
    unsigned, one = format_.unsigned, format_.bias << format_.fraction_bits
    smallest_normal = 1 << format_.fraction_bits

    def counted(_: Value) -> list[Value]:
        """The bits of a small result are an integer, the result in units of the smallest number. ``y`` is the result in
        units of the smallest normal number. Where it is below 1, adding 1 rounds it to such an integer, which is in the
        last bits of the sum."""
        y = x * L.bitcast((bits - 1) << format_.fraction_bits, format_.dtype)
        rounded = L.bitcast(y + 1.0, unsigned) - one
        exact = L.bitcast(y, unsigned) - (one - smallest_normal)
        return [L.bitcast(L.select(y < 1.0, rounded, exact), format_.dtype)]

    half = L.bitcast((bits << format_.fraction_bits) - (one + smallest_normal), format_.dtype)
    return replace_lanes(L, is_small, [(x + x) * half], counted)[0]


def exp(L: Lanes, x: Value) -> Value:
    _, highest = RANGE[format_of(x)]
    return exp_of_nonpositive(L, at_most(L, x, highest))


def exp_of_nonpositive(L: Lanes, x: Value) -> Value:
    """``exp(x)`` for an x that is not above 0, or at least not so large that the result is infinite."""
    lowest, _ = RANGE[format_of(x)]
    r, _, bits = reduce(L, x)
    return scale_in_range(L, _exp_of_rest(L, r), bits, x < lowest)


def _exp_of_rest(L: Lanes, r: Value) -> Value:
    return L.polynomial(r, (*Q[format_of(r)], 1.0, 1.0))


def half_exp(L: Lanes, x: Value) -> Value:
    """``exp(x) / 2`` for positive x. It is finite for some x for which ``exp(x)`` overflows."""
    r, _, bits = reduce(L, at_most(L, x, HALF_EXP_IS_INFINITE[format_of(x)]))
    return scale(L, _exp_of_rest(L, r), bits - 1)


def exp_of_negative(L: Lanes, x: Value) -> Value:
    """``exp(x)`` for x in ``(-80, 0]``, where ``2^n`` is a normal number."""
    format_ = format_of(x)
    r, _, bits = reduce(L, x)
    y = L.bitcast(_exp_of_rest(L, r), format_.unsigned)
    return L.bitcast(y + ((bits - 2 * format_.bias) << format_.fraction_bits), format_.dtype)


def exp2(L: Lanes, x: Value) -> Value:
    return exp2_pair(L, Pair(x, L.constant(0.0, x.dtype)))


def exp2_pair(L: Lanes, x: Pair) -> Value:
    """``2^x`` of a pair; 0 or infinity where the result underflows or overflows."""
    format_ = format_of(x.high)
    lowest, highest = EXPONENTS[format_]
    high = at_most(L, at_least(L, x.high, lowest), highest)
    shifter = format_.shifter + 2 * format_.bias
    shifted = high + shifter
    r = (high - (shifted - shifter)) + x.low
    return scale_in_range(L, L.polynomial(r, (*EXP2[format_], 1.0)), L.bitcast(shifted, format_.unsigned))


def expm1(L: Lanes, x: Value) -> Value:
    """``exp(x) - 1`` from ``2^n (r + r^2 Q(r)) + (2^n - 1)``."""
    format_ = format_of(x)
    x = at_most(L, at_least(L, x, -2.0 - format_.fraction_bits), EXPM1_IS_INFINITE[format_])
    r, n, bits = reduce(L, x)
    high, low = LN2[format_]
    lost = L.fma(n, -low, L.fma(n, -high, x) - r)
    p = L.fma(r * r, L.polynomial(r, Q[format_]), lost)
    # Half of 2^n, because 2^n itself overflows for the largest arguments.
    power = L.bitcast((bits - (format_.bias + 1)) << format_.fraction_bits, format_.dtype)
    y = L.fma(power, p, L.fma(power, r, power - 0.5))
    return L.select(L.equal(x, 0.0), x, y + y)


def sigmoid(L: Lanes, x: Value) -> Value:
    """``1 / (1 + exp(-x))``.

    With ``exp(-x) = 2^n (1 + t)`` and ``n = h + k`` it is ``2^-h / (2^-h + 2^k + 2^k t)``: no factor overflows or
    underflows, and nearly all of the rounding error is that of the last sum and of the division.
    """
    format_ = format_of(x)
    lowest, _ = RANGE[format_]
    x = at_least(L, at_most(L, -x, -lowest), -1.0 - format_.fraction_bits)
    r, _, bits = reduce(L, x)
    t = L.fma(r * r, L.polynomial(r, Q[format_]), r)
    half = bits >> 1
    encoded = half << format_.fraction_bits
    inverse = L.bitcast(((2 * format_.bias) << format_.fraction_bits) - encoded, format_.dtype)
    rest = L.bitcast((bits - half) << format_.fraction_bits, format_.dtype)
    total = fast_two_sum(rest, inverse)
    return inverse / (total.high + L.fma(rest, t, total.low))
