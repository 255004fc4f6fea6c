"""Squares of float16 that are read from memory and transposed in registers before they become float32.

Instructions shuffle numbers of 16 bits inside of blocks of 16 bytes. So a vector has a block of terms of a column and
the next block, not blocks of two columns, and a transposed vector has two terms of eight columns. Each half of it is
converted from memory, because processors take as long to move it in registers as to convert it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import fenced, opaque
from weft.dtypes import Dtype

COLUMNS = 8
"""How many columns a square has: as many numbers as a block."""
TERMS = 2 * COLUMNS
"""How many terms it has."""

_VECTOR = f"<{TERMS} x i16>"


def fits(L: Lanes, source: Dtype) -> bool:
    """Whether numbers of ``source``, read into vectors of ``L``, are such squares."""
    return source is dtypes.float16 and L.width == COLUMNS


def write_square(L: Lanes, lines: Sequence[str]) -> str:
    """Transpose the terms of columns that begin at ``lines``, and return the memory from which `term` reads them."""
    return write_vectors(L, [L.emitter.assign(f"load {_VECTOR}, ptr {line}, align 2") for line in lines])


def write_vectors(L: Lanes, vectors: Sequence[str]) -> str:
    """Transpose the terms of columns that are in ``vectors``, and return the memory from which `term` reads them."""
    e = L.emitter
    for _ in range(COLUMNS.bit_length() - 1):
        # This moves a bit of the numbers of vectors into those of lanes.
        pairs = zip(vectors[: COLUMNS // 2], vectors[COLUMNS // 2 :], strict=True)
        vectors = [_interleaved(L, pair, half) for pair in pairs for half in (0, COLUMNS // 2)]
    memory = e.slot(f"[{COLUMNS} x {_VECTOR}], align 32")
    for number, vector in enumerate(vectors):
        e.store(_VECTOR, vector, e.assign(f"getelementptr {_VECTOR}, ptr {memory}, i64 {number}"))
    return opaque(e, memory)


def term(L: Lanes, square: str, number: int) -> Value:
    """A term of a square in memory."""
    place = number % COLUMNS * TERMS + number // COLUMNS * COLUMNS
    value: Value = load(L, dtypes.float16, Location(square, str(place), False), None)
    return value


def _interleaved(L: Lanes, pair: tuple[str, str], half: int) -> str:
    """Halves of the blocks of two vectors, interleaved."""
    lanes = [block + half + lane for block in (0, COLUMNS) for lane in range(COLUMNS // 2)]
    order = ", ".join([f"i32 {number}" for lane in lanes for number in (lane, lane + TERMS)])
    name = L.emitter.assign(f"shufflevector {_VECTOR} {pair[0]}, {_VECTOR} {pair[1]}, <{TERMS} x i32> <{order}>")
    return fenced(L, dtypes.float32, _VECTOR, name)
