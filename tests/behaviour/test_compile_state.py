"""State of compiled functions: `inputs`, `outputs`, modules, optimizers and the random state."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.checks import Counted, assert_same_bits
from weft.utils import tree_flatten


def test_returned_state_comes_back_as_an_array() -> None:
    @mx.compile
    def f(x: mx.array, y: mx.array) -> tuple[mx.array, list[mx.array]]:
        z = x + y
        return mx.exp(z * 0), [z]

    value, state = f(mx.array(1.0), mx.array(2.0))
    assert value.item() == 1.0
    assert repr(state) == "[array(3, dtype=float32)]"


def test_outputs_captures_what_is_appended() -> None:
    state: list[mx.array] = []

    @partial(mx.compile, outputs=state)
    def f(x: mx.array, y: mx.array) -> mx.array:
        z = x + y
        state.append(z)
        return mx.exp(z)

    f(mx.array(1.0), mx.array(2.0))
    assert repr(state) == "[array(3, dtype=float32)]"


def test_outputs_are_updated_after_each_call() -> None:
    state: dict[str, Any] = {"last": mx.array(0.0), "nested": [(mx.array(0.0),)]}
    counted = Counted(lambda x: update(x))

    def update(x: mx.array) -> mx.array:
        state["last"] = x + 1
        state["nested"][0] = (x * 2,)
        return x

    compiled = mx.compile(counted.function, outputs=state)
    for value in (1.0, 5.0, 7.0):
        compiled(mx.array(value))
        assert state["last"].item() == value + 1
        assert isinstance(state["nested"][0], tuple)
        assert state["nested"][0][0].item() == 2 * value
    assert counted.calls == 1


def test_state_as_input_and_output_accumulates() -> None:
    state = {"total": [mx.array(1.0)]}

    def step(x: mx.array) -> mx.array:
        state["total"][0] = state["total"][0] + x
        return state["total"][0] * 2

    counted = Counted(step)
    compiled = mx.compile(counted.function, inputs=state, outputs=state)
    assert [compiled(mx.array(2.0)).item() for _ in range(2)] == [6.0, 10.0]
    assert state["total"][0].item() == 5.0
    state["total"][0] = mx.array(100.0)
    assert compiled(mx.array(2.0)).item() == 204.0
    assert counted.calls == 1


def test_without_inputs_replacing_an_array_changes_nothing() -> None:
    state = [mx.array(1.0)]
    constant = mx.compile(lambda x: x + state[0])
    variable = mx.compile(lambda x: x + state[0], inputs=state)
    assert constant(mx.array(2.0)).item() == variable(mx.array(2.0)).item() == 3.0
    state[0] = mx.array(5.0)
    assert constant(mx.array(2.0)).item() == 3.0
    assert variable(mx.array(2.0)).item() == 7.0


def test_an_input_may_be_updated_in_place() -> None:
    state = [mx.array(1.0)]
    compiled = mx.compile(lambda x: x + state[0], inputs=state)
    assert compiled(mx.array(2.0)).item() == 3.0
    state[0] += 10
    assert compiled(mx.array(2.0)).item() == 13.0


def test_an_input_of_another_shape_or_number_traces_again() -> None:
    state = [mx.array(1.0)]
    counted = Counted(lambda x: x + sum(s.sum() for s in state))
    compiled = mx.compile(counted.function, inputs=state)
    assert compiled(mx.array(2.0)).item() == 3.0
    state.append(mx.array(10.0))
    assert compiled(mx.array(2.0)).item() == 13.0
    state[1] = mx.array([10.0, 20.0])
    assert compiled(mx.array(2.0)).item() == 33.0
    assert counted.calls == 3


def test_tracing_leaves_no_placeholder_in_the_state() -> None:
    state = {"a": mx.array(1.0), "b": mx.array(2.0)}

    def failing(x: mx.array) -> mx.array:
        state["a"] = state["a"] + x
        raise LookupError

    with pytest.raises(LookupError):
        mx.compile(failing, inputs=state, outputs=state)(mx.array(1.0))
    assert state["b"].item() == 2.0
    mx.compile(lambda x: x + state["b"], inputs=state)(mx.array(1.0))
    assert state["b"].item() == 2.0


def test_the_random_state_advances_as_without_compile() -> None:
    def draw() -> mx.array:
        return mx.random.uniform(shape=(3,))

    mx.random.seed(11)
    expected = [draw().tolist() for _ in range(4)]
    assert expected[0] != expected[1]
    counted = Counted(draw)
    compiled = mx.compile(counted.function, inputs=mx.random.state, outputs=mx.random.state)
    mx.random.seed(11)
    assert [compiled().tolist() for _ in range(4)] == expected
    assert counted.calls == 1
    mx.random.seed(11)
    assert compiled().tolist() == expected[0]
    assert draw().tolist() == expected[1]


def test_random_numbers_work_after_a_trace_without_the_state() -> None:
    mx.compile(lambda x: x + mx.random.uniform(shape=(2,)))(mx.array(1.0))
    draws = mx.random.uniform(shape=(2,))
    assert all(0 <= value < 1 for value in draws.tolist())


class Network(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.rest = [nn.Linear(16, 16), nn.Linear(16, 3)]
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.dropout(nn.relu(self.first(x)))
        return self.rest[1](nn.tanh(self.rest[0](x)))


def loss_of(model: Any, x: mx.array, labels: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(x), labels, reduction="mean")


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(learning_rate=0.1),
    "momentum": lambda: optim.SGD(learning_rate=0.1, momentum=0.9),
    "adam": lambda: optim.Adam(learning_rate=0.01),
}


def train(optimizer_name: str, *, compiled: bool, dropout: float = 0.0, steps: int = 5) -> tuple[Any, ...]:
    """Losses, parameters and optimizer state after a few steps, and the number of traces."""
    mx.random.seed(4)
    model, optimizer = Network(dropout), OPTIMIZERS[optimizer_name]()
    mx.eval(model.parameters())
    generator = np.random.default_rng(0)
    x = mx.array(generator.normal(size=(10, 8)).astype(np.float32))
    labels = mx.array(generator.integers(0, 3, 10))
    state = [model.state, optimizer.state, mx.random.state]

    def plain_step(x: mx.array, labels: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x, labels)
        optimizer.update(model, gradients)
        return loss

    counted = Counted(plain_step)
    step = mx.compile(counted.function, inputs=state, outputs=state) if compiled else counted.function
    losses = []
    for _ in range(steps):
        losses.append(step(x, labels))
        mx.eval(losses[-1], state)
    return losses, dict(tree_flatten(model.parameters())), dict(tree_flatten(optimizer.state)), counted.calls


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_whole_training_step(optimizer: str, dropout: float) -> None:
    *expected, _ = train(optimizer, compiled=False, dropout=dropout)
    *actual, traces = train(optimizer, compiled=True, dropout=dropout)
    assert_same_bits(actual, expected)
    assert traces <= 2, "once with an empty optimizer state, once with a filled one"
    losses = [loss.item() for loss in actual[0]]
    assert losses[-1] < losses[0]


def test_an_initialised_optimizer_traces_once() -> None:
    model, optimizer = Network(), optim.Adam(learning_rate=0.01)
    optimizer.init(model.trainable_parameters())
    state = [model.state, optimizer.state]

    def step(x: mx.array, labels: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x, labels)
        optimizer.update(model, gradients)
        return loss

    counted = Counted(step)
    compiled = mx.compile(counted.function, inputs=state, outputs=state)
    for _ in range(4):
        mx.eval(compiled(mx.ones((2, 8)), mx.array([0, 1])), state)
    assert counted.calls == 1
    assert optimizer.state["step"].item() == 4


def test_the_learning_rate_is_state() -> None:
    model, optimizer = nn.Linear(1, 1, bias=False), optim.SGD(learning_rate=1.0)
    model.update({"weight": mx.array([[0.0]])})
    state = [model.state, optimizer.state]

    def step(x: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, lambda m, x: m(x).sum())(model, x)
        optimizer.update(model, gradients)
        return loss

    compiled = mx.compile(step, inputs=state, outputs=state)
    compiled(mx.ones((1, 1)))
    assert model.weight.item() == -1.0
    optimizer.learning_rate = 10.0
    compiled(mx.ones((1, 1)))
    assert model.weight.item() == -11.0


def test_a_module_as_input_follows_its_parameters() -> None:
    model = nn.Linear(2, 2)
    compiled = mx.compile(lambda x: model(x), inputs=model.state)
    x = mx.ones((1, 2))
    assert_same_bits(compiled(x), model(x))
    model.update({"weight": mx.zeros((2, 2)), "bias": mx.array([1.0, 2.0])})
    assert compiled(x).tolist() == [[1.0, 2.0]]


def test_a_module_that_is_not_an_input_is_a_constant() -> None:
    model = nn.Linear(2, 2)
    compiled = mx.compile(lambda x: model(x))
    x = mx.ones((1, 2))
    before = compiled(x).tolist()
    model.update({"weight": mx.zeros((2, 2))})
    assert compiled(x).tolist() == before


def test_a_compiled_evaluation_after_training_sees_the_new_parameters() -> None:
    model, optimizer = Network(), optim.SGD(learning_rate=0.5)
    state = [model.state, optimizer.state]
    x, labels = mx.random.normal((6, 8), key=mx.random.key(0)), mx.array([0, 1, 2, 0, 1, 2])

    def step(x: mx.array, labels: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x, labels)
        optimizer.update(model, gradients)
        return loss

    train_step = mx.compile(step, inputs=state, outputs=state)
    evaluate = mx.compile(lambda x: loss_of(model, x, labels), inputs=model.state)
    for _ in range(3):
        train_step(x, labels)
        assert_same_bits(evaluate(x), loss_of(model, x, labels))
