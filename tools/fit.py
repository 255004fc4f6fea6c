"""Regenerates the polynomial coefficients of ``weft.compiler.codegen.math``.

Each table is the minimax polynomial of a weighted error, computed by Remez' exchange algorithm in 50-digit arithmetic.
The coefficients are then rounded to the precision of their use, beginning with the lowest power. After each rounding
the remaining coefficients are fitted again, so that they compensate for it.

Run ``python tools/fit.py`` for everything, or with names of tables: ``python tools/fit.py exp sin``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

mp.dps = 50
Function = Callable[[Any], Any]
GRID = 1200


@dataclass(frozen=True)
class Fit:
    """``function(t)`` on an interval as a polynomial of ``count`` coefficients; errors are multiplied by ``weight``."""

    function: Function
    interval: tuple[Any, Any]
    counts: tuple[int, int]  # how many coefficients for float32 and for float64
    weight: Function = lambda t: mpf(1)
    around_zero: bool = False  # the interval is symmetric around zero, where all powers but the first vanish


def chebyshev_grid(low: Any, high: Any, count: int) -> list[Any]:
    """Points that are denser towards both ends of the interval."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle - half * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]


def remez(values: list[Any], weights: list[Any], grid: list[Any], powers: range) -> list[Any]:
    """Coefficients of ``powers`` with the smallest maximum of weighted errors on the grid."""
    size = len(powers)
    columns = [[point**power for power in powers] for point in grid]
    chosen = [round((1 - mp.cos(mp.pi * k / size)) / 2 * (len(grid) - 1)) for k in range(size + 1)]
    if len(set(chosen)) != len(chosen):
        chosen = [k * (len(grid) - 1) // size for k in range(size + 1)]
    coefficients: list[Any] = []
    for _ in range(40):
        system, right = mp.matrix(size + 1, size + 1), mp.matrix(size + 1, 1)
        for row, index in enumerate(chosen):
            for column in range(size):
                system[row, column] = columns[index][column]
            system[row, size] = (-1) ** row / weights[index]
            right[row] = values[index]
        solution = mp.lu_solve(system, right)
        coefficients = [solution[k] for k in range(size)]
        errors = [
            w * (value - mp.fdot(coefficients, column))
            for w, value, column in zip(weights, values, columns, strict=True)
        ]
        largest = max(abs(error) for error in errors)
        level = abs(solution[size])
        if largest <= level * mpf("1.001") or largest < mpf(10) ** -40:
            break
        chosen = exchange(errors, size + 1)
    return coefficients


def least_squares(values: list[Any], weights: list[Any], grid: list[Any], powers: range) -> list[Any]:
    """Coefficients with the smallest sum of squared errors: close to those of `remez`, and defined for every set of
    powers."""
    step = max(1, len(grid) // (5 * len(powers)))
    chosen = range(0, len(grid), step)
    scale = max(abs(point) for point in grid)
    system = mp.matrix([[weights[k] * (grid[k] / scale) ** power for power in powers] for k in chosen])
    right = mp.matrix([weights[k] * values[k] for k in chosen])
    solution, _ = mp.qr_solve(system, right)
    return [coefficient / scale**power for coefficient, power in zip(solution, powers, strict=True)]


def exchange(errors: list[Any], count: int) -> list[int]:
    """The indices of ``count`` alternating extrema with the largest errors."""
    peaks: list[int] = []
    for index, error in enumerate(errors):
        if peaks and (errors[peaks[-1]] >= 0) == (error >= 0):
            if abs(error) > abs(errors[peaks[-1]]):
                peaks[-1] = index
        else:
            peaks.append(index)
    while len(peaks) > count:
        if len(peaks) - count >= 2:
            pair = min(range(len(peaks) - 1), key=lambda k: max(abs(errors[peaks[k]]), abs(errors[peaks[k + 1]])))
            del peaks[pair : pair + 2]
        else:
            del peaks[0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1]
    if len(peaks) < count:
        raise ArithmeticError(f"{len(peaks)} alternating extrema where {count} are needed")
    return peaks


def rounded(value: Any, double: bool) -> Any:
    number = float(value)
    return mpf(number if double else struct.unpack("<f", struct.pack("<f", number))[0])


def fit(spec: Fit, double: bool) -> tuple[list[Any], Any]:
    """Rounded coefficients, the lowest power first, and the largest weighted error."""
    low, high = spec.interval
    grid = [point for point in chebyshev_grid(mpf(low), mpf(high), GRID) if point != 0]
    values, weights = [spec.function(t) for t in grid], [spec.weight(t) for t in grid]
    count = spec.counts[double]
    done: list[Any] = []
    # From the eighth coefficient on, rounding has hardly any effect, so all of these are rounded at once.
    for power in range(count):
        solve = least_squares if power and spec.around_zero else remez
        coefficients = solve(values, weights, grid, range(power, count))
        keep = coefficients if power == 8 else coefficients[:1]
        for offset, coefficient in enumerate(keep):
            done.append(rounded(coefficient, double))
            values = [v - done[-1] * t ** (power + offset) for v, t in zip(values, grid, strict=True)]
        if len(done) == count:
            break
    return done, max(abs(w * v) for w, v in zip(weights, values, strict=True))


def text(value: Any, double: bool) -> str:
    """The shortest decimal that rounds to the coefficient."""
    if double:
        return repr(float(value))
    for digits in range(6, 10):
        short = f"{float(value):.{digits}g}"
        if rounded(mpf(short), False) == value:
            return repr(float(short))
    raise AssertionError(value)


def odd(function: Function) -> Function:
    """``function(x) / x`` in the variable ``s = x * x``."""
    return lambda s: function(mp.sqrt(s)) / mp.sqrt(s)


LN2, SLACK = mp.log(2), mpf("1.001")
EIGHTH = (mp.pi / 4 * mpf("1.005")) ** 2
# These middles are such that the first coefficient is close to a number of the format.
ERF_SPLIT, ERF_MIDDLE, ERF_END = mpf(1), mpf("2.4375"), mpf("3.92")
ERF_SPLIT64, ERF_MIDDLE64, ERF_END64 = mpf("1.125"), mpf("3.5546875"), mpf("5.93")


def erf_small(split: Any, counts: tuple[int, int]) -> Fit:
    return Fit(lambda s: odd(mp.erf)(s) - 1, (0, split**2), counts, lambda s: 1 / odd(mp.erf)(s))


def erf_large(split: Any, middle: Any, end: Any, counts: tuple[int, int]) -> Fit:
    return Fit(lambda u: mp.erf(u + middle), (split - middle, end - middle), counts, around_zero=True)


def erfinv_ratio(w: Any) -> Any:
    """``erfinv(x) / x`` for ``w = -log(1 - x^2)``, by Halley's method on erfc so that it is exact close to x = 1."""
    if abs(w) < mpf(10) ** -35:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    complement = mp.exp(-w) / (1 + x)
    y = mp.erfinv(x) if x < mpf("0.9") else mp.sqrt(w)
    for _ in range(60):
        step = (mp.erfc(y) - complement) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        step = step / (1 - y * step) if abs(y * step) < 0.5 else step
        y += step
        if abs(step) < mpf(10) ** -38:
            break
    return y / x


def erfinv_central(middle: Any, split: Any, counts: tuple[int, int]) -> Fit:
    ratio = erfinv_ratio
    return Fit(lambda u: ratio(u + middle), (-middle, split - middle), counts, lambda u: 1 / ratio(u + middle), True)


def erfinv_tail(middle: Any, low: Any, high: Any, counts: tuple[int, int]) -> Fit:
    """``erfinv(x) / x`` in the variable ``u = sqrt(w) - middle``."""
    ratio = erfinv_ratio
    interval = mp.sqrt(low) - middle, mp.sqrt(high) - middle
    return Fit(
        lambda u: ratio((u + middle) ** 2), interval, counts, lambda u: 1 / ratio((u + middle) ** 2), around_zero=True
    )


def erfinv_tail_rest(middle: Any, low: Any, high: Any, counts: tuple[int, int]) -> Fit:
    """``erfinv(x) - sqrt(w)`` in the variable ``u = 1 / sqrt(w) - middle``, with errors relative to erfinv."""

    def erfinv(u: Any) -> Any:
        w = (u + middle) ** -2
        return erfinv_ratio(w) * mp.sqrt(-mp.expm1(-w))

    interval = 1 / mp.sqrt(high) - middle, 1 / mp.sqrt(low) - middle
    return Fit(lambda u: erfinv(u) - 1 / (u + middle), interval, counts, lambda u: 1 / erfinv(u), around_zero=True)


FITS = {
    # exp(r) = 1 + r + r^2 Q(r) for |r| <= ln(2) / 2
    "exp": Fit(
        lambda r: (mp.exp(r) - 1 - r) / r**2, (-LN2 / 2 * SLACK, LN2 / 2 * SLACK), (5, 10), lambda r: r**2 / mp.exp(r)
    ),
    # log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2)
    "log": Fit(
        lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3,
        (mp.sqrt(0.5) - 1, mp.sqrt(2) - 1),
        (8, 19),
        lambda f: f**3 / mp.log1p(f),
    ),
    # sin(r) = r + r s P(s), s = r^2, for abs(r) <= pi/2
    "sin": Fit(lambda s: (odd(mp.sin)(s) - 1) / s, (0, 4 * EIGHTH), (5, 9), lambda s: s / odd(mp.sin)(s)),
    # tan(r) = r + r s P(s), s = r^2, for abs(r) <= pi/4
    "tan": Fit(lambda s: (odd(mp.tan)(s) - 1) / s, (0, EIGHTH), (7, 14), lambda s: s / odd(mp.tan)(s)),
    # erf(x) = x + x P(x^2) below the split
    "erf_small": erf_small(ERF_SPLIT, (7, 0)),
    "erf_small64": erf_small(ERF_SPLIT64, (0, 14)),
    # erf(x) = P(x - middle) from there to where it rounds to 1
    "erf_large": erf_large(ERF_SPLIT, ERF_MIDDLE, ERF_END, (16, 0)),
    "erf_large64": erf_large(ERF_SPLIT64, ERF_MIDDLE64, ERF_END64, (0, 37)),
    # erfinv(x) = x P(w - middle) for w = -log(1 - x^2) below the split, else x P(sqrt(w) - middle), for float64
    # sqrt(w) + P(1 / sqrt(w) - middle)
    "erfinv_central": erfinv_central(mpf("1.578125"), mpf(5), (11, 0)),
    "erfinv_central64": erfinv_central(mpf("2.8828125"), mpf(6), (0, 26)),
    "erfinv_tail": erfinv_tail(mpf("3.203125"), mpf(5), mpf("16.7"), (11, 0)),
    "erfinv_tail64": erfinv_tail_rest(mpf("0.28515625"), mpf(6), mpf("36.1"), (0, 26)),
    # arctan(q) = q + q s P(s), s = q^2, for abs(q) <= 1
    "arctan": Fit(lambda s: (odd(mp.atan)(s) - 1) / s, (0, 1), (9, 22), lambda s: s / odd(mp.atan)(s)),
    # arcsin(x) = x + x s P(s), s = x^2, for abs(x) <= 1/2
    "arcsin": Fit(lambda s: (odd(mp.asin)(s) - 1) / s, (0, mpf("0.25")), (5, 12), lambda s: s / odd(mp.asin)(s)),
    # sinh(x) = x + x s P(s), s = x^2, for abs(x) <= 1
    "sinh": Fit(lambda s: (odd(mp.sinh)(s) - 1) / s, (0, 1), (4, 8), lambda s: s / odd(mp.sinh)(s)),
    # tanh(x) = x + x s P(s), s = x^2
    "tanh": Fit(lambda s: (odd(mp.tanh)(s) - 1) / s, (0, mpf("0.64")), (6, 13), lambda s: s / odd(mp.tanh)(s)),
    # log2((1 + s) / (1 - s)) = s (2 / ln 2 + s^2 (2 / (3 ln 2) + s^2 P(s^2))), abs(s) <= (sqrt(2) - 1) / (sqrt(2) + 1)
    "log2_odd": Fit(
        lambda t: (2 * odd(mp.atanh)(t) - 2 - 2 * t / 3) / LN2 / t**2,
        (0, ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2),
        (3, 8),
        lambda t: t**2,
    ),
    # 2^r = 1 + r P(r), abs(r) <= 1/2
    "exp2": Fit(lambda r: (mp.mpf(2) ** r - 1) / r, (-SLACK / 2, SLACK / 2), (6, 12), lambda r: r / mp.mpf(2) ** r),
}


def main() -> None:
    for name in sys.argv[1:] or FITS:
        for double in (False, True):
            if not FITS[name].counts[double]:
                continue
            coefficients, error = fit(FITS[name], double)
            print(f"{name} {'float64' if double else 'float32'}: largest error {mp.nstr(error, 3)}")
            print("    (" + ", ".join(text(c, double) for c in reversed(coefficients)) + ")")


if __name__ == "__main__":
    main()
