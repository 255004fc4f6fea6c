"""Which steps of a plan are a chain, by their number, their extents and the number of turns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod

import pytest

from tests.compiler.chain_steps import (
    IN_ANY_ORDER,
    PART,
    PRODUCT,
    STACK,
    TURN,
    WITH_SCRATCH,
    Stacks,
    Steps,
    Turns,
    at,
    launched,
    three_steps,
    value,
)
from weft import dtypes
from weft.compiler.fusion.groups import FusedGroup, Group, Layout
from weft.compiler.kernel import Access, Instruction, Kernel, Launch
from weft.compiler.planning import chains
from weft.compiler.planning.chains import MOST_ENTRIES, PASSING_PART, ScheduledGroup
from weft.compiler.target import Schedule
from weft.graph.node import Node
from weft.primitives import Primitive


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
    """They could be done turn by turn, but access nothing that is inside of the chain."""
    steps = Steps()
    x, outputs = value(), [value(), value()]
    steps.kernel([x], outputs[0])
    product = steps.call(x)
    result = steps.call(product)
    steps.kernel([x], outputs[1])
    assert steps.chains(fixed=[result, *outputs]) == [(1, 2, [product])]


def test_one_step_is_no_chain() -> None:
    """Also if nothing reads its result, or it reads its result itself."""
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
    """The last call reads matrices of other turns of an output of the kernel. Without the kernel it would be a chain
    with the call before it."""
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
    """Nor if they share the memory of the program's results."""
    steps = Steps()
    product, _ = three_steps(steps)
    result = steps.scheduled[2].group.results[0]  # type: ignore[attr-defined]  # it is a call
    few = Stacks(uncached_size=12 * PART + 1)
    assert steps.chains(few) == []
    assert few.asked == 0
    fixed = Stacks(uncached_size=8 * PART)
    assert steps.chains(fixed, fixed=[product, result]) == []
    assert fixed.asked == 0


def test_there_is_nothing_to_look_for_if_a_chain_cannot_access_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporaries of a long program are large together, but not those that one chain may access."""
    monkeypatch.setattr(chains, "MOST_ENTRIES", 3)
    steps = Steps()
    node = value()
    for _ in range(8):
        node = steps.call(node)
    few, enough = Stacks(uncached_size=12 * PART + 1), Stacks(uncached_size=12 * PART)
    assert steps.chains(few) == []
    assert few.asked == 0
    steps.chains(enough)
    assert enough.asked > 0


def test_each_step_is_divided_once_for_each_number_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no chain is found, so that one begins to grow at each call."""
    steps, divided = Steps(), Counter[tuple[Group, int]]()
    node = value()
    for _ in range(8):
        node = steps.call(node)
    target = Stacks(uncached_size=8 * PART)
    target.limits = replace(target.limits, turn_results=2 * PART, turn_size=100 * PART)
    finder = steps.finder(target)

    def counted(step: ScheduledGroup, turns: int) -> ScheduledGroup:
        divided[step.group, turns] += 1
        return step

    monkeypatch.setattr(finder, "_divided", counted)
    assert finder.found() == []
    assert {turns for _, turns in divided} == {2, 4}
    assert set(divided.values()) == {1}


@pytest.mark.parametrize("limit", [4 * PART, 4 * PART + 1])
def test_how_much_has_to_be_inside(limit: int) -> None:
    """A large array outside of the chain makes no difference."""
    steps = Steps()
    x, large = value(), value((64, 16, 16))
    product = steps.call(x)
    result = steps.call(product)
    steps.kernel([large], value((64, 16, 16)), rows=1, lanes=64 * TURN)
    found = steps.chains(Stacks(uncached_size=limit), fixed=[result])
    assert found == ([(0, 1, [product])] if limit == 4 * PART else [])


