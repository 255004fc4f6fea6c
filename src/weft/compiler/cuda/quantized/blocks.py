"""Products with quantised matrices, tile by tile of the result: a part of the matrix is decoded into shared memory,
from where each thread multiplies some rows with some columns.

Sums are made in the same order as in `weft.compiler.cpu.products.packed.blocks`. The sum of a block of 256 terms is
made in registers; the sums of blocks are added to the result in memory. If there are few tiles, all blocks of terms are
done at once, their sums are stored in scratch memory, and another step adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.quantized import Coding, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.quantized import folding
from weft.compiler.cuda.quantized.codes import coding_of, number_at, words_from
from weft.compiler.cuda.quantized.operands import (
    ACROSS,
    COLUMNS,
    DOWN,
    GROUPS,
    INNER,
    PER_ROW,
    ROWS,
    SCRATCH,
    ProductWriter,
    QuantizedProduct,
    numbers_of,
)
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep

STEP_TERMS = 32
"""How many terms are in shared memory at a time."""
PIECE = 16
"""How many neighbouring numbers of the matrix a thread decodes at once: they share a scale."""
UNROLLED = 8
"""How many terms a turn of the loop multiplies."""
ENOUGH_TILES = 192
"""With fewer tiles a card has too little work, unless all blocks of terms are done at once."""


@dataclass(frozen=True)
class QuantizedTile:
    """``rows`` times ``columns`` of the result, of which each thread computes ``high`` times ``wide``."""

    coding: Coding
    group_size: int
    transpose: bool
    rows: int
    columns: int
    high: int
    wide: int
    split: bool

    @property
    def threads(self) -> int:
        return self.rows // self.high * self.across

    @property
    def across(self) -> int:
        """How many threads there are from left to right."""
        return self.columns // self.wide

    @property
    def together(self) -> int:
        """How many elements a thread reads at once."""
        return WIDEST_ACCESS // self.coding.dtype.size

    @property
    def left_row(self) -> int:
        """The distance from one term to the next in shared memory, in the left operand."""
        return self.rows + self.together

    @property
    def right_row(self) -> int:
        return self.columns + self.together

    @property
    def shared(self) -> int:
        return STEP_TERMS * (self.left_row + self.right_row) * self.coding.dtype.size


class TileCut(NamedTuple):
    """How a product is cut: rows and columns of a tile and of a thread, and whether all blocks of terms are done at
    once."""

    rows: int
    columns: int
    high: int
    wide: int
    split: bool


def cut_of(extents: tuple[int, int, int], matrices: int, dtype: Dtype) -> TileCut:
    """How a product is cut into tiles; ``extents`` are its rows, columns and terms."""
    rows, columns, inner = extents
    if rows <= 8:
        tile = (8, 128, 4, 2)
    elif rows <= 64 or dtype.size == 8:
        tile = (32, 128, 4, 4)
    else:
        tile = (128, 128, 8, 8)
    tiles = matrices * -(-rows // tile[0]) * -(-columns // tile[1])
    return TileCut(*tile, tiles < ENOUGH_TILES and inner > DEPTH)


def scratch_bytes(extents: tuple[int, int, int], matrices: int, dtype: Dtype) -> int:
    """Bytes of scratch memory for the sums of all blocks."""
    rows, columns, inner = extents
    if not cut_of(extents, matrices, dtype).split:
        return 0
    return -(-inner // DEPTH) * matrices * rows * columns * dtype.size


def steps(call: RoutineCall, kind: QuantizedFormat, transpose: bool) -> list[RoutineStep]:
    """The steps for a product."""
    (result,) = call.results
    *batch, rows, columns = result.shape
    inner, matrices = call.operands[0].shape[-1], prod(batch)
    cut = cut_of((rows, columns, inner), matrices, result.dtype)
    coding = coding_of(kind, call.operands[2].dtype, result.dtype)
    tile = QuantizedTile(coding, kind.group_size, transpose, *cut)
    across, down = -(-columns // tile.columns), -(-rows // tile.rows)
    blocks = -(-inner // DEPTH) if cut.split else 1
    units = matrices * down * across * blocks
    work = matrices * rows * columns * inner
    made = [RoutineStep(code(tile), numbers_of(call, kind, units, across, down), units, 1, work)]
    if cut.split:
        made.append(folding.step(call.scratch, result, matrices * rows * columns, blocks))
    return made


def code(tile: QuantizedTile) -> RoutineCode:
    title = f"products with quantised matrices, {tile.coding.mode}"
    return RoutineCode(f"{title}: {tile}", lambda name: _Blocks(tile).text(name), tile.threads, title, tile.shared)


class _Ahead(NamedTuple):
    """Slots for what a thread has read for the next step: elements of the left operand, words and scales of pieces."""

    left: list[str]
    words: list[list[str]]
    scales: list[tuple[str, str]]


class _Blocks(ProductWriter):
    """Writes the kernel."""

    def __init__(self, tile: QuantizedTile) -> None:
        super().__init__(tile.coding, tile.threads, tile.coding.dtype, tile.coding.dtype)
        self.tile = tile
        self.quad = Lanes(self.e, tile.together)
        self.left = self.shared_of_launch()
        self.right = self.moved(self.left, STEP_TERMS * tile.left_row, self.element)
        self.x_position = self.remainder(self.position, tile.across)
        self.y_position = self.divide(self.position, tile.across)
        self.sums = [[self.e.slot(self.element) for _ in range(tile.wide)] for _ in range(tile.high)]
        self.last_word = "0"

    @cached_property
    def ahead(self) -> _Ahead:
        tile = self.tile
        quads = -(-tile.rows * STEP_TERMS // (tile.together * tile.threads))
        pieces = STEP_TERMS * tile.columns // (PIECE * tile.threads)
        words = -(-PIECE * tile.coding.bits // 32)
        slots = [[self.e.slot("i32") for _ in range(words)] for _ in range(pieces)]
        scales = [(self.e.slot(self.element), self.e.slot(self.element)) for _ in range(pieces)]
        return _Ahead([self.e.slot(self.element) for _ in range(quads * tile.together)], slots, scales)

    def text(self, name: str) -> str:
        tile = self.tile
        inner = self.number(INNER)
        blocks = self.divide(self.add(inner, DEPTH - 1), DEPTH)
        with self.each_unit() as unit:
            block, others = "0", unit
            if tile.split:
                block, others = self.remainder(unit, blocks), self.divide(unit, blocks)
            left = self.multiply(self.remainder(others, self.number(ACROSS)), tile.columns)
            others = self.divide(others, self.number(ACROSS))
            top = self.multiply(self.remainder(others, self.number(DOWN)), tile.rows)
            number = self.divide(others, self.number(DOWN))
            product = self.product(number)
            lines = self.multiply(self.number(ROWS), self.number(COLUMNS))
            self.last_word = self._words_of_matrix()
            if tile.split:
                size = self.multiply(lines, self._matrices(blocks))
                index = self.add(self.multiply(block, size), self.multiply(number, lines))
                product = product._replace(result=self.moved(self.global_memory(SCRATCH), index, self.element))
                self._block(product, top, left, self.multiply(block, DEPTH), "false")
            else:
                with self.e.loop("0", inner, DEPTH) as start:
                    self._block(product, top, left, start, self.compare("ne", start, 0))
        return self.finished(name)

    def _matrices(self, blocks: str) -> str:
        """How many products there are."""
        units = self.divide(self.number(0), blocks)
        return self.divide(units, self.multiply(self.number(ACROSS), self.number(DOWN)))

    def _words_of_matrix(self) -> str:
        """The index of the last word of a row."""
        return self.subtract(self.number(PER_ROW), 1)

    def _block(self, product: QuantizedProduct, top: str, left: str, start: str, again: str) -> None:
        """Compute the sums of the terms of a block."""
        stop = self.smaller(self.add(start, DEPTH), self.number(INNER))
        for slot in [slot for line in self.sums for slot in line]:
            self.e.store(self.element, self.L.constant(0.0, self.coding.dtype).name, slot)
        self._read_ahead(product, top, left, start)
        with self.e.loop(start, stop, STEP_TERMS) as term:
            self._put_left()
            self._put_right()
            self.synchronize()
            self._read_ahead(product, top, left, self.add(term, STEP_TERMS))
            self._multiply_step(self.smaller(self.subtract(stop, term), STEP_TERMS))
            self.synchronize()
        self._store(product, top, left, again)

    def _read_ahead(self, product: QuantizedProduct, top: str, left: str, term: str) -> None:
        """Read what this thread will store to shared memory for the step from ``term`` on. In place of elements beyond
        the operands the last ones are read; they are not multiplied, or their results are not stored."""
        wide = self.compare("eq", self.remainder_of_address(product.x, WIDEST_ACCESS), 0)
        whole = self.compare("eq", self.e.assign(f"and i64 {self.number(INNER)}, {self.tile.together - 1}"), 0)
        wide = self.e.assign(f"and i1 {wide}, {whole}")
        for condition, together in ((wide, True), (self.negated(wide), False)):
            with self.e.when(condition):
                self._read_left(product, top, term, together)
        for piece in range(len(self.ahead.words)):
            self._read_piece(product, left, term, piece)

    def _read_left(self, product: QuantizedProduct, top: str, term: str, together: bool) -> None:
        count, dtype = self.tile.together, self.coding.dtype
        for quad in range(len(self.ahead.left) // count):
            row, inside = self._left_index(quad)
            row = self.smaller(self.add(top, row), self.subtract(self.number(ROWS), 1))
            line, first = self.multiply(row, self.number(INNER)), self.add(term, inside)
            slots = self.ahead.left[quad * count : (quad + 1) * count]
            if together:
                index = self.smaller(first, self.subtract(self.number(INNER), count))
                found = load(self.quad, dtype, Location(product.x, self.add(line, index), False, WIDEST_ACCESS), None)
                for number, slot in enumerate(slots):
                    self.e.store(self.element, self.part(self.quad, found, number), slot)
                continue
            for number, slot in enumerate(slots):
                index = self.smaller(self.add(first, number), self.subtract(self.number(INNER), 1))
                single = load(self.L, dtype, Location(product.x, self.add(line, index), False), None)
                self.e.store(self.element, single.name, slot)

    def _left_index(self, quad: int) -> tuple[str, str]:
        """The row, and the first term, of some elements that this thread reads. Some threads may have no row."""
        per_row = STEP_TERMS // self.tile.together
        index = self.add(self.position, quad * self.tile.threads)
        return self.divide(index, per_row), self.multiply(self.remainder(index, per_row), self.tile.together)

    def _piece_index(self, piece: int) -> tuple[str, str]:
        """The first term and the first column of a piece that this thread decodes."""
        index = self.add(self.position, piece * self.tile.threads)
        if self.tile.transpose:
            per_column = STEP_TERMS // PIECE
            return self.multiply(self.remainder(index, per_column), PIECE), self.divide(index, per_column)
        per_term = self.tile.columns // PIECE
        return self.divide(index, per_term), self.multiply(self.remainder(index, per_term), PIECE)

    def _read_piece(self, product: QuantizedProduct, left: str, term: str, piece: int) -> None:
        inside, column = self._piece_index(piece)
        along, line = self.add(term, inside), self.add(left, column)
        last_along, last_line = self.subtract(self.number(INNER), PIECE), self.subtract(self.number(COLUMNS), 1)
        if not self.tile.transpose:
            along, line = line, along
            last_along, last_line = self.subtract(self.number(COLUMNS), PIECE), self.subtract(self.number(INNER), 1)
        along, line = self.smaller(along, last_along), self.smaller(line, last_line)
        words = self.moved(product.words, self.multiply(line, self.number(PER_ROW)), "i32")
        bits = self.coding.bits
        found = words_from(self, words, self.multiply(along, bits), PIECE * bits, self.last_word)
        for word, slot in zip(found, self.ahead.words[piece], strict=True):
            self.e.store("i32", word.name, slot)
        group = self.divide(along, self.tile.group_size)
        group = self.add(self.multiply(line, self.number(GROUPS)), group)
        factor, offset = self.ahead.scales[piece]
        self.e.store(self.element, self.scale_value(product.scales, group).name, factor)
        if self.coding.affine:
            self.e.store(self.element, self.scale_value(product.biases, group).name, offset)

    def _put_left(self) -> None:
        tile, count = self.tile, self.tile.together
        for quad in range(len(self.ahead.left) // count):
            row, inside = self._left_index(quad)
            with self.e.when(self.compare("slt", row, tile.rows)):
                for number, slot in enumerate(self.ahead.left[quad * count : (quad + 1) * count]):
                    index = self.add(self.multiply(self.add(inside, number), tile.left_row), row)
                    pointer = self.moved(self.left, index, self.element)
                    self.e.store(self.element, self.e.load(self.element, slot), pointer)

    def _put_right(self) -> None:
        for piece, slots in enumerate(self.ahead.words):
            inside, column = self._piece_index(piece)
            words = [Value(self.L, self.e.load("i32", slot), dtypes.uint32) for slot in slots]
            factor, offset = self._scale_ahead(piece)
            for code in range(PIECE):
                plain = number_at(self.coding, words, code * self.coding.bits)
                value = scaled(self.coding, plain, factor, offset)
                line, there = self.add(inside, code), column
                if not self.tile.transpose:
                    line, there = inside, self.add(column, code)
                index = self.add(self.multiply(line, self.tile.right_row), there)
                self.e.store(self.element, value.name, self.moved(self.right, index, self.element))

    def _scale_ahead(self, piece: int) -> tuple[Value, Value | None]:
        factor, offset = self.ahead.scales[piece]
        found = Value(self.L, self.e.load(self.element, factor), self.coding.dtype)
        if not self.coding.affine:
            return found, None
        return found, Value(self.L, self.e.load(self.element, offset), self.coding.dtype)

    def _multiply_step(self, count: str) -> None:
        """Multiply the terms in shared memory."""
        whole = self.e.assign(f"and i64 {count}, {-UNROLLED}")
        with self.e.loop("0", whole, UNROLLED) as first:
            for step in range(UNROLLED):
                self._multiply_term(self.add(first, step))
        with self.e.loop(whole, count) as term:
            self._multiply_term(term)

    def _multiply_term(self, term: str) -> None:
        tile, dtype = self.tile, self.coding.dtype
        above = self.add(self.multiply(term, tile.left_row), self.multiply(self.y_position, tile.high))
        rows = self._some(
            self.left, [str(n) for n in range(0, tile.high, min(tile.high, tile.together))], above, tile.high
        )
        across = self.multiply(term, tile.right_row)
        indices = [self._column(number) for number in range(0, tile.wide, self._run)]
        columns = self._some(self.right, indices, across, tile.wide)
        for left, line in zip(rows, self.sums, strict=True):
            for right, slot in zip(columns, line, strict=True):
                before = Value(self.L, self.e.load(self.element, slot), dtype)
                self.e.store(self.element, self.L.fma(left, right, before).name, slot)

    @property
    def _run(self) -> int:
        """How many columns of a thread are next to each other."""
        return min(self.tile.wide, self.tile.together)

    def _column(self, number: int) -> str:
        """The number of a column of this thread in the tile. Neighbouring threads have neighbouring runs of columns."""
        run = self._run
        index = self.add(self.multiply(self.x_position, run), number // run * self.tile.across * run)
        return self.add(index, number % run)

    def _some(self, memory: str, indices: Sequence[str], start: str, count: int) -> list[Value]:
        """``count`` elements, in as many equal accesses as there are ``indices``."""
        some = Lanes(self.e, count // len(indices))
        dtype, found = self.coding.dtype, []
        for index in indices:
            location = Location(memory, self.add(start, index), False, some.width * dtype.size)
            value = load(some, dtype, location, None)
            found += [Value(self.L, self.part(some, value, number), dtype) for number in range(some.width)]
        return found

    def _store(self, product: QuantizedProduct, top: str, left: str, again: str) -> None:
        tile, dtype = self.tile, self.coding.dtype
        for high, line in enumerate(self.sums):
            row = self.add(self.add(top, self.multiply(self.y_position, tile.high)), high)
            start = self.multiply(row, self.number(COLUMNS))
            row_is_there = self.compare("slt", row, self.number(ROWS))
            for wide, slot in enumerate(line):
                column = self.add(left, self._column(wide))
                there = self.e.assign(f"and i1 {row_is_there}, {self.compare('slt', column, self.number(COLUMNS))}")
                location = Location(product.result, self.add(start, column), False)
                with self.e.when(there):
                    with self.e.when(again):
                        found = Value(self.L, self.e.load(self.element, slot), dtype)
                        total = load(self.L, dtype, location, None) + found
                        self.e.store(self.element, total.name, slot)
                    store(self.L, Value(self.L, self.e.load(self.element, slot), dtype), dtype, location, None)
