"""Convolutions where each channel is a group.

A unit of work is a line of windows. Lanes go along channels. The sums of some neighbouring windows are in registers at
once, so each element is read once for all of these windows. For elements outside of the array, zeros in scratch memory
are read, so the array is not copied to pad it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product as combinations
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Integers
from weft.compiler.cpu.product_step import below
from weft.compiler.cpu.product_tiles import block_of
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.convolution import rounded, widened
from weft.primitives.convolution_windows import Geometry
from weft.primitives.depthwise import depthwise_of, depthwise_weights_of
from weft.primitives.routine import Operand, RoutineCall, RoutineStep

MOST_ELEMENTS = 49
"""The most elements of a window: the code has a multiplication for each element of each neighbouring window."""
_LONGEST_LINE = 1024
"""The longest line of windows for which the cotangent of the weights is computed here: its sums are not split."""
_SUMS_TOGETHER = 3 << 10
"""How many sums of a line are made at once, so that they stay in the first cache."""
NEIGHBOURS = 8
"""How many windows are summed in registers at once: as many as multiply-adds can be in flight."""
NEIGHBOURS_OF_ROWS = 14
"""The cotangents of how many windows are in registers at once."""
_WORK_PER_GRAIN = 1 << 17

# The numbers of a step: slots and byte offsets of the array, of the weights or the cotangents, of the result and of
# scratch memory; extents of the array; counts of windows; along the outer spatial axis the distances of windows and of
# their elements; and the padding before the array.
ARRAY, OTHER, RESULT, ZEROS = 0, 2, 4, 6
HEIGHT, WIDTH, CHANNELS, DOWN, ACROSS, STEP_DOWN, SPACING_DOWN, LOW_DOWN, LOW_ACROSS = range(8, 17)


class Windows(NamedTuple):
    """What code depends on: the dtype, the extents of a window, and the distances of windows and of their elements
    along the inner axis."""

    dtype: Dtype
    high: int
    wide: int
    step: int
    spacing: int

    def columns(self, neighbours: int) -> list[int]:
        """The columns of all elements of ``neighbours`` windows, relative to the first one."""
        pairs = combinations(range(neighbours), range(self.wide))
        return sorted({window * self.step + element * self.spacing for window, element in pairs})


def convolution(node: Node) -> Sequence[Node] | None:
    """A convolution as this routine, if each channel is a group and has one output. A single channel would fill one
    lane: `convolution_products` makes a kernel of it, whose lanes go along windows."""
    geometry = Geometry(*node.params)
    (outputs, *sizes, each), channels = node.inputs[1].shape, node.inputs[0].shape[-1]
    if each != 1 or geometry.groups != channels or outputs != channels or not _fits(node, geometry, tuple(sizes)):
        return None
    if channels == 1:
        return None
    x, w = widened(node)
    return [rounded(depthwise_of(x, w, geometry, node.shape[1:-1]), node)]


def _fits(node: Node, geometry: Geometry, sizes: Shape) -> bool:
    """Whether there are windows, and their code is not too long."""
    some = 0 < prod(sizes) <= MOST_ELEMENTS and node.size > 0 and node.inputs[0].size > 0
    plain = all(n == 1 for n in geometry.dilations) and all(n >= 0 for n in (*geometry.low, *geometry.high))
    return some and plain and len(sizes) in (1, 2) and node.dtype.is_floating


def _scratch(node: Node) -> int:
    """Room for zeros, read in place of the channels of an element outside of the array."""
    return (node.shape[-1] + 64) * node.dtype.size


def convolution_weights(node: Node) -> Sequence[Node] | None:
    """The cotangent of the weights as this routine, under the same conditions, if lines have at most `_LONGEST_LINE`
    windows."""
    (outputs, *sizes, each), channels = node.shape, node.inputs[1].shape[-1]
    geometry = Geometry(*node.params[1:])
    if each != 1 or geometry.groups != channels or outputs != channels or not _fits(node, geometry, tuple(sizes)):
        return None
    if not 0 < node.inputs[0].shape[-2] <= _LONGEST_LINE:
        return None
    ct, x = widened(node)
    return [rounded(depthwise_weights_of(ct, x, geometry, tuple(sizes)), node)]


@p.depthwise.routine.on("cpu", scratch=_scratch)
def _step(call: RoutineCall) -> RoutineStep:
    """The step for a convolution."""
    x, w = call.operands
    windows, numbers, (lines, count) = _described(call, x, w)
    neighbours = next(number for number in range(NEIGHBOURS, 0, -1) if count >= number)
    return _shared(_address(windows, neighbours), numbers, lines, count * x.shape[-1] * windows.high * windows.wide)


@p.depthwise_rows.routine.on("cpu", scratch=_scratch)
def _step_of_rows(call: RoutineCall) -> RoutineStep:
    """The step for the cotangents of the weights."""
    ct, x = call.operands
    windows, numbers, (lines, count) = _described(call, x, ct)
    rest = next(number for number in range(NEIGHBOURS_OF_ROWS) if count % NEIGHBOURS_OF_ROWS == number)
    return _shared(_address_of_rows(windows, rest), numbers, lines, count * x.shape[-1] * windows.high * windows.wide)


def _described(call: RoutineCall, x: Operand, other: Operand) -> tuple[Windows, list[int], tuple[int, int]]:
    """What the code of a call depends on, the numbers of its step, and how many lines of how many windows there are."""
    counts, sizes, strides, spacings = (_two(call.params[name]) for name in ("counts", "sizes", "strides", "spacings"))
    low = _two(call.params["low"], outer=0)
    places = [n for one in (x, other, call.results[0]) for n in (one.slot, one.offset)]
    extents = [*_two(x.shape[1:-1]), x.shape[-1], *counts]
    numbers = [*places, *call.scratch, *extents, strides[0], spacings[0], *low]
    windows = Windows(x.dtype, sizes[0], sizes[1], strides[1], spacings[1])
    return windows, numbers, (x.shape[0] * counts[0], counts[1])


def _shared(address: int, numbers: list[int], lines: int, work: int) -> RoutineStep:
    """A step whose units are lines."""
    return RoutineStep(address, numbers, lines, max(1, _WORK_PER_GRAIN // work), lines * work)


def _two(numbers: Shape, outer: int = 1) -> Shape:
    """Numbers of two spatial axes. If there is only one axis, the number of the outer one is ``outer``."""
    return numbers if len(numbers) == 2 else (outer, *numbers)


def _vector_bytes(dtype: Dtype) -> int:
    return block_of(dtype).vector_bytes


@cache
def _address(windows: Windows, neighbours: int) -> int:
    name, vector_bytes = "depthwise", _vector_bytes(windows.dtype)
    source = f"{name} {windows} {neighbours} {vector_bytes}"
    return loading.load(source, lambda: _Sums(windows, neighbours, vector_bytes).module(name), (name,))[name]


@cache
def _address_of_rows(windows: Windows, rest: int) -> int:
    name, vector_bytes = "depthwise_rows", _vector_bytes(windows.dtype)
    source = f"{name} {windows} {NEIGHBOURS_OF_ROWS} {rest} {vector_bytes}"
    return loading.load(source, lambda: _Rows(windows, rest, vector_bytes).module(name), (name,))[name]


class _DepthwiseWriter(Integers):
    """Writes a step whose units are lines of windows."""

    def __init__(self, windows: Windows, vector_bytes: int) -> None:
        super().__init__(Emitter())
        self.windows = windows
        self.element = MEMORY_TYPES[windows.dtype]
        self.L = Lanes(self.e, vector_bytes // windows.dtype.size)

    def module(self, name: str) -> str:
        self._clear()
        with self.e.loop("%begin", "%end") as line:
            example, down = self.divide(line, self.number(DOWN)), self.remainder(line, self.number(DOWN))
            size = self.multiply(self.multiply(self.number(HEIGHT), self.number(WIDTH)), self.number(CHANNELS))
            array = self.moved(self.memory(ARRAY), self.multiply(example, size), self.element)
            top = self.subtract(self.multiply(down, self.number(STEP_DOWN)), self.number(LOW_DOWN))
            self.line(line, array, top)
        return module([self.e], [self.e.function(name, STEP)])

    def line(self, line: str, array: str, top: str) -> None:
        """Compute a line of windows, the first of which begins in row ``top`` of an array."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Write zeros to scratch memory. All threads write them to the same place."""
        zeros, zero = self.memory(ZEROS), self.L.constant(0.0, self.windows.dtype)
        with self.e.loop("0", self.number(CHANNELS), self.L.width) as channel:
            store(self.L, zero, self.windows.dtype, Location(zeros, channel, False), None)

    def elements(self, array: str, top: str, first: str, neighbours: int) -> dict[tuple[int, int], str]:
        """Pointers to the elements of neighbouring windows, by row of the window and column."""
        left = self.subtract(self.multiply(first, self.windows.step), self.number(LOW_ACROSS))
        zeros, pointers = self.memory(ZEROS), {}
        for high in range(self.windows.high):
            row = self.add(top, self.multiply(self.number(SPACING_DOWN), high))
            row_is_inside = self.compare("ult", row, self.number(HEIGHT))
            start = self.multiply(row, self.number(WIDTH))
            for column in self.windows.columns(neighbours):
                index = self.add(left, column)
                is_inside = self.compare("ult", index, self.number(WIDTH))
                distance = self.multiply(self.add(start, index), self.number(CHANNELS))
                element = self.moved(array, distance, self.element)
                both = self.e.assign(f"and i1 {row_is_inside}, {is_inside}")
                pointers[high, column] = self.e.assign(f"select i1 {both}, ptr {element}, ptr {zeros}")
        return pointers

    def read(self, pointer: str, index: str, mask: str | None) -> Value:
        value: Value = load(self.L, self.windows.dtype, Location(pointer, index, False), mask)
        return value

    def for_channels(self, first: str, end: str, body: Callable[[str, str | None], None]) -> None:
        """Write a body for whole vectors of channels, and once more, with a mask, for the rest."""
        rest = self.remainder(self.subtract(end, first), self.L.width)
        whole = self.subtract(end, rest)
        with self.e.loop(first, whole, self.L.width) as channel:
            body(channel, None)
        with self.e.when(self.compare("ne", rest, 0)):
            body(whole, below(self.L, "0", rest))


