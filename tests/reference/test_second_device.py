"""A second device: chosen through the public API; data is copied to it once; its errors and its memory are its own."""

from __future__ import annotations

import gc
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import Counted, assert_same_bits
from tests.reference import kernels
from tests.reference.engine import ReferenceEngine
from tests.reference.target import ReferenceSchedule
from weft.compiler.kernel import Kernel
from weft.errors import EvaluationError
from weft.runtime import recording
from weft.runtime.memory import View
from weft.runtime.streams import worker_of
from weft.runtime.transfers import copy_on


def numbers(*shape: int) -> mx.array:
    """Evaluated on the CPU, from NumPy."""
    return mx.array(np.arange(np.prod(shape)).reshape(shape).astype(np.float32))


def view_of(x: mx.array) -> View:
    """Where the elements of an array are."""
    mx.eval(x)
    assert x.node.value is not None
    return x.node.value


THERE, BACK = "Device(cpu, 0) to Device(gpu, 0)", "Device(gpu, 0) to Device(cpu, 0)"


def transfers(run: Callable[[], Any]) -> dict[str, tuple[int, int]]:
    """How often a call copies something from device to device, and how many bytes."""
    with weft.profile() as profile:
        mx.eval(run())
    return {way: (total.copies, total.bytes) for way, total in profile.transfers.items()}


# Choosing it


def test_it_is_chosen_like_any_other() -> None:
    assert mx.is_available(mx.gpu)
    assert mx.device_count(mx.gpu) == 1
    assert mx.device_info(mx.gpu)["device_name"] == "reference"
    with mx.stream(mx.gpu):
        assert mx.default_device() == mx.gpu
    assert mx.default_device() == mx.cpu
    mx.set_default_device(mx.gpu)
    assert mx.default_device() == mx.gpu
    assert mx.new_stream(mx.gpu).device == mx.gpu
    assert mx.new_thread_local_stream(mx.gpu).here.device == mx.gpu


def on_the_gpu() -> list[Callable[[mx.array], mx.array]]:
    def default(x: mx.array) -> mx.array:
        mx.set_default_device(mx.gpu)
        return mx.exp(x)

    def block(x: mx.array) -> mx.array:
        with mx.stream(mx.gpu):
            return mx.exp(x)

    return [
        default,
        block,
        lambda x: mx.exp(x, stream=mx.gpu),
        lambda x: mx.exp(x, stream=mx.new_stream(mx.gpu)),
        lambda x: mx.exp(x, stream=mx.new_thread_local_stream(mx.gpu)),
        lambda x: mx.vmap(lambda y: mx.exp(y, stream=mx.gpu))(x),
        mx.compile(lambda x: mx.exp(x, stream=mx.gpu)),
    ]


@pytest.mark.parametrize("way", range(7))
def test_work_runs_where_it_was_asked_for(way: int, engine: ReferenceEngine) -> None:
    x = numbers(2, 3)
    y = on_the_gpu()[way](x)
    assert view_of(y).buffer.engine is engine
    np.testing.assert_allclose(np.array(y), np.exp(np.array(x)), rtol=1e-6)


def test_a_compiled_function_follows_the_default_device(engine: ReferenceEngine) -> None:
    counted = Counted(lambda x: mx.softmax(x, axis=-1) * 2)
    compiled = mx.compile(counted.function)
    x = numbers(3, 4)
    expected = compiled(x)
    mx.set_default_device(mx.gpu)
    with weft.profile() as profile:
        for _ in range(3):
            y = compiled(x)
            assert view_of(y).buffer.engine is engine
    assert_same_bits(y, expected)
    assert profile.compilation.keys() == {"plan"}
    assert profile.compilation["plan"][0] == 1
    made = len(engine.target.made)
    with weft.profile() as profile:
        for device in (mx.cpu, mx.gpu, mx.cpu):
            mx.set_default_device(device)
            mx.eval(compiled(x))
    assert not profile.compilation
    assert len(engine.target.made) == made
    assert counted.calls == 1


