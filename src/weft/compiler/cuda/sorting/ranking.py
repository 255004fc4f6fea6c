"""Where the elements of a block go if they are put in the order of digits, equal digits staying in order.

The block has a tile of elements. Of each thread, element number ``i`` is that at place ``32 * i`` plus its lane of the
part of its warp, so that a warp has neighbours at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.threads import WARP


class Ranked(NamedTuple):
    """``places`` in the tile for the elements of this thread; ``counts`` and ``starts`` are how many elements have each
    digit of which this thread takes care, and how many have smaller ones."""

    places: list[str]
    counts: list[str]
    starts: list[str]


class Ranking:
    """Writes the ranking of ``items`` elements of each thread by digits of so many ``bits``."""

    def __init__(self, code: BlockCode, items: int, bits: int) -> None:
        self.code, self.items, self.bits = code, items, bits
        self.digits = 1 << bits
        self.own_digits = max(1, self.digits // code.threads)
        """Of how many digits a thread takes care, if there are threads enough for all."""
        self.memory = code.shared(4 * code.warps * self.digits)
        self.before = code.lanes_before()

    @property
    def tile(self) -> int:
        """How many elements a block has."""
        return self.code.threads * self.items

    def of_warp(self) -> list[str]:
        """The places of the elements of this thread before they move."""
        code = self.code
        first = code.word("add", code.word("mul", code.warp, WARP * self.items), code.lane)
        return [code.word("add", first, WARP * item) for item in range(self.items)]

    def in_turns(self) -> list[str]:
        """Places at which neighbouring threads read neighbours."""
        return [self.code.word("add", self.code.thread, self.code.threads * item) for item in range(self.items)]

    def owns(self) -> str | None:
        """Whether this thread takes care of digits; None if all do."""
        if self.code.threads <= self.digits:
            return None
        return self.code.word("icmp ult", self.code.thread, self.digits)

    def first_digit(self) -> str:
        """The first digit of which this thread takes care."""
        return self.code.word("mul", self.code.thread, self.own_digits)

    def ranked(self, digits: Sequence[str]) -> Ranked:
        """The digits are those of the elements of this thread."""
        code, e = self.code, self.code.e
        mine = code.at(self.memory, code.word("mul", code.warp, self.digits))
        for number in range(0, self.digits, WARP):
            self._clear(mine, number)
        code.synchronize_warp()
        ranks = [self._rank(mine, digit) for digit in digits]
        code.synchronize()
        counts, starts = self._counted()
        code.synchronize()
        places = [
            code.word("add", e.load("i32", code.at(mine, digit)), rank)
            for digit, rank in zip(digits, ranks, strict=True)
        ]
        return Ranked(places, counts, starts)

    def _clear(self, mine: str, number: int) -> None:
        code = self.code
        pointer = code.at(mine, code.word("add", code.lane, number))
        if self.digits < WARP:
            with code.e.when(code.word("icmp ult", code.lane, self.digits)):
                code.e.store("i32", "0", pointer)
        else:
            code.e.store("i32", "0", pointer)

    def _rank(self, mine: str, digit: str) -> str:
        """How many elements of the warp have the same digit and come before that of this thread."""
        code, e = self.code, self.code.e
        peers = self._with_digit(digit)
        below = code.counted(code.word("and", peers, self.before))
        slot = e.slot("i32")
        e.store("i32", "0", slot)
        with e.when(code.word("icmp eq", below, 0)):
            e.store("i32", code.add_to(code.at(mine, digit), code.counted(peers)), slot)
        code.synchronize_warp()
        return code.word("add", code.taken(e.load("i32", slot), code.lowest(peers)), below)

    def _with_digit(self, digit: str) -> str:
        """The threads of the warp that have the same digit, as bits."""
        code, peers = self.code, ""
        for bit in range(self.bits):
            is_set = code.word("icmp ne", code.word("and", digit, 1 << bit), 0)
            others = code.word("xor", code.voted(is_set), code.chosen(is_set, 0, -1))
            peers = code.word("and", peers, others) if peers else others
        return peers

    def _counted(self) -> tuple[list[str], list[str]]:
        """Count digits, and replace the counts of each warp by where its first element of a digit goes."""
        code, e, warps = self.code, self.code.e, self.code.warps
        is_owner = self.owns()
        first = self.first_digit()
        if is_owner is not None:
            first = code.chosen(is_owner, first, 0)
        of_warps, counts = [], []
        for own in range(self.own_digits):
            digit = code.word("add", first, own)
            pointers = [code.at(self.memory, code.word("add", digit, warp * self.digits)) for warp in range(warps)]
            found = [e.load("i32", pointer) for pointer in pointers]
            total = found[0]
            for count in found[1:]:
                total = code.word("add", total, count)
            counts.append(total if is_owner is None else code.chosen(is_owner, total, 0))
            of_warps.append((pointers, found))
        starts = code.sums_before(counts)
        for start, (pointers, found) in zip(starts, of_warps, strict=True):
            with only(code, is_owner):
                for pointer, count in zip(pointers, found, strict=True):
                    e.store("i32", start, pointer)
                    start = code.word("add", start, count)
        return counts, starts


def only(code: BlockCode, condition: str | None) -> AbstractContextManager[None]:
    """The threads for which a condition holds; all of them if it is None."""
    return nullcontext() if condition is None else code.e.when(condition)


class Exchange:
    """Shared memory through which the elements of a tile move to other threads."""

    def __init__(self, code: BlockCode, tile: int, size: int) -> None:
        self.code = code
        self.memory = code.shared(tile * size)

    def moved(self, words: Sequence[str], places: Sequence[str], taken: Sequence[str], type_: str) -> list[str]:
        """What came to the places ``taken``, if ``words`` of an LLVM type go to ``places``."""
        code, e = self.code, self.code.e
        for word, place in zip(words, places, strict=True):
            e.store(type_, word, code.at(self.memory, place, type_))
        code.synchronize()
        found = [e.load(type_, code.at(self.memory, place, type_)) for place in taken]
        code.synchronize()
        return found
