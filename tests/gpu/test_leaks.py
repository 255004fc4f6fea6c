"""A card after many steps: memory, events, graphs and streams are as they were, whatever the steps do."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card
from weft.runtime.cuda.engine import CudaEngine
from weft.runtime.engine import engine_of

require_card()
pytestmark = pytest.mark.gpu

STEPS = 1000
LOST = 8 << 20
"""So many bytes of a card may be gone: the driver takes memory in pieces of some megabytes."""


def free_bytes() -> int:
    """Of the card, when nothing is cached."""
    gc.collect()
    mx.synchronize(mx.gpu)
    mx.clear_cache(device=mx.gpu)
    engine = cast(CudaEngine, engine_of(mx.Device(mx.gpu)))
    engine.own_memory.clear()
    engine.first_queue()
    return engine._driver.free_memory()


class Steps:
    """What is done again and again; each keeps what it needs for the next time."""

    def __init__(self) -> None:
        self.x = mx.array(np.linspace(0, 1, 5000, dtype=np.float32))
        self.compiled = mx.compile(lambda x: (mx.softmax(x * 2), mx.sum(mx.sin(x))))
        self.streams = [mx.new_stream(mx.gpu) for _ in range(3)]

    def eager(self, number: int) -> Any:
        self.x = mx.cos(self.x) + number % 3
        return self.x

    def a_call(self, number: int) -> Any:
        return self.compiled(self.x)

    def another_shape(self, number: int) -> Any:
        return self.compiled(self.x[: 1000 + number % 50])

    def a_function_that_ends(self, number: int) -> Any:
        return mx.compile(lambda x: mx.exp(-x) * 2)(self.x) if number % 10 == 0 else None

    def several_streams(self, number: int) -> Any:
        y = mx.sin(self.x, stream=self.streams[number % 3])
        return mx.cos(y, stream=self.streams[(number + 1) % 3])

    def the_host(self, number: int) -> Any:
        return mx.exp(mx.sin(self.x, stream=mx.cpu), stream=mx.gpu)

    def shared(self, number: int) -> Any:
        return mx.from_dlpack(Shared(mx.sin(self.x))) * 2

    def a_profile(self, number: int) -> Any:
        if number % 20:
            return None
        with weft.profile():
            return self.compiled(self.x)

    def large(self, number: int) -> Any:
        return mx.array(np.zeros(1 << 22, np.float32)) + 1 if number % 50 == 0 else None


class Shared:
    """An array, as if it were that of another library."""

    def __init__(self, x: mx.array) -> None:
        self._x = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()


@pytest.mark.parametrize("name", [name for name in vars(Steps) if not name.startswith("_")])
def test_nothing_is_lost_in_a_thousand_steps(name: str) -> None:
    with mx.stream(mx.gpu):
        step: Callable[[int], Any] = getattr(Steps(), name)
        for number in range(100):
            mx.async_eval(step(number))
        before = free_bytes()
        for number in range(STEPS):
            mx.async_eval(step(number))
            if number % 100 == 0:
                mx.eval(step(number))
        assert before - free_bytes() <= LOST


def test_threads_have_streams_of_their_own() -> None:
    """Eight threads of Python, each with a stream: they get the numbers of the CPU, and leave nothing behind."""

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = mx.array(rng.normal(size=(40, 30)).astype(np.float32))
        chain = mx.compile(lambda x: mx.softmax(mx.sin(x) * 3, axis=1) - mx.mean(x, axis=0))
        with mx.stream(mx.cpu):
            wanted = x
            for _ in range(20):
                wanted = chain(wanted)
            mx.eval(wanted)
        with mx.stream(mx.new_stream(mx.gpu)):
            for _ in range(10):
                y = x
                for _ in range(20):
                    y = chain(y)
                assert_same_bits(y, wanted)

    for _ in range(2):
        before = free_bytes()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    assert before - free_bytes() <= LOST