class _Sums(_DepthwiseWriter):
    """The step for convolutions."""

    def __init__(self, windows: Windows, neighbours: int, vector_bytes: int) -> None:
        super().__init__(windows, vector_bytes)
        self.neighbours = neighbours

    def line(self, line: str, array: str, top: str) -> None:
        channels, across = self.number(CHANNELS), self.number(ACROSS)
        result = self.moved(self.memory(RESULT), self.multiply(self.multiply(line, across), channels), self.element)
        # The last windows of a line are computed as one whole group, so some of them may be computed twice.
        last = self.subtract(across, self.neighbours)
        with self.e.loop("0", across, self.neighbours) as index:
            first = self.smaller(index, last)
            elements = self.elements(array, top, first, self.neighbours)
            target = self.moved(result, self.multiply(first, channels), self.element)
            self.for_channels("0", channels, lambda channel, mask: self._sum(elements, channel, target, mask))

    def _sum(self, elements: dict[tuple[int, int], str], channel: str, target: str, mask: str | None) -> None:
        """The sums of the windows for some channels."""
        windows, channels = self.windows, self.number(CHANNELS)
        weights = self.moved(self.memory(OTHER), channel, self.element)
        sums: list[Value | None] = [None] * self.neighbours
        for high in range(windows.high):
            read = {column: self.read(elements[high, column], channel, mask) for column in windows.columns(len(sums))}
            for wide in range(windows.wide):
                weight = self.read(weights, self.multiply(channels, high * windows.wide + wide), mask)
                for number, total in enumerate(sums):
                    value = read[number * windows.step + wide * windows.spacing]
                    sums[number] = value * weight if total is None else self.L.fma(value, weight, total)
        for number, total in enumerate(sums):
            index = self.add(self.multiply(channels, number), channel)
            store(self.L, total, windows.dtype, Location(target, index, False), mask)


