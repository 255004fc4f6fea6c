"""Products of a few rows with a transposed quantised matrix: each thread adds up the terms of a block of a column.

A unit of work is a strip of columns, which are rows of the matrix. Sums are made in the same order as in
`weft.compiler.cpu.product`: in blocks of 256 terms, each summed in order. So each block of each column is a *chain* of
additions, and a thread does one chain at a time. Then, for each result, a thread adds up its blocks. To read whole
cache lines, the threads of a warp together read the words of all their chains, and pass them on through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.quantized import Coding, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.quantized.codes import bits_of_codes, coding_of, joined_at, number_at, power_at, takes_in
from weft.compiler.cuda.quantized.operands import (
    ACROSS,
    COLUMNS,
    GROUPS,
    INNER,
    PER_ROW,
    ProductWriter,
    QuantizedProduct,
    numbers_of,
)
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.compiler.cuda.threads import WARP, wait_for_kernels
from weft.dtypes import Dtype
from weft.primitives.dequantization import wide_dtype
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD, QuantizedFormat, rounds_once
from weft.primitives.routine import RoutineCall, RoutineStep

MOST_ROWS = 8
SHARED_BYTES = 96 << 10
"""The most shared memory of a block: most cards provide as much."""
MOST_WARPS = 16
NARROW, WIDE = 8, 32
"""Columns of a strip. For one row, strips are narrow, so that each multiprocessor has work; for more rows they are
wide, so that the rows are read less often."""
_QUAD = 4
"""How many words, or terms, are read at once."""


@dataclass(frozen=True)
class QuantizedWarpStrip:
    """A strip of ``rows`` times ``columns`` of the result, which ``warps`` compute together. The threads of a warp do
    the chains of all columns for some neighbouring blocks. The left operand has the dtype ``x``, the result ``result``.
    If ``joined``, a code is multiplied together with a power of two, which the bias includes, where that is exact.
    ``early``: no kernel that runs before writes the matrix, so it is read without waiting for them."""

    coding: Coding
    x: Dtype
    result: Dtype
    group_size: int
    rows: int
    columns: int
    warps: int
    joined: bool
    early: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks a warp does side by side."""
        return WARP // self.columns

    @property
    def words(self) -> int:
        """How many words a chain has."""
        return DEPTH * self.coding.bits // WORD

    @property
    def words_together(self) -> int:
        """How many words a thread reads from shared memory at once."""
        return gcd(self.coding.words, _QUAD)

    @property
    def chain_words(self) -> int:
        """The distance from one chain to the next in shared memory. It is chosen so that threads use different
        banks."""
        return self.words + self.words_together

    @property
    def block_terms(self) -> int:
        """The distance from one block of a row of the left operand to the next in shared memory."""
        return DEPTH + WIDEST_ACCESS // self.coding.dtype.size

    @property
    def groups(self) -> int:
        """How many groups a chain has."""
        return DEPTH // self.group_size

    @property
    def areas(self) -> tuple[int, int, int]:
        """Bytes of shared memory for each warp: for words, for scales and biases, for terms of the left operand."""
        size = self.coding.dtype.size
        scales = WARP * self.groups * (1 + self.coding.affine) * size
        return WARP * self.chain_words * WORD // 8, scales, self.rows * self.blocks * self.block_terms * size

    @property
    def results(self) -> int:
        return self.rows * self.columns

    @property
    def sums_bytes(self) -> int:
        """Bytes of shared memory for the results so far, and for the sums of all blocks that are done at a time."""
        return (1 + self.warps * self.blocks) * self.results * self.coding.dtype.size

    @property
    def shared(self) -> int:
        return self.warps * sum(self.areas) + self.sums_bytes


