"""Products of a few rows with a matrix, in about the time that it takes to read the matrix.

A unit of work is a strip of columns. Sums are made in the same order as in `weft.compiler.cpu.products.packed.blocks`:
in blocks of 256 terms, each summed in order. So each block of each column is a *chain* of additions, and a thread does
one chain at a time. Then, for each result, a thread adds up its blocks. To read whole cache lines, the threads of a
warp together read what all their chains need, and pass it on through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.numbered import NumberedCode
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.compiler.cuda.threads import WARP, wait_for_kernels
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.routine import RoutineCall, RoutineStep

MOST_ROWS = 8
MOST_TERMS = 1 << 14
"""The most terms: longer sums would take the threads of a strip many turns."""
MOST_PRODUCTS = 1 << 12
"""The most products of a stack: if there are more, they are so small that most threads of a block would be idle."""
MOST_DISTANCE = 1 << 20
"""The most elements from a row or column of the matrix to the next one: indices in a strip are 32-bit numbers."""
DTYPES = (*HALVES, dtypes.float32)

SHARED_BYTES = 96 << 10
"""The most shared memory of a block: most cards provide as much."""
MOST_WARPS = 16
ALONG_COLUMNS, ACROSS_COLUMNS = 8, 16
"""Columns of a strip, if the terms of a column are neighbours in memory, or if columns are. Strips are narrow, so that
there is work for each multiprocessor."""
TOGETHER = 32
"""How many terms a thread reads from shared memory before it adds them up."""
CHAIN_BYTES = 512
"""The most bytes of a chain that are in shared memory at a time."""

# The positions of the step's numbers: units; slots and byte offsets of the rows, the matrix and the result; columns,
# terms, how many strips there are from left to right, the extent of the inner one of two batch axes; and distances in
# elements.
_LEFT, _RIGHT, _RESULT = 1, 3, 5
_COLUMNS, _INNER, _ACROSS, _BATCH = range(7, 11)
_LEFT_ROW, _LEFT_TERM, _LEFT_OUTER, _LEFT_BATCH = range(11, 15)
_TERM, _COLUMN, _RIGHT_OUTER, _RIGHT_BATCH = range(15, 19)
_RESULT_ROW, _RESULT_COLUMN, _RESULT_OUTER, _RESULT_BATCH = range(19, 23)
NUMBERS = _RESULT_BATCH + 1


@dataclass(frozen=True)
class WarpStrip:
    """A strip of ``rows`` times ``columns`` of the result, which ``warps`` compute together. The threads of a warp do
    the chains of all columns for some neighbouring blocks. No block has more than ``depth`` terms. ``along``: the terms
    of a column of the matrix are neighbours in memory; else columns are. ``early``: no kernel that runs before writes
    the matrix, so it is read without waiting for them."""

    left: Dtype
    right: Dtype
    result: Dtype
    rows: int
    columns: int
    warps: int
    depth: int
    along: bool
    early: bool

    @property
    def blocks(self) -> int:
        """How many blocks a warp does side by side."""
        return WARP // self.columns

    @property
    def terms(self) -> int:
        """How many terms of a chain are in shared memory at a time."""
        return min(self.depth, CHAIN_BYTES // self.right.size)

    @property
    def line(self) -> int:
        """The distance in elements from one chain, or from the chains of one block, to the next in shared memory. It is
        chosen so that threads use different banks."""
        return self.terms * (1 if self.along else self.columns) + WIDEST_ACCESS // self.right.size

    @property
    def lines(self) -> int:
        return WARP if self.along else self.blocks

    @property
    def row_terms(self) -> int:
        """The distance from one block of a row to the next in shared memory, where terms are float32."""
        return self.terms + WIDEST_ACCESS // dtypes.float32.size

    @property
    def areas(self) -> tuple[int, int]:
        """Bytes of shared memory for each warp: for the matrix, and for the rows."""
        size = dtypes.float32.size
        return self.lines * self.line * self.right.size, self.rows * self.blocks * self.row_terms * size

    @property
    def results(self) -> int:
        return self.rows * self.columns

    @property
    def sums_bytes(self) -> int:
        """Bytes of shared memory for the results so far, and for the sums of all blocks that are done at a time."""
        size = (1 + self.warps * self.blocks) * self.results * dtypes.float32.size
        return -(-size // WIDEST_ACCESS) * WIDEST_ACCESS

    @property
    def shared(self) -> int:
        return self.warps * sum(self.areas) + self.sums_bytes


def strip_of(dtypes_: tuple[Dtype, Dtype, Dtype], rows: int, inner: int, along: bool, early: bool = False) -> WarpStrip:
    """The strip for sums of ``inner`` terms. It has as many warps as blocks need, or an equal part of them."""
    depth, columns = TOGETHER, ALONG_COLUMNS if along else ACROSS_COLUMNS
    while depth < min(inner, DEPTH):
        depth *= 2
    while columns < WARP and inner <= DEPTH * WARP // (2 * columns):
        columns *= 2
    single = WarpStrip(*dtypes_, rows, columns, 1, depth, along, early)
    needed = -(-inner // (DEPTH * single.blocks))
    most = min(MOST_WARPS, SHARED_BYTES // single.shared)
    turns = -(-needed // most)
    return replace(single, warps=-(-needed // turns))


def code(strip: WarpStrip) -> RoutineCode:
    title = f"product of few rows of {strip.right.name}"
    return RoutineCode(
        f"{title}: {strip}", lambda name: _FewRowsWriter(strip).text(name), strip.warps * WARP, title, strip.shared
    )


BatchAxis = tuple[int, int, int, int]
"""A batch axis: its extent, and the distances from one product to the next one in rows, matrix and result."""


def step(call: RoutineCall, transposed: bool, offsets: Sequence[int], axes: Sequence[BatchAxis]) -> RoutineStep:
    """The step for products of the matrices at ``offsets`` bytes in left, right and result, and of those after these
    along up to two axes. The left one has few rows; if ``transposed``, the right one has few columns."""
    operands = (*call.operands, *call.results)
    places = [[operand.slot, operand.offset + offset] for operand, offset in zip(operands, offsets, strict=True)]
    sides = [(operand.shape[-2:], operand.strides[-2:]) for operand in operands]
    if transposed:
        places = [places[1], places[0], places[2]]
        sides = [(shape[::-1], strides[::-1]) for shape, strides in (sides[1], sides[0], sides[2])]
    (_, left), ((inner, columns), right), ((rows, _), result) = sides
    far, near = [(1, 0, 0, 0)] * (2 - len(axes)) + [(n, b, a, c) if transposed else (n, a, b, c) for n, a, b, c in axes]
    kinds = [operand.dtype for operand in operands]
    left_kind, right_kind = (kinds[1], kinds[0]) if transposed else (kinds[0], kinds[1])
    strip = strip_of((left_kind, right_kind, kinds[2]), rows, inner, bool(right[0] == 1), places[1][0] < call.inputs)
    across = -(-columns // strip.columns)
    units = far[0] * near[0] * across
    distances = [
        n
        for (first, second), outer, inner_ in zip((left, right, result), far[1:], near[1:], strict=True)
        for n in (first, second, outer, inner_)
    ]
    if rows == 1:
        distances[0] = 0
    numbers = [units, *places[0], *places[1], *places[2], columns, inner, across, near[0], *distances]
    return RoutineStep(code(strip), numbers, units, 1, units * strip.columns * rows * inner)


class _Product(NamedTuple):
    """Pointers to the matrices of a product."""

    left: str
    right: str
    result: str


class _FewRowsWriter(NumberedCode):
    """Writes the kernel."""

    def __init__(self, strip: WarpStrip) -> None:
        self.waits_first = not strip.early
        super().__init__(strip.warps * WARP, NUMBERS)
        self.strip = strip
        self.L = Lanes(self.e, 1)
        self.quad = Lanes(self.e, WIDEST_ACCESS // dtypes.float32.size)
        self.wide_right = Lanes(self.e, WIDEST_ACCESS // strip.right.size)
        self.right_element, self.left_element = MEMORY_TYPES[strip.right], MEMORY_TYPES[strip.left]
        self.warp_number = self.wide(self.warp)
        self.own_column = self.wide(self.word("and", self.lane, strip.columns - 1))
        self.own_block = self.wide(self.word("lshr", self.lane, strip.columns.bit_length() - 1))
        self.sums = self.shared_of_launch()
        matrix, _ = strip.areas
        start = self.add(self.multiply(self.warp_number, sum(strip.areas)), strip.sums_bytes)
        self.matrix = self.moved(self.sums, start)
        self.terms = self.moved(self.matrix, matrix)
        self.totals = [self.e.slot("float") for _ in range(strip.rows)]
        self.blocks = self.divide(self.add(self.number(_INNER), DEPTH - 1), DEPTH)

    def text(self, name: str) -> str:
        strip = self.strip
        with self.each_unit() as unit:
            product, left = self._product(unit)
            aligned = self._is_aligned(product)
            with self.e.loop("0", self.blocks, strip.warps * strip.blocks) as first:
                begin = self.add(first, self.multiply(self.warp_number, strip.blocks))
                self._begin_chain(begin)
                for part in range(strip.depth // strip.terms):
                    with self.e.when(aligned):
                        self._hand_on_quads(product, left, begin, part)
                    with self.e.when(self.negated(aligned)):
                        self._hand_on_singly(product, left, begin, part)
                    self.synchronize_warp()
                    self._go_on(begin, part)
                    self.synchronize_warp()
                self._end_chain()
                self.synchronize()
                self._fold(product, left, first)
                self.synchronize()
        self._wait()  # also in blocks that have no unit
        return self.finished(name)

    def _wait(self) -> None:
        if self.strip.early:
            wait_for_kernels(self.e)

    def _product(self, unit: str) -> tuple[_Product, str]:
        """The matrices of a unit, and the first column of its strip."""
        number, strip_number = self._divided(unit, self.number(_ACROSS))
        outer, inner = self._divided(number, self.number(_BATCH))
        found = []
        for position, element, far, near in (
            (_LEFT, self.left_element, _LEFT_OUTER, _LEFT_BATCH),
            (_RIGHT, self.right_element, _RIGHT_OUTER, _RIGHT_BATCH),
            (_RESULT, MEMORY_TYPES[self.strip.result], _RESULT_OUTER, _RESULT_BATCH),
        ):
            distance = self.add(self.multiply(outer, self.number(far)), self.multiply(inner, self.number(near)))
            found.append(self.moved(self.global_memory(position), distance, element))
        return _Product(*found), self.multiply(strip_number, self.strip.columns)

    def _divided(self, number: str, by: str) -> tuple[str, str]:
        """Quotient and remainder of numbers below ``2**31``: in 32 bits the division takes a fraction of the time."""
        left, right = self.narrow(number), self.narrow(by)
        return self.wide(self.word("udiv", left, right)), self.wide(self.word("urem", left, right))

    def _is_aligned(self, product: _Product) -> str:
        """Whether all accesses of 16 bytes are aligned, and none crosses the end of a row or column."""
        strip, per_right = self.strip, self.wide_right.width
        per_left = WIDEST_ACCESS // strip.left.size
        near, far, extent = (_TERM, _COLUMN, _INNER) if strip.along else (_COLUMN, _TERM, _COLUMNS)
        condition = self.compare("eq", self.number(near), 1)
        condition = self._both(condition, self.compare("eq", self.number(_LEFT_TERM), 1))
        multiples = [(extent, per_right), (far, per_right), (_LEFT_ROW, per_left), (_INNER, per_left)]
        for number, multiple in multiples:
            rest = self.e.assign(f"and i64 {self.number(number)}, {multiple - 1}")
            condition = self._both(condition, self.compare("eq", rest, 0))
        for pointer in (product.left, product.right):
            address = self.e.assign(f"ptrtoint ptr {pointer} to i64")
            rest = self.e.assign(f"and i64 {address}, {WIDEST_ACCESS - 1}")
            condition = self._both(condition, self.compare("eq", rest, 0))
        return condition

    def _both(self, left: str, right: str) -> str:
        return self.e.assign(f"and i1 {left}, {right}")

    def _hand_on_quads(self, product: _Product, left: str, begin: str, part: int) -> None:
        """Copy what the chains of this warp need to shared memory. All loads begin before the first one is waited for.
        In place of elements beyond the matrix, the last ones are read."""
        matrix, indices = self._matrix_quads(product, left, begin, part)
        found = [self.e.assign(f"load <4 x i32>, ptr {source}, align 16") for source in matrix]
        rows = self._row_quads(product, begin, part)
        self._wait()
        asked = [self._asked(source) for source, _ in rows] if len(rows) <= TOGETHER // 2 else []
        for raw, index in zip(found, indices, strict=True):
            self.e.emit(f"store <4 x i32> {raw}, ptr {self.at(self.matrix, index, self.right_element)}, align 16")
        for number, (source, index) in enumerate(rows):
            self._put_terms(asked[number] if asked else self._asked(source), index)

    def _matrix_quads(self, product: _Product, left: str, begin: str, part: int) -> tuple[list[str], list[str]]:
        """The addresses from which this thread reads elements of the matrix, and their indices in shared memory."""
        strip, per = self.strip, self.wide_right.width
        beyond = per if strip.along else 1
        term = self._first_term(begin, part, beyond)
        sources, indices = [], []
        last_column = self.narrow(self.subtract(self.subtract(self.number(_COLUMNS), left), 1 if strip.along else per))
        last_term = self.narrow(self.subtract(self.subtract(self.number(_INNER), term), beyond))
        far = self.narrow(self.number(_COLUMN if strip.along else _TERM))
        origin = self.multiply(left if strip.along else term, self.number(_COLUMN if strip.along else _TERM))
        start = self.moved(product.right, self.add(origin, term if strip.along else left), self.right_element)
        quads = (strip.terms if strip.along else strip.columns) // per
        for turn in range(strip.terms // per):
            index = self.word("add", self.lane, WARP * turn)
            line = self.word("lshr", index, quads.bit_length() - 1)
            inside = self.word("mul", self.word("and", index, quads - 1), per)
            if strip.along:
                column, block = self.word("and", line, strip.columns - 1), self._block_of(line)
                along = self.word("add", self.word("mul", block, DEPTH), inside)
                source = self.word("mul", self._least(column, last_column), far)
                source = self.word("add", source, self._least(along, last_term))
                target = self.word("add", self.word("mul", line, strip.line), inside)
            else:
                block = self.word("lshr", line, strip.terms.bit_length() - 1)
                within = self.word("and", line, strip.terms - 1)
                down = self.word("add", self.word("mul", block, DEPTH), within)
                source = self.word("mul", self._least(down, last_term), far)
                source = self.word("add", source, self._least(inside, last_column))
                target = self.word("add", self.word("mul", within, strip.columns), inside)
                target = self.word("add", self.word("mul", block, strip.line), target)
            sources.append(self.at(start, source, self.right_element))
            indices.append(target)
        return sources, indices

    def _first_term(self, begin: str, part: int, beyond: int) -> str:
        """The first term that this warp reads, moved back if ``beyond`` terms from there on would go past the last
        one."""
        term = self.add(self.multiply(begin, DEPTH), part * self.strip.terms)
        return self.smaller(term, self.subtract(self.number(_INNER), beyond))

    def _block_of(self, chain: str) -> str:
        return self.word("lshr", chain, self.strip.columns.bit_length() - 1)

    def _least(self, left: str, right: str) -> str:
        return self.chosen(self.word("icmp slt", left, right), left, right)

    def _row_quads(self, product: _Product, begin: str, part: int) -> list[tuple[str, str]]:
        """Addresses and indices in shared memory for terms of the rows."""
        strip, per = self.strip, WIDEST_ACCESS // self.strip.left.size
        term = self._first_term(begin, part, per)
        last = self.narrow(self.subtract(self.subtract(self.number(_INNER), term), per))
        start = self.moved(product.left, term, self.left_element)
        row_distance, found = self.narrow(self.number(_LEFT_ROW)), []
        size = strip.rows * strip.blocks * strip.terms
        for turn in range(0, size, WARP * per):
            index = self.word("add", self.word("mul", self.lane, per), turn)
            if turn + WARP * per > size:  # several threads copy the last terms
                index = self._least(index, str(size - per))
            line = self.word("lshr", index, strip.terms.bit_length() - 1)
            inside = self.word("and", index, strip.terms - 1)
            row, block = self.word("udiv", line, strip.blocks), self.word("and", line, strip.blocks - 1)
            along = self._least(self.word("add", self.word("mul", block, DEPTH), inside), last)
            source = self.at(start, self.word("add", self.word("mul", row, row_distance), along), self.left_element)
            found.append((source, self.word("add", self.word("mul", line, strip.row_terms), inside)))
        return found

    def _asked(self, source: str) -> Value:
        """Neighbouring terms of a row, loaded from memory."""
        L = Lanes(self.e, WIDEST_ACCESS // self.strip.left.size)
        found = load(L, self.strip.left, Location(source, "0", False, WIDEST_ACCESS), None)
        return Value(L, found.name, dtypes.float32)

    def _put_terms(self, terms: Value, index: str) -> None:
        """Store neighbouring terms of a row to shared memory, as float32."""
        for first in range(0, terms.lanes.width, self.quad.width):
            part = terms.name
            if terms.lanes.width > self.quad.width:
                mask = ", ".join(f"i32 {number}" for number in range(first, first + self.quad.width))
                type_ = terms.lanes.type_of(dtypes.float32)
                part = self.e.assign(
                    f"shufflevector {type_} {part}, {type_} poison, <{self.quad.width} x i32> <{mask}>"
                )
            target = Location(self.terms, self.wide(self.word("add", index, first)), False, WIDEST_ACCESS)
            store(self.quad, Value(self.quad, part, dtypes.float32), dtypes.float32, target, None)

    def _hand_on_singly(self, product: _Product, left: str, begin: str, part: int) -> None:
        """Copy element by element, for matrices of any strides."""
        strip, position = self.strip, self.wide(self.lane)
        self._wait()
        with self.e.loop(position, str(WARP * strip.terms), WARP) as index:
            # Neighbouring threads read neighbouring elements.
            fast, slow = (strip.terms, strip.columns) if strip.along else (strip.columns, strip.terms)
            inside, rest = self._cut(index, fast)
            middle, block = self._cut(rest, slow)
            term, column = (inside, middle) if strip.along else (middle, inside)
            down = self._term(begin, block, term, part)
            across = self.smaller(self.add(left, column), self.subtract(self.number(_COLUMNS), 1))
            source = self.add(self.multiply(down, self.number(_TERM)), self.multiply(across, self.number(_COLUMN)))
            target = self.add(self.multiply(term, strip.columns), column)
            if strip.along:
                line = self.add(self.multiply(block, strip.columns), column)
                target = self.add(self.multiply(line, strip.line), term)
            else:
                target = self.add(self.multiply(block, strip.line), target)
            raw = self.e.load(self.right_element, self.moved(product.right, source, self.right_element))
            self.e.store(self.right_element, raw, self.moved(self.matrix, target, self.right_element))
        with self.e.loop(position, str(strip.rows * strip.blocks * strip.terms), WARP) as index:
            term, line = self._cut(index, strip.terms)
            block, row = self._cut(line, strip.blocks)
            down = self._term(begin, block, term, part)
            source = self.add(self.multiply(row, self.number(_LEFT_ROW)), self.multiply(down, self.number(_LEFT_TERM)))
            value = load(self.L, strip.left, Location(product.left, source, False), None)
            there = Location(self.terms, self.add(self.multiply(line, strip.row_terms), term), False)
            store(self.L, Value(self.L, value.name, dtypes.float32), dtypes.float32, there, None)

    def _cut(self, number: str, extent: int) -> tuple[str, str]:
        """A number modulo a power of two, and the quotient."""
        inside = self.e.assign(f"and i64 {number}, {extent - 1}")
        return inside, self.e.assign(f"lshr i64 {number}, {extent.bit_length() - 1}")

    def _term(self, begin: str, block: str, term: str, part: int) -> str:
        """The number of a term in the whole sum; the last one in place of those after it."""
        first = self.multiply(self.add(begin, block), DEPTH)
        found = self.add(self.add(first, part * self.strip.terms), term)
        return self.smaller(found, self.subtract(self.number(_INNER), 1))

    def _begin_chain(self, begin: str) -> None:
        """Set the sum of this thread's chain to 0. If the chain does not exist, set it to -0, which changes no sum."""
        there = self.compare("slt", self.add(begin, self.own_block), self.blocks)
        for total in self.totals:
            zeros = [self.L.constant(zero, dtypes.float32).name for zero in (0.0, -0.0)]
            self.e.store("float", self.e.assign(f"select i1 {there}, float {zeros[0]}, float {zeros[1]}"), total)

    def _go_on(self, begin: str, part: int) -> None:
        """Add the terms that are in shared memory to the sums of all rows."""
        strip = self.strip
        first = self.add(self.multiply(self.add(begin, self.own_block), DEPTH), part * strip.terms)
        rest = self.subtract(self.number(_INNER), first)
        count = self.larger(self.smaller(rest, strip.terms), "0")
        whole = self.e.assign(f"and i64 {count}, {-TOGETHER}")
        with self.e.loop("0", whole, TOGETHER) as term:
            self._add(term, TOGETHER)
        with self.e.loop(whole, count) as term:
            self._add(term, 1)

    def _add(self, term: str, count: int) -> None:
        """Add the products of ``count`` terms, from ``term`` on."""
        strip = self.strip
        numbers = list(self._numbers(term, count))
        line = self.add(self.multiply(self.own_block, strip.row_terms), term)
        for row, total in enumerate(self.totals):
            index = self.add(line, row * strip.blocks * strip.row_terms)
            sum_ = Value(self.L, self.e.load("float", total), dtypes.float32)
            for left, number in zip(self._row_terms(index, count), numbers, strict=True):
                sum_ = self.L.fma(left, number, sum_)
            self.e.store("float", sum_.name, total)

    def _row_terms(self, index: str, count: int) -> Iterator[Value]:
        L = self.L if count == 1 else self.quad
        for first in range(0, count, L.width):
            location = Location(self.terms, self.add(index, first), False, L.width * dtypes.float32.size)
            yield from self._parts(L, load(L, dtypes.float32, location, None))

    def _numbers(self, term: str, count: int) -> Iterator[Value]:
        """Elements of the matrix for neighbouring terms of this thread's chain."""
        strip = self.strip
        if strip.along:
            L = self.L if count == 1 else self.wide_right
            chain = self.add(self.multiply(self.own_block, strip.columns), self.own_column)
            index, step = self.add(self.multiply(chain, strip.line), term), L.width
        else:
            L, step = self.L, strip.columns
            index = self.add(self.multiply(self.own_block, strip.line), self.multiply(term, strip.columns))
            index = self.add(index, self.own_column)
        for turn in range(count // L.width):
            location = Location(self.matrix, self.add(index, turn * step), False, L.width * strip.right.size)
            found = load(L, strip.right, location, None)
            yield from self._parts(L, Value(L, found.name, dtypes.float32))

    def _parts(self, L: Lanes, value: Value) -> Sequence[Value]:
        """The lanes of a vector, as single values."""
        if L.width == 1:
            return [Value(self.L, value.name, dtypes.float32)]
        type_ = L.type_of(dtypes.float32)
        names = [self.e.assign(f"extractelement {type_} {value.name}, i64 {number}") for number in range(L.width)]
        return [Value(self.L, name, dtypes.float32) for name in names]

    def _end_chain(self) -> None:
        """Store the sums of this thread's chain to shared memory, where blocks are added up."""
        strip = self.strip
        block = self.add(self.add(self.multiply(self.warp_number, strip.blocks), self.own_block), 1)
        for row, total in enumerate(self.totals):
            line = self.add(self.multiply(block, strip.rows), row)
            index = self.add(self.multiply(line, strip.columns), self.own_column)
            self.e.store("float", self.e.load("float", total), self.moved(self.sums, index, "float"))

    def _fold(self, product: _Product, left: str, first: str) -> None:
        """Add the sums of blocks, in order, to the results so far, and store the results."""
        strip, size = self.strip, self.strip.results
        with self.e.loop(self.position, str(size), self.threads) as element:
            inside, row = self._cut(element, strip.columns)
            column = self.add(left, inside)
            with self.e.when(self.compare("slt", column, self.number(_COLUMNS))):
                before = self.e.slot("float")
                self.e.store("float", self.L.constant(-0.0, dtypes.float32).name, before)
                known = self.moved(self.sums, element, "float")
                with self.e.when(self.compare("ne", first, 0)):
                    self.e.store("float", self.e.load("float", known), before)
                blocks = range(1, 1 + strip.warps * strip.blocks)
                parts = [self.e.load("float", self.moved(known, block * size, "float")) for block in blocks]
                total = Value(self.L, self.e.load("float", before), dtypes.float32)
                for part in parts:
                    total = total + Value(self.L, part, dtypes.float32)
                self.e.store("float", total.name, known)
                index = self.add(
                    self.multiply(row, self.number(_RESULT_ROW)), self.multiply(column, self.number(_RESULT_COLUMN))
                )
                rounded = Value(self.L, total.name, strip.result)
                store(self.L, rounded, strip.result, Location(product.result, index, False), None)
