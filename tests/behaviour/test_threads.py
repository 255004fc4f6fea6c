"""Several Python threads build, trace, compile and evaluate at once; a forked child starts without their state."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import assert_same_bits, run_python
from tests.gates import Gate, is_there
from weft.compiler.running import evaluate
from weft.compiler.running.submission import Inputs
from weft.runtime.atomic import no_garbage_collected
from weft.runtime.host import host
from weft.runtime.memory import Buffer
from weft.utils import tree_flatten


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of `work(0)`, ..., each on its own thread, all started at the same moment."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread is stuck"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def model(x: mx.array, k: float) -> mx.array:
    return (mx.softmax(mx.tanh(x * k) @ x.T, axis=-1) @ x).sum(axis=0)


X = mx.random.normal((20, 10), key=mx.random.key(0))
mx.eval(X)


def test_evaluating() -> None:
    expected = [model(X, k) for k in range(4)]
    mx.eval(expected)
    results = in_threads(4, lambda k: [model(X, k) + 0 for _ in range(20)][-1].tolist())
    assert results == [e.tolist() for e in expected]


def test_compiling_the_same_function() -> None:
    compiled = mx.compile(model)
    results = in_threads(4, lambda number: [compiled(X, 2.0).tolist() for _ in range(5)])
    assert all(result == [model(X, 2.0).tolist()] * 5 for result in results)


def test_compiling_many_functions() -> None:
    def work(number: int) -> list[Any]:
        return [mx.compile(lambda x, k=k: model(x, number + k))(X).tolist() for k in range(4)]

    assert in_threads(4, work) == [[model(X, number + k).tolist() for k in range(4)] for number in range(4)]


def test_differentiating_and_mapping() -> None:
    gradient = mx.grad(lambda x: model(x, 1.5).sum())
    mapped = mx.vmap(lambda row: mx.sin(row).sum())
    expected = (gradient(X).tolist(), mapped(X).tolist())
    assert in_threads(4, lambda number: (gradient(X).tolist(), mapped(X).tolist())) == [expected] * 4


def test_a_trace_on_one_thread_does_not_disturb_another() -> None:
    """One thread waits in the middle of tracing while another evaluates."""
    tracing, evaluated = threading.Event(), threading.Event()
    seen: list[list[float]] = []

    def slow(x: mx.array) -> mx.array:
        y = x * 2
        tracing.set()
        assert evaluated.wait(timeout=30)
        return y + 1

    def evaluate() -> None:
        assert tracing.wait(timeout=30)
        try:
            seen.append((mx.ones(2) + 1).tolist())
            seen.append(mx.compile(lambda x: x * 5)(mx.ones(2)).tolist())
        finally:
            evaluated.set()

    thread = threading.Thread(target=evaluate)
    thread.start()
    result = mx.compile(slow)(mx.array([1.0, 2.0]))
    thread.join()
    assert result.tolist() == [3.0, 5.0]
    assert seen == [[2.0, 2.0], [5.0, 5.0]]


def values_of(array: mx.array, thread: int) -> Any:
    return array.tolist()


def test_one_array_evaluated_by_all() -> None:
    for _ in range(20):
        shared = model(X, 3.0)
        results = in_threads(4, partial(values_of, shared))
        assert results == [results[0]] * 4
        assert_same_bits(shared, model(X, 3.0))


def test_arrays_freed_on_another_thread() -> None:
    before = mx.get_active_memory()

    def evaluate(number: int) -> None:
        for k in range(20):
            mx.eval(mx.ones((1 << 14,)) + k)

    in_threads(4, evaluate)
    assert mx.get_active_memory() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="system libraries there do not survive a fork")
def test_a_forked_child_starts_clean() -> None:
    program = """
        import os
        import warnings
        import weft.core as mx

        warnings.simplefilter("ignore")
        x = mx.ones((600, 600))
        mx.eval(x @ x + mx.sin(x).sum())
        compiled = mx.compile(lambda a: (a @ a).sum())
        mx.eval(compiled(x))
        child = os.fork()
        if child == 0:
            ok = compiled(x).item() == 600.0**3 and (mx.sin(x * 0) + 1).sum().item() == 360000.0
            ok = ok and mx.grad(lambda a: (a * a).sum())(mx.array(3.0)).item() == 6.0
            os._exit(0 if ok else 1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), compiled(x).item() == 600.0**3)
    """
    assert run_python(program) == "0 True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="system libraries there do not survive a fork")
def test_a_child_collects_garbage_although_another_thread_was_planning() -> None:
    program = """
        import gc, os, threading, warnings
        from weft.runtime.atomic import no_garbage_collected

        warnings.simplefilter("ignore")
        planning, forked = threading.Event(), threading.Event()

        def plan():
            with no_garbage_collected():
                planning.set()
                forked.wait()

        def in_child():
            child = os.fork()
            if child == 0:
                os._exit(gc.isenabled())
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        for collecting in (True, False):
            gc.enable() if collecting else gc.disable()
            planning.clear(), forked.clear()
            thread = threading.Thread(target=plan)
            thread.start()
            planning.wait()
            print(in_child(), end=" ")
            forked.set()
            thread.join()
            print(gc.isenabled(), end=" ")
        gc.enable()
        with no_garbage_collected():
            print(in_child(), end=" ")
    """
    assert run_python(program) == "1 True 0 False 0 "


def test_garbage_is_collected_after_the_last_of_several_plans() -> None:
    seen = []
    with no_garbage_collected():
        with no_garbage_collected():
            seen.append(gc.isenabled())
        seen.append(gc.isenabled())
    assert [*seen, gc.isenabled()] == [False, False, True]


def test_leaving_while_work_is_under_way() -> None:
    """The interpreter exits cleanly although a stream is still computing."""
    program = """
        import weft.core as mx
        x = mx.ones((500, 500))
        for _ in range(30):
            x = mx.sin(x) @ x * 1e-3
        mx.async_eval(x)
        print("leaving")
    """
    assert run_python(program) == "leaving\n"


def test_compiled_functions_that_call_each_other() -> None:
    """Each of two threads traces one of them, and needs the other function for it."""
    meeting = threading.Barrier(2)

    @mx.compile
    def even(x: mx.array, steps: int, first: bool = False) -> mx.array:
        if first:
            meeting.wait(timeout=30)
        return x if steps == 0 else odd(x + 1, steps - 1)

    @mx.compile
    def odd(x: mx.array, steps: int, first: bool = False) -> mx.array:
        if first:
            meeting.wait(timeout=30)
        return x if steps == 0 else even(x * 2, steps - 1)

    results = in_threads(2, lambda number: (even, odd)[number](mx.array(1.0), 5, first=True).item())
    assert results == [11.0, 14.0]
    assert [even(mx.array(1.0), 5).item(), odd(mx.array(1.0), 5).item()] == results


@pytest.mark.parametrize("kind", ["model", "argument"])
def test_differentiating_one_model(kind: str) -> None:
    """A model holds other arrays while a function of it is differentiated. Other threads wait: with arrays of two
    threads in the model, some gradients would be zeros."""
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), mx.ones((3, 4))

    def loss(model: nn.Sequential, x: mx.array) -> mx.array:
        return mx.square(model(x)).sum()

    of_model, of_argument = nn.value_and_grad(model, partial(loss, model)), mx.grad(loss)

    def gradients() -> list[Any]:
        found = of_model(x)[1] if kind == "model" else of_argument(model, x)
        return [leaf.tolist() for _, leaf in tree_flatten(found)]

    expected = gradients()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for found in in_threads(3, lambda _: [gradients() for _ in range(150)]):
            assert found == [expected] * 150
    finally:
        sys.setswitchinterval(before)


def test_what_ends_is_not_overwritten_while_another_thread_reads_it() -> None:
    """`y` could be computed in the memory of `x`, but two threads compute it."""
    for attempt in range(30):
        x = mx.full((1 << 21,), 1.0) * 1.0
        mx.eval(x)
        y = x + 1
        del x

        def evaluate(number: int, y: mx.array = y, attempt: int = attempt) -> None:
            time.sleep(number * attempt * 5e-5)
            mx.eval(y)

        in_threads(2, evaluate)
        assert mx.all(y == 2).item()


@pytest.mark.parametrize(
    ("operations", "known"),
    [(2, False), (2, True), (1, False)],
    ids=["several operations", "known operations", "one operation"],
)
def test_no_thread_reads_a_graph_while_another_takes_the_memory_of_its_inputs(
    operations: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is decided that `x` ends, the other thread is allowed to continue and use it."""
    plain_ended, plain_plan_of = Inputs.ended, evaluate.plan_of
    decided, planned, overwritten = threading.Event(), threading.Event(), threading.Event()

    def ended(*arguments: Any) -> Any:
        found = plain_ended(*arguments)
        if not decided.is_set():
            assert found
            decided.set()
            planned.wait(timeout=0.3)  # it has to wait for this thread
        return found

    def plan_of(*arguments: Any) -> Any:
        if threading.current_thread() is second:
            planned.set()
            overwritten.wait(timeout=30)
        return plain_plan_of(*arguments)

    def use() -> None:
        assert decided.wait(timeout=30)
        results.append(mx.add(y, 1, stream=stream).tolist())

    def lazy() -> mx.array:
        x = mx.full((40_000,), 1.0) * 1.0
        mx.eval(x)
        for _ in range(operations):
            x = mx.multiply(x, 2, stream=stream)
        return x

    stream = mx.new_stream(mx.cpu)
    evaluate.forget_plans()
    if known:
        mx.eval(lazy())
    y = lazy()
    results: list[Any] = []
    second = threading.Thread(target=use)
    second.start()
    monkeypatch.setattr(Inputs, "ended", ended)
    monkeypatch.setattr(evaluate, "plan_of", plan_of)
    mx.eval(y)
    overwritten.set()
    second.join(timeout=60)
    assert results == [[2.0**operations + 1] * 40_000]


