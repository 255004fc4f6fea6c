"""Computes where the elements of a block go when they are ordered by a digit; elements with equal digits stay in order.

The block has a tile of elements. Element ``i`` of a thread is at position ``32 * i`` plus its lane, in the part of its
warp. So a warp has neighbouring elements at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.threads import WARP


class Counted(NamedTuple):
    """For each digit that a thread is responsible for: how many elements of the tile have it, and how many have smaller
    ones."""

    counts: list[str]
    starts: list[str]


class Ranking:
    """Writes the ranking of ``items`` elements of each thread by digits of ``bits`` bits.

    Then the elements, of at most ``size`` bytes, are stored to shared memory in their new order.
    """

    def __init__(self, code: BlockCode, items: int, bits: int, size: int) -> None:
        self.code, self.items, self.bits = code, items, bits
        self.digits = 1 << bits
        assert code.threads >= self.digits or self.digits % code.threads == 0
        self.own_digits = max(1, self.digits // code.threads)
        """How many digits a thread is responsible for, if it is for any."""
        self.memory = code.shared(8 * code.warps * self.digits)
        """For each warp the counts of digits; then, for each warp and digit, the threads whose element has the digit,
        as bits."""
        self.elements = code.shared(self.tile * size)
        self.bit = code.word("shl", 1, code.lane)
        self.before = code.word("sub", self.bit, 1)
        self.behind = code.word("sub", code.word("sub", -1, self.before), self.bit)

    @property
    def tile(self) -> int:
        """How many elements a block has."""
        return self.code.threads * self.items

    def of_warp(self) -> list[str]:
        """The positions of this thread's elements before they move."""
        code = self.code
        first = code.word("add", code.word("mul", code.warp, WARP * self.items), code.lane)
        return [code.word("add", first, WARP * item) for item in range(self.items)]

    def in_turns(self) -> list[str]:
        """Positions such that neighbouring threads have neighbouring ones."""
        return [self.code.word("add", self.code.thread, self.code.threads * item) for item in range(self.items)]

    def owns(self) -> str | None:
        """Whether this thread is responsible for digits; None if all threads are."""
        if self.code.threads <= self.digits:
            return None
        return self.code.word("icmp ult", self.code.thread, self.digits)

    def own(self) -> list[str]:
        """The digits that this thread is responsible for; the first digits if it is for none."""
        code, is_owner = self.code, self.owns()
        first = code.word("mul", code.thread, self.own_digits)
        if is_owner is not None:
            first = code.chosen(is_owner, first, 0)
        return [code.word("add", first, number) for number in range(self.own_digits)]

    def counted(self, digits: Sequence[str]) -> Counted:
        """Count the digits of the elements of all threads, before they are `placed`."""
        code, mine = self.code, self._of_this_warp()
        for memory in mine:
            for number in range(0, self.digits, WARP):
                self._clear(memory, number)
        code.synchronize_warp()
        for digit in digits:
            code.add_to(code.at(mine[0], digit), "1")
        code.synchronize()
        found = self._summed()
        code.synchronize()
        return found

    def _of_this_warp(self) -> tuple[str, str]:
        """The addresses of this warp's counts of digits, and of its threads that have each digit."""
        counts = self.code.at(self.memory, self.code.word("mul", self.code.warp, self.digits))
        return counts, self.code.at(counts, self.code.warps * self.digits)

    def _clear(self, memory: str, number: int) -> None:
        code = self.code
        exists = code.word("icmp ult", code.lane, self.digits) if self.digits < WARP else None
        with only(code, exists):
            code.e.store("i32", "0", code.at(memory, code.word("add", code.lane, number)))

    def _summed(self) -> Counted:
        """Add up the counts, and replace those of each warp by the position of its first element with a digit."""
        code, e, warps, is_owner = self.code, self.code.e, self.code.warps, self.owns()
        of_warps, counts = [], []
        for digit in self.own():
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
        return Counted(counts, starts)

    def placed(self, words: Sequence[str], digits: Sequence[str], type_: str) -> list[str]:
        """Store words of an LLVM type at their new positions, after their digits were `counted`; returns these
        positions."""
        mine, indices = self._of_this_warp(), []
        for word, digit in zip(words, digits, strict=True):
            indices.append(self._placed(*mine, digit))
            self.put([word], indices[-1:], type_)
        return indices

    def _placed(self, counts: str, threads: str, digit: str) -> str:
        """The new position of an element: after those that the warp has already placed, in the order of its
        threads."""
        code, e = self.code, self.code.e
        counts, threads = code.at(counts, digit), code.at(threads, digit)
        e.assign(f'atomicrmw or ptr {threads}, i32 {self.bit} syncscope("device") monotonic')
        code.synchronize_warp()
        peers, first = e.load("i32", threads), e.load("i32", counts)
        code.synchronize_warp()
        index = code.word("add", first, code.counted(code.word("and", peers, self.before)))
        with e.when(code.word("icmp eq", code.word("and", peers, self.behind), 0)):
            e.store("i32", code.word("add", index, 1), counts)
            e.store("i32", "0", threads)
        code.synchronize_warp()
        return index

    def put(self, words: Sequence[str], indices: Sequence[str], type_: str) -> None:
        """Write words of an LLVM type to positions in shared memory."""
        for word, index in zip(words, indices, strict=True):
            self.code.e.store(type_, word, self.code.at(self.elements, index, type_))

    def taken(self, indices: Sequence[str], type_: str) -> list[str]:
        """Read the words at positions in shared memory."""
        return [self.code.e.load(type_, self.code.at(self.elements, index, type_)) for index in indices]


def only(code: BlockCode, condition: str | None) -> AbstractContextManager[None]:
    """A block for the threads for which a condition holds; for all threads if it is None."""
    return nullcontext() if condition is None else code.e.when(condition)
