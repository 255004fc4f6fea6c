"""Shared by the steps of matrix products: their first numbers, the block that registers hold, and the addresses of the
matrices of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from weft import dtypes
from weft.compiler.codegen import attached_calls
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.memory import CACHE_LINE, WAY_BYTES
from weft.dtypes import Dtype

SQUARE = 16
"""Panels have room for a multiple of this many terms, because operands that are transposed are packed in squares."""

# The first numbers of every step of a product. Strides are in elements, offsets in bytes.
SLOTS = {"a": 0, "b": 2, "c": 4}
ROWS, COLUMNS, INNER = 6, 7, 8
A_ROW, A_INNER, B_INNER, B_COLUMN = 9, 10, 11, 12
BATCH_FIELDS = 4
"""How many numbers a batch axis has: its extent and three strides."""


@dataclass(frozen=True)
class Block:
    """The block of the result that a kernel holds in registers: ``rows`` times ``vectors`` of columns. A number in a
    panel, of the size of a sum, holds ``terms`` terms, which are multiplied at once."""

    terms: ClassVar[int] = 1

    dtype: Dtype
    rows: int
    vectors: int
    vector_bytes: int

    @property
    def lanes(self) -> int:
        return self.vector_bytes // self.dtype.size

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def element(self) -> str:
        return MEMORY_TYPES[self.dtype]


@dataclass(frozen=True)
class PairsBlock(Block):
    """A block of a kernel that multiplies pairs of terms, each of half the size of a sum."""

    terms: ClassVar[int] = 2


class Sources(NamedTuple):
    """The dtypes of both operands, which are converted to that of the sums where they are read; and the dtype to which
    finished sums are rounded where they are stored (None: they stay as they are)."""

    left: Dtype
    right: Dtype
    rounded: Dtype | None = None

    @property
    def name(self) -> str:
        names = [self.left.name] if self.left is self.right else [self.left.name, self.right.name]
        return "_".join(names if self.rounded is None else [*names, "to", self.rounded.name])

    def result(self, dtype: Dtype) -> Dtype:
        """The dtype of the result, for sums of ``dtype``."""
        return self.rounded or dtype


def further(e: Emitter, element: str, pointer: str, distance: str) -> str:
    """``pointer`` moved by a number of elements."""
    return e.assign(f"getelementptr {element}, ptr {pointer}, i64 {distance}")


def below(L: Lanes, start: str, stop: str) -> str:
    """A mask of the lanes whose number, counted from ``start``, is below ``stop``."""
    scalar = Lanes(L.emitter, 1)
    iota = Value(L, f"<{', '.join(f'i64 {lane}' for lane in range(L.width))}>", dtypes.int64)
    numbers = L.splat(Value(scalar, start, dtypes.int64)) + iota
    return str((numbers < L.splat(Value(scalar, stop, dtypes.int64))).name)


def read(L: Lanes, source: Dtype, pointer: str, index: str, mask: str | None, dtype: Dtype) -> Value:
    """Elements of an operand of the dtype ``source``, converted to ``dtype``."""
    value: Value = L.convert(load(L, source, Location(pointer, index, False), mask), dtype)
    return value


def multiply_add(L: Lanes, left: Value, right: Value, total: Value) -> Value:
    """``left * right + total``, rounded once; integers wrap around."""
    return L.fma(left, right, total) if total.dtype.is_floating else left * right + total


class ProductStepWriter(Integers):
    """Writes the step of a product of ``dtype`` with operands of the dtypes ``sources``. ``batch_axes`` is the position
    of the number of batch axes; the numbers of these axes follow."""

    def __init__(self, dtype: Dtype, sources: Sources, batch_axes: int) -> None:
        super().__init__(Emitter())
        self.element = MEMORY_TYPES[dtype]
        result = MEMORY_TYPES[sources.result(dtype)]
        self.result_size = sources.result(dtype).size
        self.elements = {"a": MEMORY_TYPES[sources.left], "b": MEMORY_TYPES[sources.right], "c": result}
        self.batch_axes = batch_axes

    def rest(self, whole: str, done: str, most: str | int) -> str:
        """What is left of ``whole`` after ``done``, but at most ``most``."""
        return self.smaller(self.e.assign(f"sub i64 {whole}, {done}"), most)

    def further(self, pointer: str, distance: str) -> str:
        """``pointer`` moved by a number of packed elements."""
        return self.moved(pointer, distance, self.element)

    def in_operand(self, name: str, pointer: str, distance: str) -> str:
        """``pointer`` moved by a number of elements of an operand, ``a`` or ``b``."""
        return self.moved(pointer, distance, self.elements[name])

    def in_result(self, pointer: str, distance: str) -> str:
        """``pointer`` moved by a number of elements of the result."""
        return self.moved(pointer, distance, self.elements["c"])

    def far_from(self, room: str, operand: str, distance: int = WAY_BYTES // 2) -> str:
        """A place less than `WAY_BYTES` after the beginning of ``room``. Lines from there on are in sets of the first
        cache that are ``distance`` bytes after those of the lines of ``operand``."""
        here, there = [self.e.assign(f"ptrtoint ptr {pointer} to i64") for pointer in (room, operand)]
        apart = self.subtract(self.add(there, distance), here)
        return self.moved(room, self.e.assign(f"and i64 {apart}, {WAY_BYTES - CACHE_LINE}"), "i8")

    def parts(self, number: str, count: str) -> tuple[str, str]:
        """A number divided by a count, and the remainder. Mostly the count is 1, and then the slow division is
        skipped."""
        quotient, remainder = self.e.slot("i64"), self.e.slot("i64")
        self.e.store("i64", number, quotient)
        self.e.store("i64", "0", remainder)
        with self.e.when(self.compare("ne", count, 1)):
            self.e.store("i64", self.divide(number, count), quotient)
            self.e.store("i64", self.remainder(number, count), remainder)
        return self.e.load("i64", quotient), self.e.load("i64", remainder)

    def section(self) -> str:
        """The address of the section of an attached kernel, which is after the batch axes."""
        axes = self.number(self.batch_axes)
        index = self.add(self.multiply(axes, BATCH_FIELDS), self.batch_axes + 1)
        return self.moved("%numbers", index, "i64")

    def of_section(self, position: int) -> str:
        return self.e.load("i64", self.moved(self.section(), position, "i64"))

    def made_at(self, in_memory: str, scratch: str) -> str:
        """Where a rectangle of the result is made, as the section says: in memory or in scratch memory."""
        used = self.compare("ne", self.of_section(attached_calls.SCRATCH), 0)
        return self.e.assign(f"select i1 {used}, ptr {scratch}, ptr {in_memory}")

    def call_attached(self, rectangle: Sequence[str], made: str) -> None:
        """Call the attached kernel, if there is one, for a rectangle: matrix, row, rows, column, columns."""
        with self.e.when(self.compare("ne", self.of_section(attached_calls.CODE), 0)):
            attached_calls.call(self.e, self.section(), rectangle, made, self.result_size)

    def operands(self, batch: str) -> dict[str, str]:
        """Pointers to the three matrices of one product of the batch."""
        axes = self.number(self.batch_axes)
        offsets = {name: self.e.slot("i64") for name in SLOTS}
        remaining = self.e.slot("i64")
        self.e.store("i64", batch, remaining)
        for slot in offsets.values():
            self.e.store("i64", "0", slot)
        with self.e.loop("0", axes) as count:
            axis = self.e.assign(f"sub i64 {self.e.assign(f'sub i64 {axes}, 1')}, {count}")
            first = self.add(self.multiply(axis, BATCH_FIELDS), self.batch_axes + 1)
            number = self.e.load("i64", remaining)
            index = self.e.slot("i64")
            self.e.store("i64", number, index)
            with self.e.when(self.compare("ne", axis, 0)):
                others, here = self.parts(number, self.number(first))
                self.e.store("i64", here, index)
                self.e.store("i64", others, remaining)
            index = self.e.load("i64", index)
            for field, slot in enumerate(offsets.values()):
                stride = self.number(self.add(first, field + 1))
                self.e.store("i64", self.add(self.e.load("i64", slot), self.multiply(index, stride)), slot)
        pointers = {}
        for name, position in SLOTS.items():
            entry = self.e.assign(f"getelementptr ptr, ptr %table, i64 {self.number(position)}")
            base = self.e.load("ptr", entry)
            start = self.e.assign(f"getelementptr i8, ptr {base}, i64 {self.number(position + 1)}")
            pointers[name] = self.moved(start, self.e.load("i64", offsets[name]), self.elements[name])
        return pointers
