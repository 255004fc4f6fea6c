"""The function of all steps of Fourier transforms: a loop over transforms, and for each over its stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.fourier.access import FIELD, FIELDS
from weft.compiler.cpu.fourier.stages import Stages
from weft.primitives.fourier import LARGE_UNITS, STACK
from weft.primitives.fourier_lengths import Floats
from weft.primitives.routine import Operand, RoutineStep
from weft.runtime.steps import Place

_HEAD = (
    *("in_slot", "in_offset", "out_slot", "out_offset", "scratch_slot", "scratch_offset", "scratch", "stack"),
    *("buffer", "transforms", "units", "extent", "width", "in_lane", "out_lane", "blocks", "latest", "stages", "axes"),
)
"""The first numbers of a step: where operand, result and scratch memory are; the bytes of scratch memory that a unit
has, or takes on the stack; the bytes of a buffer; how many transforms and units there are; for the axis of lanes its
extent, how many lanes are done at once, their distances in bytes, how many blocks of lanes there are and the last
possible start of a block; how many stages and further axes there are. Then come the axes, each with its extent and two
strides in bytes, and the stages."""

_PLACE = {name: number for number, name in enumerate(_HEAD)}
_GRAIN = 1 << 15


class TableAddress(int):
    """The address of a step's function. It keeps alive the tables that the step's numbers refer to."""

    tables: list[Floats]


@dataclass(frozen=True)
class Axis:
    """An axis along which transforms are repeated: its extent, and the strides of operand and result in bytes."""

    extent: int
    source: int
    target: int


def other_axes(source: Operand, target: Operand, axis: int) -> list[Axis]:
    """All axes but that of the transform; neighbouring ones are merged where their strides allow it."""
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


@dataclass(frozen=True)
class TransformLoops:
    """The loops of a step: slots and offsets of operand and result, the axis of lanes, further axes.

    A block has ``block`` lanes, or as many as a vector. With ``whole_blocks`` the last block has as many lanes as the
    others: it begins inside the one before, and some lanes are computed twice.
    """

    source: Place
    target: Place
    lanes: Axis
    axes: list[Axis]
    whole_blocks: bool = False
    block: int = 0

    def step(self, stages: Stages, scratch: Place, work: int) -> RoutineStep:
        """The step for some stages, with buffers on the stack or in scratch memory."""
        width = self.block or stages.width
        blocks = -(-self.lanes.extent // width)
        transforms = prod([axis.extent for axis in self.axes]) * blocks
        buffers = 4 * stages.plane
        on_stack = buffers <= STACK
        units = transforms if on_stack else min(transforms, LARGE_UNITS)
        head = {
            **{"in_slot": self.source[0], "in_offset": self.source[1]},
            **{"out_slot": self.target[0], "out_offset": self.target[1]},
            **{"scratch_slot": scratch[0], "scratch_offset": scratch[1]},
            **{"scratch": 0 if on_stack else buffers, "stack": buffers if on_stack else 0, "buffer": 2 * stages.plane},
            **{"transforms": transforms, "units": units, "extent": self.lanes.extent, "width": width},
            **{"in_lane": self.lanes.source, "out_lane": self.lanes.target, "blocks": blocks},
            "latest": self.lanes.extent - width if self.whole_blocks else self.lanes.extent,
            **{"stages": len(stages.numbers), "axes": len(self.axes)},
        }
        numbers = [head[name] for name in _HEAD]
        for axis in self.axes:
            numbers += [axis.extent, axis.source, axis.target]
        code = TableAddress(_runner())
        code.tables = stages.tables
        return RoutineStep(code, numbers + stages.finished(), units, max(1, _GRAIN * units // max(work, 1)), work)


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


class _Runner(Integers):
    """Writes the function of all steps."""

    def __init__(self, e: Emitter) -> None:
        super().__init__(e)
        self.head = {name: self.number(number) for name, number in _PLACE.items()}
        self.stack = e.assign(f"alloca i8, i64 {self.head['stack']}, align 64")
        self.source = self._memory("in_slot", "in_offset")
        self.target = self._memory("out_slot", "out_offset")
        self.first_stage = self.add(self.multiply(self.head["axes"], 3), len(_HEAD))

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
            e.store("ptr", self.moved(scratch, self.multiply(unit, head["scratch"])), buffers)
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
        start = self.multiply(block, head["width"])
        before = e.assign(f"icmp slt i64 {start}, {head['latest']}")
        first = e.assign(f"select i1 {before}, i64 {start}, i64 {head['latest']}")
        e.store("ptr", self.moved(self.source, self.multiply(first, head["in_lane"])), ends[0])
        e.store("ptr", self.moved(self.target, self.multiply(first, head["out_lane"])), ends[1])
        last = e.assign(f"sub i64 {head['axes']}, 1")
        with e.loop("0", head["axes"]) as count:
            number = e.assign(f"sub i64 {last}, {count}")
            field = self.add(self.multiply(number, 3), len(_HEAD))
            extent, value = self.number(field), e.load("i64", rest)
            index = e.assign(f"urem i64 {value}, {extent}")
            e.store("i64", e.assign(f"udiv i64 {value}, {extent}"), rest)
            for position, slot in enumerate(ends):
                stride = self.number(self.add(field, position + 1))
                e.store("ptr", self.moved(e.load("ptr", slot), self.multiply(index, stride)), slot)
        left = e.assign(f"sub i64 {head['extent']}, {first}")
        fewer = e.assign(f"icmp slt i64 {left}, {head['width']}")
        lanes = e.assign(f"select i1 {fewer}, i64 {left}, i64 {head['width']}")
        source, target = (e.load("ptr", slot) for slot in ends)
        with e.loop("0", head["stages"]) as stage:
            self._stage(stage, (source, *buffers), (target, *buffers), f"i64 {lanes}, i64 {first}")

    def _stage(self, stage: str, sources: tuple[str, ...], targets: tuple[str, ...], lanes: str) -> None:
        e = self.e
        first = self.add(self.multiply(stage, len(FIELDS)), self.first_stage)
        numbers = e.assign(f"getelementptr i64, ptr %numbers, i64 {first}")
        function = e.assign(f"inttoptr i64 {self.number(first)} to ptr")
        chosen = []
        for name, indices in (("from", sources), ("to", targets)):
            which = self.number(self.add(first, FIELD[name]))
            pointer = indices[0]
            for number, index in enumerate(indices[1:], 1):
                same = e.assign(f"icmp eq i64 {which}, {number}")
                pointer = e.assign(f"select i1 {same}, ptr {index}, ptr {pointer}")
            chosen.append(pointer)
        e.emit(f"call void {function}(ptr {numbers}, ptr {chosen[0]}, ptr {chosen[1]}, {lanes})")
