"""Products of small matrices that are too large for code without loops.

Blocks of rows are multiplied. Operands of half precision are converted before, to memory in the first cache.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import READ_SOON, WRITE_SOON, prefetch
from weft.compiler.cpu.products import pairs_of_bfloat16
from weft.compiler.cpu.products.step import read

from .groups import LONG_VECTORS, Tiny, vector_bytes
from .rows import OTHERS, REGISTERS
from .sums import TinySumsWriter

MOST_COLUMNS = 32
MOST_ELEMENTS = 2048
"""How many elements an operand, or the result, has at most."""
FEW_ROWS, MOST_LEFT = 3, 64
"""If registers hold the sums of so few rows, the left operand has at most the second number of elements."""

PREFETCHED = 2 << 10
"""From this size in bytes on, the next matrices are prefetched, if vectors are long: these multiply so fast that they
would wait for a matrix which is beyond the page of memory in which the processor looks ahead."""


def takes(tiny: Tiny) -> bool:
    """Whether matrices are computed here."""
    _, columns, _ = tiny.extents
    vectors = -(-columns // tiny.lanes)
    if tiny.strides[3] != 1 or columns > MOST_COLUMNS:
        return False
    if _rows_at_once(vectors) <= FEW_ROWS and tiny.sizes["a"] > MOST_LEFT:
        return False
    # Fewer columns would fill half a vector at most.
    return 2 * columns > tiny.lanes and max(tiny.sizes.values()) <= MOST_ELEMENTS


def _rows_at_once(vectors: int) -> int:
    """Of how many rows registers hold the sums."""
    return (REGISTERS[vector_bytes()] - OTHERS) // vectors


class TinyBlocksWriter(TinySumsWriter):
    """Multiplies a matrix. A part is a row."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(tiny, 1, 1, tiny.extents[0])
        lanes = tiny.lanes
        self.converts = tiny.source is not tiny.dtype
        self.results = ""
        """Where the whole result of the current matrix is."""
        elements = {"a": -(-tiny.sizes["a"] // lanes) * lanes, "b": tiny.extents[2] * self.vectors * lanes}
        self.left, self.right = [
            self.e.slot(f"[{count} x float], align 64") if self.converts else "" for count in elements.values()
        ]

    def write(self) -> None:
        tiny = self.tiny
        rows, columns, inner = tiny.extents
        height = -(-rows // -(-rows // _rows_at_once(self.vectors)))
        self.ends["b"] = (inner - 1) * tiny.strides[2] + self.vectors * self.L.width
        if self.converts:
            self._convert_left()
        if self.converts and height < rows:
            self._convert_right()
        self.results, self.ends["c"] = self.places["c"], 0
        with self.e.loop("0", str(rows), height) as number:
            # The last block may have rows of the one before.
            first = self.smaller(number, rows - height)
            self.places["c"] = self.moved(self.results, self.multiply(first, columns * tiny.result.size))
            self._multiply(first, range(height))
        self.ends["c"] = max(tiny.sizes["c"], self.ends["c"] + (rows - height) * columns)

    def _convert_left(self) -> None:
        L, lanes, size = self.L, self.L.width, self.tiny.sizes["a"]
        with self.e.loop("0", str(size), lanes) as index:
            value = read(L, self.tiny.source, self.places["a"], index, None, self.tiny.dtype)
            store(L, value, self.tiny.dtype, Location(self.left, index, False, 64), None)
        self.ends["a"] = -(-size // lanes) * lanes

    def _convert_right(self) -> None:
        """Write vectors of the right operand, one term after the other."""
        with self.e.loop("0", str(self.tiny.extents[2])) as term:
            for vector, value in enumerate(self._columns(term)):
                store(self.L, value, self.tiny.dtype, self._place(term, vector), None)

    def _place(self, term: str, vector: int) -> Location:
        """Where a converted vector of the right operand is."""
        width = self.L.width
        return Location(self.right, self.add(self.multiply(term, self.vectors * width), vector * width), False, 64)

    def _columns(self, term: str) -> list[Value]:
        """The vectors of the right operand for a term."""
        L, source, type_ = self.L, self.tiny.source, self.L.type_of(dtypes.uint32)
        element = MEMORY_TYPES[source]
        row = self.moved(self.places["b"], self.multiply(term, self.tiny.strides[2]), element)
        places = [self.moved(row, vector * L.width, element) for vector in range(self.vectors)]
        found: list[Value] = []
        for place in places[: self.paired : 2]:
            pairs = self.e.assign(f"load {type_}, ptr {place}, align 2")
            found += pairs_of_bfloat16.apart(L, Value(L, pairs, dtypes.uint32))
        return [*found, *[read(L, source, place, "0", None, self.tiny.dtype) for place in places[self.paired :]]]

    def _multiply(self, first: str, rows: range) -> None:
        """Multiply a block of rows, and store the sums."""
        vectors, are_kept = range(self.vectors), self.converts and len(rows) < self.tiny.extents[0]

        def right(term: str) -> list[Value]:
            self._prefetch_next(first, term, len(rows))
            if are_kept:
                return [load(self.L, self.tiny.dtype, self._place(term, vector), None) for vector in vectors]
            return self._columns(term)

        self.multiply_block(self.left or self.places["a"], first, rows, vectors, right)

    def _prefetch_next(self, first: str, term: str, height: int) -> None:
        """Prefetch a part of the matrices after these: all of it, once all terms of all rows are multiplied."""
        tiny = self.tiny
        rows, _, inner = tiny.extents
        if self.converts or vector_bytes() < LONG_VECTORS or min(tiny.bytes.values()) < PREFETCHED:
            return
        done = self.add(self.multiply(first, inner), self.multiply(term, height))
        for name, start in {**self.places, "c": self.results}.items():
            size = tiny.bytes[name]
            part = self.divide(self.multiply(done, size), rows * inner)
            prefetch(self.e, self.moved(start, self.add(part, size)), WRITE_SOON if name == "c" else READ_SOON)
