"""Matrix products on a card: their values, and that every run gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card
from weft.runtime.cuda import cublas

require_card()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(cublas.missing()), reason=f"no cuBLASLt: {cublas.missing()}"),
]

ROUNDING = {
    mx.float32: 2.0**-24,
    mx.float64: 2.0**-53,
    mx.complex64: 2.0**-24,
    mx.float16: 2.0**-11,
    mx.bfloat16: 2.0**-8,
}
SUMS = {mx.float64: 2.0**-53}
"""The rounding of sums, where it is not that of float32."""


@pytest.fixture(autouse=True)
def _on_the_card() -> Any:
    with mx.stream(mx.gpu):
        yield


def numbers(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    rng = np.random.default_rng(seed)
    if dtype == mx.complex64:
        return mx.array((rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64))
    return mx.array(rng.normal(size=shape)).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    if x.dtype == mx.complex64:
        return np.array(x).astype(np.complex128)
    return np.array(x.astype(mx.float64))


def assert_product(found: mx.array, a: mx.array, b: mx.array) -> None:
    """Each element is within the bound for sums of that many terms in any order, plus the rounding of the result."""
    left, right, terms = wide(a), wide(b), a.shape[-1]
    rounding = ROUNDING[a.dtype]
    sums = SUMS.get(a.dtype, 2.0**-24)
    parts = 2 if a.dtype == mx.complex64 else 1
    allowed = (parts * terms + 2) * sums * np.matmul(abs(left), abs(right))
    wanted = np.matmul(left, right)
    error = abs(wide(found) - wanted)
    assert (error <= allowed + rounding * (abs(wanted) + allowed)).all(), (error - allowed).max()


DTYPES = [mx.float32, mx.float64, mx.float16, mx.bfloat16, mx.complex64]
SIZES = [(1, 1, 1), (5, 7, 3), (64, 64, 64), (1, 1000, 300), (300, 1000, 1), (1, 4096, 1), (129, 257, 65), (8, 2000, 8)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes(dtype: mx.Dtype) -> None:
    for m, k, n in SIZES:
        a, b = numbers(m, m, k, dtype=dtype), numbers(n, k, n, dtype=dtype)
        assert_product(a @ b, a, b)


LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "by rows": lambda x: x,
    "by columns": lambda x: mx.swapaxes(mx.contiguous(mx.swapaxes(x, -1, -2)), -1, -2),
    "one element further": lambda x: mx.concatenate([mx.zeros((1,), x.dtype), x.reshape(-1)])[1:].reshape(x.shape),
    "a slice": lambda x: mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 2)])[..., 3:-2],
    "backwards": lambda x: mx.contiguous(x[..., ::-1])[..., ::-1],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_layouts(dtype: mx.Dtype, batch: tuple[int, ...]) -> None:
    a, b = numbers(1, *batch, 33, 20, dtype=dtype), numbers(2, *batch, 20, 17, dtype=dtype)
    for left in LAYOUTS.values():
        for right in LAYOUTS.values():
            x, y = left(a), right(b)
            mx.eval(x, y)
            assert_product(x @ y, a, b)


def test_batches() -> None:
    """Broadcast batches, heads between tokens, and very many matrices."""
    a, b = numbers(1, 4, 6, 5), numbers(2, 5, 7)
    assert_product(a @ b, a, b)
    q, k = numbers(1, 2, 16, 3, 8, dtype=mx.bfloat16), numbers(2, 2, 16, 3, 8, dtype=mx.bfloat16)
    q, k = mx.swapaxes(q, 1, 2), mx.moveaxis(k, 1, 3)
    assert_product(q @ k, q, k)
    a, b = numbers(1, 70_000, 2, 3), numbers(2, 70_000, 3, 2)
    assert_product(a @ b, a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_run_has_the_same_bits(dtype: mx.Dtype) -> None:
    """Queued step by step and as a graph, eager and compiled, with other operations in the plan, on any stream."""
    a, b = numbers(1, 200, 3000, dtype=dtype), numbers(2, 3000, 150, dtype=dtype)
    wanted = a @ b
    mx.eval(wanted)
    compiled = mx.compile(lambda a, b: (a @ b, mx.abs(a) @ b))
    for _ in range(4):
        assert_same_bits(a @ b, wanted)
        assert_same_bits(compiled(a, b)[0], wanted)
    with mx.stream(mx.new_stream(mx.gpu)):
        assert_same_bits(a @ b, wanted)


def test_float32_is_float32() -> None:
    a = mx.full((64, 64), 1 + 2.0**-20)
    assert_same_bits(a @ mx.eye(64), a)
    with weft.matmul_precision("fast"):
        assert_product(
            a.astype(mx.float16) @ mx.eye(64).astype(mx.float16), a.astype(mx.float16), mx.eye(64).astype(mx.float16)
        )
        near = np.array(a @ mx.eye(64))
    assert abs(near - 1).max() < 2.0**-9


def test_integers() -> None:
    for dtype in (mx.int8, mx.int32, mx.uint64):
        a, b = [mx.array(np.random.default_rng(s).integers(0, 99, (3, 40, 40))).astype(dtype) for s in range(2)]
        assert np.array_equal(np.array(a @ b), np.matmul(np.array(a), np.array(b)))


def loss(parameters: list[mx.array], x: mx.array) -> mx.array:
    for w in parameters:
        x = mx.tanh(x @ w)
    return mx.mean(mx.square(x))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_gradients(dtype: mx.Dtype) -> None:
    parameters = [numbers(s, 48, 48, dtype=dtype) * 0.1 for s in range(3)]
    x = numbers(9, 32, 48, dtype=dtype)
    step = mx.compile(mx.grad(loss))
    assert not any(one.runs_on for one in step.explain(parameters, x).steps)
    first = step(parameters, x)
    mx.eval(first)
    with mx.stream(mx.cpu):
        wanted = mx.grad(loss)([w.astype(mx.float64) for w in parameters], x.astype(mx.float64))
        mx.eval(wanted)
    for _ in range(3):
        assert_same_bits(step(parameters, x), first)
    for found, exact in zip(first, wanted, strict=True):
        assert abs(wide(found) - np.array(exact)).max() <= 60 * ROUNDING[dtype] * abs(np.array(exact)).max()
