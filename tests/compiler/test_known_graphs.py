"""Graphs whose plan is known: they have the values, and keep the arrays, that a program would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from weft.compiler.running import evaluate, known_graphs
from weft.runtime import counters

Build = Callable[[mx.array, mx.array], list[mx.array]]

OPERATIONS: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "scale": lambda a, b: a * 0.5 + b * 0.25,
    "shift": lambda a, b: (a + 2) * b + 2,
    "other numbers": lambda a, b: (a + 2) * b + 3,
    "view": lambda a, b: a[::-1] + b,
    "broadcast": lambda a, b: a + b.sum(keepdims=True),
    "maximum": lambda a, b: mx.maximum(a, b),
    "stopped": lambda a, b: mx.stop_gradient(a) + b,
    "equal parts": lambda a, b: (a + b) * (a + b),
    "product": lambda a, b: a * (a @ b),
}


def arrays(seed: int, size: int = 5) -> tuple[mx.array, mx.array]:
    x = mx.random.normal((2, size), key=mx.random.key(seed))
    mx.eval(x)
    found = x[0] + 0, x[1] + 0
    mx.eval(*found)
    return found


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Operations, each with the numbers of earlier arrays that it is applied to."""
    count = draw(st.integers(2, 7))
    numbers = [st.integers(0, number + 1) for number in range(count)]
    return [(draw(st.sampled_from(sorted(OPERATIONS))), draw(some), draw(some)) for some in numbers]


def built(program: list[tuple[str, int, int]], x: mx.array, y: mx.array) -> list[mx.array]:
    made = [x, y]
    for name, first, second in program:
        made.append(OPERATIONS[name](made[first], made[second]))
    return made


@given(programs(), st.sets(st.integers(2, 8)), st.integers(1, 2))
def test_other_values_go_through_the_known_plan(
    program: list[tuple[str, int, int]], kept: set[int], asked: int
) -> None:
    def run(seed: int, y_is_x: bool = False) -> list[list[float]]:
        x, y = arrays(seed)
        made = built(program, x, x if y_is_x else y)
        wanted = made[-asked:]
        held = [made[number] for number in kept if number < len(made)]
        del made
        mx.eval(*wanted)
        return [one.tolist() for one in (*wanted, *held)]

    evaluate.forget_plans()
    expected = [run(1), run(2), run(3, y_is_x=True)]
    for number, (seed, y_is_x) in enumerate([(1, False), (2, False), (3, True)]):
        evaluate.forget_plans()
        for other in (7, 8):
            run(other)
        assert run(seed, y_is_x) == expected[number]


@pytest.mark.parametrize("size", [5, 40_000], ids=["little memory", "memory that could be used again"])
def test_a_held_array_gets_its_value_and_one_that_is_not_held_is_not_computed(size: int) -> None:
    x, y = arrays(0, size)
    evaluate.forget_plans()

    def run(hold: bool) -> mx.array:
        inner = mx.exp(x)
        outer = inner * y
        held = inner if hold else None
        del inner
        mx.eval(outer)
        assert held is None or held.node.value is not None
        return outer

    for _ in range(3):
        run(hold=False)
    assert [len(plan.outputs) for plan, _ in known_graphs._known._items.values()] == [1]
    for _ in range(3):
        run(hold=True)
    assert sorted(len(plan.outputs) for plan, _ in known_graphs._known._items.values()) == [1, 2]


def test_a_graph_that_is_made_again_is_neither_planned_nor_learnt() -> None:
    x, y = arrays(0)

    def run() -> None:
        mx.eval(mx.tanh(x * 2 + y), mx.tanh(y * 2 + x))

    run()
    plans, known = counters.plans, len(known_graphs._known)
    for _ in range(3):
        run()
    assert (counters.plans, len(known_graphs._known)) == (plans, known)


def test_an_array_that_ends_gives_its_memory_to_the_result() -> None:
    x, y = arrays(0, 40_000)
    addresses = set()
    for _ in range(4):
        x = mx.exp(x * 0.5) + y
        mx.eval(x)
        addresses.add(np.asarray(x).ctypes.data)
    assert len(addresses) == 1


def test_a_plan_is_not_learnt_for_an_array_that_ends_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the garbage collector and other threads may let it."""
    held: list[mx.array] = []
    make = evaluate._Work

    def made(*arguments: Any) -> Any:
        held.clear()
        return make(*arguments)

    def run(value: float) -> mx.array:
        x = mx.full((40_000,), value) + 0
        mx.eval(x)
        inner = x * 2
        outer = mx.sin(inner) + inner
        held.append(inner)
        del x, inner
        mx.eval(outer)
        return outer

    evaluate.forget_plans()
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "_Work", made)
        run(1.0)
    for value in (2.0, 3.0):
        run(value)
        assert held.pop()[0].item() == 2 * value


def test_arrays_that_are_asked_for_twice_are_learnt() -> None:
    x, y = arrays(0)

    def run() -> None:
        z = mx.tanh(x * 2 + y)
        mx.eval(z, z, mx.tanh(y * 2 + x))

    run()
    known = len(known_graphs._known)
    assert known > 0
    run()
    assert len(known_graphs._known) == known
    evaluate.forget_plans()
    run()
    assert len(known_graphs._known) == 1


def test_async_eval_finds_known_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int) -> mx.array:
        x, y = arrays(seed)
        made = mx.tanh(x * 2 + y)
        mx.async_eval(made)
        return made

    evaluate.forget_plans()
    expected = [run(seed).tolist() for seed in (1, 2)]
    monkeypatch.setattr(evaluate, "_Work", None)  # what makes a program of a graph
    assert [run(seed).tolist() for seed in (1, 2)] == expected


def test_parts_that_are_chosen_anew_need_no_other_plan() -> None:
    x, y = arrays(0, 40)
    table = mx.reshape(x, (8, 5))
    mx.eval(table)

    def run(rows: list[int]) -> list[float]:
        parts = [table[row] for row in rows]
        held = parts[0]
        total = parts[0] * y[:5]
        for part in parts[1:]:
            total = total + part
        del parts, part
        mx.eval(total)
        assert held.tolist() == table.tolist()[rows[0]]
        return total.tolist()

    choices = [[0, 1, 2, 3], [3, 3, 1, 1], [7, 0, 7, 0], [5, 5, 5, 5]]
    expected = []
    for rows in choices:
        evaluate.forget_plans()
        expected.append(run(rows))
    evaluate.forget_plans()
    assert [run(rows) for rows in choices[:2]] == expected[:2]
    plans = counters.plans
    assert [run(rows) for rows in choices] == expected
    assert counters.plans == plans


def test_an_array_of_which_a_part_is_read_keeps_its_memory_meanwhile() -> None:
    x, y = arrays(0, 40_000)
    evaluate.forget_plans()
    for start in range(6):
        before = mx.array(np.asarray(x))
        x = x + x[start : start + 1] + y[start : start + 40].sum()
        mx.eval(x)
        expected = before + before[start].item() + y[start : start + 40].sum().item()
        assert mx.array_equal(x, expected)