class _Rows(_DepthwiseWriter):
    """The step for the cotangents of the weights: sums along lines, in float64."""

    def __init__(self, windows: Windows, rest: int, vector_bytes: int) -> None:
        super().__init__(windows, vector_bytes)
        self.L = Lanes(self.e, vector_bytes // dtypes.float64.size)
        self.rest = rest
        self.taps = windows.high * windows.wide
        self.together = max(1, _SUMS_TOGETHER // self.taps // 16) * 16
        self.sums = self.e.slot(f"[{self.taps * self.together} x double], align 64")

    def line(self, line: str, array: str, top: str) -> None:
        channels, across = self.number(CHANNELS), self.number(ACROSS)
        cotangents = self.moved(self.memory(OTHER), self.multiply(self.multiply(line, across), channels), self.element)
        result = self.moved(self.memory(RESULT), self.multiply(self.multiply(line, self.taps), channels), self.element)
        with self.e.loop("0", channels, self.together) as start:
            end = self.smaller(self.add(start, self.together), channels)
            zero = self.L.constant(0.0, dtypes.float64)
            with self.e.loop("0", str(self.taps * self.together), self.L.width) as index:
                store(self.L, zero, dtypes.float64, Location(self.sums, index, False), None)
            whole = self.subtract(across, self.rest)
            with self.e.loop("0", whole, NEIGHBOURS_OF_ROWS) as first:
                self._add(array, top, cotangents, first, NEIGHBOURS_OF_ROWS, (start, end))
            if self.rest:
                self._add(array, top, cotangents, whole, self.rest, (start, end))

            def rounded(channel: str, mask: str | None) -> None:
                for tap in range(self.taps):
                    total = load(self.L, dtypes.float64, self._location_of_sum(tap, start, channel), None)
                    location = Location(result, self.add(self.multiply(channels, tap), channel), False)
                    store(self.L, self.L.convert(total, self.windows.dtype), self.windows.dtype, location, mask)

            self.for_channels(start, end, rounded)

    def _location_of_sum(self, tap: int, start: str, channel: str) -> Location:
        """The location of the sums for an element of a window: for channels from ``channel`` on, if ``start`` is the
        first."""
        return Location(self.sums, self.add(self.subtract(channel, start), tap * self.together), False)

    def _add(
        self, array: str, top: str, cotangents: str, first: str, neighbours: int, channels: tuple[str, str]
    ) -> None:
        """Add the products of neighbouring windows to the sums."""
        windows, start = self.windows, channels[0]
        elements = self.elements(array, top, first, neighbours)
        apart = self.number(CHANNELS)
        begin = self.moved(cotangents, self.multiply(first, apart), self.element)
        lines = [self.moved(begin, self.multiply(apart, number), self.element) for number in range(neighbours)]

        def add(channel: str, mask: str | None) -> None:
            factors = [self._wide(line, channel, mask) for line in lines]
            is_exact = windows.dtype is dtypes.float32
            for high in range(windows.high):
                columns = windows.columns(neighbours)
                read = {column: self._wide(elements[high, column], channel, mask) for column in columns}
                for wide in range(windows.wide):
                    location = self._location_of_sum(high * windows.wide + wide, start, channel)
                    total = load(self.L, dtypes.float64, location, None)
                    for number, factor in enumerate(factors):
                        value = read[number * windows.step + wide * windows.spacing]
                        # Products of float32 numbers are exact in float64, so only the sum is rounded anyway.
                        total = self.L.fma(value, factor, total) if is_exact else total + value * factor
                    store(self.L, total, dtypes.float64, location, None)

        self.for_channels(*channels, add)

    def _wide(self, pointer: str, channel: str, mask: str | None) -> Value:
        """Elements of some channels, as float64."""
        value: Value = self.L.convert(self.read(pointer, channel, mask), dtypes.float64)
        return value
