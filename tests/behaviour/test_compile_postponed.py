"""Calls of compiled functions whose arguments are not computed and need much memory wait until their results are
needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.nn as nn
from weft.errors import TraceError
from weft.transforms import postponing

MUCH = 1 << 16


@pytest.fixture(autouse=True)
def _much_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postponing, "MUCH_MEMORY", MUCH)
    mx.random.seed(7)


def weights(rows: int = 256) -> mx.array:
    """Random numbers that are not evaluated: 256 rows need four times `MUCH`."""
    return mx.random.normal((rows, 256))


def is_lazy(*arrays: mx.array) -> bool:
    return all(array.node.value is None for array in arrays)


@mx.compile
def gated(x: mx.array, y: mx.array) -> mx.array:
    return x * mx.sigmoid(x) * y


def test_nothing_is_computed_of_a_model_that_nobody_asks_for() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(512, 256)
            self.layers = [nn.Linear(256, 256) for _ in range(8)]

        def __call__(self, tokens: mx.array) -> mx.array:
            x = self.table(tokens)
            for layer in self.layers:
                x = gated(layer(x), x)
            return self.table.as_linear(x)

    model = Model()
    tokens = mx.array([[1, 2, 3]])
    mx.eval(gated(mx.ones((4,)), mx.ones((4,))), tokens, mx.random.state)
    before = weft.counters()
    scores = model(tokens)
    assert scores.shape == (1, 3, 512)
    assert (weft.counters() - before).plans == 0
    assert is_lazy(scores, model.table.weight, *[layer.weight for layer in model.layers])
    found = np.array(scores)
    mx.disable_compile()
    try:
        np.testing.assert_array_equal(found, np.array(model(tokens)))
    finally:
        mx.enable_compile()


@pytest.mark.parametrize("shapeless", [False, True])
def test_the_results_have_the_same_bits(shapeless: bool) -> None:
    function = mx.compile(lambda x, y: (mx.softmax(x @ y, axis=-1), {"sum": x.sum(), "same": y}), shapeless=shapeless)
    for rows in (256, 300):
        x, y = weights(rows), weights()
        softmax, rest = function(x, y)
        assert is_lazy(x, y, softmax, rest["sum"])
        mx.eval(x, y)
        expected, expected_rest = function(x, y)
        assert not is_lazy(expected)
        for one, other in ((softmax, expected), (rest["sum"], expected_rest["sum"]), (rest["same"], y)):
            np.testing.assert_array_equal(np.array(one), np.array(other))


def test_a_call_starts_at_once_if_what_is_pending_is_made_of_what_is_there() -> None:
    data, order = mx.random.normal((1024, 256)), mx.random.permutation(1024)
    mx.eval(data, order)
    assert not is_lazy(gated(data[order][:512], data[order][512:]))
    assert not is_lazy(gated(data @ data.T, mx.array(2.0) * mx.array(3.0)))


def test_a_call_starts_at_once_if_little_is_pending() -> None:
    x = mx.random.normal((64,))
    assert not is_lazy(gated(x, x + 1))


def test_a_call_that_updates_its_state_starts_at_once() -> None:
    state = [mx.array(0.0)]

    def step(x: mx.array) -> mx.array:
        state[0] = state[0] + x.sum()
        return x * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    x = weights()
    for _ in range(2):
        assert not is_lazy(compiled(x), state[0])
        x = weights()


def test_a_call_with_nested_arguments_waits_the_second_time_too() -> None:
    function = mx.compile(lambda params, scale: params["w"] * scale)
    there = weights()
    mx.eval(there)
    for _ in range(3):
        mx.eval(function({"w": there}, 2.0))
    first = weights()
    result = function({"w": first}, 2.0)
    assert is_lazy(result, first)
    np.testing.assert_array_equal(np.array(result), np.array(first) * 2)


LOOPS: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    "a chain": lambda x, w: x * 0.5 + 1,
    "weights in each call": lambda x, w: mx.tanh(x @ w + 1),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_never_asks_collects_a_bounded_number_of_operations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postponing, "MOST_OPERATIONS", 200)
    monkeypatch.setattr(postponing, "MOST_CALLS", 100)
    monkeypatch.setattr(postponing, "_waiting", deque())
    step = mx.compile(LOOPS[name])
    x, w = weights(), weights()
    waited = 0
    for _ in range(300):
        x = step(x, w)
        waited += is_lazy(x)
    assert 0 < waited <= 100
    assert not is_lazy(x)


def test_weights_are_found_beside_a_long_chain_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the operations of the earlier layers of a deep model."""
    monkeypatch.setattr(postponing, "MOST_OPERATIONS", 200)
    x = mx.random.normal((1, 32))
    for _ in range(200):
        x = x * 1.01 + 0.1
    assert MUCH // 2 == 32 * 256 * 4
    result = gated(x @ weights(32), x @ weights(32))
    assert is_lazy(x, result)


def test_gradients_and_batches_of_calls_with_pending_arguments() -> None:
    w = weights()
    loss = mx.compile(lambda w, x: (w @ x).square().sum())
    x = mx.ones((256,))
    value, gradient = mx.value_and_grad(loss)(w, x)
    rows = mx.vmap(gated)(w, w)
    found = [np.array(array) for array in (value, gradient, rows)]
    mx.eval(w)
    value, gradient = mx.value_and_grad(loss)(w, x)
    for one, other in zip(found, (value, gradient, mx.vmap(gated)(w, w)), strict=True):
        np.testing.assert_array_equal(one, np.array(other))


def test_an_array_that_leaked_out_of_a_trace_is_refused_when_its_value_is_asked_for() -> None:
    leaked: list[mx.array] = []

    def leaking(x: mx.array) -> mx.array:
        leaked.append(x @ x)
        return x

    mx.vmap(leaking)(mx.ones((2, 256, 256)))
    with pytest.raises(TraceError, match=r"vmap\(.*leaking"):
        mx.eval(gated(leaked[0], weights()))
