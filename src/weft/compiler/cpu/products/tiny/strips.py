"""Products of small matrices with loops, in blocks of rows and strips of columns, for vectors of 32 bytes.

Registers hold the sums of few vectors, so a strip is seldom a whole row. Operands of half precision are converted to
memory in the first cache between and in the loops that multiply: there, the processor has units to spare. Elements of
the left operand are converted block by block, for the first strip; those of the right one strip by strip, for the first
block.
"""

from __future__ import annotations

from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.products import pairs_of_bfloat16
from weft.compiler.cpu.products.step import read
from weft.compiler.cpu.products.term_squares import square, terms_of_square

from .groups import Tiny
from .sums import TinySumsWriter

MOST_COLUMNS = 64
MOST_ELEMENTS = 4096
"""How many elements an operand, or the result, has at most."""
FEWEST_ROWS, MOST_FOR_FEW = 4, 1024
"""With fewer rows, their additions wait for each other. But right operands of half precision that are transposed, with
at most so many elements, are put in order once for all rows here."""
MANY_SUMS, MANY_TERMS = 8, 16
"""With more vectors of sums and so many terms, loops take less time than code without them, which is long."""

SUMS = 12
"""How many vectors of sums registers hold."""
FEWEST_CYCLES = 4
"""Each addition waits for so many cycles for the one before."""
CYCLES_OF_BLOCK, CYCLES_OF_SUM = 25, 7.5
"""How long a block takes besides multiplying, and each sum more of it than additions need that do not wait."""


def takes(tiny: Tiny) -> bool:
    """Whether matrices can be computed here, and there is no faster way with other loops."""
    (rows, columns, inner), transposed = tiny.extents, tiny.strides[3] != 1
    if columns > MOST_COLUMNS or max(tiny.sizes.values()) > MOST_ELEMENTS or (transposed and inner < tiny.lanes):
        return False
    if rows < FEWEST_ROWS:
        few = transposed and tiny.source in HALVES and tiny.sizes["b"] <= MOST_FOR_FEW
        return few and rows > 1 and inner >= 2 * tiny.lanes and 2 * columns > tiny.lanes
    # Fewer columns would fill half a vector at most.
    return 2 * columns > tiny.lanes


