"""Loop nests and memory for the groups of a program: which steps there are, and what they read and write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from weft.compiler.compared_keys import Lookup
from weft.compiler.fusion.fusion import Fusion
from weft.compiler.fusion.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.fusion.launches import Launches, Watch
from weft.compiler.kernel import Launch
from weft.compiler.program import Entry
from weft.compiler.rewriting.rewrites import planned_graph
from weft.compiler.target import Schedule, Target
from weft.graph.node import Node, Shape
from weft.primitives.routine import Operand, Routine, RoutineCall
from weft.runtime.memory import contiguous_strides
from weft.runtime.steps import Place, Placement, TableLayout
from weft.runtime.switches import switch

from .arena import Interval, arrange
from .attaching import Attachment, fits, is_whole, may_fit
from .chains import Chain, ChainFinder, ScheduledGroup
from .division import Division
from .donation import Accesses, Touches, may_share, needless_stores
from .feeding import Feeder, FeederFinder
from .plan_check import check_donations, check_memory

CHECKS = switch("WEFT_CHECKS")

MOST_TRIED = 16
"""A kernel may read the results of thousands of calls. The planner tries to attach it to at most this many of them,
the last ones first. It tries to join a kernel with at most this many of the kernels before it."""


class Output(NamedTuple):
    """Where an output is: a view of input ``number``, or of new buffer ``number``."""

    from_input: bool
    number: int
    shape: Shape
    strides: Shape
    offset: int


def planner_of(
    entries: Sequence[Entry],
    outputs: Sequence[int],
    target: Target,
    watch: Watch | None = None,
    lookup: Lookup = dict,
) -> Planner:
    graph = planned_graph(entries, outputs, target)
    alone: set[Node] = set()
    while True:
        fusion = Fusion(graph.order, graph.outputs, graph.inputs, target.limits, target.kind_for, lookup, alone)
        planner = Planner(target, fusion, graph.outputs, list(graph.inputs), watch)
        found = [node for node in fusion.grown if any(isinstance(group, FusedGroup) for group in fusion.stored[node])]
        if not found:
            return planner
        alone.update(found)  # their kernels could not be attached, so storing them would only take time


class Planner:
    """Loop nests and memory for the groups of a program. ``watch`` is told which nodes each group computes."""

    def __init__(
        self,
        target: Target,
        fusion: Fusion,
        wanted: Sequence[Node],
        inputs: list[Node],
        watch: Watch | None,
    ) -> None:
        self.target = target
        self.division = Division(target)
        self.fusion = fusion
        self.wanted = wanted
        self.inputs = {node: number for number, node in enumerate(inputs)}
        self.launches = Launches(fusion, watch)
        self.buffers: dict[Node, int] = {}
        self.outputs = [self._output(node) for node in wanted]
        self.layout = TableLayout(len(inputs), len(self.buffers))
        self.scheduled = [ScheduledGroup(group, *self._scheduled(group)) for group in fusion.groups]
        self.chains: list[Chain] = []
        self.homes: dict[Node, Node] = {}
        self.attached: dict[Group, Attachment] = {}
        self._tries: Counter[Group] = Counter()
        self._lanes_apart: dict[Group, Launch | None] = {}
        self._attached_schedules: dict[Group, Schedule | None] = {}
        self.fed: dict[Group, Feeder] = {}
        self._attach_kernels()
        self.joined: dict[Group, list[FusedGroup]] = {}
        self._join_kernels()
        self.homes = self._overlays()
        self.chains = self._found_chains()
        self._chain_of = {number: one for one in self.chains for number in range(one.first, one.last + 1)}

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
        """The launch and the schedule of a group; None for a call, or if there is nothing to do."""
        launch = self.launches.of(group) if isinstance(group, FusedGroup) else None
        if launch is None:
            return None, None
        schedule = self.division.schedule(group, launch)
        if CHECKS:
            launch.check()
            schedule.check(launch)
        return launch, schedule

    def _overlays(self) -> dict[Node, Node]:
        """The temporaries that are updated in place, each with the node whose memory it has. Stores that would copy
        elements to where they are are left out."""
        if not self.fusion.updated:
            return {}
        temporaries = self.fusion.stored.keys() - self.buffers.keys()
        homes = Touches(self.accesses()).overlays(self.fusion.updated, temporaries)
        if homes:
            for number, accesses in enumerate(self.accesses()):
                group = self.scheduled[number][0]
                needless = needless_stores(accesses, homes)
                if needless and isinstance(group, FusedGroup):
                    group.roots = [root for position, root in enumerate(group.roots) if position not in needless]
                    self.scheduled[number] = ScheduledGroup(group, *self._scheduled(group))
        return homes

    def _found_chains(self) -> list[Chain]:
        """The chains: steps that are done one turn after the other."""
        finder = ChainFinder(
            self.target,
            self.scheduled,
            self.attached,
            self.fed,
            self.fusion.stored,
            fixed=self.buffers.keys() | self.inputs.keys(),
            shared=self.homes.keys() | set(self.homes.values()),
            operands=self.operands,
            apart=lambda group: self.launches.of(group, lanes_apart=True),
        )
        return finder.found()

    def _join_kernels(self) -> None:
        """Join kernels that fold columns in parts with kernels of rows before them, where one launch can do both. All
        that the joined kernel reads is there then, because the other one reads or writes it, too."""
        if self.fusion.updated:
            return  # which nodes share memory is not known yet
        for number in reversed(range(len(self.scheduled))):
            columns = self.scheduled[number].launch
            if columns is not None and columns.kernel.ragged:
                before = reversed(range(max(0, number - MOST_TRIED), number))
                next(filter(partial(self._join, number), before), None)

    def _join(self, number: int, before: int) -> bool:
        """Join a launch with one before it, if that can be."""
        (group, launch, schedule), (other, columns, _) = self.scheduled[before], self.scheduled[number]
        if launch is None or columns is None or schedule is None or not isinstance(other, FusedGroup):
            return False
        found = self.target.joined(launch, schedule, columns)
        if found is None:
            return False
        self.scheduled[before] = ScheduledGroup(group, *found)
        del self.scheduled[number]
        self.joined[group] = [other]
        for node in [root.target for root in other.roots]:
            self.fusion.replace_writer(node, other, group)
        return True

    def chain_at(self, number: int) -> Chain | None:
        """The chain that a step is a part of; None if there is none."""
        return self._chain_of.get(number)

    def _attach_kernels(self) -> None:
        """Attach kernels to calls whose results they read, where possible."""
        planned = {group: (launch, schedule) for group, launch, schedule in self.scheduled}
        readers: dict[Node, list[Group]] = {}
        for group, launch, _ in self.scheduled:
            for node in dict.fromkeys(self.read_by(group, launch)):
                readers.setdefault(node, []).append(group)
        for group in reversed(self.fusion.groups):
            if isinstance(group, RoutineGroup) and self._makes_rectangles(group):
                users = readers.get(group.results[0], ())
                found = self._attachable(group, [(user, planned[user][0]) for user in users if user in planned])
                if found is not None:
                    self.attached[group] = found
                    found.stored = len(users) > 1 or found.result in self.buffers
                    del planned[found.group]
                    planned[group] = found.launch, found.schedule
                    self.fusion.attach(found.group, group)
        finder = FeederFinder(self.target, self.fusion, self.launches, self.routine_call)
        apart = {group for group, found in self.attached.items() if found.whole}
        self.fed = finder.found(planned, readers, self.buffers.keys(), apart)
        if self.attached or self.fed:
            self.scheduled = [ScheduledGroup(group, *planned[group]) for group in self.fusion.dependencies.in_order()]
            self._find_result_slots()

    def _makes_rectangles(self, group: RoutineGroup) -> bool:
        routine: Routine = group.node.primitive.routine
        return len(group.results) == 1 and group.results[0].size > 0 and routine.can_attach(self.target.kind)

    def _attachable(self, group: RoutineGroup, users: Sequence[tuple[Group, Launch | None]]) -> Attachment | None:
        """The kernel to attach to a call, one of those that read its result; None if there is none."""
        (result,) = group.results
        for user, alone in users:
            if not isinstance(user, FusedGroup) or alone is None:
                continue
            if not may_fit(alone, result) or self._tries[user] == MOST_TRIED:
                continue
            self._tries[user] += 1
            if not self.fusion.dependencies.may_attach(user, group):
                continue
            if not self._attaches(group, is_whole(alone), in_memory=True):
                continue
            if user not in self._lanes_apart:
                self._lanes_apart[user] = self.launches.of(user, lanes_apart=True)
            launch = self._lanes_apart[user]
            if launch is None or not fits(launch, alone, result):
                continue
            schedule = self._attached_schedule(user, launch)
            if schedule is not None:
                return Attachment(user, launch, schedule, result)
        return None

    def _attached_schedule(self, user: FusedGroup, launch: Launch) -> Schedule | None:
        """The schedule of a kernel that is attached to a call, whichever call that is; None if it cannot be."""
        if user not in self._attached_schedules:
            found = self._attached_schedules[user] = self.target.attached_schedule(launch)
            if CHECKS and found is not None:
                launch.check()
                found.check(launch)
        return self._attached_schedules[user]

    def _attaches(self, group: RoutineGroup, whole: bool, in_memory: bool) -> bool:
        """Whether a call can have an attached kernel. ``whole``: the kernel needs whole rows. ``in_memory``: the result
        of the call is made in memory."""
        routine: Routine = group.node.primitive.routine
        return routine.attaches(self.routine_call(group), whole, in_memory, self.target.kind)

    def _find_result_slots(self) -> None:
        """Decide where results are made that only attached kernels read: in the memory of what the kernel stores,
        unless an input that the step reads gives that memory; else in scratch memory, if they fit there; else in memory
        of their own."""
        steps = self.accesses()
        nodes = list(self.inputs)
        giver = {taker: nodes[given] for given, taker in self.donations()}
        for (group, *_), step in zip(self.scheduled, steps, strict=True):
            found = self.attached.get(group)
            if found is not None and not found.stored:
                for node in [root.target for root in found.group.roots]:
                    given = node in self.buffers and giver.get(self.buffers[node]) in step.read
                    if not given and len(self.fusion.stored[node]) == 1 and may_share(step, found.result, node):
                        found.target = node
                        break
                assert isinstance(group, RoutineGroup)
                found.stored = found.target is None and not self._attaches(group, found.whole, in_memory=False)
                if not found.stored:
                    del self.fusion.stored[found.result]

    def accesses(self) -> list[Accesses]:
        """What each step reads and writes, in order. A step with nothing to do may be outside of the chain whose steps
        write the other parts of an array."""
        stored: dict[Group, set[Node]] = {group: set() for group, *_ in self.scheduled}
        inside = {node for chain in self.chains for node in chain.inside}
        idle = {group for group, launch, _ in self.scheduled if launch is None and isinstance(group, FusedGroup)}
        for node, writers in self.fusion.stored.items():
            for group in writers:
                if node not in inside or group not in idle:
                    stored[group].add(node)
        steps = [
            self._accesses_of(group, launch, schedule, stored[group]) for group, launch, schedule in self.scheduled
        ]
        for chain in reversed(self.chains):
            parts = steps[chain.first : chain.last + 1]
            read = {node for x in parts for node in x.read} - chain.inside.keys()
            written = {node for x in parts for node in x.written} - chain.inside.keys()
            steps[chain.first : chain.last + 1] = [Accesses(read, written, None, None, is_call=True)]
        return steps

    def _accesses_of(
        self, group: Group, launch: Launch | None, schedule: Schedule | None, written: set[Node]
    ) -> Accesses:
        read = set(self.read_by(group, launch))
        found = self.attached.get(group)
        if found is None or not isinstance(group, RoutineGroup):
            return Accesses(read, written, launch, schedule, isinstance(group, RoutineGroup))
        made = {found.result} if found.stored else {found.target} if found.target is not None else set()
        operands = set(self._read_by_call(group))
        return Accesses(read, written, launch, schedule, False, Accesses(operands, made, None, None, True))

    def donations(self) -> list[tuple[int, int]]:
        """Pairs of an input and a new buffer that may take its memory."""
        return Touches(self.accesses()).donations(self.inputs, self._shown(), self.buffers, self.homes)

    def check(self, slots: Placement, arena: int, found: list[tuple[int, int]]) -> None:
        """Raise if memory is read too early or too late. ``arena`` is the size of the memory for temporaries, ``found``
        are the donations."""
        steps = self.accesses()
        check_memory(steps, slots, self.layout.arena, arena, self.inputs, self.homes)
        check_donations(steps, found, self.inputs, self._shown(), self.buffers, self.homes)

    def _shown(self) -> set[int]:
        """The inputs that outputs show."""
        return {output.number for output in self.outputs if output.from_input}

    def slots(self) -> tuple[Placement, int]:
        """The slot in the table and the byte offset of everything in memory, and the size of the memory for
        temporaries."""
        layout = self.layout
        slots: dict[object, Place] = {node: (layout.input(number), 0) for node, number in self.inputs.items()}
        slots.update((node, (layout.output(number), 0)) for node, number in self.buffers.items())
        intervals = self.lifetimes()
        offsets, size = arrange(list(intervals.values()))
        slots.update((node, (layout.arena, offset)) for node, offset in zip(intervals, offsets, strict=True))
        slots.update((node, slots[home]) for node, home in self.homes.items())
        slots.update((node, slots[home]) for node, home in self.made_in_place().items() if home in slots)
        slots.update((feeder.kernel.result, (layout.arena, 0)) for feeder in self.fed.values())
        return slots, size

    def made_in_place(self) -> dict[Node, Node]:
        """The results that only attached kernels read, each with the node whose memory its accesses are counted for."""
        left_out = [found for found in self.attached.values() if not found.stored]
        return {found.result: found.target or found.group.roots[0].target for found in left_out}

    def lifetimes(self) -> dict[Node | RoutineGroup | Chain, Interval]:
        """For each temporary, the step that writes it first and the one that reads it last; the same for the scratch
        memory of a call, by its group, and that of a chain, whose steps are all done at once."""
        position = {group: number for number, (group, *_) in enumerate(self.scheduled)}
        last: dict[Node, int] = {}
        for number, (group, launch, _) in enumerate(self.scheduled):
            for base in self.read_by(group, launch):
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
                    intervals[home] = Interval(node.nbytes, first, final)
        for group, number in position.items():
            scratch = self.scratch_of(group)
            if scratch and isinstance(group, RoutineGroup):
                intervals[group] = Interval(scratch, number, number)
        intervals.update((one, Interval(one.units * one.scratch, one.first, one.last)) for one in self.chains)
        return intervals

    def _spans(self) -> tuple[list[int], list[int]]:
        """For each step, the first and the last of the steps that are done together with it."""
        begins, ends = list(range(len(self.scheduled))), list(range(len(self.scheduled)))
        for chain in self.chains:
            for number in range(chain.first, chain.last + 1):
                begins[number], ends[number] = chain.first, chain.last
        return begins, ends

    def read_by(self, group: Group, launch: Launch | None) -> list[Node]:
        """The nodes in memory that a step reads."""
        nodes = self._read_by_call(group) if isinstance(group, RoutineGroup) else []
        if launch is not None:
            nodes += launch.operands
        found = self.attached.get(group)
        return nodes if found is None or found.stored else [node for node in nodes if node is not found.result]

    def _read_by_call(self, group: RoutineGroup) -> list[Node]:
        """The nodes that a call reads, and those that its feeder reads."""
        nodes = [layout.base for layout in self.operands(group)]
        feeder = self.fed.get(group)
        if feeder is None:
            return nodes
        kernel = feeder.kernel
        return [node for node in nodes + kernel.launch.operands if node is not kernel.result]

    def routine_call(self, group: RoutineGroup, slots: Placement | None = None) -> RoutineCall:
        """The description of a call for the routine, without the kernels that are parts of its step. Without ``slots``
        it is not known yet where anything is in memory."""
        node = group.node
        operands = []
        for source, layout in zip(node.inputs, self.operands(group), strict=True):
            slot, offset = (0, 0) if slots is None else slots[layout.base]
            offset += layout.offset * source.dtype.size
            operands.append(Operand(source.shape, source.dtype, layout.strides, slot, offset, layout.factors))
        results = []
        for x in group.results:
            start = (0, 0) if slots is None else slots[x]
            results.append(Operand(x.shape, x.dtype, contiguous_strides(x.shape), *start))
        nowhere = self.layout.arena, 0
        scratch = nowhere if slots is None else slots.get(group, nowhere)
        inputs = 0 if slots is None else self.layout.inputs
        return RoutineCall(node.keywords, tuple(operands), tuple(results), scratch, inputs=inputs)

    def operands(self, group: RoutineGroup) -> list[Layout]:
        """The layouts of a routine's inputs."""
        layouts = [self.fusion.operand(group, number) for number in range(len(group.node.inputs))]
        return [layout for layout in layouts if layout is not None]

    def scratch_of(self, group: Group) -> int:
        """How many bytes of scratch memory a group needs."""
        if not isinstance(group, RoutineGroup):
            return 0
        routine: Routine = group.node.primitive.routine
        return routine.scratch_on(group.node, self.division.target_of(group).kind)
