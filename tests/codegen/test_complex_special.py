"""Complex functions at infinities, NaN and signed zeros: annex G of C17, where Python's `cmath` follows it."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx

PARTS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, math.inf, -math.inf, math.nan)
POINTS = [complex(*parts) for parts in itertools.product(PARTS, repeat=2)]


def tanh(z: complex) -> complex:
    """`cmath.tanh` gives NaN for both parts where C has since 2017 had a real part of zero."""
    is_turned = z.real == 0 and not math.isfinite(z.imag)
    return complex(z.real, math.nan) if is_turned else cmath.tanh(z)


def tan(z: complex) -> complex:
    w = tanh(complex(-z.imag, z.real))
    return complex(w.imag, -w.real)


def expm1(z: complex) -> complex:
    """exp(z) - 1 with the special values of the array API standard."""
    if z == 0:
        return z
    if z.real == math.inf and not math.isfinite(z.imag):
        return complex(math.inf, math.nan)
    return cmath.exp(z) - 1


def arccosh(z: complex) -> complex:
    """`cmath.acosh` gives two NaN before Python 3.14 where C has since 2017 had an angle."""
    return complex(math.nan, math.pi / 2) if z.real == 0 and math.isnan(z.imag) else cmath.acosh(z)


ORACLES: dict[str, Callable[[complex], complex]] = {
    "exp": cmath.exp,
    "expm1": expm1,
    "log": cmath.log,
    "log10": cmath.log10,
    "sqrt": cmath.sqrt,
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": tan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": tanh,
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "arcsinh": cmath.asinh,
    "arccosh": arccosh,
    "arctanh": cmath.atanh,
}
HYPERBOLIC, CIRCULAR = ("exp", "expm1", "sinh", "cosh", "tanh"), ("sin", "cos", "tan")


def expected(name: str, z: complex) -> complex:
    """The result of `cmath`, or of NumPy where `cmath` raises an error instead."""
    try:
        return ORACLES[name](z)
    except ValueError:
        with np.errstate(all="ignore"):
            return complex(getattr(np, name)(np.complex128(z)))


def signs_are_specified(name: str, z: complex) -> bool:
    """The standard leaves signs open where an argument is NaN or an angle has no direction."""
    angles = [z.imag] if name in HYPERBOLIC else [z.real] if name in CIRCULAR else []
    return not cmath.isnan(z) and all(math.isfinite(angle) for angle in angles)


def agrees(got: float, want: float, with_sign: bool) -> bool:
    if math.isnan(want):
        return math.isnan(got)
    if math.isfinite(want) and want != 0:
        return math.isclose(got, want, rel_tol=1e-6)
    return abs(got) == abs(want) and (not with_sign or math.copysign(1, got) == math.copysign(1, want))


@pytest.mark.parametrize("name", ORACLES)
def test_special_values(name: str) -> None:
    results: Any = np.array(getattr(mx, name)(mx.array(np.array(POINTS, np.complex64))))
    wrong = []
    for z, got in zip(POINTS, results.tolist(), strict=True):
        want, with_sign = expected(name, z), signs_are_specified(name, z)
        if not (agrees(got.real, want.real, with_sign) and agrees(got.imag, want.imag, with_sign)):
            wrong.append((z, got, want))
    assert not wrong, f"argument, result, expected: {wrong}"
