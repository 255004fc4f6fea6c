"""Which steps of a plan are a chain, and what is inside of it: steps and a target that are written here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

import weft.core as mx
from weft import dtypes
from weft.compiler.attaching import Attachment
from weft.compiler.chains import MOST_ENTRIES, ChainFinder, ScheduledGroup
from weft.compiler.cpu.target import CpuTarget
from weft.compiler.feeding import Feeder
from weft.compiler.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.kernel import Access, Instruction, Kernel, Launch
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
    """Does as many turns at once as it was made for. It has no schedule for a kernel of ``foreign`` lanes."""

    kind = key = "stacks"
    foreign = 7
    limits: FusionLimits = replace(CpuTarget.limits, uncached_size=4 * PART)

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
    """An operation that is computed as a whole; each matrix by itself, if it is ``stacked``."""

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
        """Attach a kernel to the call that was added last, whose result it reads."""
        group = self.scheduled.pop().group
        launch = launched(reads, writes)
        self.attached[group] = Attachment(FusedGroup(-1), launch, Turns(), call, stored)
        self.add(ScheduledGroup(group, launch, Turns()), [_node(x) for x in writes])
        if not stored:
            del self.stored[call]

    def feed(self, operand: Node, reads: Sequence[Node | Access]) -> None:
        """Have an operand of the call that was added last made by a kernel that feeds it."""
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
        """First and last step of each chain, and what is inside."""
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
    """A call, a kernel, a call, whose result nobody reads; what the first two make."""
    product, made = steps.call(value()), value()
    steps.kernel([product], made, **options)
    steps.call(made)
    return product, made


def test_a_chain() -> None:
    steps = Steps()
    product, made = three_steps(steps)
    unread = steps.scheduled[2].group.results[0]  # type: ignore[attr-defined]  # it is a call
    result = steps.call(made)
    (chain,) = steps.finder(fixed=[result]).found()
    assert (chain.first, chain.last, chain.turns, chain.units) == (0, 3, 4, 2)
    assert chain.inside == {product: 0, made: PART, unread: 0}
    assert chain.scratch == 2 * PART


def test_the_result_of_the_last_step_is_not_inside_if_somebody_asked_for_it() -> None:
    steps = Steps()
    x = value()
    product = steps.call(x)
    result = steps.call(product)
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]


def test_steps_that_are_left_out_at_both_ends() -> None:
    """They could be done turn by turn, but access nothing that is inside."""
    steps = Steps()
    x, outputs = value(), [value(), value()]
    steps.kernel([x], outputs[0])
    product = steps.call(x)
    result = steps.call(product)
    steps.kernel([x], outputs[1])
    assert steps.chains(fixed=[result, *outputs]) == [(1, 2, [product])]


def test_one_step_is_no_chain() -> None:
    """Also if nobody reads what it makes, or it reads that itself."""
    steps = Steps()
    product = steps.call(value())
    assert steps.chains() == []
    steps.kernel([value()], value())
    assert steps.chains(fixed=[product]) == []


def test_a_chain_ends_with_a_kernel() -> None:
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product], result)
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]


def test_a_step_is_a_part_of_one_chain() -> None:
    """The last call reads other matrices of what the kernel makes: it would be a chain with the call before it."""
    steps = Steps()
    product, made, output = steps.call(value()), value(), value()
    steps.kernel([product], made, output)
    second = steps.call(made)
    last = steps.call(Layout(output, (-TURN, 16, 1), 3 * TURN), second)
    assert steps.chains(fixed=[output, last]) == [(0, 2, [product, made])]


def test_a_call_behind_a_chain_begins_the_next_one() -> None:
    steps = Steps()
    first = steps.call(value())
    second = steps.call(first)
    turned = steps.call(Layout(second, (-TURN, 16, 1), 3 * TURN))
    last = steps.call(turned)
    assert steps.chains(fixed=[last]) == [(0, 1, [first]), (2, 3, [turned])]


def test_no_stack() -> None:
    steps = Steps()
    result = steps.call(steps.call(value((1, 64, 64)), shape=(1, 64, 64)), shape=(1, 64, 64))
    assert steps.chains(Stacks(units=1), fixed=[result]) == []


def test_a_target_without_chains() -> None:
    steps = Steps()
    three_steps(steps)
    assert steps.chains(Stacks(units=0)) == []


def test_there_is_nothing_to_look_for_if_temporaries_are_small() -> None:
    """Nor if they are the memory of the program's results."""
    steps = Steps()
    product, _ = three_steps(steps)
    result = steps.scheduled[2].group.results[0]  # type: ignore[attr-defined]  # it is a call
    few = Stacks(uncached_size=12 * PART + 1)
    assert steps.chains(few) == []
    assert few.asked == 0
    fixed = Stacks(uncached_size=8 * PART)
    assert steps.chains(fixed, fixed=[product, result]) == []
    assert fixed.asked == 0


