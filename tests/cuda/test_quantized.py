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
from weft.compiler.codegen import nvptx
from weft.compiler.cuda.quantized import blocks, few_rows, strips
from weft.compiler.cuda.quantized.codes import coding_of
from weft.compiler.running import evaluate
from weft.primitives.quantized_formats import MODES, WORD, QuantizedFormat

FORMATS = [QuantizedFormat(mode, size, bits) for mode, found in MODES.items() for size, bits in product(*found)]

INTEGERS = [kind for kind in FORMATS if kind.affine and WORD % kind.bits == 0]
"""Products of few rows with transposed matrices of these formats are sums of integers."""

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
    for kind, dtype in cases.some(3, list(product(FORMATS, DTYPES))):
        numbers: Callable[..., mx.array] = partial(mx.dequantize, **kind._asdict(), dtype=dtype)
        assert same_bits(numbers, *matrix(rng, kind, (3, 3 * 128), dtype)), (kind, dtype)


def multiplied_by(kind: QuantizedFormat, **manner: Any) -> Callable[..., mx.array]:
    return partial(mx.quantized_matmul, **kind._asdict(), **manner)


def multiplies(
    rng: np.random.Generator,
    kind: QuantizedFormat,
    shape: tuple[int, int, int],
    transpose: bool = True,
    starts: tuple[int, int] = (0, 0),
    dtype: mx.Dtype = mx.float32,
    terms: np.ndarray | None = None,
) -> bool:
    """Whether products of the given rows, columns and terms have the same bits on both devices. The left operand and
    the matrix begin so many elements into arrays."""
    rows, columns, inner = shape
    words, *scales = matrix(rng, kind, (columns, inner) if transpose else (inner, columns), dtype)
    x = mx.array(rng.normal(size=(rows, inner)) if terms is None else terms, dtype=dtype)
    whole = multiplied_by(kind, transpose=transpose)
    arrays = [
        mx.concatenate([mx.zeros((start,), dtype=one.dtype), one.flatten()])
        for one, start in zip((x, words), starts, strict=True)
    ]
    mx.eval(arrays)

    def multiplied(*parts: mx.array) -> mx.array:
        left, right = (part[start:] for part, start in zip(parts[:2], starts, strict=True))
        return whole(left.reshape(x.shape), right.reshape(words.shape), *parts[2:])

    return same_bits(multiplied, *arrays, *scales)


def test_few_rows(cases: Cases, rng: np.random.Generator) -> None:
    shapes = [(1, 40, 128), (2, 9, 5 * 128), (3, 33, 3 * 128)]
    for kind, shape, dtype in cases.some(2, list(product(FORMATS, shapes, DTYPES))):
        assert multiplies(rng, kind, shape, dtype=dtype), (kind, shape, dtype)


def test_a_single_pair_of_bfloat16(rng: np.random.Generator) -> None:
    """It becomes two numbers by instructions for vectors of one word."""
    assert multiplies(rng, QuantizedFormat("affine", 128, 4), (1, 40, 128), dtype=mx.bfloat16)


