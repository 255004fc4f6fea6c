"""Many results that are asked for together: a plan for each kind, or one for all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from weft.compiler.running import evaluate
from weft.runtime import counters


def plans_of(make: Callable[[], list[mx.array]]) -> int:
    evaluate.forget_plans()
    made = make()
    before = counters.plans
    mx.eval(made)
    return counters.plans - before


def test_results_of_few_operations_have_a_plan_for_each_kind() -> None:
    xs = [mx.array([1.0 * number, 2.0]) for number in range(100)]
    made = [x * 2 + 1 if number % 3 else mx.exp(x - x) for number, x in enumerate(xs)]
    assert plans_of(lambda: made) <= 3
    assert [one.tolist() for one in made] == [[2.0 * n + 1, 5.0] if n % 3 else [1.0, 1.0] for n in range(100)]


def test_what_they_have_in_common_is_computed_once_and_kept_while_it_is_needed() -> None:
    x = mx.array([1.0, 2.0])
    total, made = mx.exp(x), []
    for number in range(50):
        total = total * 0.5 + number
        made.append(mx.sin(total) + 1)
    expected, value = [], np.exp(np.array([1.0, 2.0]))
    for number in range(50):
        value = value * 0.5 + number
        expected.append(np.sin(value) + 1)
    assert plans_of(lambda: made) <= 4
    np.testing.assert_allclose([np.array(one) for one in made], expected, rtol=1e-4, atol=1e-5)


def test_random_arrays_have_the_numbers_that_they_have_alone() -> None:
    def drawn() -> list[mx.array]:
        mx.random.seed(3)
        return [mx.random.normal((4,)) for _ in range(40)]

    alone = []
    for one in drawn():
        mx.eval(one)
        alone.append(one.tolist())
    together = drawn()
    assert plans_of(lambda: together) <= 4
    assert [one.tolist() for one in together] == alone


@pytest.mark.parametrize("kind", ["a large array", "many operations", "numbers alone"])
def test_one_plan_is_for_results_that_have_much_in_common(kind: str) -> None:
    x, small = mx.arange(5000.0), mx.array([1.0, 2.0])
    mx.eval(x, small)

    def make() -> list[mx.array]:
        if kind == "a large array":
            return [mx.sum(mx.where(x > number, x, 0)) for number in range(40)]
        if kind == "many operations":
            deep = small
            for _ in range(40):
                deep = mx.sin(deep) * small
            return [deep, *[small * number + 1 for number in range(40)]]
        return [mx.zeros((3,)) + number for number in range(40)]

    assert plans_of(make) == 1


def test_a_graph_that_comes_often_has_one_plan() -> None:
    xs = [mx.array([1.0 * number, 2.0]) for number in range(40)]
    evaluate.forget_plans()
    before = counters.plans
    for _ in range(20):
        mx.eval([x * 2 + 1 for x in xs])
    assert counters.plans - before == 2
