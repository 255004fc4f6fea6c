"""Threads whose stacks are smaller than kernels need, which put panels of matrices on the stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx


def on_a_small_stack(work: Callable[[], Any]) -> Any:
    """The result of ``work`` on a thread that has a stack of 256 KiB."""
    results: list[Any] = []
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    return results.pop()


def product() -> np.ndarray[Any, Any]:
    x = mx.random.normal((1000, 700), key=mx.random.key(1))
    return np.array(x @ x.T)


def test_a_large_product_fits() -> None:
    np.testing.assert_array_equal(on_a_small_stack(product), product())


def test_its_steps_are_timed() -> None:
    def times() -> float:
        with weft.profile() as profile:
            product()
        return sum(kernel.seconds for kernel in profile.kernels)

    assert on_a_small_stack(times) > 0


def test_without_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.executor.current._run_apart", lambda *_: -1)
    x = mx.ones((3,)) + mx.array(2.0)

    def message() -> str:
        with pytest.raises(MemoryError) as caught:
            mx.eval(x)
        return str(caught.value)

    assert "threading.stack_size" in on_a_small_stack(message)
    monkeypatch.undo()
    assert x.tolist() == [3.0, 3.0, 3.0]