# Transfers

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
    assert transfers(lambda: run(x)) == {THERE: (1, 12), BACK: (2, 24)}  # x is there already
    x = numbers(3)
    compiled = mx.compile(run)
    assert transfers(lambda: compiled(x)) == {THERE: (2, 24), BACK: (2, 24)}
    assert transfers(lambda: compiled(x)) == {THERE: (1, 12), BACK: (2, 24)}
    assert_same_bits(compiled(x), run(x))


@contextmanager
def held_up(stream: mx.Stream) -> Iterator[None]:
    """The stream begins nothing more before the block ends."""
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
    """The stream that reads it has nothing to do with it, and waits for nothing else."""
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
    """Each of two streams waits for the other, but not for what was queued there later."""
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
    """As Ctrl-C does for who waits. Who asks again gets the values."""
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
    """Two threads find no copy. Each reads one that lives as long as the view."""
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
    x = mx.exp(numbers(4), stream=mx.gpu)
    mx.eval(x)

    def read() -> mx.array:
        np.array(x)
        repr(x)
        return x

    assert transfers(read) == {BACK: (1, 16)}
    assert transfers(read) == {}


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


# Values of the other device

READERS: dict[str, Callable[[mx.array], Any]] = {
    "item": lambda x: x[1, 2].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x.sum()),
    "numpy": lambda x: np.array(x).tolist(),
    "reversed": lambda x: np.array(x[::-1]).tolist(),
    "dlpack": lambda x: np.from_dlpack(x).tolist(),
    "print": repr,
    "iteration": lambda x: [row.tolist() for row in x],
    "index": lambda x: [10, 20, 30][x[0, 1].astype(mx.int32)],
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "array": lambda x: mx.array([x[0, 0], x[1, 1]]).tolist(),
    "graph": lambda x: x.at[0].add(5).tolist(),
}


@pytest.mark.parametrize("reader", READERS)
def test_values_are_read(reader: str) -> None:
    expected = READERS[reader](numbers(2, 3) * 2)
    mx.set_default_device(mx.gpu)
    assert READERS[reader](numbers(2, 3) * 2) == expected


def test_values_are_saved(tmp_path: Path) -> None:
    mx.set_default_device(mx.gpu)
    x = numbers(2, 3) + 1
    mx.save(str(tmp_path / "x.npy"), x)
    mx.savez(str(tmp_path / "x.npz"), x=x[::-1])
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {"x": x.T})
    assert_same_bits(mx.load(str(tmp_path / "x.npy")), x)
    assert_same_bits(mx.load(str(tmp_path / "x.npz"))["x"], x[::-1])
    assert_same_bits(mx.load(str(tmp_path / "x.safetensors"))["x"], x.T)


def test_what_another_device_has_is_not_seen_without_a_copy() -> None:
    x = mx.exp(numbers(3), stream=mx.gpu)
    with pytest.raises(ValueError, match=r"gpu.*copy"):
        np.array(x, copy=False)
    with pytest.raises(BufferError, match=r"gpu.*copy"):
        np.from_dlpack(x, copy=False)
    with pytest.raises(AttributeError, match=r"gpu.*copy"):
        _ = x.__array_interface__
    assert np.array(x, copy=True).shape == (3,)


# Errors and memory


class Broken(Exception):
    pass


def test_errors_reach_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise Broken("no such kernel")

    x = numbers(3)
    with monkeypatch.context() as patch:
        patch.setattr(kernels.KernelCode, "run", broken)
        with pytest.raises(Broken):
            mx.eval(mx.exp(x, stream=mx.gpu))
        later = mx.exp(x, stream=mx.gpu)
        mx.async_eval(later)
        with pytest.raises(Broken):
            mx.eval(mx.sin(later, stream=mx.cpu))
        with pytest.raises(Broken):
            mx.compile(lambda x: mx.exp(x, stream=mx.gpu) + 1)(x).item()
    np.testing.assert_allclose(np.array(later), np.exp(np.array(x)), rtol=1e-6)


