"""Functions of two arrays or numbers, element by element.

The operands are broadcast to one shape and promoted to one dtype; a Python number takes the array's dtype, or a higher
kind if needed (a float beside integers). These rules and ``stream=`` are the same for all functions here, so each
docstring only says what is computed.
"""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.node import Handle
from weft.graph.shown import Extent
from weft.ops.arguments import (
    Array,
    array_argument,
    binary,
    broadcast_all,
    inexact,
    promoted,
    to_dtype,
    unary,
)
from weft.ops.entrance import call_on, on_stream
from weft.ops.replays import replayed
from weft.primitives.base import Elementwise
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "add",
    "arctan2",
    "atan2",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "clip",
    "copysign",
    "divide",
    "divmod",
    "floor_divide",
    "hypot",
    "left_shift",
    "logaddexp",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "pow",
    "power",
    "remainder",
    "right_shift",
    "signbit",
    "subtract",
]

# Multiplication is several times faster than division. These numbers and their reciprocals are exact in all floating
# dtypes, so the result has the same bits.
_EXACT_RECIPROCALS = {sign * 2.0**power: sign * 2.0**-power for sign in (1, -1) for power in range(-14, 15)}


def add(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a + b; for booleans, "or".

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.add(mx.array([1, 2]), 0.5)
    array([1.5, 2.5], dtype=float32)
    """
    return binary(p.add, a, b, stream)


def subtract(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a - b; for booleans, whether they differ.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.subtract(mx.array([1, 2]), mx.array([3, 1]))
    array([-2, 1], dtype=int32)
    """
    if _are_boolean(a, b):
        return _of_booleans(p.not_equal, "subtract", a, b, stream)
    return binary(p.subtract, a, b, stream)


def multiply(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a * b; for booleans, "and".

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.multiply(mx.array([1.5, 2.0]), 2)
    array([3, 4], dtype=float32)
    """
    return binary(p.multiply, a, b, stream)


def divide(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a / b; integers are divided in float32.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.divide(mx.array([1, 2]), 4)
    array([0.25, 0.5], dtype=float32)
    """
    if type(b) in (float, int) and isinstance(a, Handle) and a.node.dtype.is_floating:
        reciprocal = _EXACT_RECIPROCALS.get(b)
        if reciprocal is not None:
            return binary(p.multiply, a, reciprocal, stream)
    return binary(p.divide, a, b, stream, inexact)


def floor_divide(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a / b rounded down to an integer, in the dtype of the operands.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.floor_divide(mx.array([7, -7]), 2)
    array([3, -4], dtype=int32)
    """
    if type(b) is int and isinstance(a, Handle) and _is_power_of_two(b, a.node.dtype):
        return binary(p.right_shift, a, b.bit_length() - 1, stream)
    if _are_boolean(a, b):
        return _of_booleans(p.floor_divide, "floor_divide", a, b, stream, through=dtypes.uint8)
    return binary(p.floor_divide, a, b, stream)


def _is_power_of_two(number: int, dtype: Dtype) -> bool:
    """Whether ``number`` is a power of two in an integer dtype."""
    return dtype.is_integer and 0 < number < 2 ** (8 * dtype.size - dtype.is_signed) and number & (number - 1) == 0


def remainder(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """a - b * floor(a / b): the remainder of the division, with the sign of b.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.remainder(mx.array([7, -7]), 4)
    array([3, 1], dtype=int32)
    """
    if _are_boolean(a, b):
        return _of_booleans(p.remainder, "remainder", a, b, stream, through=dtypes.uint8)
    return binary(p.remainder, a, b, stream)


@replayed
def divmod(a: Any, b: Any, stream: StreamOrDevice = None) -> list[Array]:
    """`floor_divide` and `remainder` together.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.divmod(mx.array([7, -7]), 4)
    [array([1, -2], dtype=int32), array([3, 1], dtype=int32)]
    """
    x, y = broadcast_all("divmod", promoted("divmod", (a, b)))
    if x.node.dtype.is_complex:
        raise ArgumentTypeError("[divmod] does not support complex64.")
    return [floor_divide(x, y), remainder(x, y)]


def power(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """a to the power of b, in the dtype of the operands: integers stay integers.

    Where b is one of the Python numbers 2, 3, 4, 0.5 or their negatives, a product, quotient or root is computed.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.power(mx.array([2.0, 3.0]), mx.array([3.0, 0.5]))
    array([8, 1.73205], dtype=float32)
    """
    kind = type(b)
    if (kind is int or kind is float or kind is Extent) and isinstance(a, Handle):
        dtype = a.node.dtype
        if dtype.is_inexact or (dtype.is_integer and kind is not float):
            if b == 2:
                return unary(p.square, a, stream)
            if b in (_PRODUCTS if dtype.is_integer else _ROUNDED_ONCE if dtype.size < 4 else _PRODUCTS_AND_ROOTS):
                return _by_products(a, b, stream)
    if _are_boolean(a, b):
        return _of_booleans(p.power, "power", a, b, stream, through=dtypes.uint8)
    return binary(p.power, a, b, stream)


pow = power

# A power of one of these numbers as a product, quotient or root takes a tenth of the time of a logarithm and an
# exponential, and its derivative needs no special cases. Its error is at most 4 units in the last place. Powers of half
# precision are computed in float32 and rounded once, which products of three are not.
_PRODUCTS = (3, 4)
_ROUNDED_ONCE = (-1, 0.5, -0.5)
_PRODUCTS_AND_ROOTS = (*_PRODUCTS, *_ROUNDED_ONCE, -2, -3, -4)


def _by_products(x: Any, exponent: Any, stream: StreamOrDevice) -> Array:
    """``x`` to the power of a number in ``_PRODUCTS_AND_ROOTS``."""
    if stream is not None:
        return call_on(stream, _by_products, x, exponent, None)
    if exponent == 0.5:
        return p.sqrt(x)
    if exponent == -0.5:
        return p.rsqrt(x)
    # One over x is raised, not x: of 1 / x^2 the derivative at 0 would be undefined.
    base = binary(p.divide, 1, x, None) if exponent < 0 else x
    if abs(exponent) == 1:
        return base
    square = p.square(base)
    return p.multiply(base, square) if abs(exponent) == 3 else p.square(square) if abs(exponent) == 4 else square


def _are_boolean(*operands: Any) -> bool:
    for operand in operands:
        if not (operand.node.dtype.is_bool if isinstance(operand, Handle) else isinstance(operand, bool)):
            return False
    return True


@replayed
def _of_booleans(
    primitive: Elementwise, name: str, a: Any, b: Any, stream: StreamOrDevice, through: Dtype | None = None
) -> Array:
    """The result for boolean operands, computed in the dtype ``through``."""
    x, y = promoted(name, (a, b))
    if through is not None:
        x, y = to_dtype(x, through), to_dtype(y, through)
    return to_dtype(primitive(*broadcast_all(name, (x, y))), dtypes.bool_)


def maximum(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """The larger of a and b; NaN if either is NaN. Complex numbers are compared by real, then by imaginary part.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.maximum(mx.array([1, 5]), 3)
    array([3, 5], dtype=int32)
    """
    return binary(p.maximum, a, b, stream)


def minimum(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """The smaller of a and b; NaN if either is NaN. Complex numbers are compared by real, then by imaginary part.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.minimum(mx.array([1, 5]), 3)
    array([1, 3], dtype=int32)
    """
    return binary(p.minimum, a, b, stream)


def logaddexp(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """log(exp(a) + exp(b)) without overflow.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.logaddexp(mx.array([0.0, 1000.0]), mx.array([0.0, 1000.0]))
    array([0.693147, 1000.69], dtype=float32)
    """
    return binary(p.logaddexp, a, b, stream, inexact)


def arctan2(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """The angle from -pi to pi of the point with x-coordinate b and y-coordinate a.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.arctan2(mx.array([1.0, -1.0]), mx.array([1.0, -1.0]))
    array([0.785398, -2.35619], dtype=float32)
    """
    return binary(p.arctan2, a, b, stream, inexact)


atan2 = arctan2


def hypot(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """sqrt(a^2 + b^2) without overflow; infinite if either is infinite.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    Raises:
        TypeError: an argument is complex.

    >>> mx.hypot(mx.array([3.0, 5.0]), mx.array([4.0, 12.0]))
    array([5, 13], dtype=float32)
    """
    return binary(p.hypot, a, b, stream, inexact)


def copysign(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """The magnitude of a with the sign of b; zeros and NaN have a sign, too.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    Raises:
        TypeError: an argument is complex.

    >>> mx.copysign(mx.array([1.0, -2.0]), mx.array([-0.0, 3.0]))
    array([-1, 2], dtype=float32)
    """
    return binary(p.copysign, a, b, stream, inexact)


def nextafter(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """The number of the dtype that is next to a in the direction of b; b where both are equal.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    Raises:
        TypeError: an argument is complex.

    >>> mx.nextafter(mx.array(1.0), mx.array(2.0)) - 1 == mx.finfo(mx.float32).eps
    array(True, dtype=bool)
    """
    return binary(p.nextafter, a, b, stream, inexact)


@replayed
def signbit(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """Whether each element has a minus sign; zeros and NaN have a sign, too.

    Raises:
        TypeError: the array is complex.

    >>> mx.signbit(mx.array([-1.0, -0.0, 0.0]))
    array([True, True, False], dtype=bool)
    """
    x = array_argument("signbit", a)
    if x.node.dtype.is_floating:
        x = p.copysign(p.ones_like(x), x)
    if x.node.dtype.is_complex:
        raise ArgumentTypeError("[signbit] A complex number has no sign; take that of mx.real(a) or mx.imag(a).")
    return p.less(x, p.zeros_like(x))


@replayed
def clip(
    a: Array,
    /,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,
    max: Any = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Each element limited to the range from a_min to a_max; NaN stays.

    The limits are broadcast and promoted with ``a``; None means no limit on that side. ``min`` and ``max`` are their
    names in the array API standard.

    Args:
        a_min: the smallest value in the result.
        a_max: the largest value in the result.

    Raises:
        ValueError: both limits are None.

    >>> mx.clip(mx.array([-1, 5, 9]), 0, 6)
    array([0, 5, 6], dtype=int32)
    """
    a_min, a_max = min if a_min is None else a_min, max if a_max is None else a_max
    if a_min is None and a_max is None:
        raise ValueError("[clip] a_min and a_max are both None: give at least one limit.")
    operands = [a, *[limit for limit in (a_min, a_max) if limit is not None]]
    x, *limits = broadcast_all("clip", promoted("clip", operands, words=("a", "a limit", "a_max")))
    if a_min is not None:
        x = p.maximum(x, limits[0])
    return x if a_max is None else p.minimum(x, limits[-1])


def bitwise_and(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """The bits that are set in both; for integers and booleans.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.bitwise_and(mx.array([6, 5]), 3)
    array([2, 1], dtype=int32)
    """
    return binary(p.bitwise_and, a, b, stream)


def bitwise_or(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """The bits that are set in one or both; for integers and booleans.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.bitwise_or(mx.array([6, 5]), 3)
    array([7, 7], dtype=int32)
    """
    return binary(p.bitwise_or, a, b, stream)


def bitwise_xor(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """The bits that are set in exactly one; for integers and booleans.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.bitwise_xor(mx.array([6, 5]), 3)
    array([5, 6], dtype=int32)
    """
    return binary(p.bitwise_xor, a, b, stream)


@on_stream
def bitwise_invert(a: Any, stream: StreamOrDevice = None) -> Array:
    """All bits inverted; for integers and booleans.

    >>> mx.bitwise_invert(mx.array([0, 5]))
    array([-1, -6], dtype=int32)
    """
    (x,) = promoted("bitwise_invert", (a,))
    return p.bitwise_invert(x)


def _shifted(dtype: Dtype) -> Dtype:
    return dtypes.uint8 if dtype.is_bool else dtype


def left_shift(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """The bits of a shifted left by b; for integers.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.left_shift(mx.array([1, 3]), 2)
    array([4, 12], dtype=int32)
    """
    return binary(p.left_shift, a, b, stream, _shifted)


def right_shift(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """The bits of a shifted right by b, filled with copies of the sign bit; for integers.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.right_shift(mx.array([12, -8]), 2)
    array([3, -2], dtype=int32)
    """
    return binary(p.right_shift, a, b, stream, _shifted)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
