"""Streams and devices: where work runs, what waits for what, and that another stream needs no new trace."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import Counted, assert_same_bits
from tests.devices import needs_no_gpu
from weft.errors import EvaluationError
from weft.runtime.streams import Event, worker_of


@pytest.fixture(autouse=True)
def _default_stream_as_before() -> Iterator[None]:
    before = mx.default_stream(mx.cpu)
    yield
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(before)


def test_default_device_and_stream() -> None:
    assert mx.default_device() == mx.cpu
    assert repr(mx.default_device()) == "Device(cpu, 0)"
    stream = mx.default_stream(mx.cpu)
    assert isinstance(stream, mx.Stream)
    assert repr(stream).startswith("Stream(Device(cpu, 0), ")
    assert stream == mx.default_stream(mx.default_device())
    assert stream.device == mx.cpu
    assert mx.Device(mx.cpu) == mx.Device(mx.cpu, 0)


def test_copies_of_a_stream_are_the_stream() -> None:
    stream = mx.new_stream(mx.cpu)
    assert copy.copy(stream) is stream
    assert copy.deepcopy([stream])[0] is stream
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(stream)
    assert pickle.loads(pickle.dumps(stream.device)) == stream.device


def test_what_devices_there_are() -> None:
    assert mx.is_available(mx.cpu)
    assert mx.device_count(mx.cpu) == 1


def test_a_new_stream_is_another_stream() -> None:
    first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    assert first != second
    assert first != mx.default_stream(mx.cpu)
    assert first.device == mx.cpu
    assert len({repr(first), repr(second)}) == 2


def test_with_stream_sets_the_default_inside() -> None:
    outside, inside = mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)
    with mx.stream(inside):
        assert mx.default_stream(mx.cpu) == inside
        with mx.stream(mx.cpu):
            assert mx.default_device() == mx.cpu
        with mx.stream(outside):
            assert mx.default_stream(mx.cpu) == outside
        assert mx.default_stream(mx.cpu) == inside
    assert mx.default_stream(mx.cpu) == outside


def test_with_stream_ends_with_an_exception() -> None:
    outside = mx.default_stream(mx.cpu)
    with pytest.raises(LookupError), mx.stream(mx.new_stream(mx.cpu)):
        raise LookupError
    assert mx.default_stream(mx.cpu) == outside


def test_set_default_stream() -> None:
    stream = mx.new_stream(mx.cpu)
    mx.set_default_stream(stream)
    assert mx.default_stream(mx.cpu) == stream
    assert (mx.ones(3) + 1).tolist() == [2.0] * 3


def test_the_default_stream_of_another_thread_is_its_own() -> None:
    seen: list[bool] = []

    def work() -> None:
        stream = mx.new_stream(mx.cpu)
        mx.set_default_stream(stream)
        seen.append(mx.default_stream(mx.cpu) == stream)
        mx.eval(mx.ones(3) + 1)

    before = mx.default_stream(mx.cpu)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert mx.default_stream(mx.cpu) == before


@pytest.mark.parametrize("name", ["device type", "device", "stream", "new stream", "none"])
def test_stream_argument(name: str) -> None:
    where: Any = {
        "device type": mx.cpu,
        "device": mx.Device(mx.cpu),
        "stream": mx.default_stream(mx.cpu),
        "new stream": mx.new_stream(mx.cpu),
        "none": None,
    }[name]
    x = mx.array([[1.0, 4.0], [9.0, 16.0]])
    assert mx.sqrt(x, stream=where).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert mx.add(x, 1, stream=where).tolist() == [[2.0, 5.0], [10.0, 17.0]]
    assert mx.sum(x, axis=0, stream=where).tolist() == [10.0, 20.0]
    assert mx.matmul(x, mx.eye(2, stream=where), stream=where).tolist() == x.tolist()
    assert x.reshape(-1, stream=where).shape == (4,)
    assert mx.random.uniform(shape=(2,), key=mx.random.key(0), stream=where).shape == (2,)


def test_a_stream_argument_of_the_wrong_kind() -> None:
    wrong: Any = "cpu"
    with pytest.raises(TypeError, match="stream"):
        mx.add(mx.array(1), 2, stream=wrong)


def test_results_do_not_depend_on_the_stream() -> None:
    x = mx.random.normal((100, 37), key=mx.random.key(0))

    def work(x: mx.array) -> mx.array:
        return mx.softmax(x @ x.T, axis=-1).sum(axis=0) + x.sum()

    expected = work(x)
    with mx.stream(mx.new_stream(mx.cpu)):
        assert_same_bits(work(x), expected)


def test_data_that_crosses_streams_arrives_in_order() -> None:
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    x = mx.zeros((1000,))
    for k in range(300):
        x = mx.add(x, 1, stream=streams[k % 3])
        if k % 50 == 0:
            mx.async_eval(x)
    assert x.tolist() == [300.0] * 1000


def test_streams_that_wait_for_each_other_in_both_directions() -> None:
    left, right = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    a, b = mx.ones((5000,)), mx.ones((5000,)) * 2
    for _ in range(20):
        a, b = (
            mx.multiply(mx.add(a, b, stream=left), 0.5, stream=left),
            mx.multiply(mx.subtract(a, b, stream=right), 0.5, stream=right),
        )
    first, second = np.ones(5000, np.float32), np.full(5000, 2, np.float32)
    for _ in range(20):
        first, second = (first + second) * np.float32(0.5), (first - second) * np.float32(0.5)
    mx.eval(a, b)
    np.testing.assert_array_equal(np.array(a), first)
    np.testing.assert_array_equal(np.array(b), second)


def test_synchronize() -> None:
    stream = mx.new_stream(mx.cpu)
    x = mx.add(mx.ones((1000,)), 1, stream=stream)
    mx.async_eval(x)
    mx.synchronize(stream)
    mx.synchronize()
    mx.synchronize(mx.default_stream(mx.cpu))
    assert x.tolist() == [2.0] * 1000


def test_async_eval_then_more_work() -> None:
    x = mx.ones((1 << 16,))
    for _ in range(50):
        x = x * 1.0001 + 1
        mx.async_eval(x)
    y = x - x
    mx.eval(y)
    assert y.sum().item() == 0.0
    assert x[0].item() > 50


def test_async_eval_takes_trees() -> None:
    tree = {"a": [mx.ones(2) + 1], "b": (mx.ones(2) * 3,)}
    mx.async_eval(tree)
    mx.async_eval(tree["a"], mx.ones(3))
    assert tree["a"][0].tolist() == [2.0, 2.0]
    assert tree["b"][0].tolist() == [3.0, 3.0]


def test_an_array_may_be_changed_while_it_is_evaluated() -> None:
    x = mx.ones((1 << 18,))
    y = mx.exp(x * 0) * 2
    mx.async_eval(y)
    held = y + 0
    y[0] = 7
    y += 1
    assert y[:2].tolist() == [8.0, 3.0]
    assert held[:2].tolist() == [2.0, 2.0]


def test_a_compiled_function_on_other_streams_is_not_traced_again() -> None:
    counted = Counted(lambda x: mx.softmax(x * 2, axis=-1) @ x)
    compiled = mx.compile(counted.function)
    x = mx.random.normal((8, 8), key=mx.random.key(1))
    expected = compiled(x)
    for _ in range(3):
        with mx.stream(mx.new_stream(mx.cpu)):
            assert_same_bits(compiled(x), expected)
    mx.set_default_stream(mx.new_stream(mx.cpu))
    assert_same_bits(compiled(x), expected)
    assert counted.calls == 1


def test_a_compiled_function_may_use_several_streams() -> None:
    left, right = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)

    def f(x: mx.array) -> tuple[mx.array, mx.array]:
        y = mx.exp(x, stream=left)
        with mx.stream(right):
            z = y * 2 + x
        return mx.add(y, z), z

    counted = Counted(f)
    compiled = mx.compile(counted.function)
    x = mx.array([0.0, 1.0])
    for _ in range(2):
        with mx.stream(mx.new_stream(mx.cpu)):
            assert_same_bits(compiled(x), f(x))
    assert counted.calls == 1


def busy(x: mx.array, rounds: int) -> mx.array:
    for _ in range(rounds):
        x = mx.sin(x) @ x * 1e-3
    return x


def test_a_compiled_function_runs_on_the_stream_of_its_call() -> None:
    """Work on the first call's stream does not delay a later call on another stream."""
    slow, free = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    compiled = mx.compile(lambda x: x * 3)
    one = mx.array(1.0)
    with mx.stream(slow):
        mx.eval(compiled(one))

    def seconds(stream: mx.Stream) -> float:
        with mx.stream(slow):
            ahead = busy(mx.ones((300, 300)), 20)
            mx.async_eval(ahead)
        start = time.perf_counter()
        with mx.stream(stream):
            mx.eval(compiled(one))
        elapsed = time.perf_counter() - start
        mx.synchronize(slow)
        return elapsed

    seconds(free)
    assert seconds(free) < 0.5 * seconds(slow)


