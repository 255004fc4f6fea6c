"""Columns of short rows that are at computed places in memory, as vectors: a vector has the elements of one column.

Each row is read as a whole. To gather the columns one by one, the processor would read it again for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.columns import Shuffles
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, dtype_alignment
from weft.dtypes import Dtype

LONGEST = 8
"""Rows of more elements are not read like this."""


def taken_columns(e: Emitter, dtype: Dtype, location: Location, width: int, count: int) -> Sequence[str]:
    """The columns of ``width`` rows of ``count`` elements. Row by row, the location is that of the first column."""
    rows = _TakenRows(e, dtype, location, width, count)
    return rows.from_integers() if dtype.size < 4 and rows.whole * rows.bits <= 64 else rows.from_vectors()


class _TakenRows:
    """Writes code that reads rows. In registers they have ``whole`` elements, a power of two; those behind the first
    ``count`` ones may be anything."""

    def __init__(self, e: Emitter, dtype: Dtype, location: Location, width: int, count: int) -> None:
        self.e, self.location, self.width, self.count = e, location, width, count
        self.element, self.bits, self.alignment = MEMORY_TYPES[dtype], 8 * dtype.size, dtype_alignment(dtype)
        self.whole = 1 << (count - 1).bit_length()

    def from_vectors(self) -> Sequence[str]:
        """The columns, by shuffles of vectors that hold rows."""
        rows = [self._vector(self._place(lane)) for lane in range(self.width)]
        length = self.whole
        while length < self.width:
            rows = [self._joined(one, other, length) for one, other in zip(rows[::2], rows[1::2], strict=True)]
            length *= 2
        return Shuffles(self.e, self.element, self.width).separated(rows)[: self.count]

    def from_integers(self) -> Sequence[str]:
        """The columns, as parts of integers that hold rows."""
        e, row = self.e, f"i{self.whole * self.bits}"
        type_, rows = f"<{self.width} x {row}>", "poison"
        for lane in range(self.width):
            rows = e.assign(f"insertelement {type_} {rows}, {row} {self._integer(self._place(lane))}, i64 {lane}")
        moved = [e.assign(f"lshr {type_} {rows}, splat ({row} {self.bits * n})") for n in range(self.count)]
        return [e.assign(f"trunc {type_} {one} to <{self.width} x {self.element}>") for one in moved]

    def _place(self, lane: int) -> str:
        """The address of the first column of a row."""
        base, index, type_ = self.location.base, self.location.index, self.location.number
        number = self.e.assign(f"extractelement <{self.width} x {type_}> {index}, i64 {lane}")
        return self.e.assign(f"getelementptr {self.element}, ptr {base}, {type_} {number}")

    def _vector(self, place: str) -> str:
        """A row as a vector of ``whole`` elements."""
        type_ = f"<{self.count} x {self.element}>"
        row = self.e.assign(f"load {type_}, ptr {place}, align {self.alignment}")
        if self.count == self.whole:
            return row
        lanes = ", ".join([f"i32 {lane if lane < self.count else 'poison'}" for lane in range(self.whole)])
        return self.e.assign(f"shufflevector {type_} {row}, {type_} poison, <{self.whole} x i32> <{lanes}>")

    def _integer(self, place: str) -> str:
        """A row as an integer of as many bits as ``whole`` elements have."""
        e, row, found, first = self.e, f"i{self.whole * self.bits}", "0", 0
        while first < self.count:
            length = 1 << ((self.count - first).bit_length() - 1)
            pointer = e.assign(f"getelementptr {self.element}, ptr {place}, i64 {first}")
            part = e.assign(f"load i{length * self.bits}, ptr {pointer}, align {self.alignment}")
            if length == self.whole:
                return part
            part = e.assign(f"zext i{length * self.bits} {part} to {row}")
            found = e.assign(f"or {row} {found}, {e.assign(f'shl {row} {part}, {first * self.bits}')}")
            first += length
        return found

    def _joined(self, one: str, other: str, length: int) -> str:
        type_ = f"<{length} x {self.element}>"
        lanes = ", ".join([f"i32 {lane}" for lane in range(2 * length)])
        return self.e.assign(f"shufflevector {type_} {one}, {type_} {other}, <{2 * length} x i32> <{lanes}>")
