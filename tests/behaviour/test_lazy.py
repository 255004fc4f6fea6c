"""Lazy evaluation: what `eval` takes, that order and grouping do not matter, and that arrays are handles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import assert_same_bits


def test_eval_takes_trees_and_ignores_the_rest() -> None:
    tree = {"a": [mx.ones(2) + 1], "b": (mx.zeros(1), None, "text", 3), "c": [abs, object(), mx.float32]}
    model = nn.Sequential(nn.Linear(2, 2), nn.gelu)
    mx.eval(tree, mx.ones(2), [], None, model.state, {}.values(), object())
    mx.async_eval(tree, model, object())
    mx.eval()
    assert tree["a"][0].node.value is not None
    assert model.layers[0].weight.node.value is not None
    assert tree["a"][0].tolist() == [2.0, 2.0]


def test_building_is_not_computing() -> None:
    """A product that could never be held in memory costs nothing until someone asks."""
    x = mx.ones((1, 1 << 20))
    huge = x.T * x
    assert huge.shape == (1 << 20, 1 << 20)
    assert huge[5, 7].shape == ()
    assert mx.get_active_memory() < 1 << 33


def test_evaluating_twice_changes_nothing() -> None:
    x = mx.random.normal((3,)) * 2
    mx.eval(x)
    first = x.tolist()
    mx.eval(x, x, [x])
    assert x.tolist() == first


def work(x: mx.array) -> list[mx.array]:
    a = mx.exp(x)
    b = a.sum(axis=-1, keepdims=True)
    c = a / b
    return [a, b, c, c.T @ c]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_order_of_evaluation_does_not_change_the_bits(order: tuple[int, ...]) -> None:
    x = mx.random.normal((17, 9), key=mx.random.key(0))
    together, apart = work(x), work(x)
    mx.eval(together)
    for position in order:
        mx.eval(apart[position])
    assert_same_bits(apart, together)


def test_an_intermediate_that_is_evaluated_early_is_used() -> None:
    x = mx.random.normal((50,))
    doubled = x * 2
    result = doubled + 1
    mx.eval(doubled)
    assert_same_bits(result, doubled + 1)


AUGMENTED: dict[str, Callable[[mx.array], mx.array]] = {
    "+=": lambda a: a.__iadd__(2),
    "-=": lambda a: a.__isub__(2),
    "*=": lambda a: a.__imul__(2),
    "/=": lambda a: a.__itruediv__(2),
    "**=": lambda a: a.__ipow__(2),
    "//=": lambda a: a.__ifloordiv__(2),
    "%=": lambda a: a.__imod__(2),
}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("+=", 9.0), ("-=", 5.0), ("*=", 14.0), ("/=", 3.5), ("**=", 49.0), ("//=", 3.0), ("%=", 1.0)],
)
def test_augmented_assignment_changes_the_handle(operator: str, expected: float) -> None:
    a = mx.array([7.0])
    other_name, made_before = a, a + 0
    result = AUGMENTED[operator](a)
    assert result is a
    assert other_name.tolist() == [expected]
    assert made_before.tolist() == [7.0]


def test_arrays_are_hashed_by_identity() -> None:
    a, b = mx.array([1.0]), mx.array([1.0])
    assert len({a, b, a}) == 2
    assert hash(a) == hash(a)


def test_a_handle_keeps_its_hash_through_updates() -> None:
    a = mx.array([1.0])
    table = {id(a): "kept"}
    a += 1
    a[0] = 5
    assert table[id(a)] == "kept"


def test_comparisons_are_arrays() -> None:
    a = mx.array([1, 2, 3])
    assert (a == mx.array([1, 5, 3])).tolist() == [True, False, True]
    assert (a != 2).tolist() == [True, False, True]
    assert (a > 2).tolist() == [False, False, True]


def test_equal_expressions_are_equal_bits() -> None:
    x = mx.random.normal((1000,), key=mx.random.key(0))
    assert_same_bits(mx.sin(x) + mx.sin(x), 2 * mx.sin(x))
