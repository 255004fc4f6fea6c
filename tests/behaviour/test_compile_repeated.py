"""Repeated calls take the short path only if they are like the previous call."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import Counted
from tests.gates import Gate, is_there
from weft.compiler.running import run
from weft.errors import TraceError
from weft.transforms.compile import _Compiled
from weft.transforms.repeat import repeat_of


def like_the_first() -> mx.array:
    x = mx.array(np.arange(9, dtype=np.float32).reshape(3, 3))
    mx.eval(x)
    return x


def evaluated(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


OTHERS: dict[str, Callable[[], Any]] = {
    "strides": lambda: evaluated(like_the_first().T),
    "dtype": lambda: evaluated(like_the_first().astype(mx.int32)),
    "dtype of the same size": lambda: evaluated(like_the_first() > 4),
    "number of rows": lambda: evaluated(mx.ones((5, 3)) * 2),
    "number of dimensions": lambda: evaluated(mx.ones((3,))),
    "no value yet": lambda: like_the_first() * 3,
    "a number": lambda: 4.0,
    "a whole number": lambda: 4,
}


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_an_argument_that_differs_in_its(name: str, stateful: bool) -> None:
    def function(x: Any) -> mx.array:
        state[0] = state[0] + 1
        return mx.add(x, x) * 1

    state = [mx.array(0.0)]
    compiled = mx.compile(function, inputs=state, outputs=state) if stateful else mx.compile(lambda x: mx.add(x, x) * 1)
    for x in (like_the_first(), like_the_first(), OTHERS[name](), like_the_first(), OTHERS[name]()):
        found, expected = compiled(x), mx.add(x, x) * 1
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(np.array(found), np.array(expected))
    assert not stateful or state[0].item() == 5.0


@pytest.mark.parametrize("stateful", [False, True])
def test_another_number_of_arguments(stateful: bool) -> None:
    state = [mx.array(1.0)]
    container = state if stateful else None
    compiled = mx.compile(lambda *xs: sum(xs) * state[0], inputs=container, outputs=container)
    x = mx.array(2.0)
    assert [compiled(*[x] * count).item() for count in (2, 2, 3, 2, 1)] == [4.0, 4.0, 6.0, 4.0, 2.0]


def test_what_it_captures_may_be_traced() -> None:
    """The gradient goes through an array that was a constant in earlier calls."""
    captured = [mx.array(2.0)]
    compiled = mx.compile(lambda x: x * captured[0])
    x = mx.array(5.0)
    assert [compiled(x).item() for _ in range(3)] == [10.0] * 3

    def function(w: mx.array) -> mx.array:
        captured[0] = w
        return compiled(x)

    assert mx.grad(function)(mx.array(3.0)).item() == 5.0
    assert mx.vmap(function)(mx.array([3.0, 4.0])).tolist() == [15.0, 20.0]
    assert mx.jvp(function, [mx.array(3.0)], [mx.array(1.0)])[1][0].item() == 5.0


def test_a_state_that_is_replaced_waits_for_its_stream() -> None:
    """A call that reuses the memory of the state runs after queued work."""
    state = [mx.zeros((64,))]

    def step(x: mx.array) -> mx.array:
        state[0] = state[0] + x
        return state[0] * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    x, stream = mx.array(1.0), mx.new_stream(mx.cpu)
    mx.eval(x, state)
    with mx.stream(stream):
        for _ in range(3):
            mx.eval(compiled(x))
        with Gate() as gate:
            gate.block(stream)
            late = compiled(x)
            assert not is_there(late)
            assert not is_there(state[0])
    assert late.tolist() == [8.0] * 64
    assert state[0].tolist() == [4.0] * 64


def test_threads_that_make_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have prepared their calls before either runs native code."""
    compiled = mx.compile(lambda x: (x * 2, x + 1))
    inputs = [mx.full((100,), float(number)) for number in range(2)]
    mx.eval(inputs, compiled(mx.full((100,), 7.0)))  # memory that is used again has other values
    meeting = threading.Barrier(2)
    plain_execute = run.execute
    results: list[Any] = [[], []]

    def execute(*arguments: Any) -> None:
        meeting.wait(timeout=30)
        plain_execute(*arguments)

    def work(number: int) -> None:
        results[number] = [compiled(inputs[number]) for _ in range(5)]

    monkeypatch.setattr(run, "execute", execute)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    monkeypatch.undo()
    for number in range(2):
        assert len(results[number]) == 5
        for twice, more in results[number]:
            assert (twice.tolist(), more.tolist()) == ([2.0 * number] * 100, [number + 1.0] * 100)


