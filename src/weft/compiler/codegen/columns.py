"""Columns of short rows in memory as vectors: a vector has the elements of one column in neighbouring rows.

Rows are read and written as whole vectors, and their elements change places by shuffles: a processor takes much longer
to read or write the elements of a column one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.codegen.emitter import Emitter


class ColumnAccesses(NamedTuple):
    """Accesses of columns of rows of ``stride`` elements that are done together: pairs of an instruction and its
    column, in the order of the instructions. Columns count from the first one that is accessed. If ``stride`` is 0,
    rows are at computed places."""

    stride: int
    members: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        members = " ".join([f"%{number}.{column}" for number, column in self.members])
        return f"{members} by {self.stride}" if self.stride else f"{members} taken"

    @property
    def width(self) -> int:
        """How many elements of a row the columns span."""
        return max([column for _, column in self.members]) + 1

    @property
    def are_all(self) -> bool:
        return len(self.members) == self.stride

    @property
    def in_memory(self) -> list[int]:
        """The instructions in the order of their columns."""
        return sorted([number for number, _ in self.members], key=dict(self.members).__getitem__)


class Shuffles:
    """Writes shuffles of vectors of ``width`` elements."""

    def __init__(self, e: Emitter, element: str, width: int) -> None:
        self.e, self.element, self.width = e, element, width
        self.type = f"<{width} x {element}>"

    def of(self, one: str, other: str, chosen: Sequence[int | None]) -> str:
        """A vector of chosen elements of two vectors, numbered from those of the first one on; None: any element."""
        lanes = ", ".join(["i32 poison" if number is None else f"i32 {number}" for number in chosen])
        return self.e.assign(f"shufflevector {self.type} {one}, {self.type} {other}, <{len(chosen)} x i32> <{lanes}>")

    def loaded(self, pointer: str, number: int, alignment: int) -> str:
        """A vector of neighbours in memory, from an element behind a pointer on."""
        return self.e.assign(f"load {self.type}, ptr {self._at(pointer, number)}, align {alignment}")

    def store(self, vector: str, pointer: str, number: int, alignment: int) -> None:
        """Write a vector to memory, from an element behind a pointer on."""
        self.e.emit(f"store {self.type} {vector}, ptr {self._at(pointer, number)}, align {alignment}")

    def _at(self, pointer: str, number: int) -> str:
        return self.e.assign(f"getelementptr {self.element}, ptr {pointer}, i64 {number}") if number else pointer

    def picked(self, vectors: Sequence[str], starts: Sequence[int], first: int, stride: int) -> str:
        """The elements ``first``, ``first + stride``, ... of what ``vectors`` hold. Each holds neighbours from its
        start on; it may begin before the end of the one before."""
        found, known = "poison", 0
        for vector, start in zip(vectors, starts, strict=True):
            inside = [lane for lane in range(known, self.width) if first + stride * lane < start + self.width]
            chosen: list[int | None] = [lane if lane < known else None for lane in range(self.width)]
            for lane in inside:
                chosen[lane] = self.width + first + stride * lane - start
            if inside:
                found, known = self.of(found, vector, chosen), inside[-1] + 1
        return found

    def separated(self, vectors: Sequence[str]) -> list[str]:
        """The columns of rows that are as long as there are ``vectors``, which hold whole rows."""
        count, width = len(vectors), self.width
        if count == 1:
            return list(vectors)
        if count % 2:
            return [self.picked(vectors, range(0, count * width, width), column, count) for column in range(count)]
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
        halves = [[self.of(one, other, range(odd, 2 * width, 2)) for one, other in pairs] for odd in (0, 1)]
        evens, odds = map(self.separated, halves)
        return [column for both in zip(evens, odds, strict=True) for column in both]

    def interleaved(self, columns: Sequence[str]) -> list[str]:
        """The inverse of `separated`."""
        count, width = len(columns), self.width
        if count == 1:
            return list(columns)
        if count % 2:
            return [self._joined(columns, range(start, start + width)) for start in range(0, count * width, width)]
        evens, odds = (self.interleaved(columns[odd::2]) for odd in (0, 1))
        turns = [
            [half + lane + other for lane in range(width // 2) for other in (0, width)] for half in (0, width // 2)
        ]
        return [self.of(even, odd, turn) for even, odd in zip(evens, odds, strict=True) for turn in turns]

    def _joined(self, columns: Sequence[str], places: Sequence[int]) -> str:
        """The elements at some places in rows of ``columns``."""
        count, found = len(columns), "poison"
        for number, column in enumerate(columns):
            chosen: list[int | None] = [None] * self.width
            for lane, place in enumerate(places):
                if place % count == number:
                    chosen[lane] = self.width + place // count
                elif place % count < number:
                    chosen[lane] = lane
            found = self.of(found, column, chosen)
        return found