@pytest.mark.parametrize("limit", [4 * PART, 4 * PART + 1])
def test_how_much_has_to_be_inside(limit: int) -> None:
    """Others may be large."""
    steps = Steps()
    x, large = value(), value((64, 16, 16))
    product = steps.call(x)
    result = steps.call(product)
    steps.kernel([large], value((64, 16, 16)), rows=1, lanes=64 * TURN)
    found = steps.chains(Stacks(uncached_size=limit), fixed=[result])
    assert found == ([(0, 1, [product])] if limit == 4 * PART else [])


@pytest.mark.parametrize(("units", "there"), [(4, True), (5, False)])
def test_scratch_memory_of_all_units_is_no_larger_than_what_is_inside(units: int, there: bool) -> None:
    steps = Steps()
    result = steps.call(steps.call(value()))
    assert bool(steps.chains(Stacks(units), fixed=[result])) is there


@pytest.mark.parametrize("primitive", [IN_ANY_ORDER, WITH_SCRATCH])
@pytest.mark.parametrize("first", [True, False])
def test_calls_that_are_in_no_chain(primitive: Primitive, first: bool) -> None:
    """Units in another order than that of matrices, or with scratch memory of the run."""
    steps = Steps()
    product = steps.call(value(), primitive=primitive if first else PRODUCT)
    result = steps.call(product, primitive=PRODUCT if first else primitive)
    assert steps.chains(fixed=[result]) == []


def test_calls_of_other_stacks() -> None:
    """Of six matrices, which four turns cannot share, while two can."""
    for count, there in ((6, False), (2, True)):
        steps = Steps()
        product = steps.call(value(), shape=(4, 12, 16))
        layout = Layout(product, (4 * 12 * 16 // count, 16, 1), 0)
        result = steps.call(layout, shape=(count, 4 * 12 // count, 16))
        assert bool(steps.chains(Stacks(uncached_size=64), fixed=[result])) is there


@pytest.mark.parametrize(("rows", "lanes"), [(3, TURN), (4, Stacks.foreign)])
def test_kernels_that_cannot_be_done_turn_by_turn(rows: int, lanes: int) -> None:
    """Rows that turns cannot share; what the target leaves to another one."""
    steps = Steps()
    three_steps(steps, rows=rows, lanes=lanes)
    assert steps.chains() == []


def test_a_kernel_without_units() -> None:
    steps = Steps()
    three_steps(steps, schedule=Turns(units=0))
    assert steps.chains() == []


def test_a_kernel_that_has_nothing_to_do() -> None:
    steps = Steps()
    product = steps.call(value())
    steps.scheduled.append(ScheduledGroup(FusedGroup(1), None, None))
    result = steps.call(product)
    assert steps.chains(fixed=[result]) == []


def test_lanes_that_are_several_axes_are_taken_apart() -> None:
    """All elements are one axis until turns share them; then rows are matrices."""
    steps = Steps()
    product, made = steps.call(value()), value()
    whole = [at(node, row=0) for node in (product, made)]
    group = steps.kernel(whole[:1], *whole[1:], rows=1, lanes=4 * TURN)
    result = steps.call(made)
    assert steps.chains(fixed=[result]) == []
    steps.apart[group] = launched([product], [made])
    assert steps.chains(fixed=[result]) == [(0, 2, [product, made])]
    assert steps.scheduled[1].launch is steps.apart[group]


def test_a_step_is_looked_at_for_each_number_of_turns() -> None:
    """The kernel exchanges the matrices of a pair: a call of two matrices of pairs follows it, one of four does not."""
    steps = Steps()
    product, made = steps.call(value()), value()
    exchanged = [at(product, 2 * TURN, 1, TURN), at(product, 2 * TURN)]
    steps.kernel(exchanged, at(made, 2 * TURN), at(made, 2 * TURN, offset=TURN), rows=2)
    result = steps.call(Layout(made, (2 * TURN, 16, 1), 0), shape=(2, 32, 16))
    (chain,) = steps.finder(fixed=[result]).found()
    assert (chain.first, chain.last, chain.turns) == (0, 2, 2)


def test_accesses_are_looked_at_for_each_number_of_turns() -> None:
    """Each row of the kernel reads the first matrix of its pair: of four turns some read what others make."""
    steps = Steps()
    product, made = steps.call(value()), value()
    first, own = [
        Access(dtypes.float32, (2 * TURN, row), (), 1, 0, (), node) for row, node in ((0, product), (TURN, made))
    ]
    load = Instruction("load", dtypes.float32, (), access=first)
    store = Instruction("store", dtypes.float32, (0,), access=own)
    steps.add(
        ScheduledGroup(FusedGroup(1), Launch(Kernel(2, 0, "parallel", [load, store]), (2, 2), (), TURN), Turns()),
        [made],
    )
    result = steps.call(Layout(made, (2 * TURN, 16, 1), 0), shape=(2, 32, 16))
    (chain,) = steps.finder(fixed=[result]).found()
    assert (chain.first, chain.last, chain.turns) == (0, 2, 2)


@pytest.mark.parametrize("constants", [MOST_ENTRIES - 4, MOST_ENTRIES - 3])
def test_how_many_addresses_and_constants_there_are(constants: int) -> None:
    """Of nodes there are four: the input, two inside, the result. With one constant more, the last step is left out."""
    steps = Steps()
    three_steps(steps, constants=constants)
    assert [chain[1] for chain in steps.chains()] == [2 if constants == MOST_ENTRIES - 4 else 1]


def test_memory_that_is_shared_with_others() -> None:
    steps = Steps()
    product, _ = three_steps(steps)
    assert steps.finder(shared=[product]).found() == []


def test_what_another_turn_makes() -> None:
    steps = Steps()
    product = steps.call(value())
    result = steps.call(Layout(product, (-TURN, 16, 1), 3 * TURN))
    assert steps.chains(fixed=[result]) == []


def test_one_of_several_that_another_turn_makes() -> None:
    steps = Steps()
    x, product = value(), steps.call(value())
    turned = [Layout(node, (-TURN, 16, 1), 3 * TURN) for node in (x, product)]
    result = steps.call(*turned, product)
    assert steps.chains(fixed=[result]) == []


def test_inputs_may_be_read_anywhere() -> None:
    steps = Steps()
    x, product = value(), steps.call(value())
    result = steps.call(Layout(x, (-TURN, 16, 1), 3 * TURN), product)
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]


def test_results_may_be_written_anywhere() -> None:
    """In memory, as others read them after the chain."""
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product], at(result, 16, 1), rows=4)
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]
    assert steps.chains() == [(0, 1, [product])]