def test_each_thread_has_a_default_stream_of_its_own() -> None:
    streams = in_threads(3, lambda number: mx.default_stream(mx.cpu))
    assert len({mx.default_stream(mx.cpu), *streams}) == 4


def test_a_thread_does_not_wait_for_the_default_stream_of_another() -> None:
    with Gate() as gate:
        late = gate.block(mx.default_stream(mx.cpu))
        assert in_threads(2, lambda number: (mx.ones(3) + number).tolist()) == [[1.0] * 3, [2.0] * 3]
        assert not is_there(late)


def test_a_stream_for_each_thread() -> None:
    stream = mx.new_thread_local_stream(mx.cpu)

    def current(number: int) -> mx.Stream:
        with mx.stream(stream):
            assert mx.add(mx.array(1), number, stream=stream).item() == 1 + number
            mx.synchronize(stream)
            return mx.default_stream(mx.cpu)

    assert current(0) == current(0)
    assert len({current(0), *in_threads(3, current)}) == 4
    assert repr(stream) == "ThreadLocalStream(Device(cpu, 0))"


def test_any_thread_may_use_any_stream() -> None:
    def successor(stream: mx.Stream, number: int) -> Any:
        return mx.add(mx.array(number), 1, stream=stream).item()

    for stream in (mx.new_stream(mx.cpu), mx.new_thread_unsafe_stream(mx.cpu)):
        assert in_threads(3, partial(successor, stream)) == [1, 2, 3]


