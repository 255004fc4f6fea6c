"""What waits for what: streams that a closed gate holds up, and other work that must, or must not, wait for them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gates import PATIENCE, Gate, is_there, wait_until
from weft.runtime.streams import QUEUE_LIMIT


def new_streams(count: int) -> list[mx.Stream]:
    return [mx.new_stream(mx.cpu) for _ in range(count)]


def test_streams_do_not_wait_for_each_other() -> None:
    held_up, free = new_streams(2)
    with Gate() as gate:
        late = gate.block(held_up)
        assert mx.add(mx.array(1), 2, stream=free).item() == 3
        early = mx.add(mx.array(1), 3, stream=free)
        mx.async_eval(early)
        assert early.item() == 4
        assert (mx.ones(3) + 1).tolist() == [2.0] * 3
        assert not is_there(late)
    assert late.item() == 1


def test_a_stream_works_in_order() -> None:
    (stream,) = new_streams(1)
    with Gate() as gate:
        first = gate.block(stream)
        second = mx.add(mx.array(1), 2, stream=stream)
        mx.async_eval(second)
        third = mx.multiply(mx.array(1.0), 2, stream=stream)
        mx.async_eval(third)
        assert not is_there(second)
        gate.open()
        assert third.item() == 2
        assert is_there(first)
        assert is_there(second)


def test_a_value_is_read_while_its_stream_goes_on() -> None:
    (stream,) = new_streams(1)
    with Gate() as gate:
        early = mx.add(mx.array(1), 2, stream=stream)
        mx.async_eval(early)
        late = gate.block(stream)
        assert early.item() == 3
        assert mx.multiply(early, 2, stream=mx.new_stream(mx.cpu)).item() == 6
        assert not is_there(late)


def test_work_waits_for_its_producer_and_nothing_else_of_that_stream() -> None:
    """In one graph, work that another stream needs does not wait for work on the same stream that no one else needs."""
    first, second = new_streams(2)
    with Gate() as gate:
        late = mx.add(gate.behind(), 1, stream=first)
        produced = mx.exp(mx.array(0.0), stream=first)
        consumed = mx.add(produced, 1, stream=second)
        mx.async_eval(late, consumed)
        assert consumed.item() == 2
        assert not is_there(late)
    assert late.item() == 1


def test_work_that_waits_for_two_streams_holds_up_nothing_else() -> None:
    first, second, third = new_streams(3)
    with Gate() as gate:
        late = mx.add(gate.behind(), 1, stream=first)
        early = mx.exp(mx.array(0.0), stream=second)
        both = mx.add(late, mx.multiply(early, 3, stream=third), stream=third)
        one = mx.add(mx.multiply(early, 5, stream=third), 2, stream=third)
        mx.async_eval(both, one)
        assert one.item() == 7
        assert not is_there(both)
    assert both.item() == 4


def test_work_waits_for_its_producer() -> None:
    first, second = new_streams(2)
    with Gate() as gate:
        produced = mx.add(gate.behind(2.0), 1, stream=first)
        consumed = mx.multiply(produced, 2, stream=second)
        mx.async_eval(consumed)
        assert not is_there(consumed)
        gate.open()
        assert consumed.item() == 6


def test_a_value_without_operands_is_made_on_the_stream_it_names() -> None:
    (stream,) = new_streams(1)
    with Gate() as gate:
        gate.block(stream)
        x = mx.arange(4, stream=stream)
        mx.async_eval(x)
        assert not is_there(x)
        assert mx.arange(3).tolist() == [0, 1, 2]
    assert x.tolist() == [0, 1, 2, 3]


def returns_before(gate: Gate, wait: Callable[[], Any]) -> bool:
    """Whether `wait` on another thread returns while the gate is closed; the gate is open afterwards."""
    returned = threading.Event()

    def work() -> None:
        wait()
        returned.set()

    thread = threading.Thread(target=work)
    thread.start()
    before = returned.wait(timeout=0.2)
    gate.open()
    thread.join(timeout=PATIENCE)
    assert returned.is_set()
    return before


def test_synchronize_waits_for_one_stream() -> None:
    held_up, free = new_streams(2)
    with Gate() as gate:
        gate.block(held_up)
        mx.async_eval(mx.add(mx.array(1), 2, stream=free))
        mx.synchronize(free)
        mx.synchronize()
        mx.synchronize(mx.cpu)
        assert not returns_before(gate, lambda: mx.synchronize(held_up))


def test_clear_streams_waits_for_all() -> None:
    held_up, other = new_streams(2)
    with Gate() as gate:
        late = gate.block(held_up)
        assert not returns_before(gate, mx.clear_streams)
        assert is_there(late)
    assert mx.add(late, 1, stream=held_up).item() == 2
    assert mx.add(late, 1, stream=other).item() == 2


def stream_threads() -> int:
    return sum(thread.name.startswith("weft stream") for thread in threading.enumerate())


def test_clear_streams_ends_the_threads() -> None:
    streams = new_streams(4)
    for stream in streams:
        mx.async_eval(mx.add(mx.array(1), 2, stream=stream))
    wait_until(lambda: stream_threads() >= 4)
    mx.clear_streams()
    wait_until(lambda: stream_threads() == 0)


def test_a_stream_that_is_gone_finishes_its_work_and_ends_its_thread() -> None:
    mx.clear_streams()
    wait_until(lambda: stream_threads() == 0)
    with Gate() as gate:
        results = []
        for k in range(5):
            stream = mx.new_stream(mx.cpu)
            results.append(mx.add(gate.behind(k), 1, stream=stream))
            mx.async_eval(results[-1])
            results.append(mx.multiply(results[-1], 2, stream=stream))
            mx.async_eval(results[-1])
            results.append(mx.compile(lambda x: x + 1)(results[-1]))
        del stream
        gc.collect()
        assert not is_there(results[-1])
        wait_until(lambda: stream_threads() == 6)  # one is that of the default stream
    assert [result.item() for result in results] == [value for k in range(5) for value in (k + 1, 2 * k + 2, 2 * k + 3)]
    del results
    gc.collect()
    wait_until(lambda: stream_threads() == 1)


class Failure(Exception):
    """The error that work in these tests raises."""


def test_an_error_reaches_whoever_waits() -> None:
    first, second, third = new_streams(3)
    with Gate() as gate:
        held = gate.behind()
        x = mx.add(held, 1, stream=first)
        y = mx.multiply(x, 2, stream=second)
        compiled = mx.compile(lambda x: x + 1)
        with mx.stream(third):
            mx.async_eval(x, y)
            z = compiled(y)
            w = compiled(mx.array(1.0))
        gate.open(Failure("no memory on the moon"))
        for result in (x, y, z):
            with pytest.raises(Failure, match="moon"):
                result.item()
        with pytest.raises(Failure, match="moon"):
            mx.eval(y)
        assert w.item() == 2
        assert held.node.value is not None
        held.node.value.event = None
        assert (x.item(), y.item()) == (1, 2)
        assert_same_bits(compiled(y), mx.array(3.0))
        assert z.item() == 3


def test_an_error_that_reached_nobody_is_raised_by_synchronize_once() -> None:
    first, second = new_streams(2)
    with Gate() as gate:
        x = mx.add(gate.behind(), 1, stream=first)
        mx.async_eval(x)
        gate.open(Failure("unheard"))
        mx.synchronize(second)
        with pytest.raises(Failure, match="unheard"):
            mx.synchronize(first)
        mx.synchronize(first)
        assert mx.add(mx.array(1), 1, stream=first).item() == 2


def test_an_error_that_reached_somebody_is_not_raised_again() -> None:
    (stream,) = new_streams(1)
    with Gate() as gate:
        x = mx.add(gate.behind(), 1, stream=stream)
        mx.async_eval(x)
        gate.open(Failure("heard"))
        with pytest.raises(Failure, match="heard"):
            x.item()
        mx.synchronize(stream)


def test_an_error_is_raised_by_clear_streams() -> None:
    (stream,) = new_streams(1)
    with Gate() as gate:
        mx.async_eval(mx.add(gate.behind(), 1, stream=stream))
        gate.open(Failure("unheard"))
        with pytest.raises(Failure, match="unheard"):
            mx.clear_streams()
    mx.clear_streams()


def test_what_was_read_is_not_held_by_what_waits() -> None:
    """A long chain of `async_eval` holds the latest value, not all of them."""
    x = mx.zeros((1 << 16,))
    mx.eval(x)
    before = mx.get_active_memory()
    for _ in range(100):
        x = x * 1.5 + 1
        mx.async_eval(x)
    mx.synchronize()
    assert mx.get_active_memory() <= before + x.nbytes


@pytest.mark.parametrize("compiled", [False, True])
def test_only_so_much_is_queued(compiled: bool) -> None:
    """A thread that queues faster than the stream works must wait, before memory for all the work is taken."""
    (stream,) = new_streams(1)
    function = mx.compile(lambda x: x * 2 + 1) if compiled else lambda x: x * 2 + 1
    x = mx.zeros((1 << 16,))
    mx.eval(x, function(x))
    before = mx.get_active_memory()
    queued: list[mx.array] = []

    def queue() -> None:
        with mx.stream(stream):
            for _ in range(3 * QUEUE_LIMIT):
                queued.append(function(x))
                mx.async_eval(queued[-1])

    with Gate() as gate:
        gate.block(stream)
        thread = threading.Thread(target=queue)
        thread.start()
        wait_until(lambda: len(queued) >= QUEUE_LIMIT - 1)
        thread.join(timeout=0.1)
        assert thread.is_alive()
        assert mx.get_active_memory() <= before + (QUEUE_LIMIT + 1) * x.nbytes
        gate.open()
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive()
    assert len(queued) == 3 * QUEUE_LIMIT
    assert all(result[:2].tolist() == [1.0, 1.0] for result in queued)


def test_several_threads_wait_for_one_value() -> None:
    first, second = new_streams(2)
    values: list[float] = []
    with Gate() as gate:
        x = mx.add(gate.behind(), 1, stream=first)
        y = mx.add(x, 1, stream=second)
        mx.async_eval(y)
        threads = [threading.Thread(target=lambda: values.append((y + x).item())) for _ in range(4)]
        for thread in threads:
            thread.start()
        gate.open()
        for thread in threads:
            thread.join(timeout=PATIENCE)
    assert values == [3.0] * 4
