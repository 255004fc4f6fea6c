"""The kernel of a strip: what threads of a warp hand on to each other, and the sums of blocks.

To read whole cache lines, the threads of a warp together read the words of all their chains, and pass them on through
shared memory; so they do with scales, and with the terms of the left operand. Then each thread adds up its chain. At
last, for each result, a thread adds up its blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, image, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.quantized.operands import (
    ACROSS,
    COLUMNS,
    GROUPS,
    INNER,
    PER_ROW,
    ProductWriter,
    QuantizedProduct,
)
from weft.compiler.cuda.quantized.strips import QUAD, QuantizedWarpStrip
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.compiler.cuda.threads import WARP, wait_for_kernels
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

Slot = tuple[Lanes, str]
"""A stack slot for some neighbouring scales."""

_LINE_BITS = DEPTH.bit_length() - 1


class TermsInLine(NamedTuple):
    """Neighbouring terms of the left operand that a thread hands on: the index of the first one in the operand, the
    line, and the position in this line. The line may be one more than there are, if `StripWriter.lines_may_lack`."""

    source: str
    line: str | int
    inside: str


class StripWriter(ProductWriter):
    """Writes the kernel. Each thread hands on ``together`` neighbouring terms at once, and gets few enough registers
    for ``blocks`` blocks to fit on a multiprocessor. Subclasses say what form terms have in shared memory, and how a
    chain is added up."""

    def __init__(self, strip: QuantizedWarpStrip, together: int, blocks: int = 1) -> None:
        self.waits_first = not strip.early
        super().__init__(strip.coding, strip.warps * WARP, strip.x, strip.result, blocks)
        self.strip, self.together = strip, together
        self.access = min(together, WIDEST_ACCESS // strip.x.size)
        self.warp_position = self.e.assign(f"and i64 {self.position}, {WARP - 1}")
        self.warp_number = self.e.assign(f"lshr i64 {self.position}, {WARP.bit_length() - 1}")
        self.sums = self.shared_of_launch()
        start = self.multiply(self.warp_number, sum(strip.areas))
        words, scales, _ = strip.areas
        self.words = self.moved(self.sums, self.add(start, strip.sums_bytes))
        self.scales = self.moved(self.words, words)
        self.terms = self.moved(self.scales, scales)
        self.totals = [self.e.slot(self.element) for _ in range(strip.rows)]
        self.blocks = self.divide(self.add(self.number(INNER), DEPTH - 1), DEPTH)

    @abstractmethod
    def put_terms(self, found: Sequence[list[Value]], places: Sequence[TermsInLine]) -> None:
        """Store terms to shared memory."""

    @abstractmethod
    def factors(self, values: Sequence[Value]) -> Sequence[Value]:
        """What a chain needs of the scale, and the bias, of a group."""

    @abstractmethod
    def add_up(self, words: str, terms: str, count: str) -> None:
        """Add ``count`` terms of this thread's chain to the totals, from its words and from the lines of all rows in
        shared memory."""

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
        whole = self.compare("eq", self.e.assign(f"and i64 {self.number(PER_ROW)}, {QUAD - 1}"), 0)
        wide = self.e.assign(f"and i1 {wide}, {whole}")
        starts = self.compare("eq", self.remainder_of_address(product.x, self.access * self.strip.x.size), 0)
        wide = self.e.assign(f"and i1 {wide}, {starts}")
        scales = self._read_scales(product, left, begin)
        with self.e.when(wide):
            self._hand_on_quads(product, left, begin)
        with self.e.when(self.negated(wide)):
            self._hand_on_singly(product, left, begin)
        self._put_scales(scales)

    def _hand_on_quads(self, product: QuantizedProduct, left: str, begin: str) -> None:
        """Copy words, and terms of the left operand, with wide loads. All loads begin before the first one is waited
        for."""
        lines = self.moved(product.words, self.multiply(left, self.number(PER_ROW)), "i32")
        words = self._quads_of_words(left, begin)
        found = [self.e.assign(f"load <4 x i32>, ptr {self.at(lines, source)}, align 16") for source, _ in words]
        places = [self._terms(begin, start) for start in range(0, self.strip.lines * DEPTH, WARP * self.together)]
        self.synchronize_warp()  # loads are not moved beyond this: those of words, which take longest, begin first
        self._wait()
        terms = [self._read_terms(product.x, place, self.access) for place in places]
        self.put_terms(terms, places)
        for raw, (_, target) in zip(found, words, strict=True):
            self._put_words(raw, self.wide(target))

    def _quads_of_words(self, left: str, begin: str) -> list[tuple[str, str]]:
        """Where this thread reads words, from the first row of the strip on, and their positions in shared memory.
        Together, the threads of a warp read all words of their chains."""
        strip, quads = self.strip, self.strip.words // QUAD
        per_row, found = self.narrow(self.number(PER_ROW)), []
        last_row = self.word("sub", self.word("sub", self.narrow(self.number(COLUMNS)), self.narrow(left)), 1)
        last_quad = self.word("sub", per_row, QUAD)
        for turn in range(quads):
            column, sub, inside = self._quad_of_words(turn, quads)
            block = self.word("add", self.narrow(begin), sub)
            along = self._least(self.word("add", self.word("mul", block, strip.words), inside), last_quad)
            source = self.word("add", self.word("mul", self._least(column, last_row), per_row), along)
            chain = self.word("add", self.word("mul", sub, strip.columns), column)
            found.append((source, self.word("add", self.word("mul", chain, strip.chain_words), inside)))
        return found

    def _quad_of_words(self, turn: int, quads: int) -> tuple[str, str | int, str]:
        """Column and block of the chain of which this thread reads four words, and their position in it, for chains of
        ``quads`` such words. If possible, turns differ by constants."""
        columns, chains = self.strip.columns, WARP // quads
        if WARP % quads == 0 and columns % chains == 0:
            sub, first = divmod(turn * chains, columns)
            column = self.word("add", self.word("udiv", self.lane, quads), first)
            return column, sub, self.word("mul", self.word("urem", self.lane, quads), QUAD)
        index = self.word("add", self.lane, WARP * turn)
        chain, inside = self.word("udiv", index, quads), self.word("mul", self.word("urem", index, quads), QUAD)
        return self.word("and", chain, columns - 1), self.word("lshr", chain, columns.bit_length() - 1), inside

    @property
    def lines_may_lack(self) -> bool:
        """Whether the threads of a warp hand on several lines at once, and more than there are."""
        return self.strip.lines * DEPTH % (WARP * self.together) != 0

    def _terms(self, begin: str, start: int | str) -> TermsInLine:
        """The terms that this thread hands on, if the first thread of its warp hands on those at ``start`` of the lines
        of the warp."""
        strip, count = self.strip, self.together
        near = self.word("mul", self.lane, count)
        if isinstance(start, int) and WARP * count <= DEPTH:
            line, inside = str(start // DEPTH), self.word("add", near, start % DEPTH)
        else:
            position = self.word("add", near, start)
            line, inside = self.word("lshr", position, _LINE_BITS), self.word("and", position, DEPTH - 1)
        row = self.word("lshr", line, strip.blocks.bit_length() - 1)
        if self.lines_may_lack:
            row = self._least(row, str(strip.rows - 1))
        block = self.word("add", self.narrow(begin), self.word("and", line, strip.blocks - 1))
        inner = self.narrow(self.number(INNER))
        along = self.word("add", self.word("shl", block, _LINE_BITS), inside)
        along = self._least(along, self.word("sub", inner, count))
        return TermsInLine(self.word("add", self.word("mul", inner, row), along), line, inside)

    def _least(self, left: str, right: str) -> str:
        return self.chosen(self.word("icmp slt", left, right), left, right)

    def _read_terms(self, x: str, place: TermsInLine, access: int) -> list[Value]:
        """Terms of the left operand, of which ``access`` are read at once."""
        some, source, found = Lanes(self.e, access), self.wide(place.source), []
        for first in range(0, self.together, access):
            value = self.terms_of_x(x, self.add(source, first), access, access * self.strip.x.size)
            found += [Value(self.L, self.part(some, value, number), self.coding.dtype) for number in range(access)]
        return found

    def _put_words(self, raw: str, target: str) -> None:
        """Store four words to shared memory, in aligned accesses."""
        together = self.strip.words_together
        for first in range(0, QUAD, together):
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
            source, target = self._word_indices(index, strip.words, left, begin)
            word = self.e.load("i32", self.moved(product.words, source, "i32"))
            self.e.store("i32", word, self.moved(self.words, target, "i32"))
        self._wait()
        with self.e.loop("0", str(strip.lines * DEPTH), WARP * self.together) as start:
            place = self._terms(begin, self.narrow(start))
            self.put_terms([self._read_terms(product.x, place, 1)], [place])

    def _word_indices(self, index: str, per_chain: int, left: str, begin: str) -> tuple[str, str]:
        """The indices, in the matrix and in shared memory, of the word at ``index`` among the words of this warp."""
        strip = self.strip
        chain, inside = self.divide(index, per_chain), self.remainder(index, per_chain)
        column = self._column(left, self.e.assign(f"and i64 {chain}, {strip.columns - 1}"))
        block = self.add(begin, self.e.assign(f"lshr i64 {chain}, {strip.columns.bit_length() - 1}"))
        along = self.add(self.multiply(block, strip.words), inside)
        along = self.smaller(along, self.subtract(self.number(PER_ROW), 1))
        source = self.add(self.multiply(column, self.number(PER_ROW)), along)
        return source, self.add(self.multiply(chain, strip.chain_words), inside)

    def _column(self, left: str, number: str) -> str:
        return self.smaller(self.add(left, number), self.subtract(self.number(COLUMNS), 1))

    def _read_scales(self, product: QuantizedProduct, left: str, begin: str) -> list[list[Slot]]:
        """Load the scales and biases of this thread's chain into slots; nothing waits for them yet."""
        strip, groups = self.strip, self.number(GROUPS)
        column = self._column(left, self.e.assign(f"and i64 {self.warp_position}, {strip.columns - 1}"))
        block = self.add(begin, self.e.assign(f"lshr i64 {self.warp_position}, {strip.columns.bit_length() - 1}"))
        line, first = self.multiply(column, groups), self.multiply(block, strip.groups)
        sources = [product.scales, *([product.biases] if self.coding.affine else [])]
        size = min(strip.groups * self.coding.scales.size, WIDEST_ACCESS)
        some = Lanes(self.e, size // self.coding.scales.size)
        inside = self.compare("sle", self.add(first, strip.groups), groups)
        wide = self.compare("eq", self.e.assign(f"and i64 {groups}, {some.width - 1}"), 0)
        wide = self.e.assign(f"and i1 {wide}, {inside}")
        for source in sources:
            starts = self.compare("eq", self.remainder_of_address(source, size), 0)
            wide = self.e.assign(f"and i1 {wide}, {starts}")
        found = [
            [(some, self.e.slot(self.scale_type(some))) for _ in range(0, strip.groups, some.width)] for _ in sources
        ]
        for condition, alignment in ((wide, size), (self.negated(wide), 0)):
            with self.e.when(condition):
                for source, slots in zip(sources, found, strict=True):
                    for number, (_, slot) in enumerate(slots):
                        start = self.add(first, number * some.width)
                        raw = self._scales_at(source, line, start, some, alignment)
                        self.e.store(self.scale_type(some), raw, slot)
        return found

    def _scales_at(self, source: str, line: str, start: str, some: Lanes, alignment: int) -> str:
        """Neighbouring scales of a line as they are in memory: read at once if an alignment is known, else one by
        one."""
        dtype, last = self.coding.scales, self.subtract(self.number(GROUPS), 1)
        if alignment:
            return image(some, dtype, Location(source, self.add(line, start), False, alignment), None)
        groups = [self.smaller(self.add(start, number), last) for number in range(some.width)]
        places = [Location(source, self.add(line, group), False) for group in groups]
        return self.vector(MEMORY_TYPES[dtype], [image(self.L, dtype, place, None) for place in places])

    def _put_scales(self, found: Sequence[Sequence[Slot]]) -> None:
        """Store what chains need of the scales and biases of this thread's chain to shared memory."""
        values = []
        for slots in found:
            raw = [(some, self.e.load(self.scale_type(some), slot)) for some, slot in slots]
            values.append([value for one in raw for value in self.scales_from(*one)])
        for group, pair in enumerate(zip(*values, strict=True)):
            for number, value in enumerate(self.factors(pair)):
                where = self._scale_location(str(number * self.strip.groups + group))
                store(self.L, value, self.coding.dtype, where, None)

    def _scale_location(self, index: str) -> Location:
        return Location(self.scales, self.add(self.multiply(index, WARP), self.warp_position), False)

    def factor(self, group: str, number: int = 0) -> Value:
        """One of the `factors` of a group of this thread's chain."""
        index = self.add(group, number * self.strip.groups) if number else group
        found: Value = load(self.L, self.coding.dtype, self._scale_location(index), None)
        return found

    def words_at(self, words: str, count: int) -> list[Value]:
        """Words from shared memory."""
        some = Lanes(self.e, self.strip.words_together)
        found: list[Value] = []
        for first in range(0, count, some.width):
            raw = load(some, dtypes.uint32, Location(words, str(first), False, some.width * WORD // 8), None)
            found += [Value(self.L, self.part(some, raw, word), dtypes.uint32) for word in range(some.width)]
        return found

    def rows_of(self, terms: str) -> list[str]:
        """The same place in the lines of all rows, from that in the line of the first one."""
        strip = self.strip
        return [self.moved(terms, row * strip.blocks * strip.line_bytes) for row in range(strip.rows)]

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
        words = self.moved(self.words, self.multiply(self.warp_position, strip.chain_words), "i32")
        terms = self.moved(self.terms, self.multiply(sub, strip.line_bytes))
        self.add_up(words, terms, self.larger(self.smaller(rest, DEPTH), "0"))
        column = self.e.assign(f"and i64 {self.warp_position}, {strip.columns - 1}")
        position = self.add(self.add(self.multiply(self.warp_number, strip.blocks), sub), 1)
        for row, total in enumerate(self.totals):
            index = self.add(self.multiply(self.add(self.multiply(position, strip.rows), row), strip.columns), column)
            found = Value(self.L, self.e.load(self.element, total), coding.dtype)
            store(self.L, found, coding.dtype, Location(self.sums, index, False), None)

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
