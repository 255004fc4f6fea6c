"""Memory accesses of the CPU alone: prefetches, rests of rows of bytes, operands that are transposed in registers.

Loads and stores of lanes are written by `codegen.memory` for every target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.integers import Integers
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import (
    MEMORY_TYPES,
    dtype_alignment,
    from_memory,
    masked_load,
)
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.overlapping import Instructions, run
from weft.dtypes import Dtype

CACHE_LINE = 64
WAY_BYTES = 4096
"""Addresses at this distance are in the same set of the first cache."""
FENCED_DISTANCE = 2
"""The step of a transposition after which a fence hides the instructions from LLVM. With elements of up to four bytes
it would try in vain to combine the instructions of all steps, which takes longer than compiling the rest of a
kernel."""

READ_LATER, READ_SOON, WRITE_SOON = "i32 0, i32 2", "i32 0, i32 3", "i32 1, i32 3"
"""Purposes of a prefetch: to read from the second cache, because the first one is in use; to read from the first cache;
to write."""


def prefetch(emitter: Emitter, pointer: str, purpose: str = READ_LATER) -> None:
    """Prefetch an address. It may be invalid."""
    emitter.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    emitter.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, {purpose}, i32 1)")


def keep_order(emitter: Emitter) -> None:
    """Forbid LLVM to move memory accesses across this place: it would fill registers with values that are needed
    later."""
    emitter.emit('call void asm sideeffect "", "~{memory}"()')


def opaque(emitter: Emitter, pointer: str) -> str:
    """The same pointer; LLVM cannot see how it was computed."""
    return emitter.assign(f'call ptr asm "", "=r,0"(ptr {pointer})')


def load_transposed(L: Lanes, dtype: Dtype, pointers: Sequence[str], mask: str | None, tile: str) -> None:
    """Read a vector of rows for each lane, and write a vector of lanes for each row to ``tile``.

    ``pointers`` are those of the lanes. ``mask`` says which rows exist (None: all).
    """
    type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
    if mask is None:
        align = dtype_alignment(dtype)
        vectors = [L.emitter.assign(f"load {type_}, ptr {pointer}, align {align}") for pointer in pointers]
    else:
        vectors = [masked_load(L, dtype, type_, pointer, mask) for pointer in pointers]
    for row, vector in enumerate(transposed(L, dtype, vectors)):
        pointer = L.emitter.assign(f"getelementptr {type_}, ptr {tile}, i64 {row}")
        L.emitter.emit(f"store {type_} {vector}, ptr {pointer}")


def transposed(L: Lanes, dtype: Dtype, vectors: Sequence[str], widest: int = 0) -> list[str]:
    """A square of vectors, transposed; or squares of ``widest`` lanes of these."""
    result = list(vectors)
    run(exchanges(L, dtype, result, widest or L.width))
    return result


def exchanges(L: Lanes, dtype: Dtype, vectors: list[str], widest: int) -> Instructions:
    """The instructions that transpose squares of ``widest`` lanes of ``vectors`` in place."""
    found: Instructions = []
    distance = 1
    while distance < widest:
        for first in range(len(vectors)):
            if not first & distance:
                found += _exchange(L, dtype, vectors, first, distance)
        distance *= 2
    return found


def _exchange(L: Lanes, dtype: Dtype, vectors: list[str], first: int, distance: int) -> Instructions:
    """The instructions that exchange blocks of ``distance`` lanes between a vector and another one."""
    type_, second = f"<{L.width} x {MEMORY_TYPES[dtype]}>", first + distance
    pair: list[str] = []

    def exchanged(upper: bool) -> str:
        name = _exchanged(L, type_, (pair[0], pair[1]), distance, upper)
        return fenced(L, dtype, type_, name) if distance == FENCED_DISTANCE and dtype.size <= 4 else name

    def write_first() -> None:
        pair.extend([vectors[first], vectors[second]])
        vectors[first] = exchanged(upper=False)

    def write_second() -> None:
        vectors[second] = exchanged(upper=True)

    return [write_first, write_second]


def fenced(L: Lanes, dtype: Dtype, type_: str, vector: str) -> str:
    """The same vector; LLVM cannot see how it was made."""
    floats = L.width * dtype.size // 4
    as_floats = L.emitter.assign(f"bitcast {type_} {vector} to <{floats} x float>")
    function = f"llvm.arithmetic.fence.v{floats}f32"
    fenced = L.emitter.call(function, f"<{floats} x float>", [(f"<{floats} x float>", as_floats)])
    return L.emitter.assign(f"bitcast <{floats} x float> {fenced} to {type_}")


def in_register(vector: Value) -> str:
    """The same vector, not to be joined with an instruction that stores it. AMD's Zen 3 takes twice as long to round
    numbers to float16 and store them in one instruction as in two."""
    return fenced(vector.lanes, vector.dtype, vector.lanes.type_of(vector.dtype), vector.name)


def _exchanged(L: Lanes, type_: str, pair: tuple[str, str], distance: int, upper: bool) -> str:
    """One step of a transposition: it exchanges blocks of ``distance`` lanes between two vectors."""
    chosen_lanes = []
    for lane in range(L.width):
        if upper:
            chosen_lanes.append(L.width + lane if lane & distance else lane + distance)
        else:
            chosen_lanes.append(L.width + lane - distance if lane & distance else lane)
    chosen = ", ".join(f"i32 {lane}" for lane in chosen_lanes)
    return L.emitter.assign(f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{L.width} x i32> <{chosen}>")


def load_first_bytes(L: Lanes, pointer: str, count: str) -> str:
    """The first ``count`` bytes of memory, from 1 to 15, in a vector of 16; the others are zero, and not read.

    For a mask of bytes LLVM would write 16 branches if the processor has no such masks.
    """
    e, code = L.emitter, Integers(L.emitter)
    low, high = e.slot("i64"), e.slot("i64")
    e.store("i64", "0", high)

    def read(type_: str, position: str | int) -> str:
        found = e.assign(f"load {type_}, ptr {code.moved(pointer, position)}, align 1")
        return found if type_ == "i64" else e.assign(f"zext {type_} {found} to i64")

    def join(type_: str, positions: Sequence[str | int]) -> None:
        parts = [e.assign(f"shl i64 {read(type_, at)}, {code.multiply(at, 8)}") for at in map(str, positions)]
        found = parts[0]
        for part in parts[1:]:
            found = e.assign(f"or i64 {found}, {part}")
        e.store("i64", found, low)

    with e.when(code.compare("uge", count, 8)):
        e.store("i64", read("i64", 0), low)
        last = e.assign(f"lshr i64 {read('i64', code.subtract(count, 8))}, 8")
        e.store("i64", e.assign(f"lshr i64 {last}, {code.multiply(code.subtract(15, count), 8)}"), high)
    with e.when(code.compare("ult", count, 8)):
        with e.when(code.compare("uge", count, 4)):
            join("i32", [0, code.subtract(count, 4)])
        with e.when(code.compare("ult", count, 4)):
            join("i8", [0, code.divide(count, 2), code.subtract(count, 1)])
    both = e.assign(f"insertelement <2 x i64> poison, i64 {e.load('i64', low)}, i64 0")
    both = e.assign(f"insertelement <2 x i64> {both}, i64 {e.load('i64', high)}, i64 1")
    return e.assign(f"bitcast <2 x i64> {both} to <16 x i8>")


def store_first_bytes(L: Lanes, vector: str, pointer: str, count: str) -> None:
    """Write the first ``count`` bytes, from 1 to 15, of a vector of 16."""
    e, code = L.emitter, Integers(L.emitter)
    both = e.assign(f"bitcast <16 x i8> {vector} to <2 x i64>")
    low, high = [e.assign(f"extractelement <2 x i64> {both}, i64 {half}") for half in (0, 1)]

    def write(type_: str, position: str | int, value: str = "") -> None:
        value = value or e.assign(f"lshr i64 {low}, {code.multiply(str(position), 8)}")
        part = value if type_ == "i64" else e.assign(f"trunc i64 {value} to {type_}")
        e.emit(f"store {type_} {part}, ptr {code.moved(pointer, position)}, align 1")

    with e.when(code.compare("uge", count, 8)):
        write("i64", 0)
        before = code.subtract(count, 8)
        first = e.assign(f"lshr i64 {low}, {code.multiply(before, 8)}")
        moved = e.assign(f"shl i64 {high}, {code.multiply(code.subtract(15, count), 8)}")
        write("i64", before, e.assign(f"or i64 {first}, {e.assign(f'shl i64 {moved}, 8')}"))
    with e.when(code.compare("ult", count, 8)):
        with e.when(code.compare("uge", count, 4)):
            write("i32", 0)
            write("i32", code.subtract(count, 4))
        with e.when(code.compare("ult", count, 4)):
            for position in (0, code.divide(count, 2), code.subtract(count, 1)):
                write("i8", position)


def load_tile_row(L: Lanes, dtype: Dtype, tile: str, row: str) -> Any:
    """The lanes of a row of a tile that `load_transposed` wrote."""
    type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
    pointer = L.emitter.assign(f"getelementptr {type_}, ptr {tile}, i64 {row}")
    return from_memory(L, L.emitter.assign(f"load {type_}, ptr {pointer}"), dtype)