def test_memory_is_given_back(engine: ReferenceEngine) -> None:
    gc.collect()
    before = engine.memory.active
    mx.set_default_device(mx.gpu)
    assert mx.get_active_memory() == before
    x = mx.exp(mx.arange(1000.0))
    y = mx.softmax(x.reshape(10, 100), axis=-1) @ mx.ones((100, 3))
    mx.eval(x, y)
    assert mx.get_active_memory() > before
    assert mx.get_peak_memory() >= mx.get_active_memory()
    host = mx.add(y, 1, stream=mx.cpu)
    mx.eval(host)
    del x, y, host
    gc.collect()
    assert mx.get_active_memory() == before


def test_threads_share_both_devices() -> None:
    x = numbers(4, 5)
    expected = mx.softmax(mx.sin(x), axis=-1)
    found: list[mx.array] = []

    def run(device: Any) -> None:
        mx.set_default_device(device)
        for _ in range(20):
            y = mx.softmax(mx.sin(x), axis=-1)
            mx.eval(y)
            found.append(y)

    threads = [threading.Thread(target=run, args=(device,)) for device in (mx.cpu, mx.gpu, mx.gpu)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    for y in found:
        assert_same_bits(y, expected)


# Donation

ENDING: dict[str, Callable[[mx.array], mx.array]] = {
    "elementwise": lambda x: mx.exp(x) * 2,
    "rows": lambda x: mx.softmax(x, axis=-1),
    "transposed": lambda x: x.T + 1,
    "columns": lambda x: x - x.sum(axis=0),
    "another device": lambda x: mx.add(mx.sin(x, stream=mx.gpu), mx.cos(x, stream=mx.cpu)),
}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=str)
@pytest.mark.parametrize("name", ENDING)
def test_memory_that_ends_is_used_again_only_if_nobody_needs_it(name: str, device: Any, copied: bool) -> None:
    mx.set_default_device(mx.cpu)
    expected = ENDING[name](numbers(6, 6))
    other = mx.square(numbers(6, 6))
    mx.eval(expected, other)
    mx.set_default_device(device)
    x = numbers(6, 6) + 0
    mx.eval(x)
    there = mx.square(x, stream=mx.gpu if device == mx.cpu else mx.cpu)  # a copy of x is on the other device
    if copied:
        mx.eval(there)
    x = ENDING[name](x)
    mx.eval(x)
    assert_same_bits(x, expected)
    assert_same_bits(there, other)


def test_memory_that_ends_is_used_again() -> None:
    mx.set_default_device(mx.gpu)
    x = numbers(64) + 1
    before = view_of(x).address
    x = x * 2
    assert view_of(x).address == before


class Careless(ReferenceSchedule):
    """Forgets that other stores read again what is overwritten."""

    __slots__ = ()

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        return load < store


@pytest.mark.parametrize("schedule", [ReferenceSchedule, Careless])
def test_the_order_that_a_schedule_promises(
    schedule: type[ReferenceSchedule], engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel stores a product in the memory of x, unless it is known that it reads x again for the maximum."""
    host = numbers(8)
    expected = np.array(host * host.max()), np.array(host.max())
    monkeypatch.setattr(engine.target, "key", schedule.__name__)
    monkeypatch.setattr(engine.target, "schedule", lambda launch: schedule(recomputes=True))
    with mx.stream(mx.gpu):
        x = numbers(8) + 0
        mx.eval(x)
        largest = x.max()
        x = x * largest
        mx.eval(x, largest)
    right = [np.array_equal(found, wanted) for found, wanted in zip((x, largest), expected, strict=True)]
    assert all(right) == (schedule is ReferenceSchedule)
