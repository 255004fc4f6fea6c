"""Functions for random numbers, computed by the formulas that MLX uses on Linux, so that random numbers have MLX's
bits.

Each is only for the arguments that occur there, and less accurate than the public function of that name. In float64, in
which MLX has no random numbers, the public functions are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft import dtypes
from weft.primitives.base import Elementwise
from weft.primitives.unary import erf, erfinv, exp, is_real_floating, log, log1p

__all__ = ["random_erf", "random_erfinv", "random_exp", "random_log", "random_log1p"]

INFINITY = float("inf")
LN2 = 0.6931471805599453

# logf of Arm's "Optimized Routines" (2018), which is also that of glibc since 2.28: it cuts the octave from 0.699 on
# into 16 parts. For a number c in the middle of each there are 1 / c and log(c); the polynomial is that of
# (log(1 + r) - r) / r^2.
LOG_START = 0x3F330000
LOG_INVERSES = (
    *(1.398907162146528, 1.3403141896637998, 1.286432210124115, 1.2367150214269895),
    *(1.1906977166711752, 1.1479821020556429, 1.1082251448272158, 1.0711297413057381),
    *(1.036437278977283, 1.0, 0.9492859795739057, 0.8951049428609004),
    *(0.8476821620351103, 0.8050314851692001, 0.7664671008843108, 0.731428603316328),
)
LOG_CENTRES = (
    *(-0.33569133332882284, -0.2929040563774074, -0.2518726580937369, -0.21245868807117255),
    *(-0.17453945183745634, -0.1380057072319758, -0.10275976698545139, -0.06871392447020525),
    *(-0.0357891387398228, 0.0, 0.05204517742929496, 0.11081431298787942),
    *(0.1652495223695143, 0.21687389031699977, 0.2659635028121397, 0.3127556664073557),
)
LOG_POLYNOMIAL = (-0.25089342214237154, 0.333456765744066, -0.4999997485802103)

# log1pf of fdlibm (Sun Microsystems, 1993), the one of glibc before 2.41: coefficients of z = s^2 with s = f / (2 + f)
LOG1P_POLYNOMIAL = (0.14798199, 0.15313838, 0.18183573, 0.22222199, 0.2857143, 0.4, 0.6666667)
LOG1P_SPLIT = -0.29289341
SQRT_HALF_FRACTION = 0x3504F7
LN2_HIGH, LN2_LOW = 0.69313812, 9.0580006e-06

# N. Juffa's erfinv (2016), in the logarithm of 1 - x^2: in the middle, and where it is below -6.125
ERFINV_SPLIT = -6.125
ERFINV_CENTRAL = (
    *(5.43877832e-9, 1.43285448e-7, 1.22774793e-6, 1.12963626e-7, -5.61530760e-5),
    *(-1.47697632e-4, 2.31468678e-3, 1.15392581e-2, -2.32015476e-1, 8.86226892e-1),
)
ERFINV_TAIL = (
    *(3.03697567e-10, 2.93243101e-8, 1.22150334e-6, 2.84108955e-5, 3.93552968e-4),
    *(3.02698812e-3, 4.83185798e-3, -2.64646143e-1, 8.40016484e-1),
)

# Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), formula 7.1.26
ERF_FACTOR = 0.3275911
ERF_POLYNOMIAL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

# exp2f of Cephes (S. Moshier, 1992)
LOG2_E = 1.442695
SHIFTER = 1.5 * 2.0**23  # added to a small integer, it leaves the integer in the lowest bits
EXP2_POLYNOMIAL = (
    *(1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2),
    *(2.402264791363012e-1, 6.931472028550421e-1, 1.0),
)


def _positive_log(L: Any, x: Any) -> Any:
    """``log(x)`` of normal positive numbers."""
    distance = L.bitcast(x, dtypes.uint32) - LOG_START
    part = (distance >> 19) & 15
    exponent = L.bitcast(distance, dtypes.int32) >> 23
    scaled = L.bitcast(L.bitcast(x, dtypes.uint32) - (distance & 0xFF800000), dtypes.float32)
    inverse, centre = (L.table(part, numbers) for numbers in (LOG_INVERSES, LOG_CENTRES))
    r = L.fma(L.convert(scaled, dtypes.float64), inverse, -1.0)
    rest = L.polynomial(r, LOG_POLYNOMIAL)
    whole = L.fma(L.convert(exponent, dtypes.float64), LN2, centre)
    return L.convert(L.fma(rest, r * r, whole + r), dtypes.float32)


def _log(L: Any, x: Any) -> Any:
    """``log(x)`` for normal positive numbers, zero, infinity and NaN."""
    y = L.select(x < INFINITY, _positive_log(L, x), x)
    return L.select(L.equal(x, 0.0), -INFINITY, y)


def _log1p(L: Any, x: Any) -> Any:
    """``log(1 + x)`` for x from -1 (excluded) to 0: with ``1 + x = 2^k (1 + f)`` it is ``k ln 2 + log(1 + f)``."""
    total = x + 1.0
    lost = (x - (total - 1.0)) / total
    bits = L.bitcast(total, dtypes.int32)
    fraction = bits & 0x007FFFFF
    is_upper = fraction >= SQRT_HALF_FRACTION
    exponent = (bits >> 23) - L.select(is_upper, L.constant(126, dtypes.int32), 127)
    encoded = fraction | L.select(is_upper, L.constant(0x3F000000, dtypes.int32), 0x3F800000)
    f = L.bitcast(encoded, dtypes.float32) - 1.0
    k = L.convert(exponent, dtypes.float32)
    is_small = x > LOG1P_SPLIT
    f, k, lost = (L.select(is_small, small, other) for small, other in ((x, f), (0.0, k), (0.0, lost)))
    square = f * 0.5 * f
    s = f / (f + 2.0)
    z = s * s
    series = L.constant(LOG1P_POLYNOMIAL[0], dtypes.float32)
    for coefficient in LOG1P_POLYNOMIAL[1:]:
        series = series * z + coefficient
    rest = (square - (s * (square + series * z) + (k * LN2_LOW + lost))) - f
    return L.select(L.equal(x, 0.0), x, k * LN2_HIGH - rest)


def _exp_of_negative(L: Any, x: Any) -> Any:
    """``exp(x)`` for x up to 0: ``2^n 2^f`` with ``x log2(e) = n + f``; zero where ``2^n`` would be subnormal."""
    power = x * LOG2_E
    power = L.select(power < -127.0, -127.0, power)
    n = L.floor(power + 0.5)
    bits = (L.bitcast(n + SHIFTER, dtypes.uint32) + 127) << 23
    return L.bitcast(bits, dtypes.float32) * L.polynomial(power - n, EXP2_POLYNOMIAL)


def _erf(L: Any, x: Any) -> Any:
    t = 1.0 / L.fma(L.absolute(x), ERF_FACTOR, 1.0)
    y = L.fma(-_exp_of_negative(L, -x * x) * t, L.polynomial(t, ERF_POLYNOMIAL), 1.0)
    return L.select(x > 0.0, y, -y)


def _erfinv(L: Any, x: Any) -> Any:
    """The inverse of ``erf`` from -1 to 1."""
    rest = L.fma(x, -x, 1.0)
    t = L.select(L.equal(rest, 0.0), -INFINITY, _positive_log(L, rest))
    central, tail = (L.polynomial(t, coefficients) for coefficients in (ERFINV_CENTRAL, ERFINV_TAIL))
    return x * L.select(t < ERFINV_SPLIT, tail, central)


def _random_function(public: Elementwise, formula: Callable[[Any, Any], Any]) -> Elementwise:
    """``public`` by another formula for all dtypes but float64, with the derivative of ``public``."""

    def lanes(L: Any, x: Any) -> Any:
        return public.lanes(L, x) if x.dtype is dtypes.float64 else formula(L, L.convert(x, dtypes.float32))

    return Elementwise(f"random_{public.name}", lanes, public.partials, accepts=is_real_floating, cheap=False)


random_log: Elementwise = _random_function(log, _log)
random_log1p: Elementwise = _random_function(log1p, _log1p)
random_exp: Elementwise = _random_function(exp, _exp_of_negative)
random_erf: Elementwise = _random_function(erf, _erf)
random_erfinv: Elementwise = _random_function(erfinv, _erfinv)
