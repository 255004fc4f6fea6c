"""The work to plan large graphs grows in proportion to their size, in executed lines of Weft."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

import weft.core as mx
import weft.optimizers as optim
from tests.codegen.planned import plans_of
from weft.compiler.cpu.target import CpuTarget
from weft.compiler.fusion.dependencies import Dependencies, Users
from weft.compiler.fusion.groups import FusedGroup, Group
from weft.compiler.running.evaluate import forget_plans


def lines_to_evaluate(program: Callable[[int], Any], size: int) -> int:
    """How many lines are executed for a program whose kernels have been generated, but which is not planned yet."""
    mx.eval(program(size))
    forget_plans()
    result = program(size)
    return lines_of(lambda: mx.eval(result))


def lines_of(work: Callable[[], Any]) -> int:
    """The number of lines of Weft that are executed."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def called(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_globals.get("__name__", "").startswith("weft.") else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def many_users(size: int) -> list[mx.array]:
    """One value that many results use."""
    x = mx.arange(8.0)
    return [x * float(k) for k in range(size)]


def users_in_two_shapes(size: int) -> list[mx.array]:
    x = mx.sin(mx.arange(16.0))
    return [x.reshape(4, 4) * float(k) if k % 2 else x * float(k) for k in range(size)]


def a_result_of_every_step(size: int) -> list[mx.array]:
    """The kernel of all operations on the way to a value is found after that of a result which nothing else needs."""
    results = []
    x = mx.arange(16.0)
    for _ in range(size):
        new = mx.sin(x)
        results.append(x * 2.0)
        x = new
    return results


def gradients_of_layers(size: int) -> Any:
    """Each product has a kernel attached."""
    parameters = [(mx.ones((2, 2)), mx.zeros((2,))) for _ in range(size)]

    def loss(parameters: Any) -> mx.array:
        x = mx.ones((1, 2))
        for weight, bias in parameters:
            x = x @ weight + bias
        return x.sum()

    return mx.grad(loss)(parameters)


def gradient_of_steps(size: int) -> mx.array:
    """The gradient of a value that all steps use is a sum of products, which one kernel reads."""
    inputs = mx.ones((size, 4))

    def loss(weight: mx.array) -> mx.array:
        state = mx.zeros((4,))
        for k in range(size):
            state = mx.tanh(state @ weight + inputs[k])
        return state.sum()

    return mx.grad(loss)(mx.ones((4, 4)))


def an_optimizer_of_many_arrays(size: int) -> Any:
    """There are as many inputs that are not used afterwards as results, all of one size."""
    parameters = {str(k): mx.ones((4,)) for k in range(size)}
    gradients = {str(k): mx.ones((4,)) for k in range(size)}
    optimizer = optim.Adam(0.1)
    mx.eval(parameters, gradients)
    changed = optimizer.apply_gradients(gradients, parameters)
    return changed, optimizer.state


def assignments(size: int) -> mx.array:
    x = mx.zeros((size, 4))
    for k in range(1, size):
        x[k] = x[k - 1] + 1.0
    return x


def concatenated(size: int) -> mx.array:
    return mx.concatenate([mx.sin(mx.full((3,), float(k))) for k in range(size)])


def parts_of_a_scan(size: int) -> mx.array:
    """Each step reads a part of the input, whose memory the result takes, and writes the same part of the result."""
    x = mx.ones((3, size, 8)) + 0.0
    mx.eval(x)
    state, states = mx.zeros((3, 8)), []
    for k in range(size):
        state = 0.5 * state + x[:, k]
        states.append(state)
    return mx.stack(states, axis=1)


PROGRAMS = [
    many_users,
    users_in_two_shapes,
    a_result_of_every_step,
    gradients_of_layers,
    gradient_of_steps,
    an_optimizer_of_many_arrays,
    assignments,
    concatenated,
    parts_of_a_scan,
]


