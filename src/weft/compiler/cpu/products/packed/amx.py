"""Matrix products of bfloat16 in tile registers (Intel's Advanced Matrix Extensions).

A tile register holds 16 rows of 16 pairs of terms, or 16 by 16 sums of float32. One instruction adds the products of 32
terms to all these sums. It rounds in its own way (Intel Software Developer's Manual, volume 2, TDPBF16PS): the terms
with even and those with odd numbers are summed in order with fused multiply-adds, each from zero; the two sums are
added, and the result is added to the sum so far. Subnormal operands and results are taken as zero. So sums differ from
those of `blocks`, and this code is used only where that is allowed. But sums depend on the terms alone, not on tiles,
threads or layouts.

As in `blocks`, a unit of work is a tile of the result, and its operands are packed, ``DEPTH`` terms at a time: into
squares, each of which fills a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import attached_calls, host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, image, load, store
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WRITE_SOON, prefetch, transposed
from weft.compiler.cpu.products import attached
from weft.compiler.cpu.products.step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    ProductStepWriter,
    Sources,
    below,
)
from weft.compiler.cpu.products.tiles import SCRATCH_BYTES, Way
from weft.primitives.routine import Attached
from weft.runtime.steps import Place
from weft.runtime.tile_registers import are_granted

from .blocks import ACROSS, BATCH_AXES, DOWN, LEFT_WAY, RIGHT_WAY, TILE_HEIGHT, TILE_WIDTH, step_numbers
from .blocks import TERMS as AT_ONCE
from .packing import PARAMETERS

SIDE = 16
"""How many rows a register has, and how many 32-bit numbers a row."""
TERMS = 2 * SIDE
"""How many terms a square has: its numbers are pairs of them."""
SQUARE_BYTES = SIDE * SIDE * 4
BLOCK = 2 * SIDE
"""Rows and columns of the sums that registers hold: for four squares of the result, two of each operand are read."""
PAIR_BYTES = 2 * SQUARE_BYTES
"""The two squares for a block are packed next to each other."""
DEPTH = 512
"""How many terms are packed at once: for a block of rows, the first cache holds them."""
TERM_BYTES = PAIR_BYTES // TERMS // BLOCK
"""Bytes of a packed term of one row or column."""
AHEAD = 2 * PAIR_BYTES
"""How far ahead packed columns are prefetched: otherwise, multiplying mostly waits for the second cache."""
GROUP = 4 * SIDE
"""How many rows are packed at once."""
WIDEST = 640
"""The most columns of a tile: the second cache holds `DEPTH` terms of them."""
SMALLEST_SHARE = 1 << 22
"""The fewest multiplications for each thread."""
PACKING = 64
"""Packing an element takes the time of this many multiplications."""

_SUMS, _LEFT, _RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)
"""The numbers of the registers for sums, left and right squares."""
_CONFIGURATION = (1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[SIDE] * 8, *[0] * 8)
"""The configuration of the registers: palette 1, then for each of eight registers the bytes of a row, and its rows."""


@cache
def is_available() -> bool:
    """Whether this processor has tile registers, and the system lets this process use them."""
    features = host.current().features.split(",")
    return {"+amx-tile", "+amx-bf16", "+avx512f"}.issubset(features) and are_granted()


def is_worth_it(rows: int, columns: int) -> bool:
    """Whether a result of this size is large enough. Smaller ones take longer, because operands must be packed
    first."""
    return min(rows, columns) > SIDE


@cache
def address() -> int:
    """The address of the step."""
    name = "product_amx"
    return loading.load(name, lambda: generate(name), (name,))[name]


def generate(name: str) -> str:
    """The LLVM IR of the step."""
    functions = [
        *[_pack(way, by_elements) for way in (Way.ALONG, Way.ACROSS) for by_elements in (True, False)],
        _multiply_block(),
        _step(name),
    ]
    contents = ", ".join(f"i8 {number}" for number in _CONFIGURATION)
    functions[-1][0].declarations["configuration"] = f"@configuration = internal constant [64 x i8] [{contents}]"
    return module_of(functions)


def _packing_name(way: Way, by_elements: bool) -> str:
    return f"pack_{way.name.lower()}_by_{'elements' if by_elements else 'pairs'}"


class _SquaresPacking(Integers):
    """Writes how pairs of squares are packed. ``way`` says whether elements or terms are neighbours in the lines of an
    operand. A row of a square has 16 pairs of terms of one element, or a pair of terms of 16 elements."""

    def __init__(self, way: Way) -> None:
        super().__init__(Emitter())
        self.way = way

    def line(self, start: str, number: str | int) -> str:
        return self.moved(start, self.multiply("%stride", number), "i16")

    def read(self, line: str, mask: str | None) -> str:
        """32 terms of an element, or elements of a term, from memory."""
        return image(Lanes(self.e, TERMS), dtypes.bfloat16, Location(line, "0", False), mask)

    def squares(self, start: str, elements: str | None, terms: str | None) -> list[list[str]]:
        """The rows of both squares, of which ``elements`` and ``terms`` exist (None: all)."""
        numbers = range(BLOCK)
        if self.way is Way.ACROSS:
            mask = None if terms is None else below(Lanes(self.e, TERMS), "0", terms)
            last = None if elements is None else self.subtract(elements, 1)
            # For an element that does not exist the last one is read; its sums are not stored.
            indices = [str(number) if last is None else self.smaller(str(number), last) for number in numbers]
            rows = [self.as_pairs(self.read(self.line(start, index), mask)) for index in indices]
            return [rows[:SIDE], rows[SIDE:]]
        lines = [self.read(self.line(start, n), self.mask_of_term(n, elements, terms)) for n in numbers]
        return [[self.joined(lines[n : n + 2], half) for n in numbers[::2]] for half in (0, SIDE)]

    def mask_of_term(self, term: int, elements: str | None, terms: str | None) -> str | None:
        """The mask of the elements that exist, in a line for a term; empty if the term does not exist."""
        if elements is None or terms is None:
            return None
        return below(Lanes(self.e, BLOCK), "0", self.either(self.compare("slt", str(term), terms), elements, 0))

    def as_pairs(self, terms: str) -> str:
        return self.e.assign(f"bitcast <{TERMS} x i16> {terms} to <{SIDE} x i32>")

    def joined(self, lines: Sequence[str], half: int) -> str:
        """Pairs of two terms, for half of the elements."""
        order = ", ".join(f"i32 {index}" for lane in range(half, half + SIDE) for index in (lane, BLOCK + lane))
        operands = f"<{BLOCK} x i16> {lines[0]}, <{BLOCK} x i16> {lines[1]}"
        return self.as_pairs(self.e.assign(f"shufflevector {operands}, <{TERMS} x i32> <{order}>"))

    def write(self, squares: Sequence[Sequence[str]], to: str, exchanged: bool) -> None:
        L = Lanes(self.e, SIDE)
        for half, rows in enumerate(squares):
            for number, row in enumerate(transposed(L, dtypes.uint32, rows) if exchanged else rows):
                pointer = self.moved(to, half * SQUARE_BYTES + number * CACHE_LINE)
                self.e.emit(f"store <{SIDE} x i32> {row}, ptr {pointer}, align {CACHE_LINE}")


def _pack(way: Way, by_elements: bool) -> EmittedFunction:
    """Pack up to ``DEPTH`` terms of ``%present`` elements. Squares are filled up with zeros after the terms."""
    w = _SquaresPacking(way)
    exchanged = (way is Way.ACROSS) != by_elements
    size = w.multiply(w.rounded_up("%inner", TERMS), TERM_BYTES)
    with w.e.loop("0", "%present", BLOCK) as element, w.e.loop("0", "%inner", TERMS) as term:
        line, index = (element, term) if way is Way.ACROSS else (term, element)
        start = w.moved(w.line("%from", line), index, "i16")
        block = w.moved("%to", w.multiply(element, size))
        pair = w.moved(block, w.multiply(term, PAIR_BYTES // TERMS))
        elements, terms = w.subtract("%present", element), w.subtract("%inner", term)
        enough = (w.compare("sge", elements, BLOCK), w.compare("sge", terms, TERMS))
        whole = w.both_hold(enough[0], enough[1])
        with w.e.when(whole):
            w.write(w.squares(start, None, None), pair, exchanged)
        with w.e.when(w.negated(whole)):
            w.write(w.squares(start, elements, terms), pair, exchanged)
    return w.e, w.e.function(_packing_name(way, by_elements), PARAMETERS, "internal ")


class _Registers(Integers):
    """Writes instructions for tile registers."""

    def __init__(self) -> None:
        super().__init__(Emitter())

    def call(self, name: str, *arguments: str) -> None:
        types = ", ".join(argument.split()[0] + " immarg" * argument.startswith("i8") for argument in arguments)
        self.e.declarations[name] = f"declare void @llvm.x86.{name}({types})"
        self.e.emit(f"call void @llvm.x86.{name}({', '.join(arguments)})")

    def read(self, register: int, pointer: str, stride: str | int = 64) -> None:
        self.call("tileloadd64", f"i8 {register}", f"ptr {pointer}", f"i64 {stride}")


def _multiply_block() -> EmittedFunction:
    """Multiply packed squares of 32 rows and 32 columns. The sums are stored, or added to the result if ``%again``.

    At an edge, where fewer ``%rows`` or ``%columns`` exist, sums are copied through the stack.
    """
    w = _Registers()
    copy = w.e.slot(f"[{BLOCK * BLOCK} x float], align 64")
    enough = (w.compare("sge", "%rows", BLOCK), w.compare("sge", "%columns", BLOCK))
    whole = w.both_hold(enough[0], enough[1])
    edge = w.negated(whole)
    target = w.e.assign(f"select i1 {whole}, ptr %c, ptr {copy}")
    stride = w.either(whole, w.multiply("%c_row", 4), BLOCK * 4)
    pointers = [w.moved(w.moved(target, w.multiply(stride, row)), 4 * c) for row in (0, SIDE) for c in (0, SIDE)]
    for row in range(BLOCK):
        for distance in range(0, 4 * BLOCK, CACHE_LINE):
            prefetch(w.e, w.moved(w.moved(target, w.multiply(stride, row)), distance), WRITE_SOON)
    with w.e.when("%again"):
        with w.e.when(edge):
            _copy_present(w, "%c", "%c_row", copy, str(BLOCK))
        for register, pointer in zip(_SUMS, pointers, strict=True):
            w.read(register, pointer, stride)
    with w.e.when(w.negated("%again")):
        for register in _SUMS:
            w.call("tilezero", f"i8 {register}")
    with w.e.loop("0", "%bytes", PAIR_BYTES) as pair:
        a, b = w.moved("%a", pair), w.moved("%b", pair)
        for distance in range(0, PAIR_BYTES, CACHE_LINE):
            prefetch(w.e, w.moved(b, AHEAD + distance), READ_SOON)
        # Squares are read just before they are used, so that reading and multiplying overlap.
        for register in _SUMS:
            down, across = divmod(register, 2)
            if not across:
                w.read(_LEFT[down], w.moved(a, down * SQUARE_BYTES))
            if not down:
                w.read(_RIGHT[across], w.moved(b, across * SQUARE_BYTES))
            w.call("tdpbf16ps", f"i8 {register}", f"i8 {_LEFT[down]}", f"i8 {_RIGHT[across]}")
    for register, pointer in zip(_SUMS, pointers, strict=True):
        w.call("tilestored64", f"i8 {register}", f"ptr {pointer}", f"i64 {stride}")
    with w.e.when(edge):
        _copy_present(w, copy, str(BLOCK), "%c", "%c_row")
    parameters = "ptr %a, ptr %b, ptr %c, i64 %c_row, i64 %bytes, i64 %rows, i64 %columns, i1 %again"
    return w.e, w.e.function("block", parameters, "internal ")


def _copy_present(w: Integers, source: str, source_row: str, target: str, target_row: str) -> None:
    """Copy the rows and columns of a block that exist."""
    L = Lanes(w.e, SIDE)
    with w.e.loop("0", w.smaller("%rows", BLOCK)) as row:
        lines = [w.moved(p, w.multiply(row, far), "float") for p, far in ((source, source_row), (target, target_row))]
        for start in range(0, BLOCK, SIDE):
            mask = below(L, str(start), "%columns")
            read_from, written_to = (Location(line, str(start), False) for line in lines)
            store(L, load(L, dtypes.float32, read_from, mask), dtypes.float32, written_to, mask)


class _Side(NamedTuple):
    """An operand of a step: its name, the positions of the numbers for its strides (between elements and between terms)
    and for the way it is read, where its packed squares are, and whether a row of these has the pairs of one
    element."""

    name: str
    element: int
    term: int
    way: int
    packed: str
    by_elements: bool


class _SquaresStep(ProductStepWriter):
    """The loops over a tile: blocks of terms, groups of rows, blocks of the result."""

    def __init__(self) -> None:
        super().__init__(dtypes.float32, Sources(dtypes.bfloat16, dtypes.bfloat16), BATCH_AXES)
        packed = [self.e.slot(f"[{n * DEPTH * TERM_BYTES} x i8], align 64") for n in (GROUP, WIDEST)]
        self.scratch = self.e.slot(f"[{SCRATCH_BYTES} x i8], align 64")
        self.a = _Side("a", A_ROW, A_INNER, LEFT_WAY, packed[0], True)
        self.b = _Side("b", B_COLUMN, B_INNER, RIGHT_WAY, packed[1], False)

    def tile(self, unit: str) -> None:
        across, down = self.number(ACROSS), self.number(DOWN)
        others = self.divide(unit, across)
        matrix = self.divide(others, down)
        matrices = self.operands(matrix)
        height, width = self.number(TILE_HEIGHT), self.number(TILE_WIDTH)
        top = self.multiply(self.remainder(others, down), height)
        left = self.multiply(self.remainder(unit, across), width)
        rows = self.rest(self.number(ROWS), top, height)
        columns = self.rest(self.number(COLUMNS), left, width)
        in_scratch = self.compare("ne", self.of_section(attached_calls.SCRATCH), 0)
        reused = self.compare("eq", self.of_section(attached_calls.SCRATCH), attached.REUSED)
        self.c_row = self.either(in_scratch, self.of_section(attached_calls.PITCH), self.number(COLUMNS))
        c_step = self.either(reused, 0, self.c_row)
        in_memory = self.further(matrices["c"], self.add(self.multiply(top, self.c_row), left))
        made = self.made_at(in_memory, self.scratch)
        with self.e.loop("0", self.number(INNER), DEPTH) as term:
            terms = self.rest(self.number(INNER), term, DEPTH)
            last = self.compare("sge", self.add(term, DEPTH), self.number(INNER))
            self.pack(self.b, matrices["b"], left, term, terms, columns)
            with self.e.loop("0", rows, self.number(AT_ONCE)) as start:
                first, present = self.add(top, start), self.rest(rows, start, self.number(AT_ONCE))
                self.pack(self.a, matrices["a"], first, term, terms, present)
                target = self.further(made, self.multiply(start, c_step))
                self.blocks(target, present, columns, terms, self.compare("ne", term, 0))
                with self.e.when(last):
                    self.call_attached((matrix, first, present, left, columns), target)

    def pack(self, side: _Side, operand: str, element: str, term: str, terms: str, present: str) -> None:
        strides = {Way.ACROSS: self.number(side.element), Way.ALONG: self.number(side.term)}
        index = self.multiply(element, self.number(side.element))
        start = self.in_operand(side.name, operand, self.add(index, self.multiply(term, self.number(side.term))))
        for way, stride in strides.items():
            with self.e.when(self.compare("eq", self.number(side.way), way)):
                arguments = f"ptr {start}, i64 {stride}, ptr {side.packed}, i64 {terms}, i64 {present}"
                self.e.emit(f"call void @{_packing_name(way, side.by_elements)}({arguments})")

    def blocks(self, target: str, rows: str, columns: str, terms: str, again: str) -> None:
        """Multiply the packed rows with the packed columns."""
        far, whole = self.c_row, self.rounded_up(terms, TERMS)
        size, row_bytes = self.multiply(whole, PAIR_BYTES // TERMS), self.multiply(whole, TERM_BYTES)
        with self.e.loop("0", rows, BLOCK) as row:
            a = self.moved(self.a.packed, self.multiply(row, row_bytes))
            line, high = self.further(target, self.multiply(row, far)), self.subtract(rows, row)
            with self.e.loop("0", columns, BLOCK) as column:
                b = self.moved(self.b.packed, self.multiply(column, row_bytes))
                c, wide = self.further(line, column), self.subtract(columns, column)
                arguments = f"ptr {a}, ptr {b}, ptr {c}, i64 {far}, i64 {size}"
                self.e.emit(f"call void @block({arguments}, i64 {high}, i64 {wide}, i1 {again})")


def _step(name: str) -> EmittedFunction:
    writer, registers = _SquaresStep(), _Registers()
    registers.e = writer.e
    registers.call("ldtilecfg", "ptr @configuration")
    with writer.e.loop("%begin", "%end") as unit:
        writer.tile(unit)
    registers.call("tilerelease")
    return writer.e, writer.e.function(name, STEP)


class RegisterTile(NamedTuple):
    """Rows and columns of a tile, how many rows are packed at once, and whether all these use the same scratch
    memory."""

    rows: int
    columns: int
    at_once: int
    reused: bool


def tile_of(
    extents: tuple[int, int, int], matrices: int, threads: int, whole: bool = False, in_memory: bool = True
) -> RegisterTile | None:
    """The tile of a product. None if it must have ``whole`` rows, or its result must not be made in memory, and there
    is not enough room."""
    _, columns, inner = extents
    widest = WIDEST * DEPTH // min(DEPTH, -(-inner // TERMS) * TERMS) if whole else WIDEST
    if whole and columns > widest:
        return None
    high, wide = _best_tile(extents, matrices, threads, widest, whole)
    if in_memory:
        return RegisterTile(high, wide, GROUP, False)
    most, reused = SCRATCH_BYTES // (wide * dtypes.float32.size) // BLOCK * BLOCK, inner <= DEPTH
    if most < (BLOCK if reused else high):
        return None
    return RegisterTile(high, wide, min(GROUP, most), reused)


def _best_tile(extents: tuple[int, int, int], matrices: int, threads: int, widest: int, whole: bool) -> tuple[int, int]:
    """Rows and columns of a tile: with large tiles each operand is packed less often, with several all threads are
    busy."""
    rows, columns, inner = extents
    busy = max(1, min(threads, matrices * rows * columns * inner // SMALLEST_SHARE))

    def time(tile: tuple[int, int]) -> float:
        units = matrices * -(-rows // tile[0]) * -(-columns // tile[1])
        return -(-units // busy) * (tile[0] * tile[1] + PACKING * (tile[0] + tile[1]))

    heights, widths = _parts(rows, rows, busy), _parts(columns, widest, 1 if whole else busy)
    return min(((high, wide) for high in heights for wide in widths), key=time)


def _parts(whole: int, most: int, pieces: int) -> list[int]:
    """The sizes of equal parts, in whole blocks: from as few parts as ``most`` allows to ``pieces - 1`` more."""
    fewest = -(-whole // most)
    parts = {-(-whole // (count * BLOCK)) * BLOCK for count in range(fewest, fewest + pieces)}
    return sorted(parts, reverse=True)


def numbers_of(
    places: Sequence[Place],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    tile: RegisterTile,
    batch: Sequence[tuple[int, int, int, int]],
    kernel: Attached | None,
) -> list[int]:
    """The numbers of a step, as those of `blocks.step_numbers`; where that has how many terms are packed at once, this
    has how many rows."""
    _, a_inner, _, b_column = strides
    ways = (Way.ACROSS if a_inner == 1 else Way.ALONG, Way.ALONG if b_column == 1 else Way.ACROSS)
    section = attached.section(kernel, attached.Lines(extents[0], False, tile.columns, tile.reused))
    return step_numbers(places, extents, strides, tile[:2], ways, batch, section, terms=tile.at_once)
