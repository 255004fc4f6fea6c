"""Division of many integers by one: a product takes the place of each division.

The quotient of an unsigned ``x`` of ``N`` bits by ``d`` is a part of ``x * m``, where ``m`` is ``2^k / d`` with so many
bits that its error cannot matter. If ``l`` is the number of bits of ``d - 1``, and ``t`` the upper half of
``x * (floor(2^N (2^l - d) / d) + 1)``, then it is ``(t + (x - t) / 2^min(l, 1)) / 2^max(l - 1, 0)``. (Granlund,
Montgomery: Division by invariant integers using multiplication, 1994.) Bytes are divided as integers of 16 bits, where
the upper half of ``(x + 1) * floor((2^16 - 1) / d)`` is the quotient.

Rounding down a quotient of signed integers needs no case for its sign. With ``n = 1`` for a negative divisor, else 0,
it is the quotient of ``x - n`` by ``|d|`` with its bits inverted if ``n`` is 1. If ``x - n`` is negative, that quotient
is the one of ``-1 - (x - n)`` with its bits inverted. None of the numbers overflows as an unsigned one.
"""

from __future__ import annotations

from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype

_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
_SIGNED = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class Divisor(NamedTuple):
    """What is known of a divisor, in one lane: itself, ``m``, both shifts, ``n``, and a mask that is 0 if it is 0. All
    have the size of the numbers that are divided, but at least 16 bits."""

    itself: Value
    multiplier: Value
    first_shift: Value
    second_shift: Value
    negative: Value
    mask: Value


def divisor(L: Lanes, y: Value) -> Divisor:
    """Prepares division by ``y``. Zero is prepared as one."""
    size, signed = max(y.dtype.size, 2), y.dtype.is_signed
    unsigned = _UNSIGNED[size]
    itself = _as(L, L.convert(y, _SIGNED[size] if signed else unsigned), unsigned)
    zero, negative = L.equal(y, 0), y < 0 if signed else L.constant(False, dtypes.bool_)
    absolute = L.select(zero, 1, L.select(negative, -itself, itself))
    first = second = L.constant(0, unsigned)
    if y.dtype.size == 1:
        multiplier = L.integer_divide(L.constant(0xFFFF, unsigned), absolute)
    else:
        bits = L.convert(Value(L, L.highest_bit(absolute - 1), dtypes.int64), unsigned)
        one, last = L.constant(1, unsigned), 8 * size - 1
        power = L.select(bits > last, 0, one << (bits & last))
        multiplier = _long_quotient(L, power - absolute, absolute) + 1
        first, second = L.select(L.equal(bits, 0), 0, one), L.select(L.equal(bits, 0), 0, bits - 1)
    mask = -L.convert(L.not_equal(y, 0), unsigned)
    return Divisor(itself, multiplier, first, second, L.convert(negative, unsigned), mask)


def floor_divide(L: Lanes, x: Value, by: Divisor) -> Value:
    """The quotient rounded down; 0 where the divisor is 0."""
    return _as(L, L.convert(_quotient(L, x, by) & by.mask, _UNSIGNED[x.dtype.size]), x.dtype)


def remainder(L: Lanes, x: Value, by: Divisor) -> Value:
    """The remainder with the sign of the divisor; ``x`` where the divisor is 0."""
    rest = _wide(L, x) - _quotient(L, x, by) * by.itself
    return _as(L, L.convert(rest, _UNSIGNED[x.dtype.size]), x.dtype)


def _quotient(L: Lanes, x: Value, by: Divisor) -> Value:
    """The bits of the quotient rounded down, as they are in an unsigned number."""
    wide = _wide(L, x)
    if not x.dtype.is_signed:
        return _unsigned_quotient(L, wide, by, x.dtype.size)
    moved = wide - by.negative
    # The sign of `x - n`, which may overflow: it is negative if it appears to be, or if `x` is.
    sign = _as(L, _as(L, wide | moved, _SIGNED[wide.dtype.size]) >> (8 * wide.dtype.size - 1), wide.dtype)
    found = _unsigned_quotient(L, moved ^ sign, by, x.dtype.size)
    return found ^ (sign ^ -by.negative)


def _unsigned_quotient(L: Lanes, x: Value, by: Divisor, size: int) -> Value:
    if size == 1:
        return _upper_half(L, x + 1, by.multiplier)
    upper = _upper_half(L, x, by.multiplier)
    return (upper + ((x - upper) >> by.first_shift)) >> by.second_shift


def _upper_half(L: Lanes, x: Value, y: Value) -> Value:
    """The upper half of the bits of a product of unsigned integers."""
    size = x.dtype.size
    if size < 8:
        wide = _UNSIGNED[2 * size]
        return L.convert((L.convert(x, wide) * L.convert(y, wide)) >> 8 * size, x.dtype)
    low = 0xFFFFFFFF
    x_low, x_high, y_low, y_high = x & low, x >> 32, y & low, y >> 32
    middle = x_high * y_low + ((x_low * y_low) >> 32)
    other = x_low * y_high + (middle & low)
    return x_high * y_high + (middle >> 32) + (other >> 32)


def _long_quotient(L: Lanes, high: Value, y: Value) -> Value:
    """``high * 2^N / y``, rounded down, where ``high`` is smaller than ``y``: digit by digit."""
    size, emitter, type_ = y.dtype.size, L.emitter, L.type_of(y.dtype)
    if size < 8:
        wide = _UNSIGNED[2 * size]
        return L.convert(L.integer_divide(L.convert(high, wide) << 8 * size, L.convert(y, wide)), y.dtype)
    rest_slot, result_slot = emitter.slot(type_), emitter.slot(type_)
    emitter.store(type_, high.name, rest_slot)
    emitter.store(type_, "0", result_slot)
    with emitter.loop("0", str(8 * size)):
        rest = Value(L, emitter.load(type_, rest_slot), y.dtype)
        result = Value(L, emitter.load(type_, result_slot), y.dtype)
        doubled = rest << 1
        fits = (doubled >= y) | L.not_equal(rest >> (8 * size - 1), 0)
        emitter.store(type_, L.select(fits, doubled - y, doubled).name, rest_slot)
        emitter.store(type_, ((result << 1) | L.convert(fits, y.dtype)).name, result_slot)
    return Value(L, emitter.load(type_, result_slot), y.dtype)


def _wide(L: Lanes, x: Value) -> Value:
    """The bits of ``x`` in an unsigned number of at least 16 bits."""
    size = max(x.dtype.size, 2)
    return _as(L, L.convert(x, _SIGNED[size] if x.dtype.is_signed else _UNSIGNED[size]), _UNSIGNED[size])


def _as(L: Lanes, x: Value, dtype: Dtype) -> Value:
    """The same bits as another dtype of the same size."""
    return Value(L, x.name, dtype)