@pytest.mark.parametrize("kind", ["arguments", "inputs", "replaced"])
def test_arrays_without_values_take_the_short_way_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch or a learning rate that is not computed yet when the call is made."""
    state: dict[str, Any] = {"rate": mx.array(1.0), "w": [mx.array(float(n)) for n in range(5)]}

    def function(x: mx.array) -> mx.array:
        if kind == "replaced":
            state["w"][0] = state["w"][0] + state["rate"] * x
        return sum(state["w"], x) * state["rate"]

    def with_argument(x: mx.array, values: Any) -> mx.array:
        return sum(values["w"], x) * values["rate"]

    if kind == "arguments":
        compiled = mx.compile(with_argument)
    else:
        compiled = mx.compile(function, inputs=state, outputs=state if kind == "replaced" else None)
    long_way = Counted(type(compiled)._find)
    monkeypatch.setattr(type(compiled), "_find", long_way.function)
    first = 0.0
    for step in range(8):
        state["rate"] = mx.array(step) * 0.5
        x = mx.array(step) + 1.0
        found = compiled(x, state) if kind == "arguments" else compiled(x)
        first += 0.5 * step * (step + 1) if kind == "replaced" else 0.0
        assert found.item() == (first + 10.0 + step + 1) * 0.5 * step
        if step == 1:
            before = long_way.calls
    assert long_way.calls == before


def test_arrays_without_values_of_a_trace_take_the_long_way() -> None:
    leaked = {}

    def leaking(x: mx.array) -> mx.array:
        leaked["x"] = x * 2
        return x

    mx.compile(leaking)(mx.array(1.0))
    compiled = mx.compile(lambda values: values["a"] + values["b"])
    for _ in range(3):
        assert compiled({"a": mx.array(1.0), "b": mx.array(2.0)}).item() == 3.0
    with pytest.raises(TraceError, match="traced"):
        compiled({"a": mx.array(1.0), "b": leaked["x"]}).item()
    assert compiled({"a": mx.array(1.0), "b": mx.array(2.0) + 1}).item() == 4.0


def test_another_thread_assigns_to_an_argument_while_a_short_way_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = mx.compile(lambda x: x * 2), evaluated(mx.ones((3,)))
    module = sys.modules[_Compiled.__module__]
    make = repeat_of

    def assign_first(*args: Any) -> Any:
        x[:] = 7
        return make(*args)

    monkeypatch.setattr(module, "repeat_of", assign_first)
    assert function(x).tolist() == [2, 2, 2]
    assert [function(x).tolist() for _ in range(3)] == [[14, 14, 14]] * 3


@pytest.mark.parametrize("shapeless", [False, True])
def test_another_thread_assigns_to_an_argument_before_the_function_is_traced(
    shapeless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The array gets another shape and another dtype. The trace is for those that it had when the call began."""
    x, trace = mx.array([1]), _Compiled._trace

    def assign_first(*args: Any) -> Any:
        x.__iadd__(mx.array([0.5, 1.5, 2.5]))
        return trace(*args)

    function = mx.compile(lambda x: x * 2, shapeless=shapeless)
    with monkeypatch.context() as patch:
        patch.setattr(_Compiled, "_trace", assign_first)
        assert function(x).tolist() == [2]
    assert function(x).tolist() == [3, 5, 7]
    assert function(mx.array([4])).tolist() == [8]