@pytest.mark.parametrize("computed", [True, False])
def test_what_several_steps_write_keeps_its_order(computed: bool) -> None:
    """A step that writes in the matrices of other turns is no part of a chain with another one that writes there."""
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product], result)
    steps.kernel([value()], at(result, TURN, computed=computed))
    last = steps.call(product)
    expected = [] if computed else [(0, 3, [product, result])]
    assert steps.chains(fixed=[last]) == expected


def test_a_step_that_reads_what_it_writes_for_another_turn() -> None:
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product, at(result, 0)], result)
    assert steps.chains(fixed=[result]) == []


def test_what_is_added_to_is_read() -> None:
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product], at(result, 16), combine=mx.add)
    assert steps.chains(fixed=[result]) == []


def test_what_was_made_before_is_not_inside() -> None:
    """Nor what is read afterwards."""
    steps = Steps()
    before = value()
    steps.kernel([value()], before, rows=3)  # in no chain
    product = steps.call(before)
    last = steps.call(product)
    steps.kernel([last], value(), rows=3)
    assert steps.chains() == [(1, 2, [product])]


def test_results_that_only_an_attached_kernel_reads() -> None:
    """They are not in memory, and may be anywhere."""
    for stored in (False, True):
        steps = Steps()
        product, made = steps.call(value()), value()
        steps.attach(product, [product], made, stored=stored)
        result = steps.call(made)
        inside = [product, made] if stored else [made]
        assert steps.chains(fixed=[result]) == [(0, 1, inside)]


def test_what_a_kernel_reads_that_feeds_a_call() -> None:
    """It is read by the step of the call; what the kernel makes is not in memory."""
    steps = Steps()
    product, operand = steps.call(value()), value()
    result = steps.call(operand)
    steps.feed(operand, [product])
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]


def test_what_a_kernel_reads_that_feeds_a_call_behind() -> None:
    steps = Steps()
    product, operand = steps.call(value()), value((64, 16))
    result = steps.call(product)
    last = steps.call(operand, shape=(64, 16))
    steps.feed(operand, [product])
    assert steps.chains(fixed=[result, last]) == []


def test_operands_over_several_axes() -> None:
    """Their loops over matrices are those of their factors."""
    steps = Steps()
    product = steps.call(value())
    factors = (((2, 2 * TURN), (2, TURN)), ((16, 16),), ((16, 1),))
    result = steps.call(Layout(product, (), 0, factors))
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]


def test_steps_of_a_chain_are_those_for_turns() -> None:
    steps = Steps()
    three_steps(steps)
    before = steps.scheduled[1]
    steps.finder().found()
    assert steps.scheduled[1].group is before.group
    assert steps.scheduled[1].schedule is not before.schedule
