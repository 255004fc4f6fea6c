"""Products of a few rows with a transposed quantised matrix: codes are decoded in registers, where they are used, or
multiplied as integers.

A unit of work is a strip of columns, which are rows of the matrix. Sums are made in the same order as in
`weft.compiler.cpu.products.packed.blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, module_of
from weft.compiler.cpu.quantized import float4
from weft.compiler.cpu.quantized.across import keeping
from weft.compiler.cpu.quantized.across_ahead import reads_ahead
from weft.compiler.cpu.quantized.codes import VectorCoding
from weft.compiler.cpu.quantized.digits import HEADER, digits_of_processor
from weft.compiler.cpu.quantized.integer_strips import IntegerStripKernel
from weft.compiler.cpu.quantized.step import (
    COLUMNS,
    GROUP_SHIFT,
    GROUPS,
    PER_ROW,
    QuantizedStepWriter,
    Unit,
)
from weft.compiler.cpu.quantized.strips import QuantizedStrip, StripKernel

MOST_ROWS = 8
"""With more rows, it pays to decode the matrix into panels."""
_MOST_SUMS = 16
"""How many vectors of sums fit the registers, together with all other values, if there are 32; half as many if there
are 16."""

MOST_SUMS_OF_BYTES = 4
"""The same if numbers are looked up in bytes (`float4`)."""


def strip_of(coding: VectorCoding, rows: int, inner: int) -> QuantizedStrip:
    """The strip for this processor. With one or two rows of numbers, additions wait for each other unless there are
    four vectors of columns; there are registers for these if there are 32. Sums of integers do not wait. While bytes
    are looked up, registers hold many codes of each vector."""
    wide = coding.vector_bytes == 64
    most = _MOST_SUMS if wide else _MOST_SUMS // 2
    if coding.adds_integers:
        digits = digits_of_processor()
        return QuantizedStrip(coding, rows, 2 if 2 * rows * digits.count <= most else 1, False, digits)
    most = MOST_SUMS_OF_BYTES if float4.takes(coding) else most
    vectors = 4 if wide and rows <= 2 else 2 if 2 * rows <= most else 1
    return QuantizedStrip(coding, rows, vectors, reads_ahead(coding, vectors, inner))


@cache
def address(strip: QuantizedStrip) -> int:
    """The address of the step for products with a kind of strip."""
    name = f"quantized_few_rows_{strip.coding.mode}"
    return loading.load(f"{name} {strip}", lambda: generate(strip, name), (name,))[name]


def generate(strip: QuantizedStrip, name: str) -> str:
    """The LLVM IR of the step."""
    transposed = keeping(strip.coding, strip.vectors, words=not strip.ahead, ahead=strip.digits is None)
    functions = [*transposed, kernel(strip), StripStep(strip).function(name)]
    return module_of(functions)


def kernel(strip: QuantizedStrip) -> EmittedFunction:
    """The function that multiplies rows with a strip of the matrix."""
    made = DecodedStripKernel(strip) if strip.digits is None else IntegerStripKernel(strip, strip.digits)
    return made.function()


class DecodedStripKernel(StripKernel):
    """Writes the function; the numbers of the matrix are decoded."""

    def __init__(self, strip: QuantizedStrip) -> None:
        super().__init__(strip)
        self.scalar = Lanes(self.e, 1)

    def block(self, start: str, term: str, depth: str) -> None:
        with self.e.loop("0", depth, self.coding.terms) as inside:
            index = self.add(term, inside)
            group = self.e.assign(f"lshr i64 {self.subtract(index, start)}, %shift")
            for step, numbers in self.decoder.decoded(self.word_of(term, inside), group):
                self._add(self.add(index, step), numbers)

    def _add(self, term: str, numbers: Sequence[Value]) -> None:
        """Add the products of a term."""
        dtype = self.coding.dtype
        for row, line in enumerate(self.lines):
            left = self.L.splat(load(self.scalar, dtype, Location(line, term, False), None))
            for vector, value in enumerate(numbers):
                slot = self.sums[row, vector]
                total = self.L.fma(left, value, Value(self.L, self.e.load(self.type, slot), dtype))
                self.e.store(self.type, total.name, slot)


class StripStep(QuantizedStepWriter):
    """The loop over units, each of which is a strip."""

    def __init__(self, strip: QuantizedStrip) -> None:
        super().__init__(strip.coding)
        self.strip = strip

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as number:
            self.multiplied(self.unit(number), self.strip)
        return self.e, self.e.function(name, STEP)

    def row_of_x(self) -> str:
        digits = self.strip.digits
        if digits is None:
            return super().row_of_x()
        blocks = self.divide(self.e.assign(f"shl i64 1, {self.number(GROUP_SHIFT)}"), self.coding.terms)
        words = self.add(self.multiply(blocks, digits.words), HEADER)
        return self.multiply(self.number(GROUPS), words)

    def multiplied(self, unit: Unit, strip: QuantizedStrip) -> None:
        """Call the kernel of a strip."""
        x_row, columns = self.row_of_x(), self.number(COLUMNS)
        per_row, groups, shift = self.number(PER_ROW), self.number(GROUPS), self.number(GROUP_SHIFT)
        x = self.moved(unit.x, self.multiply(unit.top, x_row), self.element)
        words = self.moved(unit.words, self.multiply(unit.left, per_row), "i32")
        skipped, scale = self.multiply(unit.left, groups), MEMORY_TYPES[self.coding.scales]
        scales, biases = (self.moved(start, skipped, scale) for start in (unit.scales, unit.biases))
        c = self.moved(unit.result, self.add(self.multiply(unit.top, columns), unit.left), self.element)
        operands = f"ptr {x}, ptr {words}, ptr {scales}, ptr {biases}, ptr {c}"
        extents = f"i64 {x_row}, i64 {unit.rows}, i64 {unit.columns}, i64 {columns}"
        self.e.emit(f"call void @strip_{strip.rows}({operands}, {extents}, i64 {per_row}, i64 {groups}, i64 {shift})")
