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


_EXACT = (1 << 24, 1 << 53)
"""Integers below this are numbers of ``float32``, or ``float64``."""


def saturates_by_comparing(L: Lanes, dtype: Dtype) -> bool:
    """Whether `saturated` is faster than the intrinsic: where x86-64 has instructions that convert vectors."""
    return L.width > 1 and dtype.size < 8 and not L.emitter.for_gpu and host.current().triple.startswith("x86_64")


def saturated(L: Lanes, x: Value, dtype: Dtype) -> Value:
    """``x`` rounded towards zero; the nearest integer of ``dtype`` where it is out of range, and 0 for NaN."""
    lowest, highest, past = float(dtype.lowest), float(dtype.highest), float(dtype.highest + 1)
    wide = dtype if dtype.size == 4 else dtypes.int32
    above = L.select(x > lowest, x, lowest)  # not NaN
    if highest < _EXACT[x.dtype.size == 8]:
        whole = L.convert(L.truncate_to_integer(L.select(above < highest, above, highest), wide), dtype)
    else:
        # Where it is too large, LLVM may assume any result, a new one at each use; frozen, it is a single one.
        undefined = L.truncate_to_integer(above, wide)
        frozen = L.emitter.assign(f"freeze {L.type_of(wide)} {undefined.name}")
        whole = L.select(above < past, Value(L, frozen, wide), L.constant(dtype.highest, wide))
    return L.select(L.is_nan(x), L.constant(0, dtype), whole) if dtype.is_signed else whole
