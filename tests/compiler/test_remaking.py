"""Values that are computed again where they are used, of what is in memory anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import bits
from weft.compiler.cpu import matmul

ROWS, COLUMNS = 512, 512  # as large as what caches do not hold
X = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(1))
W = mx.random.normal((COLUMNS, COLUMNS), key=mx.random.key(2)) / 32


def stored_by(layer: Callable[[mx.array], mx.array], rows: int = ROWS) -> list[str]:
    """What a training step of two products stores between them, forwards and backwards."""

    def loss(x: mx.array, w: mx.array) -> mx.array:
        return (layer(x @ w) @ w).square().mean()

    arrays = X[:rows], W
    step = mx.compile(mx.grad(loss, argnums=(0, 1)))
    for found, expected in zip(step(*arrays), mx.grad(loss, argnums=(0, 1))(*arrays), strict=True):
        assert bits(found) == bits(expected)
    temporary = f"temporary float32[{rows},{COLUMNS}]"
    return [write for one in step.explain(*arrays).steps for write in one.writes if write == temporary]


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a product makes whole rows, and is followed by what folds them, depends on how many threads there are."""
    monkeypatch.setattr(matmul, "thread_count", lambda: 2)


BETWEEN: dict[str, Callable[[mx.array], mx.array]] = {
    "a cheap chain": lambda x: mx.square((x + 1) * 0.5 - x),
    "an activation": nn.gelu,
    "made of rows": lambda x: mx.square(x - x.mean(axis=-1, keepdims=True)),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_a_gradient_needs_is_made_of_what_is_stored(name: str) -> None:
    """Only what the products read is stored: the result of the layer, and a cotangent on each of two ways back; and of
    the products those that two others are made of."""
    assert len(stored_by(BETWEEN[name])) == 5


def test_what_costs_more_than_memory_is_stored() -> None:
    assert len(stored_by(lambda x: mx.square(mx.power(mx.abs(x) + 1, 1.5)))) > 5
    assert len(stored_by(nn.gelu_approx, rows=16)) > 5