@pytest.mark.parametrize("transformation", [mx.grad, mx.vmap, mx.compile, mx.checkpoint])
def test_transformations_keep_explicit_streams(transformation: Callable[..., Any]) -> None:
    stream = mx.new_stream(mx.cpu)
    argument = mx.array([2.0]) if transformation is mx.vmap else mx.array(2.0)
    assert transformation(lambda x: mx.multiply(x, x, stream=stream))(argument).sum().item() == 4.0


def test_many_streams_come_and_go() -> None:
    for _ in range(50):
        stream = mx.new_stream(mx.cpu)
        assert mx.add(mx.array(1), 1, stream=stream).item() == 2


ABSENT: dict[str, Callable[[], Any]] = {
    "an operation": lambda: mx.add(mx.array(1), 2, stream=mx.gpu),
    "creation": lambda: mx.ones((2,), stream=mx.gpu),
    "a method": lambda: mx.ones((2,)).sum(stream=mx.Device(mx.gpu)),
    "a default device": lambda: mx.set_default_device(mx.gpu),
    "a new stream": lambda: mx.new_stream(mx.gpu),
    "a default stream": lambda: mx.default_stream(mx.gpu),
    "a with block": lambda: mx.stream(mx.gpu).__enter__(),
    "inside compile": lambda: mx.compile(lambda x: mx.exp(x, stream=mx.gpu))(mx.array(1.0)),
    "inside grad": lambda: mx.grad(lambda x: mx.exp(x, stream=mx.gpu))(mx.array(1.0)),
}


