"""Memory that nobody sees any more is used again: outputs are written where inputs were."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.compiler import run

SIZE = 1 << 12


def address(x: mx.array) -> int:
    """Where the elements are."""
    mx.eval(x)
    return int(np.array(x, copy=False).__array_interface__["data"][0])


def values(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "elementwise": lambda x: mx.exp(x) * x + 1,
    "rows": lambda x: mx.softmax(x, axis=-1),
    "another type of the same size": lambda x: (x > 0).astype(mx.int32),
    "broadcast operands": lambda x: x * mx.arange(64.0) - 2,
}
NOT_IN_PLACE: dict[str, Callable[[mx.array], mx.array]] = {
    "transposed": lambda x: x.T + 0,
    "reversed": lambda x: x[::-1] * 2,
    "elements that others need": lambda x: x + x[0],
    "what the result shows": lambda x: x.reshape(-1),
    "a sum of rows": lambda x: x - x.sum(axis=0),
    "a product": lambda x: x @ x.T,
    "a larger type": lambda x: x.astype(mx.float64),
    "gathered": lambda x: x[mx.array([2, 1, 0])[:, None], mx.arange(64)],
}


@pytest.mark.parametrize("name", [*IN_PLACE, *NOT_IN_PLACE])
def test_results_are_the_same_with_and_without(name: str) -> None:
    function = (IN_PLACE | NOT_IN_PLACE)[name]
    x = values(64, 64)
    kept = function(x)
    y = values(64, 64)
    mx.eval(x, y, kept)
    y = function(y)
    mx.eval(y)
    np.testing.assert_array_equal(np.array(y), np.array(kept))
    np.testing.assert_array_equal(np.array(x), np.array(values(64, 64)))


@pytest.mark.parametrize("name", IN_PLACE)
def test_an_array_that_nobody_else_holds_is_replaced_in_its_place(name: str) -> None:
    x = values(64, 64)
    before = address(x)
    x = IN_PLACE[name](x)
    assert address(x) == before


def evaluated(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


HOLDERS: dict[str, Callable[[mx.array], Any]] = {
    "another name": lambda x: x,
    "a list": lambda x: [x],
    "a view": lambda x: x[1:],
    "an evaluated view": lambda x: evaluated(x.reshape(-1)),
    "a lazy expression": lambda x: x * 5,
    "NumPy": lambda x: np.array(x, copy=False),
    "a copy of the handle": lambda x: mx.stop_gradient(x),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_an_array_that_somebody_holds_is_left_alone(name: str) -> None:
    x = values(64, 64)
    mx.eval(x)
    holder = HOLDERS[name](x)
    wanted = np.array(holder[0] if isinstance(holder, list) else HOLDERS[name](values(64, 64)))
    x = x + 1
    mx.eval(x)
    np.testing.assert_array_equal(np.array(holder[0] if isinstance(holder, list) else holder), wanted)


def test_several_outputs_take_several_inputs() -> None:
    x, y = values(SIZE), values(SIZE, seed=1)
    wanted = [np.array(x) + np.array(y), np.array(x) - np.array(y)]
    mx.eval(x, y)
    x, y = x + y, x - y
    mx.eval(x, y)
    for found, right in zip((x, y), wanted, strict=True):
        np.testing.assert_array_equal(np.array(found), right)


def test_what_a_gradient_still_needs_is_left_alone() -> None:
    def f(x: mx.array) -> mx.array:
        y = mx.exp(x)
        mx.eval(y)
        z = y * y
        mx.eval(z)
        return (z * y).sum()

    x = values(100)
    np.testing.assert_allclose(np.array(mx.grad(f)(x)), 3 * np.exp(3 * np.array(x).astype(np.float64)), rtol=1e-5)


def test_a_loop_holds_one_buffer() -> None:
    x = values(1 << 16)
    mx.eval(x)
    gc.collect()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    for _ in range(5):
        x = x * 0.5 + 1
        mx.eval(x)
    assert mx.get_peak_memory() == held


def training(layers: int = 2) -> tuple[nn.Module, optim.Optimizer, Callable[[mx.array], mx.array], list[Any]]:
    mx.random.seed(3)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(layers)])
    optimizer = optim.Adam(1e-2)
    optimizer.init(model.trainable_parameters())
    loss_and_gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())

    def step(x: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x)
        optimizer.update(model, gradients)
        return loss

    state = [model.state, optimizer.state]
    mx.eval(state)
    return model, optimizer, step, state


def test_a_compiled_training_step_updates_parameters_in_place() -> None:
    model, _, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 32)
    places = []
    for _ in range(5):
        mx.eval(compiled(x))
        places.append([address(layer.weight) for layer in model.layers])
    assert places[1] == places[2] == places[3] == places[4]


def test_a_compiled_training_step_trains_as_without() -> None:
    model, _, step, state = training()
    x = values(8, 32)
    compiled = mx.compile(step, inputs=state, outputs=state)
    losses = [compiled(x).item() for _ in range(6)]
    found = [np.array(layer.weight) for layer in model.layers]
    model, _, step, _ = training()
    assert losses == [step(x).item() for _ in range(6)]
    for weight, layer in zip(found, model.layers, strict=True):
        np.testing.assert_array_equal(weight, np.array(layer.weight))


def test_a_parameter_that_somebody_holds_keeps_its_value() -> None:
    model, optimizer, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 32)
    compiled(x)
    compiled(x)
    held = [model.layers[0].weight, optimizer.state["step"]]
    shown = np.array(model.layers[1].weight, copy=False)
    before = [np.array(array) for array in held], shown.copy()
    compiled(x)
    compiled(x)
    for array, value in zip(held, before[0], strict=True):
        np.testing.assert_array_equal(np.array(array), value)
    np.testing.assert_array_equal(shown, before[1])
    assert not np.array_equal(np.array(model.layers[0].weight), before[0][0])


def test_what_the_function_leaves_alone_stays() -> None:
    state = {"w": values(SIZE), "frozen": values(SIZE, seed=1)}
    frozen = np.array(state["frozen"])

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + x * state["frozen"]
        return state["w"].sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    w = np.array(state["w"])
    for _ in range(4):
        compiled(mx.array(2.0))
        w = w + np.float32(2) * frozen
    np.testing.assert_array_equal(np.array(state["w"]), w)
    np.testing.assert_array_equal(np.array(state["frozen"]), frozen)


def test_a_state_that_changes_between_calls() -> None:
    state: dict[str, Any] = {"w": mx.array(1.0)}

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + x
        return state["w"] * len(state)

    compiled = mx.compile(step, inputs=state, outputs=state)
    x = mx.array(1.0)
    assert [compiled(x).item() for _ in range(3)] == [2.0, 3.0, 4.0]
    state["more"] = mx.array(0.0)
    assert compiled(x).item() == 10.0
    del state["more"]
    state["w"] = mx.array([1.0, 2.0])
    assert compiled(x).tolist() == [2.0, 3.0]
    state["w"] = mx.array(7)
    assert compiled(x).item() == 8.0
    state["w"] = "seven"
    with pytest.raises((TypeError, ValueError)):
        compiled(x)
    state["w"] = mx.array(1.0)
    assert compiled(x).item() == 2.0


def test_modes_of_a_module_are_seen() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    state = [model.state, mx.random.state]
    compiled = mx.compile(lambda x: model(x), inputs=state, outputs=state)
    x = values(4, 16)
    for _ in range(3):
        assert (compiled(x) == 0).any().item()
    model.eval()
    for _ in range(3):
        assert not (compiled(x) == 0).any().item()
    model.train()
    assert (compiled(x) == 0).any().item()


def test_an_interrupt_loses_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, step, state = training()
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 32)
    for _ in range(3):
        compiled(x)
    plain_execute = run.execute
    interrupts = 0

    def interrupted(*arguments: Any) -> None:
        plain_execute(*arguments)
        raise KeyboardInterrupt

    def too_early(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for execute in (interrupted, too_early):
        monkeypatch.setattr(run, "execute", execute)
        try:
            compiled(x)
        except KeyboardInterrupt:
            interrupts += 1
        monkeypatch.setattr(run, "execute", plain_execute)
        mx.eval(state)
    assert interrupts == 2
    found = [np.array(layer.weight) for layer in model.layers]
    model, _, step, _ = training()
    for _ in range(5):
        mx.eval(step(x))
    for weight, layer in zip(found, model.layers, strict=True):
        np.testing.assert_array_equal(weight, np.array(layer.weight))
