"""Ctrl-C in a long evaluation, and at any other moment, leaves the process usable."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

import weft.core as mx
from tests.checks import child_environment, run_python
from weft.compiler.running import run
from weft.errors import EvaluationError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")

LONG_EVALUATION = """
    import weft.core as mx

    def long(x):
        for _ in range(40):
            x = mx.sin(x) @ mx.ones((200, 200)) * 1e-3
        return x

    x = mx.random.normal((200, 200), key=mx.random.key(0))
    expected = long(x).tolist()
    print("started", flush=True)
    try:
        while True:
            y = long(x)
            mx.eval(y)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert y.tolist() == expected, "what was interrupted can be evaluated again"
    assert mx.compile(mx.grad(lambda a: (a * a).sum()))(mx.array([1.0, 2.0])).tolist() == [2.0, 4.0]
    assert mx.matmul(mx.ones((300, 300)), mx.ones((300, 300))).sum().item() == 300.0**3
    print("usable", flush=True)
"""


@pytest.mark.parametrize("delay", [0.05, 0.3])
def test_control_c_in_a_long_evaluation(delay: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LONG_EVALUATION)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert out.split() == ["interrupted", "usable"], err
    assert process.returncode == 0


def test_long_work_ends_at_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits is interrupted; the thread that works stops before the end."""
    plain_execute = run.execute
    begun, ends = threading.Event(), []

    def execute(*arguments: Any) -> None:
        begun.set()
        try:
            plain_execute(*arguments)
        except EvaluationError:
            ends.append("stopped")
            raise
        ends.append("finished")

    waiting = threading.get_ident()

    def interrupt() -> None:
        assert begun.wait(timeout=30)
        time.sleep(0.05)
        signal.pthread_kill(waiting, signal.SIGINT)

    x = mx.ones((512, 512)) * 1e-3
    y = x @ x
    mx.eval(x, y)
    for _ in range(150):
        y = mx.sin(y) @ x
    monkeypatch.setattr(run, "execute", execute)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        mx.eval(y)
    thread.join()
    assert ends == ["stopped"]


AT_ANY_MOMENT = """
    import random
    import signal
    import weft.core as mx

    class Interrupt(BaseException):
        pass

    armed = False

    def interrupt(*_):
        if armed:
            raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    random.seed(ROUND)

    def work(k):
        f = mx.compile(mx.value_and_grad(lambda x: (mx.tanh(x * k) @ x.T).sum()))
        x = mx.arange(12, dtype=mx.float32).reshape(3, 4) / 10
        value, gradient = f(x)
        batch = mx.vmap(lambda row: mx.softmax(row, axis=-1) * k)(x)
        mx.eval(value, gradient, batch)
        return value.item(), gradient.tolist(), batch.tolist()

    expected = [work(k) for k in range(3)]
    interrupted = 0
    for attempt in range(ATTEMPTS):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-2))
            for k in range(100):
                work(k % 3)
            armed = False
        except Interrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert work(attempt % 3) == expected[attempt % 3], attempt
    assert interrupted > ATTEMPTS // 2, interrupted
    print("usable")
"""


def test_interrupted_while_tracing_planning_or_running() -> None:
    out = run_python(AT_ANY_MOMENT.replace("ATTEMPTS", "40").replace("ROUND", "0"))
    assert out == "usable\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_interrupted_many_times(seed: int) -> None:
    out = run_python(AT_ANY_MOMENT.replace("ATTEMPTS", "1000").replace("ROUND", str(seed)), timeout=300)
    assert out == "usable\n"


STARTING = """
    import faulthandler, signal, time
    import weft.core as mx

    faulthandler.dump_traceback_later(30, exit=True)
    armed = False


    def interrupt(*_):
        global armed
        if armed:
            armed = False
            raise KeyboardInterrupt


    x, stream = mx.ones((10,)), mx.new_stream(mx.cpu)
    mx.eval(mx.add(x, 1, stream=stream))
    interrupted = 0
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 2.3e-4)
    end = time.time() + 1
    while time.time() < end:
        try:
            armed = True
            mx.async_eval(mx.add(x, 1, stream=stream))
            mx.clear_streams()
            armed = False
        except KeyboardInterrupt:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    y = mx.add(x, 2, stream=stream)
    mx.async_eval(y)
    print(mx.all(y == 3).item(), interrupted > 0)
"""


def test_interrupted_while_threads_of_streams_start_and_end() -> None:
    assert run_python(STARTING) == "True True\n"


NO_THREAD = """
    import sys
    import weft.runtime.atomic as atomic

    def refused(*arguments):
        raise RuntimeError("can't start new thread")

    atomic.start_new_thread = refused
    seen = []

    def trace(frame, event, argument):
        if frame.f_code is not atomic.without_interrupts.__code__:
            return None
        seen.append(event)
        if "exception" in seen and event == "line":
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        atomic.without_interrupts(lambda: 1)
    except KeyboardInterrupt:
        print("interrupted", end="")
"""


def test_the_process_ends_if_no_helper_thread_starts_when_an_interrupt_comes() -> None:
    assert run_python(NO_THREAD, timeout=20) == "interrupted"