def has_many(tiny: Tiny) -> bool:
    """Whether code without loops takes longer, because the right operand is transposed or there are many rows and
    terms."""
    (rows, _, inner), vectors = tiny.extents, -(-tiny.extents[1] // tiny.lanes)
    if tiny.strides[3] != 1:
        # Squares of pairs need twice as many terms as vectors have lanes.
        return tiny.source is not dtypes.bfloat16 or vectors > 1 or inner >= 2 * tiny.lanes
    enough = inner > MANY_TERMS or (inner == MANY_TERMS and (tiny.source not in HALVES or vectors == 1))
    return enough and rows * vectors > MANY_SUMS


class _Shape(NamedTuple):
    """How many rows a block has, and the vectors of each strip."""

    height: int
    strips: list[range]


def shape_of(tiny: Tiny) -> _Shape:
    """The blocks and strips that take the least time. Strips have two vectors, the last one may have three."""
    rows, columns, inner = tiny.extents
    vectors = -(-columns // tiny.lanes)
    starts = [*range(0, max(vectors - 1, 1), 2)]
    strips = [range(*ends) for ends in zip(starts, [*starts[1:], vectors], strict=True)]
    widest = len(strips[-1])

    def time(height: int) -> float:
        cycles = [max(FEWEST_CYCLES, height * len(v) / 2, (height + len(v)) / 2) for v in strips]
        beside = CYCLES_OF_BLOCK + CYCLES_OF_SUM * max(0, height * widest - 2 * FEWEST_CYCLES)
        return -(-rows // height) * sum([inner * each + beside for each in cycles])

    heights = [-(-rows // -(-rows // most)) for most in range(SUMS // 3, SUMS // widest + 1)]
    return _Shape(min(heights, key=time), strips)


class TinyStripsWriter(TinySumsWriter):
    """Multiplies a matrix. A part is a row."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(tiny, 1, 1, tiny.extents[0])
        (rows, _, inner), lanes, element = tiny.extents, tiny.lanes, MEMORY_TYPES[tiny.dtype]
        self.height, self.strips = shape_of(tiny)
        self.converts, self.transposes = tiny.source is not tiny.dtype, tiny.strides[3] != 1
        self.keeps = self.transposes or (self.converts and self.height < rows)
        """Whether a strip of the right operand is kept in memory, for all blocks but perhaps the first one."""
        # What is converted of a block fills whole vectors.
        left = -(-tiny.sizes["a"] // lanes) + 1 if self.converts else 0
        right = inner * len(self.strips[-1]) if self.keeps else 0
        self.left, self.right = [
            self.e.slot(f"[{vectors * lanes} x {element}], align 64") if vectors else "" for vectors in (left, right)
        ]

    def write(self) -> None:
        rows, columns, inner = self.tiny.extents
        if not self.transposes:
            self.ends["b"] = (inner - 1) * self.tiny.strides[2] + self.vectors * self.L.width
        self.ends["c"] = 0
        in_rows, apart = self.tiny.strides[1] == 1, self.converts and not self.transposes
        if self.converts and not in_rows:
            self._convert_left("0", rows)
        results = self.places["c"]
        # The last strip is the first one: after its last column it writes garbage, where the next row begins.
        for vectors in reversed(self.strips):
            converts = self.converts and in_rows and vectors is self.strips[-1]
            if self.transposes:
                self._transpose(vectors)
            if apart:
                self._block("0", vectors, converts, False)
            with self.e.loop(str(self.height if apart else 0), str(rows), self.height) as number:
                # The last block may have rows of the one before.
                first = number if rows % self.height == 0 else self.smaller(number, rows - self.height)
                self.places["c"] = self.moved(results, self.multiply(first, columns * self.tiny.result.size))
                self._block(first, vectors, converts, self.keeps)
            self.places["c"] = results
        self.ends["c"] = max(self.tiny.sizes["c"], self.ends["c"] + (rows - self.height) * columns)

    def _block(self, first: str, vectors: range, converts: bool, are_kept: bool) -> None:
        """Multiply the block of rows from ``first`` on with a strip."""
        if converts:
            self._convert_left(first, self.height)
        self._multiply(first, vectors, are_kept)

    def _convert_left(self, first: str, rows: int) -> None:
        """Convert some rows of the left operand, or all of them, which follow each other in memory."""
        L, lanes, tiny = self.L, self.L.width, self.tiny
        start = self.multiply(first, tiny.extents[2]) if rows < tiny.extents[0] else "0"
        count = -(-rows * tiny.extents[2] // lanes) * lanes
        with self.e.loop("0", str(count), lanes) as number:
            index = self.add(start, number)
            value = read(L, tiny.source, self.places["a"], index, None, tiny.dtype)
            store(L, value, tiny.dtype, Location(self.left, index, False), None)
        self.ends["a"] = max(self.ends["a"], (tiny.extents[0] - rows) * tiny.extents[2] + count)

    def _transpose(self, vectors: range) -> None:
        """Write a strip of the right operand to memory, one term after the other. The last terms may be read twice, and
        lanes without a column repeat the last one."""
        L, tiny = self.L, self.tiny
        _, columns, inner = tiny.extents
        in_pairs = inner >= terms_of_square(L, tiny.source)
        terms = terms_of_square(L, tiny.source, in_pairs)
        with self.e.loop("0", str(inner), terms) as number:
            first = number if inner % terms == 0 else self.smaller(number, inner - terms)
            for place, vector in enumerate(vectors):
                numbers = [min(self.column(vector, lane), columns - 1) for lane in range(L.width)]
                element = MEMORY_TYPES[tiny.source]
                lines = [self.moved(self.places["b"], n * tiny.strides[3], element) for n in numbers]
                for term, value in enumerate(square(L, tiny.source, tiny.dtype, lines, first, None, in_pairs)):
                    store(L, value, tiny.dtype, self._place(self.add(first, term), place, len(vectors)), None)

    def _place(self, term: str, vector: int, count: int) -> Location:
        """Where a converted vector of a strip is."""
        index = self.add(self.multiply(term, count * self.L.width), vector * self.L.width)
        return Location(self.right, index, False, 32)

    def _columns(self, term: str, vectors: range) -> list[Value]:
        """The vectors of the right operand for a term of a strip."""
        L, source, type_ = self.L, self.tiny.source, self.L.type_of(dtypes.uint32)
        element = MEMORY_TYPES[source]
        row = self.moved(self.places["b"], self.multiply(term, self.tiny.strides[2]), element)
        found: list[Value] = []
        for vector in vectors:
            place = self.moved(row, vector * L.width, element)
            if vector >= self.paired:
                found.append(read(L, source, place, "0", None, self.tiny.dtype))
            elif vector % 2 == 0:
                pairs = self.e.assign(f"load {type_}, ptr {place}, align 2")
                found += pairs_of_bfloat16.apart(L, Value(L, pairs, dtypes.uint32))
        return found

    def _kept(self, term: str, count: int) -> list[Value]:
        return [load(self.L, self.tiny.dtype, self._place(term, vector, count), None) for vector in range(count)]

    def _multiply(self, first: str, vectors: range, are_kept: bool) -> None:
        """Multiply a block of rows with a strip, and store the sums."""

        def right(term: str) -> list[Value]:
            if are_kept:
                return self._kept(term, len(vectors))
            found = self._columns(term, vectors)
            if self.keeps:
                for vector, value in enumerate(found):
                    store(self.L, value, self.tiny.dtype, self._place(term, vector, len(vectors)), None)
            return found

        self.multiply_block(self.left or self.places["a"], first, range(self.height), vectors, right)
