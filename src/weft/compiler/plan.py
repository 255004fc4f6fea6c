"""From a program's key to a plan: fused kernels, library calls, a memory plan, a table of native steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import weft.primitives as p
from weft.compiler import library
from weft.compiler.arena import Interval, arrange
from weft.compiler.builder import Draft, launch_of, row_major
from weft.compiler.codegen import kernels
from weft.compiler.donation import Step, donations
from weft.compiler.fusion import Fusion
from weft.compiler.index import Term, added, scaled, shifted, weighted
from weft.compiler.kernel import WOVEN_LANES, Launch, numbers_of
from weft.compiler.program import Entry, rebuilt
from weft.compiler.units import CallUnit, Cluster, RegionPart, Root, ScatterPart, Unit
from weft.graph.node import Node, Shape, reachable
from weft.runtime.steps import StepTable

WORK_PER_GRAIN = 1 << 15
LANE_BLOCK = 1 << 14
CHECKS = bool(os.environ.get("WEFT_CHECKS"))


@dataclass(slots=True)
class Output:
    """Where an output is: a view of input ``number``, or of the new buffer ``number``."""

    from_input: bool
    number: int
    shape: Shape
    strides: Shape
    offset: int


@dataclass(slots=True)
class Plan:
    """A program that can run. The table of a call holds the addresses of inputs, of new buffers (of ``sizes`` bytes),
    of the arena for temporaries, and then the constants. ``donations`` are inputs and the new buffers that may be
    theirs, if nobody needs the input afterwards."""

    steps: StepTable
    outputs: list[Output]
    sizes: list[int]
    arena: int
    work: int
    donations: list[tuple[int, int]] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"plan: {self.steps.count} steps, {self.arena} bytes of temporaries, outputs of {self.sizes} bytes"]
        return "\n".join([*lines, *self.descriptions])


def make_plan(entries: Sequence[Entry], outputs: Sequence[int]) -> Plan:
    """Plan a program: ``outputs`` are positions of entries."""
    nodes, inputs, constants = rebuilt(entries)
    wanted = [nodes[position] for position in outputs]
    fusion = Fusion(reachable(wanted), wanted, inputs)
    return _Planner(fusion, wanted, list(inputs), constants).plan()


class _Planner:
    def __init__(self, fusion: Fusion, wanted: Sequence[Node], inputs: list[Node], constants: list[Node]) -> None:
        self.fusion = fusion
        self.wanted = wanted
        self.inputs = {node: number for number, node in enumerate(inputs)}
        self.constants = constants
        self.buffers: dict[Node, int] = {}
        self.outputs = [self._output(node) for node in wanted]
        self.drafts = [(unit, self._draft(unit) if isinstance(unit, Cluster) else None) for unit in fusion.units]

    def _output(self, node: Node) -> Output:
        layout = self.fusion.layout(node)
        if layout is None:
            raise AssertionError(f"{node} was asked for but is not in memory")
        base = layout.base
        if base in self.inputs and base not in self.fusion.stored:
            return Output(True, self.inputs[base], node.shape, layout.strides, layout.offset * node.dtype.size)
        number = self.buffers.setdefault(base, len(self.buffers))
        return Output(False, number, node.shape, layout.strides, layout.offset * node.dtype.size)

    def _draft(self, cluster: Cluster) -> Launch | None:
        """The loop nest of a cluster; None if there is nothing to do."""
        if any(cluster.extents[axis] == 0 for axis in cluster.kept):
            return None

        def in_memory(node: Node) -> tuple[Node, Shape, int] | None:
            layout = self.fusion.layout(node)
            if layout is None:
                return None
            stored = self.fusion.stored.get(layout.base, ())
            if cluster in stored or not (stored or layout.base in self.inputs):
                return None
            return layout.base, layout.strides, layout.offset

        draft = Draft(in_memory, cluster.reduced)
        for root in cluster.roots:
            self._store(draft, cluster, root)
        return launch_of(draft, cluster.axes, cluster.extents)

    def _store(self, draft: Draft, cluster: Cluster, root: Root) -> None:
        strides = row_major(root.target.shape)
        combine, where = None, None
        if root.part is None:
            term = weighted(root.terms, strides)
        elif isinstance(root.part, RegionPart):
            term = Term(0)
            parts = zip(root.terms, root.part.starts, root.part.steps, strides, strict=True)
            for at, start, step, stride in parts:
                term = added(term, scaled(shifted(scaled(at, step), start), stride))
        else:
            term, where = self._scatter_term(draft, root, strides)
            combine = p.COMBINE[root.part.mode]
        value = draft.value(root.node, root.terms)
        scattered = isinstance(root.part, ScatterPart)
        axes = cluster.axes if scattered else [axis for at in root.terms for axis, _ in at.axes]
        draft.store(value, term, root.target, root.node.dtype, axes, combine, where)

    def _scatter_term(self, draft: Draft, root: Root, strides: Sequence[int]) -> tuple[Term, int | None]:
        """Where the updates go, and which of them go anywhere."""
        part, target = root.part, root.target
        assert isinstance(part, ScatterPart)
        indices = target.inputs[1:-1]
        rank = indices[0].ndim
        at, within = root.terms[:rank], root.terms[rank:]
        slices = root.node.shape[rank:]
        total = weighted(within, strides)
        valid: int | None = None
        for index, axis in zip(indices, part.axes, strict=True):
            extent = target.shape[axis]
            place, inside = draft.place_from(index, at, extent - slices[axis] + 1, extent)
            total = added(total, scaled(place, strides[axis]))
            if inside is not None and part.outside == "nowhere":
                valid = inside if valid is None else draft.apply(p.logical_and, valid, inside)
        return total, valid

    def plan(self) -> Plan:
        slots, arena = self._slots()
        steps = StepTable()
        descriptions: list[str] = []
        work = 0
        for unit, launch in self.drafts:
            if isinstance(unit, CallUnit):
                work += self._add_call(steps, unit, slots)
                descriptions.append(f"call {unit.node.primitive.name} {unit.node.shape}")
            elif launch is not None:
                work += launch.work
                self._add_launch(steps, launch, slots)
                descriptions.append(
                    f"{launch.kernel}\n  extents {launch.row_extents} {launch.sweep_extents} {launch.lane_extent}"
                )
        steps.seal()
        sizes = [node.size * node.dtype.size for node in self.buffers]
        return Plan(steps, self.outputs, sizes, arena, work, self._donations(), descriptions)

    def _donations(self) -> list[tuple[int, int]]:
        steps: list[Step] = []
        for unit, launch in self.drafts:
            written = {node for node, writers in self.fusion.stored.items() if unit in writers}
            steps.append((set(self._read_by(unit, launch)), written, launch))
        shown = {output.number for output in self.outputs if output.from_input}
        return donations(steps, self.inputs, shown, self.buffers)

    def _slots(self) -> tuple[dict[object, tuple[int, int]], int]:
        """Table entry and byte offset of everything in memory."""
        first_buffer = len(self.inputs)
        arena_slot = first_buffer + len(self.buffers)
        slots: dict[object, tuple[int, int]] = {node: (number, 0) for node, number in self.inputs.items()}
        slots.update((node, (first_buffer + number, 0)) for node, number in self.buffers.items())
        intervals = self._lifetimes()
        offsets, size = arrange(list(intervals.values()))
        slots.update((node, (arena_slot, offset)) for node, offset in zip(intervals, offsets, strict=True))
        return slots, size

    def _lifetimes(self) -> dict[Node, Interval]:
        """When each temporary is written first and read last, in steps."""
        position = {unit: number for number, unit in enumerate(self.fusion.units)}
        last: dict[Node, int] = {}
        for number, (unit, launch) in enumerate(self.drafts):
            for base in self._read_by(unit, launch):
                last[base] = number
        intervals: dict[Node, Interval] = {}
        for node, writers in self.fusion.stored.items():
            if node not in self.buffers:
                first = min(position[unit] for unit in writers)
                final = max(last.get(node, 0), max(position[unit] for unit in writers))
                intervals[node] = Interval(node.size * node.dtype.size, first, final)
        return intervals

    def _read_by(self, unit: Unit, launch: Launch | None) -> list[Node]:
        if isinstance(unit, CallUnit):
            operands = [self.fusion.operand(unit, number) for number in range(len(unit.node.inputs))]
            return [layout.base for layout in map(self.fusion.layout, operands) if layout is not None]
        if launch is None:
            return []
        return [
            i.access.operand
            for i in launch.kernel.instructions
            if i.access is not None and i.access.operand is not None
        ]

    def _add_call(self, steps: StepTable, unit: CallUnit, slots: dict[object, tuple[int, int]]) -> int:
        node = unit.node
        strides, places = [], []
        for number in range(len(node.inputs)):
            layout = self.fusion.layout(self.fusion.operand(unit, number))
            assert layout is not None
            slot, offset = slots[layout.base]
            strides.append(layout.strides)
            places.append((slot, offset + layout.offset * node.dtype.size))
        strides.append(tuple(row_major(node.shape)))
        places.append(slots[node])
        if node.size == 0:
            return 0
        routine = library.matmul(node, strides, places)
        steps.add(routine.address, routine.numbers, routine.units, routine.grain)
        return routine.work

    def _add_launch(self, steps: StepTable, launch: Launch, slots: dict[object, tuple[int, int]]) -> None:
        kernel = launch.kernel
        if CHECKS:
            kernel.check()
        first_constant = len(self.inputs) + len(self.buffers) + 1
        scalars = {
            position: first_constant + instruction.scalar
            for position, instruction in enumerate(kernel.instructions)
            if instruction.operation == "scalar"
        }
        most = WOVEN_LANES if kernel.woven else LANE_BLOCK
        block = min(most, max(16, -(-launch.lane_extent // 16) * 16)) if kernel.lane == "kept" else 0
        blocks = -(-launch.lane_extent // block) if block else 1
        units = launch.row_units * blocks
        if units:
            per_unit = max(1, launch.work // units)
            grain = max(1, WORK_PER_GRAIN // per_unit)
            steps.add(kernels.address(kernel), numbers_of(launch, block, slots, scalars), units, grain)
