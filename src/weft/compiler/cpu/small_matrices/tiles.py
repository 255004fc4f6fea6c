"""Small matrices on the stack: as many at once as a vector has lanes, or a single one.

If there are many matrices, each is in a lane: an element is a vector of that element of each matrix, and matrices are
transposed when they are read and written. Lanes without a matrix repeat the last one, and are not written. If there are
few, an element is a number (``Code.lanes`` has one lane), and lanes are neighbours in a row or a column. In both cases
each element is computed by the same operations, so results have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu import squares
from weft.compiler.cpu.code import WIDTH, Code, read, write
from weft.dtypes import Dtype

LARGEST = 32
"""The most rows and columns of a small matrix."""

COLUMNS = 16
"""How many right sides are solved for at once."""


@dataclass(frozen=True)
class Line:
    """Elements at equal distances (in bytes): a row or a column of matrices, or a list of numbers."""

    code: Code
    pointer: str
    step: str | int
    dtype: Dtype

    @property
    def has_neighbours(self) -> bool:
        """Whether its elements are single numbers without gaps."""
        return self.code.lanes.width == 1 and self.step == self.dtype.size

    def at(self, index: str | int) -> str:
        return self.code.moved(self.pointer, self.code.multiply(str(index), self.step))

    def get(self, index: str | int) -> Value:
        L = self.code.lanes
        return Value(L, self.code.e.load(L.type_of(self.dtype), self.at(index)), self.dtype)

    def put(self, index: str | int, value: Value) -> None:
        self.code.e.store(self.code.lanes.type_of(self.dtype), value.name, self.at(index))


@dataclass(frozen=True)
class MatrixTile:
    """Matrices; ``down`` and ``across`` are the bytes between rows and between columns."""

    code: Code
    pointer: str
    down: str | int
    across: str | int
    dtype: Dtype

    def row(self, index: str | int) -> Line:
        start = self.code.moved(self.pointer, self.code.multiply(str(index), self.down))
        return Line(self.code, start, self.across, self.dtype)

    def column(self, index: str | int) -> Line:
        start = self.code.moved(self.pointer, self.code.multiply(str(index), self.across))
        return Line(self.code, start, self.down, self.dtype)

    @property
    def by_rows(self) -> bool:
        """Whether there are no gaps between neighbours in a row."""
        return isinstance(self.across, int)

    @property
    def transposed(self) -> MatrixTile:
        return MatrixTile(self.code, self.pointer, self.across, self.down, self.dtype)


class Room:
    """Memory for ``count`` elements."""

    def __init__(self, code: Code, dtype: Dtype, count: int) -> None:
        self.code, self.dtype = code, dtype
        self.size = code.lanes.width * dtype.size
        self.pointer = code.e.slot(f"[{count + WIDTH} x {code.lanes.type_of(dtype)}], align 64")

    def line(self) -> Line:
        return Line(self.code, self.pointer, self.size, self.dtype)

    def tile(self, columns: str | int) -> MatrixTile:
        """The memory as matrices with ``columns`` columns, stored row by row."""
        return MatrixTile(self.code, self.pointer, self.code.multiply(str(columns), self.size), self.size, self.dtype)


@dataclass(frozen=True)
class Stack:
    """The matrices of a unit of work: the address of the first one, the bytes of a matrix, and how many there are."""

    code: Code
    pointer: str
    stride: str
    present: str
    dtype: Dtype

    def read(self, room: Room, start: str, count: str, first: str = "0") -> None:
        """Read ``count`` elements of each matrix, from element ``start`` on, into the room, from element ``first`` on.
        Up to 15 elements after them are overwritten."""
        self._move(0, room, start, count, first)

    def write(self, room: Room, start: str, count: str, first: str = "0") -> None:
        self._move(1, room, start, count, first)

    def _move(self, direction: int, room: Room, start: str, count: str, first: str) -> None:
        code, size = self.code, self.dtype.size
        with code.e.loop("0", count, WIDTH) as done:
            outside = code.moved(self.pointer, code.multiply(code.add(start, done), size))
            inside = code.moved(room.pointer, code.multiply(code.add(first, done), room.size))
            rest = code.subtract(count, done)
            if code.lanes.width == WIDTH:
                function = squares.names(size)[direction]
                code.e.emit(
                    f"call void @{function}(ptr {outside}, i64 {self.stride}, i64 {self.present}, i64 {rest}, "
                    f"ptr {inside})"
                )
            else:
                pointers = (outside, inside) if direction == 0 else (inside, outside)
                L, there = vector_between(code, "0", "0", rest)
                write(L, read(L, self.dtype, pointers[0], 0, there.name), pointers[1], 0, there.name)


def vector_between(code: Code, first: str, start: str, stop: str) -> tuple[Lanes, Value]:
    """A vector of neighbours from ``first`` on, and the mask of those from ``start`` up to, but without, ``stop``."""
    L = Lanes(code.e, WIDTH)
    lanes = Value(L, f"<{', '.join(f'i32 {lane}' for lane in range(WIDTH))}>", dtypes.int32)
    low, high = [_narrow(code, L, code.subtract(bound, first), dtypes.int32) for bound in (start, stop)]
    return L, (lanes >= low) & (lanes < high)


def _narrow(code: Code, L: Lanes, number: str, dtype: Dtype) -> Value:
    found: Value = L.splat(Value(code.scalar, code.e.assign(f"trunc i64 {number} to i32"), dtype))
    return found


def numbered(code: Code, index: str) -> Value:
    """An index, repeated in all lanes."""
    return _narrow(code, code.lanes, index, dtypes.uint32)
