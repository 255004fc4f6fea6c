"""Random programs of products of stacks, with chains of small steps: bits are those of each operation evaluated
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from tests.codegen.random_steps import Step, chains_with_the_same_bits
from weft.compiler.cpu.products import matmul
from weft.compiler.running import evaluate
from weft.runtime import executor
from weft.runtime.host import host

STACK = 4
"""All arrays are stacks of four square matrices."""
SMALL, LARGE = 8, 64
"""Numbers of rows of a matrix. Kernels are attached to products of large ones, and feed them."""

ORDER = mx.array([2, 0, 3])


def assigned(x: mx.array, y: mx.array) -> mx.array:
    x = x + 0
    x[ORDER] = y[:3]
    return x


def updated(x: mx.array, y: mx.array) -> mx.array:
    x = x * 2
    x[1:3, 2:5] = y[:2, :3]
    return x


OPERATIONS: list[Callable[[mx.array, mx.array], mx.array]] = [
    lambda x, y: mx.matmul(x, y),
    lambda x, y: mx.matmul(x, mx.swapaxes(y, -1, -2)),
    lambda x, y: mx.matmul(x[::-1], y),
    lambda x, y: mx.matmul(x.reshape(-1, x.shape[-1]), y[1]).reshape(x.shape),
    lambda x, y: mx.matmul((x * 2).reshape(-1, x.shape[-1])[::-1], y[1]).reshape(x.shape),
    lambda x, y: mx.matmul(mx.swapaxes(x, 0, 1).reshape(x.shape), y),
    lambda x, y: mx.softmax(x + y, axis=-1),
    lambda x, y: mx.softmax(x, axis=-2) * y,
    lambda x, y: mx.tanh(x) - y[::-1],
    lambda x, y: x + mx.mean(y, axis=0),
    lambda x, y: x + mx.sum(y, axis=-1, keepdims=True),
    lambda x, y: mx.concatenate([x[2:], y[:2]], axis=0),
    lambda x, y: mx.concatenate([x[:, :3], y[:, 3:]], axis=1),
    lambda x, y: mx.cumsum(x, axis=-1) + y,
    lambda x, y: mx.take(x, mx.array([3, 3, 0, 1]), axis=0) * y,
    lambda x, y: x.at[ORDER].add(y[1:]),
    assigned,
    updated,
]
PRODUCTS = 6
"""The operations that come first, which are half of all."""


@pytest.fixture(autouse=True)
def small_chains(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make chains, and kernels that feed products, also where little memory is saved. With two threads: with more
    threads than matrices there are no chains."""
    limits = replace(host.target.limits, uncached_size=STACK * SMALL * SMALL * 4, turn_size=0)
    monkeypatch.setattr(type(host.target), "limits", limits)
    monkeypatch.setattr(matmul, "_FED_BYTES", 1 << 10)
    threads = executor.thread_count()
    executor.set_thread_count(2)
    yield
    executor.set_thread_count(threads)
    evaluate.forget_plans()


def drawn(rng: np.random.Generator) -> tuple[list[Step], list[int]]:
    """Operations with the numbers of their operands, and the numbers of the results that are evaluated."""
    count = int(rng.integers(4, 12))
    products = rng.random(count) < 0.5
    steps = []
    for number, product in enumerate(products):
        operation = int(rng.integers(0, PRODUCTS) if product else rng.integers(PRODUCTS, len(OPERATIONS)))
        # Mostly the latest results, as in chains.
        operands = [max(0, number + 2 - int(rng.geometric(0.4))) for _ in range(2)]
        steps.append((operation, operands[0], operands[1]))
    asked = [number for number in range(count) if rng.random() < 0.3]
    return steps, [*asked, count - 1]


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_bits_are_those_of_the_operations(count: int, rows: int, rng: np.random.Generator) -> None:
    values = [mx.array(rng.uniform(-1, 1, (STACK, rows, rows)).astype(np.float32)) for _ in range(2)]
    chains = programs = 0
    while programs < count or (not chains and programs < 5 * count):  # a dozen may have no chain
        programs += 1
        steps, asked = drawn(rng)
        chains += chains_with_the_same_bits(OPERATIONS, steps, asked, values)
    assert chains > count // 12 - 1


def test_a_chain_of_kernels_alone() -> None:
    """The search for a chain begins at a call, but the call accesses no memory that only the chain uses, and stays
    before it."""
    x, y = (mx.random.normal((STACK, SMALL, SMALL), key=mx.random.key(number)) for number in range(2))
    mx.eval(x, y)

    def function(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        product = x @ y
        joined = mx.concatenate([mx.tanh(x)[:, :3], y[:, 3:]], axis=1)
        return product, mx.softmax(joined, axis=-2) * product

    (plan,) = plans_of(mx.compile(function), x, y)
    text = str(plan)
    assert "chain of 3 steps" in text
    assert text.count("call") == 1  # before the chain
    assert text.index("call") < text.index("chain of")
