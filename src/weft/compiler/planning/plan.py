"""From a program's entries to a plan: fused kernels, calls of routines, a memory plan, a table of steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from weft.compiler.compared_keys import Lookup
from weft.compiler.fusion.groups import Group
from weft.compiler.fusion.launches import Watch
from weft.compiler.program import Entry
from weft.compiler.target import PlanAgainError, Target
from weft.graph.node import Node
from weft.runtime.engine import Engine
from weft.runtime.memory import size_class, span_of
from weft.runtime.steps import FIRST, Placement, Sealed, Step, Table, TableLayout

from .describing import Describer, Description
from .making_steps import StepMaker, generate_code
from .planner import CHECKS, Output, Planner, planner_of

DEVICE_WORK = -1
"""The work of a plan whose steps a device queues by itself. It is below every limit, because starting it takes no
time."""

DONATED_BYTES = 1 << 14
DONATED_BYTES_IN_ALL = 1 << 17
"""Writing fewer bytes to new memory, of one output or of all, is quicker than finding out which inputs end, and running
in their memory."""

LITTLE_WORK = 1 << 15
"""Plans with less work, in element steps, are little: see `Plan`."""

Block = tuple[int, int, int]
"""The index in the table for the address of a buffer, its size in bytes, its size class."""


Steps = TypeVar("Steps")


@dataclass(repr=False, slots=True)
class PlanParts(Generic[Steps]):
    """The result of planning a program.

    ``layout`` says what the table of a run contains. New buffers have ``sizes`` bytes, temporaries ``arena`` bytes in
    total. ``spans`` are the bytes that each input covers, counted from its first element. ``donations`` are pairs of an
    input and a new buffer that may take its memory if the input is not needed afterwards.
    """

    steps: Steps
    layout: TableLayout
    spans: list[tuple[int, int]]
    outputs: list[Output]
    sizes: list[int]
    arena: int
    work: int
    donations: list[tuple[int, int]]

    def values(self) -> list[Any]:
        """The fields, in order."""
        return [getattr(self, field.name) for field in fields(PlanParts)]


Unsealed = PlanParts[list[Step]]


def comparable(parts: Unsealed) -> Unsealed:
    """The same parts with numbers in plain lists, so that they can be compared with those of another plan."""
    return replace(parts, steps=[step._replace(numbers=list(step.numbers)) for step in parts.steps])


@dataclass(repr=False, slots=True, kw_only=True)
class Plan(PlanParts[Sealed]):
    """A program that an engine can run: its steps are sealed. ``entries`` and ``wanted`` are what was planned, for a
    ``target``."""

    engine: Engine
    entries: Sequence[Entry]
    wanted: Sequence[int]
    target: Target
    spare_tables: list[Table] = field(default_factory=list, repr=False)
    """Tables of finished runs, for `table_for`."""
    blocks: list[Block] = field(init=False)
    """The new buffers, then the memory for temporaries."""
    donates: bool = field(init=False)
    """Whether it pays to find out which inputs end, in order to use their memory. On devices with several queues no
    buffer is too small: memory that goes from one queue to another makes the other one wait."""
    sole: tuple[int, int, int, tuple[int, ...], int] | None = field(init=False)
    """If a single output is the only new buffer, and there are no temporaries: the entry of ``blocks``, and strides and
    offset of the output."""
    is_little: bool = field(init=False)
    """Whether the interpreter's lock may be held while the steps run: other threads wait for some microseconds."""

    def __post_init__(self) -> None:
        layout = self.layout
        slots = [layout.output(number) for number in range(len(self.sizes))]
        sizes = list(self.sizes)
        if self.arena:
            slots.append(layout.arena)
            sizes.append(self.arena)
        self.blocks = [(FIRST + slot, size, size_class(size)) for slot, size in zip(slots, sizes, strict=True)]
        least, in_all = (0, 0) if self.engine.works_in_parallel else (DONATED_BYTES, DONATED_BYTES_IN_ALL)
        sizes_donated = [self.sizes[output] for _, output in self.donations]
        self.donates = max(sizes_donated, default=-1) >= least and sum(sizes_donated) >= in_all
        output = self.outputs[0] if self.outputs else None
        self.sole = None
        if output is not None and len(self.outputs) == len(self.blocks) == 1 and not output.from_input:
            self.sole = (*self.blocks[0], output.strides, output.offset)
        self.is_little = DEVICE_WORK < self.work < LITTLE_WORK

    def new_table(self, constants: Sequence[int]) -> Table:
        """A table for a run, without addresses."""
        return Table(self.steps, [0] * self.layout.constant(0) + [*constants], self.is_little)

    def table_for(self, constants: Sequence[int]) -> Table:
        """A table as by `new_table`, or that of a finished run."""
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
        """Describe the steps. This plans the program again, because plans store no descriptions."""
        computed: dict[Group, dict[Node, None]] = {}

        def watch(group: Group, node: Node) -> None:
            computed.setdefault(group, {})[node] = None

        planner, slots, _ = _planned(self.entries, self.wanted, self.target, watch)
        steps = StepMaker(planner, slots).steps()
        if [tuple(step.step) for step in steps] != self.steps.rows():
            raise AssertionError("planning the same program again gave another plan")
        return Describer(planner, computed).description(steps)


def parts_of(
    entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine, lookup: Lookup = dict
) -> Unsealed:
    """Plan a program for a target; ``outputs`` are positions of entries."""
    planner, slots, arena = _planned(entries, outputs, target, lookup=lookup)
    planned = StepMaker(planner, slots).steps()
    found = planner.donations()
    if CHECKS and lookup is dict:
        planner.check(slots, arena, found)
    return PlanParts(
        steps=[one.step for one in planned],
        layout=planner.layout,
        spans=[span_of(node.shape, strides, node.dtype.size) for node, strides in planner.fusion.inputs.items()],
        outputs=planner.outputs,
        sizes=[node.nbytes for node in planner.buffers],
        arena=arena,
        work=DEVICE_WORK if engine.queues else sum([one.work for one in planned]),
        donations=found,
    )


def _planned(
    entries: Sequence[Entry],
    outputs: Sequence[int],
    target: Target,
    watch: Watch | None = None,
    lookup: Lookup = dict,
) -> tuple[Planner, Placement, int]:
    """The planner of a program, where everything is in memory, and the size of the memory for temporaries."""
    while True:
        with suppress(PlanAgainError):
            planner = planner_of(entries, outputs, target, watch, lookup)
            if target.is_waiting():
                generate_code(planner)
            return planner, *planner.slots()


def plan_from(
    parts: Unsealed, entries: Sequence[Entry], outputs: Sequence[int], target: Target, engine: Engine
) -> Plan:
    """The plan of a program from its parts."""
    sealed = engine.seal(parts.steps, parts.layout)
    return Plan(sealed, *parts.values()[1:], engine=engine, entries=entries, wanted=outputs, target=target)