@pytest.mark.parametrize("sizes", [8, 200])
def test_blocks_of_memory_are_handed_out_once(sizes: int) -> None:
    """Blocks are taken and freed without a lock, while other threads clear the cache: no block is lost or used
    twice."""
    gc.collect()  # objects of earlier tests
    mx.clear_cache()
    active = mx.get_active_memory()

    def work(number: int) -> int:
        held: list[tuple[Buffer, int]] = []
        wrong = 0
        for step in range(3000):
            size, label = 1 + (step * 7 + number) % sizes, number * 10_000 + step
            buffer = Buffer(host, 8 * size)
            words = (ctypes.c_uint64 * size).from_address(buffer.address)
            words[0] = words[size - 1] = label
            held.append((buffer, label))
            if len(held) > 20:
                first, expected = held.pop(step % 20)
                wrong += ctypes.c_uint64.from_address(first.address).value != expected
            if step % 100 == 0:
                mx.clear_cache()
        return wrong

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert in_threads(4, work) == [0] * 4
    finally:
        sys.setswitchinterval(before)
    assert mx.get_active_memory() == active
    mx.clear_cache()
    assert mx.get_cache_memory() == 0


def test_garbage_is_collected_rarely_while_a_function_is_traced() -> None:
    usual, before = gc.get_threshold(), (700, 10, 10)
    seen: list[tuple[int, int, int]] = []
    counted: list[int] = []

    def count(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            counted.append(facts["generation"])

    def traced(x: mx.array, fails: bool) -> mx.array:
        seen.append(gc.get_threshold())
        if fails:
            raise ValueError("a user's error")
        first = len(counted)
        garbage = [[number] for number in range(10 * before[0])]
        assert len(counted) <= first + 1
        return mx.compile(lambda x: x * len(garbage))(x)

    function = mx.compile(traced)
    gc.callbacks.append(count)
    try:
        gc.set_threshold(*before)
        function(mx.array(2.0), False)
        assert gc.get_threshold() == before
        with pytest.raises(ValueError, match="a user's error"):
            function(mx.array(2.0), True)
        assert gc.get_threshold() == before
        assert all(threshold[0] > before[0] for threshold in seen)
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*usual)
