"""Short rows with an operand that is the same for all of them are joined to long rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.compiler.rewriting.short_rows import LONG, MANY, rows_joined

SHAPES = [(64, 96, 3), (20000, 1, 5), (4096, 7), (5000, 25), (300, 2, 40)]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, b: x + b,
    "normalised": lambda x, b: (x - b) / (b * b + 0.5),
    "with numbers": lambda x, b: mx.where(x > b, mx.tanh(x) * 2, x.astype(mx.float16).astype(mx.float32)),
    "two results": lambda x, b: [x * b, mx.exp(x - b)],
    "a row of its own": lambda x, b: x * mx.softmax(b, axis=-1) + mx.full(x.shape, 3.0),
    "a sum as well": lambda x, b: [x * b, mx.sum(x * b, axis=0)],
    "a product as well": lambda x, b: [x + b, (x + b) @ mx.ones((x.shape[-1], 2))],
    "no memory in a row": lambda x, b: x[::-1] + b,
    "an update": lambda x, b: mx.maximum(x, b).at[0].add(b),
}


def operands(shape: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    random = np.random.default_rng(0)
    return mx.array(random.normal(size=shape).astype(np.float32)), mx.array(
        random.random(shape[-1:]).astype(np.float32)
    )


def leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    return [np.array(one) for one in (value if isinstance(value, list) else [value])]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_those_of_a_whole_operand(name: str, shape: tuple[int, ...]) -> None:
    function = FUNCTIONS[name]
    x, b = operands(shape)
    for found, half in zip(leaves(function(x, b)), leaves(mx.compile(function)(x, b)), strict=True):
        np.testing.assert_array_equal(found, half)
    if name in {"sum", "normalised", "with numbers", "two results"}:
        whole = mx.array(np.broadcast_to(np.array(b), x.shape).copy())
        for found, other in zip(leaves(function(x, b)), leaves(function(x, whole)), strict=True):
            np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_long(shape: tuple[int, ...]) -> None:
    x, b = operands(shape)
    count = rows_joined(shape, 64)
    assert count > 1
    assert x.size % (count * shape[-1]) == 0
    *_, last = mx.compile(lambda x, b: mx.tanh(x + b)).explain(x, b).kernels
    assert int(last.loops.split("x")[-1]) == count * shape[-1] <= LONG


def test_others_stay() -> None:
    assert rows_joined((MANY, 1), 64) == rows_joined((MANY,), 64) == rows_joined((MANY, 64), 64) == 1
    assert rows_joined((MANY // 4, 3), 64) == 1
    assert rows_joined((99991, 3), 64) == 1
    assert rows_joined((MANY, 3), 0) == 1
    x, b = operands((MANY, 3))
    assert len(mx.compile(lambda x, b: mx.sum(x + b, axis=-1)).explain(x, b).kernels) == 1


def test_memory_of_an_operand_is_taken() -> None:
    x, b = operands((MANY, 3))
    expected = np.array(x) + np.array(b)
    mx.eval(x, b)
    x = x + b
    mx.eval(x)
    before = mx.get_active_memory()
    for _ in range(3):
        x = x + b
        mx.eval(x)
    assert mx.get_active_memory() == before
    np.testing.assert_allclose(np.array(x), expected + 3 * np.array(b), rtol=1e-5, atol=1e-6)