def strip_of(whole: QuantizedWarpStrip, inner: int) -> QuantizedWarpStrip:
    """The strip for sums of ``inner`` terms. It has as many warps as blocks need, or an equal part of them."""
    single = replace(whole, warps=1)
    needed = -(-inner // (DEPTH * single.blocks))
    most = min(MOST_WARPS, SHARED_BYTES // single.shared)
    turns = -(-needed // most)
    return replace(whole, warps=-(-needed // turns))


def step(call: RoutineCall, kind: QuantizedFormat) -> RoutineStep:
    """The step for a product."""
    *batch, rows, columns = call.results[0].shape
    inner = call.operands[0].shape[-1]
    x, _, scales = [operand.dtype for operand in call.operands[:3]]
    result = call.results[0].dtype
    coding, wide = coding_of(kind, scales, wide_dtype(x)), NARROW if rows == 1 else WIDE
    early = all(operand.slot < call.inputs for operand in call.operands[1:])
    strip = strip_of(
        QuantizedWarpStrip(coding, x, result, kind.group_size, rows, wide, 1, _joins(coding), early), inner
    )
    across = -(-columns // strip.columns)
    units = prod(batch) * across
    return RoutineStep(
        code(strip), numbers_of(call, kind, units, across), units, 1, prod(call.results[0].shape) * inner
    )


def code(strip: QuantizedWarpStrip) -> RoutineCode:
    title = f"product of few rows with a quantised matrix, {strip.coding.mode}"
    return RoutineCode(
        f"{title}: {strip}",
        lambda name: _QuantizedRowsWriter(strip).text(name),
        strip.warps * WARP,
        title,
        strip.shared,
    )


def _joins(coding: Coding) -> bool:
    """Whether codes may be multiplied together with a power of two: numbers must be rounded only once, and words must
    hold whole codes."""
    return coding.affine and rounds_once(coding.scales) and coding.dtype is dtypes.float32 and WORD % coding.bits == 0


class _QuantizedRowsWriter(ProductWriter):
    """Writes the kernel."""

    def __init__(self, strip: QuantizedWarpStrip) -> None:
        self.waits_first = not strip.early
        super().__init__(strip.coding, strip.warps * WARP, strip.x, strip.result)
        self.strip = strip
        self.quad = Lanes(self.e, WIDEST_ACCESS // self.coding.dtype.size)
        self.quad_bytes = self.quad.width * strip.x.size
        self.warp_position = self.e.assign(f"and i64 {self.position}, {WARP - 1}")
        self.warp_number = self.e.assign(f"lshr i64 {self.position}, {WARP.bit_length() - 1}")
        self.sums = self.shared_of_launch()
        start = self.multiply(self.warp_number, sum(strip.areas))
        words, scales, _ = strip.areas
        self.words = self.moved(self.sums, self.add(start, strip.sums_bytes))
        self.scales = self.moved(self.words, words)
        self.terms = self.moved(self.scales, scales)
        self.code_bits = {bit for _, bit in bits_of_codes(strip.coding.bits)} if strip.joined else set()
        self.is_exact = self.e.slot("i1")
        """Whether the biases of this thread can include powers of two exactly."""
        self.totals = [self.e.slot(self.element) for _ in range(strip.rows)]
        self.blocks = self.divide(self.add(self.number(INNER), DEPTH - 1), DEPTH)

    def text(self, name: str) -> str:
        strip = self.strip
        with self.each_unit() as unit:
            number, strip_number = self.divided(unit, self.number(ACROSS))
            product, left = self.product(number), self.multiply(strip_number, strip.columns)
            with self.e.loop("0", self.blocks, strip.warps * strip.blocks) as first:
                begin = self.add(first, self.multiply(self.warp_number, strip.blocks))
                self._hand_on(product, left, begin)
                self.synchronize_warp()
                self._chain(begin)
                self.synchronize()
                self._fold(product, left, first)
                self.synchronize()
        self._wait()  # also in blocks that have no unit
        return self.finished(name)

    def _wait(self) -> None:
        if self.strip.early:
            wait_for_kernels(self.e)

    def _hand_on(self, product: QuantizedProduct, left: str, begin: str) -> None:
        """Copy what the chains of this warp need to shared memory. In place of elements beyond the matrix the last ones
        are read."""
        wide = self.compare("eq", self.remainder_of_address(product.words, WIDEST_ACCESS), 0)
        whole = self.compare("eq", self.e.assign(f"and i64 {self.number(PER_ROW)}, {_QUAD - 1}"), 0)
        wide = self.e.assign(f"and i1 {wide}, {whole}")
        starts = self.compare("eq", self.remainder_of_address(product.x, self.quad_bytes), 0)
        wide = self.e.assign(f"and i1 {wide}, {starts}")
        self._hand_on_scales(product, left, begin)
        with self.e.when(wide):
            self._hand_on_quads(product, left, begin)
        with self.e.when(self.negated(wide)):
            self._hand_on_singly(product, left, begin)

    def _hand_on_quads(self, product: QuantizedProduct, left: str, begin: str) -> None:
        """Copy words, and terms of the left operand, with wide loads. All loads begin before the first one is waited
        for."""
        lines = self.moved(product.words, self.multiply(left, self.number(PER_ROW)), "i32")
        words = self._quads_of_words(left, begin)
        found = [self.e.assign(f"load <4 x i32>, ptr {self.at(lines, source)}, align 16") for source, _ in words]
        terms, count = self._quads_of_terms(begin), self.quad.width
        self._wait()
        numbers = [self.terms_of_x(product.x, self.wide(source), count, self.quad_bytes) for source, _ in terms]
        for raw, (_, target) in zip(found, words, strict=True):
            self._put_words(raw, self.wide(target))
        for number, (_, target) in zip(numbers, terms, strict=True):
            store(self.quad, number, self.coding.dtype, Location(self.terms, self.wide(target), False, 16), None)

    def _quads_of_words(self, left: str, begin: str) -> list[tuple[str, str]]:
        """Where this thread reads words, from the first row of the strip on, and their positions in shared memory.
        Together, the threads of a warp read all words of their chains."""
        strip, quads = self.strip, self.strip.words // _QUAD
        per_row, found = self.narrow(self.number(PER_ROW)), []
        last_row = self.word("sub", self.word("sub", self.narrow(self.number(COLUMNS)), self.narrow(left)), 1)
        last_quad = self.word("sub", per_row, _QUAD)
        for turn in range(quads):
            index = self.word("add", self.lane, WARP * turn)
            chain = self.word("udiv", index, quads)
            inside = self.word("mul", self.word("urem", index, quads), _QUAD)
            row = self._least(self.word("and", chain, strip.columns - 1), last_row)
            block = self.word("add", self.narrow(begin), self.word("lshr", chain, strip.columns.bit_length() - 1))
            along = self._least(self.word("add", self.word("mul", block, strip.words), inside), last_quad)
            source = self.word("add", self.word("mul", row, per_row), along)
            found.append((source, self.word("add", self.word("mul", chain, strip.chain_words), inside)))
        return found

    def _quads_of_terms(self, begin: str) -> list[tuple[str, str]]:
        """Where this thread reads terms of the left operand, and their positions in shared memory."""
        strip, count, found = self.strip, self.quad.width, []
        inner, first = self.narrow(self.number(INNER)), self.word("shl", self.narrow(begin), DEPTH.bit_length() - 1)
        last, near = self.word("sub", inner, count), self.word("mul", self.lane, count)
        for start in range(0, strip.rows * strip.blocks * DEPTH, WARP * count):
            line, inside = start // DEPTH, self.word("add", near, start % DEPTH)
            along = self.word("add", self.word("add", first, line % strip.blocks * DEPTH), inside)
            source = self.word("add", self.word("mul", inner, line // strip.blocks), self._least(along, last))
            found.append((source, self.word("add", inside, line * strip.block_terms)))
        return found

    def _least(self, left: str, right: str) -> str:
        return self.chosen(self.word("icmp slt", left, right), left, right)

    def _put_words(self, raw: str, target: str) -> None:
        """Store four words to shared memory, in aligned accesses."""
        together = self.strip.words_together
        for first in range(0, _QUAD, together):
            part, type_ = self._cut(raw, first, together), Lanes(self.e, together).type_of(dtypes.uint32)
            pointer = self.moved(self.words, self.add(target, first), "i32")
            self.e.emit(f"store {type_} {part}, ptr {pointer}, align {together * WORD // 8}")

    def _cut(self, raw: str, first: int, count: int) -> str:
        """Some of four words."""
        if count == 1:
            return self.e.assign(f"extractelement <4 x i32> {raw}, i64 {first}")
        mask = ", ".join(f"i32 {word}" for word in range(first, first + count))
        return self.e.assign(f"shufflevector <4 x i32> {raw}, <4 x i32> poison, <{count} x i32> <{mask}>")

    def _hand_on_singly(self, product: QuantizedProduct, left: str, begin: str) -> None:
        """Copy element by element, where accesses of 16 bytes are not aligned."""
        strip = self.strip
        with self.e.loop(self.warp_position, str(WARP * strip.words), WARP) as index:
            source, target = self._word_indices(index, strip.words, left, begin, 1)
            word = self.e.load("i32", self.moved(product.words, source, "i32"))
            self.e.store("i32", word, self.moved(self.words, target, "i32"))
        self._wait()
        with self.e.loop(self.warp_position, str(strip.rows * strip.blocks * DEPTH), WARP) as index:
            source, target = self._term_indices(index, begin, 1)
            number = self.terms_of_x(product.x, source)
            store(self.L, number, self.coding.dtype, Location(self.terms, target, False), None)

    def _word_indices(self, index: str, per_chain: int, left: str, begin: str, size: int) -> tuple[str, str]:
        """The indices, in the matrix and in shared memory, of ``size`` words at ``index`` among the words of this
        warp."""
        strip = self.strip
        chain, inside = self.divide(index, per_chain), self.multiply(self.remainder(index, per_chain), size)
        column = self._column(left, self.e.assign(f"and i64 {chain}, {strip.columns - 1}"))
        block = self.add(begin, self.e.assign(f"lshr i64 {chain}, {strip.columns.bit_length() - 1}"))
        along = self.add(self.multiply(block, strip.words), inside)
        along = self.smaller(along, self.subtract(self.number(PER_ROW), size))
        source = self.add(self.multiply(column, self.number(PER_ROW)), along)
        return source, self.add(self.multiply(chain, strip.chain_words), inside)

    def _column(self, left: str, number: str) -> str:
        return self.smaller(self.add(left, number), self.subtract(self.number(COLUMNS), 1))

    def _term_indices(self, index: str, begin: str, size: int) -> tuple[str, str]:
        """The indices, in the left operand and in shared memory, of ``size`` terms."""
        depth_bits = DEPTH.bit_length() - 1
        line = self.e.assign(f"lshr i64 {index}, {depth_bits}")
        inside = self.e.assign(f"and i64 {index}, {DEPTH - 1}")
        row, block = self.divide(line, self.strip.blocks), self.remainder(line, self.strip.blocks)
        along = self.add(self.e.assign(f"shl i64 {self.add(begin, block)}, {depth_bits}"), inside)
        along = self.smaller(along, self.subtract(self.number(INNER), size))
        source = self.add(self.multiply(row, self.number(INNER)), along)
        return source, self.add(self.multiply(line, self.strip.block_terms), inside)

    def _hand_on_scales(self, product: QuantizedProduct, left: str, begin: str) -> None:
        """Copy the scales and biases of this thread's chain to shared memory."""
        strip, groups = self.strip, self.number(GROUPS)
        column = self._column(left, self.e.assign(f"and i64 {self.warp_position}, {strip.columns - 1}"))
        block = self.add(begin, self.e.assign(f"lshr i64 {self.warp_position}, {strip.columns.bit_length() - 1}"))
        line, first = self.multiply(column, groups), self.multiply(block, strip.groups)
        sources = [product.scales, *([product.biases] if self.coding.affine else [])]
        size = min(strip.groups * self.coding.scales.size, WIDEST_ACCESS)
        together = size // self.coding.scales.size
        inside = self.compare("sle", self.add(first, strip.groups), groups)
        wide = self.compare("eq", self.e.assign(f"and i64 {groups}, {together - 1}"), 0)
        wide = self.e.assign(f"and i1 {wide}, {inside}")
        for source in sources:
            starts = self.compare("eq", self.remainder_of_address(source, size), 0)
            wide = self.e.assign(f"and i1 {wide}, {starts}")
        self.e.store("i1", "true", self.is_exact)
        for condition, count, alignment in ((wide, together, size), (self.negated(wide), 1, 0)):
            with self.e.when(condition):
                for index in range(0, strip.groups, count):
                    group = self.smaller(self.add(first, index), self.subtract(groups, count))
                    values = [self.scale_values(x, self.add(line, group), count, alignment) for x in sources]
                    for step, pair in enumerate(zip(*values, strict=True)):
                        self._put_scales(pair, index + step)

    def _put_scales(self, values: Sequence[Value], group: int) -> None:
        """Store the scale, and the bias, of a group of this thread to shared memory."""
        for number, value in enumerate(values):
            self._put_scale(value, number * self.strip.groups + group)
        if self.strip.joined:
            factor, offset = values
            exact = self.e.load("i1", self.is_exact)
            for one in (min(self.code_bits), max(self.code_bits)):
                exact = self.e.assign(f"and i1 {exact}, {takes_in(factor, offset, power_at(one)).name}")
            self.e.store("i1", exact, self.is_exact)

    def _put_scale(self, value: Value, position: int) -> None:
        store(self.L, value, self.coding.dtype, self._scale_location(str(position)), None)

    def _scale_location(self, index: str) -> Location:
        return Location(self.scales, self.add(self.multiply(index, WARP), self.warp_position), False)

    def _chain(self, begin: str) -> None:
        """Add up the terms of this thread's chain. If the chain does not exist, the sum is -0, which changes no other
        sum."""
        strip, coding = self.strip, self.coding
        sub = self.e.assign(f"lshr i64 {self.warp_position}, {strip.columns.bit_length() - 1}")
        block = self.add(begin, sub)
        there = self.compare("slt", block, self.blocks)
        for total in self.totals:
            first = [self.L.constant(n, coding.dtype).name for n in (0.0, -0.0)]
            self.e.store(
                self.element,
                self.e.assign(f"select i1 {there}, {self.element} {first[0]}, {self.element} {first[1]}"),
                total,
            )
        rest = self.subtract(self.number(INNER), self.multiply(block, DEPTH))
        count = self.divide(self.larger(self.smaller(rest, DEPTH), "0"), coding.terms)
        line = self.moved(self.words, self.multiply(self.warp_position, strip.chain_words), "i32")
        terms = self.moved(self.terms, self.multiply(sub, strip.block_terms), self.element)
        joins = self.e.load("i1", self.is_exact) if self.strip.joined else "false"
        ways = (
            ((joins, self._joined), (self.negated(joins), self._numbers))
            if self.strip.joined
            else (("true", self._numbers),)
        )
        for condition, numbers in ways:
            with self.e.when(condition), self.e.loop("0", count) as part:
                here = self.moved(line, self.multiply(part, coding.words), "i32")
                x = self.moved(terms, self.multiply(part, coding.terms), self.element)
                self._add(x, numbers(here, part))
        column = self.e.assign(f"and i64 {self.warp_position}, {strip.columns - 1}")
        position = self.add(self.add(self.multiply(self.warp_number, strip.blocks), sub), 1)
        for row, total in enumerate(self.totals):
            index = self.add(self.multiply(self.add(self.multiply(position, strip.rows), row), strip.columns), column)
            found = Value(self.L, self.e.load(self.element, total), coding.dtype)
            store(self.L, found, coding.dtype, Location(self.sums, index, False), None)

    def _numbers(self, words: str, part: str) -> Iterator[Value]:
        """The decoded numbers of the terms in some words."""
        coding, found = self.coding, self._words(words)
        factor, offset = self._scales(part)
        for term in range(coding.terms):
            yield scaled(coding, number_at(coding, found, term * coding.bits), factor, offset)

    def _joined(self, words: str, part: str) -> Iterator[Value]:
        """As `_numbers`, but the biases include the powers of two of the codes, which saves an operation for each
        number."""
        bits = self.coding.bits
        factor, offset = self._scales(part)
        assert offset is not None
        offsets = {bit: self.L.fma(factor, -power_at(bit), offset) for bit in sorted(self.code_bits)}
        for word in self._words(words):
            for shift, bit in bits_of_codes(bits):
                yield self.L.fma(joined_at(word, shift, bit, bits), factor, offsets[bit])

    def _words(self, words: str) -> list[Value]:
        some = Lanes(self.e, self.strip.words_together)
        found: list[Value] = []
        for first in range(0, self.coding.words, some.width):
            raw = load(some, dtypes.uint32, Location(words, str(first), False, some.width * WORD // 8), None)
            found += [Value(self.L, self.part(some, raw, word), dtypes.uint32) for word in range(some.width)]
        return found

    def _scales(self, part: str) -> tuple[Value, Value | None]:
        """The scale and the bias of some terms of this thread's chain."""
        group = self.divide(part, self.strip.group_size // self.coding.terms)
        factor = load(self.L, self.coding.dtype, self._scale_location(group), None)
        if not self.coding.affine:
            return factor, None
        return factor, load(self.L, self.coding.dtype, self._scale_location(self.add(group, self.strip.groups)), None)

    def _add(self, x: str, numbers: Iterator[Value]) -> None:
        """Add the products of some terms to the sums of all rows."""
        strip, dtype, count = self.strip, self.coding.dtype, self.quad.width
        lines = [self.moved(x, row * strip.blocks * strip.block_terms, self.element) for row in range(strip.rows)]
        quads: list[Value] = []
        for term, number in enumerate(numbers):
            if term % count == 0:
                quads = [load(self.quad, dtype, Location(line, str(term), False, 16), None) for line in lines]
            for quad, total in zip(quads, self.totals, strict=True):
                left = Value(self.L, self.part(self.quad, quad, term % count), dtype)
                before = Value(self.L, self.e.load(self.element, total), dtype)
                self.e.store(self.element, self.L.fma(left, number, before).name, total)

    def _fold(self, product: QuantizedProduct, left: str, first: str) -> None:
        """Add the sums of blocks, in order, to the results so far, and store the results."""
        strip, dtype, size = self.strip, self.coding.dtype, self.strip.results
        with self.e.loop(self.position, str(size), self.threads) as number:
            column = self.add(left, self.e.assign(f"and i64 {number}, {strip.columns - 1}"))
            with self.e.when(self.compare("slt", column, self.number(COLUMNS))):
                before = self.e.slot(self.element)
                self.e.store(self.element, self.L.constant(-0.0, dtype).name, before)
                kept = Location(self.sums, number, False)
                with self.e.when(self.compare("ne", first, 0)):
                    self.e.store(self.element, load(self.L, dtype, kept, None).name, before)
                blocks = [self.add(number, block * size) for block in range(1, 1 + strip.warps * strip.blocks)]
                parts = [load(self.L, dtype, Location(self.sums, one, False), None) for one in blocks]
                total = Value(self.L, self.e.load(self.element, before), dtype)
                for part in parts:
                    total = total + part
                store(self.L, total, dtype, kept, None)
                row = self.e.assign(f"lshr i64 {number}, {strip.columns.bit_length() - 1}")
                index = self.add(self.multiply(row, self.number(COLUMNS)), column)
                rounded = Value(self.L, total.name, strip.result)
                store(self.L, rounded, strip.result, Location(product.result, index, False), None)
