"""sin, cos, tan.

With the multiple ``n`` of pi that is nearest to x: ``sin(x) = (-1)^n sin(r)``, ``r = x - n pi`` with pi in three parts
(Cody and Waite, 1980), and ``sin(r) = r + r^3 P(r^2)`` for ``abs(r) <= pi / 2``. cos is the same with the nearest odd
multiple of ``pi / 2``. tan has a polynomial of its own for ``abs(r) <= pi / 4``. Larger arguments, for which three
parts are not enough, are reduced one by one with as many digits of ``1 / pi`` as they need (Payne and Hanek, 1983). The
coefficients are minimax fits (``tools/fit.py sin tan``).
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math.parts import (
    FLOAT32,
    FLOAT64,
    INFINITY,
    Pair,
    Table,
    fast_two_sum,
    flip_sign,
    format_of,
    sign_of,
    two_product,
)
from weft.compiler.codegen.math.scalars import call_each_lane, replace_lanes
from weft.compiler.codegen.shared_functions import WRAP_ANGLE
from weft.compiler.codegen.values import Value

# pi in parts, each rounded down, so that all are positive and zeros keep their sign
PI: Table = {
    FLOAT32: (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14),
    FLOAT64: (3.141592653589793, 1.224646799147353e-16, 2.1657133478438278e-32),
}
INVERSE_PI = 0.3183098861837907
# sin(r) = r + r s P(s), s = r^2
SINE: Table = {
    FLOAT32: (-2.5503285e-08, 2.7627061e-06, -0.00019843093, 0.0083333505, -0.16666667),
    FLOAT64: (
        -1.869773126366147e-18,
        2.7410164355996127e-15,
        -7.643866564529747e-13,
        1.60589604597639e-10,
        -2.5052107158728693e-08,
        2.7557319213440802e-06,
        -0.00019841269841219556,
        0.008333333333333217,
        -0.16666666666666666,
    ),
}
# tan(r) = r + r s P(s), s = r^2
TANGENT: Table = {
    FLOAT32: (0.004462285, -8.4146355e-05, 0.010972043, 0.021230109, 0.054069865, 0.13332577, 0.33333352),
    FLOAT64: (
        2.1343587538784825e-05,
        -4.6876476493582455e-05,
        9.31624950232278e-05,
        -3.042979060579295e-05,
        0.000139399747497479,
        0.00022098132393313789,
        0.0005955403856915622,
        0.0014546445374410463,
        0.0035923078201221524,
        0.00886321707870636,
        0.021869489757658723,
        0.05396825392043955,
        0.13333333333427716,
        0.3333333333333268,
    ),
}
# Up to these arguments, three parts of pi are enough.
LIMIT = {FLOAT32: 2.0**17, FLOAT64: 2.0**30}


def _beyond(L: Lanes, x: Value) -> Value:
    return L.absolute(x) > LIMIT[format_of(x)]


def _wrapped(L: Lanes, x: Value, quarters: float, rest: bool = False) -> Value:
    """For large x, the float64 angle in ``[-pi/2, pi/2]`` that has the sine of x plus ``quarters`` quarter turns.

    With ``rest``, the rounding error of that angle.
    """
    numbers = (L.constant(number, dtypes.float64) for number in (quarters, float(rest)))
    return call_each_lane(L, WRAP_ANGLE, L.convert(x, dtypes.float64), *numbers)


def _sine(L: Lanes, x: Value, r: Value, shifted: Value, quarters: float) -> Value:
    """The sine of r with the sign of ``(-1)^n``, where n is in the lowest bits of ``shifted``."""
    format_ = format_of(x)
    odd = L.bitcast(shifted, format_.unsigned) << (8 * format_.dtype.size - 1)
    angle = flip_sign(L, r, odd)

    def exact(large: Value) -> list[Value]:
        return [L.convert(_wrapped(L, L.select(large, x, LIMIT[format_]), quarters), format_.dtype)]

    (angle,) = replace_lanes(L, _beyond(L, x) & (L.absolute(x) < INFINITY), [angle], exact)
    square = angle * angle
    y = L.absolute(L.fma(angle * square, L.polynomial(square, SINE[format_]), angle))
    # Rounding may give the number next to 1, which has no arcsine. The comparison is false for NaN, which stays.
    return L.copysign(L.select(y > 1.0, L.constant(1.0, x.dtype), y), angle)


def _subtract_multiple(L: Lanes, x: Value, n: Value) -> Value:
    """``x - n pi`` with one rounding error: every step but the last is exact, or its error is negligible."""
    for part in PI[format_of(x)]:
        x = L.fma(n, -part, x)
    return x


def sin(L: Lanes, x: Value) -> Value:
    shifter = format_of(x).shifter
    shifted = L.fma(x, INVERSE_PI, shifter)
    return _sine(L, x, _subtract_multiple(L, x, shifted - shifter), shifted, 0.0)


def cos(L: Lanes, x: Value) -> Value:
    """``cos(x) = sin(x + pi / 2)``; here n is half an odd number."""
    shifter = format_of(x).shifter
    shifted = L.fma(x, INVERSE_PI, 0.5) + shifter
    return _sine(L, x, _subtract_multiple(L, x, (shifted - shifter) - 0.5), shifted, 1.0)


def tan(L: Lanes, x: Value) -> Value:
    format_ = format_of(x)
    first, second, third = (part / 2 for part in PI[format_])
    shifted = L.fma(x, 2.0 * INVERSE_PI, format_.shifter)
    n = shifted - format_.shifter
    start = L.fma(n, -first, x)
    # Close to a pole the relative error of the result is that of r, so the rounding error of r is saved.
    product = two_product(L, n, L.constant(second, x.dtype))
    r = start - product.high
    lost = L.fma(n, -third, ((start - r) - product.high) - product.low)
    odd = L.bitcast(L.bitcast(shifted, format_.unsigned) & 1, format_.signed)

    def exact(large: Value) -> list[Value]:
        angle, is_odd = _quarter_angle(L, L.select(large, x, LIMIT[format_]))
        return [angle.high, angle.low, L.select(is_odd, L.constant(1, format_.signed), 0)]

    large = _beyond(L, x) & (L.absolute(x) < INFINITY)
    r, lost, odd = replace_lanes(L, large, [r, lost, odd], exact)
    y = _tangent(L, Pair(r, lost), L.not_equal(odd, 0))
    return L.select(L.equal(x, 0.0), x, y)


def _tangent(L: Lanes, angle: Pair, odd: Value) -> Value:
    """The tangent of an angle in ``[-pi/4, pi/4]``; in lanes where ``odd`` is set, of the angle plus a quarter turn."""
    r = angle.high
    square = r * r
    tail = L.fma(r * square, L.polynomial(square, TANGENT[format_of(r)]), L.fma(square, angle.low, angle.low))
    tangent = fast_two_sum(r, tail)
    inverse = -1.0 / tangent.high
    lost = L.fma(inverse, tangent.low, L.fma(inverse, tangent.high, 1.0))
    return L.select(odd, L.fma(inverse, lost, inverse), tangent.high)


def _quarter_angle(L: Lanes, x: Value) -> tuple[Pair, Value]:
    """The angle and ``odd`` of `_tangent` for large x, from the angles that have its sine and its cosine."""
    dtype = format_of(x).dtype
    sine, cosine = _wrapped(L, x, 0.0), _wrapped(L, x, 1.0)
    odd = L.absolute(sine) > L.absolute(cosine)
    sign = sign_of(L, L.select(odd, -sine, cosine))
    angle = flip_sign(L, L.select(odd, cosine, sine), sign)
    rest = flip_sign(L, L.select(odd, _wrapped(L, x, 1.0, True), _wrapped(L, x, 0.0, True)), sign)
    high = L.convert(angle, dtype)
    low = (angle - L.convert(high, dtypes.float64)) + rest
    return Pair(high, L.convert(low, dtype)), odd
