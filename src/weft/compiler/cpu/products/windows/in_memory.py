"""Where the elements of windows of an array are in memory: tables of addresses, which kernels read. For elements
outside of the array they have addresses of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.products.step import Block

MOST_AXES = 3
"""The most spatial axes of an array."""
FEWEST_CHANNELS = 16
"""With fewer neighbouring numbers, looking up their addresses takes too long."""

# The numbers that describe windows: the distance between rows of the result, how many numbers an
# element of a window has, the distance between examples, and whether elements that are outside of the array for all
# windows of a panel are skipped; and for each spatial axis, outermost first, how many windows there are, the extents of
# the array and of a window, the distances of windows and of their elements, how many zeros are before the array, and
# its stride.
PITCH, CHANNELS, EXAMPLE, SKIPS, AXES = range(5)
COUNTS, EXTENT, SIZE, STEP, SPACING, LOW, STRIDE, _FIELDS = range(8)
NUMBERS = AXES + MOST_AXES * _FIELDS

AT_ONCE = 8
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


def window_numbers(pitch: int, channels: int, example: int, skips: bool, axes: Sequence[WindowAxis]) -> list[int]:
    """The numbers that describe windows."""
    alone = [WindowAxis(1, 1, 1, 1, 1, 0, 0)] * (MOST_AXES - len(axes))
    return [pitch, channels, example, int(skips), *[number for axis in (*alone, *axes) for number in axis]]


_NUMBERED = f"<{', '.join(f'i64 {lane}' for lane in range(AT_ONCE))}>"
_OUTSIDE = 1 << 62
"""A position outside of every array, also if an element of a window is further on."""


def table_of(most: int) -> int:
    """How many numbers a table for ``most`` windows has: whole vectors are written."""
    return most + AT_ONCE


def room_for(most: int) -> str:
    """The type of the memory for distances and positions of ``most`` windows."""
    return f"[{(1 + MOST_AXES) * table_of(most)} x i64]"


class _WindowTables(Integers):
    """Reads the numbers ``%windows``, and goes through windows ``%at``, of which there are the distance of the first
    element from that of the array, in bytes, and its positions along all axes. Tables have room for ``most`` windows.
    """

    def __init__(self, block: Block, most: int) -> None:
        super().__init__(Emitter())
        self.block, self.most = block, most
        self.L = Lanes(self.e, AT_ONCE)
        self.type = self.L.type_of(dtypes.int64)

    def of(self, position: int) -> str:
        return self.e.load("i64", self.moved("%windows", position, "i64"))

    def of_axis(self, axis: int, field: int) -> str:
        return self.of(AXES + axis * _FIELDS + field)

    def of_window(self, number: str, field: int) -> str:
        """Where a number of a window is: its distance (0), or its position along an axis (from 1 on)."""
        return self.moved("%at", self.add(number, field * table_of(self.most)), "i64")

    def every(self, number: str) -> str:
        """A vector with a number in all lanes."""
        return str(self.L.splat(Value(Lanes(self.e, 1), number, dtypes.int64)).name)

    def vector(self, left: str, operation: str, right: str) -> str:
        """The result of an operation on vectors of integers."""
        return self.e.assign(f"{operation} {self.type} {left}, {right}")

    def bytes(self, distance: str) -> str:
        return self.multiply(distance, self.block.dtype.size)

    def total(self, numbers: Sequence[str]) -> str:
        found, *others = numbers
        for other in others:
            found = self.add(found, other)
        return found


def write_windows(block: Block, most: int) -> EmittedFunction:
    """A function that writes the distances and positions of ``%count`` windows from ``%first`` on. Where there are no
    more than ``%all``, it writes positions outside of every array."""
    w = _WindowTables(block, most)
    *outer, last = range(MOST_AXES)
    counts, steps, lows, strides = [
        [w.of_axis(axis, field) for axis in (*outer, last)] for field in (COUNTS, STEP, LOW, STRIDE)
    ]
    apart = w.of(EXAMPLE)
    example, *indices = [w.e.slot("i64") for _ in range(1 + MOST_AXES)]
    remaining = "%first"
    for axis in (last, *reversed(outer)):
        w.e.store("i64", w.remainder(remaining, counts[axis]), indices[axis])
        remaining = w.divide(remaining, counts[axis])
    w.e.store("i64", remaining, example)

    def advance(axis: int) -> None:
        """Go to the next line of windows along an axis, and from the last one to the next plane."""
        index = example if axis < 0 else indices[axis]
        following = w.add(w.e.load("i64", index), 1)
        w.e.store("i64", following, index)
        if axis >= 0:
            with w.e.when(w.compare("eq", following, counts[axis])):
                w.e.store("i64", "0", index)
                advance(axis - 1)

    present = w.smaller("%count", w.subtract("%all", "%first"))
    before = w.e.load("i64", indices[last])
    # Windows are counted from the first one of its line.
    end = w.add(before, present)
    with w.e.loop("0", end, counts[last]) as line:
        begin = w.larger(w.subtract(before, line), "0")
        stop = w.smaller(w.subtract(end, line), counts[last])
        positions = [w.subtract(w.multiply(w.e.load("i64", indices[axis]), steps[axis]), lows[axis]) for axis in outer]
        parts = [w.multiply(position, strides[axis]) for axis, position in enumerate(positions)]
        distance = w.total([w.multiply(w.e.load("i64", example), apart), *parts])
        written = w.subtract(line, before)
        steps_apart = w.vector(_NUMBERED, "mul", w.every(steps[last]))
        with w.e.loop(begin, stop, AT_ONCE) as index:
            start = w.subtract(w.multiply(index, steps[last]), lows[last])
            along = w.vector(w.every(start), "add", steps_apart)
            far = w.vector(w.vector(along, "mul", w.every(strides[last])), "add", w.every(distance))
            far = w.vector(far, "mul", w.every(str(block.dtype.size)))
            number = w.add(written, index)
            for field, vector in enumerate([far, *[w.every(position) for position in positions], along]):
                w.e.emit(f"store {w.type} {vector}, ptr {w.of_window(number, field)}, align 8")
        advance(last - 1)
    with w.e.loop(w.larger(present, "0"), "%count") as number:
        w.e.store("i64", str(_OUTSIDE), w.of_window(number, 1))
    parameters = "ptr %windows, i64 %first, i64 %all, i64 %count, ptr %at"
    return w.e, w.e.function("write_windows", parameters, "internal ")


def write_addresses(block: Block, between: int, most: int) -> EmittedFunction:
    """A function that writes addresses of elements of ``%count`` windows: those of one element for all windows, then,
    ``between`` addresses later, those of the next one. There is room for whole vectors of addresses.

    Of the numbers of which windows consist, those from ``%first`` on are needed, ``%inner`` numbers. Each has its
    distance from the first one, in elements, from the address for its element. For elements outside of the array the
    address is that of ``%zeros``.
    """
    w = _WindowTables(block, most)
    channels, outside = w.of(CHANNELS), w.every(w.e.assign("ptrtoint ptr %zeros to i64"))
    before = w.divide("%first", channels)
    offset = w.subtract("%first", w.multiply(before, channels))
    last = w.divide(w.add(w.add(offset, "%inner"), w.subtract(channels, 1)), channels)
    array = w.add(w.e.assign("ptrtoint ptr %from to i64"), w.bytes(offset))
    with w.e.loop("0", last) as number:
        remaining = w.add(before, number)
        shifts: list[str] = []
        for axis in reversed(range(MOST_AXES)):
            size = w.of_axis(axis, SIZE)
            shifts.insert(0, w.multiply(w.remainder(remaining, size), w.of_axis(axis, SPACING)))
            remaining = w.divide(remaining, size)
        strides = [w.of_axis(axis, STRIDE) for axis in range(MOST_AXES)]
        distance = w.total([w.multiply(shift, stride) for shift, stride in zip(shifts, strides, strict=True)])
        distance = w.subtract(distance, w.multiply(number, channels))
        start = w.every(w.add(array, w.bytes(distance)))
        along = [(w.every(shift), w.every(w.of_axis(axis, EXTENT))) for axis, shift in enumerate(shifts)]
        addresses = w.moved("%addresses", w.multiply(number, between), "i64")
        with w.e.loop("0", "%count", AT_ONCE) as window:
            inside = "splat (i1 true)"
            for axis, (shift, extent) in enumerate(along):
                position = w.e.assign(f"load {w.type}, ptr {w.of_window(window, 1 + axis)}, align 8")
                there = w.e.assign(f"icmp ult {w.type} {w.e.assign(f'add {w.type} {position}, {shift}')}, {extent}")
                inside = w.e.assign(f"and <{AT_ONCE} x i1> {inside}, {there}")
            address = w.e.assign(f"load {w.type}, ptr {w.of_window(window, 0)}, align 8")
            address = w.e.assign(f"add {w.type} {address}, {start}")
            address = w.e.assign(f"select <{AT_ONCE} x i1> {inside}, {w.type} {address}, {w.type} {outside}")
            w.e.emit(f"store {w.type} {address}, ptr {w.moved(addresses, window, 'i64')}, align 8")
    parameters = "ptr %windows, ptr %at, ptr %from, i64 %first, i64 %inner, i64 %count, ptr %zeros, ptr %addresses"
    return w.e, w.e.function("write_addresses", parameters, "internal ")
