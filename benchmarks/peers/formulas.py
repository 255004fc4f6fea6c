"""Formulas of scientists: long elementwise programs, written once for all peers.

A formula takes arrays and the functions of a peer (`sqrt`, `exp`, `log`, `erf`, `roll`, and `replaced`, which returns
an array with other values at an index). `FORMULAS` has the range and the shape of each array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import Floats

Formula = Callable[..., Any]
Range = tuple[float, float, tuple[int, ...]]

GRID, DEPTHS, MILLION, SEA = (200, 200, 25), (25,), (1_000_000,), (500, 500)
ORBIT_STEPS, REACTION_STEPS, WATER_STEPS, PATTERN_STEPS = 10, 40, 20, 10
RING_STEPS, TREE_STEPS = 20, 100
STEP = 0.01
DEGREES = (8, 7, 5)


def horner(x: Any, *coefficients: Any) -> Any:
    """A polynomial, the constant coefficient first."""
    result = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        result = coefficient + x * result
    return result


def seawater(xp: Any, s: Any, t: Any, p: Any) -> Any:
    """The density of seawater by salinity, temperature and pressure (EOS-80: Unesco technical papers in marine science
    44, 1983)."""
    root = xp.sqrt(s)
    water = horner(t, 999.842594, 6.793952e-2, -9.095290e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9)
    a = horner(t, 8.24493e-1, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9)
    b = horner(t, -5.72466e-3, 1.0227e-4, -1.6546e-6)
    surface = water + s * (a + root * b + s * 4.8314e-4)
    bulk = horner(t, 19652.21, 148.4206, -2.327105, 1.360477e-2, -5.155288e-5)
    bulk = bulk + s * horner(t, 54.6746, -0.603459, 1.09987e-2, -6.1670e-5)
    bulk = bulk + s * root * horner(t, 7.944e-2, 1.6483e-2, -5.3009e-4)
    first = horner(t, 3.239908, 1.43713e-3, 1.16092e-4, -5.77905e-7)
    first = first + s * (horner(t, 2.2838e-3, -1.0981e-5, -1.6078e-6) + root * 1.91075e-4)
    second = horner(t, 8.50935e-5, -6.12293e-6, 5.2787e-8) + s * horner(t, -9.9348e-7, 2.0816e-8, 9.1697e-10)
    return surface / (1 - p / (bulk + p * (first + p * second)))


def polynomials(xp: Any, x: Any, y: Any, z: Any) -> Any:
    """The ratio of two polynomials of three variables, of 430 operations together."""

    def along_x(phase: float, count: int) -> Any:
        return horner(x, *[math.cos(phase * power) / 8 for power in range(count)])

    def one(phase: float) -> Any:
        degree_x, degree_y, degree_z = DEGREES
        planes = []
        for k in range(degree_z):
            lines = [along_x(phase + j + 9 * k, degree_x - j - k) for j in range(degree_y - k)]
            planes.append(horner(y, *lines))
        return horner(z, *planes)

    below = one(2.3)
    return one(1.7) / (1.5 + below * below)


def options(xp: Any, spot: Any, strike: Any, years: Any, rate: Any, volatility: Any) -> list[Any]:
    """Prices of European options and their sensitivities, after Black and Scholes."""
    root = volatility * xp.sqrt(years)
    upper = (xp.log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / root
    lower = upper - root
    above, below = (0.5 * (1 + xp.erf(d * math.sqrt(0.5))) for d in (upper, lower))
    discounted = strike * xp.exp(-rate * years)
    call = spot * above - discounted * below
    density = xp.exp(-0.5 * upper * upper) / math.sqrt(2 * math.pi)
    vega = spot * density * xp.sqrt(years)
    theta = -(spot * density * volatility) / (2 * xp.sqrt(years)) - rate * discounted * below
    return [call, call - spot + discounted, above, density / (spot * root), vega, theta]


def orbit(xp: Any, x: Any, y: Any) -> list[Any]:
    """Runge-Kutta steps of the predator-prey equations."""

    def change(x: Any, y: Any) -> tuple[Any, Any]:
        return x * (1.1 - 0.4 * y), y * (0.1 * x - 0.4)

    for _ in range(ORBIT_STEPS):
        a = change(x, y)
        b = change(x + STEP / 2 * a[0], y + STEP / 2 * a[1])
        c = change(x + STEP / 2 * b[0], y + STEP / 2 * b[1])
        d = change(x + STEP * c[0], y + STEP * c[1])
        x, y = (u + STEP / 6 * (p + 2 * q + 2 * r + s) for u, p, q, r, s in zip((x, y), a, b, c, d, strict=True))
    return [x, y]


def reaction(xp: Any, u: Any) -> Any:
    """Explicit steps of a reaction with two stable states."""
    for _ in range(REACTION_STEPS):
        u = u + STEP * (u * (1 - u) * (u - 0.25))
    return u


INSIDE = (slice(1, -1), slice(1, -1))
GRAVITY, TURNING, SPACING = 9.81, 1e-4, 1e3


def periodic(xp: Any, x: Any) -> Any:
    """An array whose border repeats the opposite rows and columns inside."""
    for border, opposite in ((0, -2), (-1, 1)):
        x = xp.replaced(x, (border, slice(None)), x[opposite, :])
        x = xp.replaced(x, (slice(None), border), x[:, opposite])
    return x


def water(xp: Any, h: Any, u: Any, v: Any) -> list[Any]:
    """Explicit steps of shallow water on a rotating plane: the height, and the velocities on the edges of the cells."""
    for _ in range(WATER_STEPS):
        here = h[1:-1, 1:-1]
        east = periodic(xp, xp.replaced(h, INSIDE, 0.5 * (here + h[1:-1, 2:]) * u[1:-1, 1:-1]))
        north = periodic(xp, xp.replaced(h, INSIDE, 0.5 * (here + h[2:, 1:-1]) * v[1:-1, 1:-1]))
        leaving = east[1:-1, 1:-1] - east[1:-1, :-2] + north[1:-1, 1:-1] - north[:-2, 1:-1]
        h = periodic(xp, xp.replaced(h, INSIDE, here - leaving / SPACING))
        across = 0.25 * (v[1:-1, 1:-1] + v[:-2, 1:-1] + v[1:-1, 2:] + v[:-2, 2:])
        along = 0.25 * (u[1:-1, 1:-1] + u[1:-1, :-2] + u[2:, 1:-1] + u[2:, :-2])
        here = h[1:-1, 1:-1]
        u_change = TURNING * across - GRAVITY / SPACING * (h[1:-1, 2:] - here)
        v_change = -TURNING * along - GRAVITY / SPACING * (h[2:, 1:-1] - here)
        u = periodic(xp, xp.replaced(u, INSIDE, u[1:-1, 1:-1] + u_change))
        v = periodic(xp, xp.replaced(v, INSIDE, v[1:-1, 1:-1] + v_change))
    return [h, u, v]


def patterns(xp: Any, u: Any, v: Any) -> list[Any]:
    """Explicit steps of a reaction of two substances that diffuse on a periodic grid, after Gray and Scott."""

    def spread(x: Any) -> Any:
        return xp.roll(x, 1, 0) + xp.roll(x, -1, 0) + xp.roll(x, 1, 1) + xp.roll(x, -1, 1) - 4 * x

    for _ in range(PATTERN_STEPS):
        rate = u * v * v
        u, v = u + 0.16 * spread(u) - rate + 0.035 * (1 - u), v + 0.08 * spread(v) + rate - 0.1 * v
    return [u, v]


def rings(xp: Any, heat: Any) -> Any:
    """Explicit steps of heat that spreads along rings, each of which is a row."""
    for _ in range(RING_STEPS):
        heat = heat + 0.1 * (xp.roll(heat, 1, 1) - 2 * heat + xp.roll(heat, -1, 1))
    return heat


def lattice(_xp: Any, spot: Any, moved: Any) -> Any:
    """Prices of options on a binomial tree, after Cox, Ross and Rubinstein; ``moved`` are the prices at its leaves, in
    parts of the first one."""
    missing = 100 - spot[:, None] * moved
    value = 0.5 * (missing + abs(missing))
    for _ in range(TREE_STEPS):
        value = 0.9997 * (0.503 * value[:, 1:] + 0.497 * value[:, :-1])
    return value[:, 0]


FORMULAS: dict[str, tuple[Formula, list[Range]]] = {
    "seawater": (seawater, [(30, 40, GRID), (0, 30, GRID), (0, 500, DEPTHS)]),
    "polynomials": (polynomials, [(0, 1, GRID), (0, 1, GRID), (0, 1, DEPTHS)]),
    "options": (
        options,
        [(50, 150, MILLION), (50, 150, MILLION), (0.1, 2, MILLION), (0.01, 0.05, MILLION), (0.1, 0.5, MILLION)],
    ),
    "orbit": (orbit, [(5, 10, MILLION), (2, 5, MILLION)]),
    "reaction": (reaction, [(0, 1, MILLION)]),
    "patterns": (patterns, [(0, 1, SEA), (0, 1, SEA)]),
    "rings": (rings, [(0, 1, (4000, 256))]),
    "lattice": (lattice, [(90, 110, (2000,)), (0.5, 2, (TREE_STEPS + 1,))]),
    "water": (water, [(99, 101, SEA), (-1, 1, SEA), (-1, 1, SEA)]),
}


def formula_data(name: str) -> tuple[Formula, list[Floats]]:
    """A formula and its arguments: random numbers of these ranges and shapes."""
    function, ranges = FORMULAS[name]
    random = np.random.default_rng(0)
    return function, [random.uniform(low, high, shape).astype(np.float32) for low, high, shape in ranges]
