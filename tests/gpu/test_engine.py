"""The engine of a card, without a card: what is queued when, and what is copied where."""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver
from weft.runtime import interchange, on_host
from weft.runtime.cuda import assembly, copies, staging
from weft.runtime.cuda import engine as engines
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import CudaError, CudaMemoryError, FunctionLaunch
from weft.runtime.disk_cache import DiskCache
from weft.runtime.engine import engine_of


def values(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(3).normal(size=shape).astype(np.float32))


PROGRAMS: dict[str, Callable[[mx.array], Any]] = {
    "one kernel": lambda x: mx.exp(x) * 2,
    "views": lambda x: mx.swapaxes(x[::-1, 1:], 0, 1) + x[0, 1:, None],
    "a reduction": lambda x: mx.softmax(x, axis=-1),
    "a shown input": lambda x: (x[1:], x * 2),
    "a routine": lambda x: mx.exp(x @ x.T) - 1,
    "a routine of several results": lambda x: list(mx.linalg.qr(x @ x.T)),
    "a declined kernel between others": lambda x: mx.cumsum(mx.sin(x), axis=0) * mx.cos(x),
    "an update": lambda x: x.at[1:2].add(x[:1]),
    "a sort of a reversed view": lambda x: mx.sort(x[::-1, ::-1], axis=0),
    "a routine of several steps": lambda x: mx.sort(mx.tile(x.reshape(-1), 2000)),
    "nothing": lambda x: mx.exp(x[:0]),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bits_of_the_cpu(driver: FakeDriver, name: str, compiled: bool) -> None:
    function = mx.compile(PROGRAMS[name]) if compiled else PROGRAMS[name]
    x = values(3, 5)
    with mx.stream(mx.cpu):
        wanted = PROGRAMS[name](x)
        mx.eval(wanted)
    with mx.stream(mx.gpu):
        for _ in range(2):
            assert_same_bits(function(x), wanted)


def test_calls_return_when_their_work_is_queued(driver: FakeDriver) -> None:
    function = mx.compile(lambda x: mx.softmax(mx.exp(x) * 2, axis=0))
    x = values(4, 6)
    mx.set_default_device(mx.gpu)
    mx.eval(function(x))
    before = driver.calls.copy()
    y = x
    for _ in range(3):
        y = function(y)
    assert driver.queue
    assert driver.calls["synchronize"] == before["synchronize"]
    mx.eval(y)
    assert not driver.queue
    later = mx.exp(y)
    mx.async_eval(later)
    assert driver.queue
    assert later.tolist() == mx.exp(mx.array(np.array(y)), stream=mx.cpu).tolist()


def test_several_steps_are_one_launch(driver: FakeDriver) -> None:
    """Addresses that the card already has are not sent again."""
    x = values(4, 6)
    mx.set_default_device(mx.gpu)
    compiled = mx.compile(lambda x: (mx.exp(x), mx.sum(mx.sin(x), axis=0)))
    for _ in range(3):
        mx.eval(compiled(x))
    before = driver.calls.copy()
    mx.eval(compiled(x))
    assert driver.calls["launch_graph"] == before["launch_graph"] + 1
    assert driver.calls["launch"] == before["launch"]
    assert driver.calls["copy_in"] == before["copy_in"]


@pytest.mark.parametrize("on_the_host", [False, True])
def test_copies_of_elements_to_where_they_are(driver: FakeDriver, on_the_host: bool) -> None:
    """An update copies its base, unless the result has the base's memory: then the copy is not launched."""
    mx.set_default_device(mx.gpu)
    state, expected = [mx.zeros((5, 4))], np.zeros((5, 4), np.float32)
    mx.eval(state)

    def made(x: mx.array) -> mx.array:
        return mx.cumsum(x, axis=0) if on_the_host else mx.exp(x)

    def step(x: mx.array, place: mx.array) -> None:
        state[0][place] = made(x)

    compiled = mx.compile(step, inputs=state, outputs=state)
    kernels, held = [], []
    for turn in range(14):
        is_held = turn in (2, 3, 9)
        if is_held:
            held.append((state[0][:], expected.copy()))
            mx.eval(held[-1][0])
        x = mx.array(np.full(4, turn, np.float32))
        with mx.stream(mx.cpu):
            expected[turn % 5] = np.array(made(x))
        before = driver.calls["kernel"]
        compiled(x, mx.array(turn % 5))
        mx.eval(state)
        kernels.append((is_held, driver.calls["kernel"] - before))
        assert np.array_equal(np.array(state[0]), expected)
    most = max([count for _, count in kernels])
    assert all(count == most for is_held, count in kernels if is_held)
    assert {count for is_held, count in kernels[4:] if not is_held} == {most - 1}
    for array, values_then in held:
        assert np.array_equal(np.array(array), values_then)


@pytest.mark.parametrize("compiled", [False, True])
def test_memory_that_others_may_write(driver: FakeDriver, compiled: bool) -> None:
    """Such memory is copied for each run, and the copy exists until it is queued."""

    def function(x: mx.array) -> tuple[mx.array, ...]:
        return mx.exp(x), mx.sum(mx.sin(x), axis=0), mx.sum(x * 2, axis=1)

    x = values(4, 6)
    seen = np.asarray(x)
    for _ in range(3):
        seen += 1
        with mx.stream(mx.gpu):
            found = mx.compile(function)(x) if compiled else function(x)
            mx.async_eval(found)
        with mx.stream(mx.cpu):
            assert_same_bits(found, function(x))


def test_memory_is_used_again_and_given_back(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    gc.collect()
    before = mx.get_active_memory()
    x = values(64)
    wanted = np.array(x)
    x = x * 0.5
    mx.eval(x)
    for _ in range(5):
        x = x * 0.5
        mx.async_eval(x)
    assert mx.get_active_memory() == before + 256
    assert np.array_equal(np.array(x), wanted * 0.5**6)
    del x
    gc.collect()
    assert mx.get_active_memory() == before


def test_too_little_memory(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    x = mx.zeros((1000,))
    mx.eval(x)
    del x
    driver.limit = sum(driver._sizes.values()) + 4096
    y = mx.ones((1800,))
    mx.eval(y)  # takes memory from the cache
    with pytest.raises(
        MemoryError,
        match=r"no memory for an array of 40000 bytes \(.* in use by arrays; Device\(gpu, 0\) has .* of them free",
    ):
        mx.eval(mx.ones((10000,)))
    assert y[0].item() == 1


def no_memory(called: str) -> CudaMemoryError:
    return CudaMemoryError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory", called)


def test_too_little_memory_for_the_context(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.exp(mx.array([0.0, 1.0]), stream=mx.gpu)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "context", Mock(side_effect=no_memory("cuDevicePrimaryCtxRetain")))
        with pytest.raises(MemoryError, match="cuDevicePrimaryCtxRetain"):
            mx.eval(x)
        assert mx.exp(mx.array([0.0]), stream=mx.cpu).tolist() == [1]
    assert x[0].item() == 1


@pytest.mark.parametrize("helps", [True, False])
def test_too_little_memory_for_code(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, helps: bool) -> None:
    """Weft frees the memory in its cache and calls the driver a second time."""
    mx.set_default_device(mx.gpu)
    mx.eval(mx.zeros((1000,)))
    gc.collect()
    x, load = values(4), driver.load
    mx.eval(x)

    def loaded(*arguments: Any) -> Any:
        if mx.get_cache_memory() or not helps:
            raise no_memory("cuModuleLoadDataEx")
        return load(*arguments)

    assert mx.get_cache_memory()
    with monkeypatch.context() as patched:
        patched.setattr(driver, "load", loaded)
        if helps:
            mx.eval(mx.exp(x))
        else:
            with pytest.raises(MemoryError, match=r"reported by cuModuleLoadDataEx\); Device\(gpu, 0\) has .* bytes"):
                mx.eval(mx.exp(x))
    assert mx.exp(x).tolist() == mx.exp(x, stream=mx.cpu).tolist()


def test_memory_of_each_device(driver: FakeDriver) -> None:
    x = mx.exp(values(1000), stream=mx.gpu)
    mx.eval(x)
    assert mx.default_device() == mx.cpu
    assert mx.get_active_memory(device=mx.gpu) == 4096
    assert mx.get_peak_memory(device=mx.gpu) >= 4096
    before = mx.get_active_memory()
    assert mx.set_cache_limit(1 << 20, device=mx.gpu) == mx.set_memory_limit(1 << 30, device=mx.gpu)
    assert mx.get_memory_limit(device=mx.gpu) == 1 << 30
    assert mx.get_memory_limit() != 1 << 30
    del x
    assert mx.get_cache_memory(device=mx.Device(mx.gpu)) >= 4096
    mx.clear_cache(device=mx.gpu)
    mx.reset_peak_memory(device=mx.gpu)
    assert mx.get_peak_memory(device=mx.gpu) == mx.get_cache_memory(device=mx.gpu) == 0
    assert mx.get_active_memory() <= before
    with pytest.raises(ValueError, match=r"\[get_active_memory\] Device\(gpu, 7\) is not available"):
        mx.get_active_memory(device=mx.Device(mx.gpu, 7))


def test_errors_of_the_card_reach_who_waits(driver: FakeDriver) -> None:
    x = mx.exp(mx.array([0.0, 1.0]), stream=mx.gpu)
    mx.async_eval(x)
    driver.failure = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered", "here")
    with pytest.raises(weft.errors.EvaluationError, match=r"(?s)CUDA_ERROR_ILLEGAL_ADDRESS.*queued last:.*exp"):
        x.tolist()
    assert (mx.array([1.0]) + 1).tolist() == [2]


def test_what_the_cpu_does_is_said(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    explained = mx.compile(lambda x: mx.cumsum(mx.exp(x) @ x, axis=0)).explain(values(4, 4))
    assert [step.runs_on[:10] for step in explained.steps] == ["", "on the CPU", "on the CPU"]
    assert str(explained).count("(on the CPU") == 2


def rows_of(timeline: io.StringIO) -> list[str]:
    """The names of the rows of a timeline."""
    events = json.loads(timeline.getvalue())["traceEvents"]
    return [event["args"]["name"] for event in events if event["name"] == "thread_name"]


def test_times_are_those_of_the_card(driver: FakeDriver) -> None:
    """Measuring does not wait, and events are used again."""
    mx.set_default_device(mx.gpu)
    x = values(4, 6)
    step = mx.compile(lambda x: mx.softmax(mx.exp(x) * 2, axis=0))
    mx.eval(step(x))
    events = []
    for _ in range(3):
        file = io.StringIO()
        with weft.profile(file) as profile:
            y = step(x)
            assert driver.queue
        assert not driver.queue
        assert all(kernel.seconds > 0 for kernel in profile.kernels)
        events.append(driver.calls["event"])
        mx.eval(y)
    assert events[2] == events[0]
    assert any("gpu 0, stream" in title for title in rows_of(file))


def test_what_overlaps_is_said(driver: FakeDriver) -> None:
    x, y = values(4, 6), values(5)
    streams = [mx.new_stream(mx.gpu) for _ in range(2)]
    file = io.StringIO()
    with weft.profile(file) as profile:
        mx.eval(mx.exp(x, stream=streams[0]), mx.sin(y, stream=streams[1]))
    assert len([title for title in rows_of(file) if "gpu 0, stream" in title]) == 2
    assert ("at the same time" in str(profile)) == (profile.overlap > 0)


def test_work_crosses_devices(driver: FakeDriver) -> None:
    x = values(5)
    there = mx.exp(x, stream=mx.gpu)
    here = mx.sin(there, stream=mx.cpu)
    again = mx.cos(here, stream=mx.gpu)
    assert_same_bits(again, mx.cos(mx.sin(mx.exp(x))))


STEPS: list[Callable[[mx.array, mx.array], mx.array]] = [
    lambda x, y: mx.sin(x) + y,
    lambda x, y: mx.cumsum(x * 0.1, axis=0),
    lambda x, y: mx.sum(x, axis=0) - y[::-1],
    lambda x, y: x.at[1:].add(y[:-1]),
]


def walk(streams: list[mx.Stream], seed: int) -> list[mx.array]:
    """Steps on streams by turns, of the results of earlier steps. Some arrays are freed, and their memory is used
    again."""
    rng = np.random.default_rng(seed)
    arrays = [values(4, 3) * 0.5 for _ in range(3)]
    for number in rng.integers(0, 1 << 20, 60).tolist():
        stream = streams[number % len(streams)]
        place, other = number % 3, number // 3 % 3
        with mx.stream(stream):
            result = STEPS[number // 9 % len(STEPS)](arrays[place], arrays[other]) * 0.5
        mx.async_eval(result)
        arrays[number // 36 % 3] = result
        del result
    return arrays


def test_streams_wait_for_what_they_need(driver: FakeDriver, seed: int) -> None:
    streams = [mx.default_stream(mx.gpu), *[mx.new_stream(mx.gpu) for _ in range(9)], mx.default_stream(mx.cpu)]
    for number in range(seed, seed + 5):
        assert_same_bits(walk(streams, number), walk([mx.default_stream(mx.cpu)] * len(streams), number))
    assert driver.calls["wait_event"]


def test_many_streams(driver: FakeDriver) -> None:
    """Streams share queues, but none uses the queue of copies, in which marks are set at any time."""
    streams = [mx.new_stream(mx.gpu) for _ in range(24)]
    for number, stream in enumerate(streams):
        mx.eval(mx.exp(values(3 + number), stream=stream))
    engine: Any = engine_of(mx.Device(mx.gpu))
    order = engine.order
    assert order.copies not in [stream.queue for stream in streams]
    assert len(order.queues) <= 10


def test_a_stream_does_not_wait_for_what_it_does_not_need(driver: FakeDriver) -> None:
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)
    x, y = mx.exp(values(4), stream=first), mx.exp(values(5), stream=second)
    mx.eval(x, y)
    slow, fast = mx.sin(x, stream=first), mx.sin(y, stream=second)
    mx.async_eval(slow, fast)
    mx.eval(fast)
    assert driver.queue  # slow was not waited for
    assert_same_bits(slow, mx.sin(mx.array(np.array(x)), stream=mx.cpu))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_is_told(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.exp(mx.array([0.0]), stream=mx.gpu)
    mx.eval(x)
    monkeypatch.setattr(engines, "_engines", [engine_of(mx.Device(mx.gpu))])
    engines._after_fork()  # runs in a child
    with pytest.raises(weft.errors.EvaluationError, match="forked"):
        mx.eval(mx.exp(x, stream=mx.gpu))
    with pytest.raises(weft.errors.EvaluationError, match="forked"):
        x.tolist()
    assert (mx.array([1.0]) + 1).tolist() == [2]


@pytest.mark.parametrize("count", [1, 3])
def test_large_copies_go_through_pinned_memory(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Copies are made piece by piece: the card copies one piece while the next is filled; with several threads, too."""
    for name, value in (("PIECE", 1024), ("_MOST_LANES", count)):
        monkeypatch.setattr(staging, name, value)
    monkeypatch.setattr(copies, "STAGED", 2048)
    numbers = np.random.default_rng(4).normal(size=5003).astype(np.float32)
    x = mx.array(numbers)
    for stream in (mx.default_stream(mx.gpu), mx.new_stream(mx.gpu)):
        y = mx.negative(x, stream=stream)
        mx.async_eval(y)
        assert np.array_equal(np.array(mx.abs(y, stream=stream)), np.abs(numbers))
        assert np.array_equal(np.array(y), -numbers)
    assert driver.calls["copy_in"] >= 20


def test_an_interrupted_copy_leaves_nothing_behind(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in memory of the host nor in the pieces, which the card may still be writing."""
    monkeypatch.setattr(staging, "PIECE", 1024)
    monkeypatch.setattr(copies, "STAGED", 2048)
    x = mx.exp(values(5003), stream=mx.gpu)
    wanted = mx.exp(values(5003), stream=mx.cpu)
    mx.eval(x)
    has_happened = driver.has_happened
    for after in (1, 2, 5):
        asked = iter(range(after))

        def interrupted(event: int, asked: Iterator[int] = asked) -> bool:
            if next(asked, None) is None:
                raise KeyboardInterrupt
            return has_happened(event)

        monkeypatch.setattr(driver, "has_happened", interrupted)
        with pytest.raises(KeyboardInterrupt):
            np.array(x)
        monkeypatch.setattr(driver, "has_happened", has_happened)
        y = mx.exp(values(5003), stream=mx.gpu)
        assert_same_bits(y, wanted)
    assert_same_bits(x, wanted)


def test_large_data_is_copied_once(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the GPU as the default device, it is copied to the card, and not to memory of the host before."""
    numbers = np.arange(1 << 12, dtype=np.float32)
    monkeypatch.setattr(interchange, "_LARGE", 1 << 14)
    monkeypatch.setattr(engines.CudaEngine, "takes_at_once", 1 << 14)
    mx.set_default_device(mx.gpu)
    for given in (numbers, numbers.reshape(2, -1).T):
        with weft.profile() as profile:
            x = mx.array(given)
        assert profile.transfers["Device(cpu, 0) to Device(gpu, 0)"].bytes == numbers.nbytes
        assert x.__dlpack_device__() == (2, 0)
        assert np.array_equal(np.array(x), given)
    mx.clear_cache()
    driver.limit = 1 << 14
    assert mx.array(numbers).__dlpack_device__() == (1, 0)


def test_machine_code_is_kept_on_disk(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """A second engine, as in another process, assembles nothing."""
    cache = DiskCache(str(tmp_path))
    monkeypatch.setattr(assembly, "process_cache", lambda: cache)
    code = CudaCode("not assembled before", "name", 32, title="what it does")

    def assembler(architecture: str) -> assembly.Assembler:
        return assembly.Assembler(cast(Any, driver), architecture, lambda: driver.use(0))

    for begins in (True, False, True):
        made = assembler("sm_90")
        if begins:
            made.begin(code)
        assert made.machine_code(code) == b"not assembled before\0"
        assert driver.calls["assembled"] == 1
    assembler("sm_100").machine_code(code)
    assert driver.calls["assembled"] == 2


def test_old_work_is_not_waited_for(driver: FakeDriver) -> None:
    """The events of marks are used again; a mark that the host has seen reached is not confused with a later one."""
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)
    x, y = mx.exp(values(4), stream=first), mx.exp(values(5), stream=second)
    mx.eval(x, y)
    for _ in range(100):  # more than the events of a queue
        y = mx.sin(y, stream=second)
        mx.async_eval(y)
    mx.eval(y)
    before = driver.calls["wait_event"]
    z = mx.sin(x, stream=first)
    mx.async_eval(z)
    del z
    for _ in range(40):
        y = mx.sin(y, stream=second)
        mx.async_eval(y)
    mx.eval(mx.cos(x, stream=first))
    assert driver.queue  # of the second stream
    assert driver.calls["wait_event"] <= before + 2


def test_what_is_not_queued_yet_is_not_done(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread waits for all work that is queued while another thread queues the steps of a run one by one."""
    first, second = mx.new_stream(mx.gpu), mx.new_stream(mx.gpu)
    x, y = mx.exp(values(4, 3), stream=first), mx.exp(values(5), stream=second)
    mx.eval(x, y)
    run = on_host.HostSteps.run

    def waited_for(*arguments: Any) -> Any:
        found = run(*arguments)
        engine_of(mx.Device(mx.gpu)).finish()
        return found

    monkeypatch.setattr(on_host.HostSteps, "run", waited_for)
    with mx.stream(first):
        z = mx.cumsum(mx.sin(x), axis=0) * 0.5
    mx.async_eval(z)
    with mx.stream(mx.cpu):
        wanted = mx.cos(mx.cumsum(mx.sin(mx.exp(values(4, 3))), axis=0) * 0.5)
    assert_same_bits(mx.cos(z, stream=second), wanted)


@pytest.mark.parametrize(
    ("units", "grain", "queue", "blocks"),
    [
        *((1000, 1, True, 1000), (1000, 8, True, 264), (10_000, 8, True, 1250), (10, 8, True, 10), (0, 1, True, 1)),
        *((1000, 1, False, 264), (100, 1, False, 100)),
    ],
)
def test_how_many_blocks_a_launch_has(units: int, grain: int, queue: bool, blocks: int) -> None:
    """On a card that runs 264 blocks at once."""
    assert CudaCode("", "name", 256, queue=queue).blocks(units, grain, 264) == blocks


def test_a_kernel_gets_numbers_or_their_address() -> None:
    """The driver gets a list of the addresses of parameters."""
    for numbers, given in ([3, -4, 5], [3, -4, 5]), (1 << 40, [1 << 40]):
        launch = FunctionLaunch(1, 2, 32, 0, numbers, 1 << 41)
        first, second = (ctypes.c_uint64 * 2).from_address(launch.parameters)
        assert list((ctypes.c_int64 * len(given)).from_address(first)) == given
        assert ctypes.c_int64.from_address(second).value == 1 << 41
