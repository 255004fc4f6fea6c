"""Descriptions of plans: records of their steps, and the uses of temporary memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.compiler.fusion.groups import FusedGroup, Group, RoutineGroup
from weft.compiler.kernel import Launch
from weft.compiler.target import Schedule
from weft.graph.node import Node

from .arena import Interval, arrange
from .attaching import Attachment
from .chains import Chain
from .making_steps import PlannedStep
from .planner import Planner
from .records import (
    StepRecord,
    StepResult,
    Temporary,
    call_record,
    chain_record,
    kernel_record,
    with_attached,
    with_feeder,
)


class Description(NamedTuple):
    """A description of a plan: a record of each step, the planned graph, the temporaries.

    ``copies`` are nodes that are read in place of an input, by node and position of the input.
    """

    records: list[StepRecord]
    inputs: list[Node]
    outputs: list[Node]
    copies: dict[tuple[Node, int], Node]
    temporaries: list[Temporary]

    def source(self, node: Node, position: int) -> Node:
        """The node that is read as one of the inputs of ``node``."""
        return self.copies.get((node, position), node.inputs[position])


class Describer:
    """Describes what was planned. ``computed`` are the nodes that each group was seen to compute."""

    def __init__(self, planner: Planner, computed: Mapping[Group, Iterable[Node]]) -> None:
        self.planner, self.computed = planner, computed

    def description(self, steps: Iterable[PlannedStep]) -> Description:
        """The description of a plan with these steps."""
        planned = list(steps)
        records = [self.record(step) for step in planned]
        intervals = self.planner.lifetimes()
        offsets, _ = arrange(list(intervals.values()))
        temporaries = [
            Temporary(self._shown_as(key), not isinstance(key, Node), offset, size, first, last)
            for (key, (size, *_)), offset, (first, last) in zip(
                intervals.items(), offsets, self._spans(planned, intervals.values()), strict=True
            )
            if size and first <= last
        ]
        copies = {
            (key, 0) if isinstance(key, Node) else (key[0].node, key[1]): copy
            for key, copy in self.planner.fusion.copies.items()
        }
        return Description(records, list(self.planner.inputs), list(self.planner.wanted), copies, temporaries)

    def _spans(self, planned: Sequence[PlannedStep], intervals: Iterable[Interval]) -> Iterator[tuple[int, int]]:
        """The first and the last step of each interval, as numbers of records. A chain has a single record, a call may
        have several, and a group that computes no elements has none."""
        position = {group: number for number, (group, *_) in enumerate(self.planner.scheduled)}
        begins = [position[one.group] if one.chain is None else one.chain.first for one in planned]
        ends = [position[one.group] if one.chain is None else one.chain.last for one in planned]
        for _, first, last in intervals:
            yield bisect_left(ends, first), bisect_right(begins, last) - 1

    def _shown_as(self, key: Node | RoutineGroup | Chain) -> Node:
        """The node that temporary memory is for; for a chain, the first of its temporaries."""
        if isinstance(key, Chain):
            return next(iter(key.inside))
        return key if isinstance(key, Node) else key.node

    def record(self, planned: PlannedStep) -> StepRecord:
        """The record of a step."""
        return self._record_here(planned)._replace(runs_on=self.planner.division.runs_on(planned.group))

    def _record_here(self, planned: PlannedStep) -> StepRecord:
        group, step, chain = planned.group, planned.step, planned.chain
        if chain is not None:
            steps = [self.record(one) for one in planned.chained]
            return chain_record(steps, chain.turns, step.units, step.grain, chain.inside)
        if isinstance(group, RoutineGroup):
            node = group.node
            feeder = self.planner.fed.get(group)
            inputs = [
                (layout.base, layout.offset, *layout.loops(source.shape))
                for source, layout in zip(node.inputs, self.planner.operands(group), strict=True)
                if feeder is None or layout.base is not feeder.kernel.result
            ]
            found = self.planner.attached.get(group)
            results = [] if found is not None and not found.stored else group.results
            written = [self._written(result) for result in results]
            record = call_record(node, inputs, step.units, step.grain, planned.phase, written)
            if found is not None:
                record = with_attached(record, self._record_of(found), node)
            return record if feeder is None else with_feeder(record, self._record_of(feeder.kernel))
        assert planned.launch is not None
        assert planned.schedule is not None
        return self._kernel_record(group, planned.launch, planned.schedule)

    def _record_of(self, found: Attachment) -> StepRecord:
        return self._kernel_record(found.group, found.launch, found.schedule)

    def _kernel_record(self, group: Group, launch: Launch, schedule: Schedule) -> StepRecord:
        assert isinstance(group, FusedGroup)
        groups = [group, *self.planner.joined.get(group, ())]
        written = [self._written(root.target) for one in groups for root in one.roots]
        updated = [root.target for one in groups for root in one.roots if root.write is not None]
        nodes = {node for one in groups for node in self.computed.get(one, ())}
        return kernel_record(launch, schedule, {*nodes, *updated}, written)

    def _written(self, node: Node) -> StepResult:
        number = self.planner.buffers.get(node)
        for position, output in enumerate(self.planner.outputs):
            if not output.from_input and output.number == number:
                return StepResult(position, node)
        return StepResult(None, node)
