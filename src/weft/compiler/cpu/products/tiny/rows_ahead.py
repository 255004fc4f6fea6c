"""Products of groups of small matrices of half precision, row by row, for vectors of 32 bytes: while a group is
multiplied, the left operand of the next one is converted.

A processor looks ahead by about one group. If the conversions came first, those that multiply would wait for them, and
for what they write to memory.
"""

from __future__ import annotations

from functools import partial

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction
from weft.compiler.cpu.overlapping import Instructions, evenly, run
from weft.compiler.cpu.products import float16_squares

from .groups import FEWEST_TERMS_TO_TRANSPOSE, GROUPS, LONG_VECTORS, Tiny, shuffled, vector_bytes
from .rows import TinyRowsWriter

SUMS_OF_SHORT_ROWS = 20
"""How many vectors of sums a group has at least if rows are at most a vector: conversions and stores are more of the
time then, and fill gaps of several matrices better."""


def takes(tiny: Tiny) -> bool:
    """Whether matrices that are multiplied row by row are computed here."""
    return tiny.source in HALVES and vector_bytes() < LONG_VECTORS


def transposes(tiny: Tiny) -> bool:
    """Whether right operands are transposed in registers, eight terms at a time."""
    (rows, columns, inner), width = tiny.extents, float16_squares.COLUMNS
    suits = tiny.source is dtypes.float16 and tiny.strides[3] != 1 and width // 2 < columns <= width
    return suits and takes(tiny) and rows > 1 and inner >= FEWEST_TERMS_TO_TRANSPOSE


class TinyRowsAheadWriter(TinyRowsWriter):
    """Multiplies a group of matrices, and converts the left operand of the next one."""

    groups = 2

    def __init__(self, tiny: Tiny) -> None:
        _, columns, inner = tiny.extents
        if max(columns, inner) <= tiny.lanes:
            self.fewest_sums = SUMS_OF_SHORT_ROWS
        super().__init__(tiny)
        self._squares: dict[tuple[int, int], str] = {}
        """Where blocks of terms of pairs of right operands are transposed."""

    def function(self, name: str) -> EmittedFunction:
        memory = self.left
        with self.e.when(self.compare("sgt", "%count", 0)):
            last = self.subtract("%count", 1)
            self._begin("0", "0")
            run(self._conversions(memory))
            with self.e.loop("0", "%count") as number:
                following = self.add(number, 1)
                self._begin(self.smaller(following, last), number)
                self.left = self._left_of(memory, number)
                run(evenly(self.multiplications(), self._conversions(self._left_of(memory, following))))
        return self.e, self.e.function(name, GROUPS, "internal ")

    def forget(self) -> None:
        super().forget()
        self._squares = {}

    def right_for(self, part: int, term: int) -> list[Value]:
        if not transposes(self.tiny):
            return super().right_for(part, term)
        width = float16_squares.COLUMNS
        matrix, block = self.row_of(part, 0)[0], term // width
        pair = matrix // 2, block
        if pair not in self._squares:
            self._squares[pair] = self._square(*pair)
        value = float16_squares.term(self.L, self._squares[pair], matrix % 2 * width + term % width)
        return [self.L.convert(value, self.tiny.dtype)]

    def _square(self, pair: int, block: int) -> str:
        """Transpose a block of terms of two matrices, which are in the halves of vectors."""
        (_, columns, _), width = self.tiny.extents, float16_squares.COLUMNS
        vectors = []
        for column in range(width):
            halves = []
            for matrix in (2 * pair, min(2 * pair + 1, self.matrices - 1)):
                place = matrix * self.tiny.sizes["b"] + min(column, columns - 1) * self.tiny.strides[3]
                place += block * width
                self.ends["b"] = max(self.ends["b"], place + width)
                pointer = self.moved(self.places["b"], place, "i16")
                halves.append(self.e.assign(f"load <{width} x i16>, ptr {pointer}, align 2"))
            vectors.append(shuffled(self.e, halves, range(2 * width), width))
        return float16_squares.write_vectors(self.L, vectors)

    def _left_of(self, memory: str, number: str) -> str:
        """Where the left operand of a group is: those of two groups take turns."""
        parity = self.e.assign(f"and i64 {number}, 1")
        return self.moved(memory, self.multiply(parity, self.left_vectors * self.L.width), self.element)

    def _begin(self, converted: str, multiplied: str) -> None:
        """Begin with the numbers of the groups that are converted and multiplied."""
        self.forget()
        for (operand, size), number in zip(self.tiny.bytes.items(), (converted, multiplied, multiplied), strict=True):
            self.places[operand] = self.moved(f"%{operand}", self.multiply(number, self.matrices * size))

    def _conversions(self, memory: str) -> Instructions:
        """Convert the left operand, two vectors at a time."""
        return [partial(self.convert_left, range(first, first + 2), memory) for first in range(0, self.left_vectors, 2)]
