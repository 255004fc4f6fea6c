"""Memory: nothing unreachable is held, and loops need no more with every iteration."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.gates import Gate
from weft.runtime.memory import Allocator, Buffer


def training_step(*, compiled: bool) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = optim.Adam(learning_rate=0.01)
    state = [model.state, optimizer.state, mx.random.state]
    generator = np.random.default_rng(0)

    def loss_of(model: Any, x: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), labels, reduction="mean")

    def step(x: mx.array, labels: mx.array) -> mx.array:
        loss, gradients = nn.value_and_grad(model, loss_of)(model, x, labels)
        optimizer.update(model, gradients)
        return loss

    run = mx.compile(step, inputs=state, outputs=state) if compiled else step

    def iteration() -> None:
        x = mx.array(generator.normal(size=(32, 8)).astype(np.float32))
        labels = mx.array(generator.integers(0, 3, 32))
        mx.eval(run(x, labels), state)

    return iteration


def held() -> tuple[int, int]:
    """Bytes in arrays, and the number of objects that the garbage collector tracks."""
    gc.collect()
    return mx.get_active_memory(), len(gc.get_objects())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_training_loop_holds_the_same_after_a_hundred_iterations(compiled: bool) -> None:
    iteration = training_step(compiled=compiled)
    for _ in range(20):
        iteration()
    memory, objects = held()
    for _ in range(100):
        iteration()
    memory_after, objects_after = held()
    assert memory_after <= memory
    assert objects_after - objects < 50


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_peak_does_not_grow(compiled: bool) -> None:
    iteration = training_step(compiled=compiled)

    def peak(iterations: int) -> int:
        mx.reset_peak_memory()
        for _ in range(iterations):
            iteration()
        return mx.get_peak_memory()

    peak(20)
    assert peak(100) <= 1.25 * peak(20)


def test_a_loop_of_evaluations_holds_one_buffer() -> None:
    size = 1 << 16
    before = mx.get_active_memory()
    x = mx.zeros((size,))
    for _ in range(100):
        x = x + 1
        mx.eval(x)
    assert mx.get_active_memory() - before <= 4 * size * 1.1
    assert x[0].item() == 100


def test_memory_is_released_with_the_array() -> None:
    before = mx.get_active_memory()
    x = mx.ones((1 << 20,))
    mx.eval(x)
    assert mx.get_active_memory() - before >= 4 << 20
    del x
    assert mx.get_active_memory() <= before


def test_many_small_results_are_few_objects_for_the_garbage_collector() -> None:
    """Each is a handle and three nodes with their inputs; the two views have their parameters, too."""
    rows, columns = mx.ones((20, 3)), mx.ones((3, 20))
    mx.eval(rows, columns, rows[0] + columns[:, 0])
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        results = [rows[i] + columns[:, i] for i in range(20)]
        made = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert made <= 9 * 20 + 5
    mx.eval(results)


def test_a_view_keeps_its_buffer_and_no_more() -> None:
    before = mx.get_active_memory()
    x = mx.arange(1 << 18, dtype=mx.float32)
    mx.eval(x)
    view = x[::2]
    mx.eval(view)
    del x
    assert mx.get_active_memory() - before <= 1.1 * (4 << 18)
    del view
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("part", [lambda x: x[4:8], lambda x: x[:, ::64].T, lambda x: x[0]])
@pytest.mark.parametrize("evaluated", [False, True])
def test_contiguous_has_memory_of_its_own(part: Callable[[mx.array], mx.array], evaluated: bool) -> None:
    before = mx.get_active_memory()
    x = mx.random.normal((1 << 8, 1 << 8))
    shown = part(x)
    mx.eval(x, shown) if evaluated else mx.eval(x)
    expected = shown.tolist()
    kept = mx.contiguous(shown)
    mx.eval(kept)
    del x, shown
    assert mx.get_active_memory() - before < 1 << 14
    assert kept.tolist() == expected
    assert mx.compile(lambda x: mx.contiguous(part(x)))(mx.ones((1 << 8, 1 << 8))).shape == kept.shape


def test_contiguous_does_not_copy_what_is_whole() -> None:
    x = mx.ones((1 << 8, 1 << 8))
    mx.eval(x)
    before = mx.get_active_memory()
    same = mx.contiguous(x)
    mx.eval(same)
    assert mx.get_active_memory() == before


def test_intermediates_are_released_while_evaluating() -> None:
    """A long chain of large arrays needs a few of them at a time."""
    x, weight = mx.ones((256, 256)), mx.full((256, 256), 1e-3)
    mx.eval(x, weight)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    y = x
    for _ in range(50):
        y = mx.sin(y) @ weight
    mx.eval(y)
    assert mx.get_peak_memory() - before <= 6 * x.nbytes


def test_runs_in_a_queue_hold_no_memory_for_temporaries() -> None:
    """A stream computes one result after the other, so their intermediate arrays are never there at the same time."""
    x, stream = mx.ones((256, 256)), mx.new_stream(mx.cpu)
    mx.eval(x)

    def smaller(x: mx.array) -> mx.array:
        with mx.stream(stream):
            return (mx.sin(x @ x) @ x).sum()

    with Gate() as gate:
        blocked = gate.block(stream)
        before = mx.get_active_memory()
        results = [smaller(x) for _ in range(4)]
        mx.async_eval(results[0])
        mx.async_eval(results[1])
        compiled = mx.compile(smaller)
        results[2:] = [compiled(x), compiled(x)]
        mx.async_eval(results[2:])
        assert mx.get_active_memory() - before < x.nbytes
    mx.eval(blocked, results)
    assert len({result.item() for result in results}) == 1


def test_what_the_user_no_longer_holds_is_freed() -> None:
    size = 1 << 18
    before = mx.get_active_memory()
    a = mx.arange(size, dtype=mx.float32)
    b = mx.exp(a * 1e-6)
    c = (b * 2).sum()
    del a, b
    mx.eval(c)
    assert mx.get_active_memory() - before < size


def test_clearing_the_cache() -> None:
    mx.eval(mx.ones((1 << 20,)))
    mx.clear_cache()
    assert mx.get_cache_memory() == 0
    assert mx.ones((1 << 20,)).sum().item() == 1 << 20


def test_limiting_the_cache() -> None:
    before = mx.set_cache_limit(0)
    try:
        mx.clear_cache()
        mx.eval(mx.ones((1 << 20,)) + 1)
        assert mx.get_cache_memory() == 0
    finally:
        mx.set_cache_limit(before)


class LittleMemory:
    """An engine with little memory, which hands out blocks of it."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.lent: dict[int, int] = {}
        self.memory = Allocator(self.allocate, self.free)

    def allocate(self, size: int) -> int:
        if size > self.left:
            return 0
        self.left -= size
        address = 1 + len(self.lent)
        self.lent[address] = size
        return address

    def free(self, address: int) -> None:
        self.left += self.lent[address]
        self.lent[address] = 0


