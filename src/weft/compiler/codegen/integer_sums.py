"""Products with quantised matrices as exact sums of integers.

Codes are integers. If the terms that they multiply are integers too, sums are exact: they do not depend on the order of
additions, and a target may split them into parts as its instructions need it. So the terms of a group, those whose
codes share a scale, become integers of 24 bits that share a power of two, the *unit*. The unit is such that the largest
term has 23 or 22 bits after the sign; the other terms are rounded to multiples of it, half to even.

With ``c`` for the code whose number is nearest to zero, the sum of a group of terms ``x`` times numbers ``code * scale
+ bias`` is ::

    scale * sum((code - c) * x) + (c * scale + bias) * sum(x)

Both sums are computed exactly as integers, and rounded once. The number of ``c`` is zero or small, so terms that meet
zeros of the matrix change little or nothing. A result is off by little more than the rounding of the largest term of
each group.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.quantized import Coding
from weft.compiler.codegen.values import Value

_EXPONENT_BITS = 23
_SIZE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NAN = 0x7FC00000
_ROOM = 1 << 17
"""Added to the bits of the largest term, so that a term that would need nearly all 24 bits gets the next larger unit:
digits that have signs do not reach the largest numbers of 24 bits."""
_BIAS = 127
_LARGEST_EXPONENT = 22
"""The largest term of a group is at least 2 to this power in units, unless it is tiny."""
_LEAST = _LARGEST_EXPONENT + 1
"""The smallest exponent for which the unit is a normal number."""


def size(x: Value) -> Value:
    """The bits of the magnitude of float32 numbers, as uint32. They have the order of the magnitudes; those of
    infinities and NaN are the largest."""
    return x.lanes.bitcast(x, dtypes.uint32) & _SIZE


def exponent(largest: Value) -> Value:
    """The biased exponent of a group, from the largest `size` of its terms."""
    L = largest.lanes
    found = (largest + _ROOM) >> _EXPONENT_BITS
    return L.select(found < _LEAST, L.constant(_LEAST, dtypes.uint32), found)


def is_finite(largest: Value) -> Value:
    return largest < _INFINITY


def unit(exponent: Value, finite: Value) -> Value:
    """The unit of a group, as float32; NaN if not all terms are finite."""
    L = exponent.lanes
    bits = (exponent - _LARGEST_EXPONENT) << _EXPONENT_BITS
    return L.bitcast(L.select(finite, bits, L.constant(_NAN, dtypes.uint32)), dtypes.float32)


def inverse_of_unit(exponent: Value) -> Value:
    """One divided by the unit of a group, as float32."""
    L = exponent.lanes
    bits = (L.constant(2 * _BIAS + _LARGEST_EXPONENT, dtypes.uint32) - exponent) << _EXPONENT_BITS
    return L.bitcast(bits, dtypes.float32)


def in_units(x: Value, exponent: Value, finite: Value) -> Value:
    """Terms as int32 multiples of the unit; zeros if not all terms of the group are finite."""
    L = x.lanes
    whole = L.rint(L.select(finite, x, 0.0) * inverse_of_unit(exponent))
    return L.truncate_to_integer(whole, dtypes.int32)


def zero_code(coding: Coding, scale: Value, bias: Value) -> Value:
    """The code whose number is nearest to zero, as float32; 0 where there is no quotient."""
    L = scale.lanes
    code = L.rint(-bias / scale)
    code = L.select(code > 0.0, code, L.constant(0.0, dtypes.float32))
    most = float((1 << coding.bits) - 1)
    return L.select(code < most, code, L.constant(most, dtypes.float32))


def added(total: Value, sums: tuple[Value, Value], factors: tuple[Value, Value], unit: Value) -> Value:
    """``total`` plus the sum of a group. ``sums`` are the sum of codes times terms and the sum of terms, each rounded
    once to float32; ``factors`` the scale and the number of the `zero_code`, as `scaled` decodes it."""
    L = total.lanes
    for one, factor in zip(sums, factors, strict=True):
        total = L.fma(factor * unit, one, total)
    return total
