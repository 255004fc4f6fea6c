"""An array that is read on another device than it is on is copied once, by the stream that computes it."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.reference.device import ReferenceEngine
from tests.reference.values import numbers, view_of
from weft.errors import EvaluationError
from weft.runtime import recording
from weft.runtime.streams import worker_of
from weft.runtime.transfers import copy_on

THERE, BACK = "Device(cpu, 0) to Device(gpu, 0)", "Device(gpu, 0) to Device(cpu, 0)"


def transfers(run: Callable[[], Any]) -> dict[str, tuple[int, int]]:
    """The number of copies from device to device during a call, and their bytes."""
    with weft.profile() as profile:
        mx.eval(run())
    return {way: (total.copies, total.bytes) for way, total in profile.transfers.items()}


LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "as it is": lambda x: x,
    "reversed": lambda x: x[::-1, ::-1],
    "a part": lambda x: x[1:3, 2:5],
    "steps": lambda x: x[::-2, 1::2],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: mx.broadcast_to(x[1], (3, *x[1].shape)),
    "one element": lambda x: x[2, 3],
    "nothing": lambda x: x[2:2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_cross_in_both_directions(layout: str) -> None:
    x = numbers(4, 6)
    view = LAYOUTS[layout](x)
    mx.eval(view)
    there = mx.add(view, 1, stream=mx.gpu)
    np.testing.assert_array_equal(np.array(there), np.array(view) + 1)
    y = mx.multiply(x, 2, stream=mx.gpu)
    with mx.stream(mx.gpu):
        view = LAYOUTS[layout](y)
        mx.eval(view)
    np.testing.assert_array_equal(np.array(view), np.array(LAYOUTS[layout](x)) * 2)
    back = mx.add(view, 1, stream=mx.cpu)
    np.testing.assert_array_equal(np.array(back), np.array(view) + 1)


def test_what_crosses_is_copied_once_and_kept_while_it_lives(engine: ReferenceEngine) -> None:
    x = numbers(5)
    assert transfers(lambda: mx.exp(x, stream=mx.gpu)) == {THERE: (1, 20)}
    assert transfers(lambda: mx.sin(x, stream=mx.gpu)) == {}
    assert transfers(lambda: mx.sin(mx.cos(x, stream=mx.gpu), stream=mx.gpu)) == {}


def test_copies_live_as_long_as_what_was_copied(engine: ReferenceEngine) -> None:
    gc.collect()
    before = engine.memory.active
    x = numbers(5)
    mx.exp(x, stream=mx.gpu).tolist()
    gc.collect()
    assert engine.memory.active > before
    del x
    gc.collect()
    assert engine.memory.active == before


def test_what_is_on_the_device_does_not_cross() -> None:
    with mx.stream(mx.gpu):
        assert transfers(lambda: mx.softmax(mx.arange(12.0).reshape(3, 4), axis=0)) == {}


def test_a_graph_that_goes_to_and_fro() -> None:
    x = numbers(3)

    def run(x: mx.array) -> mx.array:
        y = mx.exp(x, stream=mx.gpu)
        z = mx.sin(y, stream=mx.cpu)
        return mx.add(z, mx.multiply(y, z, stream=mx.gpu), stream=mx.cpu)

    assert transfers(lambda: run(x)) == {THERE: (2, 24), BACK: (2, 24)}
    assert transfers(lambda: run(x)) == {THERE: (1, 12), BACK: (2, 24)}  # x is already on both devices
    x = numbers(3)
    compiled = mx.compile(run)
    assert transfers(lambda: compiled(x)) == {THERE: (2, 24), BACK: (2, 24)}
    assert transfers(lambda: compiled(x)) == {THERE: (1, 12), BACK: (2, 24)}
    assert_same_bits(compiled(x), run(x))


@contextmanager
def held_up(stream: mx.Stream) -> Iterator[None]:
    """The stream begins no other work before the block ends."""
    gate = threading.Event()

    def hold() -> None:
        gate.wait()

    worker_of(stream).submit(hold)
    try:
        yield
    finally:
        gate.set()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_copy_is_queued_behind_what_it_copies(compiled: bool) -> None:
    """The stream that computes an array makes the copy, and not the stream that reads it."""
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.cpu)
    run = lambda x: mx.sin(mx.exp(x, stream=first), stream=second)  # noqa: E731
    x, expected = numbers(3), np.sin(np.exp(np.array(numbers(3))))
    with recording.recorded() as recorder:
        with held_up(first):
            y = (mx.compile(run) if compiled else run)(x)
            mx.async_eval(y)
        np.testing.assert_allclose(np.array(y), expected, rtol=1e-6)
    back = [span.thread.name for span in recorder.spans if span.name == BACK]
    assert back == [f"weft stream {first.index}"]


def test_a_copy_that_others_want_later_is_not_waited_for() -> None:
    """Each of two streams waits for the other, but not for work that was queued there later."""
    v = numbers(16)
    mx.eval(v)
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.cpu)
    with held_up(first):
        there = mx.add(v, 1, stream=first)
        mx.async_eval(there)
        back = mx.multiply(there, 2, stream=second)
        mx.async_eval(back)
        again = mx.sin(mx.reshape(v, (4, 4), stream=second), stream=first)
        mx.async_eval(again)
    np.testing.assert_array_equal(np.array(back), (np.arange(16) + 1) * 2)
    np.testing.assert_allclose(np.array(again), np.sin(np.arange(16.0)).reshape(4, 4), rtol=1e-6)


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_cancelled_cancels_what_it_waits_for(device: Any, compiled: bool) -> None:
    """The event is cancelled as by Ctrl-C while a thread waits for it. A later read of the array computes it."""
    first, second = mx.new_stream(device), mx.new_stream(mx.cpu)
    x = numbers(5)
    mx.eval(x)
    run = lambda x: mx.add(mx.exp(x, stream=first), 1, stream=second)  # noqa: E731
    with recording.recorded() as recorder:
        with held_up(first):
            y = (mx.compile(run) if compiled else run)(x)
            mx.async_eval(y)
            assert y.node.value is not None
            event = y.node.value.event
            event.cancel()
        with pytest.raises(EvaluationError, match="cancelled"):
            event.wait()
    assert [done for _, done, *_ in recorder.runs if done] == []
    np.testing.assert_allclose(np.array(y), np.exp(np.arange(5)) + 1, rtol=1e-6)


def test_copies_of_views_end_with_the_views(engine: ReferenceEngine) -> None:
    data = numbers(100, 8)
    mx.eval(data)
    gc.collect()
    before = engine.memory.active
    for start in range(0, 50, 10):
        part = data[start : start + 20]
        mx.eval(part)
        mx.eval(mx.sum(part, stream=mx.gpu))
    del part
    gc.collect()
    assert engine.memory.active == before


def test_a_copy_that_a_run_reads_stays_while_others_make_it_too(
    engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads find no copy, and both make one. Both read the same copy, which lives as long as the view."""
    x = numbers(50)
    mx.eval(x)
    both = threading.Barrier(2)
    across = engine.copy_across

    def together(*arguments: Any) -> None:
        across(*arguments)
        both.wait(timeout=60)

    monkeypatch.setattr(engine, "copy_across", together)
    view, found = view_of(x), []
    span = (0, 200)
    threads = [threading.Thread(target=lambda: found.append(copy_on(engine, view, span).address)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (copy,) = view.copies.values()
    assert found == [copy.address] * 2


def test_what_is_read_back_is_copied_once() -> None:
    """Except for arrays so small that another copy costs less than to keep one."""
    for count, again in ((4, {BACK: (2, 32)}), (40_000, {})):
        x = mx.exp(numbers(count), stream=mx.gpu)
        mx.eval(x)

        def read(x: mx.array = x) -> mx.array:
            np.array(x)
            repr(x)
            return x

        assert transfers(read) == (again or {BACK: (1, 160_000)})
        assert transfers(read) == again


def test_profiles_show_transfers(tmp_path: Path) -> None:
    x = numbers(3)
    with weft.profile(tmp_path / "timeline.json") as profile:
        mx.eval(mx.exp(x, stream=mx.gpu))
    assert "\ntransfers: Device(cpu, 0) to Device(gpu, 0) 1x, 12 B, " in str(profile)
    assert "transfer" not in profile.compilation
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert "transfer" in [event.get("cat") for event in events]


def test_explanations_show_transfers() -> None:
    compiled = mx.compile(lambda x: mx.sin(mx.exp(x, stream=mx.gpu), stream=mx.cpu))
    explanation = compiled.explain(numbers(3))
    cpu, gpu = mx.Device(mx.cpu), mx.Device(mx.gpu)
    assert [tuple(transfer) for transfer in explanation.transfers] == [(cpu, gpu, 12), (gpu, cpu, 12)]
    assert "transfers: 12 B from Device(cpu, 0) to Device(gpu, 0); 12 B from" in str(explanation)
    assert "transfer" not in str(mx.compile(mx.exp).explain(numbers(3)))
