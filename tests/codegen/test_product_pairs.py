"""Products of bfloat16 that use the instruction for pairs of terms: bits are those of products of float32."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import weft
import weft.core as mx
from tests.checks import assert_same_bits
from tests.sampling import Cases
from weft.compiler.cpu.products.packed import pairs as product_pairs

pytestmark = pytest.mark.skipif(not product_pairs.is_available(), reason="this processor has no such instruction")

# Rows, terms and columns: whole tiles and edges, one term, odd and even numbers of them, several blocks.
EXTENTS = [(17, 40, 33), (64, 256, 48), (33, 1, 47), (24, 255, 64), (100, 513, 70), (128, 31, 200), (257, 700, 300)]
SCALES = [(1.0, 1.0), (1e-19, 1e-18), (1e-30, 1e-30), (1e-39, 1e10), (1e38, 1e4)]


def numbers(seed: int, shape: tuple[int, ...], scale: float, by_columns: bool = False) -> mx.array:
    """Numbers of many magnitudes, some of them zero, none or all of them subnormal, depending on the scale."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=shape) * 2.0 ** rng.uniform(-4, 4, shape) * (rng.uniform(size=shape) > 0.1)
    x = mx.array(drawn * scale, dtype=mx.float64).astype(mx.bfloat16)
    if by_columns:
        x = mx.swapaxes(mx.contiguous(mx.swapaxes(x, -1, -2)), -1, -2)
    mx.eval(x)
    return x


def of_pairs(a: mx.array, b: mx.array) -> mx.array:
    """The sums of a product of bfloat16, not rounded."""
    return a.astype(mx.float32) @ b.astype(mx.float32)


def assert_exact(a: mx.array, b: mx.array) -> None:
    wide = [x.astype(mx.float32) for x in (a, b)]
    mx.eval(wide)
    assert_same_bits(of_pairs(a, b), wide[0] @ wide[1])


def used(*arguments: mx.array) -> bool:
    return "matmul (AVX512-BF16)" in str(mx.compile(of_pairs).explain(*arguments))


def test_bits_are_those_of_float32(cases: Cases) -> None:
    ways = list(product(EXTENTS, SCALES, product([False, True], repeat=2)))
    for (rows, inner, columns), scales, layouts in cases.some(12, ways):
        shapes = (2, rows, inner), (1, inner, columns)
        a, b = (numbers(n, *one) for n, one in enumerate(zip(shapes, scales, layouts, strict=True)))
        assert used(a, b) == (rows * inner * columns >= product_pairs.SMALLEST_WORK)
        assert_exact(a, b)


def test_each_block_of_terms_counts_by_itself() -> None:
    """If the result is large, several blocks of terms are packed at once: some of them are exact, others are not."""
    a, b = (np.array(numbers(n, shape, 1.0).astype(mx.float32)) for n, shape in enumerate([(1500, 1100), (1100, 60)]))
    a[:, 256:512] *= 1e-38
    b[900:1000] *= 1e-39
    assert_exact(*[mx.array(x).astype(mx.bfloat16) for x in (a, b)])


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, -0.0, 3e38, 1e-40])
def test_special_numbers(special: float) -> None:
    a, b = (np.array(numbers(n, (40, 40), 1.0).astype(mx.float32)) for n in range(2))
    a[3, 4], a[5, 39], b[39, 6], b[7, 8] = special, special, special, 0
    assert_exact(*[mx.array(x).astype(mx.bfloat16) for x in (a, b)])


@pytest.mark.parametrize("exponent", [-57, -56, -55, -54])
def test_the_smallest_products(exponent: int) -> None:
    """Sums of products whose last bits are close to the smallest normal number: a difference of nearly equal products
    has fewer bits, and is subnormal."""
    rng = np.random.default_rng(5)
    a = (1 + rng.integers(0, 128, (64, 64)) / 128) * 2.0**exponent
    b = (1 + rng.integers(0, 128, (64, 64)) / 128) * 2.0**exponent
    pair = np.concatenate([a, -a * 65 / 64], axis=1), np.concatenate([b, b], axis=0)
    assert_exact(*[mx.array(x, dtype=mx.float64).astype(mx.bfloat16) for x in pair])


def test_in_any_order_subnormal_numbers_are_zero() -> None:
    tiny = mx.full((32, 32), 1e-39, dtype=mx.float32).astype(mx.bfloat16)
    large = mx.full((32, 32), 1e10, dtype=mx.float32).astype(mx.bfloat16)
    assert of_pairs(tiny, large)[0, 0].item() != 0
    with weft.matmul_precision("fast"):
        assert used(tiny, large)
        assert of_pairs(tiny, large)[0, 0].item() == 0
        assert_exact(numbers(1, (60, 70), 1.0), numbers(2, (70, 50), 1.0))


def test_what_else_is_done_with_a_product() -> None:
    """Bias, activation, cast and derivatives work as with any product."""
    x, w = numbers(1, (70, 90), 1.0), numbers(2, (90, 130), 1.0)
    bias = numbers(3, (130,), 1.0)

    def layer(x: mx.array, w: mx.array) -> mx.array:
        return mx.maximum(x @ w + bias, 0)

    plain = mx.maximum((x.astype(mx.float32) @ w.astype(mx.float32)).astype(mx.bfloat16) + bias, 0)
    assert_same_bits(mx.compile(layer)(x, w), plain)
    found = mx.grad(lambda x, w: mx.sum(layer(x, w).astype(mx.float32)), argnums=(0, 1))(x, w)
    kept = (plain > 0).astype(mx.bfloat16)
    assert_same_bits(found[0], (kept.astype(mx.float32) @ w.T.astype(mx.float32)).astype(mx.bfloat16))
    assert_same_bits(found[1], (x.T.astype(mx.float32) @ kept.astype(mx.float32)).astype(mx.bfloat16))
