"""Functions of one array, element by element.

Integers and booleans are computed in float32, except by functions whose results for integers are integers.
"""

from __future__ import annotations

import math

import weft.primitives as p
from weft.ops.arguments import (
    Array,
    array_argument,
    fresh,
    inexact,
    integer_of,
    to_dtype,
    unary,
)
from weft.ops.entrance import on_stream
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "abs",
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "conj",
    "conjugate",
    "cos",
    "cosh",
    "degrees",
    "erf",
    "erfinv",
    "exp",
    "expm1",
    "floor",
    "imag",
    "log",
    "log1p",
    "log2",
    "log10",
    "negative",
    "positive",
    "radians",
    "real",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]


def abs(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The absolute value of each element; real for complex numbers, otherwise of the same dtype.

    >>> mx.abs(mx.array([-2, 3]))
    array([2, 3], dtype=int32)
    """
    return unary(p.absolute, a, stream)


def negative(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Each element with the opposite sign.

    Raises:
        TypeError: ``a`` is boolean; use `logical_not`.

    >>> mx.negative(mx.array([1.5, -2.0]))
    array([-1.5, 2], dtype=float32)
    """
    return unary(p.negative, a, stream)


@on_stream
def positive(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The elements unchanged.

    >>> mx.positive(mx.array([1, -2]))
    array([1, -2], dtype=int32)
    """
    return fresh(array_argument("positive", a))


def sign(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """-1, 0 or 1; for complex numbers z / abs(z).

    >>> mx.sign(mx.array([-2.5, 0.0, 4.0]))
    array([-1, 0, 1], dtype=float32)
    """
    return unary(p.sign, a, stream)


def floor(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Each element rounded down to an integer.

    >>> mx.floor(mx.array([1.7, -1.2]))
    array([1, -2], dtype=float32)
    """
    return unary(p.floor, a, stream)


def ceil(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Each element rounded up to an integer.

    >>> mx.ceil(mx.array([1.2, -1.7]))
    array([2, -1], dtype=float32)
    """
    return unary(p.ceil, a, stream)


def trunc(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The integer part of each element.

    >>> mx.trunc(mx.array([1.7, -1.2]))
    array([1, -1], dtype=float32)
    """
    return unary(p.trunc, a, stream)


@replayed
def round(a: Array, /, decimals: int = 0, stream: StreamOrDevice = None) -> Array:
    """Each element rounded to a number of decimals; halves are rounded to the even neighbour.

    Negative ``decimals`` round to tens, hundreds and so on. Integers stay integers.

    >>> mx.round(mx.array([0.5, 1.5, 2.26]), 1)
    array([0.5, 1.5, 2.3], dtype=float32)
    >>> mx.round(mx.array([1234, 1250, 1350]), -2)
    array([1200, 1200, 1400], dtype=int32)
    """
    x = array_argument("round", a)
    decimals = integer_of("round", "decimals", decimals)
    if not x.node.dtype.is_inexact:
        if decimals >= 0 or x.node.dtype.is_bool:
            return fresh(x)
        return _round_integers(x, 10 ** min(-decimals, _MOST_DIGITS))
    if decimals == 0:
        return p.rint(x)
    factor = 10.0 ** min(max(decimals, -decimals), 308)
    if decimals > 0:
        return p.divide(p.rint(p.multiply(x, factor)), factor)
    return p.multiply(p.rint(p.divide(x, factor)), factor)


_MOST_DIGITS = 20
"""No integer dtype has more decimal digits."""


def _round_integers(x: Array, unit: int) -> Array:
    """Integers rounded to multiples of ``unit``, within their dtype."""
    dtype = x.node.dtype
    if unit > dtype.highest:
        return p.multiply(x, 0)
    count = p.floor_divide(x, unit)
    rest = p.subtract(x, p.multiply(count, unit))
    to_next = p.subtract(unit, rest)
    odd = p.not_equal(p.remainder(count, 2), 0)
    tie_goes_up = p.logical_and(p.equal(rest, to_next), odd)
    up = p.logical_or(p.greater(rest, to_next), tie_goes_up)
    return p.multiply(p.add(count, to_dtype(up, dtype)), unit)


def sqrt(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The square root.

    >>> mx.sqrt(mx.array([4, 2]))
    array([2, 1.41421], dtype=float32)
    """
    return unary(p.sqrt, a, stream, inexact)


def rsqrt(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """One over the square root.

    >>> mx.rsqrt(mx.array([4.0, 1.0]))
    array([0.5, 1], dtype=float32)
    """
    return unary(p.rsqrt, a, stream, inexact)


def square(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Each element times itself.

    >>> mx.square(mx.array([3, -4]))
    array([9, 16], dtype=int32)
    """
    return unary(p.square, a, stream)


@replayed
def reciprocal(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """One over each element.

    >>> mx.reciprocal(mx.array([2, 4]))
    array([0.5, 0.25], dtype=float32)
    """
    x = array_argument("reciprocal", a)
    return p.divide(1, to_dtype(x, inexact(x.node.dtype)))


def exp(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """e to the power of each element.

    >>> mx.exp(mx.array([0.0, 1.0]))
    array([1, 2.71828], dtype=float32)
    """
    return unary(p.exp, a, stream, inexact)


def expm1(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """exp(a) - 1, accurate also near zero.

    >>> mx.expm1(mx.array([0.0, 1e-8]))
    array([0, 1e-08], dtype=float32)
    """
    return unary(p.expm1, a, stream, inexact)


def log(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The natural logarithm.

    >>> mx.log(mx.array([1.0, 10.0]))
    array([0, 2.30259], dtype=float32)
    """
    return unary(p.log, a, stream, inexact)


def log2(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The logarithm to base 2.

    >>> mx.log2(mx.array([1, 8]))
    array([0, 3], dtype=float32)
    """
    return unary(p.log2, a, stream, inexact)


def log10(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The logarithm to base 10.

    >>> mx.log10(mx.array([1, 1000]))
    array([0, 3], dtype=float32)
    """
    return unary(p.log10, a, stream, inexact)


def log1p(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """log(1 + a), accurate also near zero.

    >>> mx.log1p(mx.array([0.0, 1e-8]))
    array([0, 1e-08], dtype=float32)
    """
    return unary(p.log1p, a, stream, inexact)


def sin(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The sine of angles in radians.

    >>> mx.sin(mx.array([0.0, 1.0]))
    array([0, 0.841471], dtype=float32)
    """
    return unary(p.sin, a, stream, inexact)


def cos(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The cosine of angles in radians.

    >>> mx.cos(mx.array([0.0, 1.0]))
    array([1, 0.540302], dtype=float32)
    """
    return unary(p.cos, a, stream, inexact)


def tan(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The tangent of angles in radians.

    >>> mx.tan(mx.array([0.0, 1.0]))
    array([0, 1.55741], dtype=float32)
    """
    return unary(p.tan, a, stream, inexact)


def arcsin(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The angle from -pi/2 to pi/2 with this sine.

    >>> mx.arcsin(mx.array([0.0, 1.0]))
    array([0, 1.5708], dtype=float32)
    """
    return unary(p.arcsin, a, stream, inexact)


def arccos(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The angle from 0 to pi with this cosine.

    >>> mx.arccos(mx.array([1.0, 0.0]))
    array([0, 1.5708], dtype=float32)
    """
    return unary(p.arccos, a, stream, inexact)


def arctan(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The angle from -pi/2 to pi/2 with this tangent.

    >>> mx.arctan(mx.array([0.0, 1.0]))
    array([0, 0.785398], dtype=float32)
    """
    return unary(p.arctan, a, stream, inexact)


def sinh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The hyperbolic sine, (exp(a) - exp(-a)) / 2.

    >>> mx.sinh(mx.array([0.0, 1.0]))
    array([0, 1.1752], dtype=float32)
    """
    return unary(p.sinh, a, stream, inexact)


def cosh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The hyperbolic cosine, (exp(a) + exp(-a)) / 2.

    >>> mx.cosh(mx.array([0.0, 1.0]))
    array([1, 1.54308], dtype=float32)
    """
    return unary(p.cosh, a, stream, inexact)


def tanh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The hyperbolic tangent, sinh(a) / cosh(a).

    >>> mx.tanh(mx.array([0.0, 1.0]))
    array([0, 0.761594], dtype=float32)
    """
    return unary(p.tanh, a, stream, inexact)


def arcsinh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The number with this hyperbolic sine.

    >>> mx.arcsinh(mx.array([0.0, 1.0]))
    array([0, 0.881374], dtype=float32)
    """
    return unary(p.arcsinh, a, stream, inexact)


def arccosh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The number that is not negative and has this hyperbolic cosine.

    >>> mx.arccosh(mx.array([1.0, 2.0]))
    array([0, 1.31696], dtype=float32)
    """
    return unary(p.arccosh, a, stream, inexact)


def arctanh(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The number with this hyperbolic tangent.

    >>> mx.arctanh(mx.array([0.0, 0.5]))
    array([0, 0.549306], dtype=float32)
    """
    return unary(p.arctanh, a, stream, inexact)


acos, acosh, asin, asinh, atan, atanh = arccos, arccosh, arcsin, arcsinh, arctan, arctanh


def sigmoid(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The logistic function, 1 / (1 + exp(-a)).

    >>> mx.sigmoid(mx.array([0.0, 100.0]))
    array([0.5, 1], dtype=float32)
    """
    return unary(p.sigmoid, a, stream, inexact)


def erf(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The error function of real numbers, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to a.

    >>> mx.erf(mx.array([0.0, 1.0]))
    array([0, 0.842701], dtype=float32)
    """
    return unary(p.erf, a, stream, inexact)


def erfinv(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The inverse of `erf`, for real numbers from -1 to 1.

    >>> mx.erfinv(mx.array([0.0, 0.5]))
    array([0, 0.476936], dtype=float32)
    """
    return unary(p.erfinv, a, stream, inexact)


def _scaled(name: str, a: Array, factor: float) -> Array:
    x = array_argument(name, a)
    return p.multiply(to_dtype(x, inexact(x.node.dtype)), factor)


@replayed
def degrees(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Angles in degrees from angles in radians.

    >>> mx.degrees(mx.array([0.0, mx.pi]))
    array([0, 180], dtype=float32)
    """
    return _scaled("degrees", a, 180 / math.pi)


@replayed
def radians(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Angles in radians from angles in degrees.

    >>> mx.radians(mx.array([0, 180]))
    array([0, 3.14159], dtype=float32)
    """
    return _scaled("radians", a, math.pi / 180)


@replayed
def real(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The real part of complex numbers; real numbers unchanged.

    >>> mx.real(mx.array([1 + 2j]))
    array([1], dtype=float32)
    """
    x = array_argument("real", a)
    return p.real(x) if x.node.dtype.is_complex else fresh(x)


@replayed
def imag(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The imaginary part of complex numbers; zero for real numbers.

    >>> mx.imag(mx.array([1 + 2j]))
    array([2], dtype=float32)
    """
    x = array_argument("imag", a)
    return p.imag(x) if x.node.dtype.is_complex else p.zeros_like(x)


@replayed
def conjugate(a: Array, *, stream: StreamOrDevice = None) -> Array:
    """The complex conjugate; real numbers unchanged.

    >>> mx.conjugate(mx.array([1 + 2j]))
    array([1-2j], dtype=complex64)
    """
    x = array_argument("conjugate", a)
    return p.conjugate(x) if x.node.dtype.is_complex else fresh(x)


conj = conjugate
