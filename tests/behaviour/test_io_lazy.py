"""Elements are read when they are needed, from the file as it was when it was loaded; otherwise there is a clear
error."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.errors import EvaluationError

COUNT = 100_000
X = mx.arange(COUNT, dtype=mx.float32)
VALUES = np.array(X)
TOTAL = mx.sum(X).item()


@pytest.fixture
def memory_before() -> int:
    """The active memory after objects of other tests were collected."""
    gc.collect()
    return mx.get_active_memory()


SAVED: dict[str, Callable[[Path, mx.array], None]] = {
    "npy": lambda path, a: mx.save(path, a),
    "npz": lambda path, a: mx.savez(path, x=a),
    "safetensors": lambda path, a: mx.save_safetensors(path, {"x": a}),
    "gguf": lambda path, a: mx.save_gguf(path, {"x": a}),
}


def _saved(folder: Path, kind: str, a: mx.array = X) -> Path:
    path = folder / f"a.{kind}"
    SAVED[kind](path, a)
    return path


def _loaded(path: Path) -> mx.array:
    found: Any = mx.load(path)
    return found if isinstance(found, mx.array) else found["x"]


@pytest.mark.parametrize("kind", SAVED)
def test_memory_is_taken_when_elements_are_needed(tmp_path: Path, kind: str, memory_before: int) -> None:
    x = _loaded(_saved(tmp_path, kind))
    assert mx.get_active_memory() == memory_before
    assert (x.shape, x.dtype) == ((COUNT,), mx.float32)
    total = mx.sum(x)
    assert mx.get_active_memory() == memory_before
    assert total.item() == TOTAL
    assert mx.get_active_memory() >= memory_before + 4 * COUNT
    assert mx.array_equal(x, X)


def test_what_nobody_needs_is_not_read(tmp_path: Path, memory_before: int) -> None:
    path = tmp_path / "a.safetensors"
    mx.save_safetensors(path, {"x": X, "y": X + 1})
    found = mx.load(path)
    assert mx.array_equal(found["y"], X + 1)
    assert mx.get_active_memory() < memory_before + 8 * COUNT
    del found


@pytest.mark.parametrize(
    "use", ["view", "compiled", "captured", "gradient", "stream", "async_eval", "numpy", "donated"]
)
def test_every_use_reads(tmp_path: Path, use: str) -> None:
    path = _saved(tmp_path, "npy")
    x = mx.load(path, stream=mx.new_stream(mx.cpu) if use == "async_eval" else None)
    uses: dict[str, Callable[[], Any]] = {
        "view": lambda: x[5:10] + 0,
        "compiled": lambda: mx.compile(lambda a: a * 2)(x)[5:10] / 2,
        "captured": lambda: mx.compile(lambda a: a + x)(X)[5:10] / 2,
        "gradient": lambda: mx.grad(lambda a: mx.sum(a * a))(x)[5:10] / 2,
        "stream": lambda: mx.add(x, 0, stream=mx.new_stream(mx.cpu))[5:10],
        "async_eval": lambda: x[5:10],
        "numpy": lambda: mx.array(np.array(x)[5:10]),
        "donated": lambda: mx.abs(mx.negative(mx.load(path)))[5:10],
    }
    if use == "async_eval":
        mx.async_eval(x)
    assert uses[use]().tolist() == VALUES[5:10].tolist()
    assert mx.array_equal(x, X)


def test_state_of_a_compiled_step(tmp_path: Path) -> None:
    """An array that is replaced in its own memory may be unread, and a step that failed can be repeated."""
    path = _saved(tmp_path, "npy")
    state = [mx.load(path), mx.load(path)]

    def step(scale: mx.array) -> mx.array:
        state[0] = state[0] * scale + state[1]
        return mx.max(state[0])

    compiled = mx.compile(step, inputs=state, outputs=state)
    for _ in range(2):
        compiled(mx.array(2.0))
    assert np.array_equal(np.array(state[0]), (VALUES * 2 + VALUES) * 2 + VALUES)
    state[0] = mx.load(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(EvaluationError, match="was changed"):
        mx.eval(compiled(mx.array(2.0)), state)
    with pytest.raises(EvaluationError, match="was changed"):
        mx.eval(state)


def test_a_profile_shows_what_was_read(tmp_path: Path) -> None:
    x = mx.load(_saved(tmp_path, "npy"))
    with weft.profile() as profile:
        mx.eval(x + 1)
    ((name, total),) = profile.transfers.items()
    assert name == "file to Device(cpu, 0)"
    assert (total.copies, total.bytes) == (1, 4 * COUNT)


def test_views_of_unread_arrays_on_another_stream(tmp_path: Path) -> None:
    """Queued work refers to the memory of its inputs before the elements are read."""
    x = mx.load(_saved(tmp_path, "npy"))
    other = mx.new_stream(mx.cpu)
    for _ in range(3):
        mx.async_eval(mx.exp(mx.ones(1 << 20), stream=other))
    view = mx.transpose(mx.reshape(x, (10, -1), stream=other), stream=other)
    mx.async_eval(view)
    assert np.array_equal(np.array(view), VALUES.reshape(10, -1).T)


def test_many_threads_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.load(_saved(tmp_path, "npy"))
    calls: list[int] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(offset)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", counting)
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(mx.sum(x).item())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [TOTAL] * 4
    assert len(calls) == 1


@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("change", ["shorter", "empty", "other"])
def test_a_file_that_was_changed_is_an_error_each_time(tmp_path: Path, kind: str, change: str) -> None:
    path = _saved(tmp_path, kind)
    x = _loaded(path)
    if change == "other":
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, path.stat().st_size - 4 if change == "shorter" else 0)
    y = x + 1
    for _ in range(2):
        with pytest.raises(EvaluationError, match=rf"a\.{kind}.*was changed"):
            mx.eval(y)
        with pytest.raises(EvaluationError, match="was changed"):
            x.tolist()
    mx.async_eval(x)
    with pytest.raises(EvaluationError, match="was changed"):
        mx.synchronize()


@pytest.mark.parametrize("kind", SAVED)
def test_a_file_that_was_replaced_or_removed_is_still_read(tmp_path: Path, kind: str) -> None:
    path = _saved(tmp_path, kind)
    x = _loaded(path)
    path.unlink()
    _saved(tmp_path, kind, X + 1)
    assert mx.array_equal(x, X)
    assert mx.array_equal(_loaded(path), X + 1)


@pytest.mark.parametrize("kind", SAVED)
def test_saving_to_the_file_that_arrays_come_from(tmp_path: Path, kind: str) -> None:
    path = _saved(tmp_path, kind)
    x, same = _loaded(path), _loaded(path)
    link = tmp_path / f"link.{kind}"
    link.symlink_to(path)
    SAVED[kind](link, mx.negative(x))
    assert mx.array_equal(same, X)
    assert mx.array_equal(_loaded(path), -X)


@pytest.mark.parametrize("kind", SAVED)
def test_saving_over_a_file_that_can_no_longer_be_read(tmp_path: Path, kind: str) -> None:
    path = _saved(tmp_path, kind)
    x = _loaded(path)
    os.utime(path, ns=(1, 1))
    _saved(tmp_path, kind, X + 1)
    assert mx.array_equal(_loaded(path), X + 1)
    with pytest.raises(EvaluationError, match="was changed"):
        mx.eval(x)


def test_saving_to_the_open_file_that_arrays_come_from(tmp_path: Path) -> None:
    path = _saved(tmp_path, "npy")
    x = _loaded(path)
    with open(path, "r+b") as file:
        mx.save(file, X + 1)
    assert mx.array_equal(x, X)
    assert mx.array_equal(_loaded(path), X + 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system does not list open files")
def test_more_files_than_can_be_open(tmp_path: Path) -> None:
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 4 * len(os.listdir("/proc/self/fd"))
    path = _saved(tmp_path, "npy")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: _loaded(path), range(2 * limit)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    assert all(mx.array_equal(x, X) for x in found)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the system does not list open files")
def test_files_are_closed_when_nothing_is_left_to_read(tmp_path: Path) -> None:
    path = _saved(tmp_path, "safetensors")
    before = len(os.listdir("/proc/self/fd"))
    found = mx.load(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    mx.eval(found)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_file() -> None:
    with pytest.raises(IsADirectoryError, match="folder"):
        mx.load("/", format="npy")
    with pytest.raises(ValueError, match="no regular file"):
        mx.load("/dev/null", format="npy")
