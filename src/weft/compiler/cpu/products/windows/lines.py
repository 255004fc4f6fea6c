"""Matrix products of few rows with an operand whose columns go over several axes in memory, such as windows of an array
in which the last axis has no channels.

Each line, the columns along the innermost of these axes, is read in place: packing would take longer than multiplying
by few rows. The bits are those of other products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import index
from typing import NamedTuple

from weft.compiler.codegen import loading
from weft.compiler.cpu.code import STEP, module_of
from weft.compiler.cpu.products.packed.kernel import kernel_of_lines
from weft.compiler.cpu.products.step import COLUMNS, INNER, ROWS, Block, ProductStepWriter, Sources
from weft.compiler.cpu.products.tiles import MOST_TERMS, block_of
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

from .axes import AxisFactors, factor_numbers, offsets

MOST_ROWS = 8
SHORTEST_LINE = 16
"""Lines of fewer columns are packed, side by side."""
_MOST_VECTORS = 8
_UNITS_OF_THREAD = 4

# The step's numbers after those that every product has: how many lines of a matrix there are, and how many a unit has;
# then the axes in memory of rows, terms of the left operand, terms of the right one and columns.
_LINES, _LINES_OF_UNIT, _AXES = range(9, 12)
_LENGTH = len(factor_numbers(((1, 0),)))
_A_ROWS, _A_TERMS, _B_TERMS, _B_COLUMNS = range(_AXES, _AXES + 4 * _LENGTH, _LENGTH)
_BATCH_AXES = _AXES + 4 * _LENGTH


class Pieces(NamedTuple):
    """A line in pieces: the block that all but the last one have, and how many vectors the last one has."""

    block: Block
    vectors: int


def takes(rows: int, columns: AxisFactors) -> bool:
    """Whether a product is computed here, as far as its rows and the axes in memory of its columns tell."""
    extent, stride = columns[-1]
    return rows <= MOST_ROWS and len(columns) > 1 and stride == 1 and extent >= SHORTEST_LINE


def pieces_of(dtype: Dtype, rows: int, length: int) -> Pieces:
    """The pieces of lines of ``length`` columns: as even as possible, and such that registers hold the sums of a piece,
    its columns, and a number of the left operand."""
    rows, length = index(rows), index(length)  # code is made for them
    whole = block_of(dtype)
    registers = 32 if whole.vector_bytes == 64 else 16
    vectors = -(-length // whole.lanes)
    most = min(_MOST_VECTORS, (registers - 1) // (rows + 1))
    even = -(-vectors // -(-vectors // most))
    return Pieces(Block(dtype, rows, even, whole.vector_bytes), (vectors - 1) % even + 1)


@as_a_whole
def lines_of_unit(lines: int, matrices: int, threads: int) -> int:
    """How many lines a unit has: threads are busy, and tables are seldom written."""
    return max(1, lines * matrices // (_UNITS_OF_THREAD * threads))


@cache
def address(pieces: Pieces) -> int:
    """The address of the step for lines in such pieces."""
    block = pieces.block
    name = f"product_of_lines_{block.dtype.name}"
    return loading.load(f"{name} {pieces}", lambda: _generate(pieces, name), (name,))[name]


def _generate(pieces: Pieces, name: str) -> str:
    """The LLVM IR of the step."""
    block = pieces.block
    last = Block(block.dtype, block.rows, pieces.vectors, block.vector_bytes)
    functions = [offsets(), kernel_of_lines(block, "piece", edge=False), kernel_of_lines(last, "last", edge=True)]
    writer = _LinesWriter(pieces)
    with writer.e.loop("%begin", "%end") as unit:
        writer.unit(unit)
    functions.append((writer.e, writer.e.function(name, STEP)))
    return module_of(functions)


def step_numbers(
    places: Sequence[Place],
    extents: tuple[int, int, int],
    lines: tuple[int, int],
    axes: Sequence[AxisFactors],
    batch: Sequence[tuple[int, int, int, int]],
) -> list[int]:
    """The numbers of a step: places of both operands and the result; rows, columns and terms; how many ``lines`` a
    matrix has, and a unit; the axes in memory; for each batch axis its extent and three strides."""
    numbers = [number for place in places for number in place]
    of_batch = [number for axis in batch for number in axis]
    return [*numbers, *extents, *lines, *factor_numbers(*axes), len(batch), *of_batch]


class _LinesWriter(ProductStepWriter):
    """The loops over a unit: blocks of terms, lines, and pieces of lines."""

    def __init__(self, pieces: Pieces) -> None:
        block = pieces.block
        super().__init__(block.dtype, Sources(block.dtype, block.dtype), _BATCH_AXES)
        self.block = block
        self.rows = self.e.slot(f"[{MOST_ROWS} x i64]")
        self.left_terms, self.right_terms = [self.e.slot(f"[{MOST_TERMS} x i64]") for _ in range(2)]
        self.start = self.e.slot("i64")

    def unit(self, unit: str) -> None:
        lines, most = self.number(_LINES), self.number(_LINES_OF_UNIT)
        units = self.divide(self.add(lines, self.subtract(most, 1)), most)
        matrices = self.operands(self.divide(unit, units))
        begin = self.multiply(self.remainder(unit, units), most)
        end = self.smaller(self.add(begin, most), lines)
        self._write(_A_ROWS, "0", self.number(ROWS), self.rows)
        inner = self.number(INNER)
        # Without terms the loop runs once all the same, to store zeros.
        with self.e.loop("0", self.larger(inner, "1"), MOST_TERMS) as first:
            count = self.rest(inner, first, MOST_TERMS)
            self._write(_A_TERMS, first, count, self.left_terms)
            self._write(_B_TERMS, first, count, self.right_terms)
            # All terms of a line come before the next line, so that caches hold what both read.
            with self.e.loop(begin, end) as line:
                column = self.multiply(line, self.number(_B_COLUMNS + 1))
                self._write(_B_COLUMNS, column, "1", self.start)
                right = self.in_operand("b", matrices["b"], self.e.load("i64", self.start))
                pointers = matrices["a"], right, self.in_result(matrices["c"], column)
                with self.e.loop("0", self.larger(count, "1"), DEPTH) as term:
                    again = self.compare("ne", self.add(first, term), 0)
                    self._line(pointers, term, self.rest(count, term, DEPTH), again)

    def _line(self, pointers: tuple[str, str, str], term: str, depth: str, again: str) -> None:
        """Add some terms to the sums of a line."""
        length, width = self.number(_B_COLUMNS + 1), self.block.columns
        left, right, result = pointers
        left_terms, right_terms = [self.moved(table, term, "i64") for table in (self.left_terms, self.right_terms)]

        def call(name: str, first: str, wide: str) -> None:
            operands = f"ptr {left}, ptr {self.rows}, ptr {left_terms}"
            operands += f", ptr {self.in_operand('b', right, first)}, ptr {right_terms}"
            target = f"ptr {self.in_result(result, first)}, i64 {self.number(COLUMNS)}"
            counts = f"i64 {depth}, i64 {self.number(ROWS)}, i64 {wide}"
            self.e.emit(f"call void @{name}({operands}, {target}, {counts}, i1 {again})")

        rest = self.add(self.remainder(self.subtract(length, 1), width), 1)
        last = self.subtract(length, rest)
        with self.e.loop("0", last, width) as first:
            call("piece", first, str(width))
        call("last", last, rest)

    def _write(self, axis: int, first: str, count: str, table: str) -> None:
        """Write the distances of elements of an axis to a table."""
        factors = self.moved("%numbers", axis, "i64")
        self.e.emit(f"call void @offsets(ptr {factors}, i64 {first}, i64 {count}, ptr {table})")
