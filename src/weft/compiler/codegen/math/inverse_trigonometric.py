"""arcsin, arccos, arctan, arctan2.

Each is a polynomial on a part of its domain, and follows by symmetry elsewhere. The coefficients are minimax fits
(``tools/fit.py arctan arcsin``).
"""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math.parts import FLOAT32, FLOAT64, Table, flip_sign, format_of, sign_of
from weft.compiler.codegen.values import Value

# pi / 2 as a rounded number and its rounding error
HALF_PI: Table = {
    FLOAT32: (1.5707963705062866, -4.371138828673793e-08),
    FLOAT64: (1.5707963267948966, 6.123233995736766e-17),
}
# arctan(q) = q + q s P(s), s = q^2, for abs(q) <= 1
ARCTAN: Table = {
    FLOAT32: (
        -0.0017812123,
        0.010863634,
        -0.031091068,
        0.05787829,
        -0.083992414,
        0.10950878,
        -0.14264016,
        0.1999853,
        -0.333333,
    ),
    FLOAT64: (
        5.490444164253967e-06,
        -6.898776164296592e-05,
        0.00041272341058235944,
        -0.001570886415488871,
        0.004296883744390129,
        -0.009071909657397553,
        0.015565401855700415,
        -0.02267235831651495,
        0.029208442566937158,
        -0.03461395841922752,
        0.03908091434162733,
        -0.04319360239161803,
        0.0475479365632282,
        -0.052617459944553156,
        0.05882134211831019,
        -0.06666640852117767,
        0.07692305444081629,
        -0.09090908952631915,
        0.11111111105474493,
        -0.1428571428557627,
        0.19999999999998289,
        -0.33333333333333326,
    ),
}
# arcsin(x) = x + x s P(s), s = x^2, for abs(x) <= 1/2
ARCSIN: Table = {
    FLOAT32: (0.042158395, 0.024184741, 0.045469154, 0.074953094, 0.16666752),
    FLOAT64: (
        0.03191359383587318,
        -0.01622627206737467,
        0.019529585159069825,
        0.0065274886006837654,
        0.012169323646650899,
        0.013885218659992577,
        0.017359706428223303,
        0.02237175794279837,
        0.030381959141334652,
        0.04464285682822542,
        0.07500000000337136,
        0.16666666666665408,
    ),
}


def _arctan_of_ratio(L: Lanes, smaller: Value, larger: Value) -> Value:
    """``arctan(smaller / larger)`` for ``0 <= smaller <= larger``."""
    q = smaller / larger
    square = q * q
    return L.fma(q * square, L.polynomial(square, ARCTAN[format_of(q)]), q)


def arctan(L: Lanes, x: Value) -> Value:
    half_pi, rest = HALF_PI[format_of(x)]
    size = L.absolute(x)
    beyond = size > 1.0
    y = _arctan_of_ratio(L, L.select(beyond, 1.0, size), L.select(beyond, size, 1.0))
    return L.copysign(L.select(beyond, half_pi - (y - rest), y), x)


def arctan2(L: Lanes, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), with the special values of C99."""
    half_pi, rest = HALF_PI[format_of(x)]
    height, width = L.absolute(y), L.absolute(x)
    steep = height > width
    smaller, larger = L.select(steep, width, height), L.select(steep, height, width)
    # 0 / 0 and infinity / infinity are NaN, but these points have a direction.
    same = L.equal(smaller, larger)
    numerator = L.select(same, L.select(L.equal(larger, 0.0), 0.0, L.constant(1.0, x.dtype)), smaller)
    angle = _arctan_of_ratio(L, numerator, L.select(same, 1.0, larger))
    angle = L.select(steep, half_pi - (angle - rest), angle)
    angle = L.select(L.bitcast(x, format_of(x).signed) < 0, 2.0 * half_pi - (angle - 2.0 * rest), angle)
    return L.copysign(angle, y)


def _arcsin_parts(L: Lanes, x: Value) -> tuple[Value, Value, Value]:
    """Whether ``abs(x) > 1/2``; a number s; and t with ``arcsin(s) = s + t``.

    s is ``abs(x)`` or, beyond one half, ``sqrt((1 - abs(x)) / 2)``: then ``arccos(abs(x)) = 2 arcsin(s)``.
    """
    size = L.absolute(x)
    beyond = size > 0.5
    square = L.select(beyond, L.fma(size, -0.5, 0.5), size * size)
    s = L.select(beyond, L.sqrt(square), size)
    return beyond, s, s * square * L.polynomial(square, ARCSIN[format_of(x)])


def arcsin(L: Lanes, x: Value) -> Value:
    half_pi, rest = HALF_PI[format_of(x)]
    beyond, s, t = _arcsin_parts(L, x)
    double = 2.0 * s
    high = half_pi - double
    lost = ((half_pi - high) - double) + rest
    y = L.select(beyond, high + L.fma(t, -2.0, lost), s + t)
    return L.copysign(y, x)


def arccos(L: Lanes, x: Value) -> Value:
    half_pi, rest = HALF_PI[format_of(x)]
    beyond, s, t = _arcsin_parts(L, x)
    negative = x < 0.0
    sign = sign_of(L, x)
    near_zero = half_pi - (flip_sign(L, s, sign) + (flip_sign(L, t, sign) - rest))
    double = 2.0 * (s + t)
    near_one = L.select(negative, 2.0 * half_pi - (double - 2.0 * rest), double)
    return L.select(beyond, near_one, near_zero)
