"""Quantised matrices beyond the table: the bits of every format, other shapes, special numbers, gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import to_numpy
from tests.reference import integer_sums
from tests.sampling import Cases

AFFINE = [(bits, size) for bits in (1, 2, 3, 4, 5, 6, 8) for size in (32, 64, 128)]
FORMATS = [*[(*one, "affine") for one in AFFINE], (4, 32, "mxfp4"), (8, 32, "mxfp8"), (4, 16, "nvfp4")]


def matrix(rng: np.random.Generator) -> np.ndarray:
    """Rows of all magnitudes; one of zeros, one of equal numbers, some of one sign."""
    x = rng.normal(size=(9, 256)) * np.exp2(rng.integers(-8, 8, (9, 1)))
    x[0], x[1], x[2], x[3] = 0, 3, abs(x[2]), -abs(x[3])
    return x.astype(np.float32)


@pytest.mark.parametrize(("bits", "group_size", "mode"), FORMATS)
def test_the_bits_are_those_of_mlx(mlx: Any, rng: np.random.Generator, bits: int, group_size: int, mode: str) -> None:
    """MLX and Weft exchange files."""
    x = matrix(rng)
    ours, theirs = (X.quantize(X.array(x), group_size, bits, mode) for X in (mx, mlx))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(to_numpy(mine), np.array(other))
    if mode == "affine":
        w, scales, biases = ours
        back = mx.dequantize(w, scales, biases, group_size, bits)
        np.testing.assert_array_equal(to_numpy(back), np.array(mlx.dequantize(*theirs, group_size, bits)))


def test_a_global_scale_is_that_of_mlx(mlx: Any, rng: np.random.Generator) -> None:
    x = matrix(rng)
    total = float(abs(x).max())
    ours, theirs = (X.quantize(X.array(x), mode="nvfp4", global_scale=X.array(total)) for X in (mx, mlx))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(to_numpy(mine), np.array(other))
    mine, other = (
        X.dequantize(*packed, mode="nvfp4", global_scale=X.array(total), dtype=X.float32)
        for X, packed in ((mx, ours), (mlx, theirs))
    )
    np.testing.assert_array_equal(to_numpy(mine), np.array(other))


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
def test_nan_stays_nan(mode: str) -> None:
    x = mx.concatenate([mx.full((2, 1), mx.nan), mx.ones((2, 127))], axis=1)
    back = mx.dequantize(*mx.quantize(x, mode=mode), mode=mode)
    assert mx.isnan(back[:, 0]).all().item()
    assert not mx.isnan(back[:, 64:]).any().item()


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_the_range_is_not_left(mode: str) -> None:
    """With the scales that are chosen, no number overflows, and infinity becomes the largest number."""
    x = mx.array([[3e38, -1e-38, 1.0, mx.inf] * 8])
    back = to_numpy(mx.dequantize(*mx.quantize(x, mode=mode), mode=mode, dtype=mx.float64))
    assert np.isfinite(back).all()
    assert (back[0, 3::4] == back.max()).all()


def test_one_shapeless_trace_serves_matrices_of_all_sizes(rng: np.random.Generator) -> None:
    def both(x: mx.array, w: mx.array, mask: mx.array) -> mx.array:
        packed = mx.quantize(w, 32, 3)
        masked = mx.block_masked_mm(x, w.T, 32, mask_lhs=mask)
        return mx.quantized_matmul(x, *packed, group_size=32, bits=3) + mx.qqmm(x, w) + masked

    compiled = mx.compile(both, shapeless=True)
    for rows, columns, inner in ((2, 3, 64), (5, 1, 96), (33, 4, 32)):
        shapes = (rows, inner), (columns, inner), (-(-rows // 32), inner // 32)
        arrays = [mx.array(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
        assert mx.array_equal(compiled(*arrays), both(*arrays)).item()


PRODUCTS = [
    (form, dtype, rows, transpose)
    for form in FORMATS
    for dtype in ("float32", "bfloat16", "float16", "float64")
    for rows in (1, 2, 3, 8, 9, 70)
    for transpose in (True, False)
]
"""Few, several and many rows, for which there are different kinds of kernels."""


def wanted(x: mx.array, parts: Any, transpose: bool, form: Any) -> mx.array:
    """The product of the numbers, or, where it is defined so, exact sums of integers."""
    wide = mx.float64 if x.dtype == mx.float64 else mx.float32
    if not (transpose and x.shape[-2] <= 8 and integer_sums.apply(to_numpy(mx.zeros((), wide)).dtype, form)):
        numbers = mx.dequantize(*parts, **{**form, "dtype": wide})
        return (x.astype(wide) @ (numbers.T if transpose else numbers)).astype(x.dtype)
    terms, words, scales, biases = np.array(x.astype(mx.float32)), *[to_numpy(part) for part in parts]
    sums = integer_sums.product(terms, words, scales, biases, form["group_size"], form.get("bits", 4))
    return mx.array(sums).astype(x.dtype)


def test_every_way_to_compute_a_product_gives_its_bits(cases: Cases, rng: np.random.Generator) -> None:
    """Blocks of columns and of terms have a remainder."""
    for (bits, group_size, mode), name, rows, transpose in cases.some(4, PRODUCTS):
        dtype = getattr(mx, name)
        form: Any = {"group_size": group_size, "bits": bits, "mode": mode}
        shape = (170, 640) if transpose else (130, 384)
        parts = mx.quantize(mx.array(rng.normal(size=shape)).astype(dtype), **form)
        x = mx.array(rng.normal(size=(rows, shape[transpose]))).astype(dtype)
        found = mx.quantized_matmul(x, *parts, transpose=transpose, **form)
        assert mx.array_equal(found, wanted(x, parts, transpose, form)).item()


@pytest.mark.some_rows(2)
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (4, "mxfp4"), (8, "mxfp8")])
def test_single_rows_times_matrices_of_all_lengths(rng: np.random.Generator, bits: int, mode: str) -> None:
    """The words of a row are read in spans; the last span may overlap the one before."""
    form: Any = {"group_size": 32, "bits": bits, "mode": mode}
    for columns, inner in ((1, 32), (17, 96), (65, 128), (64, 160), (130, 416), (31, 1056), (3, 2080)):
        for name in ("float32", "float64"):
            dtype = getattr(mx, name)
            parts = mx.quantize(mx.array(rng.normal(size=(columns, inner)).astype(np.float32)), **form)
            for rows in (1, 2):
                x = mx.array(rng.normal(size=(rows, inner))).astype(dtype)
                found = mx.quantized_matmul(x, *parts, **form)
                assert mx.array_equal(found, wanted(x, parts, True, form)).item()


def test_terms_of_all_magnitudes(rng: np.random.Generator) -> None:
    """Zeros, subnormal numbers, numbers near the largest ones, infinities and NaN; the unit of a group changes where
    its largest term nearly reaches a power of two."""
    parts = mx.quantize(mx.array(rng.normal(size=(5, 64)).astype(np.float32)), 32)
    edges = [0.0, 1e-45, 1e-38, 2.0**-104, 1.984374, 1.984375, 3e37, np.inf, -np.inf, np.nan]
    x = np.zeros((len(edges), 64), np.float32)
    x[:, 40] = edges
    x[:, 41:] = rng.normal(size=23) * np.where(np.isfinite(edges), edges, 1)[:, None] / 8
    for terms in x:
        row = mx.array(terms[None])
        found = mx.quantized_matmul(row, *parts, group_size=32)
        want = wanted(row, parts, True, {"group_size": 32})
        assert mx.array_equal(found, want, equal_nan=True).item()
        assert np.isfinite(np.array(found)).all() == np.isfinite(terms).all()


def test_sums_of_integers_are_as_exact_as_products_of_numbers(rng: np.random.Generator) -> None:
    for bits in (1, 2, 4, 8):
        parts = mx.quantize(mx.array(rng.normal(size=(300, 1024)).astype(np.float32)), bits=bits)
        numbers = np.array(mx.dequantize(*parts, bits=bits)).astype(np.float64)
        x = rng.normal(size=(3, 1024)).astype(np.float32)
        exact = x.astype(np.float64) @ numbers.T
        found = np.array(mx.quantized_matmul(mx.array(x), *parts, bits=bits)).astype(np.float64)
        assert abs(found - exact).max() <= 2e-6 * exact.std()


def test_chosen_matrices_are_multiplied_where_they_lie(rng: np.random.Generator) -> None:
    """Negative indices count from the end, others outside mean the nearest matrix; vmap over all arguments is a
    loop."""
    parts: Any = mx.quantize(mx.array(rng.normal(size=(2, 3, 40, 64)).astype(np.float32)), 32)
    x = mx.array(rng.normal(size=(4, 2, 64)).astype(np.float32))
    index = mx.array([[1, -1, 7, -9], [0, 2, 2, 1]])

    def product(index: mx.array, w: mx.array, scales: mx.array, biases: mx.array) -> mx.array:
        return mx.gather_qmm(x, w, scales, biases, rhs_indices=index, group_size=32)

    def single(batch: int, number: int, place: int) -> mx.array:
        matrix = min(max(place + 3 * (place < 0), 0), 2)
        return wanted(x[number], [part[batch, matrix] for part in parts], True, {"group_size": 32})

    rows = enumerate(index.tolist())
    stacked = mx.stack([mx.stack([single(b, i, place) for i, place in enumerate(row)]) for b, row in rows])
    one_by_one = mx.stack([product(index[b], *[part[b] for part in parts]) for b in range(2)])
    assert mx.array_equal(one_by_one, stacked).item()
    assert mx.array_equal(mx.vmap(product)(index, *parts), stacked).item()


def test_neighbours_that_choose_the_same_matrix_are_multiplied_together(rng: np.random.Generator) -> None:
    """Runs of equal indices, of several lengths, sorted or not, have the bits of single products."""
    parts = mx.quantize(mx.array(rng.normal(size=(3, 40, 64)).astype(np.float32)), 32)
    index = mx.array([0] * 9 + [1, 2, 2, 0] + [2] * 3 + [5, -1, 1, 1, 1])
    x = mx.array(rng.normal(size=(len(index.tolist()), 1, 64)).astype(np.float32))
    found = mx.gather_qmm(x, *parts, rhs_indices=index, group_size=32)
    single = [mx.gather_qmm(x[i], *parts, rhs_indices=index[i], group_size=32) for i in range(x.shape[0])]
    assert mx.array_equal(found, mx.stack(single)).item()


def test_derivatives_pass_through_what_is_quantised(rng: np.random.Generator) -> None:
    x, w, ct = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 32), (5, 32), (3, 5)))
    rounded_x, rounded_w = (
        mx.dequantize(*mx.quantize(n, mode="mxfp8"), mode="mxfp8", dtype=mx.float32) for n in (x, w)
    )
    _, (for_x, for_w) = mx.vjp(lambda x, w: mx.qqmm(x, w, mode="mxfp8"), [x, w], [ct])
    assert mx.array_equal(for_x, ct @ rounded_w).item()
    assert mx.array_equal(for_w, ct.T @ rounded_x).item()


def test_masked_blocks_may_hold_nan() -> None:
    a = mx.concatenate([mx.full((2, 32), mx.nan), mx.ones((2, 32))], axis=1)
    kept = mx.array([[False, True]])
    assert mx.block_masked_mm(a, mx.ones((64, 1)), 32, mask_lhs=kept).tolist() == [[32.0], [32.0]]
    assert mx.segmented_mm(a, mx.ones((64, 1)), mx.array([32, 100])).tolist() == [[32.0], [32.0]]


W = mx.zeros((4, 64))
ERRORS = [
    (lambda: mx.quantize(mx.zeros(64)), r"\[quantize\] w needs at least two dimensions; its shape is \(64,\)"),
    (lambda: mx.quantize(mx.zeros((2, 40))), r"multiple of the group size 64; its shape is \(2, 40\)"),
    (lambda: mx.quantize(mx.zeros((2, 64), mx.int32)), r"Floating numbers are quantised; w has the dtype int32"),
    (lambda: mx.quantize(W, bits=7), r"bits of the mode 'affine' must be one of 1, 2, 3, 4, 5, 6, 8; got 7"),
    (lambda: mx.quantize(W, mode="int4"), r"mode must be one of 'affine', 'mxfp4', 'mxfp8', 'nvfp4'; got 'int4'"),
    (lambda: mx.quantize(W, global_scale=mx.array(1.0)), r"global_scale is for the mode 'nvfp4'; the mode is 'affine'"),
    (
        lambda: mx.quantize(W, mode="nvfp4", global_scale=mx.ones(2)),
        r"global_scale must be one float32 number; it has the shape \(2,\)",
    ),
    (lambda: mx.dequantize(*mx.quantize(W)[:2]), r"\[dequantize\] The mode 'affine' needs biases"),
    (
        lambda: mx.dequantize(*mx.quantize(W), group_size=32),
        r"4 bits and groups of 32, so that scales must have the shape \(4, 2\); theirs is \(4, 1\)",
    ),
    (
        lambda: mx.dequantize(mx.zeros((2, 3), mx.uint32), W, W),
        r"The 24 codes of 4 bits in a row of w, whose shape is \(2, 3\), cannot be divided into groups of 64",
    ),
    (
        lambda: mx.dequantize(W, W, W),
        r"w must be words of uint32 with at least two dimensions; it has the dtype float32",
    ),
    (
        lambda: mx.quantized_matmul(mx.ones((2, 32)), *mx.quantize(W)),
        r"\[quantized_matmul\] Shapes \(2, 32\) and \(64, 4\) do not fit",
    ),
    (
        lambda: mx.qqmm(W, W, mode="affine"),
        r"\[qqmm\] quantises both matrices, in a floating mode; the mode is 'affine'",
    ),
    (lambda: mx.gather_mm(W, W.T, mx.array([0.5])), r"\[gather_mm\] lhs_indices must be integers, not float32"),
    (lambda: mx.segmented_mm(W, W.T, mx.array([1])), r"must be \(M, K\), \(K, N\) and \(\.\.\., 2\)"),
    (lambda: mx.block_masked_mm(W, W.T, 16), r"block_size must be 32 or 64; got 16"),
    (
        lambda: mx.block_masked_mm(W, W.T, 32, mask_lhs=mx.ones((2, 2))),
        r"mask_lhs must have the shape \(\.\.\., 1, 2\), one element for each block of 32",
    ),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_say_what_fits(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
