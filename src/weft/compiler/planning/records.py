"""Records of the steps of a plan, for people and tools that read it: operations, loops, bytes, and results.

Nothing here is needed to run a plan, so it is not stored with the plan: `Plan.describe` plans again and describes that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft.compiler.kernel import Access, Instruction, Launch, Level
from weft.compiler.target import Schedule
from weft.graph.node import Node, Shape, describe
from weft.primitives.routine import Routine


class Region(NamedTuple):
    """The part of the memory of ``operand`` that a step reads or writes: ``size`` bytes between bytes ``low`` and
    ``high``."""

    operand: Node
    low: int
    high: int
    size: int


class StepResult(NamedTuple):
    """An array that a step writes: ``result`` is its number among the results of the program, or None for a
    temporary."""

    result: int | None
    node: Node

    def __str__(self) -> str:
        what = "temporary" if self.result is None else f"result {self.result}"
        return f"{what} {describe(self.node.shape, self.node.dtype)}"


class Temporary(NamedTuple):
    """A part of the memory for temporaries: ``size`` bytes from byte ``offset`` on, needed from step ``first`` to step
    ``last``. It holds the value of a node, or is scratch memory of the routine that computes the node."""

    node: Node
    is_scratch: bool
    offset: int
    size: int
    first: int
    last: int


class Phase(NamedTuple):
    """The position of a step among the ``steps`` of a call, how much of the ``whole`` work it does, and in which
    way."""

    position: int
    steps: int
    work: int
    whole: int
    way: str = ""

    def of(self, name: str) -> str:
        """The name of a call with the way in which it is computed, and with the number of this step if it has
        several."""
        name = f"{name} ({self.way})" if self.way else name
        return name if self.steps == 1 else f"{name} {self.position + 1}/{self.steps}"


WHOLE = Phase(0, 1, 1, 1)


class StepRecord(NamedTuple):
    """A step of a plan. It is a fused kernel (with its ``launch`` and ``schedule``), a call that computes one node
    (perhaps with a kernel ``attached`` to it, or with a ``feeder``, a kernel that computes an operand), or a chain of
    steps (``chained``), which are repeated ``turns`` times.

    ``names`` are the words for one step of its kind and for several. ``operations`` are counted by name, in the order
    of the program. ``work`` is how often the innermost body runs, ``arithmetic`` the number of scalar operations.
    ``nodes`` are the nodes of the planned graph that are computed here, ``parallel`` and ``folded`` the extents of the
    loops, ``regions`` the memory that is read. ``runs_on`` names the device if it is not that of the plan.
    """

    launch: Launch | None
    schedule: Schedule | None
    names: tuple[str, str]
    operations: dict[str, int]
    parallel: tuple[int, ...]
    folded: tuple[int, ...]
    units: int
    grain: int
    work: int
    arithmetic: int
    bytes_read: int
    bytes_written: int
    written: tuple[StepResult, ...]
    nodes: tuple[Node, ...]
    attached: StepRecord | None = None
    feeder: StepRecord | None = None
    regions: tuple[Region, ...] = ()
    chained: tuple[StepRecord, ...] = ()
    turns: int = 1
    runs_on: str = ""

    @property
    def kind(self) -> str:
        return "call" if self.launch is None else "kernel"

    @property
    def name(self) -> str:
        """The operations, repeated ones with their count: ``multiply (2), add``."""
        return ", ".join([name if times == 1 else f"{name} ({times})" for name, times in self.operations.items()])

    @property
    def loops(self) -> str:
        """The extents of the loops, folded ones in brackets: ``1000x[512]``."""
        return "x".join([*map(str, self.parallel), *[f"[{extent}]" for extent in self.folded]]) or "1"

    @property
    def facts(self) -> tuple[str, str, str, int, int, int]:
        """Facts that are equal for steps that do the same work."""
        return self.kind, self.name, self.loops, self.bytes_read, self.bytes_written, self.arithmetic

    @property
    def text(self) -> str:
        """The kernel and its extents, or the call."""
        launch, schedule = self.launch, self.schedule
        if self.chained:
            parts = [line for record in self.chained for line in record.text.splitlines()]
            return "\n".join([f"chain of {len(self.chained)} steps, {self.turns} turns:", *[f"  {x}" for x in parts]])
        if launch is None or schedule is None:
            node, name = self.nodes[0], next(iter(self.operations))
            text = f"call {name} {node.shape}"
            if self.feeder is not None:
                text = f"{text}, fed by:\n{self.feeder.text}"
            return text if self.attached is None else f"{text}, attached to it:\n{self.attached.text}"
        return f"{launch.kernel.described(schedule.text)}\n  extents {launch.extents_text}"


def kernel_record(
    launch: Launch, schedule: Schedule, nodes: Iterable[Node], written: Sequence[StepResult]
) -> StepRecord:
    """The record of a kernel that computes ``nodes``."""
    order = sorted(nodes, key=lambda node: node.serial)
    parallel, folded, lane = launch.row_extents, launch.sweep_extents, (launch.lane_extent,)
    mode = launch.kernel.lane
    regions = _regions(launch, "load")
    computing = [node for node in order if not (p.is_view(node) or p.is_constant(node))]
    return StepRecord(
        launch=launch,
        schedule=schedule,
        names=("kernel", "kernels"),
        operations=_counted([node.primitive.name for node in computing or [one.node for one in written]]),
        parallel=parallel + lane if mode == "parallel" else parallel,
        folded=folded + lane if mode == "reduced" else folded,
        units=schedule.units,
        grain=schedule.grain,
        work=launch.work,
        arithmetic=_arithmetic(launch),
        bytes_read=bytes_of(regions),
        bytes_written=bytes_of(_regions(launch, "store")),
        written=tuple(written),
        nodes=tuple(order),
        regions=tuple(regions),
    )


def call_record(
    node: Node,
    locations: Sequence[tuple[Node, int, Shape, Shape]],
    units: int,
    grain: int,
    phase: Phase,
    written: Sequence[StepResult],
) -> StepRecord:
    """The record of a step of a call of a routine. ``locations`` are, for each input, its memory, its offset there, and
    the extents and strides of the loops over it.

    If a call has several steps, the first is recorded as reading the inputs, and the last as writing the results.
    """
    reads = [strided_region(*location) for location in locations]
    if phase.position:
        reads = []
    if phase.position < phase.steps - 1:
        written = ()
    routine: Routine = node.primitive.routine
    parallel, reduced = routine.loops(node)
    return StepRecord(
        launch=None,
        schedule=None,
        names=routine.names,
        operations={phase.of(node.primitive.name): 1},
        parallel=parallel,
        folded=reduced,
        units=units,
        grain=grain,
        work=phase.work,
        arithmetic=routine.arithmetic(node) * phase.work // max(phase.whole, 1),
        bytes_read=bytes_of(reads),
        bytes_written=sum([one.node.nbytes for one in written]),
        written=tuple(written),
        nodes=(node,),
        regions=tuple(reads),
    )


def with_attached(call: StepRecord, kernel: StepRecord, node: Node) -> StepRecord:
    """The record of a call of a routine for ``node`` with an attached kernel. The kernel finds the result of the call
    in a cache, so reading it does not count."""
    assert kernel.launch is not None
    loaded = [region for region in _regions(kernel.launch, "load") if region.operand is not node]
    return _with_kernel(call, kernel, loaded, kernel.written)._replace(attached=kernel)


def with_feeder(call: StepRecord, kernel: StepRecord) -> StepRecord:
    """The record of a call of a routine with a feeder. The call finds the feeder's result in a cache: storing it does
    not count."""
    assert kernel.launch is not None
    return _with_kernel(call, kernel, _regions(kernel.launch, "load"), ())._replace(feeder=kernel)


def _with_kernel(
    call: StepRecord, kernel: StepRecord, loaded: Sequence[Region], written: Sequence[StepResult]
) -> StepRecord:
    operations = dict(call.operations)
    for name, times in kernel.operations.items():
        operations[name] = operations.get(name, 0) + times
    return call._replace(
        operations=operations,
        work=call.work + kernel.work,
        arithmetic=call.arithmetic + kernel.arithmetic,
        bytes_read=call.bytes_read + bytes_of(loaded),
        bytes_written=call.bytes_written + sum([one.node.nbytes for one in written]),
        written=(*call.written, *written),
        nodes=(*call.nodes, *[one for one in kernel.nodes if one not in call.nodes]),
        regions=(*call.regions, *loaded),
    )


def chain_record(
    steps: Sequence[StepRecord], turns: int, units: int, grain: int, inside: Container[Node]
) -> StepRecord:
    """The record of a chain of steps. Values that only the chain uses (``inside``) stay in a cache and do not count."""
    first = next((record for record in steps if record.launch is None), steps[0])  # a chain may consist of kernels only
    operations: dict[str, int] = {}
    for record in steps:
        for name, times in record.operations.items():
            operations[name] = operations.get(name, 0) + times
    written = [one for record in steps for one in record.written if one.node not in inside]
    regions = [region for record in steps for region in record.regions if region.operand not in inside]
    return first._replace(
        launch=None,
        schedule=None,
        names=("chain of steps", "chains of steps"),
        operations=operations,
        units=units,
        grain=grain,
        work=sum([record.work for record in steps]),
        arithmetic=sum([record.arithmetic for record in steps]),
        bytes_read=bytes_of(regions),
        bytes_written=sum([one.node.nbytes for one in written]),
        written=tuple(written),
        nodes=tuple(dict.fromkeys([node for record in steps for node in record.nodes])),
        attached=None,
        feeder=None,
        regions=tuple(regions),
        chained=tuple(steps),
        turns=turns,
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs. The names are in the order of their first occurrence."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def bytes_of(regions: Iterable[Region]) -> int:
    """How many bytes the regions have together. Regions that overlap count at most the bytes from the first to the
    last."""
    total = low = high = size = 0
    before: Node | None = None
    for region in sorted(set(regions), key=lambda region: (id(region.operand), region.low)):
        if region.operand is before and region.low < high:
            high, size = max(high, region.high), size + region.size
            continue
        total += min(size, high - low)
        before, low, high, size = region
    return total + min(size, high - low)


def strided_region(operand: Node, start: int, extents: Sequence[int], strides: Sequence[int]) -> Region:
    """The memory that loops of ``extents`` access. ``start`` and ``strides`` are in elements."""
    size = operand.dtype.size
    low = high = start
    count = 1
    for extent, stride in zip(extents, strides, strict=True):
        distance = max(extent - 1, 0) * stride
        low, high = low + min(distance, 0), high + max(distance, 0)
        count *= extent if stride else 1
    return Region(operand, low * size, (high + 1) * size, count * size)


def _regions(launch: Launch, operation: str) -> list[Region]:
    """The memory that the loads or the stores of a kernel access. Computed indices count one element for each
    access."""
    regions = []
    for instruction in launch.kernel.instructions:
        access = instruction.access
        if access is None or access.operand is None:
            continue
        if instruction.operation == operation or (operation == "load" and instruction.combine is not None):
            regions.append(_region(launch, instruction, access))
    return regions


def _region(launch: Launch, instruction: Instruction, access: Access) -> Region:
    operand: Node = access.operand
    if access.computed:
        whole = operand.size * access.dtype.size
        return Region(operand, 0, whole, min(whole, access.dtype.size * _times(launch, instruction)))
    extents = [*launch.row_extents, *launch.sweep_extents, launch.lane_extent]
    region = strided_region(operand, access.offset, extents, [*access.rows, *access.sweeps, access.lane])
    if not launch.kernel.ragged:
        return region
    end = operand.size * access.dtype.size
    return region._replace(high=min(region.high, end), size=min(region.size, end))


def _arithmetic(launch: Launch) -> int:
    """How many scalar operations a kernel stands for. Operations that a later pass repeats count once."""
    return sum(
        [_times(launch, i) for i in launch.kernel.instructions if i.operation in ("apply", "reduce", "fold", "scan")]
    )


def _times(launch: Launch, instruction: Instruction) -> int:
    """How many values an instruction computes; for a reduction, how many values it folds."""
    rows = 1 if instruction.level is Level.KERNEL else launch.row_count
    sweeps, varying = launch.sweep_extents[: instruction.sweep], instruction.varying
    if instruction.operation in ("reduce", "fold"):
        sweeps, varying = launch.sweep_extents, varying or launch.kernel.lane == "reduced"
    return rows * prod(sweeps) * (launch.lane_extent if varying else 1)
