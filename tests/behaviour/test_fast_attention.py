"""Attention of bfloat16 in tile registers, and kernels that are attached to products there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.cpu.products.packed import amx

pytestmark = pytest.mark.skipif(not amx.is_available(), reason="this processor has no tile registers")

SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "one block": ((2, 4, 77, 48), 4, 130),
    "several blocks": ((1, 2, 700, 64), 2, 700),
    "shared heads": ((2, 4, 50, 48), 2, 333),
    "more keys than a tile has columns": ((1, 1, 40, 64), 1, 6000),
    "more features than are packed at once": ((1, 2, 40, 600), 2, 70),
    "fewer keys than queries": ((1, 2, 100, 64), 2, 60),
}
MASKS: dict[str, Callable[[tuple[int, ...], int], dict[str, Any]]] = {
    "no mask": lambda shape, keys: {},
    "causal": lambda shape, keys: {"mask": "causal"},
    "hidden": lambda shape, keys: {"mask": mx.random.uniform(shape=(shape[0], 1, shape[2], keys)) > 0.3},
    "added, and sinks": lambda shape, keys: {
        "mask": mx.random.normal((shape[2], keys)).astype(mx.bfloat16),
        "sinks": mx.random.normal((shape[1],)).astype(mx.bfloat16),
    },
}


def inputs(name: str) -> list[mx.array]:
    (batch, heads, queries, features), shared, keys = SHAPES[name]
    shapes = [(batch, heads, queries, features), *[(batch, shared, keys, features)] * 2]
    return [mx.random.normal(shape).astype(mx.bfloat16) for shape in shapes]


def attention(*x: mx.array, **masks: Any) -> mx.array:
    return mx.fast.scaled_dot_product_attention(*x, scale=x[0].shape[-1] ** -0.5, **masks)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SHAPES)
def test_it_differs_by_roundings_only(name: str, mask: str) -> None:
    mx.random.seed(3)
    x, masks = inputs(name), MASKS[mask](SHAPES[name][0], SHAPES[name][2])
    wanted = attention(*x, **masks).astype(mx.float32)
    with weft.matmul_precision("fast"):
        assert "matmul (AMX)" in str(mx.compile(lambda *x: attention(*x, **masks)).explain(*x))
        found = attention(*x, **masks)
        assert_same_bits(mx.compile(lambda *x: attention(*x, **masks))(*x), found)
    assert mx.abs(found.astype(mx.float32) - wanted).max().item() < 0.02


def test_few_queries_and_other_dtypes_are_computed_as_always() -> None:
    x = inputs("one block")
    few = [x[0][:, :, :1], *x[1:]]
    for given in (few, [one.astype(mx.float16) for one in x], [one.astype(mx.float32) for one in x]):
        wanted = attention(*given)
        with weft.matmul_precision("fast"):
            assert_same_bits(attention(*given), wanted)


def test_nan_stays_in_its_row() -> None:
    q, k, v = inputs("one block")
    q[0, 1, 5, 3] = float("nan")
    with weft.matmul_precision("fast"):
        found = mx.isnan(attention(q, k, v))
    rows = mx.all(found, axis=-1)
    assert (mx.sum(found).item(), mx.sum(rows).item(), rows[0, 1, 5].item()) == (v.shape[-1], 1, True)


def test_derivatives() -> None:
    x = inputs("one block")
    function = mx.grad(lambda *x: mx.sum(mx.square(attention(*x).astype(mx.float32))), argnums=(0, 1, 2))
    wanted = function(*x)
    with weft.matmul_precision("fast"):
        found = function(*x)
        mapped = mx.vmap(attention)(*[one[:, None] for one in x])[:, 0]
        assert_same_bits(mapped, attention(*x))
    for got, want in zip(found, wanted, strict=True):
        assert mx.allclose(got.astype(mx.float32), want.astype(mx.float32), rtol=0.05, atol=0.05).item()


@pytest.mark.parametrize("inner", [40, 1100])
@pytest.mark.parametrize("columns", [17, 300, 2000])
def test_attached_kernels_give_the_bits_of_kernels_of_their_own(columns: int, inner: int) -> None:
    """For rows, which they need whole, and for elements."""
    rng = np.random.default_rng(columns)
    x = mx.array(rng.normal(size=(3, 90, inner)), dtype=mx.bfloat16)
    y = mx.array(rng.normal(size=(3, inner, columns)), dtype=mx.bfloat16)

    def rows(z: mx.array) -> mx.array:
        return mx.softmax(z.astype(mx.float32), axis=-1)

    def elements(z: mx.array) -> mx.array:
        return mx.maximum(z, 0) * 2

    with weft.matmul_precision("fast"):
        product = x @ y
        mx.eval(product)
        for function in (rows, elements):
            compiled = mx.compile(lambda x, y, function=function: function(x @ y))
            assert_same_bits(compiled(x, y), function(product))
            plan = str(plans_of(compiled, x, y)[-1])
            few = function is elements or columns < amx.WIDEST or inner < amx.DEPTH
            assert ("attached to it" in plan) == few, plan
