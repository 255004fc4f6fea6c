"""What of memory is the CPU's: asking caches for it, and operands that are transposed in registers.

Loads and stores of lanes are those of every target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import (
    MEMORY_TYPES,
    from_memory,
    masked_load,
)
from weft.dtypes import Dtype

CACHE_LINE = 64
FENCED_DISTANCE = 2
"""After which step of a transposition LLVM may not look back. With elements of up to four bytes it would try in vain to
combine the instructions of all steps, which takes it longer than everything else in a kernel."""

READ_LATER, READ_SOON, WRITE_SOON = "i32 0, i32 2", "i32 0, i32 3", "i32 1, i32 3"
"""What memory is asked for: to read it from the second cache, as the first one is in use; to read it from the first
one; to write to it."""


def prefetch(emitter: Emitter, pointer: str, purpose: str = READ_LATER) -> None:
    """Ask for what is at an address. There need be nothing."""
    emitter.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    emitter.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, {purpose}, i32 1)")


def keep_order(emitter: Emitter) -> None:
    """LLVM may not move instructions across this place, and so not fill registers with what is needed behind it."""
    emitter.emit('call void asm sideeffect "", "~{memory}"()')


def load_transposed(L: Lanes, dtype: Dtype, pointers: Sequence[str], mask: str, tile: str) -> None:
    """Read one vector of rows per lane, and write one vector of lanes per row to ``tile``.

    ``pointers`` are those of the lanes; ``mask`` says which rows exist.
    """
    type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
    vectors = [masked_load(L, dtype, type_, pointer, mask) for pointer in pointers]
    for row, vector in enumerate(transposed(L, dtype, vectors)):
        pointer = L.emitter.assign(f"getelementptr {type_}, ptr {tile}, i64 {row}")
        L.emitter.emit(f"store {type_} {vector}, ptr {pointer}")


def transposed(L: Lanes, dtype: Dtype, vectors: Sequence[str]) -> list[str]:
    """As many vectors as they have lanes, with rows and columns exchanged."""
    type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
    result = list(vectors)
    distance = 1
    while distance < L.width:
        for first in range(L.width):
            if not first & distance:
                pair = result[first], result[first + distance]
                result[first] = _exchanged(L, type_, pair, distance, upper=False)
                result[first + distance] = _exchanged(L, type_, pair, distance, upper=True)
        if distance == FENCED_DISTANCE and dtype.size <= 4:
            result = [_fenced(L, dtype, type_, vector) for vector in result]
        distance *= 2
    return result


def _fenced(L: Lanes, dtype: Dtype, type_: str, vector: str) -> str:
    """The same vector, of which LLVM does not know how it was made."""
    floats = L.width * dtype.size // 4
    as_floats = L.emitter.assign(f"bitcast {type_} {vector} to <{floats} x float>")
    function = f"llvm.arithmetic.fence.v{floats}f32"
    fenced = L.emitter.call(function, f"<{floats} x float>", [(f"<{floats} x float>", as_floats)])
    return L.emitter.assign(f"bitcast <{floats} x float> {fenced} to {type_}")


def _exchanged(L: Lanes, type_: str, pair: tuple[str, str], distance: int, upper: bool) -> str:
    """One step of a transposition: blocks of ``distance`` lanes are exchanged between two vectors."""
    chosen_lanes = []
    for lane in range(L.width):
        if upper:
            chosen_lanes.append(L.width + lane if lane & distance else lane + distance)
        else:
            chosen_lanes.append(L.width + lane - distance if lane & distance else lane)
    chosen = ", ".join(f"i32 {lane}" for lane in chosen_lanes)
    return L.emitter.assign(f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{L.width} x i32> <{chosen}>")


def load_tile_row(L: Lanes, dtype: Dtype, tile: str, row: str) -> Any:
    """The lanes of a row of a tile that `load_transposed` wrote."""
    type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
    pointer = L.emitter.assign(f"getelementptr {type_}, ptr {tile}, i64 {row}")
    return from_memory(L, L.emitter.assign(f"load {type_}, ptr {pointer}"), dtype)
