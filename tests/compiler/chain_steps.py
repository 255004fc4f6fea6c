"""Steps of plans that tests of chains write by hand, and a target for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from weft import dtypes
from weft.compiler.cpu.target import CpuTarget
from weft.compiler.fusion.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.kernel import Access, Instruction, Kernel, Launch
from weft.compiler.planning.attaching import Attachment
from weft.compiler.planning.chains import ChainFinder, ScheduledGroup
from weft.compiler.planning.feeding import Feeder
from weft.compiler.target import FusionLimits, Schedule, Target
from weft.graph.node import Node, Shape
from weft.primitives import Primitive
from weft.primitives.routine import Routine, RoutineCall, RoutineStep
from weft.runtime.memory import contiguous_strides

STACK = (4, 16, 16)
PART = 16 * 16 * 4
"""Bytes of a matrix."""
TURN = 16 * 16
"""Elements of a matrix."""


class Turns(Schedule):
    """Can be divided if each turn has as many rows as every other one."""

    grain = 1

    def __init__(self, units: int = 4) -> None:
        self.units = units

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        raise NotImplementedError

    def divided(self, launch: Launch, turns: int) -> Schedule | None:
        return Turns() if launch.row_count % turns == 0 else None


class Stacks(Target):
    """A target that does ``units`` turns at once. It has no schedule for a kernel of ``foreign`` lanes."""

    kind = key = "stacks"
    foreign = 7
    limits: FusionLimits = replace(
        CpuTarget.limits, uncached_size=4 * PART, turn_size=PART // 4, turn_results=0, chained_size=0
    )

    def __init__(self, units: int = 2, uncached_size: int = 4 * PART) -> None:
        super().__init__()
        self.units, self.asked = units, 0
        self.limits = replace(self.limits, uncached_size=uncached_size)

    def chain_units(self, turns: int) -> int:
        self.asked += 1
        return self.units

    def schedule(self, launch: Launch) -> Schedule | None:
        return None if launch.lane_extent == self.foreign else Turns()

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Any:
        raise NotImplementedError


def no_steps(call: RoutineCall) -> RoutineStep:
    raise NotImplementedError


class Whole(Primitive):
    """An operation that is computed as a whole, or, if it is ``stacked``, matrix by matrix."""

    def __init__(self, stacked: bool = True, scratch: int = 0) -> None:
        self.name = "whole"
        self.routine = Routine(scratch=lambda node: scratch)
        self.routine.on(Stacks.kind, stacked=stacked)(no_steps)


PRODUCT, IN_ANY_ORDER, WITH_SCRATCH = Whole(), Whole(stacked=False), Whole(scratch=64)


def value(shape: Shape = STACK) -> Node:
    return Node(PRODUCT, (), (), shape, dtypes.float32, None)


def at(node: Node, row: int = TURN, lane: int = 1, offset: int = 0, computed: bool = False) -> Access:
    """An access of a kernel whose one row axis counts matrices, or other parts."""
    return Access(node.dtype, (row,), (), lane, offset, ((0, 1),) if computed else (), node)


class Steps:
    """Steps of a plan, which a test adds in order. Nodes that no step stores are inputs."""

    def __init__(self) -> None:
        self.scheduled: list[ScheduledGroup] = []
        self.stored: dict[Node, list[Group]] = {}
        self.attached: dict[Group, Attachment] = {}
        self.fed: dict[Group, Feeder] = {}
        self.apart: dict[FusedGroup, Launch] = {}
        self.layouts: dict[Group, list[Layout]] = {}

    def call(
        self, *operands: Node | Layout, shape: Shape = STACK, primitive: Primitive = PRODUCT, result: Node | None = None
    ) -> Node:
        """The result of a call; an operand may be a layout of the shape of the result."""
        layouts = [x if isinstance(x, Layout) else Layout(x, contiguous_strides(x.shape), 0) for x in operands]
        shapes = [shape if isinstance(x, Layout) else x.shape for x in operands]
        sources = tuple([Node(PRODUCT, (), (), one, dtypes.float32, None) for one in shapes])
        node = Node(primitive, sources, (), shape, dtypes.float32, None)
        result = result or node
        group = RoutineGroup(len(self.scheduled), node=node, results=[result])
        self.layouts[group] = layouts
        self.add(ScheduledGroup(group, None, None), [result])
        return result

    def kernel(
        self,
        reads: Sequence[Node | Access],
        *writes: Node | Access,
        rows: int = 4,
        lanes: int = TURN,
        schedule: Schedule | None = None,
        constants: int = 0,
        combine: Any = None,
    ) -> FusedGroup:
        """A kernel that reads and writes nodes."""
        launch = launched(reads, writes, rows, lanes, constants, combine)
        group = FusedGroup(len(self.scheduled))
        self.add(ScheduledGroup(group, launch, schedule or Turns()), [_node(x) for x in writes])
        return group

    def attach(self, call: Node, reads: Sequence[Node | Access], *writes: Node | Access, stored: bool = True) -> None:
        """Attach a kernel to the call that was added last, whose result the kernel reads."""
        group = self.scheduled.pop().group
        launch = launched(reads, writes)
        self.attached[group] = Attachment(FusedGroup(-1), launch, Turns(), call, stored)
        self.add(ScheduledGroup(group, launch, Turns()), [_node(x) for x in writes])
        if not stored:
            del self.stored[call]

    def feed(self, operand: Node, reads: Sequence[Node | Access]) -> None:
        """Let a kernel feed an operand of the call that was added last."""
        kernel = Attachment(FusedGroup(-1), launched(reads, [operand]), Turns(), operand, stored=False)
        self.fed[self.scheduled[-1].group] = Feeder(0, kernel)

    def add(self, step: ScheduledGroup, written: Sequence[Node]) -> None:
        self.scheduled.append(step)
        for node in written:
            writers = self.stored.setdefault(node, [])
            if step.group not in writers:
                writers.append(step.group)

    def finder(
        self, target: Target | None = None, fixed: Collection[Node] = (), shared: Collection[Node] = ()
    ) -> ChainFinder:
        accessed = [layout.base for layouts in self.layouts.values() for layout in layouts]
        accessed += [node for step in self.scheduled if step.launch for node in step.launch.operands]
        accessed += [node for feeder in self.fed.values() for node in feeder.kernel.launch.operands]
        passed_on = {feeder.kernel.result for feeder in self.fed.values()}
        inputs = {node for node in accessed if node not in self.stored} - passed_on
        return ChainFinder(
            target or Stacks(),
            self.scheduled,
            self.attached,
            self.fed,
            self.stored,
            fixed=inputs | set(fixed),
            shared=shared,
            operands=lambda group: self.layouts[group],
            apart=self.apart.get,
        )

    def chains(self, target: Target | None = None, fixed: Collection[Node] = ()) -> list[tuple[int, int, list[Node]]]:
        """The first and last step of each chain, and the arrays inside it: those that are only needed turn by turn."""
        return [(one.first, one.last, list(one.inside)) for one in self.finder(target, fixed).found()]


def launched(
    reads: Sequence[Node | Access],
    writes: Sequence[Node | Access],
    rows: int = 4,
    lanes: int = TURN,
    constants: int = 0,
    combine: Any = None,
) -> Launch:
    instructions = [Instruction("load", dtypes.float32, (), access=_access(x)) for x in reads]
    instructions += [Instruction("scalar", dtypes.float32, (), scalar=number) for number in range(constants)]
    stores = [Instruction("store", dtypes.float32, (0,), access=_access(x), combine=combine) for x in writes]
    return Launch(Kernel(1, 0, "parallel", instructions + stores), (rows,), (), lanes)


def _access(x: Node | Access) -> Access:
    return at(x) if isinstance(x, Node) else x


def _node(x: Node | Access) -> Node:
    node: Node = x if isinstance(x, Node) else x.operand
    return node


def three_steps(steps: Steps, **options: Any) -> tuple[Node, Node]:
    """Add a call, a kernel, and a call whose result nothing reads. Returns the results of the first two."""
    product, made = steps.call(value()), value()
    steps.kernel([product], made, **options)
    steps.call(made)
    return product, made
