"""Matrix products in generated code.

A unit of work is a tile of the result. Its operands are packed, ``DEPTH`` terms of the sums at a time, into panels, in
which a kernel reads what it needs in order; an operand that already has such an order is read in place. The kernel
holds a block of the result in registers. (K. Goto and R. van de Geijn, Anatomy of high-performance matrix
multiplication, 2008.) A panel of the left operand stays in the first cache while those of the right one, which are in
the second cache, are read; or, if vectors are short, a panel of the right one while a group of the left one is read.

Every element is the sum, in order, of blocks of ``DEPTH`` terms, and each block is summed in order with fused
multiply-adds: tiles, blocks of registers and the length of vectors do not change its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import ClassVar, NamedTuple

from weft import dtypes
from weft.compiler.codegen import attached_calls, loading
from weft.compiler.cpu.code import STEP, EmittedFunction, module_of
from weft.compiler.cpu.memory import CACHE_LINE
from weft.compiler.cpu.products import attached
from weft.compiler.cpu.products.packed import complex_blocks
from weft.compiler.cpu.products.step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    SQUARE,
    Block,
    ProductStepWriter,
    Sources,
)
from weft.compiler.cpu.products.tiles import GROUP, SCRATCH_BYTES, TILE_BYTES, Way, converts_whole_lines, keeps_columns
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

from .kernel import WHOLE, all_edges, kernel, kernel_in_panels, kernel_that_packs, kernels
from .packing import pack_across, pack_along, pack_lines, pack_turned, panels_at

DTYPES = (dtypes.float32, dtypes.float64)

# The positions of the step's numbers after those that every product has. There, the terms are those of a part.
TILE_HEIGHT, TILE_WIDTH, DOWN, ACROSS, LEFT_WAY, RIGHT_WAY, SPAN, TERMS = range(13, 21)
ALL_TERMS, MATRICES, FEEDER, BATCH_AXES = range(21, 25)


@cache
def address(block: Block, sources: Sources) -> int:
    """The address of the step for products in a kind of block, with operands of the dtypes ``sources``."""
    name = f"product_{sources.name}"
    return loading.load(f"{name} {block}", lambda: generate(block, sources, name), (name,))[name]


def generate(block: Block, sources: Sources, name: str) -> str:
    """The LLVM IR of the step for products in a kind of block, with operands of the dtypes ``sources``."""
    result = sources.result(block.dtype)
    multiply = kernels(block, all_edges(block), partial(kernel, result=result))
    multiply.append(kernel_in_panels(block, "block_in_panels", result))
    packs = "" if keeps_columns(block) or sources.right is not block.dtype else "block_that_packs"
    if packs:
        multiply.append(kernel_that_packs(block, packs, result))
    step = step_function(TileWriter(block, sources, in_panels="block_in_panels", packs=packs), name)
    return module_of([*_packing(block, sources), *multiply, step])


def _packing(block: Block, sources: Sources) -> list[EmittedFunction]:
    """The functions that pack operands of the dtypes ``sources``."""
    if sources.left.is_complex:
        return complex_blocks.packing(block)
    group = GROUP * block.rows
    along = [pack_along(block, sources.left, block.rows, ahead=group)]
    if keeps_columns(block):
        along = [pack_turned(block, sources.left, ahead=group)]
    along.append(pack_along(block, sources.right, block.columns))
    if converts_whole_lines(block, sources):
        along.append(pack_along(block, sources.left, group, "convert_lines"))
    return [*along, pack_lines(block, sources.left), pack_across(block, sources.right, block.columns)]


def step_function(writer: TileWriter, name: str) -> EmittedFunction:
    """The function of a step: a loop over units."""
    with writer.e.loop("%begin", "%end") as unit:
        writer.unit(unit)
    return writer.e, writer.e.function(name, STEP)


ALL = ""
"""Stands for all panels of rows of a group."""


class Side(NamedTuple):
    """An operand of a step: its name, the positions of the numbers for its strides (between elements and between terms)
    and for the way it is read, how many elements a panel has, where packed panels are, and in which ways of packing
    they hold one element in each line: see `each_part`."""

    name: str
    element: int
    term: int
    way: int
    width: int
    packed: str
    in_lines: tuple[Way, ...] = ()


class Panels(NamedTuple):
    """Panels: their start, the distance from element to element across panels and within one, and that from term to
    term. Rows of the left operand are prefetched: ``later`` is where those after the first panel begin, and they are
    ``later_row`` bytes apart; 0 if they are packed already. Whole panels of the right operand are packed while the
    first rows are multiplied, if these ``pack`` them: from ``source``, where terms are ``source_term`` apart."""

    start: str
    apart: str
    element: str
    term: str
    later: str = ""
    later_row: str = ""
    pack: str = ""
    source: str = ""
    source_term: str = ""


class Terms(NamedTuple):
    """A block of terms: the first one, how many there are, and how many terms before it are packed with it."""

    first: str
    depth: str
    before: str


class UnitOfTiles(NamedTuple):
    """A unit of work, one or more tiles side by side: the number of its matrix, pointers to the three matrices, and its
    first row, rows, first column and columns."""

    matrix: str
    matrices: dict[str, str]
    top: str
    rows: str
    left: str
    columns: str


class TileWriter(ProductStepWriter):
    """The loops over a unit: tiles, blocks of terms, panels of rows, panels of columns."""

    copies_lines: ClassVar[bool] = True
    """Whether lines of the left operand may be copied for one panel at a time, or for a whole group that is multiplied
    with one panel of columns after the other."""

    def __init__(
        self, block: Block, sources: Sources, batch_axes: int = BATCH_AXES, in_panels: str = "", packs: str = ""
    ) -> None:
        """``in_panels`` is the kernel of whole blocks for operands that are both in panels, if there is one, and
        ``packs`` the one that packs panels of columns."""
        # For complex operands, everything is counted in real numbers.
        real = Sources(block.dtype, block.dtype) if sources.left.is_complex else sources
        super().__init__(block.dtype, real, batch_axes)
        self.block = block
        self.in_panels, self.packs = in_panels, packs
        self.edges = all_edges(block)
        self.converts_lines = converts_whole_lines(block, sources)
        self.size = real.left.size
        self.group = GROUP * block.rows
        self.columns_first = self.copies_lines and keeps_columns(block)
        # Where all columns come before the next rows, lines of one panel stay in the first cache until they are used.
        self.converts_panels_alone = self.copies_lines and not self.columns_first
        packed_a = self.memory_of_panels(DEPTH * self.group * block.dtype.size // block.terms)
        packed_b = self.memory_of_panels(TILE_BYTES)
        self.scratch = self.e.slot(f"[{SCRATCH_BYTES} x i8], align 64")
        in_lines = (Way.ACROSS, Way.ALONG) if self.columns_first else (Way.ACROSS,)
        self.a = Side("a", A_ROW, A_INNER, LEFT_WAY, block.rows, packed_a, in_lines)
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
            self.compare("ne", self.of_section(attached_calls.SCRATCH), 0),
            self.of_section(attached_calls.PITCH),
            self.row_distance(),
        )
        reused = self.compare("eq", self.of_section(attached_calls.SCRATCH), attached.REUSED)
        self.c_step = self.either(reused, 0, self.c_row)
        in_memory = self.in_result(matrices["c"], self.add(self.multiply(top, self.c_row), left))
        matrices["c"] = self.made_at(in_memory, self.scratch)
        self.begin, self.end = self.terms_of(matrix)
        with self.e.loop("0", columns, width) as start:
            self.tile(UnitOfTiles(matrix, matrices, top, rows, left, columns), start)

    def terms_of(self, matrix: str) -> tuple[str, str]:
        """The first term of the sums of a matrix, and the one after the last. The first matrices have the first part of
        the terms, the next ones the second part: see `weft.compiler.cpu.products.parts`."""
        part, _ = self.parts(matrix, self.number(MATRICES))
        first = self.multiply(part, self.number(INNER))
        return first, self.smaller(self.add(first, self.number(INNER)), self.number(ALL_TERMS))

    def row_distance(self) -> str:
        """The distance between rows of the result in memory."""
        return self.number(COLUMNS)

    def tile(self, unit: UnitOfTiles, across: str) -> None:
        """The tile of a unit that begins ``across`` columns after the first column."""
        begin, inner, most = self.begin, self.end, self.number(TERMS)
        left, columns = self.add(unit.left, across), self.rest(unit.columns, across, self.number(TILE_WIDTH))
        ends_row = self.compare("eq", self.add(across, columns), unit.columns)
        panels = self.divide(self.add(columns, self.block.columns - 1), self.block.columns)
        wide = self.multiply(panels, self.block.columns)
        # Without terms the loop runs once all the same, to store zeros.
        with self.e.loop(begin, self.larger(inner, self.add(begin, 1)), most) as first:
            end = self.larger(self.smaller(self.add(first, most), inner), self.add(first, 1))
            with self.e.loop(first, end, DEPTH) as term:
                part = Terms(term, self.rest(inner, term, DEPTH), self.subtract(term, first))
                self.pack_right(unit.matrices["b"], left, part, columns, wide)
            with self.e.loop("0", unit.rows, self.group) as start, self.e.loop(first, end, DEPTH) as term:
                part = Terms(term, self.rest(inner, term, DEPTH), self.subtract(term, first))
                right = self.right_panels(unit.matrices["b"], left, part, wide)
                self.rows(unit, across, start, columns, part, right)
                last = self.compare("sge", self.add(term, DEPTH), inner)
                with self.e.when(self.both_hold(ends_row, last)):
                    top, present = self.add(unit.top, start), self.rest(unit.rows, start, self.group)
                    rectangle = unit.matrix, top, present, unit.left, unit.columns
                    self.call_attached(rectangle, self.in_result(unit.matrices["c"], self.multiply(start, self.c_step)))

    def rows(self, unit: UnitOfTiles, across: str, start: str, columns: str, part: Terms, right: Panels) -> None:
        """Add some terms to the sums of a group of panels of rows, which begins at row ``start``."""
        present = self.rest(unit.rows, start, self.group)
        panels = self.left_panels(unit.matrices["a"], self.add(unit.top, start), part, present)
        target = self.in_result(unit.matrices["c"], self.add(self.multiply(start, self.c_step), across))
        if self.packs:
            source = self.first_pointer(unit.matrices["b"], self.b, self.add(unit.left, across), part.first)
            pack = self.both_hold(self.compare("eq", start, 0), self.is_packed_along())
            right = right._replace(pack=pack, source=source, source_term=self.number(self.b.term))
        counts = part.depth, self.compare("ne", part.first, self.begin)
        if self.columns_first:
            self.blocks(panels, right, target, ALL, present, columns, counts)
            return
        with self.e.loop("0", present, self.block.rows) as row:
            if self.converts_panels_alone:
                top = self.add(self.add(unit.top, start), row)
                self.lines_of_panel(unit.matrices["a"], top, part, self.rest(present, row, self.block.rows))
            self.blocks(panels, right, target, row, present, columns, counts)

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        """Panels of the left operand, from a row on: packed, made by a feeder, or in place."""
        with self.e.when(self.compare("eq", self.number(LEFT_WAY), Way.FED)):
            feeder = self.moved("%numbers", self.number(FEEDER), "i64")
            rectangle = "0", first, present, part.first, part.depth
            attached_calls.call(self.e, feeder, rectangle, self.a.packed, self.result_size)
        source = self.first_pointer(operand, self.a, first, part.first)
        ways = [Way.ALONG] if self.converts_panels_alone else [Way.ALONG, Way.ACROSS]
        for way in [*ways, Way.CONVERTED] if self.converts_lines else ways:
            with self.e.when(self.compare("eq", self.number(LEFT_WAY), way)):
                self.pack(self.a, way, source, self.a.packed, part.depth, present)
        return self.panels(self.a, source, self.a.packed, part.depth)

    def lines_of_panel(self, operand: str, first: str, part: Terms, present: str) -> None:
        """Copy the lines of one panel of the left operand, from a row on, if the numbers of the step say so."""
        with self.e.when(self.compare("eq", self.number(LEFT_WAY), Way.ACROSS)):
            source = self.first_pointer(operand, self.a, first, part.first)
            self.pack(self.a, Way.ACROSS, source, self.a.packed, part.depth, present)

    def pack_right(self, operand: str, first: str, part: Terms, columns: str, wide: str) -> None:
        """Pack panels of the right operand, from a column on, if the numbers of the step say so. A block has room for
        ``wide`` columns."""
        packed = self.further(self.b.packed, self.multiply(part.before, wide))
        source = self.first_pointer(operand, self.b, first, part.first)
        if not self.packs:
            self.pack_if_needed(self.b, source, packed, part.depth, columns)
            return
        with self.e.when(self.compare("eq", self.number(self.b.way), Way.ACROSS)):
            self.pack(self.b, Way.ACROSS, source, packed, part.depth, columns)
        # Whole panels are packed later, by a kernel.
        edge = self.remainder(columns, self.b.width)
        whole = self.subtract(columns, edge)
        at_edge = self.both_hold(self.is_packed_along(), self.compare("ne", edge, 0))
        with self.e.when(at_edge):
            source = self.in_operand("b", source, whole)
            packed = self.further(packed, self.multiply(whole, self.room(part.depth)))
            self.pack(self.b, Way.ALONG, source, packed, part.depth, edge)

    def is_packed_along(self) -> str:
        """Whether the right operand is packed, from columns that are neighbours."""
        return self.compare("eq", self.number(self.b.way), Way.ALONG)

    def right_panels(self, operand: str, first: str, part: Terms, wide: str) -> Panels:
        """Panels of the right operand, from a column on: packed or in place."""
        packed = self.further(self.b.packed, self.multiply(part.before, wide))
        shared = panels_at(self, operand, self.block, self.number(COLUMNS), first, part.first, part.depth)
        is_shared = self.compare("eq", self.number(RIGHT_WAY), Way.IN_PANELS)
        packed = self.e.assign(f"select i1 {is_shared}, ptr {shared}, ptr {packed}")
        return self.panels(self.b, self.first_pointer(operand, self.b, first, part.first), packed, part.depth)

    def rows_of(self, left: Panels, row: str, column: str) -> str:
        """The arguments of a kernel for the rows from ``row`` on, with the panel of columns that begins at ``column``:
        the first one prefetches rows."""
        a = self.further(left.start, self.multiply(row, left.apart))
        later = self.moved(left.later, self.multiply(row, left.later_row))
        asks = self.both_hold(self.compare("eq", column, 0), self.compare("ne", left.later_row, 0))
        later = self.e.assign(f"select i1 {asks}, ptr {later}, ptr null")
        return f"ptr {a}, i64 {left.element}, i64 {left.term}, ptr {later}, i64 {left.later_row}"

    def first_pointer(self, operand: str, side: Side, element: str, term: str) -> str:
        """The address of an element and a term of an operand."""
        start = self.in_operand(side.name, operand, self.multiply(element, self.number(side.element)))
        return self.in_operand(side.name, start, self.multiply(term, self.number(side.term)))

    def pack_if_needed(self, side: Side, source: str, packed: str, depth: str, present: str) -> None:
        """Pack panels, unless the numbers of the step say that they are in place, or made by a feeder."""
        for way in (Way.ALONG, Way.ACROSS):
            with self.e.when(self.compare("eq", self.number(side.way), way)):
                self.pack(side, way, source, packed, depth, present)

    def pack(self, side: Side, way: Way, source: str, packed: str, depth: str, present: str) -> None:
        stride = self.number(side.element if way is Way.ACROSS else side.term)
        arguments = f"ptr {source}, i64 {stride}, ptr {packed}, i64 {depth}, i64 {present}"
        arguments += self.behind(side)
        function = f"pack_{way.name.lower()}_{side.width}"
        if way in side.in_lines:
            function = "pack_lines" if way is Way.ACROSS else "pack_turned"
        if way is Way.CONVERTED:
            function = "convert_lines"
        self.e.emit(f"call void @{function}({arguments})")

    def behind(self, side: Side) -> str:
        """Further arguments for the functions that pack panels."""
        return ""

    def panels(self, side: Side, source: str, packed: str, depth: str) -> Panels:
        """The panels: packed ones, or those in the operand."""
        element, term, way = self.number(side.element), self.number(side.term), self.number(side.way)
        in_place = self.compare("eq", way, Way.IN_PLACE)
        as_it_is = self.e.assign(f"or i1 {in_place}, {self.compare('eq', way, Way.FED)}")
        room = self.room(depth)
        across = self.compare("eq", way, Way.ACROSS) if side.in_lines else "false"
        lines = across
        if Way.ALONG in side.in_lines:
            lines = self.e.assign(f"or i1 {across}, {self.compare('eq', way, Way.ALONG)}")
        apart = self.either(lines, 0, room) if self.converts_panels_alone and side.in_lines else room
        found = Panels(
            self.e.assign(f"select i1 {in_place}, ptr {source}, ptr {packed}"),
            self.either(as_it_is, element, apart),
            self.either(as_it_is, element, self.either(lines, room, 1)),
            self.either(as_it_is, term, self.either(lines, 1, side.width)),
        )
        if not side.in_lines:
            return found
        if self.converts_lines:
            beside = self.compare("eq", way, Way.CONVERTED)
            apart, term = self.either(beside, 1, found.apart), self.either(beside, self.group, found.term)
            found = found._replace(apart=apart, term=term)
        beyond = self.group if self.columns_first else side.width
        later = self.in_operand(side.name, source, self.multiply(element, beyond))
        unpacked = self.e.assign(f"or i1 {in_place}, {across}")
        size = self.size
        return found._replace(later=later, later_row=self.either(unpacked, self.multiply(element, size), 0))

    def room(self, depth: str) -> str:
        """How many terms a panel has room for."""
        return self.rounded_up(depth, SQUARE)

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
        """Multiply the panel of rows that begins at ``row`` with all panels of columns, with kernels of a ``kind``. If
        that is ``ALL``, each panel of columns is multiplied with all panels of rows."""
        width, lanes, c_row = self.block.columns, self.block.lanes, self.c_row
        depth, again = counts
        edge = self.remainder(columns, width)
        whole = self.subtract(columns, edge)

        def panel(row: str) -> tuple[str, str, str]:
            return row, self.in_result(target, self.multiply(row, c_row)), self.rest(rows, row, self.block.rows)

        def multiply(panel: tuple[str, str, str], name: str, column: str, wide: str) -> None:
            row, line, present = panel
            b, c = self.further(right.start, self.multiply(column, right.apart)), self.in_result(line, column)
            rows = self.rows_of(left, row, column)
            result = f"ptr {c}, i64 {c_row}, i64 {depth}, i64 {present}, i64 {wide}, i1 {again}"
            packed = f"{rows}, ptr {b}, i64 {right.term}, {result}"
            if not self.packs or wide != str(width):
                self.e.emit(f"call void @{kind}{name}({packed})")
                return
            packs = self.both_hold(right.pack, self.compare("eq", row, 0))
            with self.e.when(self.negated(packs)):
                self.e.emit(f"call void @{kind}{name}({packed})")
            with self.e.when(packs):
                unpacked = f"ptr {self.in_operand('b', right.source, column)}, i64 {right.source_term}"
                self.e.emit(f"call void @{kind}{self.packs}({rows}, {unpacked}, {result}, ptr {b})")

        alone = None if row == ALL else panel(row)

        def call(name: str, column: str, wide: str) -> None:
            if alone is not None:
                multiply(alone, name, column, wide)
                return
            with self.e.loop("0", rows, self.block.rows) as each:
                multiply(panel(each), name, column, wide)

        start = "0"
        if self.in_panels:
            beside, dense = self.compare("eq", left.term, 1), self.compare("eq", right.term, width)
            start = self.either(self.both_hold(beside, dense), whole, "0")
            with self.e.loop("0", start, width) as column:
                call(self.in_panels, column, str(width))
        with self.e.loop(start, whole, width) as column:
            call(WHOLE, column, str(width))
        vectors = self.divide(self.add(edge, lanes - 1), lanes)
        for number, name in self.edges.items():
            with self.e.when(self.compare("eq", vectors, number)):
                call(name, whole, edge)


def step_numbers(
    places: Sequence[Place],
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
    parts: tuple[int, int] | None = None,
) -> list[int]:
    """The numbers of a step: table slot and byte offset of both operands and the result; rows, columns and terms; four
    strides; rows and columns of a tile; how many units a result has down and across; how operands are read; how many
    tiles side by side are a unit; how many terms are packed at once; all terms, and how many matrices have each part of
    them; where the section of a feeder begins; the axes in memory that operands go over, if several; for each batch
    axis its extent and three strides; and the sections of an attached kernel and of the feeder."""
    rows, columns, inner = extents
    all_terms, matrices = parts or (inner, prod([extent for extent, *_ in batch]))
    numbers = [number for place in places for number in place]
    units = -(-rows // tile[0]), -(-columns // (tile[1] * span))
    numbers += [*extents, *strides, *tile, *units, *ways, span, terms, all_terms, matrices]
    behind = [*factors, len(batch), *[number for axis in batch for number in axis], *section]
    return [*numbers, len(numbers) + 1 + len(behind), *behind, *feeder]
