"""`weft.matmul_precision`: what it changes, for which code it holds, and that nothing else changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.primitives as p
from weft.compiler.cpu.products.packed import amx
from weft.compiler.rewriting import rewrites

FAST, REPRODUCIBLE = "fast", "reproducible"
has_tile_registers = pytest.mark.skipif(not amx.is_available(), reason="this processor has no tile registers")


@pytest.fixture
def process_precision() -> Iterator[Callable[[str], None]]:
    yield weft.set_matmul_precision
    weft.set_matmul_precision(REPRODUCIBLE)


def drawn(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape), dtype=mx.bfloat16)


def used(function: Callable[..., object], *arguments: mx.array) -> int:
    """How many products of a call use tile registers."""
    return str(mx.compile(function).explain(*arguments)).count("matmul (AMX)")


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (np.multiply.outer(a, b, dtype=np.longdouble) + c).astype(np.float32)


def instruction(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums of TDPBF16PS."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], amx.TERMS):
        halves = [np.zeros_like(total), np.zeros_like(total)]
        for term in range(start, min(start + amx.TERMS, a.shape[1])):
            halves[term % 2] = fused(a[:, term], b[term], halves[term % 2])
        total = total + (halves[0] + halves[1])
    return total


@has_tile_registers
@pytest.mark.parametrize("shape", [(17, 40, 33), (32, 32, 32), (70, 550, 40), (100, 31, 700), (160, 64, 31)], ids=str)
def test_the_bits_are_those_of_the_instruction(shape: tuple[int, int, int]) -> None:
    """The second half of the terms cancels the first, so that only rounding errors remain."""
    rows, inner, columns = shape
    a, b = drawn(1, rows, inner), drawn(2, inner, columns)
    terms = mx.concatenate([a, a[:, ::-1]], axis=1), mx.concatenate([b, -b[::-1]], axis=0)
    wanted = instruction(*[np.array(x.astype(mx.float32)) for x in terms])
    assert np.any(wanted != 0)
    for turned in product([False, True], repeat=2):
        x, y = (mx.contiguous(n.T).T if t else mx.contiguous(n) for n, t in zip(terms, turned, strict=True))
        with weft.matmul_precision(FAST):
            assert used(mx.matmul, x, y) == 1
            found = x @ y
        assert mx.array_equal(found, mx.array(wanted).astype(mx.bfloat16)).item()


@has_tile_registers
def test_stacks_and_derivatives() -> None:
    x, y = drawn(3, 2, 1, 40, 24), drawn(4, 3, 24, 50)

    def loss(x: mx.array, y: mx.array) -> mx.array:
        return mx.sum(mx.square((x @ y).astype(mx.float32)))

    def gradients(x: mx.array, y: mx.array) -> list[mx.array]:
        return mx.grad(loss, argnums=(0, 1))(x, y)

    wanted = gradients(x, y)
    with weft.matmul_precision(FAST):
        assert used(gradients, x, y) == 3
        found = gradients(x, y)
        assert used(mx.vmap(mx.matmul, in_axes=(None, 0)), x[0, 0], y) == 1
        assert used(lambda x: mx.jvp(lambda x: x @ y[0], [x], [x])[1][0], x[0, 0]) == 1
    for got, want in zip(found, wanted, strict=True):
        assert mx.allclose(got.astype(mx.float32), want.astype(mx.float32), rtol=0.02, atol=0.5).item()


@has_tile_registers
def test_derivatives_follow_the_product() -> None:
    x, y = drawn(5, 40, 24), drawn(6, 24, 50)

    def f(x: mx.array) -> mx.array:
        with weft.matmul_precision(FAST):
            z = x @ y
        return mx.sum(mx.square(z).astype(mx.float32))

    assert used(mx.grad(f), x) == 2


def test_a_compiled_function_follows_the_precision() -> None:
    counted = []

    def f(x: mx.array, y: mx.array) -> mx.array:
        counted.append(weft.get_matmul_precision())
        return mx.maximum(x @ y, 0) + 1

    compiled, x, y = mx.compile(f), drawn(7, 100, 300), drawn(8, 300, 170)
    wanted = f(x, y)
    with weft.matmul_precision(FAST):
        fast = f(x, y)
    counted.clear()
    for _ in range(3):
        assert mx.array_equal(compiled(x, y), wanted).item()
        with weft.matmul_precision(FAST):
            assert mx.array_equal(compiled(x, y), fast).item()
            assert mx.array_equal(compiled(x, y), fast).item()
    assert counted == [REPRODUCIBLE, FAST]


def test_the_log_says_that_the_precision_changed(caplog: pytest.LogCaptureFixture) -> None:
    compiled, x = mx.compile(lambda x: x @ x), drawn(9, 4, 4)
    with caplog.at_level("INFO", logger="weft.compile"):
        compiled(x)
        with weft.matmul_precision(FAST):
            compiled(x)
    assert "because weft.matmul_precision: reproducible -> fast;" in caplog.messages[-1]


def test_other_dtypes_have_one_plan() -> None:
    """For float32 there are two plans, because the precision matters on GPUs, but they run the same code."""
    x = mx.random.normal((33, 37))
    for dtype in (mx.float32, mx.float16, mx.complex64):
        a = x.astype(dtype)
        mx.eval(a)
        mx.eval(a @ a.T)
        before = weft.counters()
        with weft.matmul_precision(FAST):
            mx.eval(a @ a.T)
        made = weft.counters() - before
        assert (made.plans, made.kernels) == (int(dtype == mx.float32), 0)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_products_that_planning_makes_are_reproducible(dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan depends on its program alone, in which convolutions have no precision. That of attention matters for
    bfloat16 in tile registers only."""
    found: list[str] = []
    original = rewrites.planned_graph

    def noted(*arguments: Any) -> rewrites.Graph:
        graph = original(*arguments)
        found.extend(node.keywords["precision"] for node in graph.order if node.primitive is p.matmul)
        return graph

    monkeypatch.setattr("weft.compiler.planning.planner.planned_graph", noted)
    x, w, q = (drawn(10, *shape).astype(dtype) for shape in ((2, 5, 7, 34), (33, 1, 1, 34), (1, 3, 37, 34)))
    with weft.matmul_precision(FAST):
        mx.eval(mx.conv2d(x, w))
        assert set(found) == {REPRODUCIBLE}
        mx.eval(mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0))
    in_tiles = dtype == mx.bfloat16 and amx.is_available()
    assert set(found) == ({REPRODUCIBLE, FAST} if in_tiles else {REPRODUCIBLE})


