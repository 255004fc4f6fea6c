"""Moves the elements of long rows into the order of one digit. Rows are divided into tiles; a block does a tile.

One kernel counts the digits of rows, for all digits by which elements are ordered. Then, for each digit, a kernel moves
the elements. The block of a tile counts its digits and publishes the counts in memory. It knows the targets of its
elements as soon as it has added up what the tiles before it published, back to one whose sum is published (decoupled
look-back: Merrill and Garland 2016, Adinets and Merrill 2022). The counts are integers, so results do not depend on
which block comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.sorting.elements import DIGIT_BITS, Elements
from weft.compiler.cuda.sorting.ranking import Counted, Ranking, only

# The positions of the numbers of a step: slots and offsets of memory, and those below.
SOURCE, SOURCE_INDICES, TARGET, TARGET_INDICES, TOTALS, TOLD, TOLD_NEXT, COUNTER, SELECTED = range(0, 18, 2)
UNITS, EXTENT, PARTS, ORDERS, ORDER, IS_LAST, START, COUNT = range(18, 26)
"""A row has ``EXTENT`` elements and ``PARTS`` units. Elements are ordered by ``ORDERS`` digits, of which this is number
``ORDER``. ``COUNT`` elements of the sorted rows are wanted, from position ``START`` on."""

LARGEST_TOLD = 1 << 30
"""Rows with fewer elements have counts that are published in 32 bits."""

TOGETHER = 4
"""How many tiles before its own a block reads together."""


class Digits(ABC):
    """The digit by which elements are ordered."""

    bits: int
    name: str

    @abstractmethod
    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        """Read what the digits of all elements of a row depend on."""

    @abstractmethod
    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        """The digit of an element, an ``i32``."""

    def orders(self, elements: Elements) -> int:
        """By how many digits elements are ordered, one after the other."""
        return 1

    def all_of(self, code: BlockCode, elements: Elements, word: str) -> list[str]:
        """All digits of an element."""
        return [self.of(code, elements, word)]


class OfKeys(Digits):
    """Digits are some bits of the keys."""

    bits, name = DIGIT_BITS, "digits of keys"

    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        self.shift = code.narrow(code.multiply(code.number(ORDER), DIGIT_BITS))

    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        return elements.digit(code, word, self.shift)

    def orders(self, elements: Elements) -> int:
        return elements.digits

    def all_of(self, code: BlockCode, elements: Elements, word: str) -> list[str]:
        return [elements.digit(code, word, str(DIGIT_BITS * number)) for number in range(elements.digits)]


class OfMarks(Digits):
    """Digits that put true elements first."""

    bits, name = 1, "marks"

    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        pass

    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        return code.e.assign(f"zext i1 {code.e.assign(f'icmp eq i8 {word}, 0')} to i32")


class BesideSelected(Digits):
    """Digits that put elements smaller than the selected one of their row first, then those that are equal to it."""

    bits, name = 2, "order beside an element"

    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        memory = code.global_memory(SELECTED)
        self.selected = elements.key(code, elements.read(code, code.moved(memory, row, elements.word)))

    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        key = elements.key(code, word)
        is_larger, is_other = key > self.selected, key >= self.selected
        both = [code.e.assign(f"zext i1 {condition.name} to i32") for condition in (is_larger, is_other)]
        return code.word("add", *both)


@dataclass(frozen=True)
class Move:
    """What is moved. Whether elements have ``indices`` in memory before (else these are their positions), and
    afterwards; and whether words are written."""

    reads_indices: bool
    writes_indices: bool
    writes_words: bool

    @property
    def name(self) -> str:
        return " ".join(name for name, one in vars(self).items() if one)


def generate_totals(elements: Elements, digits: Digits, threads: int, items: int, copies: int, name: str) -> str:
    """The kernel that counts the digits of rows; a unit is a part of a row. The shared memory of a block has ``copies``
    of the counts, each for some of its warps."""
    code = BlockCode(threads)
    e, count = code.e, digits.orders(elements) << digits.bits
    memory = code.shared(4 * copies * count)
    mine = code.at(memory, code.word("mul", code.word("urem", code.warp, copies), count))
    source, totals = code.global_memory(SOURCE), code.global_memory(TOTALS)
    extent, parts = code.number(EXTENT), code.number(PARTS)
    length = code.divide(code.add(extent, code.subtract(parts, 1)), parts)
    with code.units(code.number(UNITS)) as unit:
        row, part = code.divide(unit, parts), code.remainder(unit, parts)
        digits.prepared(code, elements, row)
        with e.loop(code.wide(code.thread), str(copies * count), threads) as number:
            e.store("i32", "0", code.moved(memory, number, "i32"))
        code.synchronize()
        begin = code.multiply(part, length)
        end = code.smaller(code.add(begin, length), extent)
        of_row = code.moved(source, code.multiply(row, extent), elements.word)
        with e.loop(begin, end, threads * items) as first:
            start, last = code.add(first, code.wide(code.thread)), code.subtract(end, 1)
            indices = [code.add(start, threads * item) for item in range(items)]
            near = [code.smaller(index, last) for index in indices]
            words = [elements.read(code, code.moved(of_row, index, elements.word)) for index in near]
            for index, word in zip(indices, words, strict=True):
                with e.when(code.compare("slt", index, end)):
                    for order, digit in enumerate(digits.all_of(code, elements, word)):
                        code.add_to(code.at(mine, code.word("add", digit, order << digits.bits)), "1")
        code.synchronize()
        of_row = code.moved(totals, code.multiply(row, count), "i32")
        with e.loop(code.wide(code.thread), str(count), threads) as number:
            digit, total = code.narrow(number), "0"
            for copy in range(copies):
                found = e.load("i32", code.at(memory, code.word("add", digit, copy * count)))
                total = code.word("add", total, found)
            with e.when(code.word("icmp ne", total, 0)):
                code.add_to(code.at(of_row, digit), total)
        code.synchronize()
    return code.finished(name)


class ThreadBlock(NamedTuple):
    """The threads of a block that does a tile, the elements of each, and how many blocks should fit a
    multiprocessor."""

    threads: int
    items: int
    blocks: int


class _RowTile:
    """The tile of a row that is a unit of work, of ``tile`` elements."""

    def __init__(self, code: BlockCode, unit: str, tile: int) -> None:
        self.extent, self.tiles = code.number(EXTENT), code.number(PARTS)
        self.unit = unit
        self.row, self.number = code.divide(unit, self.tiles), code.remainder(unit, self.tiles)
        self.first = code.multiply(self.number, tile)
        """The number of the tile's first element in the row."""
        self.there = code.narrow(code.smaller(code.subtract(self.extent, self.first), tile))
        """How many elements the tile has."""
        self.begin = code.add(code.multiply(self.row, self.extent), self.first)
        """The number of the tile's first element in memory."""


