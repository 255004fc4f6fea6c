"""Products of several or many rows with a quantised matrix: parts of the matrix are decoded into panels, which the
second cache holds, and blocks of the result are computed as for other matrices.

Sums are made in the same order as in `weft.compiler.cpu.products.packed.blocks`.
"""

from __future__ import annotations

from functools import cache

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, store
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.products.packed.kernel import WHOLE, all_edges, kernel, kernels
from weft.compiler.cpu.products.packed.packing import pack_across
from weft.compiler.cpu.products.step import SQUARE, Block
from weft.compiler.cpu.products.tiles import GROUP, TILE_BYTES, block_of
from weft.compiler.cpu.quantized.across import Across, keeping
from weft.compiler.cpu.quantized.along import Along
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

ALIGNED = 96
"""Tiles begin at multiples of this many columns: at whole panels, and at whole words of codes."""

_UNPACK = (
    "ptr %words, ptr %scales, ptr %biases, ptr %to, i64 %term, i64 %depth, i64 %left, i64 %columns, i64 %per_row, "
    "i64 %groups, i64 %shift"
)


@cache
def address(coding: VectorCoding, transpose: bool) -> int:
    """The address of the step for products with matrices of a format, transposed or not."""
    name = f"quantized_blocks_{coding.mode}"
    return loading.load(f"{name} {coding} {transpose}", lambda: generate(coding, transpose, name), (name,))[name]


def generate(coding: VectorCoding, transpose: bool, name: str) -> str:
    """The LLVM IR of the step."""
    block = block_of(coding.dtype)
    unpack = [*keeping(coding, 1), _unpack_across(coding, block)] if transpose else [_unpack_along(coding, block)]
    multiply = kernels(block, all_edges(block), kernel)
    step = _QuantizedBlocksStep(coding, block).function(name)
    return module_of([*unpack, pack_across(block, coding.dtype, block.rows), *multiply, step])


class _Panel(Integers):
    """The panels into which the matrix is decoded: each has a block's columns, term after term."""

    def __init__(self, block: Block) -> None:
        super().__init__(Emitter())
        self.block = block

    def index(self, column: str, term: str) -> str:
        width = self.block.columns
        inside = self.remainder(column, width)
        panel = self.multiply(self.subtract(column, inside), self.rounded_up("%depth", SQUARE))
        return self.add(self.add(panel, self.multiply(term, width)), inside)

    def finished(self) -> EmittedFunction:
        return self.e, self.e.function("unpack", _UNPACK, "internal ")


def _unpack_across(coding: VectorCoding, block: Block) -> EmittedFunction:
    """A function that decodes rows of the matrix, which are columns of the result."""
    w = _Panel(block)
    decoder = Across(coding, 1, w)
    first = w.e.assign("lshr i64 %term, %shift")
    count = w.e.assign("lshr i64 %depth, %shift")
    word = w.divide(w.multiply("%term", coding.bits), WORD)
    words = w.divide(w.multiply("%depth", coding.bits), WORD)
    with w.e.loop("0", "%columns", block.lanes) as column:
        row, present = w.add("%left", column), w.subtract("%columns", column)
        skipped, element = w.multiply(row, "%groups"), MEMORY_TYPES[coding.scales]
        scales, biases = (w.moved(x, skipped, element) for x in ("%scales", "%biases"))
        decoder.keep_scales(scales, biases, "%groups", present, first, count)
        line = w.moved("%words", w.multiply(row, "%per_row"), MEMORY_TYPES[dtypes.uint32])
        decoder.keep_words(line, "%per_row", present, word, words)
        with w.e.loop("0", "%depth", coding.terms) as term:
            group = w.e.assign(f"lshr i64 {term}, %shift")
            for step, (value,) in decoder.numbers(term, group):
                target = Location("%to", w.index(column, w.add(term, step)), False)
                store(decoder.L, value, coding.dtype, target, None)
    return w.finished()


