"""Long rows, whose elements are put in the order of one digit: they are cut into chunks, which blocks do.

One kernel counts the digits of each chunk, one adds up the counts of each digit over the chunks before, and one moves
the elements. Each reads what the one before it has written to scratch memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.sorting.elements import DIGIT_BITS, Elements
from weft.compiler.cuda.sorting.ranking import Exchange, Ranking, only
from weft.compiler.cuda.threads import WARP

# The numbers of a step: slots and offsets of memory, and then what follows.
SOURCE, SOURCE_INDICES, TARGET, TARGET_INDICES, COUNTS, TOTALS, SELECTED = range(0, 14, 2)
UNITS, EXTENT, CHUNK, CHUNKS, SHIFT, START, COUNT = range(14, 21)


class Digits(ABC):
    """By which digit elements are put in order."""

    bits: int
    name: str

    @abstractmethod
    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        """Read what all elements of a row need."""

    @abstractmethod
    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        """The digit of an element, an ``i32``."""


class OfKeys(Digits):
    """Some bits of keys."""

    bits, name = DIGIT_BITS, "digits of keys"

    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        self.shift = code.narrow(code.number(SHIFT))

    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        return elements.digit(code, word, self.shift)


class OfMarks(Digits):
    """Elements that are true come first."""

    bits, name = 1, "marks"

    def prepared(self, code: BlockCode, elements: Elements, row: str) -> None:
        pass

    def of(self, code: BlockCode, elements: Elements, word: str) -> str:
        return code.e.assign(f"zext i1 {code.e.assign(f'icmp eq i8 {word}, 0')} to i32")


class BesideSelected(Digits):
    """Elements that are smaller than the selected one of their row come first, then those that are equal to it."""

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
    """How elements move: they have ``indices`` in memory before (else their own places are these), or after it; and
    words before, and after it."""

    reads_indices: bool
    writes_indices: bool
    writes_words: bool

    @property
    def name(self) -> str:
        return " ".join(name for name, one in vars(self).items() if one)


class _Chunks:
    """The chunk of a row that is a unit of work."""

    def __init__(self, code: BlockCode, unit: str) -> None:
        self.extent, self.chunks = code.number(EXTENT), code.number(CHUNKS)
        self.row, self.number = code.divide(unit, self.chunks), code.remainder(unit, self.chunks)
        self.begin = code.multiply(self.number, code.number(CHUNK))
        self.end = code.smaller(code.add(self.begin, code.number(CHUNK)), self.extent)
        self.row_begin = code.multiply(self.row, self.extent)

    def counts(self, code: BlockCode, digits: int, digit: str) -> str:
        """Where the count of a digit of this chunk is."""
        number = code.add(code.multiply(self.row, digits), code.wide(digit))
        return code.moved(code.global_memory(COUNTS), code.add(code.multiply(number, self.chunks), self.number), "i32")


def generate_counts(elements: Elements, digits: Digits, threads: int, items: int, name: str) -> str:
    """The kernel that counts: a unit is a chunk. Each warp counts by itself first."""
    code = BlockCode(threads)
    e, count = code.e, 1 << digits.bits
    memory = code.shared(4 * code.warps * count)
    mine = code.at(memory, code.word("mul", code.warp, count))
    source = code.global_memory(SOURCE)
    with code.units(code.number(UNITS)) as unit:
        chunk = _Chunks(code, unit)
        digits.prepared(code, elements, chunk.row)
        with e.loop(code.wide(code.lane), str(count), WARP) as number:
            e.store("i32", "0", code.moved(mine, number, "i32"))
        code.synchronize_warp()
        row = code.moved(source, chunk.row_begin, elements.word)
        last = code.subtract(chunk.end, 1)
        with e.loop(chunk.begin, chunk.end, threads * items) as first:
            start = code.add(first, code.wide(code.thread))
            indices = [code.add(start, threads * item) for item in range(items)]
            words = [elements.read(code, code.moved(row, code.smaller(i, last), elements.word)) for i in indices]
            for index, word in zip(indices, words, strict=True):
                digit = digits.of(code, elements, word)
                with e.when(code.compare("slt", index, chunk.end)):
                    code.add_to(code.at(mine, digit), "1")
        code.synchronize()
        with e.loop(code.wide(code.thread), str(count), threads) as number:
            digit, total = code.narrow(number), "0"
            for warp in range(code.warps):
                found = e.load("i32", code.at(memory, code.word("add", digit, warp * count)))
                total = code.word("add", total, found)
            e.store("i32", total, chunk.counts(code, count, digit))
        code.synchronize()
    return code.finished(name)


def generate_sums(name: str) -> str:
    """The kernel that replaces the counts of chunks by the sums of those before, and writes the sums of all: a unit is
    a digit of a row, which a warp does."""
    code = BlockCode(WARP)
    e = code.e
    counts, totals, chunks = code.global_memory(COUNTS), code.global_memory(TOTALS), code.number(CHUNKS)
    running = e.slot("i32")
    with code.units(code.number(UNITS)) as unit:
        e.store("i32", "0", running)
        mine = code.moved(counts, code.multiply(unit, chunks), "i32")
        with e.loop("0", chunks, WARP) as first:
            number = code.add(first, code.wide(code.lane))
            is_there = code.compare("slt", number, chunks)
            pointer = code.moved(mine, code.either(is_there, number, 0), "i32")
            count = code.chosen(is_there, e.load("i32", pointer), 0)
            code.synchronize_warp()
            before, total = code.sum_of_lanes_before(count)
            so_far = e.load("i32", running)
            with e.when(is_there):
                e.store("i32", code.word("add", so_far, before), pointer)
            e.store("i32", code.word("add", so_far, total), running)
        with e.when(code.word("icmp eq", code.lane, 0)):
            e.store("i32", e.load("i32", running), code.moved(totals, unit, "i32"))
    return code.finished(name)


class _Mover:
    """Writes the kernel that moves elements: a unit is a chunk, whose tiles follow each other."""

    def __init__(self, elements: Elements, digits: Digits, move: Move, threads: int, items: int) -> None:
        self.elements, self.digits, self.move = elements, digits, move
        self.code = BlockCode(threads)
        self.ranking = Ranking(self.code, items, digits.bits)
        self.is_owner = self.ranking.owns()
        size = max(elements.dtype.size, 4 * move.writes_indices)
        self.exchange = Exchange(self.code, self.ranking.tile, size)
        self.distances = self.code.shared(4 * self.ranking.digits)
        """From the place in a tile where the elements with a digit begin to where they go in the row."""

    def text(self, name: str) -> str:
        code, e = self.code, self.code.e
        with code.units(code.number(UNITS)) as unit:
            chunk = _Chunks(code, unit)
            self.digits.prepared(code, self.elements, chunk.row)
            goals = [e.slot("i32") for _ in range(self.ranking.own_digits)]
            for slot, goal in zip(goals, self._first_goals(chunk), strict=True):
                e.store("i32", goal, slot)
            with e.loop(chunk.begin, chunk.end, self.ranking.tile) as first:
                self._tile(chunk, first, goals)
        return code.finished(name)

    def _own_digits(self) -> list[str]:
        """The digits of this thread; the first ones, if it has none."""
        code, first = self.code, self.ranking.first_digit()
        if self.is_owner is not None:
            first = code.chosen(self.is_owner, first, 0)
        return [code.word("add", first, own) for own in range(self.ranking.own_digits)]

    def _first_goals(self, chunk: _Chunks) -> list[str]:
        """Where in the row the first elements of the chunk go that have the digits of this thread."""
        code, e, count = self.code, self.code.e, self.ranking.digits
        digits = self._own_digits()
        totals = code.moved(code.global_memory(TOTALS), code.multiply(chunk.row, count), "i32")
        own = [e.load("i32", code.at(totals, digit)) for digit in digits]
        if self.is_owner is not None:
            own = [code.chosen(self.is_owner, total, 0) for total in own]
        return [
            code.word("add", before, e.load("i32", chunk.counts(code, count, digit)))
            for before, digit in zip(code.sums_before(own), digits, strict=True)
        ]

    def _tile(self, chunk: _Chunks, first: str, goals: Sequence[str]) -> None:
        code, e, elements, ranking = self.code, self.code.e, self.elements, self.ranking
        mine = ranking.of_warp()
        there = code.narrow(code.smaller(code.subtract(chunk.end, first), ranking.tile))
        last = code.word("sub", there, 1)
        inside = [code.word("icmp ult", place, there) for place in mine]
        near = [code.chosen(exists, place, last) for place, exists in zip(mine, inside, strict=True)]
        source = code.moved(code.global_memory(SOURCE), code.add(chunk.row_begin, first), elements.word)
        words = [elements.read(code, code.at(source, place, elements.word)) for place in near]
        digits = [
            code.chosen(exists, self.digits.of(code, elements, word), ranking.digits - 1)
            for word, exists in zip(words, inside, strict=True)
        ]
        found = ranking.ranked(digits)
        with only(code, self.is_owner):
            for slot, digit, start, count in zip(goals, self._own_digits(), found.starts, found.counts, strict=True):
                before = e.load("i32", slot)
                e.store("i32", code.word("sub", before, start), code.at(self.distances, digit))
                e.store("i32", code.word("add", before, count), slot)
        turns = ranking.in_turns()
        moved = self.exchange.moved(words, found.places, turns, elements.word)
        places = []
        for word, place in zip(moved, turns, strict=True):
            distance = e.load("i32", code.at(self.distances, self.digits.of(code, elements, word)))
            places.append(code.word("add", place, distance))
        exists = [code.word("icmp ult", place, there) for place in turns]
        if self.move.writes_words:
            self._write(TARGET, chunk, moved, places, exists, elements.word)
        if self.move.writes_indices:
            if self.move.reads_indices:
                source = code.moved(code.global_memory(SOURCE_INDICES), code.add(chunk.row_begin, first), "i32")
                indices = [e.load("i32", code.at(source, place)) for place in near]
            else:
                indices = [code.word("add", code.narrow(first), place) for place in near]
            indices = self.exchange.moved(indices, found.places, turns, "i32")
            self._write(TARGET_INDICES, chunk, indices, places, exists, "i32")
        code.synchronize()

    def _write(
        self,
        memory: int,
        chunk: _Chunks,
        words: Sequence[str],
        goals: Sequence[str],
        exists: Sequence[str],
        type_: str,
    ) -> None:
        """Write words to where they go in the window of the row that is asked for."""
        code = self.code
        lowest, count = code.narrow(code.number(START)), code.number(COUNT)
        begin = code.moved(code.global_memory(memory), code.multiply(chunk.row, count), type_)
        for word, goal, is_there in zip(words, goals, exists, strict=True):
            place = code.word("sub", goal, lowest)
            wanted = code.word("icmp ult", place, code.narrow(count))
            with code.e.when(code.e.assign(f"and i1 {is_there}, {wanted}")):
                code.e.store(type_, word, code.moved(begin, code.wide(place), type_))


def generate_move(elements: Elements, digits: Digits, move: Move, threads: int, items: int, name: str) -> str:
    """The kernel that moves elements to where they go in the order of their digits."""
    return _Mover(elements, digits, move, threads, items).text(name)
