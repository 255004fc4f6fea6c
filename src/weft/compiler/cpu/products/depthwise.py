"""Convolutions where each channel is a group.

A unit of work is a line of windows. Lanes go along channels. The sums of some neighbouring windows are in registers at
once, so each element is read once for all of these windows. For elements outside of the array, zeros in scratch memory
are read, so the array is not copied to pad it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
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
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.convolution import rounded, widened
from weft.primitives.convolution_windows import Geometry
from weft.primitives.depthwise import depthwise_of, depthwise_weights_of
from weft.primitives.routine import Operand, RoutineCall, RoutineStep

from .step import below
from .tiles import block_of

MOST_ELEMENTS = 49
"""The most elements of a window: the code has a multiplication for each element of a row of neighbouring windows."""
_LONGEST_LINE = 1024
"""The longest line of windows for which the cotangent of the weights is computed here: its sums are not split."""
_SUMS_TOGETHER = 3 << 10
"""How many sums of a line are made at once, so that they stay in the first cache."""
NEIGHBOURS = 8
"""How many windows are summed in registers at once: as many as multiply-adds can be in flight."""
NEIGHBOURS_OF_ROWS = 14
"""The cotangents of how many windows are in registers at once."""
_COST_OF_GROUP = 1
"""What a group of neighbouring windows costs besides its sums, in windows."""
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

    @property
    def elements(self) -> int:
        """How many elements of each channel a window has."""
        return self.high * self.wide

    def columns(self, neighbours: int) -> list[int]:
        """The columns of all elements of ``neighbours`` windows, relative to the first one."""
        return sorted(self.uses(neighbours))

    def uses(self, neighbours: int) -> dict[int, list[tuple[int, int]]]:
        """For each column the windows that have an element there, and which element it is."""
        found: dict[int, list[tuple[int, int]]] = {}
        for window, element in combinations(range(neighbours), range(self.wide)):
            found.setdefault(window * self.step + element * self.spacing, []).append((window, element))
        return found


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
    code = _address(windows, _neighbours(count), x.shape[-1] < _lanes(x.dtype))
    return _of_lines(code, numbers, lines, count * x.shape[-1] * windows.elements)


@p.depthwise_rows.routine.on("cpu", scratch=_scratch)
def _step_of_rows(call: RoutineCall) -> RoutineStep:
    """The step for the cotangents of the weights."""
    ct, x = call.operands
    windows, numbers, (lines, count) = _described(call, x, ct)
    code = _address_of_rows(windows, _neighbours_of_rows(count), x.shape[-1] < _lanes_of_rows(x.dtype))
    return _of_lines(code, numbers, lines, count * x.shape[-1] * windows.elements)


def _described(call: RoutineCall, x: Operand, other: Operand) -> tuple[Windows, list[int], tuple[int, int]]:
    """What the code of a call depends on, the numbers of its step, and how many lines of how many windows there are."""
    counts, sizes, strides, spacings = (_two(call.params[name]) for name in ("counts", "sizes", "strides", "spacings"))
    low = _two(call.params["low"], outer=0)
    places = [n for one in (x, other, call.results[0]) for n in (one.slot, one.offset)]
    extents = [*_two(x.shape[1:-1]), x.shape[-1], *counts]
    numbers = [*places, *call.scratch, *extents, strides[0], spacings[0], *low]
    windows = Windows(x.dtype, sizes[0], sizes[1], strides[1], spacings[1])
    return windows, numbers, (x.shape[0] * counts[0], counts[1])


def _of_lines(address: int, numbers: list[int], lines: int, work: int) -> RoutineStep:
    """A step whose units are lines of so much ``work`` each."""
    return RoutineStep(address, numbers, lines, max(1, _WORK_PER_GRAIN // work), lines * work)


def _two(numbers: Shape, outer: int = 1) -> Shape:
    """Numbers of two spatial axes. If there is only one axis, the number of the outer one is ``outer``."""
    return numbers if len(numbers) == 2 else (outer, *numbers)


@as_a_whole
def _neighbours(count: int) -> int:
    """How many neighbouring windows of a line of ``count`` are summed at once. Of the last ones of a line, some are
    computed twice if they do not fill a group."""
    return min(range(1, min(count, NEIGHBOURS) + 1), key=lambda n: (-(-count // n) * (n + _COST_OF_GROUP), -n))


@as_a_whole
def _neighbours_of_rows(count: int) -> int:
    """The same for the cotangents of the weights, where the windows that do not fill a group are done one by one."""
    numbers = range(1, min(count, NEIGHBOURS_OF_ROWS) + 1)
    return min(numbers, key=lambda n: count + (count // n + count % n) * _COST_OF_GROUP)


def _lanes(dtype: Dtype) -> int:
    return block_of(dtype).lanes


def _lanes_of_rows(dtype: Dtype) -> int:
    """The sums of the cotangents of weights are in float64, whatever the dtype."""
    return block_of(dtype).vector_bytes // dtypes.float64.size


@cache
def _address(windows: Windows, neighbours: int, narrow: bool) -> int:
    name, lanes = "depthwise", _lanes(windows.dtype)
    source = f"{name} {windows} {neighbours} {narrow} {lanes}"
    return loading.load(source, lambda: _Sums(windows, neighbours, narrow, lanes).module(name), (name,))[name]


@cache
def _address_of_rows(windows: Windows, neighbours: int, narrow: bool) -> int:
    name, lanes = "depthwise_rows", _lanes_of_rows(windows.dtype)
    source = f"{name} {windows} {neighbours} {narrow} {lanes}"
    return loading.load(source, lambda: _Rows(windows, neighbours, narrow, lanes).module(name), (name,))[name]


class _DepthwiseWriter(Integers):
    """Writes a step whose units are lines of windows. It is ``narrow`` if the channels do not fill a vector.

    Rows of windows are a loop, and each channel is written once: the last vector overlaps the one before, if there are
    enough channels. So the code of large windows is short, and takes little time to generate.
    """

    def __init__(self, windows: Windows, narrow: bool, lanes: int) -> None:
        super().__init__(Emitter())
        self.windows, self.narrow, self.L = windows, narrow, Lanes(self.e, lanes)
        self.element = MEMORY_TYPES[windows.dtype]
        self.mask = below(self.L, "0", self.number(CHANNELS)) if narrow else None

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
        L = Lanes(self.e, _lanes(self.windows.dtype))
        zeros, zero = self.memory(ZEROS), L.constant(0.0, self.windows.dtype)
        with self.e.loop("0", self.number(CHANNELS), L.width) as channel:
            store(L, zero, self.windows.dtype, Location(zeros, channel, False), None)

    def elements(self, table: str, array: str, top: str, first: str, neighbours: int) -> None:
        """Write pointers to the elements of neighbouring windows to a ``table``: for each row, one for each column."""
        left = self.subtract(self.multiply(first, self.windows.step), self.number(LOW_ACROSS))
        zeros, columns = self.memory(ZEROS), self.windows.columns(neighbours)
        height, width, channels = [self.number(extent) for extent in (HEIGHT, WIDTH, CHANNELS)]
        spacing = self.number(SPACING_DOWN)
        steps = [column - before for before, column in pairwise([0, *columns])]
        with self.e.loop("0", str(self.windows.high)) as high:
            row = self.add(top, self.multiply(spacing, high))
            # In a row outside of the array no column is inside.
            inside = self.either(self.compare("ult", row, height), width, 0)
            distance = self.multiply(self.add(self.multiply(row, width), left), channels)
            element, entry = self.moved(array, distance, self.element), self._entry(table, high, neighbours)
            for number, (column, step) in enumerate(zip(columns, steps, strict=True)):
                element = self.moved(element, self.multiply(channels, step), self.element)
                is_inside = self.compare("ult", self.add(left, column), inside)
                pointer = self.e.assign(f"select i1 {is_inside}, ptr {element}, ptr {zeros}")
                self.e.store("ptr", pointer, self.moved(entry, number, "ptr"))

    def row(
        self, table: str, high: str, channel: str, neighbours: int
    ) -> Iterator[tuple[Value, list[tuple[int, int]]]]:
        """The elements in a row of neighbouring windows, in order, and the windows and elements that each of them is.
        So few values are in registers: a sum has its terms in order if each element is added before the next one."""
        entry = self._entry(table, high, neighbours)
        for number, (_, uses) in enumerate(sorted(self.windows.uses(neighbours).items())):
            yield self.read(self.e.load("ptr", self.moved(entry, number, "ptr")), channel), uses

    def _entry(self, table: str, high: str, neighbours: int) -> str:
        """Where the pointers of a row are in a table."""
        return self.moved(table, self.multiply(high, len(self.windows.columns(neighbours))), "ptr")

    def read(self, pointer: str, index: str) -> Value:
        value: Value = load(self.L, self.windows.dtype, Location(pointer, index, False), self.mask)
        return value

    @contextmanager
    def vectors(self, start: str, end: str) -> Iterator[tuple[str, str]]:
        """For each vector of the channels from ``start`` to ``end``: its index, and its first channel. This is less
        than the index where the last vector of all overlaps the one before."""
        final = self.larger(self.subtract(self.number(CHANNELS), self.L.width), "0")
        with self.e.loop(start, end, self.L.width) as index:
            yield index, self.smaller(index, final)

    def table(self, neighbours: int) -> str:
        return self.e.slot(f"[{self.windows.high * len(self.windows.columns(neighbours))} x ptr]")


class _Sums(_DepthwiseWriter):
    """The step for convolutions."""

    def __init__(self, windows: Windows, neighbours: int, narrow: bool, lanes: int) -> None:
        super().__init__(windows, narrow, lanes)
        self.neighbours = neighbours
        self.pointers = self.table(neighbours)
        self.sums = [self.e.slot(self.L.type_of(windows.dtype)) for _ in range(neighbours)]

    def line(self, line: str, array: str, top: str) -> None:
        channels, across = self.number(CHANNELS), self.number(ACROSS)
        result = self.moved(self.memory(RESULT), self.multiply(self.multiply(line, across), channels), self.element)
        # The last windows of a line are computed as one whole group, so some of them may be computed twice.
        last = self.subtract(across, self.neighbours)
        with self.e.loop("0", across, self.neighbours) as index:
            first = self.smaller(index, last)
            self.elements(self.pointers, array, top, first, self.neighbours)
            target = self.moved(result, self.multiply(first, channels), self.element)
            with self.vectors("0", channels) as (_, channel):
                self._sum(channel, target)

    def _sum(self, channel: str, target: str) -> None:
        """The sums of the windows for some channels."""
        windows, channels = self.windows, self.number(CHANNELS)
        weights = self.moved(self.memory(OTHER), channel, self.element)
        type_ = self.L.type_of(windows.dtype)
        # Adding the first term to -0 gives that term, whatever its sign.
        zero = str(self.L.constant(-0.0, windows.dtype).name)
        for slot in self.sums:
            self.e.store(type_, zero, slot)
        with self.e.loop("0", str(windows.high)) as high:
            first = self.multiply(channels, self.multiply(high, windows.wide))
            taps = [self.add(first, self.multiply(channels, wide)) for wide in range(windows.wide)]
            factors = [self.read(weights, tap) for tap in taps]
            for value, uses in self.row(self.pointers, high, channel, self.neighbours):
                for window, element in uses:
                    total = Value(self.L, self.e.load(type_, self.sums[window]), windows.dtype)
                    total = self.L.fma(value, factors[element], total)
                    self.e.store(type_, str(total.name), self.sums[window])
        for number, slot in enumerate(self.sums):
            index = self.add(self.multiply(channels, number), channel)
            total = Value(self.L, self.e.load(type_, slot), windows.dtype)
            store(self.L, total, windows.dtype, Location(target, index, False), self.mask)


class _Rows(_DepthwiseWriter):
    """The step for the cotangents of the weights: sums along lines, in float64."""

    def __init__(self, windows: Windows, neighbours: int, narrow: bool, lanes: int) -> None:
        super().__init__(windows, narrow, lanes)
        self.neighbours = neighbours
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
            with self.e.loop("0", str(self.windows.high)) as high, self.e.loop(start, end, self.L.width) as index:
                for location in self._sums_at(high, self.subtract(index, start)):
                    store(self.L, zero, dtypes.float64, location, None)
            whole = self.subtract(across, self.remainder(across, self.neighbours))
            for neighbours, begin, stop in ((self.neighbours, "0", whole), (1, whole, across)):
                pointers = self.table(neighbours)
                with self.e.loop(begin, stop, neighbours) as first:
                    self.elements(pointers, array, top, first, neighbours)
                    factors = self.moved(cotangents, self.multiply(first, channels), self.element)
                    with self.vectors(start, end) as (index, channel):
                        self._add(pointers, factors, channel, self.subtract(index, start), neighbours)
            with self.e.loop("0", str(self.windows.high)) as high, self.vectors(start, end) as (index, channel):
                first = self.add(self.multiply(channels, self.multiply(high, self.windows.wide)), channel)
                for location in self._sums_at(high, self.subtract(index, start)):
                    total = self.L.convert(load(self.L, dtypes.float64, location, None), self.windows.dtype)
                    store(self.L, total, self.windows.dtype, Location(result, first, False), self.mask)
                    first = self.add(first, channels)

    def _sums_at(self, high: str, index: str) -> list[Location]:
        """The locations of a vector's sums for the elements in a row of windows. The vectors have their ``index`` among
        those computed together: the last one has sums of its own, also for channels of the one before."""
        first = self.add(self.multiply(high, self.windows.wide * self.together), index)
        places = [self.add(first, wide * self.together) for wide in range(self.windows.wide)]
        return [Location(self.sums, place, False) for place in places]

    def _add(self, pointers: str, cotangents: str, channel: str, index: str, neighbours: int) -> None:
        """Add the products of neighbouring windows, for a vector of channels, to its sums."""
        windows, factors, line = self.windows, [], cotangents
        for _ in range(neighbours):
            factors.append(self._wide(self.read(line, channel)))
            line = self.moved(line, self.number(CHANNELS), self.element)
        is_exact = windows.dtype is dtypes.float32
        with self.e.loop("0", str(windows.high)) as high:
            locations = self._sums_at(high, index)
            totals = [load(self.L, dtypes.float64, location, None) for location in locations]
            for read, uses in self.row(pointers, high, channel, neighbours):
                value = self._wide(read)
                for window, element in uses:
                    factor, total = factors[window], totals[element]
                    # Products of float32 numbers are exact in float64, so only the sum is rounded anyway.
                    totals[element] = self.L.fma(value, factor, total) if is_exact else total + value * factor
            for total, location in zip(totals, locations, strict=True):
                store(self.L, total, dtypes.float64, location, None)

    def _wide(self, read: Value) -> Value:
        value: Value = self.L.convert(read, dtypes.float64)
        return value
