"""After an interrupt in any line of a compiled function's call, its state is completely the old one or completely the
new one."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx

WEFT = os.path.dirname(weft.__file__)
ROOMS = tuple(os.path.join(WEFT, name) for name in ("transforms", "graph", "tree.py", "runtime/atomic.py"))
NAMES = "abc"


class Stopped(BaseException):
    """Raised between two lines, as a signal handler might do."""


def stopped_at(number: int, call: Callable[[], Any], function: str | None = None) -> bool:
    """Make a call, with an interrupt before line ``number``, counted from 0, of the lines of Weft, or of one function,
    that run. Return whether the call got there."""
    lines = itertools.count()
    reached = False

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal reached
        if not frame.f_code.co_filename.startswith(ROOMS) and frame.f_code.co_name != "__setitem__":
            return None
        if event == "line" and function in (None, frame.f_code.co_name) and next(lines) == number:
            sys.settrace(None)
            reached = True
            raise Stopped
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Stopped:
        pass
    finally:
        sys.settrace(before)
    return reached


class Checked(dict[str, Any]):
    """A dict with its own ``__setitem__``."""

    def __setitem__(self, key: str, value: Any) -> None:
        assert isinstance(key, str)
        super().__setitem__(key, value)


class CheckedList(list[Any]):
    """A list with its own ``__setitem__``."""

    def __setitem__(self, index: Any, value: Any) -> None:
        assert isinstance(index, int | slice)
        super().__setitem__(index, value)


def replaced(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name] = state[name] + x


def assigned(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name] += x


def replaced_inside(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name]["w"] = state[name]["w"] + x


def in_lists_and_tuples(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name][0] = (state[name][0][0] + x, state[name][0][1] + x)


def in_lists(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name][0] = state[name][0] + x


def in_another_order(state: Any, x: mx.array) -> None:
    for name in NAMES:
        state[name] = state.pop(name) + x


STATES: dict[str, tuple[Callable[[], Any], Callable[[Any, mx.array], None]]] = {
    "replaced": (lambda: {name: mx.zeros((3,)) for name in NAMES}, replaced),
    "assigned in place": (lambda: {name: mx.zeros((3,)) for name in NAMES}, assigned),
    "nested": (lambda: {name: {"w": mx.zeros((3,))} for name in NAMES}, replaced_inside),
    "lists and tuples": (lambda: {name: [(mx.zeros((3,)), mx.zeros(()))] for name in NAMES}, in_lists_and_tuples),
    "keys that move": (lambda: {name: mx.zeros((3,)) for name in NAMES}, in_another_order),
    "a dict of another type": (lambda: Checked({name: mx.zeros((3,)) for name in NAMES}), replaced),
    "lists of another type": (lambda: {name: CheckedList([mx.zeros((3,))]) for name in NAMES}, in_lists),
}
CALLS: dict[str, Callable[[Any, mx.array], Any]] = {
    "positional": lambda compiled, x: compiled(x),
    "by keyword": lambda compiled, x: compiled(x=x),
}


def all_values(state: Any) -> list[float]:
    """Every element of the arrays in nested containers."""
    if isinstance(state, dict):
        return [value for name in NAMES if name in state for value in all_values(state[name])] or all_values(state["w"])
    if isinstance(state, list | tuple):
        return [value for part in state for value in all_values(part)]
    return np.array(state).ravel().tolist()


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("name", STATES)
def test_before_any_line_of_a_call(name: str, way: str) -> None:
    make, change = STATES[name]
    state = make()
    inner = [state[name] for name in NAMES]

    def step(x: mx.array) -> mx.array:
        change(state, x)
        return x * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    one = mx.array(1.0)
    mx.eval(one, state)
    for _ in range(3):
        CALLS[way](compiled, one)
    size, steps, seen = len(all_values(state)), 3, set()
    for line in itertools.count():
        reached = stopped_at(line, lambda: CALLS[way](compiled, one))
        found = all_values(state)
        assert found in ([steps] * size, [steps + 1.0] * size), f"line {line}: {found} after {steps} calls"
        assert all_values(state) == found
        seen.add(found[0] - steps)
        steps = int(found[0])
        if not reached:
            break
    assert line > 20
    assert seen == {0.0, 1.0}
    if isinstance(inner[0], dict | list):
        assert [state[name] for name in NAMES] == inner
        assert all(state[name] is container for name, container in zip(NAMES, inner, strict=True))


def test_while_what_a_trace_assigned_is_undone() -> None:
    for line in itertools.count():
        outside = {name: mx.zeros((3,)) for name in NAMES}
        one = mx.array(1.0)
        mx.eval(one, outside)

        def function(outside: Any, x: mx.array) -> mx.array:
            assigned(outside, x)
            return outside[NAMES[0]]

        reached = stopped_at(line, partial(mx.compile(partial(function, outside)), one), "done_at_end")
        assert all_values(outside) == [0.0] * 9
        if not reached:
            break
    assert line > 3