class _LookBack:
    """Publishes for other blocks how many elements of a tile have each digit, and adds up the counts of the tiles
    before.

    For each tile and digit there is a word in memory: at first 0; then the count of this tile; then that of all tiles
    of the row up to this one. The upper two bits say which of these it is.
    """

    def __init__(self, code: BlockCode, digits: int, wide: bool) -> None:
        self.code, self.digits = code, digits
        self.type_, self.bits = ("i64", 64) if wide else ("i32", 32)
        self.alone, self.whole = 1 << (self.bits - 2), 1 << (self.bits - 1)
        self.told, self.next = code.global_memory(TOLD), code.global_memory(TOLD_NEXT)

    def _pointer_to(self, memory: str, unit: str, digit: str) -> str:
        number = self.code.add(self.code.multiply(unit, self.digits), self.code.wide(digit))
        return self.code.moved(memory, number, self.type_)

    def _tell(self, unit: str, digit: str, count: str, kind: int) -> None:
        code, value = self.code, self.code.wide(count) if self.bits == 64 else count
        word = code.e.assign(f"or {self.type_} {value}, {kind}")
        pointer = self._pointer_to(self.told, unit, digit)
        scope = f'syncscope("device") monotonic, align {self.bits // 8}'
        code.e.emit(f"store atomic {self.type_} {word}, ptr {pointer} {scope}")

    def clear_next(self, tile: _RowTile, digit: str) -> None:
        """Set the word of a tile for the next digit to 0."""
        with self.code.e.when(self.code.compare("eq", self.code.number(IS_LAST), 0)):
            self.code.e.store(self.type_, "0", self._pointer_to(self.next, tile.unit, digit))

    def tell(self, tile: _RowTile, digit: str, count: str) -> None:
        """Publish how many elements of a tile have a digit."""
        with self.code.e.when(self.code.compare("ne", tile.number, 0)):
            self._tell(tile.unit, digit, count, self.alone)

    def sum_before(self, tile: _RowTile, digit: str, count: str, smaller: str) -> str:
        """How many elements of the tiles before have this digit, plus ``smaller``, the elements of the row with smaller
        digits. Publishes the sum with the ``count`` of this tile."""
        code, e = self.code, self.code.e
        total, unit, waiting = e.slot("i32"), e.slot("i64"), e.slot("i1")
        first = code.subtract(tile.unit, tile.number)
        e.store("i32", smaller, total)
        e.store("i64", tile.unit, unit)
        e.store("i1", code.compare("ne", tile.number, 0), waiting)
        with e.repeat_while(waiting):
            here = e.load("i64", unit)
            words = [self._heard(code.larger(code.subtract(here, n), first), digit) for n in range(1, TOGETHER + 1)]
            goes_on = "true"
            for number, word in enumerate(words):
                value = e.assign(f"and {self.type_} {word}, {self.alone - 1}")
                value = code.narrow(value) if self.bits == 64 else value
                is_used = e.assign(f"and i1 {goes_on}, {e.assign(f'icmp ne {self.type_} {word}, 0')}")
                is_whole = e.assign(f"icmp slt {self.type_} {word}, 0")
                e.store("i32", code.word("add", e.load("i32", total), code.chosen(is_used, value, 0)), total)
                with e.when(is_used):
                    e.store("i64", code.subtract(here, number + 1), unit)
                    e.store("i1", code.negated(is_whole), waiting)
                goes_on = e.assign(f"and i1 {is_used}, {code.negated(is_whole)}")
        found = e.load("i32", total)
        self._tell(tile.unit, digit, code.word("add", found, count), self.whole)
        return found

    def _heard(self, unit: str, digit: str) -> str:
        """The word that a tile has published."""
        pointer = self._pointer_to(self.told, unit, digit)
        scope = f'syncscope("device") monotonic, align {self.bits // 8}'
        return self.code.e.assign(f"load atomic {self.type_}, ptr {pointer} {scope}")


