"""Launches that are repeated with the same addresses: they fail, are interrupted, or may not begin yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver
from weft.compiler.running.prepared import Prepared
from weft.runtime.cuda.driver import CudaError
from weft.runtime.streams import worker_of


def values(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(5).normal(size=shape).astype(np.float32))


class Switch:
    """Replaces the next launch of a graph by another function."""

    def __init__(self, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.instead: Callable[..., int] | None = None
        launching_graph = driver.launching_graph

        def launching(graph: int, stream: int) -> tuple[Any, ...]:
            function, *arguments = launching_graph(graph, stream)

            def launch(*given: int) -> int:
                instead, self.instead = self.instead, None
                return function(*given) if instead is None else instead(function, *given)

            return launch, *arguments

        def check(code: int, called: str, more: str = "") -> None:
            if code:
                raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory", called)

        monkeypatch.setattr(driver, "launching_graph", launching)
        monkeypatch.setattr(driver, "check", check)


@pytest.fixture
def switch(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Switch:
    return Switch(driver, monkeypatch)


def once_more(kind: str, x: mx.array) -> Callable[[], mx.array]:
    """A function that launches the same graph in each call."""
    compiled = mx.compile(lambda x: mx.exp(x) * 2)
    ways: dict[str, Callable[[], mx.array]] = {
        "compiled": lambda: compiled(x),
        "eager": lambda: mx.exp(x),
        "eager, of two operations": lambda: mx.exp(x) * 2,
    }
    return ways[kind]


KINDS = ("compiled", "eager", "eager, of two operations")


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_that_fails_is_an_error(driver: FakeDriver, switch: Switch, kind: str) -> None:
    with mx.stream(mx.gpu):
        call = once_more(kind, values(4, 3))
        wanted = np.array(call())
        for _ in range(3):
            mx.eval(call())
        switch.instead = lambda *given: 2
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            mx.eval(call())
        copies = driver.calls["copy_in"]
        for _ in range(3):
            assert np.array_equal(np.array(call()), wanted)
        assert driver.calls["copy_in"] > copies  # addresses are sent to the card again


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launches", [False, True])
def test_an_interrupted_launch_leaves_nothing_behind(
    driver: FakeDriver, switch: Switch, kind: str, launches: bool
) -> None:
    """Whether or not the work is queued by then."""

    def interrupted(launch: Callable[..., int], *given: int) -> int:
        if launches:
            launch(*given)
        raise KeyboardInterrupt

    with mx.stream(mx.gpu):
        call = once_more(kind, values(4, 3))
        wanted = np.array(call())
        for _ in range(3):
            mx.eval(call())
        switch.instead = interrupted
        with pytest.raises(KeyboardInterrupt):
            mx.eval(call())
        for _ in range(3):
            assert np.array_equal(np.array(call()), wanted)


def test_what_async_eval_begins_waits_for_no_other_device(driver: FakeDriver) -> None:
    """The input of an operation on the card is computed by a worker of the CPU."""
    stream, opened = mx.new_stream(mx.cpu), threading.Event()
    worker_of(stream).submit(lambda: None if opened.wait(30) else pytest.fail("somebody waits"))
    x = mx.exp(values(5), stream=stream)
    mx.async_eval(x)
    y = mx.sin(x, stream=mx.gpu)
    mx.async_eval(y)
    assert not opened.is_set()
    opened.set()
    assert_same_bits(y, mx.sin(mx.exp(values(5), stream=mx.cpu), stream=mx.cpu))


def test_what_async_eval_begins_on_a_card_is_one_launch(driver: FakeDriver) -> None:
    x = values(4, 3)
    with mx.stream(mx.gpu):
        mx.eval(x + 1)
        before = driver.calls["launch_graph"]
        y = x + 2
        mx.async_eval(y)
        assert driver.calls["launch_graph"] == before + 1
        assert driver.queue
        mx.eval(y)
        assert driver.calls["launch_graph"] == before + 1
    assert_same_bits(y, mx.add(values(4, 3), 2, stream=mx.cpu))


def test_a_repeated_call_reads_the_copy_of_an_array_of_the_process(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small arrays that are made from NumPy's are copied to a card when they are first read there."""
    with mx.stream(mx.gpu):
        compiled, x, y = mx.compile(lambda x, y: mx.exp(x) * y), values(4, 3), values(4, 3) + 1
        mx.eval(x, y)
        wanted = np.array(compiled(x, y))
        mx.eval(compiled(x, y))
        monkeypatch.setattr(Prepared, "run", None)  # the longer way
        before = driver.calls.copy()
        for _ in range(5):
            assert np.array_equal(np.array(compiled(x, y)), wanted)
        assert driver.calls["launch_graph"] == before["launch_graph"] + 5
        other = values(4, 3) * 2
        mx.eval(other)
        assert np.array_equal(np.array(compiled(other, y)), np.array(mx.exp(other) * y))
