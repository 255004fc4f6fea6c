"""Many threads run random programs at once; every result has the bits that it has on one thread.

Each run of the tests does this for a few seconds; ``WEFT_STRESS_SECONDS`` sets another duration.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import bits, leaves
from weft.compiler.running import evaluate

THREADS = 6
SEEDS = 6
STREAMS = [mx.new_stream(mx.cpu) for _ in range(3)]

UNARY: list[Callable[..., mx.array]] = [mx.sin, mx.tanh, mx.exp, mx.square, mx.abs, mx.sigmoid, mx.negative, mx.rsqrt]
BINARY: list[Callable[..., mx.array]] = [mx.add, mx.multiply, mx.maximum, mx.subtract, mx.divide]
REDUCTIONS: list[Callable[..., mx.array]] = [mx.sum, mx.mean, mx.max, mx.logsumexp, mx.var]


def chain(rng: random.Random, x: mx.array, y: mx.array) -> mx.array:
    """A few random elementwise operations."""
    for _ in range(rng.randint(2, 8)):
        x = rng.choice(UNARY)(x) if rng.random() < 0.5 else rng.choice(BINARY)(x, y)
    return x


def operands(rng: random.Random) -> tuple[mx.array, mx.array]:
    shape = tuple(rng.choice([1, 2, 3, 7, 16, 40, 130]) for _ in range(rng.randint(1, 3)))
    generator = np.random.default_rng(rng.randrange(1 << 30))
    x, y = (mx.array(generator.uniform(0.1, 2, shape).astype(np.float32)) for _ in range(2))
    return x, y


def elementwise(rng: random.Random) -> Any:
    return chain(rng, *operands(rng))


def large(rng: random.Random) -> Any:
    generator = np.random.default_rng(rng.randrange(1 << 30))
    x = mx.array(generator.uniform(0.1, 2, (rng.randint(200, 600), 500)).astype(np.float32))
    return chain(rng, x, x[:1]).sum(axis=rng.randint(0, 1))


def reductions(rng: random.Random) -> Any:
    x, y = operands(rng)
    axis = rng.choice([None, *range(x.ndim)])
    return [rng.choice(REDUCTIONS)(chain(rng, x, y), axis=axis), mx.softmax(x, axis=-1), mx.argmax(y, axis=axis)]


def products(rng: random.Random) -> Any:
    m, k, n = (rng.randint(1, 150) for _ in range(3))
    generator = np.random.default_rng(rng.randrange(1 << 30))
    x, y = (mx.array(generator.normal(size=size).astype(np.float32)) for size in ((m, k), (k, n)))
    return mx.tanh(x @ y) @ y.T


def random_numbers(rng: random.Random) -> Any:
    key = mx.random.key(rng.randrange(1 << 32))
    first, second = mx.random.split(key)
    shape = (rng.randint(1, 50), rng.randint(1, 50))
    return [mx.random.normal(shape, key=first), mx.random.randint(0, 1000, shape, key=second)]


def gradients(rng: random.Random) -> Any:
    x, y = operands(rng)
    seed = rng.random()

    def loss(x: mx.array, y: mx.array) -> mx.array:
        return chain(random.Random(seed), x, y).sum()

    return [mx.value_and_grad(loss, argnums=(0, 1))(x, y), mx.vmap(mx.grad(loss))(x, y)]


def compiled_anew(rng: random.Random) -> Any:
    x, y = operands(rng)
    seed = rng.random()
    function = mx.compile(lambda x, y: [chain(random.Random(seed), x, y), x.sum()])
    return [function(x, y), function(y, x), mx.compile(mx.grad(lambda x, y: (function(x, y)[0] * y).sum()))(x, y)]


@mx.compile
def model(x: mx.array, k: float) -> mx.array:
    return mx.softmax(mx.tanh(x * k) @ x.T, axis=-1).sum(axis=0)


shapeless_model = mx.compile(lambda x: (mx.exp(x - x.max(axis=-1, keepdims=True)) * x).sum(axis=0), shapeless=True)


def compiled_together(rng: random.Random) -> Any:
    x = mx.random.normal((rng.randint(1, 40), rng.randint(1, 40)), key=mx.random.key(rng.randrange(100)))
    return [model(x, rng.randint(1, 5) / 2), shapeless_model(x), mx.grad(lambda x: model(x, 1.5).sum())(x)]


def training(rng: random.Random) -> Any:
    """The memory of the state becomes that of the next one."""
    x, _ = operands(rng)
    state = [mx.zeros(x.shape), mx.array(1.0)]

    def step(x: mx.array) -> mx.array:
        gradient = mx.grad(lambda w: mx.square(w - x).sum() * state[1])(state[0])
        state[0] = state[0] - 0.1 * gradient
        state[1] = state[1] * 0.9
        return gradient.sum()

    compiled = mx.compile(step, inputs=state, outputs=state)
    losses = [compiled(x) for _ in range(3)]
    state[0] = state[0] + 1
    return [losses, state]


def in_memory_that_ends(rng: random.Random) -> Any:
    x, _ = operands(rng)
    for _ in range(4):
        x = x * 1.5 + 1
        mx.eval(x)
    return x


def over_streams(rng: random.Random) -> Any:
    x, y = operands(rng)
    for _ in range(rng.randint(2, 6)):
        stream = rng.choice(STREAMS)
        x, y = mx.add(mx.sin(x, stream=stream), y, stream=stream), x
        if rng.random() < 0.3:
            mx.async_eval(y)
    if rng.random() < 0.3:
        mx.synchronize(rng.choice(STREAMS))
    with mx.stream(rng.choice(STREAMS)):
        return [mx.compile(lambda x, y: mx.multiply(x, y, stream=STREAMS[0]) + 1)(x, y), x]


KINDS: list[Callable[[random.Random], Any]] = [
    elementwise,
    large,
    reductions,
    products,
    random_numbers,
    gradients,
    compiled_anew,
    compiled_together,
    training,
    in_memory_that_ends,
    over_streams,
]


def result_of(kind: Callable[[random.Random], Any], seed: int, how: random.Random) -> list[Any]:
    """The bits of a program; ``how`` chooses the way in which they are read, which must not matter."""
    result = leaves(kind(random.Random(f"{kind.__name__} {seed}")))
    choice = how.random()
    if choice < 0.3:
        mx.async_eval(result)
    elif choice < 0.5:
        how.shuffle(order := list(result))
        for array in order:
            mx.eval(array)
    return [bits(array) for array in result]


class Stress:
    """Threads that run programs until the time is over."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seed = seed
        self.table = {
            (kind, number): result_of(kind, number, random.Random(0)) for kind in KINDS for number in range(SEEDS)
        }
        self.end = time.monotonic() + seconds
        self.fresh: list[tuple[Callable[[random.Random], Any], int, list[Any]]] = []
        self.shared: list[list[mx.array]] = []
        self.wrong: list[str] = []
        self.errors: list[BaseException] = []
        self.count = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=max(0.0, self.end - time.monotonic()) + 120)
            assert not thread.is_alive(), "a thread is stuck"
        if self.errors:
            raise self.errors[0]
        for kind, seed, found in self.fresh[-200:]:
            self._compare(kind, seed, found, result_of(kind, seed, random.Random(0)))
        assert not self.wrong, f"seed {self.seed}: {self.wrong}"

    def _work(self, number: int) -> None:
        how = random.Random(f"{self.seed} {number}")
        try:
            while time.monotonic() < self.end and not self.errors:
                self._one(number, how)
                self.count += 1
        except BaseException as error:
            self.errors.append(error)

    def _one(self, number: int, how: random.Random) -> None:
        kind = how.choice(KINDS)
        choice = how.random()
        if choice < 0.75:
            seed = how.randrange(SEEDS)
            self._compare(kind, seed, result_of(kind, seed, how), self.table[kind, seed])
        elif choice < 0.85:
            seed = how.randrange(1000, 1 << 30)
            self.fresh.append((kind, seed, result_of(kind, seed, how)))
        elif choice < 0.95:
            self._evaluate_shared(how)
        else:
            chores: list[Callable[[], Any]] = [evaluate.forget_plans, gc.collect, mx.clear_cache, mx.synchronize]
            how.choice([*chores, mx.clear_streams])()

    def _evaluate_shared(self, how: random.Random) -> None:
        """Several threads evaluate the same nodes, whose inputs nothing else refers to."""
        shared = list(self.shared)
        if len(shared) < 3:
            x = mx.full((how.randint(1, 50_000),), 2.0) * 1.0
            mx.eval(x)
            self.shared.append([x + 1, (x + 1) * 2])
            return
        first, second = how.choice(shared)
        if how.random() < 0.2:
            del self.shared[:1]
        if not mx.array_equal(second, first * 2).item() or first[0].item() != 3:
            self.wrong.append("what threads share")

    def _compare(self, kind: Callable[[random.Random], Any], seed: int, found: list[Any], expected: list[Any]) -> None:
        if found != expected:
            self.wrong.append(f"{kind.__name__} {seed}")


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def _shown_if_stuck() -> Iterator[None]:
    """Print the stacks of all threads if they do not end."""
    yield
    faulthandler.cancel_dump_traceback_later()


def stress(seconds: float, seed: int) -> None:
    faulthandler.dump_traceback_later(seconds + 100)
    run = Stress(seconds, seed)
    run.run()
    assert run.count > 20
    print(f"{run.count} programs on {THREADS} threads in {seconds} s, {len(run.fresh)} of them new")


@pytest.mark.usefixtures("_quick_switches", "_shown_if_stuck")
def test_threads_at_once(seed: int) -> None:
    stress(float(os.environ.get("WEFT_STRESS_SECONDS", "2")), seed)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick_switches", "_shown_if_stuck")
def test_threads_at_once_for_a_minute(seed: int) -> None:
    stress(60, seed)
