"""From a program's key to a plan: fused kernels, calls of routines, a memory plan, a table of native steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.compiler import dumps
from weft.compiler.groups import Group
from weft.compiler.planner import CHECKS, Description, Output, planner_of
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.graph.node import Node
from weft.runtime import recording
from weft.runtime.engine import Engine
from weft.runtime.memory import size_class, span_of
from weft.runtime.steps import FIRST, Sealed, Step, Table, TableLayout

DEVICE_WORK = -1
"""The work of a plan whose steps a device queues by itself: less than any, for whoever begins it waits for nothing."""

Block = tuple[int, int, int]
"""Index in the table for the address of a buffer, its size in bytes, its size class."""


@dataclass(slots=True)
class Plan:
    """A program that an engine can run.

    ``layout`` says what the table of a run holds. New buffers have ``sizes`` bytes, temporaries ``arena`` bytes in all;
    ``spans`` are the bytes that each input covers, counted from its first element. ``donations`` are inputs and the new
    buffers that may be theirs, if nobody needs the input afterwards. ``entries`` and ``wanted`` are what was planned,
    for ``target``.
    """

    engine: Engine
    steps: Sealed
    layout: TableLayout
    spans: list[tuple[int, int]]
    outputs: list[Output]
    sizes: list[int]
    arena: int
    work: int
    donations: list[tuple[int, int]]
    entries: Sequence[Entry]
    wanted: Sequence[int]
    target: Target
    spare_tables: list[Table] = field(default_factory=list, repr=False)
    """Tables of runs that are over, for `table_for`."""
    blocks: list[Block] = field(init=False)
    """The new buffers, and then the memory for temporaries."""

    def __post_init__(self) -> None:
        layout = self.layout
        slots = [layout.output(number) for number in range(len(self.sizes))]
        sizes = list(self.sizes)
        if self.arena:
            slots.append(layout.arena)
            sizes.append(self.arena)
        self.blocks = [(FIRST + slot, size, size_class(size)) for slot, size in zip(slots, sizes, strict=True)]

    def new_table(self, constants: Sequence[int]) -> Table:
        """A table for a run, without the addresses."""
        return Table(self.steps, [0] * self.layout.constant(0) + [*constants])

    def table_for(self, constants: Sequence[int]) -> Table:
        """A table like `new_table`, perhaps that of a run that is over."""
        try:
            table = self.spare_tables.pop()
        except IndexError:
            return self.new_table(constants)
        if constants:
            for slot, bits in enumerate(constants, FIRST + self.layout.constant(0)):
                table.values[slot] = bits
        return table

    def __str__(self) -> str:
        lines = [f"plan: {self.steps.count} steps, {self.arena} bytes of temporaries, outputs of {self.sizes} bytes"]
        return "\n".join([*lines, *[record.text for record in self.describe().records]])

    def describe(self) -> Description:
        """Plan again and describe the steps; a plan stores no descriptions."""
        computed: dict[Group, dict[Node, None]] = {}

        def watch(group: Group, node: Node) -> None:
            computed.setdefault(group, {})[node] = None

        planner = planner_of(self.entries, self.wanted, self.target, watch)
        steps = list(planner.steps(planner.slots()[0]))
        if [tuple(step.step) for step in steps] != self.steps.rows():
            raise AssertionError("planning the same program again gave another plan")
        return planner.description([planner.record(step, computed) for step in steps])


def make_plan(entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Plan:
    """Plan a program for a target; ``outputs`` are positions of entries."""
    if "graph" in dumps.stages:
        dumps.show("graph", dumps.graph_text(entries, outputs))
    with recording.span("plan", f"{len(entries)} entries"):
        plan = _planned(entries, outputs, target, engine)
    if "plan" in dumps.stages:
        dumps.show("plan", str(plan))
    return plan


def _planned(entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine) -> Plan:
    planner = planner_of(entries, outputs, target)
    slots, arena = planner.slots()
    steps: list[Step] = []
    work = 0
    for planned in planner.steps(slots):
        steps.append(planned.step)
        work += planned.work
    found = planner.donations()
    if CHECKS:
        planner.check(slots, arena, found)
    return Plan(
        engine=engine,
        steps=engine.seal(steps, planner.layout),
        layout=planner.layout,
        spans=[span_of(node.shape, strides, node.dtype.size) for node, strides in planner.fusion.inputs.items()],
        outputs=planner.outputs,
        sizes=[node.size * node.dtype.size for node in planner.buffers],
        arena=arena,
        work=DEVICE_WORK if engine.queues else work,
        donations=found,
        entries=entries,
        wanted=outputs,
        target=target,
    )
