"""Signal handlers that read arrays, and interrupts at any moment: no work is lost, half done or done twice."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

import pytest

import weft.core as mx
from tests.checks import run_python
from tests.gates import Gate, is_there
from weft.errors import EvaluationError
from weft.runtime.streams import worker_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


def cancel(value: mx.array, gate: Gate) -> None:
    """Do the same as Ctrl-C to the run that computes an array on a stream and waits for a gate."""
    assert value.node.value is not None
    event = value.node.value.event
    event.cancel()
    gate.open()
    with pytest.raises(EvaluationError, match="cancelled"):
        event.wait()


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_cancelled_can_be_asked_for_again(compiled: bool) -> None:
    stream = mx.new_stream(mx.cpu)

    def function(x: mx.array) -> mx.array:
        return mx.exp(x).sum() + x

    with Gate() as gate, mx.stream(stream):
        result = (mx.compile(function) if compiled else function)(gate.behind(0.0))
        mx.async_eval(result)
        further = mx.add(result, 1, stream=mx.new_stream(mx.cpu))
        mx.async_eval(further)
        cancel(result, gate)
    with suppress(EvaluationError):  # a thread that waits for it gets an error
        further.item()
    assert further.item() == 2
    assert result.item() == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_what_was_cancelled_and_let_go_holds_no_memory(compiled: bool) -> None:
    """Python's search for cycles is switched off, as it comes late if there are few large objects."""

    def function(x: mx.array) -> mx.array:
        return mx.exp(x).sum() + mx.cumsum(mx.broadcast_to(x, (1000,)))

    stream = mx.new_stream(mx.cpu)
    gc.collect()
    gc.disable()
    try:
        before = mx.get_active_memory()
        with Gate() as gate, mx.stream(stream):
            result = (mx.compile(function) if compiled else function)(gate.behind(0.0))
            mx.async_eval(result)
            assert result.node.value is not None
            event = result.node.value.event
            event.noticed = True  # set by the thread that was interrupted
            event.cancel()
            gate.open()
            event.join()
        worker_of(stream).submit(lambda: None).join()  # the thread has dropped its earlier work
        assert mx.get_active_memory() > before
        del result, event, gate
        assert mx.get_active_memory() == before
    finally:
        gc.enable()


def test_what_is_cancelled_does_not_run_what_was_cancelled_before() -> None:
    """Otherwise the end of the interpreter, which cancels queued work, could wait for all of it."""
    with Gate() as gate, mx.stream(mx.new_stream(mx.cpu)):
        first = mx.exp(gate.behind(0.0))
        mx.async_eval(first)
        second = first + 1
        mx.async_eval(second)
        assert first.node.value is not None
        first.node.value.event.cancel()
        cancel(second, gate)
    assert not is_there(first)
    assert second.item() == 2
    assert is_there(first)


def test_the_state_of_a_cancelled_step_is_the_new_one() -> None:
    state = {"w": mx.zeros((4,))}

    def step(x: mx.array) -> mx.array:
        state["w"] = state["w"] + 1 + x
        return state["w"].sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    compiled(mx.array(0.0))
    with Gate() as gate, mx.stream(mx.new_stream(mx.cpu)):
        loss = compiled(gate.behind(1.0))
        cancel(loss, gate)
    assert state["w"].tolist() == [3, 3, 3, 3]
    assert loss.item() == 12
    assert compiled(mx.array(0.0)).item() == 16


READING = """
    import faulthandler, signal, time
    import numpy as np
    import weft.core as mx
    from weft import errors

    faulthandler.dump_traceback_later(50, exit=True)
    state, one, stream = {"w": mx.zeros((50_000,))}, mx.array(1.0), mx.new_stream(mx.cpu)
    seen, refused = [], []


    def step(x):
        state["w"] = state["w"] + x + 0 * mx.sin(state["w"])
        return state["w"].sum()


    def arm():
        signal.setitimer(signal.ITIMER_REAL, 0.0011)


    def handler(*_):
        try:
            values = np.array(state["w"] if COMPILED else eager + 0)
            seen.append((values == values[0]).all() and values[0] == round(values[0]))
            mx.eval(mx.ones(3) * 2)
        except errors.EvaluationError as error:
            assert "Set a flag in the handler" in str(error)
            refused.append(error)
        arm()


    compiled = mx.compile(step, inputs=state, outputs=state)
    compiled(one), compiled(one)
    eager, count = mx.zeros((1000,)), 0
    signal.signal(signal.SIGALRM, handler)
    arm()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        count += 1
        if COMPILED:
            compiled(one)
        else:
            eager = eager + 1
            mx.eval(eager)
            mx.async_eval(mx.sin(eager, stream=stream))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen and len(seen) + len(refused) > 20 and all(seen), seen
    assert (state["w"][0].item() - 2 if COMPILED else eager[0].item()) == count
"""


@pytest.mark.parametrize("compiled", ["True", "False"])
def test_a_handler_reads_what_is_being_computed(compiled: str) -> None:
    run_python(READING.replace("COMPILED", compiled))


INTERRUPTED = """
    import faulthandler, random, signal, time
    import weft.core as mx

    faulthandler.dump_traceback_later(50, exit=True)
    random_ = random.Random(0)
    x = mx.ones((16,))
    compiled = mx.compile(lambda x: x * 2 + 1)
    mx.eval(compiled(x), x * 2 + 1)


    def interrupt(*_):
        raise KeyboardInterrupt


    def body(number):
        if KIND == "compiled":
            compiled(x)
        elif KIND == "eager":
            mx.eval(x * 2 + 1)
        else:
            functions = random_.choices([mx.sin, mx.cos, mx.exp, mx.tanh, mx.sqrt, mx.abs, mx.square], k=4)
            y = mx.ones((3,)) * number
            for function in functions:
                y = function(y)
            mx.eval(y)


    def until(limit):
        # Not in the `try` itself: in CPython 3.12 and 3.13 an interrupt as a `while` is repeated belongs to no block.
        signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-4, 1e-2 if KIND == "code" else 1e-3))
        while time.monotonic() < limit:
            body(count)
        raise AssertionError("an interrupt did not arrive")


    signal.signal(signal.SIGALRM, interrupt)
    end, count = time.monotonic() + 0.7, 0
    while time.monotonic() < end or count <= 20:
        try:
            until(time.monotonic() + 5)
        except KeyboardInterrupt:
            count += 1
    print(count > 20, mx.sin(mx.zeros((2,))).tolist(), mx.get_active_memory() < 10_000)
"""


@pytest.mark.parametrize("kind", ["compiled", "eager", "code"])
def test_every_interrupt_arrives_and_does_no_harm(kind: str) -> None:
    """An interrupt that Python raises in a destructor would be lost, and llvmlite's destructors do not survive one."""
    printed = run_python(INTERRUPTED.replace("KIND", repr(kind)), WEFT_DISK_CACHE="0")
    assert printed == "True [0.0, 0.0] True\n"
