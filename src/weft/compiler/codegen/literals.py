"""Constants in LLVM IR."""

from __future__ import annotations

import math
import struct

from weft import dtypes
from weft.compiler.codegen.values import Number
from weft.dtypes import Dtype


def literal(value: Number, dtype: Dtype) -> str:
    """The LLVM text of a constant."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_floating:
        rounded = float(value) if dtype is dtypes.float64 else _as_float32(float(value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
    bits = 8 * dtype.size
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _as_float32(value: float) -> float:
    if math.isnan(value) or math.isinf(value):
        return value
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
