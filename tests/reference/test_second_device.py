"""A second device: it is chosen through the public API, and its values are read as any others; its errors and its
memory."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import Counted, assert_same_bits
from tests.reference import kernels
from tests.reference.device import ReferenceEngine
from tests.reference.memory import MemoryFault, ReferenceMemory
from tests.reference.values import numbers, view_of


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
    before = weft.counters()
    with weft.profile() as profile:
        for device in (mx.cpu, mx.gpu, mx.cpu):
            mx.set_default_device(device)
            mx.eval(compiled(x))
    assert not profile.compilation
    assert weft.counters() == before
    assert counted.calls == 1


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


def test_wrong_accesses_are_found() -> None:
    memory, byte = ReferenceMemory(), np.dtype(np.uint8)
    address, freed = memory._allocate(4), memory._allocate(4)
    memory._free(freed)
    memory.write(address, np.arange(2), np.ones(2, np.uint8))
    assert memory.read(address, np.arange(2), byte).tolist() == [1, 1]
    for start, offset, said in ((address, 2, "nobody has written"), (address, 4, "4 to 4"), (freed, 0, "no longer")):
        with pytest.raises(MemoryFault, match=said):
            memory.read(start, np.array([offset]), byte)


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