class _Mover:
    """Writes the kernel that moves elements; a unit is a tile."""

    def __init__(self, elements: Elements, digits: Digits, move: Move, block: ThreadBlock, wide: bool) -> None:
        self.elements, self.digits, self.move = elements, digits, move
        self.code = BlockCode(block.threads, block.blocks)
        size = max(elements.dtype.size, 4 * move.writes_indices)
        self.ranking = Ranking(self.code, block.items, digits.bits, size)
        self.is_owner = self.ranking.owns()
        self.look_back = _LookBack(self.code, self.ranking.digits, wide)
        self.distances = self.code.shared(4 * self.ranking.digits)
        """For each digit, the distance from where its elements begin in the tile to where they go in the row."""

    def text(self, name: str) -> str:
        code = self.code
        with code.tickets(code.global_memory(COUNTER), code.number(UNITS)) as unit:
            tile = _RowTile(code, unit, self.ranking.tile)
            self.digits.prepared(code, self.elements, tile.row)
            self._move(tile)
        return code.finished(name)

    def _move(self, tile: _RowTile) -> None:
        code, e, elements, ranking = self.code, self.code.e, self.elements, self.ranking
        mine, last = ranking.of_warp(), code.word("sub", tile.there, 1)
        inside = [code.word("icmp ult", index, tile.there) for index in mine]
        near = [code.chosen(exists, index, last) for index, exists in zip(mine, inside, strict=True)]
        source = code.moved(code.global_memory(SOURCE), tile.begin, elements.word)
        words = [elements.read(code, code.at(source, index, elements.word)) for index in near]
        digits = [
            code.chosen(exists, self.digits.of(code, elements, word), ranking.digits - 1)
            for word, exists in zip(words, inside, strict=True)
        ]
        found = ranking.counted(digits)
        self._tell(tile, found)
        goals = ranking.placed(words, digits, elements.word)
        self._look_back(tile, found)
        code.synchronize()
        turns = ranking.in_turns()
        moved = ranking.taken(turns, elements.word)
        indices = []
        for word, index in zip(moved, turns, strict=True):
            distance = e.load("i32", code.at(self.distances, self.digits.of(code, elements, word)))
            indices.append(code.word("add", index, distance))
        exists = [code.word("icmp ult", index, tile.there) for index in turns]
        if self.move.writes_words:
            self._write(TARGET, tile, moved, indices, exists, elements.word)
        code.synchronize()
        if self.move.writes_indices:
            ranking.put(self._indices(tile, near), goals, "i32")
            code.synchronize()
            self._write(TARGET_INDICES, tile, ranking.taken(turns, "i32"), indices, exists, "i32")
            code.synchronize()

    def _indices(self, tile: _RowTile, near: Sequence[str]) -> list[str]:
        code = self.code
        if not self.move.reads_indices:
            return [code.word("add", code.narrow(tile.first), index) for index in near]
        source = code.moved(code.global_memory(SOURCE_INDICES), tile.begin, "i32")
        return [code.e.load("i32", code.at(source, index)) for index in near]

    def _tell(self, tile: _RowTile, found: Counted) -> None:
        with only(self.code, self.is_owner):
            for digit, count in zip(self.ranking.own(), found.counts, strict=True):
                self.look_back.clear_next(tile, digit)
                self.look_back.tell(tile, digit, count)

    def _look_back(self, tile: _RowTile, found: Counted) -> None:
        """Compute how far the elements with each digit move."""
        code, e = self.code, self.code.e
        slots = [e.slot("i32") for _ in found.counts]
        for slot in slots:
            e.store("i32", "0", slot)
        with e.when(code.compare("eq", tile.number, 0)):
            for slot, smaller in zip(slots, self._smaller_in_row(tile), strict=True):
                e.store("i32", smaller, slot)
        with only(code, self.is_owner):
            for digit, slot, count, start in zip(self.ranking.own(), slots, found.counts, found.starts, strict=True):
                before = self.look_back.sum_before(tile, digit, count, e.load("i32", slot))
                e.store("i32", code.word("sub", before, start), code.at(self.distances, digit))

    def _smaller_in_row(self, tile: _RowTile) -> list[str]:
        """For each digit of this thread, how many elements of the row have smaller ones."""
        code, digits = self.code, self.ranking.digits
        number = code.add(code.multiply(tile.row, code.number(ORDERS)), code.number(ORDER))
        totals = code.moved(code.global_memory(TOTALS), code.multiply(number, digits), "i32")
        own = [code.e.load("i32", code.at(totals, digit)) for digit in self.ranking.own()]
        if self.is_owner is not None:
            own = [code.chosen(self.is_owner, total, 0) for total in own]
        return code.sums_before(own)

    def _write(
        self,
        memory: int,
        tile: _RowTile,
        words: Sequence[str],
        goals: Sequence[str],
        exists: Sequence[str],
        type_: str,
    ) -> None:
        """Write words to their targets, as far as these are in the wanted window of the row."""
        code = self.code
        lowest, count = code.narrow(code.number(START)), code.number(COUNT)
        begin = code.moved(code.global_memory(memory), code.multiply(tile.row, count), type_)
        for word, goal, is_there in zip(words, goals, exists, strict=True):
            index = code.word("sub", goal, lowest)
            wanted = code.word("icmp ult", index, code.narrow(count))
            with code.e.when(code.e.assign(f"and i1 {is_there}, {wanted}")):
                code.e.store(type_, word, code.moved(begin, code.wide(index), type_))


def generate_move(elements: Elements, digits: Digits, move: Move, block: ThreadBlock, wide: bool, name: str) -> str:
    """The kernel that moves elements into the order of one digit."""
    return _Mover(elements, digits, move, block, wide).text(name)
