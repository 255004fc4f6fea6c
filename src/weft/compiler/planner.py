"""Loop nests, memory and steps for what fusion made of a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.compiler.arena import Interval, arrange
from weft.compiler.attaching import Attachment, fits
from weft.compiler.chains import Chain, ChainFinder, ChainTable, Draft
from weft.compiler.compared_keys import Lookup
from weft.compiler.division import Division
from weft.compiler.donation import Accesses, Touches, may_share, needless_stores
from weft.compiler.feeding import Feeder, FeederFinder
from weft.compiler.fusion import Fusion
from weft.compiler.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.kernel import Launch, numbers_of
from weft.compiler.launches import Launches, Watch
from weft.compiler.plan_check import Slots, check_donations, check_memory
from weft.compiler.program import Entry
from weft.compiler.records import (
    WHOLE,
    Phase,
    StepRecord,
    Temporary,
    Written,
    call_record,
    chain_record,
    kernel_record,
    with_attached,
    with_feeder,
)
from weft.compiler.rewrites import planned_graph
from weft.compiler.target import Schedule, Target
from weft.graph.node import Node, Shape
from weft.primitives.routine import Attached, Operand, Routine, RoutineCall, RoutineStep
from weft.runtime.memory import contiguous_strides
from weft.runtime.steps import Step, TableLayout

CHECKS = os.environ.get("WEFT_CHECKS", "") not in ("", "0")


class Output(NamedTuple):
    """Where an output is: a view of input ``number``, or of the new buffer ``number``."""

    from_input: bool
    number: int
    shape: Shape
    strides: Shape
    offset: int


class Description(NamedTuple):
    """What a plan is made of: a record per step, the planned graph, the temporaries.

    ``copies`` are nodes that are read instead of an input, by node and position of the input.
    """

    records: list[StepRecord]
    inputs: list[Node]
    outputs: list[Node]
    copies: dict[tuple[Node, int], Node]
    temporaries: list[Temporary]

    def source(self, node: Node, position: int) -> Node:
        """What a node reads as one of its inputs."""
        return self.copies.get((node, position), node.inputs[position])


class PlannedStep(NamedTuple):
    """A step, and what it was made of; of the steps of a call, its ``phase``; of a ``chain``, its steps."""

    group: Group
    launch: Launch | None
    schedule: Schedule | None
    step: Step
    work: int
    phase: Phase = WHOLE
    chain: Chain | None = None
    chained: Sequence[PlannedStep] = ()


class _Places(NamedTuple):
    """Where the table that steps have holds what is in memory, and each constant."""

    slots: Mapping[object, tuple[int, int]]
    constant: Callable[[int], int]


def planner_of(
    entries: Sequence[Entry],
    outputs: Sequence[int],
    target: Target,
    watch: Watch | None = None,
    lookup: Lookup = dict,
) -> Planner:
    graph = planned_graph(entries, outputs, target)
    fusion = Fusion(graph.order, graph.outputs, graph.inputs, target.limits, target.kind_for, lookup)
    return Planner(target, fusion, graph.outputs, list(graph.inputs), graph.constants, watch)


class Planner:
    """Loop nests, memory and steps for what fusion made. ``watch`` is told which group computes which nodes."""

    def __init__(
        self,
        target: Target,
        fusion: Fusion,
        wanted: Sequence[Node],
        inputs: list[Node],
        constants: list[Node],
        watch: Watch | None,
    ) -> None:
        self.target = target
        self.division = Division(target)
        self.fusion = fusion
        self.wanted = wanted
        self.inputs = {node: number for number, node in enumerate(inputs)}
        self.constants = constants
        self.launches = Launches(fusion, watch)
        self.buffers: dict[Node, int] = {}
        self.outputs = [self._output(node) for node in wanted]
        self.layout = TableLayout(len(inputs), len(self.buffers))
        self.drafts = [Draft(group, *self._scheduled(group)) for group in fusion.groups]
        self.chains: list[Chain] = []
        self.homes: dict[Node, Node] = {}
        self.attached: dict[Group, Attachment] = {}
        self.fed: dict[Group, Feeder] = {}
        self._attach_kernels()
        self.homes = self._overlays()
        self.chains = self._found_chains()

    def _output(self, node: Node) -> Output:
        layout = self.fusion.layout(node)
        if layout is None:
            raise AssertionError(f"{node} was asked for but is not in memory")
        base = layout.base
        if base in self.inputs and base not in self.fusion.stored:
            return Output(True, self.inputs[base], node.shape, layout.strides, layout.offset * node.dtype.size)
        number = self.buffers.setdefault(base, len(self.buffers))
        return Output(False, number, node.shape, layout.strides, layout.offset * node.dtype.size)

    def _scheduled(self, group: Group) -> tuple[Launch | None, Schedule | None]:
        """The loop nest of a group and how it is done; None for a call, or if there is nothing to do."""
        launch = self.launches.of(group) if isinstance(group, FusedGroup) else None
        if launch is None:
            return None, None
        schedule = self.division.schedule(group, launch)
        if CHECKS:
            launch.check()
            schedule.check(launch)
        return launch, schedule

    def _overlays(self) -> dict[Node, Node]:
        """The temporaries that are updated in place, each with the node in whose memory it is; copies to there are left
        out."""
        if not self.fusion.updated:
            return {}
        temporaries = self.fusion.stored.keys() - self.buffers.keys()
        homes = Touches(self.accesses()).overlays(self.fusion.updated, temporaries)
        if homes:
            for number, accesses in enumerate(self.accesses()):
                group = self.drafts[number][0]
                needless = needless_stores(accesses, homes)
                if needless and isinstance(group, FusedGroup):
                    group.roots = [root for position, root in enumerate(group.roots) if position not in needless]
                    self.drafts[number] = Draft(group, *self._scheduled(group))
        return homes

    def _found_chains(self) -> list[Chain]:
        """The steps that are done for one turn after the other."""
        finder = ChainFinder(
            self.target,
            self.drafts,
            self.attached,
            self.fusion.stored,
            fixed=self.buffers.keys() | self.inputs.keys(),
            shared=self.homes.keys() | set(self.homes.values()),
            operands=self._operands,
            apart=lambda group: self.launches.of(group, lanes_apart=True),
        )
        return finder.found()

    def _chain_at(self, number: int) -> Chain | None:
        """The chain of which a step is a part."""
        return next((chain for chain in self.chains if chain.first <= number <= chain.last), None)

    def _attach_kernels(self) -> None:
        """Attach kernels to the calls whose results they read, where they can be."""
        drafted = {group: (launch, schedule) for group, launch, schedule in self.drafts}
        readers: dict[Node, list[Group]] = {}
        for group, launch, _ in self.drafts:
            for node in dict.fromkeys(self._read_by(group, launch)):
                readers.setdefault(node, []).append(group)
        for group in reversed(self.fusion.groups):
            if isinstance(group, RoutineGroup) and self._makes_rectangles(group):
                users = readers.get(group.results[0], ())
                found = self._attachable(group, [(user, drafted[user][0]) for user in users if user in drafted])
                if found is not None:
                    self.attached[group] = found
                    found.stored = len(users) > 1 or found.result in self.buffers
                    del drafted[found.group]
                    drafted[group] = found.launch, found.schedule
                    self.fusion.attach(found.group, group)
        finder = FeederFinder(self.target, self.fusion, self.launches, self._routine_call)
        apart = {group for group, found in self.attached.items() if found.whole}
        self.fed = finder.found(drafted, readers, self.buffers.keys(), apart)
        if self.attached or self.fed:
            self.drafts = [Draft(group, *drafted[group]) for group in self.fusion.dependencies.in_order()]
            self._place_results()

    def _makes_rectangles(self, group: RoutineGroup) -> bool:
        routine: Routine = group.node.primitive.routine
        return len(group.results) == 1 and group.results[0].size > 0 and routine.can_attach(self.target.kind)

    def _attachable(self, group: RoutineGroup, users: Sequence[tuple[Group, Launch | None]]) -> Attachment | None:
        """The kernel to attach to a call, of those that read its result; None if there is none."""
        (result,) = group.results
        for user, alone in users:
            if not isinstance(user, FusedGroup) or alone is None:
                continue
            if not self.fusion.dependencies.may_attach(user, group):
                continue
            launch = self.launches.of(user, lanes_apart=True)
            if launch is None or not fits(launch, alone, result):
                continue
            schedule = self.target.attached_schedule(launch)
            if schedule is None:
                continue
            found = Attachment(user, launch, schedule, result)
            if self._attaches(group, found, in_memory=True):
                if CHECKS:
                    launch.check()
                    schedule.check(launch)
                return found
        return None

    def _attaches(self, group: RoutineGroup, found: Attachment, in_memory: bool) -> bool:
        """Whether a call can have a kernel attached, with its result in memory or not."""
        routine: Routine = group.node.primitive.routine
        return routine.attaches(self._routine_call(group), found.whole, in_memory, self.target.kind)

    def _place_results(self) -> None:
        """Decide in which memory results are made that attached kernels alone read: in that of what a kernel makes of
        one, unless an input that it reads gives that; else in scratch memory, if they fit there."""
        steps = self.accesses()
        nodes = list(self.inputs)
        giver = {taker: nodes[given] for given, taker in self.donations()}
        for (group, *_), step in zip(self.drafts, steps, strict=True):
            found = self.attached.get(group)
            if found is not None and not found.stored:
                for node in [root.target for root in found.group.roots]:
                    given = node in self.buffers and giver.get(self.buffers[node]) in step.read
                    if not given and len(self.fusion.stored[node]) == 1 and may_share(step, found.result, node):
                        found.target = node
                        break
                assert isinstance(group, RoutineGroup)
                found.stored = found.target is None and not self._attaches(group, found, in_memory=False)
                if not found.stored:
                    del self.fusion.stored[found.result]

    def steps(self, slots: Slots) -> Iterator[PlannedStep]:
        """The steps in order. Groups without work are left out."""
        places = _Places(slots, self.layout.constant)
        for number, draft in enumerate(self.drafts):
            chain = self._chain_at(number)
            if chain is None:
                yield from self._steps_of(draft, places)
            elif number == chain.first:
                yield self._chain(chain, slots)

    def _steps_of(self, draft: Draft, places: _Places) -> Iterator[PlannedStep]:
        group, launch, schedule = draft
        if isinstance(group, RoutineGroup):
            yield from self._call(group, places)
        elif launch is not None and schedule is not None and schedule.units:
            yield self._launch(group, launch, schedule, places)

    def _chain(self, chain: Chain, slots: Slots) -> PlannedStep:
        """The step of a chain."""
        table = ChainTable(chain, slots, slots[chain], self._made_in_place())
        places = _Places(table, lambda number: table.plain(self.layout.constant(number)))
        steps = [one for draft in self.drafts[chain.first : chain.last + 1] for one in self._steps_of(draft, places)]
        step = self.target.chained(chain.turns, chain.units, table.entries, [one.step for one in steps])
        work = sum([one.work for one in steps])
        return PlannedStep(steps[0].group, None, None, step, work, chain=chain, chained=steps)

    def accesses(self) -> list[Accesses]:
        """What the steps read and write, in order."""
        stored: dict[Group, set[Node]] = {group: set() for group, *_ in self.drafts}
        for node, writers in self.fusion.stored.items():
            for group in writers:
                stored[group].add(node)
        steps = [self._accesses_of(group, launch, schedule, stored[group]) for group, launch, schedule in self.drafts]
        for chain in reversed(self.chains):
            parts = steps[chain.first : chain.last + 1]
            read = {node for x in parts for node in x.read} - chain.inside.keys()
            written = {node for x in parts for node in x.written} - chain.inside.keys()
            steps[chain.first : chain.last + 1] = [Accesses(read, written, None, None, is_call=True)]
        return steps

    def _accesses_of(
        self, group: Group, launch: Launch | None, schedule: Schedule | None, written: set[Node]
    ) -> Accesses:
        read = set(self._read_by(group, launch))
        found = self.attached.get(group)
        if found is None or not isinstance(group, RoutineGroup):
            return Accesses(read, written, launch, schedule, isinstance(group, RoutineGroup))
        made = {found.result} if found.stored else {found.target} if found.target is not None else set()
        operands = set(self._read_by_call(group))
        return Accesses(read, written, launch, schedule, False, Accesses(operands, made, None, None, True))

    def donations(self) -> list[tuple[int, int]]:
        """Inputs and the new buffers that may be written in their memory."""
        return Touches(self.accesses()).donations(self.inputs, self._shown(), self.buffers, self.homes)

    def check(self, slots: Slots, arena: int, found: list[tuple[int, int]]) -> None:
        """Raise if memory is read too early or too late. There are ``arena`` bytes of temporaries, and donations were
        ``found``."""
        steps = self.accesses()
        check_memory(steps, slots, self.layout.arena, arena, self.inputs, self.homes)
        check_donations(steps, found, self.inputs, self._shown(), self.buffers, self.homes)

    def _shown(self) -> set[int]:
        """The inputs that outputs show."""
        return {output.number for output in self.outputs if output.from_input}

    def slots(self) -> tuple[Slots, int]:
        """Table entry and byte offset of everything in memory."""
        layout = self.layout
        slots: Slots = {node: (layout.input(number), 0) for node, number in self.inputs.items()}
        slots.update((node, (layout.output(number), 0)) for node, number in self.buffers.items())
        intervals = self._lifetimes()
        offsets, size = arrange(list(intervals.values()))
        slots.update((node, (layout.arena, offset)) for node, offset in zip(intervals, offsets, strict=True))
        slots.update((node, slots[home]) for node, home in self.homes.items())
        slots.update((node, slots[home]) for node, home in self._made_in_place().items() if home in slots)
        slots.update((feeder.kernel.result, (layout.arena, 0)) for feeder in self.fed.values())
        return slots, size

    def _made_in_place(self) -> dict[Node, Node]:
        """The results that attached kernels alone read, each with a node of whose memory its accesses are counted."""
        left_out = [found for found in self.attached.values() if not found.stored]
        return {found.result: found.target or found.group.roots[0].target for found in left_out}

    def _lifetimes(self) -> dict[Node | RoutineGroup | Chain, Interval]:
        """When each temporary is written first and read last, in steps; the scratch memory of a call, by its group, and
        that of a chain, all steps of which are done at once."""
        position = {group: number for number, (group, *_) in enumerate(self.drafts)}
        last: dict[Node, int] = {}
        for number, (group, launch, _) in enumerate(self.drafts):
            for base in self._read_by(group, launch):
                last[base] = number
        intervals: dict[Node | RoutineGroup | Chain, Interval] = {}
        begins, ends = self._spans()
        inside = {node for chain in self.chains for node in chain.inside}
        for node, writers in self.fusion.stored.items():
            if node not in self.buffers and node not in inside:
                first = begins[min(position[group] for group in writers)]
                final = ends[max(last.get(node, 0), max(position[group] for group in writers))]
                home = self.homes.get(node, node)
                if home in intervals:
                    first, final = min(first, intervals[home].first), max(final, intervals[home].last)
                if home not in self.buffers:
                    intervals[home] = Interval(node.size * node.dtype.size, first, final)
        for group, number in position.items():
            scratch = self._scratch_of(group)
            if scratch and isinstance(group, RoutineGroup):
                intervals[group] = Interval(scratch, number, number)
        intervals.update((one, Interval(one.units * one.scratch, one.first, one.last)) for one in self.chains)
        return intervals

    def _spans(self) -> tuple[list[int], list[int]]:
        """The first and the last of the steps that are done together with each step."""
        begins, ends = list(range(len(self.drafts))), list(range(len(self.drafts)))
        for chain in self.chains:
            for number in range(chain.first, chain.last + 1):
                begins[number], ends[number] = chain.first, chain.last
        return begins, ends

    def _read_by(self, group: Group, launch: Launch | None) -> list[Node]:
        """What is read in memory."""
        nodes = self._read_by_call(group) if isinstance(group, RoutineGroup) else []
        if launch is not None:
            nodes += launch.operands
        found = self.attached.get(group)
        return nodes if found is None or found.stored else [node for node in nodes if node is not found.result]

    def _read_by_call(self, group: RoutineGroup) -> list[Node]:
        """What a call reads, and what the kernel reads that feeds it."""
        nodes = [layout.base for layout in self._operands(group)]
        feeder = self.fed.get(group)
        if feeder is None:
            return nodes
        kernel = feeder.kernel
        return [node for node in nodes + kernel.launch.operands if node is not kernel.result]

    def _call(self, group: RoutineGroup, places: _Places) -> list[PlannedStep]:
        node = group.node
        if not any(result.size for result in group.results):
            return []
        routine: Routine = node.primitive.routine
        target = self.division.target_of(group)
        routine.require(node.primitive.name, node.inputs, (target.kind,))
        made = routine.steps(self._routine_call(group, places), target.kind)
        made = [step._replace(code=target.routine_code(step.code)) for step in made]
        whole = sum([step.work for step in made])
        phases = [Phase(number, len(made), step.work, whole, step.way) for number, step in enumerate(made)]
        beside = sum([kernel.launch.work for kernel in self._kernels_of(group)])
        return [
            PlannedStep(group, None, None, self._step(group, None, x, places), x.work + beside, phase)
            for x, phase in zip(made, phases, strict=True)
        ]

    def _routine_call(self, group: RoutineGroup, places: _Places | None = None) -> RoutineCall:
        """What the steps of a call are made for; without ``places``, it is not known yet where anything is."""
        node = group.node
        operands = []
        for source, layout in zip(node.inputs, self._operands(group), strict=True):
            slot, offset = places.slots[layout.base] if places is not None else (0, 0)
            offset += layout.offset * source.dtype.size
            operands.append(Operand(source.shape, source.dtype, layout.strides, slot, offset, layout.factors))
        results = []
        for x in group.results:
            place = places.slots[x] if places is not None else (0, 0)
            results.append(Operand(x.shape, x.dtype, contiguous_strides(x.shape), *place))
        scratch = (self.layout.arena, 0) if places is None else places.slots.get(group, (self.layout.arena, 0))
        found, feeder = self.attached.get(group), self.fed.get(group)
        if places is None:
            return RoutineCall(node.keywords, tuple(operands), tuple(results), scratch)
        attached = None if found is None else self._numbered(found, places)
        fed = None if feeder is None else (feeder.position, self._numbered(feeder.kernel, places))
        return RoutineCall(node.keywords, tuple(operands), tuple(results), scratch, attached, fed)

    def _numbered(self, found: Attachment, places: _Places) -> Attached:
        """A kernel that runs as a part of the step of a call."""
        numbers = numbers_of(found.launch, found.schedule.numbers.values(), *places)
        return found.numbered(self.target.code(found.launch.kernel, found.schedule), numbers)

    def _kernels_of(self, group: RoutineGroup) -> list[Attachment]:
        """The kernels that run as parts of the step of a call."""
        found, feeder = self.attached.get(group), self.fed.get(group)
        return [*([feeder.kernel] if feeder is not None else []), *([found] if found is not None else [])]

    def _operands(self, group: RoutineGroup) -> list[Layout]:
        """Where the inputs of a routine are."""
        layouts = [self.fusion.operand(group, number) for number in range(len(group.node.inputs))]
        return [layout for layout in layouts if layout is not None]

    def _launch(self, group: Group, launch: Launch, schedule: Schedule, places: _Places) -> PlannedStep:
        numbers = numbers_of(launch, schedule.numbers.values(), *places)
        code = self.division.target_of(group).code(launch.kernel, schedule)
        step = self._step(group, launch, Step(code, numbers, schedule.units, schedule.grain), places)
        return PlannedStep(group, launch, schedule, step, launch.work)

    def _step(self, group: Group, launch: Launch | None, made: Step | RoutineStep, places: _Places) -> Step:
        """A step of the engine, made of what the target that does it made."""
        code = made.code
        if self.division.target_of(group) is not self.target:
            read, scratch = self._read_by(group, launch), self._scratch_of(group)
            code = self.division.with_memory(code, group, read, self.fusion.inputs, places.slots, scratch)
        return Step(code, list(made.numbers), made.units, made.grain)

    def _scratch_of(self, group: Group) -> int:
        """How many bytes of scratch memory a group needs."""
        if not isinstance(group, RoutineGroup):
            return 0
        routine: Routine = group.node.primitive.routine
        return routine.scratch_on(group.node, self.division.target_of(group).kind)

    def description(self, records: list[StepRecord]) -> Description:
        """What there is to say besides the records of the steps."""
        intervals = self._lifetimes()
        offsets, _ = arrange(list(intervals.values()))
        temporaries = [
            Temporary(self._shown_as(key), not isinstance(key, Node), offset, size, *map(self._without_chains, steps))
            for (key, (size, *steps)), offset in zip(intervals.items(), offsets, strict=True)
        ]
        copies = {
            (key, 0) if isinstance(key, Node) else (key[0].node, key[1]): copy
            for key, copy in self.fusion.copies.items()
        }
        return Description(records, list(self.inputs), list(self.wanted), copies, temporaries)

    def _without_chains(self, number: int) -> int:
        """The number of a step where each chain counts as one."""
        return number - sum([min(number, chain.last) - chain.first for chain in self.chains if chain.first < number])

    def _shown_as(self, key: Node | RoutineGroup | Chain) -> Node:
        """The node that temporary memory is for; of a chain the first one that is inside."""
        if isinstance(key, Chain):
            return next(iter(key.inside))
        return key if isinstance(key, Node) else key.node

    def record(self, planned: PlannedStep, computed: Mapping[Group, Iterable[Node]]) -> StepRecord:
        """What a step is; ``computed`` are the nodes that groups were seen to compute."""
        return self._record_here(planned, computed)._replace(place=self.division.place(planned.group))

    def _record_here(self, planned: PlannedStep, computed: Mapping[Group, Iterable[Node]]) -> StepRecord:
        group, step, chain = planned.group, planned.step, planned.chain
        if chain is not None:
            steps = [self.record(one, computed) for one in planned.chained]
            return chain_record(steps, chain.turns, step.units, step.grain, chain.inside)
        if isinstance(group, RoutineGroup):
            node = group.node
            feeder = self.fed.get(group)
            inputs = [
                (layout.base, layout.offset, *layout.loops(source.shape))
                for source, layout in zip(node.inputs, self._operands(group), strict=True)
                if feeder is None or layout.base is not feeder.kernel.result
            ]
            found = self.attached.get(group)
            results = [] if found is not None and not found.stored else group.results
            written = [self._written(result) for result in results]
            record = call_record(node, inputs, step.units, step.grain, planned.phase, written)
            if found is not None:
                record = with_attached(record, self._record_of(found, computed), node)
            return record if feeder is None else with_feeder(record, self._record_of(feeder.kernel, computed))
        assert planned.launch is not None
        assert planned.schedule is not None
        return self._kernel_record(group, planned.launch, planned.schedule, computed)

    def _record_of(self, found: Attachment, computed: Mapping[Group, Iterable[Node]]) -> StepRecord:
        return self._kernel_record(found.group, found.launch, found.schedule, computed)

    def _kernel_record(
        self, group: Group, launch: Launch, schedule: Schedule, computed: Mapping[Group, Iterable[Node]]
    ) -> StepRecord:
        assert isinstance(group, FusedGroup)
        written = [self._written(root.target) for root in group.roots]
        updated = [root.target for root in group.roots if root.write is not None]
        return kernel_record(launch, schedule, {*computed.get(group, ()), *updated}, written)

    def _written(self, node: Node) -> Written:
        number = self.buffers.get(node)
        for position, output in enumerate(self.outputs):
            if not output.from_input and output.number == number:
                return Written(position, node)
        return Written(None, node)
