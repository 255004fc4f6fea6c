"""The neighbour of a floating-point number."""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype


def nextafter(L: Lanes, x: Value, y: Value) -> Value:
    """The neighbour of ``x`` towards ``y``. Its bits, read as an integer, are those of x plus one away from zero, and
    minus one towards zero."""
    dtype = x.dtype
    bits = _to_bits(L, x)
    away = L.compare("lt", x, y) ^ L.compare("lt", x, 0)
    moved = L.select(away, bits + 1, bits - 1)
    neighbour = L.select(
        L.equal(x, 0), L.copysign(_from_bits(L, L.constant(1, bits.dtype), dtype), y), _from_bits(L, moved, dtype)
    )
    kept = L.select(L.equal(x, y), y, neighbour)
    return L.select(L.is_nan(x), x, L.select(L.is_nan(y), y, kept))


def _to_bits(L: Lanes, x: Value) -> Value:
    return L.half_to_bits(x) if x.dtype in HALVES else L.bitcast(x, dtypes.UNSIGNED[x.dtype.size])


def _from_bits(L: Lanes, bits: Value, dtype: Dtype) -> Value:
    return L.half_from_bits(bits, dtype) if dtype in HALVES else L.bitcast(bits, dtype)
