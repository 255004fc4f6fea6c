"""Matrix products in generated code.

A unit of work is a tile of the result. Its operands are packed, ``DEPTH`` terms of the sums at a time, into panels in
which a kernel finds what it needs next to each other; the kernel keeps a block of the result in registers. (K. Goto and
R. van de Geijn, Anatomy of high-performance matrix multiplication, 2008.)

Every element is the sum, in order, of blocks of ``DEPTH`` terms, each block summed in order with fused multiply-adds:
neither the tiles nor the blocks nor the processor's vectors change its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import Location, load, store, transposed
from weft.compiler.cpu.product_step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    Block,
    StepWriter,
    below,
    further,
)
from weft.dtypes import Dtype

DEPTH = 256
TILE_COLUMNS = 256
TILE_BLOCKS = 20
MANY_TILES = 8
SMALLEST_TILE = 1 << 18
SQUARE = 4

DTYPES = (dtypes.float32, dtypes.float64)

# The numbers of a step behind those of every product.
TILE_HEIGHT, TILE_WIDTH, DOWN, ACROSS = 13, 14, 15, 16
BATCH_AXES = 17


@cache
def block_of(dtype: Dtype) -> Block:
    """The block for this processor: with 32 registers of 64 bytes, or with fewer (or shorter) ones. Rows and columns
    are multiples of ``SQUARE``."""
    return Block(dtype, 12, 2, 64) if "+avx512f" in host.current().features else Block(dtype, 4, 3, 32)


@cache
def address(dtype: Dtype) -> int:
    """The address of the step for products of a dtype."""
    name = f"product_{dtype.name}"
    block = block_of(dtype)
    return loading.load(f"{name} {block}", lambda: generate(block, name), (name,))[name]


def generate(block: Block, name: str) -> str:
    """The LLVM IR of the step for products of a dtype."""
    widths = dict.fromkeys((block.rows, block.columns))
    functions = [pack(block, width) for pack in (_pack_along, _pack_across) for width in widths]
    narrow = Block(block.dtype, block.rows, 1, block.vector_bytes)
    functions += [_kernel(block, "block", block.columns), _kernel(narrow, "narrow_block", block.columns)]
    functions.append(_step(block, name))
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


Function = tuple[Emitter, str]
_PACK_PARAMETERS = "ptr %from, i64 %stride, ptr %to, i64 %inner, i64 %present"


def _pack_along(block: Block, width: int) -> Function:
    """Pack a panel of an operand in which the elements of a term are neighbours."""
    e = Emitter()
    L = Lanes(e, gcd(width, block.lanes))
    masks = {start: below(L, str(start), "%present") for start in range(0, width, L.width)}
    with e.loop("0", "%inner") as term:
        source = further(e, block.element, "%from", e.assign(f"mul i64 {term}, %stride"))
        target = further(e, block.element, "%to", e.assign(f"mul i64 {term}, {width}"))
        for start, mask in masks.items():
            value = load(L, block.dtype, Location(source, str(start), False), mask)
            store(L, value, block.dtype, Location(target, str(start), False), None)
    return e, e.function(f"pack_along_{width}", _PACK_PARAMETERS, "internal ")


def _pack_across(block: Block, width: int) -> Function:
    """Pack a panel of an operand in which the terms of an element are neighbours: small squares are transposed.

    Elements that are not there are copies of the last one, whose results nobody stores.
    """
    e = Emitter()
    L, dtype = Lanes(e, SQUARE), block.dtype
    last = e.assign("sub i64 %present, 1")
    with e.loop("0", str(width), SQUARE) as place:
        sources = []
        for step in range(SQUARE):
            wanted = e.assign(f"add i64 {place}, {step}")
            less = e.assign(f"icmp slt i64 {wanted}, {last}")
            nearest = e.assign(f"select i1 {less}, i64 {wanted}, i64 {last}")
            sources.append(further(e, block.element, "%from", e.assign(f"mul i64 {nearest}, %stride")))
        with e.loop("0", "%inner", SQUARE) as term:
            mask = below(L, term, "%inner")
            vectors = [load(L, dtype, Location(source, term, False), mask).name for source in sources]
            for step, vector in enumerate(transposed(L, dtype, vectors)):
                row = e.assign(f"mul i64 {e.assign(f'add i64 {term}, {step}')}, {width}")
                store(
                    L, Value(L, vector, dtype), dtype, Location("%to", e.assign(f"add i64 {row}, {place}"), False), None
                )
    return e, e.function(f"pack_across_{width}", _PACK_PARAMETERS, "internal ")


def _kernel(block: Block, name: str, width: int) -> Function:
    """Multiply two panels, of which the right one is ``width`` wide: ``%rows`` by ``%columns`` of the block are stored,
    or added to what is there."""
    e = Emitter()
    L, scalar = Lanes(e, block.lanes), Lanes(e, 1)
    type_, dtype = L.type_of(block.dtype), block.dtype
    places = [(row, vector) for row in range(block.rows) for vector in range(block.vectors)]
    sums = {place: e.slot(type_) for place in places}
    for slot in sums.values():
        e.store(type_, L.constant(0.0, dtype).name, slot)
    with e.loop("0", "%inner") as term:
        a = further(e, block.element, "%a", e.assign(f"mul i64 {term}, {block.rows}"))
        b = further(e, block.element, "%b", e.assign(f"mul i64 {term}, {width}"))
        right = [load(L, dtype, Location(b, str(vector * block.lanes), False), None) for vector in range(block.vectors)]
        left = [L.splat(load(scalar, dtype, Location(a, str(row), False), None)) for row in range(block.rows)]
        for (row, vector), slot in sums.items():
            value = L.fma(left[row], right[vector], Value(L, e.load(type_, slot), dtype))
            e.store(type_, value.name, slot)
    whole_rows = e.assign(f"icmp eq i64 %rows, {block.rows}")
    whole_columns = e.assign(f"icmp eq i64 %columns, {block.columns}")
    whole = e.assign(f"and i1 {whole_rows}, {whole_columns}")
    with e.when(whole):
        _store_whole(block, L, sums)
    with e.when(e.assign(f"xor i1 {whole}, true")):
        _store_part(block, L, sums)
    parameters = "ptr %a, ptr %b, ptr %c, i64 %stride, i64 %inner, i64 %rows, i64 %columns, i1 %again"
    return e, e.function(name, parameters, "internal ")


def _store_whole(block: Block, L: Lanes, sums: dict[tuple[int, int], str]) -> None:
    e, dtype = L.emitter, block.dtype
    type_ = L.type_of(dtype)
    starts = [further(e, block.element, "%c", e.assign(f"mul i64 %stride, {row}")) for row in range(block.rows)]
    targets = {(row, vector): Location(starts[row], str(vector * block.lanes), False) for row, vector in sums}
    with e.when("%again"):
        for place, slot in sums.items():
            value = load(L, dtype, targets[place], None) + Value(L, e.load(type_, slot), dtype)
            e.store(type_, value.name, slot)
    for place, slot in sums.items():
        store(L, Value(L, e.load(type_, slot), dtype), dtype, targets[place], None)


def _store_part(block: Block, L: Lanes, sums: dict[tuple[int, int], str]) -> None:
    """Store the rows and columns that exist, by way of a copy of the block in memory."""
    e, dtype = L.emitter, block.dtype
    type_ = L.type_of(dtype)
    copy = e.slot(f"[{block.rows * block.columns} x {block.element}], align {block.vector_bytes}")
    for (number, vector), slot in sums.items():
        place = Location(copy, str(number * block.columns + vector * block.lanes), False)
        store(L, Value(L, e.load(type_, slot), dtype), dtype, place, None)
    again = L.splat(Value(Lanes(e, 1), "%again", dtypes.bool_))
    with e.loop("0", "%rows") as row:
        source = further(e, block.element, copy, e.assign(f"mul i64 {row}, {block.columns}"))
        target = further(e, block.element, "%c", e.assign(f"mul i64 {row}, %stride"))
        with e.loop("0", "%columns", block.lanes) as column:
            mask = Value(L, below(L, column, "%columns"), dtypes.bool_)
            before = load(L, dtype, Location(target, column, False), (again & mask).name)
            value = before + load(L, dtype, Location(source, column, False), None)
            store(L, value, dtype, Location(target, column, False), mask.name)


def _step(block: Block, name: str) -> Function:
    writer = _StepWriter(block)
    with writer.e.loop("%begin", "%end") as unit:
        writer.tile(unit)
    return writer.e, writer.e.function(name, "ptr %numbers, ptr %table, i64 %begin, i64 %end")


class _StepWriter(StepWriter):
    """The loops over a tile: terms of the sums, panels of columns, blocks of rows."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.dtype, BATCH_AXES)
        self.block = block
        width = -(-TILE_COLUMNS // block.columns) * block.columns
        self.packed_a = self.e.slot(f"[{DEPTH * block.rows} x {block.element}], align 64")
        self.packed_b = self.e.slot(f"[{DEPTH * width} x {block.element}], align 64")

    def tile(self, unit: str) -> None:
        across, down = self.number(ACROSS), self.number(DOWN)
        column_tile = self.e.assign(f"urem i64 {unit}, {across}")
        others = self.e.assign(f"udiv i64 {unit}, {across}")
        row_tile = self.e.assign(f"urem i64 {others}, {down}")
        matrices = self.operands(self.e.assign(f"udiv i64 {others}, {down}"))
        height, width = self.number(TILE_HEIGHT), self.number(TILE_WIDTH)
        top, left = self.multiply(row_tile, height), self.multiply(column_tile, width)
        rows = self.rest(self.number(ROWS), top, height)
        all_columns = self.number(COLUMNS)
        columns = self.rest(all_columns, left, width)
        inner = self.number(INNER)
        # Without terms there is one round all the same, which stores zeros.
        no_terms = self.e.assign(f"icmp eq i64 {inner}, 0")
        stop = self.e.assign(f"select i1 {no_terms}, i64 1, i64 {inner}")
        with self.e.loop("0", stop, DEPTH) as term:
            depth = self.rest(inner, term, DEPTH)
            again = self.e.assign(f"icmp ne i64 {term}, 0")
            a = self.further(matrices["a"], self.offset(top, A_ROW, term, A_INNER))
            self.pack_columns(self.further(matrices["b"], self.offset(left, B_COLUMN, term, B_INNER)), depth, columns)
            with self.e.loop("0", rows, self.block.rows) as row:
                present = self.rest(rows, row, self.block.rows)
                source = self.further(a, self.multiply(row, self.number(A_ROW)))
                self.pack(source, A_ROW, A_INNER, self.packed_a, self.block.rows, depth, present)
                target = self.add(self.multiply(self.add(top, row), all_columns), left)
                self.blocks(self.further(matrices["c"], target), all_columns, depth, present, columns, again)

    def offset(self, element: str, element_stride: int, term: str, term_stride: int) -> str:
        """Where an element is in an operand, from the numbers of its strides."""
        return self.add(
            self.multiply(element, self.number(element_stride)), self.multiply(term, self.number(term_stride))
        )

    def pack_columns(self, source: str, depth: str, columns: str) -> None:
        width = self.block.columns
        with self.e.loop("0", columns, width) as column:
            panel = self.further(self.packed_b, self.multiply(column, DEPTH))
            start = self.further(source, self.multiply(column, self.number(B_COLUMN)))
            self.pack(start, B_COLUMN, B_INNER, panel, width, depth, self.rest(columns, column, width))

    def pack(self, source: str, place: int, inner: int, panel: str, width: int, depth: str, present: str) -> None:
        """Pack a panel from an operand, of which the numbers ``place`` and ``inner`` are strides; one is 1."""
        step, term = self.number(place), self.number(inner)
        along = self.e.assign(f"icmp eq i64 {step}, 1")
        apart = self.e.assign(f"xor i1 {along}, true")
        for way, condition, stride in (("along", along, term), ("across", apart, step)):
            with self.e.when(condition):
                arguments = f"ptr {source}, i64 {stride}, ptr {panel}, i64 {depth}, i64 {present}"
                self.e.emit(f"call void @pack_{way}_{width}({arguments})")

    def blocks(self, target: str, stride: str, depth: str, rows: str, columns: str, again: str) -> None:
        width = self.block.columns
        with self.e.loop("0", columns, width) as column:
            panel, place = self.further(self.packed_b, self.multiply(column, DEPTH)), self.further(target, column)
            present = self.rest(columns, column, width)
            arguments = f"ptr {self.packed_a}, ptr {panel}, ptr {place}, i64 {stride}, i64 {depth}, i64 {rows}"
            narrow = self.e.assign(f"icmp sle i64 {present}, {self.block.lanes}")
            for function, condition in (("narrow_block", narrow), ("block", self.e.assign(f"xor i1 {narrow}, true"))):
                with self.e.when(condition):
                    self.e.emit(f"call void @{function}({arguments}, i64 {present}, i1 {again})")


def tile_of(dtype: Dtype, extents: tuple[int, int, int]) -> tuple[int, int]:
    """Rows and columns of a tile: large ones pack each operand less often, small ones leave work for many threads."""
    rows, columns, inner = extents
    block = block_of(dtype)
    down, across = -(-rows // block.rows), -(-columns // block.columns)
    most = (TILE_BLOCKS, max(TILE_COLUMNS // block.columns, 1))
    high, wide = min(most[0], down), min(most[1], across)
    while -(-down // high) * -(-across // wide) < MANY_TILES and high * wide > 1:
        if high * block.rows * wide * block.columns * inner <= SMALLEST_TILE:
            break
        if wide == 1 or (high > 1 and high * block.rows >= wide * block.columns):
            high = -(-high // 2)
        else:
            wide = -(-wide // 2)
    return high * block.rows, wide * block.columns


def step_numbers(
    places: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    tile: tuple[int, int],
    batch: Sequence[tuple[int, int, int, int]],
) -> list[int]:
    """The numbers of a step: table slot and byte offset of both operands and the result; rows, columns and terms;
    four strides; rows and columns of a tile; and per batch axis its extent and three strides."""
    rows, columns, _ = extents
    numbers = [number for place in places for number in place]
    numbers += [*extents, *strides, *tile, -(-rows // tile[0]), -(-columns // tile[1]), len(batch)]
    return numbers + [number for axis in batch for number in axis]