@pytest.mark.some_rows(4)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_planning_takes_a_time_in_proportion(program: Callable[[int], Any]) -> None:
    size = 12
    small, medium, large = [lines_to_evaluate(program, size * times) for times in (1, 2, 3)]
    assert large - medium <= 1.02 * (medium - small)


def gradient_of_stacked_states(size: int) -> mx.array:
    """The cotangent of each state is a sum of columns with zeros around them, of which each column is read."""

    def loss(state: mx.array) -> mx.array:
        for _ in range(size):
            x, y, z = [state[:, column] for column in range(3)]
            state = mx.stack([x * y - z, y * z - x, z * x - y], axis=1)
        return state.sum()

    return mx.grad(loss)(mx.ones((2, 3)))


def test_columns_with_zeros_around_them_are_looked_through() -> None:
    """A column that is read at a place where it is zero needs no code, so kernels grow in proportion to the graph."""
    plans = [plans_of(partial(gradient_of_stacked_states, size)) for size in (1, 2, 3)]
    small, medium, large = [sum([str(plan).count(" = ") for plan in made]) for made in plans]
    assert 0 < large - medium <= 1.5 * (medium - small)


def test_results_that_are_too_many_for_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """They fill no more kernels than necessary."""
    monkeypatch.setattr(CpuTarget, "limits", replace(CpuTarget.limits, members=50, uncut_members=50))

    def results(x: mx.array) -> list[mx.array]:
        x = mx.sin(x)
        return [x * float(k) for k in range(120)]

    assert len(mx.compile(results).explain(mx.ones((3, 7))).kernels) == 3


def test_what_a_long_chain_of_groups_is_before() -> None:
    """As in the tangents of many steps: each group of a chain, beginning with the last one, is needed by one more
    group."""

    def linked(size: int) -> None:
        dependencies = Dependencies()
        chain = [Group(dependencies.new_number()) for _ in range(size)]
        for user, group in pairwise(chain):
            dependencies.link(group, [(user, None)])
        others = [Group(dependencies.new_number()) for _ in range(size)]
        for group, other, next_other in zip(chain, others, others[1:], strict=False):
            assert Users([(other, None)]).may_need(group)
            dependencies.link(group, [(other, None)])
            dependencies.link(next_other, [(other, None), (group, None)])

    small, medium, large = [lines_of(partial(linked, size)) for size in (50, 100, 150)]
    assert large - medium <= 1.02 * (medium - small)


def test_what_is_found_to_be_before_the_same_group() -> None:
    """As in the gradient of a sum of the losses of all steps: every other group of a chain, beginning with the
    first one, is needed by the group of the sum."""

    def linked(size: int) -> None:
        dependencies = Dependencies()
        total, other = Group(dependencies.new_number()), Group(dependencies.new_number())
        chain = [Group(dependencies.new_number()) for _ in range(size)]
        for user, group in pairwise(chain):
            dependencies.link(group, [(user, None)])
        for group in reversed(chain[::2]):
            dependencies.link(group, [(total, None)])
            assert Users([(chain[-1], None)]).may_need(other)

    small, medium, large = [lines_of(partial(linked, size)) for size in (50, 100, 150)]
    assert large - medium <= 1.02 * (medium - small)


def test_what_needs_all_parts_of_an_array() -> None:
    """As in the gradient of a loss of an array of all states: as many groups store a part of it as read it."""

    def linked(size: int) -> None:
        dependencies = Dependencies()
        writers, readers = [[FusedGroup(dependencies.new_number()) for _ in range(size)] for _ in range(2)]
        for group in (*writers, *readers):
            dependencies.add(group)
        dependencies.link_all(writers, [(reader, None) for reader in readers])
        for one, other in (*pairwise(writers), *pairwise(readers)):
            dependencies.unite(other, one)
        assert dependencies.in_order() == [writers[-1], readers[-1]]

    small, medium, large = [lines_of(partial(linked, size)) for size in (50, 100, 150)]
    assert large - medium <= 1.02 * (medium - small)
