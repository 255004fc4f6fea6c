"""A signal handler before any line of an evaluation: if it evaluates as well, it gets the right values or an error; if
it raises an error, nothing is lost."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.sampling import Cases
from weft.compiler.running.evaluate import forget_plans
from weft.errors import EvaluationError
from weft.runtime import memory
from weft.runtime.atomic import sections, without_interrupts
from weft.runtime.locks import new_lock
from weft.runtime.streams import Event

WEFT = os.path.dirname(weft.__file__)
ALLOCATOR = memory.__file__
"""No handler runs before its lines: statements that belong together are written so that Python runs none in between."""


WITH_THREADING = (WEFT, threading.__file__)


class Stopped(BaseException):
    """Raised by a handler."""


def lines_of(
    call: Callable[[], Any], handle: Callable[[], Any], number: int = -1, files: tuple[str, ...] = (WEFT,)
) -> int:
    """Make a call, and count the lines of Weft that run. Before line ``number`` of these, counted from 0, ``handle`` is
    called. Python runs no handler before ``try:``, nor at the end of a ``with`` block before ``__exit__`` is called:
    these are not counted."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        file, latest = frame.f_code.co_filename, 0

        def trace_lines(frame: Any, event: str, argument: Any) -> Any:
            nonlocal count, latest
            line = frame.f_lineno
            text = linecache.getline(file, line).lstrip()
            left_out = text == "try:\n" or (line < latest and text.startswith("with "))
            latest = line
            if event == "line" and not left_out:
                count += 1
                if count == number + 1:
                    handle()
            return trace_lines

        return trace_lines if file.startswith(files) and file != ALLOCATOR else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class Case(NamedTuple):
    """A call to interrupt, and a function that reads its result, with all values that the result may have."""

    call: Callable[[], Any]
    read: Callable[[], Any]
    before: list[list[float]]
    after: list[list[float]]
    """Those of the values that may be read after the call."""


def eager() -> Case:
    """Two results, one of them in the memory of their input."""
    x = mx.arange(64, dtype=mx.float32) * 1
    mx.eval(x)
    a, b = x + 1, x * 3
    expected = [*np.arange(1.0, 65.0), *np.arange(0.0, 192.0, 3.0)]
    del x
    return Case(lambda: mx.eval(a, b), lambda: [*np.array(a), *np.array(b)], [expected], [expected])


def one_result() -> Case:
    x = mx.arange(16, dtype=mx.float32) - 3
    return Case(lambda: mx.eval(x), lambda: np.array(x), [list(np.arange(-3.0, 13.0))], [list(np.arange(-3.0, 13.0))])


def planned_anew() -> Case:
    forget_plans()
    a = mx.softmax(mx.zeros((4, 4)), axis=-1) @ mx.ones((4, 4))
    return Case(lambda: mx.eval(a), lambda: np.array(a).ravel(), [[1.0] * 16], [[1.0] * 16])


twice = mx.compile(lambda x: (x * 2, x + 1))


def compiled() -> Case:
    x = mx.arange(16, dtype=mx.float32)
    results: list[object] = []
    mx.eval(x)
    doubled = list(np.arange(0.0, 32.0, 2.0))

    def call() -> None:
        results[:] = [twice(x)[0]]

    return Case(call, lambda: np.array(results[0] if results else twice(x)[0]), [doubled], [doubled])


def stateful() -> Case:
    """New elements of the state's arrays are written in the memory of the old ones."""
    state = {"a": mx.zeros((64,)), "b": mx.ones((64,))}

    def step(x: mx.array) -> mx.array:
        state["a"] = state["a"] + x
        state["b"] += x
        return state["a"].sum()

    stepped, one = mx.compile(step, inputs=state, outputs=state), mx.array(1.0)
    for _ in range(3):
        stepped(one)
    before, after = [[3.0] * 64 + [4.0] * 64, [4.0] * 64 + [5.0] * 64]

    def read() -> list[float]:
        held = [state["a"], state["b"]]
        return [*np.array(held[0]), *np.array(held[1])]

    return Case(lambda: stepped(one), read, [before, after], [after])


first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)


def on_streams() -> Case:
    x = mx.add(mx.arange(16, dtype=mx.float32), 1, stream=first)
    y = mx.multiply(x, 2, stream=second)
    values = [*np.arange(1.0, 17.0), *np.arange(2.0, 34.0, 2.0)]

    def call() -> None:
        mx.async_eval(y)
        mx.eval(x, y)

    return Case(call, lambda: [*np.array(x), *np.array(y)], [values], [values])


