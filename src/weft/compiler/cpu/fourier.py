"""Fourier transforms as steps of a plan.

A unit of work is one row, or as many transforms side by side as a vector has lanes. It goes through its stages, between
two buffers that the caches hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

import weft.primitives as p
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.cpu.fourier_access import COMPLEX, FIELD, FIELDS, FLOAT, Access
from weft.compiler.cpu.fourier_stages import End, Stages, plane_bytes, runs_in_row, vector_width
from weft.primitives.fourier import LARGE_UNITS, STACK
from weft.primitives.fourier_lengths import Floats, scale_of, work_length
from weft.primitives.routine import Operand, RoutineCall, RoutineStep

_HEAD = (
    *("in_slot", "in_offset", "out_slot", "out_offset", "scratch_slot", "scratch_offset", "scratch", "stack"),
    *("buffer", "transforms", "units", "extent", "width", "in_block", "out_block", "blocks", "stages", "axes"),
)
"""The numbers that a step begins with: where operand, result and scratch memory are; the bytes of scratch memory of a
unit, or those to take of the stack; the bytes of a buffer; how many transforms and units there are; the extent of the
axis of lanes, how many are done at once, the bytes from one such block to the next, and how many blocks there are; how
many stages and further axes. Then come the axes, each with its extent and two strides in bytes, and the stages."""

_PLACE = {name: number for number, name in enumerate(_HEAD)}
_GRAIN = 1 << 15
_LONGEST_SHORT_ROW = 128
"""Rows up to this length are transformed side by side, if there are several."""


class TableAddress(int):
    """The address of a step's function; it keeps the tables that the step's numbers refer to."""

    tables: list[Floats]


@dataclass(frozen=True)
class Axis:
    """An axis with other transforms: its extent, and strides of operand and result in bytes."""

    extent: int
    source: int
    target: int


def _other_axes(source: Operand, target: Operand, axis: int) -> list[Axis]:
    """All axes but the one of the transform, neighbouring ones merged where their strides allow it."""
    merged: list[Axis] = []
    for number, extent in enumerate(target.shape):
        if number == axis or extent == 1:
            continue
        one = Axis(extent, source.strides[number] * source.dtype.size, target.strides[number] * target.dtype.size)
        before = merged[-1] if merged else None
        if before and (before.source, before.target) == (one.source * extent, one.target * extent):
            merged[-1] = Axis(before.extent * extent, one.source, one.target)
        else:
            merged.append(one)
    return merged


@p.fft.routine.on("cpu")
def complex_step(call: RoutineCall) -> RoutineStep:
    """The step for transforms of complex numbers."""
    length = call.results[0].shape[call.params["axis"]]
    inverse = call.params["inverse"]

    def fill(stages: Stages, source: End, sink: End) -> None:
        if source.rows:
            stages.load_rows(length, source)
        inner_source, inner_sink = _inside(stages, source), _inside(stages, sink)
        stages.complex(length, inner_source, inner_sink)
        if sink.rows:
            stages.store_rows(length, sink)

    return _Maker(call, length, length, inverse, inverse).step(fill)


def _inside(stages: Stages, end: End) -> End:
    """The end itself, or the planes between which rows are brought."""
    return End(Access("planes"), stages.step) if end.rows else end


@p.rfft.routine.on("cpu")
def real_step(call: RoutineCall) -> RoutineStep:
    """The step for transforms of real numbers: a complex one of half the length, and what makes one of the other."""
    length = call.operands[0].shape[call.params["axis"]]
    half = length // 2

    def fill(stages: Stages, source: End, sink: End) -> None:
        if source.rows:
            stages.load_rows(half, source)
        stages.complex(half, _inside(stages, source), End(Access("planes"), stages.step))
        stages.halves_to_real(half, _inside(stages, sink))
        if sink.rows:
            stages.store_rows(half + 1, sink)

    return _Maker(call, length, half, False, False).step(fill)


@p.irfft.routine.on("cpu")
def inverse_real_step(call: RoutineCall) -> RoutineStep:
    """The step for transforms to real numbers."""
    length = call.results[0].shape[call.params["axis"]]
    half = length // 2

    def fill(stages: Stages, source: End, sink: End) -> None:
        if source.rows:
            stages.load_rows(half + 1, source)
        stages.real_to_halves(half, _inside(stages, source))
        stages.complex(half, End(Access("planes"), stages.step), _inside(stages, sink))
        if sink.rows:
            stages.store_rows(half, sink)

    return _Maker(call, length, half, False, True).step(fill)


class _Maker:
    """How a call is cut into units, and its numbers.

    ``length`` is that of the whole transform, ``inner`` that of the complex one; ``swapped_in`` and ``swapped_out`` say
    whether real and imaginary parts are exchanged.
    """

    def __init__(self, call: RoutineCall, length: int, inner: int, swapped_in: bool, swapped_out: bool) -> None:
        self.call, self.length, self.inner = call, length, inner
        self.swapped_in, self.swapped_out = swapped_in, swapped_out
        (self.source,), (self.target,) = call.operands, call.results
        self.axis = call.params["axis"]
        self.others = _other_axes(self.source, self.target, self.axis)
        self.transforms = prod([axis.extent for axis in self.others])
        self.width = vector_width()
        self.last = self.target.strides[self.axis] == 1
        self.dense = self.source.strides[self.axis] == 1 or self.source.shape[self.axis] == 1
        self.single = self._is_single()
        self.lane_axis = None if self.single else self._lane_axis()

    def _is_single(self) -> bool:
        if not (self.dense and self.last and runs_in_row(self.inner, self.width)):
            return False
        return self.transforms < self.width // 2 or self.inner > _LONGEST_SHORT_ROW

    def _lane_axis(self) -> Axis:
        """The axis whose transforms are done side by side."""
        element = self.source.dtype.size
        candidates = self.others
        if not self.last:
            candidates = [axis for axis in self.others if axis.target == self.target.dtype.size] or self.others
        elif not self.dense:
            candidates = [axis for axis in self.others if axis.source == element]
        largest = max(candidates, key=lambda axis: axis.extent, default=Axis(1, 0, 0))
        self.others = [axis for axis in self.others if axis is not largest]
        return largest

    def _ahead(self) -> tuple[int, int]:
        """How far behind what a unit of work reads and writes the next one does, in bytes; zeros if it does not pay."""
        if self.length * COMPLEX > 16384 and self.single:
            return 0, 0
        axis = self.lane_axis
        if axis is not None and axis.extent > self.width:
            return axis.source * self.width, axis.target * self.width
        if not self.others:
            return 0, 0
        return self.others[-1].source, self.others[-1].target

    def _ends(self) -> tuple[End, End]:
        """Where the stages read and write."""
        ends = []
        ahead = self._ahead() != (0, 0)
        scaled = self.call.params["roots"] > 0
        sides = ((self.source, self.dense, self.swapped_in), (self.target, self.last, self.swapped_out))
        for operand, dense, swapped in sides:
            is_source = operand is self.source
            apply = scaled and not is_source
            if self.single:
                ends.append(End(Access("row", swapped, apply, ahead), COMPLEX))
                continue
            assert self.lane_axis is not None
            step = self.lane_axis.source if is_source else self.lane_axis.target
            stride = operand.strides[self.axis] * operand.dtype.size
            if step == operand.dtype.size and not dense:
                pairs = operand.dtype.size == FLOAT
                ends.append(End(Access("pairs" if pairs else "columns", swapped, apply, ahead), stride * (1 + pairs)))
            else:
                ends.append(End(Access("row", swapped, apply, ahead), step, rows=True))
        return ends[0], ends[1]

    def step(self, fill: Callable[[Stages, End, End], None]) -> RoutineStep:
        plane = plane_bytes(work_length(self.inner), self.single, self.width)
        scale = scale_of(self.length, self.call.params["roots"])
        stages = Stages(self.single, plane, scale, self._ahead(), self.width)
        fill(stages, *self._ends())
        lanes = self.lane_axis or Axis(1, 0, 0)
        blocks = -(-lanes.extent // self.width)
        transforms = prod([axis.extent for axis in self.others]) * blocks
        buffers = 4 * plane
        on_stack = buffers <= STACK
        units = transforms if on_stack else min(transforms, LARGE_UNITS)
        head = {
            **{"in_slot": self.source.slot, "in_offset": self.source.offset},
            **{"out_slot": self.target.slot, "out_offset": self.target.offset},
            **{"scratch_slot": self.call.scratch[0], "scratch_offset": self.call.scratch[1]},
            **{"scratch": 0 if on_stack else buffers, "stack": buffers if on_stack else 0, "buffer": 2 * plane},
            **{"transforms": transforms, "units": units, "extent": lanes.extent, "width": self.width},
            **{"in_block": lanes.source * self.width, "out_block": lanes.target * self.width, "blocks": blocks},
            **{"stages": len(stages.numbers), "axes": len(self.others)},
        }
        numbers = [head[name] for name in _HEAD]
        for axis in self.others:
            numbers += [axis.extent, axis.source, axis.target]
        code = TableAddress(_runner())
        code.tables = stages.tables
        work = self.transforms * self.inner * 2
        grain = max(1, _GRAIN * units // max(work, 1))
        return RoutineStep(code, numbers + stages.finished(), units, grain, work)


@cache
def _runner() -> int:
    """The address of the function of all steps."""
    name = "fourier_transforms"
    return loading.load(name, lambda: _generate(name), (name,))[name]


def _generate(name: str) -> str:
    """The LLVM IR of the function of all steps: loops over transforms and their stages."""
    e = Emitter()
    run = _Runner(e)
    with e.loop("%begin", "%end") as unit:
        run.unit(unit)
    return module([e], [e.function(name, "ptr %numbers, ptr %table, i64 %begin, i64 %end")])


class _Runner:
    """Writes the function of all steps."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.head = {name: self.number(number) for name, number in _PLACE.items()}
        self.stack = e.assign(f"alloca i8, i64 {self.head['stack']}, align 64")
        self.source = self._memory("in_slot", "in_offset")
        self.target = self._memory("out_slot", "out_offset")
        self.first_stage = self.plus(self.times(self.head["axes"], 3), len(_HEAD))

    def number(self, place: int | str) -> str:
        return self.e.load("i64", self.e.assign(f"getelementptr i64, ptr %numbers, i64 {place}"))

    def times(self, left: str, right: str | int) -> str:
        return self.e.assign(f"mul i64 {left}, {right}")

    def plus(self, left: str, right: str | int) -> str:
        return self.e.assign(f"add i64 {left}, {right}")

    def moved(self, pointer: str, distance: str) -> str:
        return self.e.assign(f"getelementptr i8, ptr {pointer}, i64 {distance}")

    def _memory(self, slot: str, offset: str) -> str:
        entry = self.e.assign(f"getelementptr ptr, ptr %table, i64 {self.head[slot]}")
        return self.moved(self.e.load("ptr", entry), self.head[offset])

    def unit(self, unit: str) -> None:
        e, head = self.e, self.head
        in_memory = e.assign(f"icmp ne i64 {head['scratch']}, 0")
        buffers = e.slot("ptr")
        e.store("ptr", self.stack, buffers)
        with e.when(in_memory):
            scratch = self._memory("scratch_slot", "scratch_offset")
            e.store("ptr", self.moved(scratch, self.times(unit, head["scratch"])), buffers)
        first = e.load("ptr", buffers)
        second = self.moved(first, head["buffer"])
        with e.loop(unit, head["transforms"], head["units"]) as transform:
            self._transform(transform, (first, second))

    def _transform(self, transform: str, buffers: tuple[str, str]) -> None:
        e, head = self.e, self.head
        block = e.assign(f"urem i64 {transform}, {head['blocks']}")
        rest = e.slot("i64")
        e.store("i64", e.assign(f"udiv i64 {transform}, {head['blocks']}"), rest)
        ends = [e.slot("ptr"), e.slot("ptr")]
        e.store("ptr", self.moved(self.source, self.times(block, head["in_block"])), ends[0])
        e.store("ptr", self.moved(self.target, self.times(block, head["out_block"])), ends[1])
        last = e.assign(f"sub i64 {head['axes']}, 1")
        with e.loop("0", head["axes"]) as count:
            number = e.assign(f"sub i64 {last}, {count}")
            field = self.plus(self.times(number, 3), len(_HEAD))
            extent, value = self.number(field), e.load("i64", rest)
            index = e.assign(f"urem i64 {value}, {extent}")
            e.store("i64", e.assign(f"udiv i64 {value}, {extent}"), rest)
            for position, slot in enumerate(ends):
                stride = self.number(self.plus(field, position + 1))
                e.store("ptr", self.moved(e.load("ptr", slot), self.times(index, stride)), slot)
        left = e.assign(f"sub i64 {head['extent']}, {self.times(block, head['width'])}")
        fewer = e.assign(f"icmp slt i64 {left}, {head['width']}")
        lanes = e.assign(f"select i1 {fewer}, i64 {left}, i64 {head['width']}")
        source, target = (e.load("ptr", slot) for slot in ends)
        with e.loop("0", head["stages"]) as stage:
            self._stage(stage, (source, *buffers), (target, *buffers), lanes)

    def _stage(self, stage: str, sources: tuple[str, ...], targets: tuple[str, ...], lanes: str) -> None:
        e = self.e
        first = self.plus(self.times(stage, len(FIELDS)), self.first_stage)
        numbers = e.assign(f"getelementptr i64, ptr %numbers, i64 {first}")
        function = e.assign(f"inttoptr i64 {self.number(first)} to ptr")
        chosen = []
        for name, places in (("from", sources), ("to", targets)):
            which = self.number(self.plus(first, FIELD[name]))
            pointer = places[0]
            for number, place in enumerate(places[1:], 1):
                same = e.assign(f"icmp eq i64 {which}, {number}")
                pointer = e.assign(f"select i1 {same}, ptr {place}, ptr {pointer}")
            chosen.append(pointer)
        e.emit(f"call void {function}(ptr {numbers}, ptr {chosen[0]}, ptr {chosen[1]}, i64 {lanes})")
