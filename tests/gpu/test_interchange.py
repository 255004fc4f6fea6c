"""Memory shared with PyTorch and CuPy on a card, and waiting for the card."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card

require_card()
pytestmark = pytest.mark.gpu

DTYPES = ["bool_", "uint8", "int32", "int64", "float16", "float32", "complex64", "bfloat16"]


def a_library(name: str) -> Any:
    library: Any = pytest.importorskip(name)
    if name == "torch" and not library.cuda.is_available():
        pytest.skip("torch finds no card")
    return library


@pytest.fixture(params=["torch", "cupy"])
def library(request: pytest.FixtureRequest) -> Any:
    return a_library(request.param)


def address_of(x: Any) -> int:
    if hasattr(x, "data_ptr"):
        return int(x.data_ptr())
    return int(x.__cuda_array_interface__["data"][0])


def on_card(values: Any, dtype: str = "float32") -> mx.array:
    with mx.stream(mx.gpu):
        x = mx.array(values).astype(getattr(mx, dtype)) + mx.array(0, dtype=getattr(mx, dtype))
    mx.eval(x)
    return x


def numpy_of(x: Any) -> np.ndarray:
    if hasattr(x, "cpu"):
        x = x.cpu()
        return np.asarray(x.float() if "bfloat16" in str(x.dtype) else x)
    return x.get()


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_see_the_same_memory(library: Any, dtype: str) -> None:
    if dtype == "bfloat16" and library.__name__ == "cupy":
        pytest.skip("CuPy has no bfloat16")
    x = on_card(np.arange(12).reshape(3, 4) % 2 if dtype == "bool_" else np.arange(12).reshape(3, 4), dtype)
    for ours in (x, x.T, x[1:, ::2]):
        mx.eval(ours)
        theirs = library.from_dlpack(ours)
        assert np.array_equal(numpy_of(theirs), np.array(ours).astype(numpy_of(theirs).dtype))
        back = mx.from_dlpack(theirs)
        assert back.dtype == ours.dtype
        assert_same_bits(back, ours)
        copied = mx.array(theirs)
        if dtype != "bfloat16":
            assert address_of(theirs) == address_of(ours) == address_of(back)
            assert address_of(copied) != address_of(theirs)


def test_writing_is_seen(library: Any) -> None:
    x = on_card([1.0, 2.0, 3.0])
    theirs = library.from_dlpack(x)
    theirs += 1
    assert numpy_of(theirs).tolist() == [2, 3, 4]
    assert x.tolist() == [2, 3, 4]
    shared = mx.from_dlpack(theirs)
    copied = mx.array(theirs)
    theirs *= 2
    assert numpy_of(theirs).tolist() == [4, 6, 8]
    assert shared.tolist() == [4, 6, 8]
    assert copied.tolist() == [2, 3, 4]


def test_streams_wait_for_each_other(library: Any) -> None:
    """Long rows of work on both sides by turns; in a second pass, each side is waited for on the host. Results are the
    same."""

    def theirs_of(x: Any) -> Any:
        for _ in range(20):
            x = library.exp(-x) * 0.5
        return x

    ours_of = mx.compile(lambda x: mx.sin(x) * 1.01)
    x = np.linspace(0, 1, 1 << 22, dtype=np.float32)
    found = []
    for waits in (False, True):
        theirs = library.from_dlpack(on_card(x))
        for _ in range(5):
            theirs = theirs_of(theirs)
            if waits:
                numpy_of(theirs)
            ours = mx.from_dlpack(theirs)
            with mx.stream(mx.gpu):
                for _ in range(20):
                    ours = ours_of(ours)
            if waits:
                mx.eval(ours)
            theirs = library.from_dlpack(ours)
        found.append(numpy_of(theirs))
    assert np.array_equal(found[0], found[1])


def test_memory_goes_round(library: Any) -> None:
    """Memory that one side frees is used again by it while the other side's work may still run."""
    used = []
    for step in range(300):
        x = on_card(np.full(100_000, float(step % 7), np.float32))
        theirs = library.from_dlpack(x)
        del x
        result = theirs * 2 + 1
        back = mx.from_dlpack(result)
        del theirs, result
        total = mx.sum(back * 1.0, stream=mx.gpu)
        del back
        if step % 50 == 0:
            assert total.item() == 100_000 * (2 * (step % 7) + 1)
            gc.collect()
            with mx.stream(mx.gpu):
                used.append(mx.get_active_memory())
    assert used[-1] <= used[1]


def test_consumers_end_on_other_threads(library: Any) -> None:
    def work(seed: int) -> None:
        for step in range(50):
            x = on_card(np.full(1000, float(seed * 100 + step), np.float32))
            theirs = library.from_dlpack(x)
            ended = threading.Thread(target=lambda held: None, args=(theirs,))
            del theirs
            ended.start()
            ended.join()
            assert x[5].item() == seed * 100 + step
            x.__dlpack__(stream=-1, max_version=(1, 0))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_interfaces_of_arrays() -> None:
    cupy = a_library("cupy")
    x = on_card(np.arange(6.0).reshape(2, 3))
    theirs = cupy.asarray(x)
    assert address_of(theirs) == address_of(x)
    x += 1
    mx.eval(x, [on_card(np.zeros((2, 3))) for _ in range(5)])
    assert theirs.get().tolist() == [[0, 1, 2], [3, 4, 5]]
    view = theirs[:, ::-1]

    class OnlyInterface:
        __cuda_array_interface__ = view.__cuda_array_interface__

    assert mx.array(OnlyInterface()).tolist() == [[2, 1, 0], [5, 4, 3]]


def test_numpy_reads_on_request() -> None:
    x = on_card([1.0, 2.0])
    assert np.asarray(x).tolist() == [1, 2]
    assert np.from_dlpack(x, device="cpu").tolist() == [1, 2]
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(x)


@pytest.mark.parametrize("size", [1 << 10, (1 << 18) + 3, (1 << 20) - 1, (1 << 24) + 5, 1 << 26])
def test_copies_of_all_sizes(size: int) -> None:
    values = np.random.default_rng(size).integers(0, 255, size, dtype=np.uint8)
    with mx.stream(mx.gpu):
        there = mx.array(values) ^ 255
        mx.async_eval(there)
        assert np.array_equal(np.array(there), values ^ 255)


def test_several_threads_copy() -> None:
    def work(seed: int) -> None:
        values = np.random.default_rng(seed).integers(0, 1 << 30, 3 << 20, dtype=np.int32)
        with mx.stream(mx.new_stream(mx.gpu)):
            for _ in range(5):
                assert np.array_equal(np.array(mx.array(values) + 1), values + 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


INTERRUPTED = """
import os, signal, threading, time
import numpy as np
import weft.core as mx

x = mx.arange(2.0**28) * 2.0**-28
step = mx.compile(lambda x: mx.sin(mx.exp(mx.sin(mx.exp(-x)))))
mx.eval(step(x))
y = x
for _ in range(1500):
    y = step(y)
mx.async_eval(y)
began = time.perf_counter()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {wait}
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    waited = time.perf_counter() - began
mx.synchronize()
assert waited < 0.5 * (time.perf_counter() - began), (waited, time.perf_counter() - began)
assert mx.isfinite(y).all().item()
assert mx.eval(x + 1) is None and (x + 1)[0].item() == 1
"""


@pytest.mark.parametrize("wait", ["mx.eval(y)", "mx.synchronize()", "y[0].item()", "np.array(y)"])
def test_the_keyboard_interrupts_waiting(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE", "gpu")
    code = INTERRUPTED.replace("{wait}", wait)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
