"""Which arrays are inside of a chain, by the steps that read and write them; steps and target are written by hand."""

from __future__ import annotations

import pytest

import weft.core as mx
from tests.compiler.chain_steps import TURN, Steps, at, three_steps, value
from weft.compiler.fusion.groups import Layout


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
    """Also in the matrices of other turns, because steps read the result only after the chain."""
    steps = Steps()
    product, result = steps.call(value()), value()
    steps.kernel([product], at(result, 16, 1), rows=4)
    assert steps.chains(fixed=[result]) == [(0, 1, [product])]
    assert steps.chains() == [(0, 1, [product])]


@pytest.mark.parametrize("computed", [True, False])
def test_what_several_steps_write_keeps_its_order(computed: bool) -> None:
    """A step that writes in the matrices of other turns is in no chain with another step that writes to the same
    array."""
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
    """Nor is an array that is read after the chain."""
    steps = Steps()
    before = value()
    steps.kernel([value()], before, rows=3)  # in no chain
    product = steps.call(before)
    last = steps.call(product)
    steps.kernel([last], value(), rows=3)
    assert steps.chains() == [(1, 2, [product])]


def test_results_that_only_an_attached_kernel_reads() -> None:
    """Such results are not in memory, so their place does not matter."""
    for stored in (False, True):
        steps = Steps()
        product, made = steps.call(value()), value()
        steps.attach(product, [product], made, stored=stored)
        result = steps.call(made)
        inside = [product, made] if stored else [made]
        assert steps.chains(fixed=[result]) == [(0, 1, inside)]


def test_what_a_kernel_reads_that_feeds_a_call() -> None:
    """The kernel reads it in the step of the call; the kernel's own result is not in memory."""
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
    """The axes of their matrices are in the factors of the layout."""
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
