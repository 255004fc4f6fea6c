"""Shared by products of a few rows with a transposed quantised matrix: strips of columns, which are rows of the matrix,
and the function that computes one."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.products.step import below
from weft.compiler.cpu.quantized.across import Across, WeightRows
from weft.compiler.cpu.quantized.across_ahead import AcrossAhead
from weft.compiler.cpu.quantized.codes import VectorCoding
from weft.compiler.cpu.quantized.digits import TermDigits
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

_STRIP = (
    "ptr %x, ptr %words, ptr %scales, ptr %biases, ptr %c, i64 %x_row, i64 %rows, i64 %columns, i64 %c_row, "
    "i64 %per_row, i64 %groups, i64 %shift"
)


@dataclass(frozen=True)
class QuantizedStrip:
    """A part of the result: ``rows`` rows and ``vectors`` vectors of columns. ``ahead``: the matrix is read ahead.
    ``digits`` say how terms are split if products are sums of integers."""

    coding: VectorCoding
    rows: int
    vectors: int
    ahead: bool
    digits: TermDigits | None = None

    @property
    def columns(self) -> int:
        return self.vectors * self.coding.lanes


class StripKernel(Integers):
    """Writes the function that multiplies rows with a strip of the matrix. Those who derive from it add up blocks of
    terms."""

    def __init__(self, strip: QuantizedStrip) -> None:
        super().__init__(Emitter())
        self.strip, self.coding = strip, strip.coding
        self.rows = WeightRows("%words", "%scales", "%biases", "%per_row", "%groups", "%shift", "%columns")
        self.ahead = AcrossAhead(self.coding, strip.vectors, self, self.rows) if strip.ahead else None
        self.decoder = self.ahead or Across(self.coding, strip.vectors, self)
        self.L = self.decoder.L
        self.element, self.type = MEMORY_TYPES[self.coding.dtype], self.L.type_of(self.coding.dtype)
        self.sums = {(row, v): self.e.slot(self.type) for row in range(strip.rows) for v in range(strip.vectors)}
        self.lines: list[str] = []
        """The addresses of the rows of ``%x``, whose elements have 4 or 8 bytes."""

    def block(self, start: str, term: str, depth: str) -> None:
        """Add ``depth`` terms, from ``term`` on, to the sums. ``start`` is the first term whose scales were
        transposed."""
        raise NotImplementedError

    def function(self) -> EmittedFunction:
        decoder = self.decoder
        if self.ahead is not None:
            self.ahead.begin()
        last = self.subtract("%rows", 1)
        # For a row that does not exist the last one is read; its sums are not stored.
        nearest = [self.smaller(str(row), last) for row in range(self.strip.rows)]
        self.lines = [self.moved("%x", self.multiply(row, "%x_row"), self.element) for row in nearest]
        with self.e.loop("0", "%groups", decoder.groups) as first:
            count = self.smaller(self.subtract("%groups", first), decoder.groups)
            decoder.keep_scales("%scales", "%biases", "%groups", "%columns", first, count)
            start, stop = (self.e.assign(f"shl i64 {n}, %shift") for n in (first, self.add(first, count)))
            with self.e.loop(start, stop, DEPTH) as term:
                self._block(start, term, stop)
        return self.e, self.e.function(f"strip_{self.strip.rows}", _STRIP, "internal ")

    def _block(self, start: str, term: str, stop: str) -> None:
        for slot in self.sums.values():
            self.e.store(self.type, self.L.constant(0.0, self.coding.dtype).name, slot)
        depth = self.smaller(self.subtract(stop, term), DEPTH)
        if self.ahead is None:
            first, count = (self.divide(self.multiply(n, self.coding.bits), WORD) for n in (term, depth))
            self.decoder.keep_words("%words", "%per_row", "%columns", first, count)
        self.block(start, term, depth)
        again = self.compare("ne", term, 0)
        for row in range(self.strip.rows):
            with self.e.when(self.compare("slt", str(row), "%rows")):
                self._store(row, again)

    def word_of(self, term: str, inside: str) -> str:
        """The position on the stack of the words of the terms that are decoded at once, from ``inside`` on in the block
        that begins at ``term``."""
        if self.ahead is not None:
            return self.ahead.ready(self.add(term, inside))
        return self.divide(self.multiply(inside, self.coding.bits), WORD)

    def _store(self, row: int, again: str) -> None:
        """Store the sums of a block, or add them to the result."""
        L, dtype = self.L, self.coding.dtype
        line = self.moved("%c", self.multiply("%c_row", row), self.element)
        for vector in range(self.strip.vectors):
            first, slot = str(vector * L.width), self.sums[row, vector]
            location, mask = Location(line, first, False), below(L, first, "%columns")
            with self.e.when(again):
                total = load(L, dtype, location, mask) + Value(L, self.e.load(self.type, slot), dtype)
                self.e.store(self.type, total.name, slot)
            store(L, Value(L, self.e.load(self.type, slot), dtype), dtype, location, mask)
