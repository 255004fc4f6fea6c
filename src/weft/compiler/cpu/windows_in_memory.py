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
from weft.compiler.cpu.product_step import Block

MOST_AXES = 3
"""The most spatial axes of an array."""
FEWEST_CHANNELS = 16
"""With fewer neighbouring numbers, looking up their addresses takes too long."""

# The numbers that describe windows: the distance between rows of the result, how many numbers an
# element of a window has, and the distance between examples; and for each spatial axis, outermost first, how many
# windows there are, the extents of the array and of a window, the distances of windows and of their elements, how many
# zeros are before the array, and its stride.
PITCH, CHANNELS, EXAMPLE, AXES = range(4)
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


def window_numbers(pitch: int, channels: int, example: int, axes: Sequence[WindowAxis]) -> list[int]:
    """The numbers that describe windows."""
    alone = [WindowAxis(1, 1, 1, 1, 1, 0, 0)] * (MOST_AXES - len(axes))
    return [pitch, channels, example, *[number for axis in (*alone, *axes) for number in axis]]


class _WindowTables(Integers):
    """Reads the numbers ``%windows``, and goes through windows ``%at``, of which there are the distance of the first
    element from that of the array, in bytes, and its positions along all axes. Tables have room for ``most`` windows.
    """

    def __init__(self, block: Block, most: int) -> None:
        super().__init__(Emitter())
        self.block, self.most = block, most

    def of(self, position: int) -> str:
        return self.e.load("i64", self.moved("%windows", position, "i64"))

    def of_axis(self, axis: int, field: int) -> str:
        return self.of(AXES + axis * _FIELDS + field)

    def of_window(self, number: str, field: int) -> str:
        """Where a number of a window is: its distance (0), or its position along an axis (from 1 on)."""
        return self.moved("%at", self.add(number, field * self.most), "i64")

    def bytes(self, distance: str) -> str:
        return self.multiply(distance, self.block.dtype.size)

    def total(self, numbers: Sequence[str]) -> str:
        found, *others = numbers
        for other in others:
            found = self.add(found, other)
        return found


def write_windows(block: Block, most: int) -> EmittedFunction:
    """A function that writes the distances and positions of ``%count`` windows from ``%first`` on. Where there are no
    more than ``%all``, the last one is written again."""
    w = _WindowTables(block, most)
    axes = range(MOST_AXES)
    counts, steps, lows, strides = [[w.of_axis(axis, field) for axis in axes] for field in (COUNTS, STEP, LOW, STRIDE)]
    apart = w.of(EXAMPLE)
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

    with w.e.loop("0", "%count") as number:
        positions = [
            w.subtract(w.multiply(w.e.load("i64", index), step), low)
            for index, step, low in zip(indices, steps, lows, strict=True)
        ]
        distances = [w.multiply(position, stride) for position, stride in zip(positions, strides, strict=True)]
        distance = w.total([w.multiply(w.e.load("i64", example), apart), *distances])
        for field, value in enumerate([w.bytes(distance), *positions]):
            w.e.store("i64", value, w.of_window(number, field))
        with w.e.when(w.compare("slt", w.add(w.add("%first", number), 1), "%all")):
            advance(MOST_AXES - 1)
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
    L = Lanes(w.e, AT_ONCE)
    scalar, type_ = Lanes(w.e, 1), L.type_of(dtypes.int64)

    def every(number: str) -> str:
        return str(L.splat(Value(scalar, number, dtypes.int64)).name)

    channels, outside = w.of(CHANNELS), every(w.e.assign("ptrtoint ptr %zeros to i64"))
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
        start = every(w.add(array, w.bytes(distance)))
        along = [(every(shift), every(w.of_axis(axis, EXTENT))) for axis, shift in enumerate(shifts)]
        addresses = w.moved("%addresses", w.multiply(number, between), "i64")
        with w.e.loop("0", "%count", AT_ONCE) as window:
            inside = "splat (i1 true)"
            for axis, (shift, extent) in enumerate(along):
                position = w.e.assign(f"load {type_}, ptr {w.of_window(window, 1 + axis)}, align 8")
                there = w.e.assign(f"icmp ult {type_} {w.e.assign(f'add {type_} {position}, {shift}')}, {extent}")
                inside = w.e.assign(f"and <{AT_ONCE} x i1> {inside}, {there}")
            address = w.e.assign(f"load {type_}, ptr {w.of_window(window, 0)}, align 8")
            address = w.e.assign(f"add {type_} {address}, {start}")
            address = w.e.assign(f"select <{AT_ONCE} x i1> {inside}, {type_} {address}, {type_} {outside}")
            w.e.emit(f"store {type_} {address}, ptr {w.moved(addresses, window, 'i64')}, align 8")
    parameters = "ptr %windows, ptr %at, ptr %from, i64 %first, i64 %inner, i64 %count, ptr %zeros, ptr %addresses"
    return w.e, w.e.function("write_addresses", parameters, "internal ")