@pytest.mark.parametrize("size", [PART // 2, PART // 2 + 1])
def test_how_much_a_turn_has_inside_for_each_step(size: int) -> None:
    steps = Steps()
    product = steps.call(value())
    result = steps.call(product)
    target = Stacks()
    target.limits = replace(target.limits, turn_size=size)
    assert steps.chains(target, fixed=[result]) == ([(0, 1, [product])] if size == PART // 2 else [])


@pytest.mark.parametrize(
    ("stack", "most", "turns"),
    [
        ((12,), 2 * PART - 1, 12),
        ((12,), 2 * PART, 6),
        ((12,), 5 * PART, 3),  # five do not divide twelve
        ((12,), 99 * PART, 2),
        ((13,), 5 * PART, 13),
        ((3, 4), 3 * PART, 6),  # four turns would have matrices of two rows of the stack
        ((2, 3), 3 * PART, 2),
    ],
)
def test_a_turn_has_several_small_matrices(stack: tuple[int, ...], most: int, turns: int) -> None:
    steps = Steps()
    shape = (*stack, *STACK[1:])
    result = steps.call(steps.call(value(shape), shape=shape), shape=shape)
    target = Stacks()
    target.limits = replace(target.limits, turn_results=most)
    (chain,) = steps.finder(target, fixed=[result]).found()
    assert chain.turns == turns
    assert chain.scratch == PART * prod(stack) // turns


def test_turns_are_enough_for_all_threads() -> None:
    class Many(Stacks):
        def chain_units(self, turns: int) -> int:
            return 4 if turns >= 4 else 0

    steps = Steps()
    result = steps.call(steps.call(value((12, 16, 16)), shape=(12, 16, 16)), shape=(12, 16, 16))
    target = Many()
    target.limits = replace(target.limits, turn_results=99 * PART)
    (chain,) = steps.finder(target, fixed=[result]).found()
    assert (chain.turns, chain.units) == (4, 4)


def test_a_turn_has_one_matrix_if_a_step_cannot_be_divided_otherwise() -> None:
    class ByMatrix(Turns):
        def divided(self, launch: Launch, turns: int) -> Schedule | None:
            return self if turns == STACK[0] else None

    class Target(Stacks):
        def schedule(self, launch: Launch) -> Schedule | None:
            return ByMatrix()

    steps, target = Steps(), Target()
    three_steps(steps, schedule=ByMatrix())
    target.limits = replace(target.limits, turn_results=2 * PART)
    (chain,) = steps.finder(target).found()
    assert (chain.first, chain.last, chain.turns) == (0, 2, STACK[0])


@pytest.mark.parametrize(("part", "there"), [(PASSING_PART - 2, True), (PASSING_PART - 1, False)])
def test_temporaries_that_are_a_small_part_of_what_is_read(part: int, there: bool) -> None:
    """They are passed on in hardly any time, so threads rather share the units of each step."""
    steps = Steps()
    large = value((STACK[0], part * STACK[1], STACK[2]))
    result = steps.call(steps.call(large))
    assert bool(steps.chains(fixed=[result])) == there


@pytest.mark.parametrize(("units", "there"), [(4, True), (5, False)])
def test_scratch_memory_of_all_units_is_no_larger_than_what_is_inside(units: int, there: bool) -> None:
    steps = Steps()
    result = steps.call(steps.call(value()))
    assert bool(steps.chains(Stacks(units), fixed=[result])) is there


@pytest.mark.parametrize("primitive", [IN_ANY_ORDER, WITH_SCRATCH])
@pytest.mark.parametrize("first", [True, False])
def test_calls_that_are_in_no_chain(primitive: Primitive, first: bool) -> None:
    """Calls whose units have another order than the matrices, and calls with scratch memory for the whole run."""
    steps = Steps()
    product = steps.call(value(), primitive=primitive if first else PRODUCT)
    result = steps.call(product, primitive=PRODUCT if first else primitive)
    assert steps.chains(fixed=[result]) == []


def test_calls_of_other_stacks() -> None:
    """Four turns cannot share six matrices, but can share two."""
    for count, there in ((6, False), (2, True)):
        steps = Steps()
        product = steps.call(value(), shape=(4, 12, 16))
        layout = Layout(product, (4 * 12 * 16 // count, 16, 1), 0)
        result = steps.call(layout, shape=(count, 4 * 12 // count, 16))
        assert bool(steps.chains(Stacks(uncached_size=64), fixed=[result])) is there


@pytest.mark.parametrize(("rows", "lanes"), [(3, TURN), (4, Stacks.foreign)])
def test_kernels_that_cannot_be_done_turn_by_turn(rows: int, lanes: int) -> None:
    """Four turns cannot share three rows; for the other kernel the target has no schedule."""
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
    """All elements are one axis of lanes; when turns share them, the axis is cut into rows, one for each matrix."""
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
    """The kernel exchanges the matrices of a pair: a call of two matrices, each a pair, can follow it, one of four
    cannot."""
    steps = Steps()
    product, made = steps.call(value()), value()
    exchanged = [at(product, 2 * TURN, 1, TURN), at(product, 2 * TURN)]
    steps.kernel(exchanged, at(made, 2 * TURN), at(made, 2 * TURN, offset=TURN), rows=2)
    result = steps.call(Layout(made, (2 * TURN, 16, 1), 0), shape=(2, 32, 16))
    (chain,) = steps.finder(fixed=[result]).found()
    assert (chain.first, chain.last, chain.turns) == (0, 2, 2)


def test_accesses_are_looked_at_for_each_number_of_turns() -> None:
    """Each row of the kernel reads the first matrix of its pair: with four turns, some turns read what others write."""
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
    """A chain has four addresses of arrays: the input, two inside, the result. With one constant more, the last step is
    left out."""
    steps = Steps()
    three_steps(steps, constants=constants)
    assert [chain[1] for chain in steps.chains()] == [2 if constants == MOST_ENTRIES - 4 else 1]


class CountedSet(set[Node]):
    """How often it was asked for a node."""

    asked = 0

    def __contains__(self, node: object) -> bool:
        self.asked += 1
        return super().__contains__(node)


def test_each_step_of_a_chain_is_looked_at_once() -> None:
    """A program that repeats many small products has chains of a hundred steps."""

    def questions(calls: int) -> int:
        steps, shared = Steps(), CountedSet()
        node = value()
        for _ in range(calls):
            node = steps.call(node)
        (chain,) = steps.finder(fixed=[node], shared=shared).found()
        assert (chain.first, chain.last) == (0, calls - 1)
        return shared.asked

    assert questions(80) == 2 * questions(40)


def test_kernels_alone() -> None:
    """They are a chain up to the next call that is none of its steps."""
    steps = Steps()
    x, made = value(), [value() for _ in range(4)]
    for source, result in zip([x, *made], made, strict=False):
        steps.kernel([source], result)
    other = steps.call(made[-1], primitive=IN_ANY_ORDER)
    few = Stacks()
    assert steps.chains(few, fixed=[made[-1], other]) == []
    few.limits = replace(few.limits, turn_results=PART)
    assert steps.chains(few, fixed=[made[-1], other]) == [(0, 3, made[:3])]
    few.limits = replace(few.limits, turn_results=2 * PART)
    (chain,) = steps.finder(few, fixed=[made[-1], other]).found()
    assert (chain.turns, chain.scratch) == (2, 4 * PART)
    few.limits = replace(few.limits, chained_size=8 * PART + 1)
    assert steps.chains(few, fixed=[made[-1], other]) == []