def _unpack_along(coding: VectorCoding, block: Block) -> EmittedFunction:
    """A function that decodes rows of the matrix, which are terms."""
    w = _Panel(block)
    decoder = Along(coding, w)
    element = MEMORY_TYPES[coding.scales]
    with w.e.loop("0", "%depth") as term:
        row = w.add("%term", term)
        words = w.moved("%words", w.multiply(row, "%per_row"), "i32")
        scales, biases = (w.moved(x, w.multiply(row, "%groups"), element) for x in ("%scales", "%biases"))
        with w.e.loop("0", "%columns", coding.terms) as column:
            index = w.add("%left", column)
            group = w.e.assign(f"lshr i64 {index}, %shift")
            factor = decoder.scale(scales, group)
            offset = decoder.scale(biases, group) if coding.affine else None
            here = w.moved(words, w.divide(w.multiply(index, coding.bits), WORD), "i32")
            for first, value in decoder.numbers(here, factor, offset):
                target = Location("%to", w.index(w.add(column, first), term), False)
                store(decoder.L, value, coding.dtype, target, None)
    return w.finished()


class _QuantizedBlocksStep(QuantizedStepWriter):
    """The loops over a tile: blocks of terms, panels of rows, panels of columns."""

    def __init__(self, coding: VectorCoding, block: Block) -> None:
        super().__init__(coding)
        self.block, self.group = block, GROUP * block.rows
        self.packed_x = self.e.slot(f"[{DEPTH * self.group} x {block.element}], align 64")
        self.packed_w = self.e.slot(f"[{TILE_BYTES} x i8], align 64")

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as number:
            self._tile(self.unit(number))
        return self.e, self.e.function(name, STEP)

    def _tile(self, unit: Unit) -> None:
        inner, columns = self.number(INNER), self.number(COLUMNS)
        per_row, groups, shift = self.number(PER_ROW), self.number(GROUPS), self.number(GROUP_SHIFT)
        with self.e.loop("0", inner, DEPTH) as term:
            depth, again = self.rest(inner, term, DEPTH), self.compare("ne", term, 0)
            operands = f"ptr {unit.words}, ptr {unit.scales}, ptr {unit.biases}, ptr {self.packed_w}"
            extents = f"i64 {term}, i64 {depth}, i64 {unit.left}, i64 {unit.columns}"
            self.e.emit(f"call void @unpack({operands}, {extents}, i64 {per_row}, i64 {groups}, i64 {shift})")
            with self.e.loop("0", unit.rows, self.group) as start:
                first, present = self.add(unit.top, start), self.rest(unit.rows, start, self.group)
                x = self.moved(unit.x, self.add(self.multiply(first, inner), term), self.element)
                pack = f"ptr {x}, i64 {inner}, ptr {self.packed_x}, i64 {depth}, i64 {present}"
                self.e.emit(f"call void @pack_across_{self.block.rows}({pack})")
                line = self.add(self.multiply(first, columns), unit.left)
                target = self.moved(unit.result, line, self.element)
                with self.e.loop("0", present, self.block.rows) as row:
                    self._blocks(unit, target, row, present, depth, again)

    def _blocks(self, unit: Unit, target: str, row: str, rows: str, depth: str, again: str) -> None:
        """Multiply the panel of rows that begins at ``row`` with all panels of columns."""
        block, c_row = self.block, self.number(COLUMNS)
        apart = self.rounded_up(depth, SQUARE)
        x = self.moved(self.packed_x, self.multiply(row, apart), block.element)
        line = self.moved(target, self.multiply(row, c_row), block.element)
        present = self.rest(rows, row, block.rows)

        def call(name: str, column: str, wide: str) -> None:
            w = self.moved(self.packed_w, self.multiply(column, apart), block.element)
            operands = f"ptr {x}, i64 1, i64 {block.rows}, ptr null, i64 0, ptr {w}, i64 {block.columns}"
            result = f"ptr {self.moved(line, column, block.element)}, i64 {c_row}"
            self.e.emit(f"call void @{name}({operands}, {result}, i64 {depth}, i64 {present}, i64 {wide}, i1 {again})")

        edge = self.remainder(unit.columns, block.columns)
        whole = self.subtract(unit.columns, edge)
        with self.e.loop("0", whole, block.columns) as column:
            call(WHOLE, column, str(block.columns))
        vectors = self.divide(self.add(edge, block.lanes - 1), block.lanes)
        for number, name in all_edges(block).items():
            with self.e.when(self.compare("eq", vectors, number)):
                call(name, whole, edge)
