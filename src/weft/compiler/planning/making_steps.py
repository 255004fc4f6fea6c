"""Makes the steps of a plan, when it is known where everything is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from weft.compiler.codegen import batches
from weft.compiler.fusion.groups import Group, RoutineGroup
from weft.compiler.kernel import Launch, numbers_of
from weft.compiler.target import Schedule
from weft.primitives.routine import Attached, Routine, RoutineCall, RoutineStep
from weft.runtime.steps import Place, Placement, Step

from .attaching import Attachment
from .chains import Chain, ChainTable, ScheduledGroup
from .planner import Planner
from .records import WHOLE, Phase

MOST_REPEATED = 64
"""After so many steps in turn whose code waits because earlier steps need it, too, the batch is made: more steps of an
unrolled loop would only be made twice."""


class PlannedStep(NamedTuple):
    """A step and what it was made from; for the steps of a call, the ``phase``; for a ``chain``, its steps."""

    group: Group
    launch: Launch | None
    schedule: Schedule | None
    step: Step
    work: int
    phase: Phase = WHOLE
    chain: Chain | None = None
    chained: Sequence[PlannedStep] = ()


class TableEntries(NamedTuple):
    """The slots of nodes in memory, and of constants, in the table that steps use."""

    slots: Placement
    constant: Callable[[int], int]


class _Nowhere(dict[object, Place]):
    """Slots for generating code, which does not depend on where anything is in memory."""

    def __missing__(self, key: object) -> Place:
        return 0, 0


def generate_code(planner: Planner) -> None:
    """Generate the code of all steps, before it is known where everything is in memory."""
    StepMaker(planner, _Nowhere()).steps()


class StepMaker:
    """Makes the steps of what was planned; ``slots`` say where everything is in memory."""

    def __init__(self, planner: Planner, slots: Placement) -> None:
        self.planner, self.slots = planner, slots

    def steps(self) -> list[PlannedStep]:
        """All steps in order. Groups without work are left out. Code that is not cached is generated together."""
        makers = self._makers()
        with batches.opened() as batch:
            made = _made_by(makers, batch)
        return [step for steps in made for step in steps]

    def _makers(self) -> list[Callable[[], Sequence[PlannedStep]]]:
        """Functions that make the steps, in order: one for each chain, and for each group that is in no chain."""
        table = TableEntries(self.slots, self.planner.layout.constant)
        makers: list[Callable[[], Sequence[PlannedStep]]] = []
        for number, scheduled in enumerate(self.planner.scheduled):
            chain = self.planner.chain_at(number)
            if chain is None:
                makers.append(partial(self._steps_of, scheduled, table))
            elif number == chain.first:
                makers.append(partial(self._chain, chain))
        return makers

    def _steps_of(self, scheduled: ScheduledGroup, table: TableEntries) -> Sequence[PlannedStep]:
        group, launch, schedule = scheduled
        if isinstance(group, RoutineGroup):
            return self._call(group, table)
        if launch is not None and schedule is not None and schedule.units:
            return [self._launch(group, launch, schedule, table)]
        return []

    def _chain(self, chain: Chain) -> list[PlannedStep]:
        """The step of a chain."""
        own = ChainTable(chain, self.slots, self.slots[chain], self.planner.made_in_place())
        table = TableEntries(own, lambda number: own.plain(self.planner.layout.constant(number)))
        parts = self.planner.scheduled[chain.first : chain.last + 1]
        made = batches.each([partial(self._steps_of, scheduled, table) for scheduled in parts])
        steps = [one for part in made for one in part]
        step = self.planner.target.chained(chain.turns, chain.units, own.entries, [one.step for one in steps])
        work = sum([one.work for one in steps])
        return [PlannedStep(steps[0].group, None, None, step, work, chain=chain, chained=steps)]

    def _call(self, group: RoutineGroup, table: TableEntries) -> list[PlannedStep]:
        node = group.node
        if not any(result.size for result in group.results):
            return []
        routine: Routine = node.primitive.routine
        target = self.planner.division.target_of(group)
        routine.require(node.primitive.name, node.inputs, (target.kind,))
        made = routine.steps(self._routine_call(group, table), target.kind)
        codes = batches.each([partial(target.routine_code, step.code) for step in made])
        made = [step._replace(code=code) for step, code in zip(made, codes, strict=True)]
        whole = sum([step.work for step in made])
        phases = [Phase(number, len(made), step.work, whole, step.way) for number, step in enumerate(made)]
        beside = sum([kernel.launch.work for kernel in self._kernels_of(group)])
        return [
            PlannedStep(group, None, None, self._step(group, None, x, table), x.work + beside, phase)
            for x, phase in zip(made, phases, strict=True)
        ]

    def _routine_call(self, group: RoutineGroup, table: TableEntries) -> RoutineCall:
        """The description of a call for the routine, with the kernels that are parts of its step."""
        found, feeder = self.planner.attached.get(group), self.planner.fed.get(group)
        attached = None if found is None else self._numbered(found, table)
        fed = None if feeder is None else (feeder.position, self._numbered(feeder.kernel, table))
        return self.planner.routine_call(group, table.slots)._replace(attached=attached, feeder=fed)

    def _numbered(self, found: Attachment, table: TableEntries) -> Attached:
        """A kernel that runs as a part of the step of a call, with its numbers."""
        numbers = numbers_of(found.launch, found.schedule.numbers.values(), *table)
        return found.numbered(self.planner.target.code(found.launch.kernel, found.schedule), numbers)

    def _kernels_of(self, group: RoutineGroup) -> list[Attachment]:
        """The kernels that run as parts of the step of a call."""
        found, feeder = self.planner.attached.get(group), self.planner.fed.get(group)
        return [*([feeder.kernel] if feeder is not None else []), *([found] if found is not None else [])]

    def _launch(self, group: Group, launch: Launch, schedule: Schedule, table: TableEntries) -> PlannedStep:
        numbers = numbers_of(launch, schedule.numbers.values(), *table)
        code = self.planner.division.target_of(group).code(launch.kernel, schedule)
        step = self._step(group, launch, Step(code, numbers, schedule.units, schedule.grain), table)
        return PlannedStep(group, launch, schedule, step, launch.work)

    def _step(self, group: Group, launch: Launch | None, made: Step | RoutineStep, table: TableEntries) -> Step:
        """A step for the engine, from the step that the group's target made."""
        code = made.code
        if self.planner.division.target_of(group) is not self.planner.target:
            read, scratch = self.planner.read_by(group, launch), self.planner.scratch_of(group)
            code = self.planner.division.with_memory(
                code, group, read, self.planner.fusion.inputs, table.slots, scratch
            )
        return Step(code, list(made.numbers), made.units, made.grain)


def _made_by(
    makers: Sequence[Callable[[], Sequence[PlannedStep]]], batch: batches.Batch
) -> list[Sequence[PlannedStep]]:
    """The results of all ``makers``, in order. A maker whose code was deferred is called again after the batch was
    made."""
    made: dict[int, Sequence[PlannedStep]] = {}
    while len(made) < len(makers):
        before, repeated = (len(made), len(batch.made)), 0
        for number, maker in enumerate(makers):
            if number in made:
                continue
            waiting = len(batch.waiting)
            try:
                made[number] = maker()
            except batches.Deferred:
                repeated = 0 if len(batch.waiting) > waiting else repeated + 1
            if repeated == MOST_REPEATED:
                batch.make()
                repeated = 0
        batch.make()
        if before == (len(made), len(batch.made)):
            raise AssertionError("code that was made is asked for as if it were not")
    return [made[number] for number in range(len(makers))]
