"""Vectors of floating-point numbers as integers, where a processor has no instruction that saturates.

LLVM has an intrinsic for it, which on x86-64 it takes apart into code for each number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype

if TYPE_CHECKING:
    from weft.compiler.codegen.lanes import Lanes


def saturates_by_comparing(L: Lanes, dtype: Dtype) -> bool:
    """Whether `saturated` is faster than the intrinsic: where x86-64 has instructions that convert vectors."""
    return L.width > 1 and dtype.size < 8 and not L.emitter.for_gpu and host.current().triple.startswith("x86_64")


def saturated(L: Lanes, x: Value, dtype: Dtype) -> Value:
    """``x`` rounded towards zero; the nearest integer of ``dtype`` where it is out of range, and 0 for NaN."""
    lowest, past = float(dtype.lowest), float(dtype.highest + 1)
    high, inside = x < past, x >= lowest
    if dtype.is_signed:
        beyond = L.select(x < lowest, L.constant(dtype.lowest, dtype), L.constant(0, dtype))
    else:
        beyond = L.constant(0, dtype)
    beyond = L.select(x >= past, L.constant(dtype.highest, dtype), beyond)
    wide = dtype if dtype.size == 4 else dtypes.int32
    whole = L.convert(L.truncate_to_integer(L.select(inside & high, x, 0.0), wide), dtype)
    return L.select(inside & high, whole, beyond)
