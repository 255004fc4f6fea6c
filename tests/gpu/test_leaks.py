"""After many steps there are as many blocks of memory, events, streams and graphs of a card as before."""

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
KEPT = 24
MADE = {
    "blocks of memory": ("cuMemAlloc_v2", "cuMemFree_v2"),
    "pinned memory": ("cuMemHostAlloc", "cuMemFreeHost"),
    "events": ("cuEventCreate", "cuEventDestroy_v2"),
    "streams": ("cuStreamCreate", "cuStreamDestroy_v2"),
    "modules": ("cuModuleLoadDataEx", "cuModuleUnload"),
    "graphs": ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
}
"""The functions of the driver that make things, each with the function that destroys them, if there is one."""


class Counted:
    """A function of the driver that counts its calls."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> int:
        self.calls += 1
        return self._function(*arguments)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, int]]:
    """A function that empties caches and counts the things of each kind that the test has made and not destroyed."""
    engine = cast(CudaEngine, engine_of(mx.Device(mx.gpu)))
    engine.entered()
    functions = engine._driver._functions
    counted = {name: Counted(functions[name]) for names in MADE.values() for name in names if name in functions}
    for name, function in counted.items():
        monkeypatch.setitem(functions, name, function)
    nothing = Counted(lambda: 0)

    def count() -> dict[str, int]:
        gc.collect()
        mx.synchronize(mx.gpu)
        engine.seal([])  # unused graphs are destroyed
        for memory in (engine.memory, engine.own_memory):
            memory.clear()
        return {kind: counted[made].calls - counted.get(ended, nothing).calls for kind, (made, ended) in MADE.items()}

    return count


class Steps:
    """Kinds of steps that are repeated; each keeps what it needs for the next time."""

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
        return self.compiled(self.x[: 1000 + number % 4])

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
        return mx.array(np.zeros(1 << 22, np.float32)) + 1 if number % 25 == 0 else None


class Shared:
    """An array as if it came from another library."""

    def __init__(self, x: mx.array) -> None:
        self._x = x

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._x.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._x.__dlpack_device__()


@pytest.mark.parametrize("name", [name for name in vars(Steps) if not name.startswith("_")])
def test_nothing_is_lost_in_a_thousand_steps(alive: Callable[[], dict[str, int]], name: str) -> None:
    with mx.stream(mx.gpu):
        step: Callable[[int], Any] = getattr(Steps(), name)
        for number in range(200):
            mx.async_eval(step(number))
        before = alive()
        for number in range(STEPS):
            mx.async_eval(step(number))
            if number % 100 == 0:
                mx.eval(step(number))
        assert_few_more(before, alive())


def assert_few_more(before: dict[str, int], after: dict[str, int], queues: int = 1) -> None:
    """Nothing was lost. On each of the ``queues``, a plan keeps the slots of some runs: each has a block of memory and
    a graph. There are as many events as were ever awaited at once, which depends on how far the card is behind."""
    more = {kind: after[kind] - before[kind] for kind in MADE}
    assert max(more.pop("blocks of memory"), more.pop("graphs"), more.pop("events")) <= KEPT * queues, (before, after)
    assert set(more.values()) == {0}, (before, after)


def test_threads_have_streams_of_their_own(alive: Callable[[], dict[str, int]]) -> None:
    """Eight Python threads, each with a stream, get the numbers of the CPU and leave nothing behind."""

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

    found = []
    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        found.append(alive())
    assert_few_more(found[1], found[2], queues=8)
