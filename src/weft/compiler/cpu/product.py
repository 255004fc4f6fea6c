"""Matrix products in generated code.

A unit of work is a tile of the result. Its operands are packed, ``DEPTH`` terms of the sums at a time, into panels in
which a kernel finds what it needs next to each other, unless it finds that where they lie; the kernel keeps a block of
the result in registers. (K. Goto and R. van de Geijn, Anatomy of high-performance matrix multiplication, 2008.) A panel
of the left operand is in the first cache while those of the right one pass by, which are in the second.

Every element is the sum, in order, of blocks of ``DEPTH`` terms, each block summed in order with fused multiply-adds:
neither the tiles nor the blocks nor the processor's vectors change its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from sys import maxsize
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import module
from weft.compiler.cpu import attached, product_complex
from weft.compiler.cpu.code import STEP, Function
from weft.compiler.cpu.memory import CACHE_LINE
from weft.compiler.cpu.product_kernel import kernel
from weft.compiler.cpu.product_packing import pack_across, pack_along
from weft.compiler.cpu.product_step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    SQUARE,
    Block,
    Sources,
    StepWriter,
)
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

TILE_BYTES = 640 << 10
"""The most of the right operand that is packed at once, for the second cache to hold."""
GROUP = 8
"""How many panels of the left operand are packed at once: enough to read whole lines of memory."""

# What decides about tiles. Work is counted in multiplications.
SMALLEST_SHARE = 1 << 18
"""A thread more has to have so much to do."""
PACKING = 24
"""Packing an element takes the time of so many multiplications."""
READING = 12
"""Reading an element from a cache that is further away takes the time of so many multiplications."""
FLAT_BLOCKS = 4, 2
"""For at most so many blocks of rows, so many panels of columns are packed at once: they are soon used up."""
UNEVEN = 0.5
"""Threads end at different times: this part of a tile apart. Processors of a machine that does other work, too, are not
equally fast, and tiles that are left are taken by those which are."""
MOST_CUTS = 24

WAITING_BYTES = 256 << 10
"""The most of a result that waits in the second cache for more terms."""
MOST_TERMS = 1 << 12
"""The most terms that are packed at once."""

SCRATCH_BYTES = 1 << 19
"""The most of a result that is made in scratch memory."""
ROWS_BYTES = 1 << 20
"""The most that rows take that an attached kernel needs whole, if they are made of several tiles."""
PASSING = 16
"""To store an element and read it again takes the time of so many multiplications twice."""

LITTLE = 32 << 10
"""So many bytes are read where they lie: the first cache holds them."""
OFTEN = 6
"""So many panels of columns are worth packing a panel of rows for."""
NEAR = 512 << 10
"""So many bytes of the right operand are read where they lie by tiles of few rows: the second cache holds them."""
FEW_ROWS = 256
READING_IN_PLACE = 1 / 16
"""By this part a kernel takes longer that reads the right operand where it lies."""

DTYPES = (dtypes.float32, dtypes.float64)

# The numbers of a step behind those of every product.
TILE_HEIGHT, TILE_WIDTH, DOWN, ACROSS, LEFT_WAY, RIGHT_WAY, SPAN, TERMS, FEEDER, BATCH_AXES = range(13, 23)


class Way(IntEnum):
    """How a kernel gets an operand: where it lies, or packed, with the elements or the terms as neighbours, or over
    several axes, or where another kernel has made it."""

    IN_PLACE = 0
    ALONG = 1
    ACROSS = 2
    OVER_AXES = 3
    FED = 4


@cache
def block_of(dtype: Dtype) -> Block:
    """The block for this processor: with 32 registers of 64 bytes, or with fewer (or shorter) ones."""
    return Block(dtype, 8, 3, 64) if "+avx512f" in host.current().features else Block(dtype, 4, 3, 32)


@cache
def address(dtype: Dtype, sources: Sources) -> int:
    """The address of the step for products of a dtype, with operands of the dtypes ``sources``."""
    name = f"product_{sources.name}"
    block = block_of(dtype)
    return loading.load(f"{name} {block}", lambda: generate(block, sources, name), (name,))[name]


def generate(block: Block, sources: Sources, name: str) -> str:
    """The LLVM IR of the step for products in blocks, with operands of the dtypes ``sources``."""
    functions = [*_packing(block, sources), kernel(block, "block", edge=False)]
    for vectors in range(1, block.vectors + 1):
        narrow = Block(block.dtype, block.rows, vectors, block.vector_bytes)
        functions.append(kernel(narrow, f"edge_{vectors}", edge=True))
    functions += [attached.caller(block.dtype.size), _step(block, sources, name)]
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


def _packing(block: Block, sources: Sources) -> list[Function]:
    """The functions that pack operands of the dtypes ``sources``."""
    if sources.left.is_complex:
        return product_complex.packing(block)
    sides = {block.rows: sources.left, block.columns: sources.right}
    return [pack(block, source, width) for pack in (pack_along, pack_across) for width, source in sides.items()]


def _step(block: Block, sources: Sources, name: str) -> Function:
    return step_function(TileWriter(block, sources), name)


def step_function(writer: TileWriter, name: str) -> Function:
    """The function of a step, which does units one after the other."""
    with writer.e.loop("%begin", "%end") as unit:
        writer.unit(unit)
    return writer.e, writer.e.function(name, STEP)


class Side(NamedTuple):
    """An operand of a step: its name, the numbers of its strides between elements and between terms, how it is read,
    how many elements a panel has, and where packed panels are."""

    name: str
    element: int
    term: int
    way: int
    width: int
    packed: str


class Panels(NamedTuple):
    """Where panels are: the first one, and the distances from element to element of them all, and of one panel, and
    from term to term."""

    start: str
    apart: str
    element: str
    term: str


class Terms(NamedTuple):
    """A block of terms: the first one, how many, and how many before it are packed at once with it."""

    first: str
    depth: str
    before: str


class _Unit(NamedTuple):
    """A unit of work, tiles side by side: the number of its matrix, pointers to the three matrices, and its first row,
    rows, first column and columns."""

    matrix: str
    matrices: dict[str, str]
    top: str
    rows: str
    left: str
    columns: str


class TileWriter(StepWriter):
    """The loops over a unit: tiles, terms of the sums, panels of rows, panels of columns."""

    def __init__(self, block: Block, sources: Sources, batch_axes: int = BATCH_AXES) -> None:
        # Of complex operands, everything is counted in real numbers.
        real = Sources(block.dtype, block.dtype) if sources.left.is_complex else sources
        super().__init__(block.dtype, real, batch_axes)
        self.block = block
        self.group = GROUP * block.rows
        packed_a = self.memory_of_panels(DEPTH * self.group * block.dtype.size // block.terms)
        packed_b = self.memory_of_panels(TILE_BYTES)
        self.scratch = self.e.slot(f"[{SCRATCH_BYTES} x i8], align 64")
        self.a = Side("a", A_ROW, A_INNER, LEFT_WAY, block.rows, packed_a)
        self.b = Side("b", B_COLUMN, B_INNER, RIGHT_WAY, block.columns, packed_b)

    def memory_of_panels(self, size: int) -> str:
        return self.e.slot(f"[{size} x i8], align {CACHE_LINE}")

    def unit(self, unit: str) -> None:
        across, down = self.number(ACROSS), self.number(DOWN)
        others = self.divide(unit, across)
        matrix = self.divide(others, down)
        matrices = self.operands(matrix)
        height, width = self.number(TILE_HEIGHT), self.number(TILE_WIDTH)
        whole = self.multiply(width, self.number(SPAN))
        top = self.multiply(self.remainder(others, down), height)
        left = self.multiply(self.remainder(unit, across), whole)
        rows = self.rest(self.number(ROWS), top, height)
        columns = self.rest(self.number(COLUMNS), left, whole)
        self.c_row = self.either(
            self.compare("ne", self.of_section(attached.SCRATCH), 0),
            self.of_section(attached.PITCH),
            self.number(COLUMNS),
        )
        reused = self.compare("eq", self.of_section(attached.SCRATCH), attached.REUSED)
        self.c_step = self.either(reused, 0, self.c_row)
        in_memory = self.further(matrices["c"], self.add(self.multiply(top, self.c_row), left))
        matrices["c"] = self.made_at(in_memory, self.scratch)
        with self.e.loop("0", columns, width) as start:
            self.tile(_Unit(matrix, matrices, top, rows, left, columns), start)

    def tile(self, unit: _Unit, across: str) -> None:
        """The tile of a unit that begins ``across`` columns behind its first one."""
        inner, most = self.number(INNER), self.number(TERMS)
        left, columns = self.add(unit.left, across), self.rest(unit.columns, across, self.number(TILE_WIDTH))
        ends_row = self.compare("eq", self.add(across, columns), unit.columns)
        panels = self.divide(self.add(columns, self.block.columns - 1), self.block.columns)
        wide = self.multiply(panels, self.block.columns)
        # Without terms there is one round all the same, which stores zeros.
        with self.e.loop("0", self.larger(inner, "1"), most) as first:
            end = self.larger(self.smaller(self.add(first, most), inner), self.add(first, 1))
            with self.e.loop(first, end, DEPTH) as term:
                part = Terms(term, self.rest(inner, term, DEPTH), self.subtract(term, first))
                self.pack_right(unit.matrices["b"], left, part, columns, wide)
            with self.e.loop("0", unit.rows, self.group) as start, self.e.loop(first, end, DEPTH) as term:
                part = Terms(term, self.rest(inner, term, DEPTH), self.subtract(term, first))
                right = self.right_panels(unit.matrices["b"], left, part, wide)
                self.rows(unit, across, start, columns, part, right)
                last = self.compare("sge", self.add(term, DEPTH), inner)
                with self.e.when(self.e.assign(f"and i1 {ends_row}, {last}")):
                    top, present = self.add(unit.top, start), self.rest(unit.rows, start, self.group)
                    rectangle = unit.matrix, top, present, unit.left, unit.columns
                    self.call_attached(rectangle, self.further(unit.matrices["c"], self.multiply(start, self.c_step)))

    def rows(self, unit: _Unit, across: str, start: str, columns: str, part: Terms, right: Panels) -> None:
        """Add some terms to a group of panels of rows, the one that begins with ``start``."""
        present = self.rest(unit.rows, start, self.group)
        panels = self.left_panels(unit.matrices["a"], self.add(unit.top, start), part, present)
        target = self.further(self.further(unit.matrices["c"], self.multiply(start, self.c_step)), across)
        counts = part.depth, self.compare("ne", part.first, 0)
        with self.e.loop("0", present, self.block.rows) as row:
            self.blocks(panels, right, target, row, present, columns, counts)

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        """Panels of the left operand, from a row on."""
        with self.e.when(self.compare("eq", self.number(LEFT_WAY), Way.FED)):
            feeder = self.moved("%numbers", self.number(FEEDER), "i64")
            rectangle = ", ".join([f"i64 {number}" for number in ("0", first, present, part.first, part.depth)])
            self.e.emit(f"call void @call_attached(ptr {feeder}, ptr %table, {rectangle}, ptr {self.a.packed})")
        source = self.place(operand, self.a, first, part.first)
        self.pack(self.a, source, self.a.packed, part.depth, present)
        return self.panels(self.a, source, self.a.packed, part.depth)

    def pack_right(self, operand: str, first: str, part: Terms, columns: str, wide: str) -> None:
        """Packs panels of the right operand, from a column on, if the step says so. There is room for ``wide`` ones."""
        packed = self.further(self.b.packed, self.multiply(part.before, wide))
        self.pack(self.b, self.place(operand, self.b, first, part.first), packed, part.depth, columns)

    def right_panels(self, operand: str, first: str, part: Terms, wide: str) -> Panels:
        """Panels of the right operand, from a column on."""
        packed = self.further(self.b.packed, self.multiply(part.before, wide))
        return self.panels(self.b, self.place(operand, self.b, first, part.first), packed, part.depth)

    def rows_of(self, left: Panels, row: str) -> str:
        """The arguments that give a kernel the rows from ``row`` on."""
        a = self.further(left.start, self.multiply(row, left.apart))
        return f"ptr {a}, i64 {left.element}, i64 {left.term}"

    def place(self, operand: str, side: Side, element: str, term: str) -> str:
        """Where an element and a term of an operand are."""
        start = self.in_operand(side.name, operand, self.multiply(element, self.number(side.element)))
        return self.in_operand(side.name, start, self.multiply(term, self.number(side.term)))

    def pack(self, side: Side, source: str, packed: str, depth: str, present: str) -> None:
        """Packs panels, if the step says so."""
        element, term, way = self.number(side.element), self.number(side.term), self.number(side.way)
        for wanted, name, stride in ((Way.ALONG, "along", term), (Way.ACROSS, "across", element)):
            with self.e.when(self.compare("eq", way, wanted)):
                arguments = f"ptr {source}, i64 {stride}, ptr {packed}, i64 {depth}, i64 {present}"
                self.e.emit(f"call void @pack_{name}_{side.width}({arguments})")

    def panels(self, side: Side, source: str, packed: str, depth: str) -> Panels:
        """Panels where they are packed, or in the operand."""
        element, term, way = self.number(side.element), self.number(side.term), self.number(side.way)
        in_place = self.compare("eq", way, Way.IN_PLACE)
        as_it_is = self.e.assign(f"or i1 {in_place}, {self.compare('eq', way, Way.FED)}")
        return Panels(
            self.e.assign(f"select i1 {in_place}, ptr {source}, ptr {packed}"),
            self.either(as_it_is, element, self.rounded_up(depth, SQUARE)),
            self.either(as_it_is, element, 1),
            self.either(as_it_is, term, side.width),
        )

    def blocks(
        self,
        left: Panels,
        right: Panels,
        target: str,
        row: str,
        rows: str,
        columns: str,
        counts: tuple[str, str],
        kind: str = "",
    ) -> None:
        """Multiply the panel of rows that begins with ``row`` with all panels of columns, in kernels of a ``kind``."""
        width, lanes = self.block.columns, self.block.lanes
        a, c_row = self.rows_of(left, row), self.c_row
        line = self.further(target, self.multiply(row, c_row))
        present, (depth, again) = self.rest(rows, row, self.block.rows), counts

        def call(name: str, column: str, wide: str) -> None:
            b, c = self.further(right.start, self.multiply(column, right.apart)), self.further(line, column)
            operands = f"{a}, ptr {b}, i64 {right.term}"
            result = f"ptr {c}, i64 {c_row}, i64 {depth}, i64 {present}, i64 {wide}, i1 {again}"
            self.e.emit(f"call void @{kind}{name}({operands}, {result})")

        edge = self.remainder(columns, width)
        whole = self.subtract(columns, edge)
        with self.e.loop("0", whole, width) as column:
            call("block", column, str(width))
        vectors = self.divide(self.add(edge, lanes - 1), lanes)
        for number in range(1, self.block.vectors + 1):
            with self.e.when(self.compare("eq", vectors, number)):
                call(f"edge_{number}", whole, edge)


class Reading(IntEnum):
    """Which tiles read the right operand where it lies: none, those of few rows, or all."""

    NOWHERE = 0
    IN_FEW_ROWS = 1
    AS_PANELS = 2


class Lying(NamedTuple):
    """Whether the left operand is always read where it lies, and which tiles read the right one there."""

    left: bool
    right: Reading


PACKED = Lying(False, Reading.NOWHERE)


class _Costs:
    """A model of what tiles cost, as multiplications for each term of the sums."""

    def __init__(self, block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying) -> None:
        rows, columns, inner = extents
        self.block = block
        self.matrices = matrices
        self.lying = lying
        self.busy = max(1, min(threads, matrices * rows * columns * inner // SMALLEST_SHARE))
        self.down = max(1, -(-rows // self.block.rows))
        self.across = max(1, -(-columns // self.block.columns))
        square = SQUARE * block.terms
        terms = -(-max(1, min(inner, DEPTH)) // square) * square
        widest = max(1, TILE_BYTES * block.terms // (terms * block.columns * block.dtype.size))
        self.widest = FLAT_BLOCKS[1] * block.terms if self.down <= FLAT_BLOCKS[0] else widest

    def time(self, tile: tuple[int, int], span: int = 1) -> float:
        """The time for all units, of so many tiles side by side, whose extents are given in blocks."""
        units = self.matrices * -(-self.down // tile[0]) * -(-self.across // (tile[1] * span))
        high, wide = tile[0] * self.block.rows, tile[1] * self.block.columns
        uneven = UNEVEN if self.busy > 1 else 0.0
        left = READING * high if self.lying.left else PACKING * high
        right: float = PACKING * wide
        if self.lying.right is Reading.AS_PANELS:
            right = READING * wide
        elif self.lying.right is Reading.IN_FEW_ROWS and high <= FEW_ROWS:
            right = READING_IN_PLACE * high * wide
        return (-(-units // self.busy) + uneven) * span * (high * wide + left + right)

    def elements(self, tile: tuple[int, int]) -> int:
        return tile[0] * self.block.rows * tile[1] * self.block.columns

    def best(self) -> tuple[int, int]:
        """The tile that takes the least time."""
        return min(
            ((h, w) for h in _parts(self.down, self.down) for w in _parts(self.across, self.widest)), key=self.time
        )


@as_a_whole
@cache
def tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying = PACKED
) -> tuple[int, int]:
    """Rows and columns of a tile: large ones pack each operand less often, several of a size keep threads busy."""
    costs = _Costs(block, extents, matrices, threads, lying)
    high, wide = costs.best()
    return high * block.rows, wide * block.columns


@as_a_whole
@cache
def row_tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying
) -> tuple[int, int, int] | None:
    """Rows and columns of a tile, and how many side by side make whole rows, which are a unit. None if that takes
    longer than to store the result and read it again."""
    rows, columns, inner = extents
    costs = _Costs(block, extents, matrices, threads, lying)
    passing = 2 * PASSING * matrices * rows * columns / costs.busy / max(inner, 1)
    found = []
    for wide in _parts(costs.across, costs.widest):
        span = -(-costs.across // wide)
        limit = ROWS_BYTES // block.dtype.size if span > 1 else maxsize
        heights = [high for high in _parts(costs.down, costs.down) if span * costs.elements((high, wide)) <= limit]
        found += [(costs.time((high, wide), span), high, wide, span) for high in heights]
    if not found:
        return None
    time, high, wide, span = min(found, key=lambda one: one[0])
    if time > costs.time(costs.best()) + passing:
        return None
    return high * block.rows, wide * block.columns, span


def _parts(whole: int, most: int) -> list[int]:
    """What comes of cutting a whole into equal parts of at most ``most``: the largest first, and only some."""
    fewest = -(-whole // most)
    return sorted({-(-whole // pieces) for pieces in range(fewest, fewest + MOST_CUTS)}, reverse=True)


def terms_of(block: Block, extents: tuple[int, int, int], tile: tuple[int, int]) -> int:
    """How many terms are packed at once. Results that a cache holds wait there for the next block of terms; of larger
    ones each group of panels is finished as far as the panels of the right operand fit the room for them."""
    rows, columns, inner = extents
    high, wide = min(tile[0], rows), min(tile[1], columns)
    if inner <= DEPTH or high * wide * block.dtype.size <= WAITING_BYTES:
        return DEPTH
    room = TILE_BYTES // (-(-wide // block.columns) * block.columns * block.dtype.size)
    return max(DEPTH, min(room, MOST_TERMS) // DEPTH * DEPTH)


def scratch_of(block: Block, inner: int, terms: int, tile: tuple[int, int], span: int) -> tuple[int, bool]:
    """How many bytes of scratch memory a unit needs for its result, and whether each group of panels uses it again: it
    does, if it is finished at once."""
    at_once = inner <= terms and span == 1
    rows = min(tile[0], GROUP * block.rows) if at_once else tile[0]
    return rows * tile[1] * span * block.dtype.size, at_once


def ways_of(
    block: Block, sources: Sources, extents: tuple[int, int, int], strides: Sequence[int], tile: tuple[int, int]
) -> tuple[Way, Way]:
    """How the kernel gets both operands, of which the strides are given: from row to row, term to term; term to term,
    column to column. It needs its own dtype, and neighbours in the columns of a term; all else saves time."""
    rows, columns, inner = extents
    _, a_inner, _, b_column = strides
    left, right = (Way.ACROSS if a_inner == 1 else Way.ALONG), (Way.ALONG if b_column == 1 else Way.ACROSS)
    size = block.dtype.size
    if sources.left is block.dtype:
        seldom = tile[1] < OFTEN * block.columns or inner < DEPTH
        if rows * inner * size <= LITTLE or (left is Way.ACROSS and seldom):
            left = Way.IN_PLACE
    if sources.right is block.dtype and right is Way.ALONG:
        reading = reading_right(block, sources.right, extents, strides)
        little = inner * columns * size <= LITTLE
        if little or reading is Reading.AS_PANELS or (reading is Reading.IN_FEW_ROWS and tile[0] <= FEW_ROWS):
            right = Way.IN_PLACE
    return left, right


def fed_strides(block: Block, turned: bool) -> tuple[int, int]:
    """How rows and terms of a left operand lie where a kernel makes it, by columns if it is ``turned``."""
    return (1, GROUP * block.rows) if turned else (DEPTH, 1)


def reading_right(block: Block, source: Dtype, extents: tuple[int, int, int], strides: Sequence[int]) -> Reading:
    """Which tiles read the right operand where it lies. One that lies there as in a panel need not be packed."""
    _, columns, inner = extents
    if source is not block.dtype or strides[3] != 1:
        return Reading.NOWHERE
    if columns <= strides[2] <= block.columns:
        return Reading.AS_PANELS
    return Reading.IN_FEW_ROWS if inner * columns * source.size <= NEAR else Reading.NOWHERE


def step_numbers(
    places: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    tile: tuple[int, int],
    ways: tuple[Way, Way],
    batch: Sequence[tuple[int, int, int, int]],
    section: Sequence[int] = attached.NONE,
    span: int = 1,
    terms: int = DEPTH,
    factors: Sequence[int] = (),
    feeder: Sequence[int] = attached.NONE,
) -> list[int]:
    """The numbers of a step: table slot and byte offset of both operands and the result; rows, columns and terms;
    four strides; rows and columns of a tile; how operands are read; how many tiles side by side are a unit; how many
    terms are packed at once; where the section for a kernel begins that feeds the step; which axes in memory operands
    go over, if several; per batch axis its extent and three strides; and the sections for an attached kernel and for
    the feeder."""
    rows, columns, _ = extents
    numbers = [number for place in places for number in place]
    units = -(-rows // tile[0]), -(-columns // (tile[1] * span))
    numbers += [*extents, *strides, *tile, *units, *ways, span, terms]
    behind = [*factors, len(batch), *[number for axis in batch for number in axis], *section]
    return [*numbers, len(numbers) + 1 + len(behind), *behind, *feeder]