def test_cached_blocks_go_back_when_there_is_no_memory() -> None:
    engine: Any = LittleMemory(4096)
    buffer = Buffer(engine, 3072)
    del buffer
    assert (engine.left, engine.memory.cached) == (1024, 3072)
    buffer = Buffer(engine, 2048)
    assert (engine.left, engine.memory.cached, engine.memory.active) == (2048, 0, 2048)
    with pytest.raises(MemoryError, match=r"no memory for an array of 4000 bytes \(2048 bytes are in use by arrays\)"):
        Buffer(engine, 4000)
    assert engine.memory.active == buffer.size


@pytest.mark.parametrize(("limit", "cached"), [(3072, 1024), (3071, 0)])
def test_cached_blocks_go_back_beyond_the_limit(limit: int, cached: int) -> None:
    engine: Any = LittleMemory(1 << 20)
    buffers = [Buffer(engine, size) for size in (1024, 1536)]
    engine.memory.memory_limit = limit
    buffers[:1] = []
    assert engine.memory.cached == 1024
    buffers.append(Buffer(engine, 512))
    assert engine.memory.cached == cached
    assert engine.memory.active == 2048


def test_leases_of_short_lived_buffers_are_used_again_beside_buffers_that_stay() -> None:
    engine: Any = LittleMemory(1 << 20)
    staying = [Buffer(engine, 64) for _ in range(20)]
    leases = [Buffer(engine, 64).lease for _ in range(40)]
    del leases
    lease = Buffer(engine, 64).lease
    address = id(lease)
    del lease
    assert address in [id(Buffer(engine, 64).lease) for _ in range(4)]
    assert len(staying) == 20


def test_gradients_release_the_forward_pass() -> None:
    x, weight = mx.ones((256, 256)), mx.full((256, 256), 1e-3)
    mx.eval(x, weight)
    before = mx.get_active_memory()

    def loss(x: mx.array) -> mx.array:
        for _ in range(20):
            x = mx.sin(x @ weight)
        return x.sum()

    gradient = mx.grad(loss)(x)
    mx.eval(gradient)
    assert mx.get_active_memory() - before <= 1.1 * x.nbytes


def test_an_exception_holds_no_arrays_afterwards() -> None:
    before = mx.get_active_memory()

    def failing() -> None:
        x = mx.random.uniform(shape=(1 << 18,))
        mx.eval(x)
        mx.compile(lambda a: a.reshape(7, 7))(x)

    for _ in range(3):
        with pytest.raises(ValueError, match="reshape"):
            failing()
    gc.collect()
    assert mx.get_active_memory() <= before


def test_an_array_that_is_too_large() -> None:
    with pytest.raises(MemoryError, match="no memory for an array of 4611686018427387904 bytes") as raised:
        mx.eval(mx.zeros((2**60,)))
    assert raised.value.__context__ is None


def test_who_clears_the_frames_of_a_memory_error_does_no_harm() -> None:
    """As `unittest.TestCase.assertRaises` does."""
    before = mx.get_active_memory()
    with pytest.raises(MemoryError) as caught:
        mx.eval(mx.zeros((1 << 44,)) + 1)
    traceback.clear_frames(caught.value.__traceback__)
    del caught
    x = mx.zeros((100_000,)) + 1
    mx.eval(x)
    assert mx.get_active_memory() - before == mx.get_array_buffer_size(x)


def test_what_ended_is_accounted_for_without_another_array() -> None:
    before, cached = mx.get_active_memory(), mx.get_cache_memory()
    x = mx.ones((1 << 20,))
    mx.eval(x)
    assert mx.get_active_memory() == before + x.nbytes
    del x
    assert mx.get_active_memory() == before
    assert mx.get_cache_memory() >= min(cached, 1 << 22)
    mx.clear_cache()
    assert mx.get_cache_memory() == 0