def test_the_innermost_block_counts(process_precision: Callable[[str], None]) -> None:
    process_precision(FAST)
    with weft.matmul_precision(REPRODUCIBLE):
        assert weft.get_matmul_precision() == REPRODUCIBLE
        with pytest.raises(KeyError, match=FAST), weft.matmul_precision(FAST):
            raise KeyError(weft.get_matmul_precision())
        assert weft.get_matmul_precision() == REPRODUCIBLE
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(weft.get_matmul_precision()))
        thread.start()
        thread.join()
        assert found == [FAST]  # a block applies to its thread only
    assert weft.get_matmul_precision() == FAST


def test_a_block_belongs_to_its_task() -> None:
    async def in_block() -> None:
        with weft.matmul_precision(FAST):
            await asyncio.sleep(0)
            assert weft.get_matmul_precision() == FAST

    async def outside() -> None:
        await asyncio.sleep(0)
        assert weft.get_matmul_precision() == REPRODUCIBLE

    async def both() -> None:
        await asyncio.gather(in_block(), outside())

    asyncio.run(both())


def test_wrong_precisions() -> None:
    with pytest.raises(ValueError, match=r"\[set_matmul_precision\].*'highest'.*'reproducible' or 'fast'"):
        weft.set_matmul_precision("highest")
    with pytest.raises(TypeError, match=r"\[matmul_precision\] precision must be"), weft.matmul_precision(None):  # type: ignore[arg-type]  # what a user may do
        pass
