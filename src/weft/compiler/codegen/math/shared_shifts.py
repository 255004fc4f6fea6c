"""Shifts of many integers by one count, which may be any number: its bounds are checked once for all."""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value


class Count(NamedTuple):
    """A count that is less than the number of bits, the one for shifts that fill with the sign, and a mask that is 0 if
    all bits are shifted out."""

    within: Value
    filling: Value
    mask: Value


def count(L: Lanes, y: Value) -> Count:
    """Prepares shifts by ``y``. A negative count shifts all bits out."""
    bits = 8 * y.dtype.size
    beyond = y >= bits
    if y.dtype.is_signed:
        beyond = beyond | (y < 0)
    mask = L.select(beyond, L.constant(0, y.dtype), L.constant(-1 if y.dtype.is_signed else 2**bits - 1, y.dtype))
    return Count(y & (bits - 1), L.select(beyond, L.constant(bits - 1, y.dtype), y), mask)


def left(L: Lanes, x: Value, by: Count) -> Value:
    return (x << by.within) & by.mask


def right(L: Lanes, x: Value, by: Count) -> Value:
    """A right shift that fills with the sign bit, or with zeros if ``x`` is unsigned."""
    return x >> by.filling if x.dtype.is_signed else (x >> by.within) & by.mask
