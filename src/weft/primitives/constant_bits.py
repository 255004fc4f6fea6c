"""The memory image of numbers that are known while a graph is built; see `Constant`."""

from __future__ import annotations

import struct

from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import named

__all__ = ["bits_of"]


@named
def bits_of(value: complex, dtype: Dtype) -> int:
    """The memory image of ``value`` in ``dtype``, padded to 8 bytes and read as a little-endian integer."""
    if dtype is dtypes.float32 and type(value) is float:  # the most frequent case, for speed
        return int.from_bytes(_float32(value), "little")
    if dtype.is_complex:
        number = complex(value)
        return int.from_bytes(_float32(number.real) + _float32(number.imag), "little")
    if dtype.is_floating:
        number = float(value.real)
        if dtype is dtypes.float64:
            return int.from_bytes(struct.pack("<d", number), "little")
        if dtype is dtypes.float32:
            return int.from_bytes(_float32(number), "little")
        return _half_bits(number, dtype)
    if dtype.is_bool:
        return int(bool(value))
    number = value.real
    if isinstance(number, float):  # converted as `cast` does it
        number = 0 if number != number else min(max(number, dtype.lowest), dtype.highest)
    return int(number) & ((1 << (8 * dtype.size)) - 1)


_pack_float32 = struct.Struct("<f").pack


def _float32(number: float) -> bytes:
    try:
        return _pack_float32(number)
    except OverflowError:
        return _pack_float32(float("inf") if number > 0 else float("-inf"))


def _half_bits(number: float, dtype: Dtype) -> int:
    if dtype is dtypes.float16:
        try:
            return int.from_bytes(struct.pack("<e", number), "little")
        except OverflowError:
            return 0x7C00 if number > 0 else 0xFC00
    bits = int.from_bytes(_float32(number), "little")
    if number != number:
        return 0x7FC0
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
