"""Chains of kernels alone: each turn does some rows of all arrays. Bits are those of each operation evaluated alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from tests.codegen.random_steps import Step, chains_with_the_same_bits, stored
from weft.compiler.running import evaluate
from weft.runtime import executor
from weft.runtime.host import host

SHAPES = [(24, 20), (12, 6, 20), (30, 3, 5, 18)]


@pytest.fixture(autouse=True, params=[1, 3])
def small_chains(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make chains of small arrays: a turn has two or three rows."""
    limits = replace(
        host.target.limits, uncached_size=1, turn_size=0, turn_results=3 * 20 * 4, chained_size=0, repeated_operations=1
    )
    monkeypatch.setattr(type(host.target), "limits", limits)
    threads = executor.thread_count()
    executor.set_thread_count(request.param)
    yield
    executor.set_thread_count(threads)
    evaluate.forget_plans()


def padded(x: mx.array, axis: int, before: int, after: int) -> mx.array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return mx.pad(x, widths)


def shifted(x: mx.array, axis: int, by: int) -> mx.array:
    """Elements moved by some places, with zeros behind them."""
    index: list[Any] = [slice(None)] * x.ndim
    index[axis] = slice(by, None) if by > 0 else slice(None, by)
    return padded(x[tuple(index)], axis, max(-by, 0), max(by, 0))


def assigned(x: mx.array, y: mx.array) -> mx.array:
    x = x * 2
    x[..., 3:5] = y[..., :2]
    return x


def across(x: mx.array, y: mx.array) -> mx.array:
    x = x + 0
    x[1:4] = y[:3]
    return x


WITHIN_ROWS: list[Callable[[mx.array, mx.array], mx.array]] = [
    lambda x, y: shifted(x, -1, 1) + shifted(x, -1, -1) - y,
    lambda x, y: shifted(x, 1, 1) * shifted(y, -1, -2),
    lambda x, y: mx.roll(x, 1, axis=-1) - 2 * y,
    lambda x, y: mx.softmax(x + y, axis=-1),
    lambda x, y: x - mx.max(y, axis=-1, keepdims=True),
    lambda x, y: x * mx.sum(y, axis=1, keepdims=True),
    lambda x, y: mx.cumsum(x, axis=-1) * 0.1 + y,
    lambda x, y: mx.tanh(x) * mx.exp(-y * y),
    lambda x, y: padded(x[..., 2:] * y[..., :-2] + y[..., 1:-1], -1, 1, 1),
    lambda x, y: x[..., ::-1] + y,
    assigned,
    lambda x, y: x.at[..., 2].add(y[..., 0]),
    lambda x, y: mx.where(x > y, shifted(x, -1, 3), y),
    lambda x, y: mx.sort(x, axis=-1) + y,
]
ACROSS_ROWS: list[Callable[[mx.array, mx.array], mx.array]] = [
    lambda x, y: shifted(x, 0, 1) + y,
    lambda x, y: mx.roll(x, 2, axis=0) - y,
    lambda x, y: x - mx.mean(y, axis=0),
    lambda x, y: x[::-1] * y,
    lambda x, y: mx.take(x, mx.arange(x.shape[0]) * 5 % x.shape[0], axis=0) + y,
    across,
]
OPERATIONS = [*WITHIN_ROWS, *ACROSS_ROWS]


def drawn(rng: np.random.Generator) -> tuple[list[Step], list[int]]:
    """Operations with the numbers of their operands, and the numbers of the results that are evaluated."""
    count = int(rng.integers(4, 14))
    steps = []
    for number in range(count):
        kind = int(rng.integers(len(WITHIN_ROWS)) if rng.random() < 0.85 else rng.integers(len(OPERATIONS)))
        operands = [max(0, number + 2 - int(rng.geometric(0.5))) for _ in range(2)]  # mostly the latest results
        steps.append((kind, operands[0], operands[1]))
    asked = [number for number in range(count) if rng.random() < 0.2]
    return steps, [*asked, count - 1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_bits_are_those_of_the_operations(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    values = [mx.array(rng.uniform(-1, 1, shape).astype(np.float32)) for _ in range(2)]
    chains = 0
    for _ in range(count):
        steps, asked = drawn(rng)
        chains += chains_with_the_same_bits(OPERATIONS, steps, asked, values)
    assert chains > count // 4


@pytest.mark.parametrize("moves", [(20, 0), (0, 1, 0, 3), (40, 1, 20, 20)], ids=str)
def test_steps_with_nothing_to_do(moves: tuple[int, ...], rng: np.random.Generator) -> None:
    """Rotations by a whole turn leave a box empty, for which no kernel runs."""
    x = mx.array(rng.uniform(-1, 1, (24, 20)).astype(np.float32))

    def function(keep: Callable[[mx.array], mx.array], x: mx.array) -> tuple[mx.array, mx.array]:
        y = keep(x * 2)
        for move in moves:
            x, y = keep(x + mx.roll(x, move, 1) * y), keep(y - mx.roll(y, move, 1))
        return x, y

    assert_same_bits(mx.compile(lambda x: function(lambda z: z, x))(x), function(stored, x))


def test_gradients_through_many_steps(rng: np.random.Generator) -> None:
    x = mx.array(rng.uniform(-1, 1, (24, 20)), mx.float64)

    def loss(keep: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        for _ in range(6):
            x = keep(x + 0.1 * (shifted(x, -1, 1) - 2 * x + shifted(x, -1, -1)))
            x = keep(x / (1 + mx.sum(x * x, axis=-1, keepdims=True)))
        return mx.sum(mx.tanh(x))

    found = mx.grad(lambda x: loss(lambda y: y, x))(x)
    step, direction = 1e-6, mx.array(rng.normal(size=x.shape), mx.float64)
    plain = [loss(stored, x + sign * step * direction).item() for sign in (1, -1)]
    np.testing.assert_allclose(mx.sum(found * direction).item(), (plain[0] - plain[1]) / (2 * step), rtol=1e-6)
    assert any("chain of" in str(plan) for plan in plans_of(mx.grad(lambda x: loss(lambda y: y, x)), x))