def test_warps_take_turns(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """With words that are not aligned."""
    monkeypatch.setattr(strips, "MOST_WARPS", 2)
    evaluate.forget_plans()
    assert multiplies(rng, QuantizedFormat("affine", 64, 4), (1, 5, 2 * 256 + 64), starts=(0, 1))
    evaluate.forget_plans()


def test_sums_of_integers(cases: Cases, rng: np.random.Generator) -> None:
    """Rows from subnormal numbers to large ones, with smaller ones between them and groups of zeros. The last block of
    terms, which a row may have, is not whole."""
    for kind, rows in cases.some(2, list(product(INTEGERS, range(1, few_rows.MOST_ROWS + 1)))):
        groups = int(rng.integers(1, 400 // kind.group_size + 1))
        terms = rng.normal(size=(rows, groups, kind.group_size)) * 10.0 ** rng.integers(-44, 30, size=(rows, 1, 1))
        terms *= 10.0 ** rng.integers(-8, 1, size=terms.shape)
        terms[rng.random((rows, groups)) < 0.2] = 0
        shape = (rows, 9, groups * kind.group_size)
        assert multiplies(rng, kind, shape, terms=terms.reshape(rows, -1)), (kind, shape)


def test_terms_that_are_not_aligned(cases: Cases, rng: np.random.Generator) -> None:
    for kind, dtype, starts in cases.some(1, list(product(INTEGERS, DTYPES[:3], [(1, 0), (1, 1), (4, 4)]))):
        assert multiplies(rng, kind, (3, 9, 384), starts=starts, dtype=dtype), (kind, dtype, starts)


def test_terms_that_are_not_finite(rng: np.random.Generator) -> None:
    """Only the sums that they belong to are NaN."""
    kind = QuantizedFormat("affine", 32, 4)
    parts = matrix(rng, kind, (9, 96))
    for special in (np.inf, -np.inf, np.nan):
        terms = rng.normal(size=(2, 96)).astype(np.float32)
        terms[1, 40] = special
        with mx.stream(mx.gpu):
            found = np.array(multiplied_by(kind)(mx.array(terms), *parts))
        assert np.isfinite(found[0]).all(), special
        assert np.isnan(found[1]).all(), special


def test_largest_sums_of_integers() -> None:
    """Terms whose digits are the largest or the smallest ones, times the lowest or the highest codes."""
    largest = 127 * 2**16 - 1
    units = np.array([[largest], [-largest], [-1], [largest + 0.5]]) * np.ones(128)
    units[:, 0] = abs(units).max()
    x = mx.array(units.astype(np.float32) * 2.0**-22)
    words = mx.array(np.array([[0] * 32, [0xFFFFFFFF] * 32], np.uint32))
    scales = [mx.array(np.full((2, 1), number, np.float32)) for number in (1.0, 0.0)]
    assert same_bits(multiplied_by(QuantizedFormat("affine", 128, 8)), x, words, *scales)


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


def test_each_strip_fits_a_card() -> None:
    for kind, rows, columns in product(FORMATS, range(1, few_rows.MOST_ROWS + 1), (strips.NARROW, strips.WIDE)):
        coding = coding_of(kind, mx.float32, mx.float32)
        whole = strips.QuantizedWarpStrip(coding, mx.float32, mx.float32, kind.group_size, rows, columns, 1)
        assert strips.strip_of(whole, 1 << 20).shared <= strips.SHARED_BYTES


def test_products_of_bytes_have_an_instruction(cases: Cases) -> None:
    """Four codes are multiplied with three digits of their terms."""
    for kind, rows, architecture in cases.some(1, list(product(INTEGERS, (1, 3, 8), ("sm_80", "sm_90")))):
        coding = coding_of(kind, mx.bfloat16, mx.float32)
        whole = strips.QuantizedWarpStrip(coding, mx.float16, mx.float32, kind.group_size, rows, 32, 1)
        text = nvptx.ptx(few_rows.code(strips.strip_of(whole, 4096)).text(), architecture)
        assert text.count("dp4a.s32.u32") == 2 * text.count("dp4a.s32.s32") == 2 * rows * kind.group_size // 4


def test_ptx_is_made() -> None:
    """Also of the largest tiles, which take too long thread by thread."""
    coding = coding_of(QuantizedFormat("affine", 64, 4), mx.bfloat16, mx.float32)
    tile = blocks.QuantizedTile(coding, 64, True, *blocks.cut_of((512, 512, 512), 1, mx.float32))
    whole = strips.QuantizedWarpStrip(coding, mx.bfloat16, mx.bfloat16, 64, 8, 32, 1)
    for code in (blocks.code(tile), few_rows.code(strips.strip_of(whole, 4096))):
        assert ".entry kernel(" in nvptx.ptx(code.text(), "sm_75")
