"""Squares of elements that are read from memory and transposed in registers, half a square at a time.

The last step of a transposition exchanges halves of vectors. Here they are read as halves, because shuffles are what
limits a transposition, and reading half a vector into another one is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.compiler.codegen import host
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, dtype_alignment
from weft.compiler.cpu.memory import exchanges, fenced, transposed
from weft.compiler.cpu.overlapping import Instructions, run
from weft.dtypes import Dtype

SHORT_VECTOR = 32
"""Up to this many bytes, half a vector is no longer than the blocks in which instructions shuffle elements."""


SEVERAL_SHUFFLES = ("znver4",)
"""LLVM's names of processors that shuffle inside of blocks in more units than they shift in, as far as was measured."""


def shifts_pairs() -> bool:
    """Whether the processor has an instruction that shifts pairs of elements across two vectors, and does it while it
    shuffles another vector. For more than one row, additions take as long as all shuffles."""
    processor = host.current()
    return "+avx512vbmi2" in processor.features and processor.name not in SEVERAL_SHUFFLES


def read_square(L: Lanes, dtype: Dtype, pointers: Sequence[str], align: int = 0) -> list[str]:
    """A square of elements of ``dtype`` from memory, transposed: the rows begin at ``pointers``, which are multiples of
    ``align`` bytes, if elements are not aligned."""
    align = align or dtype_alignment(dtype)
    if L.width < 4:
        type_ = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
        return transposed(L, dtype, [L.emitter.assign(f"load {type_}, ptr {x}, align {align}") for x in pointers])
    halves = [HalfSquare(L, dtype, pointers, start, align) for start in (0, L.width // 2)]
    for half in halves:
        run(half.reading)
    for half in halves:
        run(half.transposing)
    return [column for half in halves for column in half.columns]


def read_columns(L: Lanes, dtype: Dtype, pointers: Sequence[str]) -> list[str]:
    """The first half of a square, of at least four lanes: see `read_square`."""
    half = HalfSquare(L, dtype, pointers, 0, dtype_alignment(dtype))
    run([*half.reading, *half.transposing])
    return half.columns


class HalfSquare:
    """The columns of half a square, from ``start`` on: `columns` has them after all instructions of `reading`, then
    those of `transposing`, are emitted. If it ``shifts``, part of the elements, of 32 bits, are exchanged by shifts
    while others are read: processors that do one shuffle at a time do shifts beside it."""

    def __init__(
        self, L: Lanes, dtype: Dtype, pointers: Sequence[str], start: int, align: int, shifts: bool = False
    ) -> None:
        self._L, self._dtype, self._align = L, dtype, align
        self._type = f"<{L.width} x {MEMORY_TYPES[dtype]}>"
        half, quarter = L.width // 2, L.width // 4
        # Long vectors consist of rows of the same half of the square: then the last step chooses quarters of vectors in
        # one order, for which there is an instruction without a table.
        in_quarters = L.width * dtype.size > SHORT_VECTOR
        apart = quarter if in_quarters else half
        pairs = [(row, row + apart) for row in range(L.width) if not row & apart]
        self._vectors = [""] * half
        self.columns = [""] * half if in_quarters else self._vectors
        self.reading: Instructions = [
            partial(self._read, number, [pointers[row] for row in pair], start) for number, pair in enumerate(pairs)
        ]
        self.transposing = exchanges(L, dtype, self._vectors, apart)
        if shifts:
            self.reading += [partial(self._exchange_by_shift, first) for first in range(0, quarter, 2)]
            del self.transposing[:quarter]
        if in_quarters:
            numbers = [(number, odd) for odd in (0, 1) for number in range(quarter)]
            self.transposing += [partial(self._choose, number, odd) for number, odd in numbers]

    def _read(self, number: int, pointers: Sequence[str], start: int) -> None:
        """Read a vector of two halves, of different rows."""
        e, element, half = self._L.emitter, MEMORY_TYPES[self._dtype], self._L.width // 2
        places = [e.assign(f"getelementptr {element}, ptr {pointer}, i64 {start}") for pointer in pointers]
        halves = [e.assign(f"load <{half} x {element}>, ptr {place}, align {self._align}") for place in places]
        operands = ", ".join([f"<{half} x {element}> {name}" for name in halves])
        self._vectors[number] = self._shuffled(operands, range(self._L.width))

    def _exchange_by_shift(self, first: int) -> None:
        """Exchange neighbouring elements of two vectors: one shift of pairs of elements across both vectors makes the
        elements that change places neighbours."""
        L, e = self._L, self._L.emitter
        pair, wide = (self._vectors[first], self._vectors[first + 1]), f"<{L.width // 2} x i64>"
        low, high = [e.assign(f"bitcast {self._type} {name} to {wide}") for name in pair]
        count = f"<{', '.join(['i64 32'] * (L.width // 2))}>"
        shifted = e.call(f"llvm.fshl.v{L.width // 2}i64", wide, [(wide, high), (wide, low), (wide, count)])
        moved = self._fenced(e.assign(f"bitcast {wide} {shifted} to {self._type}"))
        lanes = [lane + L.width * (lane % 2) for lane in range(L.width)]
        for number, (even, odd) in enumerate([(pair[0], moved), (moved, pair[1])], first):
            self._vectors[number] = self._fenced(self._shuffled(f"{self._type} {even}, {self._type} {odd}", lanes))

    def _choose(self, number: int, odd: int) -> None:
        """Choose the even or the odd quarters of two vectors."""
        quarter = self._L.width // 4
        lanes = [part * quarter + lane for part in range(odd, 8, 2) for lane in range(quarter)]
        first, second = self._vectors[number], self._vectors[number + quarter]
        self.columns[number + odd * quarter] = self._shuffled(f"{self._type} {first}, {self._type} {second}", lanes)

    def _shuffled(self, operands: str, lanes: Sequence[int]) -> str:
        order = ", ".join([f"i32 {lane}" for lane in lanes])
        return self._L.emitter.assign(f"shufflevector {operands}, <{len(lanes)} x i32> <{order}>")

    def _fenced(self, vector: str) -> str:
        return fenced(self._L, self._dtype, self._type, vector)
