"""Several threads call compiled functions that share containers, while one of them traces."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import run_python
from weft.compiler.running.prepared import Prepared
from weft.transforms.repeat import StatefulRepeat

State = dict[str, mx.array]


class Traces:
    """Pauses in a function that is traced for arguments of one length."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.begun, self._others_called = threading.Event(), threading.Event()

    def __call__(self, x: mx.array) -> None:
        if x.shape == (self._length,) and not self.begun.is_set():
            self.begun.set()
            self._others_called.wait(0.2)


def state_of_two() -> State:
    state = {"sum": mx.zeros(()), "count": mx.zeros(())}
    mx.eval(state)
    return state


def counting(state: State, traces: Traces) -> Callable[[mx.array], mx.array]:
    def step(x: mx.array) -> mx.array:
        traces(x)
        state["sum"] = state["sum"] + x.sum()
        state["count"] = state["count"] + 1
        return state["count"] * 0 + x.sum()

    return mx.compile(step, inputs=state, outputs=state)


def check(state: State, step: Callable[[mx.array], mx.array]) -> None:
    """Each step counts."""
    for length in (1, 2, 3):
        before = np.array(state["count"])
        assert step(mx.ones((length,))).item() == length
        assert np.array(state["count"]) == before + 1


def both(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    """The results of two functions, the first of which is called on another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(first()))
    thread.start()
    try:
        found = second()
    finally:
        thread.join()
    return [*results, found]


@pytest.mark.parametrize("known", [False, True])
def test_a_call_while_another_thread_traces_the_function(known: bool) -> None:
    state, traces = state_of_two(), Traces(2)
    step = counting(state, traces)
    for _ in range(3 * known):
        step(mx.ones((1,)))

    def second() -> Any:
        assert traces.begun.wait(10)
        return step(mx.ones((1,))).item()

    assert both(lambda: step(mx.ones((2,))).item(), second) == [2, 1]
    check(state, step)


def test_a_call_that_has_begun_when_another_thread_traces_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes to the state is no constant of the trace."""
    state, traces = state_of_two(), Traces(2)
    step, values = counting(state, traces), Prepared.values
    for _ in range(3):
        step(mx.ones((1,)))
    has_read, main = threading.Event(), threading.get_ident()

    def pause(self: Prepared, arrays: Any) -> Any:
        found = values(self, arrays)
        if threading.get_ident() == main:
            has_read.set()
            assert traces.begun.wait(10)
        return found

    def first() -> Any:
        assert has_read.wait(10)
        return step(mx.ones((2,))).item()

    with monkeypatch.context() as patch:
        patch.setattr(Prepared, "values", pause)
        assert both(first, lambda: step(mx.ones((1,))).item()) == [2, 1]
    check(state, step)


@pytest.mark.parametrize("known", [False, True])
def test_a_function_that_reads_the_state_while_another_one_is_traced(known: bool) -> None:
    state, traces = state_of_two(), Traces(2)
    step = counting(state, traces)
    read = mx.compile(lambda x: state["sum"] * 0 + x, inputs=state)
    for _ in range(3 * known):
        read(mx.array(3.0))

    def second() -> Any:
        assert traces.begun.wait(10)
        return read(mx.array(5.0)).item()

    assert both(lambda: step(mx.ones((2,))).item(), second) == [2, 5]
    check(state, step)
    assert read(mx.array(7.0)).item() == 7


@pytest.mark.parametrize("known", [False, True])
def test_functions_with_other_states_do_not_wait(known: bool) -> None:
    """The function that is traced may wait for them."""
    state, other = state_of_two(), state_of_two()
    begun, called = threading.Event(), threading.Event()

    def waiting(x: mx.array) -> mx.array:
        begun.set()
        assert called.wait(10)
        state["sum"] = state["sum"] + x
        return x

    step = counting(other, Traces(0))
    for _ in range(3 * known):
        step(mx.ones((1,)))

    def second() -> Any:
        assert begun.wait(10)
        found = step(mx.ones((1,))).item()
        called.set()
        return found

    traced = mx.compile(waiting, inputs=state, outputs=state)
    assert both(lambda: traced(mx.array(2.0)).item(), second) == [2, 1]


def test_another_thread_changes_a_container_with_which_a_function_is_traced() -> None:
    """The trace has containers of its own, so what the thread changes stays."""
    arguments: dict[str, Any] = {"w": mx.array(1.0), "list": [mx.array(2.0)]}
    more = {"w": mx.array(3.0)}
    begun, changed = threading.Event(), threading.Event()

    def function(x: Any, *, y: Any) -> mx.array:
        begun.set()
        assert changed.wait(10)
        return x["w"] + 10 * x["list"][0] + 100 * y["w"]

    def second() -> Any:
        assert begun.wait(10)
        arguments["w"] = more["w"] = mx.array(4.0)
        arguments["list"].append(mx.array(5.0))
        changed.set()

    compiled = mx.compile(function)
    assert both(lambda: compiled(arguments, y=more).item(), second) == [321, None]
    assert arguments["w"].item() == more["w"].item() == 4
    assert len(arguments["list"]) == 2


def test_another_thread_changes_the_state_while_a_short_way_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"x": mx.array([[1.0, 2.0], [3.0, 4.0]])}
    mx.eval(state)

    def step() -> mx.array:
        state["x"] = state["x"] + 1
        return state["x"] * 1

    def change(self: StatefulRepeat, *_: Any) -> Any:
        state["x"] = mx.array([[10.0, 20.0], [30.0, 40.0]]).T
        return NotImplemented

    compiled = mx.compile(step, inputs=state, outputs=state)
    with monkeypatch.context() as patch:
        patch.setattr(StatefulRepeat, "call", change)
        assert compiled().tolist() == [[11, 31], [21, 41]]
    assert compiled().tolist() == [[12, 32], [22, 42]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="system libraries there do not survive a fork")
def test_a_child_has_the_state_although_another_thread_was_tracing() -> None:
    program = """
        import os, threading, warnings
        import weft.core as mx

        warnings.simplefilter("ignore")
        state = {"x": mx.array(1.0), "list": [mx.array(2.0)]}
        mx.eval(state)
        begun, forked = threading.Event(), threading.Event()

        def step():
            begun.set()
            assert forked.wait(10)
            state["x"] = state["x"] + state["list"][0]
            return state["x"] * 1

        compiled = mx.compile(step, inputs=state, outputs=state)
        thread = threading.Thread(target=compiled)
        thread.start()
        assert begun.wait(10)
        child = os.fork()
        if child == 0:
            found = state["x"].item(), state["list"][0].item()
            forked.set()
            os._exit(0 if found == (1, 2) and compiled().item() == 3 and state["x"].item() == 3 else 1)
        forked.set()
        _, status = os.waitpid(child, 0)
        thread.join()
        print(os.waitstatus_to_exitcode(status), state["x"].item())
    """
    assert run_python(program) == "0 3.0\n"
