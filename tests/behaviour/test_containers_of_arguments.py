"""Containers in the arguments of `grad`, `vmap`, `checkpoint` keep their classes, and what the function assigns to
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import assert_same_bits


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = mx.array([2.0, 3.0])
        self.calls = 0

    def __call__(self, x: mx.array) -> mx.array:
        self.calls += 1
        self.seen = x * self.factor
        return self.seen


class Stack(list[Any]):
    """A subclass of list with an attribute."""

    def top(self) -> Any:
        return self[-1]


def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return mx.vmap(function, in_axes=(0,))


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return mx.grad(lambda *arguments: function(*arguments).sum())


TRANSFORMATIONS = {"grad": gradient, "vmap": mapped, "checkpoint": mx.checkpoint}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_module_stays_a_module(name: str) -> None:
    model = Scale()
    factor = model.factor
    given: list[Any] = []

    def call(model: Scale) -> mx.array:
        given.append(model)
        return model(mx.array(5.0))

    result = TRANSFORMATIONS[name](call)(model)
    assert given[0] is model
    assert model.calls == 1
    assert model.factor is factor
    assert_same_bits(model.seen, mx.array([10.0, 15.0]))
    if name == "grad":
        assert_same_bits(result["factor"], mx.array([5.0, 5.0]))


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_a_subclass_of_list_stays_one(name: str) -> None:
    arrays = [mx.array([1.0, 2.0]), mx.array([3.0, 4.0])]
    stack = Stack(arrays)
    TRANSFORMATIONS[name](lambda stack: stack.top() * 2)(stack)
    assert type(stack) is Stack
    assert all(mine is array for mine, array in zip(stack, arrays, strict=True))


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_what_is_assigned_is_there_afterwards(name: str) -> None:
    untouched, pair, inner = mx.array([7.0, 8.0]), (mx.array([1.0, 1.0]), [mx.array([0.0, 0.0])]), mx.array([1.0, 2.0])
    state: dict[str, Any] = {
        "x": mx.array([1.0, 2.0]),
        "untouched": untouched,
        "pair": pair,
        "inner": inner,
        "gone": inner,
    }

    def step(state: dict[str, Any]) -> mx.array:
        state["x"] = state["x"] * 10
        state["new"] = {"nested": [state["x"] + 1, state["untouched"]], "number": 3}
        state["pair"][1].append(state["x"])
        state["inner"] += 1
        del state["gone"]
        return state["x"]

    TRANSFORMATIONS[name](step)(state)
    assert list(state) == ["x", "untouched", "pair", "inner", "new"]
    assert_same_bits(state["x"], mx.array([10.0, 20.0]))
    assert state["untouched"] is state["new"]["nested"][1] is untouched
    assert state["pair"] is pair
    assert_same_bits(pair[1][1], mx.array([10.0, 20.0]))
    assert_same_bits(state["new"]["nested"][0], mx.array([11.0, 21.0]))
    assert state["new"]["number"] == 3
    assert state["inner"] is inner
    assert_same_bits(inner, mx.array([2.0, 3.0]))


def test_vmap_puts_the_mapped_axis_where_it_was() -> None:
    state: dict[str, Any] = {"x": mx.arange(6.0).reshape(2, 3), "shared": mx.ones((2,)), "counter": mx.array(1)}
    counter = state["counter"]

    def step(state: dict[str, Any]) -> mx.array:
        state["x"] = state["x"] * 2
        state["new"] = state["x"] + state["shared"]
        state["shared"] = state["shared"] * 3
        state["counter"] += 1
        return state["x"].sum()

    mx.vmap(step, in_axes={"x": 1, "shared": None, "counter": None})(state)
    assert_same_bits(state["x"], mx.arange(6.0).reshape(2, 3) * 2)
    assert_same_bits(state["new"], (mx.arange(6.0).reshape(2, 3) * 2 + 1).T)
    assert_same_bits(state["shared"], mx.full((2,), 3.0))
    assert state["counter"] is counter
    assert counter.item() == 2


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_an_error_leaves_a_module_as_it_was(name: str) -> None:
    model = Scale()
    factor = model.factor

    def fail(model: Scale) -> mx.array:
        model.factor = model.factor * 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TRANSFORMATIONS[name](fail)(model)
    assert model.factor is factor


def test_plain_containers_of_another_thread_are_not_touched_while_the_function_runs() -> None:
    state = {"x": mx.array(3.0)}
    x = state["x"]

    def loss(inner: dict[str, mx.array]) -> mx.array:
        assert state["x"] is x
        return inner["x"] ** 2

    assert mx.grad(loss)(state)["x"].item() == 6


def test_second_derivatives_in_a_module() -> None:
    model = Scale()

    def slope(model: Scale) -> mx.array:
        first = mx.grad(lambda inner: (inner.factor**3).sum())(model)
        return first["factor"].sum()

    np.testing.assert_allclose(np.array(mx.grad(slope)(model)["factor"]), [12.0, 18.0])


def test_axes_nested_like_the_only_argument() -> None:
    arguments = {"a": mx.arange(6.0).reshape(2, 3), "b": mx.arange(6.0).reshape(3, 2)}
    got = mx.vmap(lambda x: x["a"] + x["b"], in_axes={"a": 0, "b": 1})(arguments)
    assert_same_bits(got, arguments["a"] + arguments["b"].T)
    got = mx.vmap(lambda x: x[0] + x[1], in_axes=(0, 1))([arguments["a"], arguments["b"]])
    assert_same_bits(got, arguments["a"] + arguments["b"].T)
    got = mx.vmap(lambda x: x * 2, in_axes=(0,), out_axes=(1,))(arguments["a"])
    assert_same_bits(got, arguments["a"].T * 2)