@needs_no_gpu
@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_gpu_is_refused_where_it_is_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)gpu"):
        ABSENT[name]()
    assert mx.default_device() == mx.cpu
    assert (mx.ones(2) + 1).tolist() == [2.0, 2.0]


@needs_no_gpu
def test_an_absent_gpu_is_not_available() -> None:
    assert mx.device_count(mx.gpu) == 0


def test_a_worker_that_would_wait_for_itself_gets_an_error() -> None:
    """Such as a destructor on it that reads a value which is computed by work queued later."""
    stream = mx.new_stream(mx.cpu)
    worker = worker_of(stream)
    later: list[Event] = []

    def task() -> None:
        later.append(worker.submit(lambda: None))
        later[0].wait()

    event = worker.submit(task)
    ends = time.monotonic() + 20
    while not event.done and time.monotonic() < ends:
        time.sleep(0.001)
    assert isinstance(event.error, EvaluationError)
    later[0].wait()
    other = mx.new_stream(mx.cpu)
    worker.submit(worker_of(other).submit(lambda: None).wait).wait()
    with pytest.raises(EvaluationError, match="a destructor asked for values"):
        mx.synchronize(stream)


@pytest.mark.parametrize("wait", [Event.wait, Event.join])
def test_who_waits_for_what_has_happened_on_its_own_worker_waits_for_nothing(wait: Callable[[Event], None]) -> None:
    stream = mx.new_stream(mx.cpu)  # its worker ends with it
    worker = worker_of(stream)
    first = worker.submit(lambda: None)
    worker.submit(lambda: wait(first)).wait()
