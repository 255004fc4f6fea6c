"""Kernels of quantised matrices, run thread by thread: they have the bits of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.cuda.device import BlocksEngine
from tests.cuda.test_kernels import in_stretches, same_bits
from tests.sampling import Cases
from weft.compiler import evaluate
from weft.compiler.codegen import nvptx
from weft.compiler.cuda.quantized import blocks, few_rows, strips
from weft.compiler.cuda.quantized.codes import coding_of
from weft.primitives.quantized_formats import MODES, QuantizedFormat

FORMATS = [QuantizedFormat(mode, size, bits) for mode, found in MODES.items() for size, bits in product(*found)]

DTYPES = (mx.float32, mx.float16, mx.bfloat16, mx.float64)


def matrix(
    rng: np.random.Generator, kind: QuantizedFormat, shape: tuple[int, ...], dtype: mx.Dtype = mx.float32
) -> list[mx.array]:
    """The words, scales and, where the format has them, biases of a quantised matrix. Some biases are much larger than
    their scales, others much smaller."""
    *outer, wide = shape
    words = mx.array(rng.integers(0, 1 << 32, (*outer, wide * kind.bits // 32), dtype=np.uint32))
    groups = (*outer, wide // kind.group_size)
    if not kind.affine:
        return [words, mx.array(rng.integers(0, 1 << 8, groups).astype(np.uint8))]
    sizes = [10.0 ** rng.integers(-3, 4, size=groups) for _ in range(2)]
    return [words, *[mx.array(rng.normal(size=groups) * size, dtype=dtype) for size in sizes]]


def test_numbers_in_memory(cases: Cases, rng: np.random.Generator) -> None:
    for kind, dtype in cases.some(4, list(product(FORMATS, DTYPES))):
        numbers: Callable[..., mx.array] = partial(mx.dequantize, **kind._asdict(), dtype=dtype)
        assert same_bits(numbers, *matrix(rng, kind, (3, 3 * 128), dtype)), (kind, dtype)


def multiplies(
    rng: np.random.Generator,
    kind: QuantizedFormat,
    shape: tuple[int, int, int],
    transpose: bool = True,
    start: int = 0,
    dtype: mx.Dtype = mx.float32,
) -> bool:
    """Whether products of the given rows, columns and terms have the same bits on both devices. The matrix begins
    ``start`` words into an array."""
    rows, columns, inner = shape
    words, *scales = matrix(rng, kind, (columns, inner) if transpose else (inner, columns), dtype)
    x = mx.array(rng.normal(size=(rows, inner)), dtype=dtype)
    manner: dict[str, Any] = {**kind._asdict(), "transpose": transpose}
    array = mx.concatenate([mx.zeros((start,), dtype=mx.uint32), words.flatten()])
    mx.eval(array)

    def multiplied(x: mx.array, array: mx.array, *scales: Any) -> mx.array:
        return mx.quantized_matmul(x, array[start:].reshape(words.shape), *scales, **manner)

    return same_bits(multiplied, x, array, *scales)


def test_few_rows(cases: Cases, rng: np.random.Generator) -> None:
    shapes = [(1, 40, 128), (2, 9, 5 * 128), (3, 33, 3 * 128)]
    for kind, shape, dtype in cases.some(2, list(product(FORMATS, shapes, DTYPES))):
        assert multiplies(rng, kind, shape, dtype=dtype), (kind, shape, dtype)


def test_warps_take_turns(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With words that are not aligned."""
    monkeypatch.setattr(strips, "MOST_WARPS", 2)
    evaluate.forget_plans()
    assert multiplies(rng, QuantizedFormat("affine", 64, 4), (1, 5, 2 * 256 + 64), start=1)
    evaluate.forget_plans()


def test_tiles(cases: Cases, rng: np.random.Generator) -> None:
    kinds = [
        QuantizedFormat("affine", 32, 3),
        QuantizedFormat("affine", 64, 4),
        QuantizedFormat("nvfp4", 16, 4),
        QuantizedFormat("mxfp8", 32, 8),
    ]
    shapes = [((9, 20, 64), True), ((2, 64, 33), False), ((3, 128, 20), False)]
    for kind, (shape, transpose) in cases.some(1, list(product(kinds, shapes))):
        assert multiplies(rng, kind, shape, transpose), (kind, shape, transpose)


def test_blocks_at_once(rng: np.random.Generator) -> None:
    """A second step adds up the sums of blocks."""
    assert multiplies(rng, QuantizedFormat("affine", 32, 4), (1, 32, 257), transpose=False)


def test_matrices_that_an_index_chooses(rng: np.random.Generator) -> None:
    kind = QuantizedFormat("affine", 32, 4)
    parts = matrix(rng, kind, (3, 8, 64))
    x, index = mx.array(rng.normal(size=(5, 1, 64)).astype(np.float32)), mx.array([2, 2, 0, 7, -1])
    manner: dict[str, Any] = {**kind._asdict(), "rhs_indices": index}
    assert same_bits(lambda x, *parts: mx.gather_qmm(x, *parts, **manner), x, *parts)


def test_no_order_of_threads_changes_results(engine: BlocksEngine, rng: np.random.Generator) -> None:
    with engine.in_order(in_stretches(rng)):
        assert multiplies(rng, QuantizedFormat("affine", 64, 4), (1, 40, 320))
        assert multiplies(rng, QuantizedFormat("nvfp4", 16, 4), (2, 32, 40), transpose=False)


def test_ptx_is_made() -> None:
    """Also of the largest tiles, which take too long thread by thread."""
    coding = coding_of(QuantizedFormat("affine", 64, 4), mx.bfloat16, mx.float32)
    tile = blocks.QuantizedTile(coding, 64, True, *blocks.cut_of((512, 512, 512), 1, mx.float32))
    whole = strips.QuantizedWarpStrip(coding, mx.bfloat16, mx.bfloat16, 64, 8, 32, 1)
    for code in (blocks.code(tile), few_rows.code(strips.strip_of(whole, 4096))):
        assert ".entry kernel(" in nvptx.ptx(code.text(), "sm_75")
