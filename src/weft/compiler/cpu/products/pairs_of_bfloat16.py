"""Vectors of pairs of bfloat16. A bfloat16 is the upper half of the float32 of the same value, so a vector of pairs, in
the order of memory, becomes two vectors of float32 without shuffles: the first numbers of pairs, and the second ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.products.tiny.groups import shuffled

MOST_LANES = 16
"""How many lanes the vectors of AVX-512 have."""

_UPPER = 0xFFFF0000


def apart(L: Lanes, pairs: Value) -> tuple[Value, Value]:
    """The first numbers of pairs and the second ones. A pair is a number of 32 bits."""
    return L.bitcast(pairs << 16, dtypes.float32), L.bitcast(pairs & _UPPER, dtypes.float32)


def moved_up(L: Lanes, pairs: str, places: Sequence[int]) -> Value:
    """Numbers of a vector of pairs, one for each lane. AVX2 moves them to any place in the same 16 bytes."""
    zero = 2 * L.width
    order = [number for place in places for number in (zero, place)]
    moved = shuffled(L.emitter, [pairs, "zeroinitializer"], order, zero)
    type_ = L.type_of(dtypes.float32)
    return Value(L, L.emitter.assign(f"bitcast <{zero} x i16> {moved} to {type_}"), dtypes.float32)


def rounded(L: Lanes, first: Value, second: Value) -> Value:
    """Both sums of each pair, rounded to the nearest bfloat16, ties to even. NaN remains NaN, because it comes from
    numbers whose lower halves are zero, or is made by the processor with such a half."""
    if L.width == MOST_LANES:
        low, high = [L.bitcast(total, dtypes.uint32) for total in (first, second)]
        upper, lower = _joined(L, low >> 16, high), _joined(L, low, high << 16)
        rises = lower >= 0x8001 - (upper & 1)
        both: Value = upper.lanes.select(rises, upper + 1, upper)
        return both
    # A tie is rounded up at first. That leaves zero below, and then the last bit is cleared.
    low, high = [L.bitcast(total, dtypes.uint32) + 0x8000 for total in (first, second)]
    upper, lower = _joined(L, low >> 16, high), _joined(L, low, high << 16)
    return upper & lower.lanes.intrinsic("uadd.sat", lower, lower.lanes.constant(0xFFFE, dtypes.uint16))


def together(L: Lanes, first: Value, second: Value) -> Value:
    """Both sums of each pair, in the order of memory."""
    both = Lanes(L.emitter, 2 * L.width)
    order = ", ".join([f"i32 {lane + half}" for lane in range(L.width) for half in (0, L.width)])
    operands = ", ".join([f"{L.type_of(total.dtype)} {total.name}" for total in (first, second)])
    return Value(both, L.emitter.assign(f"shufflevector {operands}, <{both.width} x i32> <{order}>"), first.dtype)


def _joined(L: Lanes, low: Value, high: Value) -> Value:
    """Lower halves of lanes from ``low``, upper ones from ``high``."""
    e, both = L.emitter, Lanes(L.emitter, 2 * L.width)
    type_, mask = L.type_of(dtypes.uint32), L.constant(_UPPER, dtypes.uint32)
    if L.width == MOST_LANES:
        operands = [(type_, x.name) for x in (low, high, mask)]
        name = e.call("llvm.x86.avx512.pternlog.d.512", type_, [*operands, ("i32", "216")])
    else:
        name = ((low & 0xFFFF) | (high & mask)).name
    return Value(both, e.assign(f"bitcast {type_} {name} to {both.type_of(dtypes.uint16)}"), dtypes.uint16)
