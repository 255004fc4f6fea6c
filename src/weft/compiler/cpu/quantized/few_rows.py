"""Products of a few rows with a transposed quantised matrix: codes are decoded in registers, where they are used.

A unit of work is a strip of columns, which are rows of the matrix. Sums are made in the same order as in
`weft.compiler.cpu.product`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers
from weft.compiler.cpu.product_step import below
from weft.compiler.cpu.quantized.across import Across, keeping
from weft.compiler.cpu.quantized.across_ahead import AcrossAhead, WeightRows, reads_ahead
from weft.compiler.cpu.quantized.codes import VectorCoding
from weft.compiler.cpu.quantized.step import (
    COLUMNS,
    GROUP_SHIFT,
    GROUPS,
    INNER,
    PER_ROW,
    QuantizedStepWriter,
    Unit,
)
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

MOST_ROWS = 8
"""With more rows, it pays to decode the matrix into panels."""
_MOST_SUMS = 16
"""How many vectors of sums fit the registers, together with all other values, if there are 32; half as many if there
are 16."""

_STRIP = (
    "ptr %x, ptr %words, ptr %scales, ptr %biases, ptr %c, i64 %inner, i64 %rows, i64 %columns, i64 %c_row, "
    "i64 %per_row, i64 %groups, i64 %shift"
)


@dataclass(frozen=True)
class QuantizedStrip:
    """A part of the result: ``rows`` rows and ``vectors`` vectors of columns. ``ahead``: the matrix is read ahead."""

    coding: VectorCoding
    rows: int
    vectors: int
    ahead: bool

    @property
    def columns(self) -> int:
        return self.vectors * self.coding.lanes


def strip_of(coding: VectorCoding, rows: int, inner: int) -> QuantizedStrip:
    """The strip for this processor. With one or two rows, additions wait for each other unless there are four vectors
    of columns; there are registers for these if there are 32."""
    wide = coding.vector_bytes == 64
    most = _MOST_SUMS if wide else _MOST_SUMS // 2
    vectors = 4 if wide and rows <= 2 else 2 if 2 * rows <= most else 1
    return QuantizedStrip(coding, rows, vectors, reads_ahead(coding, vectors, inner))


@cache
def address(strip: QuantizedStrip) -> int:
    """The address of the step for products with a kind of strip."""
    name = f"quantized_few_rows_{strip.coding.mode}"
    return loading.load(f"{name} {strip}", lambda: generate(strip, name), (name,))[name]


def generate(strip: QuantizedStrip, name: str) -> str:
    """The LLVM IR of the step."""
    transposed = keeping(strip.coding, strip.vectors, words=not strip.ahead)
    functions = [*transposed, kernel(strip), StripStep(strip).function(name)]
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


def kernel(strip: QuantizedStrip) -> EmittedFunction:
    """The function that multiplies rows with a strip of the matrix."""
    return _QuantizedRowsKernel(strip).function()


class _QuantizedRowsKernel(Integers):
    """Writes the function `kernel`."""

    def __init__(self, strip: QuantizedStrip) -> None:
        super().__init__(Emitter())
        self.strip, self.coding = strip, strip.coding
        self.decoder = self._decoder()
        self.L, self.scalar = self.decoder.L, Lanes(self.e, 1)
        self.element, self.type = MEMORY_TYPES[self.coding.dtype], self.L.type_of(self.coding.dtype)
        self.sums = {(row, v): self.e.slot(self.type) for row in range(strip.rows) for v in range(strip.vectors)}

    def _decoder(self) -> Across:
        coding, vectors = self.coding, self.strip.vectors
        if not self.strip.ahead:
            return Across(coding, vectors, self)
        rows = WeightRows("%words", "%scales", "%biases", "%per_row", "%groups", "%shift", "%columns")
        return AcrossAhead(coding, vectors, self, rows)

    def function(self) -> EmittedFunction:
        decoder = self.decoder
        if isinstance(decoder, AcrossAhead):
            decoder.begin()
        last = self.subtract("%rows", 1)
        # For a row that does not exist the last one is read; its sums are not stored.
        nearest = [self.smaller(str(row), last) for row in range(self.strip.rows)]
        rows = [self.moved("%x", self.multiply(row, "%inner"), self.element) for row in nearest]
        with self.e.loop("0", "%groups", decoder.groups) as first:
            count = self.smaller(self.subtract("%groups", first), decoder.groups)
            decoder.keep_scales("%scales", "%biases", "%groups", "%columns", first, count)
            start, stop = (self.e.assign(f"shl i64 {n}, %shift") for n in (first, self.add(first, count)))
            with self.e.loop(start, stop, DEPTH) as term:
                self._block(rows, start, term, stop)
        return self.e, self.e.function(f"strip_{self.strip.rows}", _STRIP, "internal ")

    def _block(self, rows: Sequence[str], start: str, term: str, stop: str) -> None:
        """Add the terms of a block. ``start`` is the first term whose scales were transposed."""
        coding = self.coding
        for slot in self.sums.values():
            self.e.store(self.type, self.L.constant(0.0, coding.dtype).name, slot)
        depth = self.smaller(self.subtract(stop, term), DEPTH)
        if not self.strip.ahead:
            first, count = (self.divide(self.multiply(n, coding.bits), WORD) for n in (term, depth))
            self.decoder.keep_words("%words", "%per_row", "%columns", first, count)
        with self.e.loop("0", depth, coding.terms) as inside:
            index = self.add(term, inside)
            group = self.e.assign(f"lshr i64 {self.subtract(index, start)}, %shift")
            for step, numbers in self.decoder.numbers(index if self.strip.ahead else inside, group):
                self._add(rows, self.add(index, step), numbers)
        again = self.compare("ne", term, 0)
        for row in range(self.strip.rows):
            with self.e.when(self.compare("slt", str(row), "%rows")):
                self._store(row, again)

    def _add(self, rows: Sequence[str], term: str, numbers: Sequence[Value]) -> None:
        """Add the products of a term."""
        dtype = self.coding.dtype
        for row, line in enumerate(rows):
            left = self.L.splat(load(self.scalar, dtype, Location(line, term, False), None))
            for vector, value in enumerate(numbers):
                slot = self.sums[row, vector]
                total = self.L.fma(left, value, Value(self.L, self.e.load(self.type, slot), dtype))
                self.e.store(self.type, total.name, slot)

    def _store(self, row: int, again: str) -> None:
        L, dtype = self.L, self.coding.dtype
        line = self.moved("%c", self.multiply("%c_row", row), self.element)
        for vector in range(self.strip.vectors):
            first, slot = str(vector * L.width), self.sums[row, vector]
            location, mask = Location(line, first, False), below(L, first, "%columns")
            with self.e.when(again):
                total = load(L, dtype, location, mask) + Value(L, self.e.load(self.type, slot), dtype)
                self.e.store(self.type, total.name, slot)
            store(L, Value(L, self.e.load(self.type, slot), dtype), dtype, location, mask)


class StripStep(QuantizedStepWriter):
    """The loop over units, each of which is a strip."""

    def __init__(self, strip: QuantizedStrip) -> None:
        super().__init__(strip.coding)
        self.strip = strip

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as number:
            self.multiplied(self.unit(number), self.strip)
        return self.e, self.e.function(name, STEP)

    def multiplied(self, unit: Unit, strip: QuantizedStrip) -> None:
        """Call the kernel of a strip."""
        inner, columns = self.number(INNER), self.number(COLUMNS)
        per_row, groups, shift = self.number(PER_ROW), self.number(GROUPS), self.number(GROUP_SHIFT)
        x = self.moved(unit.x, self.multiply(unit.top, inner), self.element)
        words = self.moved(unit.words, self.multiply(unit.left, per_row), "i32")
        skipped, scale = self.multiply(unit.left, groups), MEMORY_TYPES[self.coding.scales]
        scales, biases = (self.moved(start, skipped, scale) for start in (unit.scales, unit.biases))
        c = self.moved(unit.result, self.add(self.multiply(unit.top, columns), unit.left), self.element)
        operands = f"ptr {x}, ptr {words}, ptr {scales}, ptr {biases}, ptr {c}"
        extents = f"i64 {inner}, i64 {unit.rows}, i64 {unit.columns}, i64 {columns}"
        self.e.emit(f"call void @strip_{strip.rows}({operands}, {extents}, i64 {per_row}, i64 {groups}, i64 {shift})")
