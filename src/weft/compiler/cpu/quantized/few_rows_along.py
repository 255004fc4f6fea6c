"""Products of a few rows with a quantised matrix whose rows are terms. Several of these rows are read side by side,
each along a strip of columns, while the sums of the strip stay in the first cache.

Sums are made in the same order as in `weft.compiler.cpu.products.packed.blocks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of, read, write
from weft.compiler.cpu.products.few_rows.rows_at_once import FEWEST_ROWS, widest_of
from weft.compiler.cpu.products.step import below
from weft.compiler.cpu.quantized.along import Along
from weft.compiler.cpu.quantized.codes import VectorCoding
from weft.compiler.cpu.quantized.step import COLUMNS, GROUP_SHIFT, GROUPS, INNER, PER_ROW, QuantizedStepWriter, Unit
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

MOST_ROWS = 8
"""With more rows, it pays to decode the matrix into panels."""

_ADD = (
    "ptr %x, i64 %x_row, ptr %words, i64 %per_row, ptr %scales, ptr %biases, i64 %groups, i64 %shift, i64 %left, "
    "i64 %columns, ptr %sums"
)


@dataclass(frozen=True)
class QuantizedRowsAtOnce:
    """``terms`` rows of the matrix are read side by side, for ``rows`` rows of the result."""

    coding: VectorCoding
    rows: int
    terms: int

    @property
    def widest(self) -> int:
        """How many columns the widest strip has."""
        return widest_of(self.rows, self.coding.dtype)


def rows_at_once_of(coding: VectorCoding, rows: int) -> QuantizedRowsAtOnce:
    return QuantizedRowsAtOnce(coding, rows, 8 if rows <= FEWEST_ROWS else 4)


@cache
def address(at_once: QuantizedRowsAtOnce) -> int:
    """The address of the step that computes this many rows at once."""
    name = f"quantized_rows_at_once_{at_once.coding.mode}"
    return loading.load(f"{name} {at_once}", lambda: generate(at_once, name), (name,))[name]


def generate(at_once: QuantizedRowsAtOnce, name: str) -> str:
    """The LLVM IR of the step."""
    functions = [_add_terms(at_once, at_once.terms), _add_terms(at_once, 1), _RowsAlongStep(at_once).function(name)]
    return module_of(functions)


def _add_terms(at_once: QuantizedRowsAtOnce, terms: int) -> EmittedFunction:
    """A function that adds the products of some terms to the sums of a strip, which begins at column ``%left``."""
    coding, w = at_once.coding, Integers(Emitter())
    decoder, scalar = Along(coding, w), Lanes(w.e, 1)
    element, scale = MEMORY_TYPES[coding.dtype], MEMORY_TYPES[coding.scales]
    words = [w.moved("%words", w.multiply("%per_row", term), "i32") for term in range(terms)]
    scales, biases = (
        [w.moved(x, w.multiply("%groups", term), scale) for term in range(terms)] for x in ("%scales", "%biases")
    )
    rows = [w.moved("%x", w.multiply("%x_row", row), element) for row in range(at_once.rows)]
    with w.e.loop("0", "%columns", coding.terms) as column:
        lines = [w.moved("%sums", w.add(column, row * at_once.widest), element) for row in range(at_once.rows)]
        indices = range(0, coding.terms, decoder.L.width)
        sums = {
            (row, index): read(decoder.L, coding.dtype, line, index)
            for row, line in enumerate(lines)
            for index in indices
        }
        absolute = w.add("%left", column)
        group = w.e.assign(f"lshr i64 {absolute}, %shift")
        word = w.divide(w.multiply(absolute, coding.bits), WORD)
        for term in range(terms):
            factor = decoder.scale(scales[term], group)
            offset = decoder.scale(biases[term], group) if coding.affine else None
            for index, value in decoder.numbers(w.moved(words[term], word, "i32"), factor, offset):
                for row, line in enumerate(rows):
                    left = decoder.L.splat(read(scalar, coding.dtype, line, term))
                    sums[row, index] = decoder.L.fma(left, value, sums[row, index])
        for (row, index), total in sums.items():
            write(decoder.L, total, lines[row], index)
    return w.e, w.e.function(f"add_{terms}", _ADD, "internal ")


class _RowsAlongStep(QuantizedStepWriter):
    """The loops over a strip: blocks of terms, groups of terms that are read side by side."""

    def __init__(self, at_once: QuantizedRowsAtOnce) -> None:
        super().__init__(at_once.coding)
        self.at_once = at_once
        self.L = Lanes(self.e, at_once.coding.lanes)
        self.sums = self.e.slot(f"[{at_once.rows * at_once.widest} x {self.element}], align 64")

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as number:
            unit = self.unit(number)
            inner = self.number(INNER)
            with self.e.loop("0", inner, DEPTH) as first:
                self._clear(unit.columns)
                self._sum(unit, first, self.smaller(self.add(first, DEPTH), inner))
                self._store(unit, self.compare("ne", first, 0))
        return self.e, self.e.function(name, STEP)

    def _clear(self, columns: str) -> None:
        zeros = self.L.constant(0.0, self.coding.dtype)
        with self.e.loop("0", columns, self.L.width) as start:
            for row in range(self.at_once.rows):
                write(self.L, zeros, self.sums, self.add(start, row * self.at_once.widest))

    def _sum(self, unit: Unit, first: str, stop: str) -> None:
        """Add the terms of a block to the sums."""
        inner, per_row, groups = self.number(INNER), self.number(PER_ROW), self.number(GROUPS)
        terms, scale = self.at_once.terms, MEMORY_TYPES[self.coding.scales]
        whole = self.subtract(stop, self.remainder(self.subtract(stop, first), terms))
        for start, end, count in ((first, whole, terms), (whole, stop, 1)):
            with self.e.loop(start, end, count) as term:
                x = self.moved(unit.x, self.add(self.multiply(unit.top, inner), term), self.element)
                words = self.moved(unit.words, self.multiply(term, per_row), "i32")
                skipped = self.multiply(term, groups)
                scales, biases = (self.moved(at, skipped, scale) for at in (unit.scales, unit.biases))
                operands = f"ptr {x}, i64 {inner}, ptr {words}, i64 {per_row}, ptr {scales}, ptr {biases}"
                arguments = f"i64 {groups}, i64 {self.number(GROUP_SHIFT)}, i64 {unit.left}, i64 {unit.columns}"
                self.e.emit(f"call void @add_{count}({operands}, {arguments}, ptr {self.sums})")

    def _store(self, unit: Unit, again: str) -> None:
        """Store the sums of a block, or add them to the result."""
        columns, dtype = self.number(COLUMNS), self.coding.dtype
        for row in range(self.at_once.rows):
            index = self.add(self.multiply(self.add(unit.top, row), columns), unit.left)
            line = self.moved(unit.result, index, self.element)
            sums = self.moved(self.sums, row * self.at_once.widest, self.element)
            with self.e.loop("0", unit.columns, self.L.width) as start:
                mask = below(self.L, start, unit.columns)
                total = self.e.slot(self.L.type_of(dtype))
                found = read(self.L, dtype, sums, start)
                self.e.store(self.L.type_of(dtype), found.name, total)
                with self.e.when(again):
                    both = read(self.L, dtype, line, start, mask) + found
                    self.e.store(self.L.type_of(dtype), both.name, total)
                result = Value(self.L, self.e.load(self.L.type_of(dtype), total), dtype)
                write(self.L, result, line, start, mask)
