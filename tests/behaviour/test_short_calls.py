"""Calls of compiled functions that use the shortest path, and calls that must not use it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.compiler.running.prepared import Prepared
from weft.runtime.executor import set_thread_count, thread_count
from weft.runtime.host import host
from weft.runtime.memory import Lease

X = np.arange(6, dtype=np.float32)


def ready(data: Any) -> mx.array:
    found = mx.array(data)
    mx.eval(found)
    return found


@contextmanager
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A context in which a call of a compiled function fails unless it takes the shortest path."""

    def refuse(self: Prepared, *_: Any) -> Any:
        raise AssertionError("not the shortest way")

    with monkeypatch.context() as patch:
        patch.setattr(Prepared, "run", refuse)
        yield


def compiled() -> Callable[..., mx.array]:
    """A function that was called once, so that its next call can take the shortest path."""
    offset = ready(0.5)
    function: Callable[..., mx.array] = mx.compile(lambda x: x * 2 + offset)
    function(ready(X))
    return function


def test_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = compiled(), ready(X + 1)
    with no_other_way(monkeypatch):
        for _ in range(5):
            x = function(x)
    expected = X + 1
    for _ in range(5):
        expected = expected * 2 + np.float32(0.5)
    assert np.array_equal(np.array(x), expected)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_several_arrays(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function = mx.compile(lambda *arrays: sum([x * k for k, x in enumerate(arrays)], mx.array(1.0)))
    given = [X * k + 1 for k in range(count)]
    function(*map(ready, given))
    expected = 1 + sum([x * np.float32(k) for k, x in enumerate(given)])
    arrays = [ready(x) for x in given]
    with no_other_way(monkeypatch):
        assert np.allclose(np.array(function(*arrays)), expected)


def test_an_array_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    function = mx.compile(lambda x, y: x + y.shape[0])
    function(ready(X), ready(X))
    x, y = ready(X), ready(X)
    with no_other_way(monkeypatch):
        assert np.array_equal(np.array(function(x, y)), X + 6)


def test_temporaries(monkeypatch: pytest.MonkeyPatch) -> None:
    function = mx.compile(lambda x: mx.sort(mx.cumsum(x[::-1]) % 7)[1:])
    expected = np.sort(np.cumsum(X[::-1]) % 7)[1:]
    function(ready(X))
    x = ready(X)
    with no_other_way(monkeypatch):
        assert np.array_equal(np.array(function(x)), expected)


@pytest.mark.parametrize("extent", [1 << 10, 3 << 13])
def test_more_elements(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function = mx.compile(lambda x: mx.sort(x * 2))
    data = np.random.default_rng(0).normal(size=(3, extent)).astype(np.float32)
    function(ready(data[0]))
    with no_other_way(monkeypatch):
        for row in data:
            assert np.array_equal(np.array(function(ready(row))), np.sort(row * 2))


def test_results_have_memory_of_their_own() -> None:
    function, x = compiled(), ready(X)
    results = [function(x) for _ in range(5)]
    shared = [np.array(result, copy=False) for result in results]
    assert len({array.ctypes.data for array in shared}) == 5
    before = [array.copy() for array in shared]
    del results
    gc.collect()
    for _ in range(20):
        function(ready(X + 3))
    assert all(map(np.array_equal, shared, before))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_another_thread_assigns_to_what_is_read(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call reads the values that the arrays had: their memory is not given to others before it ends."""
    function = mx.compile(lambda x, *others: x * 2 + sum(others))
    x, *others = arrays = [ready(X + number) for number in range(count)]
    expected = np.array(function(*arrays))
    lease, results = host.memory.lease, []

    def assign_first(size: int, wanted: int) -> Lease:
        monkeypatch.setattr(host.memory, "lease", lease)
        for array in arrays:
            array[:] = 100
        mx.eval(arrays)
        results.extend([ready(X - 1000) for _ in range(10)])
        return lease(size, wanted)

    with no_other_way(monkeypatch):
        monkeypatch.setattr(host.memory, "lease", assign_first)
        result = function(x, *others)
    assert len(results) == 10
    assert np.array_equal(np.array(result), expected)


@pytest.mark.parametrize(
    "other",
    [X[:5], X.reshape(2, 3), X.astype(np.int32), np.stack([X, X], 1)[:, 0], np.array(np.float32(1))],
    ids=["extent", "rank", "dtype", "strides", "scalar"],
)
def test_other_arrays(other: np.ndarray[Any, Any]) -> None:
    function = compiled()
    for data in (X, other, X + 1, other):
        assert np.array_equal(np.array(function(ready(data))), data * 2 + np.float32(0.5))


def test_strided_arrays() -> None:
    function, x = compiled(), ready(np.arange(12, dtype=np.float32))
    every_other = x[::2]
    mx.eval(every_other)
    for given in (ready(X), every_other, ready(X)):
        assert np.array_equal(np.array(function(given)), np.array(given) * 2 + 0.5)


def test_the_same_array_twice() -> None:
    function = mx.compile(lambda x, y: x * 2 + y)
    x, y = ready(X), ready(X + 1)
    for _ in range(3):
        assert np.array_equal(np.array(function(x, y)), X * 3 + 1)
        assert np.array_equal(np.array(function(x, x)), X * 3)


def test_wrong_numbers_of_arguments() -> None:
    function = compiled()
    x, y = ready(X), ready(X)
    for arguments in ((), (x, y)):
        with pytest.raises(TypeError, match="argument"):
            function(*arguments)
    assert np.array_equal(np.array(function(x)), X * 2 + np.float32(0.5))


def test_what_has_no_value_yet() -> None:
    function = compiled()
    assert np.array_equal(np.array(function(mx.array(X) + 1)), (X + 1) * 2 + np.float32(0.5))
    later = mx.array(X) * 3
    mx.async_eval(later)
    assert np.array_equal(np.array(function(later)), X * 6 + np.float32(0.5))


def test_a_transformation_sees_the_call() -> None:
    function, x = compiled(), ready(X)
    constant = ready(X)
    gradient = mx.grad(lambda x: (function(x) + function(constant) * x).sum())(x)
    assert np.array_equal(np.array(gradient), 2 + X * 2 + np.float32(0.5))
    function(x)
    assert np.array_equal(np.array(mx.vmap(function)(ready(np.stack([X, X])))[1]), X * 2 + np.float32(0.5))


def test_a_profile_sees_the_call() -> None:
    function, x = compiled(), ready(X)
    function(x)
    with weft.profile() as profile:
        function(x)
    assert "multiply, add" in str(profile)


def test_other_streams() -> None:
    function, x = compiled(), ready(X)
    other = mx.new_stream(mx.cpu)
    for _ in range(2):
        with mx.stream(other):
            assert np.array_equal(np.array(function(x)), X * 2 + np.float32(0.5))
        assert np.array_equal(np.array(function(x)), X * 2 + np.float32(0.5))


def test_a_thread_whose_streams_belong_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a block of a task of an event loop, and on its thread afterwards."""

    def called_again() -> Any:
        function, x = compiled(), ready(X + 1)
        with no_other_way(monkeypatch):
            return np.array(function(x))

    async def in_a_block() -> Any:
        with mx.stream(mx.new_stream(mx.cpu)):
            return called_again()

    with ThreadPoolExecutor(1) as thread:
        in_task, afterwards = thread.submit(lambda: (asyncio.run(in_a_block()), called_again())).result()
    assert np.array_equal(in_task, afterwards)
    assert np.array_equal(in_task, (X + 1) * 2 + np.float32(0.5))


def test_precision_of_products_counts() -> None:
    function = mx.compile(lambda x: x @ x.T)
    x = ready(np.ones((4, 4), dtype=np.float32))
    function(x)
    with weft.matmul_precision("fast"):
        assert function(x)[0, 0].item() == 4
    assert function(x)[0, 0].item() == 4


def test_disabled_compilation_calls_the_function() -> None:
    calls: list[int] = []

    @mx.compile
    def function(x: mx.array) -> mx.array:
        calls.append(1)
        return x + 1

    x = ready(X)
    function(x), function(x)
    mx.disable_compile()
    try:
        function(x)
    finally:
        mx.enable_compile()
    assert len(calls) == 2


@pytest.mark.parametrize("stack", [0, 1 << 18])
def test_threads(stack: int) -> None:
    """Several threads on a shared stream, also some with stacks smaller than kernels need."""
    function, stream, failures = compiled(), mx.default_stream(mx.cpu), []

    def work(number: int) -> None:
        with mx.stream(stream):
            for step in range(200):
                x = X + number * 1000 + step
                if not np.array_equal(np.array(function(mx.array(x))), x * 2 + np.float32(0.5)):
                    failures.append((number, step))

    before = threading.stack_size(stack)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
    finally:
        threading.stack_size(before)
    work(4)
    for thread in threads:
        thread.join()
    assert not failures


def test_another_number_of_threads() -> None:
    function, x = compiled(), ready(X)
    before = thread_count()
    try:
        for count in (1, 3, before):
            set_thread_count(count)
            for _ in range(3):
                assert np.array_equal(np.array(function(x)), X * 2 + np.float32(0.5))
    finally:
        set_thread_count(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_forked_process() -> None:
    function, x = compiled(), ready(X)
    function(x)
    child = os.fork()
    if not child:
        same = all(np.array_equal(np.array(function(x)), X * 2 + np.float32(0.5)) for _ in range(3))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_lost_or_kept() -> None:
    function, x = compiled(), ready(X)
    for _ in range(10):
        function(x)
    gc.collect()
    before = mx.get_active_memory()
    for _ in range(1000):
        function(x)
    assert mx.get_active_memory() <= before