CASES = [eager, one_result, planned_anew, compiled, stateful, on_streams]


@pytest.mark.parametrize("make", CASES)
def test_a_handler_that_evaluates(make: Callable[[], Case], cases: Cases) -> None:
    other = mx.compile(lambda x: x * x + 1)
    make().call()
    count = lines_of(make().call, lambda: None)
    outcomes = set()
    for number in cases.some(60, range(0, count, 1 + count // 2000)):
        case = make()
        seen: list[Any] = []

        def handle(case: Case = case, seen: list[Any] = seen) -> None:
            with suppress(EvaluationError):
                seen.append(None)
                assert list(case.read()) in case.before
                seen.append("read")
            with suppress(EvaluationError):
                assert (mx.ones((3,)) * len(seen)).tolist() == [len(seen)] * 3
                assert other(mx.array(3.0)).item() == 10
                seen.append("evaluated")

        lines_of(case.call, handle, number)
        assert list(case.read()) in case.after
        outcomes |= set(seen)
    assert outcomes >= {"read", "evaluated"} or make is planned_anew  # nearly all lines make the plan


@pytest.mark.parametrize("make", CASES)
def test_a_handler_that_raises(make: Callable[[], Case], cases: Cases) -> None:
    def handle() -> None:
        raise Stopped

    make().call()
    count = lines_of(make().call, lambda: None)
    for number in cases.some(60, range(0, count, 1 + count // 2000)):
        case = make()
        with suppress(Stopped):
            lines_of(case.call, handle, number)
        assert list(case.read()) in case.before
        with suppress(Stopped):
            case.call()


def test_an_interrupt_of_a_block_leaves_the_lock_to_those_around_it() -> None:
    lock = new_lock()

    def call() -> None:
        with lock:
            try:
                with lock:
                    pass
            finally:
                assert lock._is_owned()  # type: ignore[attr-defined]

    def handle() -> None:
        raise Stopped

    for number in range(lines_of(call, lambda: None)):  # no lines where the lock is native
        with pytest.raises(Stopped):
            lines_of(call, handle, number)
        assert not lock._is_owned()  # type: ignore[attr-defined]


def test_a_handler_that_is_refused_is_told_what_to_do() -> None:
    x = mx.ones((3,)) + 1
    with sections, pytest.raises(EvaluationError, match=r"signal handler.* Set a flag"):
        mx.eval(x)
    assert x.tolist() == [2, 2, 2]


def test_an_interrupt_of_native_work_arrives() -> None:
    def handle() -> None:
        raise Stopped

    def call() -> None:
        assert without_interrupts(lambda: 5) == 5

    for number in range(lines_of(call, lambda: None, files=WITH_THREADING)):
        with pytest.raises(Stopped):
            lines_of(call, handle, number, WITH_THREADING)
    call()


def test_a_stream_works_if_python_starts_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    stream = mx.new_stream(mx.cpu)
    monkeypatch.setattr(threading, "Thread", Thread)
    for _ in range(2):
        x = mx.add(mx.array([0, 1, 2]), 1, stream=stream)
        mx.async_eval(x)
        assert x.tolist() == [1, 2, 3]


def test_an_interrupt_at_the_end_of_waiting_leaves_others_no_closed_lock() -> None:
    class Interrupted:
        """A lock: right after it is acquired, a handler raises. On Python 3.14 this may happen in a ``with``, too."""

        def __init__(self, lock: Any) -> None:
            self.lock, self.release = lock, lock.release

        def acquire(self) -> None:
            self.lock.acquire()
            raise Stopped

        __enter__ = acquire

        def __exit__(self, *_: object) -> None:
            self.release()

    event = Event()
    lock = event._happened
    event._happened = Interrupted(lock)  # type: ignore[assignment]
    finishing = threading.Timer(0.05, event.finish)
    finishing.start()
    with pytest.raises(Stopped):
        event.join()
    finishing.join()
    assert lock.acquire(timeout=1)


def test_no_while_stands_in_a_block() -> None:
    """In CPython 3.12 and 3.13 an interrupt at the repetition of a loop is outside of the enclosing block, whose lock
    would then stay held."""
    texts = {path: path.read_text() for path in Path(WEFT).rglob("*.py")}
    for path, text in texts.items():
        for block in ast.walk(ast.parse(text)) if "while " in text else ():
            if isinstance(block, ast.With | ast.Try):
                found = [node.lineno for line in block.body for node in ast.walk(line) if isinstance(node, ast.While)]
                assert not found, f"{path}, line {found[0]}"
