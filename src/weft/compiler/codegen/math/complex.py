"""Functions of complex64 numbers.

They are computed in float64 and rounded at the end. In float64, squares of float32 numbers are exact and neither
overflow nor underflow, so the textbook formulas need no scaling. Branch cuts, infinite arguments, NaN and the signs of
zeros are those of C17 (annex G); they are selected after the formulas. The inverse functions follow Hull, Fairgrieve
and Tang (Implementing the complex arcsine and arccosine functions using exception handling, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import exponential, hyperbolic, logarithm, trigonometric
from weft.compiler.codegen.math.inverse_trigonometric import arctan2
from weft.compiler.codegen.math.parts import (
    INFINITY,
    Pair,
    at_least,
    at_most,
    fast_two_sum,
    two_product,
    two_sum,
)
from weft.compiler.codegen.values import Complex, Value

ComplexFunction = Callable[[Lanes, Complex], Complex]


def _widen(L: Lanes, z: Complex) -> Complex:
    return Complex(L.convert(z.real, dtypes.float64), L.convert(z.imag, dtypes.float64))


def _narrow(L: Lanes, z: Complex) -> Complex:
    return Complex(L.convert(z.real, dtypes.float32), L.convert(z.imag, dtypes.float32))


def _in_float64(function: ComplexFunction) -> ComplexFunction:
    """A function of complex64 numbers from one whose parts are float64."""

    def rounded(L: Lanes, z: Complex) -> Complex:
        return _narrow(L, function(L, _widen(L, z)))

    rounded.__doc__ = function.__doc__
    return rounded


def _turned(function: ComplexFunction) -> ComplexFunction:
    """``-i f(i z)``: it gives sin from sinh, and so on."""

    def turned(L: Lanes, z: Complex) -> Complex:
        w = function(L, Complex(-z.imag, z.real))
        return Complex(w.imag, -w.real)

    return turned


def _zero(L: Lanes, like: Value) -> Value:
    return L.constant(0.0, like.dtype)


def _size(L: Lanes, z: Complex) -> Value:
    """``abs(z)``, infinite where a part of z is."""
    size = L.sqrt(L.fma(z.real, z.real, z.imag * z.imag))
    infinite = _is_infinite(L, z.real) | _is_infinite(L, z.imag)
    return L.select(infinite, INFINITY, size)


def _is_infinite(L: Lanes, x: Value) -> Value:
    return L.equal(L.absolute(x), INFINITY)


def _is_stray(L: Lanes, angle: Value) -> Value:
    """Whether an angle is infinite or NaN, so that it gives no direction."""
    return ~(L.absolute(angle) < INFINITY)


def absolute(L: Lanes, z: Complex) -> Value:
    size: Value = L.convert(_size(L, _widen(L, z)), dtypes.float32)
    return size


def divide(L: Lanes, z: Complex, w: Complex) -> Complex:
    """``z / w``. Division by zero divides each part by zero; division by infinity gives zero."""
    return _narrow(L, _divide(L, _widen(L, z), _widen(L, w)))


def _divide(L: Lanes, z: Complex, w: Complex) -> Complex:
    infinite = _is_infinite(L, w.real) | _is_infinite(L, w.imag)
    c, d = (L.select(infinite, 0.0, part) for part in (w.real, w.imag))
    square = L.fma(c, c, d * d)
    zero = L.equal(square, 0.0)
    real = L.select(zero, z.real, L.fma(z.real, c, z.imag * d))
    imag = L.select(zero, z.imag, L.fma(z.imag, c, -(z.real * d)))
    square = L.select(infinite, INFINITY, square)
    return Complex(real / square, imag / square)


def reciprocal(L: Lanes, z: Complex) -> Complex:
    one = Complex(L.constant(1.0, dtypes.float32), L.constant(0.0, dtypes.float32))
    return divide(L, one, z)


@_in_float64
def sign(L: Lanes, z: Complex) -> Complex:
    """``z / abs(z)``, and zero for zero."""
    size = _size(L, z)
    size = L.select(L.equal(size, 0.0), 1.0, size)
    return Complex(z.real / size, z.imag / size)


@_in_float64
def sqrt(L: Lanes, z: Complex) -> Complex:
    return _sqrt(L, z)


def _sqrt(L: Lanes, z: Complex) -> Complex:
    unbounded = _is_infinite(L, z.imag)
    root = L.select(unbounded, INFINITY, L.sqrt((_size(L, z) + L.absolute(z.real)) * 0.5))
    other = L.select(L.equal(root, 0.0), _zero(L, root), L.absolute(z.imag) / (root + root))
    other = L.select(unbounded, INFINITY, other)
    left = z.real < 0.0
    real, imag = L.select(left, other, root), L.select(left, root, other)
    return Complex(real, L.copysign(imag, z.imag))


@_in_float64
def rsqrt(L: Lanes, z: Complex) -> Complex:
    one = L.constant(1.0, z.real.dtype)
    return _divide(L, Complex(one, _zero(L, one)), _sqrt(L, z))


@_in_float64
def exp(L: Lanes, z: Complex) -> Complex:
    return _exp(L, z)


def _exp(L: Lanes, z: Complex) -> Complex:
    size = exponential.exp(L, z.real)
    real, imag = size * trigonometric.cos(L, z.imag), size * trigonometric.sin(L, z.imag)
    return _without_direction(L, z, size, Complex(real, imag))


def _without_direction(L: Lanes, z: Complex, size: Value, result: Complex) -> Complex:
    """The exponential of ``z`` from ``result``, mended where z has an infinite real part and no direction: there the
    real part is ``size``."""
    limit = _is_infinite(L, z.real) & _is_stray(L, z.imag)
    imag = L.select(L.equal(z.imag, 0.0), z.imag, result.imag)
    return Complex(L.select(limit, size, result.real), L.select(limit & (z.real < 0.0), 0.0, imag))


@_in_float64
def expm1(L: Lanes, z: Complex) -> Complex:
    """``expm1(x) cos(y) - 2 sin(y / 2)^2 + i exp(x) sin(y)``."""
    size, half = exponential.expm1(L, z.real), trigonometric.sin(L, z.imag * 0.5)
    real = L.fma(size, trigonometric.cos(L, z.imag), -2.0 * half * half)
    imag = exponential.exp(L, z.real) * trigonometric.sin(L, z.imag)
    return _without_direction(L, z, size, Complex(real, imag))


def _log(L: Lanes, z: Complex) -> Complex:
    total = two_sum(z.real * z.real, z.imag * z.imag)
    infinite = _is_infinite(L, z.real) | _is_infinite(L, z.imag)
    real = 0.5 * logarithm.log_pair(L, Pair(L.select(infinite, INFINITY, total.high), total.low))
    return Complex(real, arctan2(L, z.imag, z.real))


log = _in_float64(_log)


@_in_float64
def log2(L: Lanes, z: Complex) -> Complex:
    return _log(L, z) * 1.4426950408889634


@_in_float64
def log10(L: Lanes, z: Complex) -> Complex:
    return _log(L, z) * 0.4342944819032518


@_in_float64
def log1p(L: Lanes, z: Complex) -> Complex:
    return _log1p(L, z)


def _log1p(L: Lanes, z: Complex) -> Complex:
    """``abs(1 + z)^2 = 1 + x (x + 2) + y^2``, in pairs because the terms may cancel."""
    x, y = z.real, z.imag
    product = two_product(L, x, x + 2.0)
    square = two_product(L, y, y)
    total = two_sum(product.high, square.high)
    one = two_sum(L.constant(1.0, x.dtype), total.high)
    one = fast_two_sum(one.high, one.low + (total.low + (product.low + square.low)))
    infinite = _is_infinite(L, x) | _is_infinite(L, y)
    real = 0.5 * logarithm.log_pair(L, Pair(L.select(infinite, INFINITY, one.high), one.low))
    # Close to one, the square is held as 1 + t, because t has more digits than the sum.
    small = L.absolute(total.high) < 0.1
    real = L.select(small, 0.5 * logarithm.log1p(L, L.select(small, total.high + total.low, 0.0)), real)
    return Complex(real, arctan2(L, y, x + 1.0))


def logaddexp(L: Lanes, z: Complex, w: Complex) -> Complex:
    """``log(exp(z) + exp(w))``, with the larger exponential factored out."""
    z, w = _widen(L, z), _widen(L, w)
    swap = z.real < w.real
    larger, smaller = L.select(swap, w, z), L.select(swap, z, w)
    return _narrow(L, larger + _log1p(L, _exp(L, smaller - larger)))


def power(L: Lanes, z: Complex, w: Complex) -> Complex:
    """``exp(w log(z))``, and 1 for an exponent of zero."""
    exponent = _widen(L, w)
    result = _exp(L, exponent * _log(L, _widen(L, z)))
    zero = L.equal(L.absolute(w.real) + L.absolute(w.imag), 0.0)
    return _narrow(L, Complex(L.select(zero, 1.0, result.real), L.select(zero, 0.0, result.imag)))


def _sinh(L: Lanes, z: Complex) -> Complex:
    real = hyperbolic.sinh(L, z.real) * trigonometric.cos(L, z.imag)
    imag = hyperbolic.cosh(L, z.real) * trigonometric.sin(L, z.imag)
    limit = _is_stray(L, z.imag) & (L.equal(z.real, 0.0) | _is_infinite(L, z.real))
    return Complex(L.select(limit, z.real, real), L.select(L.equal(z.imag, 0.0), z.imag, imag))


def _cosh(L: Lanes, z: Complex) -> Complex:
    sine = trigonometric.sin(L, z.imag)
    real = hyperbolic.cosh(L, z.real) * trigonometric.cos(L, z.imag)
    imag = hyperbolic.sinh(L, z.real) * sine
    zero = L.equal(z.imag, 0.0) | L.equal(z.real, 0.0)
    stray = _is_stray(L, z.imag)
    signs = L.copysign(_zero(L, sine), z.real) * L.select(stray, 0.0, sine)
    real = L.select(stray & _is_infinite(L, z.real), INFINITY, real)
    return Complex(real, L.select(zero, signs, imag))


def _cos(L: Lanes, z: Complex) -> Complex:
    return _cosh(L, Complex(-z.imag, z.real))


def _tanh(L: Lanes, z: Complex) -> Complex:
    """``(s sqrt(1 + s^2) (1 + t^2) + i t) / (1 + s^2 (1 + t^2))``, ``s = sinh(x)``, ``t = tan(y)`` (Kahan, 1987)."""
    t = trigonometric.tan(L, z.imag)
    # Where the real part is infinite, the direction does not change the result.
    t = L.select(_is_infinite(L, z.real) & _is_stray(L, z.imag), 0.0, t)
    # Beyond 60 the imaginary part is 0 in float32, and the real part is 1.
    s = hyperbolic.sinh(L, at_most(L, at_least(L, z.real, -60.0), 60.0))
    beta = L.fma(t, t, 1.0)
    square = s * s
    denominator = L.fma(square, beta, 1.0)
    real, imag = beta * s * L.sqrt(1.0 + square) / denominator, t / denominator
    return Complex(L.select(L.equal(z.real, 0.0), z.real, real), L.select(L.equal(z.imag, 0.0), z.imag, imag))


sinh, cosh, tanh = _in_float64(_sinh), _in_float64(_cosh), _in_float64(_tanh)
sin, cos, tan = _in_float64(_turned(_sinh)), _in_float64(_cos), _in_float64(_turned(_tanh))


def _arcsin_parts(L: Lanes, z: Complex) -> tuple[Value, Value]:
    """For ``x = abs(z.real)``: q with ``tan(asin(z).real) = x / q``, and ``abs(asin(z).imag)``.

    ``a = (abs(z + 1) + abs(z - 1)) / 2`` is at least 1 and at least x; its distance to both is computed without
    cancellation.
    """
    x, y = L.absolute(z.real), L.absolute(z.imag)
    square = y * y
    plus, minus = x + 1.0, L.absolute(x - 1.0)
    right, left = L.sqrt(L.fma(plus, plus, square)), L.sqrt(L.fma(minus, minus, square))
    beyond = 0.5 * (square / (right + plus) + L.select(square > 0.0, square / (left + minus), 0.0))
    above = beyond + at_least(L, x - 1.0, 0.0)
    below = beyond + at_least(L, 1.0 - x, 0.0)
    q = L.sqrt(below * (above + plus))
    height = logarithm.log1p(L, above + L.sqrt(above * (above + 2.0)))
    return q, L.select((x >= HUGE) | (y >= HUGE), INFINITY, height)


# Replaces infinity where a direction is computed: its square is finite.
HUGE = 1e150
QUARTER_TURN = math.pi / 2


def _bounded(L: Lanes, z: Complex) -> Complex:
    real, imag = (at_most(L, at_least(L, part, -HUGE), HUGE) for part in (z.real, z.imag))
    return Complex(real, imag)


def _arcsin(L: Lanes, z: Complex) -> Complex:
    z = _bounded(L, z)
    q, height = _arcsin_parts(L, z)
    real = L.select(L.equal(z.real, 0.0), z.real, arctan2(L, z.real, q))
    return Complex(real, L.copysign(height, z.imag))


@_in_float64
def arccos(L: Lanes, z: Complex) -> Complex:
    z = _bounded(L, z)
    q, height = _arcsin_parts(L, z)
    real = L.select(L.equal(z.real, 0.0), QUARTER_TURN, arctan2(L, q, z.real))
    return Complex(real, -L.copysign(height, z.imag))


@_in_float64
def arccosh(L: Lanes, z: Complex) -> Complex:
    z = _bounded(L, z)
    q, height = _arcsin_parts(L, z)
    angle = L.copysign(arctan2(L, q, z.real), z.imag)
    # By C17 (defect report 471) the angle on the imaginary axis is known even if the imaginary part is NaN, as for
    # arccos.
    on_axis = L.equal(z.real, 0.0) & L.is_nan(z.imag)
    return Complex(height, L.select(on_axis, L.constant(QUARTER_TURN, angle.dtype), angle))


def _arctanh(L: Lanes, z: Complex) -> Complex:
    z = _bounded(L, z)
    x, y = L.absolute(z.real), z.imag
    minus, plus = 1.0 - x, 1.0 + x
    square = y * y
    real = 0.25 * logarithm.log1p(L, 4.0 * x / L.fma(minus, minus, square))
    imag = 0.5 * arctan2(L, y + y, L.fma(minus, plus, -square))
    upright = L.absolute(y) >= HUGE
    real = L.select(L.equal(x, 0.0) | (x >= HUGE) | upright, 0.0, real)
    imag = L.select(upright, L.copysign(L.constant(QUARTER_TURN, y.dtype), y), imag)
    return Complex(L.copysign(real, z.real), imag)


arcsin, arcsinh = _in_float64(_arcsin), _in_float64(_turned(_arcsin))
arctanh, arctan = _in_float64(_arctanh), _in_float64(_turned(_arctanh))
