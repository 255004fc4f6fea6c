"""Products of the windows of an array with a matrix, which are convolutions.

They are computed in blocks, as other products, and have the same bits. The kernel reads elements of windows where they
are in the array: tables have the address of each element of each window of a group of panels. For elements outside of
the array these are addresses of zeros, so the array is not copied to pad it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu import attached
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.product import Panels, Terms, step_function
from weft.compiler.cpu.product_axes import BATCH_AXES as WINDOWS
from weft.compiler.cpu.product_axes import TilesOverAxes, packing
from weft.compiler.cpu.product_kernel import ROWS_AHEAD, kernel_of_windows
from weft.compiler.cpu.product_step import COLUMNS, ROWS, Block
from weft.compiler.cpu.product_tiles import GROUP
from weft.primitives.products import DEPTH

MOST_AXES = 3
"""The most spatial axes of an array."""
FEWEST_CHANNELS = 16
"""With fewer neighbouring numbers, looking up their addresses takes too long."""

# The step's numbers after those of products over axes: the distance between rows of the result, how many numbers an
# element of a window has, and the distance between examples; and for each spatial axis, outermost first, how many
# windows there are, the extents of the array and of a window, the distances of windows and of their elements, how many
# zeros are before the array, and its stride.
PITCH, CHANNELS, EXAMPLE, AXES = range(4)
COUNTS, EXTENT, SIZE, STEP, SPACING, LOW, STRIDE, _FIELDS = range(8)
_NUMBERS = AXES + MOST_AXES * _FIELDS
BATCH_AXES = WINDOWS + _NUMBERS

_AT_ONCE = 8
"""How many addresses are computed in a vector."""


class WindowAxis(NamedTuple):
    """A spatial axis: see the numbers above."""

    counts: int
    extent: int
    size: int
    step: int
    spacing: int
    low: int
    stride: int


def window_numbers(pitch: int, channels: int, example: int, axes: Sequence[WindowAxis]) -> list[int]:
    """The numbers that describe windows."""
    alone = [WindowAxis(1, 1, 1, 1, 1, 0, 0)] * (MOST_AXES - len(axes))
    return [pitch, channels, example, *[number for axis in (*alone, *axes) for number in axis]]


@cache
def address(block: Block) -> int:
    """The address of the step for products in a kind of block."""
    name = f"product_of_windows_{block.dtype.name}"
    return loading.load(f"{name} {block}", lambda: generate(block, name), (name,))[name]


def generate(block: Block, name: str) -> str:
    """The LLVM IR of the step."""
    windows = windows_of(block)
    functions = [*packing(block), _write_windows(block), _write_addresses(block)]
    functions.append(kernel_of_windows(block, "block", False, windows))
    for vectors in range(1, block.vectors + 1):
        narrow = Block(block.dtype, block.rows, vectors, block.vector_bytes)
        functions.append(kernel_of_windows(narrow, f"edge_{vectors}", True, windows))
    functions += [attached.caller(block.dtype.size), step_function(_TilesOfWindows(block), name)]
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


def windows_of(block: Block) -> int:
    """How many windows tables have: those of a group of panels, and those after them, which are prefetched."""
    return -(-(GROUP * block.rows + ROWS_AHEAD) // _AT_ONCE) * _AT_ONCE


class _WindowTables(Integers):
    """Reads the numbers ``%windows``, and goes through windows ``%at``, of which there are the address and the
    positions of the first element along each axis."""

    def __init__(self, block: Block) -> None:
        super().__init__(Emitter())
        self.block, self.count = block, windows_of(block)

    def of(self, position: int) -> str:
        return self.e.load("i64", self.moved("%windows", position, "i64"))

    def of_axis(self, axis: int, field: int) -> str:
        return self.of(AXES + axis * _FIELDS + field)

    def of_window(self, number: str, field: int) -> str:
        """Where a number of a window is: its address (0), or its position along an axis (from 1 on)."""
        return self.moved("%at", self.add(number, field * self.count), "i64")

    def bytes(self, distance: str) -> str:
        return self.multiply(distance, self.block.dtype.size)

    def total(self, numbers: Sequence[str]) -> str:
        found, *others = numbers
        for other in others:
            found = self.add(found, other)
        return found


def _write_windows(block: Block) -> EmittedFunction:
    """A function that writes the address and the positions of windows from ``%first`` on. Where there are no more than
    ``%rows``, the last one is written again."""
    w = _WindowTables(block)
    axes = range(MOST_AXES)
    counts, steps, lows, strides = [[w.of_axis(axis, field) for axis in axes] for field in (COUNTS, STEP, LOW, STRIDE)]
    apart, start = w.of(EXAMPLE), w.e.assign("ptrtoint ptr %from to i64")
    example, *indices = [w.e.slot("i64") for _ in range(1 + MOST_AXES)]
    remaining = "%first"
    for axis in reversed(axes):
        w.e.store("i64", w.remainder(remaining, counts[axis]), indices[axis])
        remaining = w.divide(remaining, counts[axis])
    w.e.store("i64", remaining, example)

    def advance(axis: int) -> None:
        """Go to the next window along an axis, and from the last one to the next line of windows."""
        index = example if axis < 0 else indices[axis]
        following = w.add(w.e.load("i64", index), 1)
        w.e.store("i64", following, index)
        if axis >= 0:
            with w.e.when(w.compare("eq", following, counts[axis])):
                w.e.store("i64", "0", index)
                advance(axis - 1)

    with w.e.loop("0", str(w.count)) as number:
        positions = [
            w.subtract(w.multiply(w.e.load("i64", index), step), low)
            for index, step, low in zip(indices, steps, lows, strict=True)
        ]
        distances = [w.multiply(position, stride) for position, stride in zip(positions, strides, strict=True)]
        distance = w.total([w.multiply(w.e.load("i64", example), apart), *distances])
        for field, value in enumerate([w.add(start, w.bytes(distance)), *positions]):
            w.e.store("i64", value, w.of_window(number, field))
        with w.e.when(w.compare("slt", w.add(w.add("%first", number), 1), "%rows")):
            advance(MOST_AXES - 1)
    parameters = "ptr %windows, ptr %from, i64 %first, i64 %rows, ptr %at"
    return w.e, w.e.function("write_windows", parameters, "internal ")


def _write_addresses(block: Block) -> EmittedFunction:
    """A function that writes the addresses of elements of windows, one element for all windows after the other:
    elements that have terms from ``%first`` on, ``%inner`` terms. For those outside of the array it writes addresses
    such that zeros are read."""
    w = _WindowTables(block)
    L = Lanes(w.e, _AT_ONCE)
    scalar, type_ = Lanes(w.e, 1), L.type_of(dtypes.int64)

    def every(number: str) -> str:
        return str(L.splat(Value(scalar, number, dtypes.int64)).name)

    channels, zeros = w.of(CHANNELS), w.e.assign("ptrtoint ptr %zeros to i64")
    before = w.divide("%first", channels)
    offset = w.subtract("%first", w.multiply(before, channels))
    last = w.divide(w.add(w.add(offset, "%inner"), w.subtract(channels, 1)), channels)
    with w.e.loop("0", last) as number:
        # A kernel adds the offset of the first term to all addresses of its element.
        unused = w.either(w.compare("eq", number, 0), w.bytes(offset), 0)
        remaining = w.add(before, number)
        shifts: list[str] = []
        for axis in reversed(range(MOST_AXES)):
            size = w.of_axis(axis, SIZE)
            shifts.insert(0, w.multiply(w.remainder(remaining, size), w.of_axis(axis, SPACING)))
            remaining = w.divide(remaining, size)
        strides = [w.of_axis(axis, STRIDE) for axis in range(MOST_AXES)]
        distance = w.total([w.multiply(shift, stride) for shift, stride in zip(shifts, strides, strict=True)])
        moved, outside = every(w.bytes(distance)), every(w.subtract(zeros, unused))
        along = [(every(shift), every(w.of_axis(axis, EXTENT))) for axis, shift in enumerate(shifts)]
        addresses = w.moved("%addresses", w.multiply(number, w.count), "i64")
        with w.e.loop("0", str(w.count), _AT_ONCE) as window:
            inside = "splat (i1 true)"
            for axis, (shift, extent) in enumerate(along):
                position = w.e.assign(f"load {type_}, ptr {w.of_window(window, 1 + axis)}, align 8")
                there = w.e.assign(f"icmp ult {type_} {w.e.assign(f'add {type_} {position}, {shift}')}, {extent}")
                inside = w.e.assign(f"and <{_AT_ONCE} x i1> {inside}, {there}")
            address = w.e.assign(f"load {type_}, ptr {w.of_window(window, 0)}, align 8")
            address = w.e.assign(f"add {type_} {address}, {moved}")
            address = w.e.assign(f"select <{_AT_ONCE} x i1> {inside}, {type_} {address}, {type_} {outside}")
            w.e.emit(f"store {type_} {address}, ptr {w.moved(addresses, window, 'i64')}, align 8")
    parameters = "ptr %windows, ptr %at, i64 %first, i64 %inner, ptr %zeros, ptr %addresses"
    return w.e, w.e.function("write_addresses", parameters, "internal ")


class _TilesOfWindows(TilesOverAxes):
    """The loops over a unit, with tables of the addresses of elements of windows. In each row, the result has columns
    of all groups."""

    def __init__(self, block: Block) -> None:
        super().__init__(block, BATCH_AXES)
        windows = windows_of(block)
        elements = -(-DEPTH // FEWEST_CHANNELS) + 1
        self.windows = self.e.slot(f"[{(1 + MOST_AXES) * windows} x i64], align 64")
        self.addresses = self.e.slot(f"[{elements * windows} x ptr], align 64")
        self.zeros = self.e.slot(f"[{DEPTH} x {block.element}], align 64")
        self.e.emit(f"store [{DEPTH} x {block.element}] zeroinitializer, ptr {self.zeros}")

    def row_distance(self) -> str:
        return self.number(WINDOWS + PITCH)

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        numbers, channels = self.numbers_from(WINDOWS), self.number(WINDOWS + CHANNELS)
        # Blocks of terms that are packed together are added to the same rows, one after the other.
        with self.e.when(self.compare("eq", part.before, 0)):
            rows = f"i64 {first}, i64 {self.number(ROWS)}"
            self.e.emit(f"call void @write_windows(ptr {numbers}, ptr {operand}, {rows}, ptr {self.windows})")
        terms = f"i64 {part.first}, i64 {part.depth}"
        tables = f"ptr {self.zeros}, ptr {self.addresses}"
        self.e.emit(f"call void @write_addresses(ptr {numbers}, ptr {self.windows}, {terms}, {tables})")
        return Panels(self.addresses, "", channels, self.remainder(part.first, channels))

    def rows_of(self, left: Panels, row: str) -> str:
        return f"ptr {self.moved(left.start, row, 'ptr')}, i64 {left.element}, i64 {left.term}"

    def note_terms(self, part: Terms) -> None:
        pass

    def call_attached(self, rectangle: Sequence[str], made: str) -> None:
        group, row, rows, column, columns = rectangle
        column = self.add(column, self.multiply(group, self.number(COLUMNS)))
        super().call_attached(("0", row, rows, column, columns), made)
