"""Rows of quantised matrices, and of products with matrices that are chosen by indices, segments and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.ops.row import ANY, FLOATS, Domain, Row, whole

_SINGLE = ("float32", "float16", "bfloat16")
_CODES = dict.fromkeys(("jvp", "vjp", "second order"), "codes are whole numbers, which have no derivative")
_ROUNDED = dict.fromkeys(("jvp", "vjp", "second order"), "as if nothing was rounded: see test_quantized.py")
_MOST_WORD = (1 << 20) - 1
_FINITE = np.uint32(0x77777777)
"""A mask for words of small floating-point numbers: after it they are positive and no NaN."""
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_MODES = {"mxfp4": (32, 4, 6.0), "mxfp8": (32, 8, 448.0), "nvfp4": (16, 4, 6.0)}


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    single = codes.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(single.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little").view(np.uint32)


def affine(x: np.ndarray, group_size: int, bits: int) -> list[np.ndarray]:
    """The words, scales and biases of a quantised array, computed in float32."""
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, group_size)
    low, high = groups.min(-1), groups.max(-1)
    most = np.float32((1 << bits) - 1)
    scale = np.maximum((high - low) / most, np.float32(1e-7))
    below = abs(low) > abs(high)
    scale, end = np.where(below, scale, -scale), np.where(below, low, high)
    steps = np.rint(end / scale)
    scale = np.where(steps != 0, end / np.where(steps == 0, 1, steps), scale)
    bias = np.where(steps != 0, end, np.float32(0))
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, most)
    return [words(codes.reshape(x.shape), bits), scale, bias]


def float_codes(x: np.ndarray, bits: int) -> np.ndarray:
    if bits == 8:
        return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    size = np.searchsorted((FLOAT4[1:] + FLOAT4[:-1]) / 2, abs(x).astype(np.float64))
    return size + 8 * ((x < 0) & (size > 0))


def float_groups(x: np.ndarray, mode: str) -> list[np.ndarray]:
    """The words and scales of an array in a floating-point format, computed in float32."""
    size, bits, largest = _MODES[mode]
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, size)
    scale = abs(groups).max(-1) / np.float32(largest)
    if mode == "nvfp4":
        codes = float_codes(scale, 8)
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        exponent = np.ceil(np.log2(scale))
        codes, values = (exponent + 127).astype(np.uint8), np.exp2(exponent)
    return [words(float_codes(groups / values[..., None], bits).reshape(x.shape), bits), codes]


def random_words(bits: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(bits).integers(0, 1 << 32, shape, dtype=np.uint32)


def values(packed: np.ndarray, bits: int, scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """The numbers that the words of an affine format represent."""
    single = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little").reshape(*packed.shape[:-1], -1, bits)
    codes = (single * (1 << np.arange(bits))).sum(-1)
    size = codes.shape[-1] // scales.shape[-1]
    return codes * np.repeat(scales, size, -1) + np.repeat(biases, size, -1)


def _dequantize_row(bits: int) -> Row:
    return Row(
        "dequantize",
        lambda mx, packed, scales, biases: mx.dequantize(packed, scales, biases, 32, bits),
        lambda packed, scales, biases: values(packed, bits, scales, biases),
        (whole(_MOST_WORD, (3, 2 * bits), dtype="uint32"), ANY, ANY),
        dtypes=FLOATS,
        shape=(3, 2),
        variant=f"{bits} bits",
        mlx_dtypes=_SINGLE,
        grows=((1, bits), (1, 1), (1, 1)),
    )


def _float_dequantize_row(mode: str) -> Row:
    size, bits, _ = _MODES[mode]

    def oracle(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
        packed = packed & _FINITE
        each = np.unpackbits(packed.view(np.uint8), axis=-1, bitorder="little").reshape(*packed.shape[:-1], -1, bits)
        codes = (each * (1 << np.arange(bits))).sum(-1).astype(np.uint8)
        plain = FLOAT4[codes] if bits == 4 else codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        kind = ml_dtypes.float8_e4m3fn if mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
        return plain * np.repeat(scales.view(kind).astype(np.float64), size, -1)

    def call(mx: Any, packed: Any, scales: Any) -> Any:
        return mx.dequantize(packed & mx.array(_FINITE, mx.uint32), scales, mode=mode, dtype=mx.float32)

    return Row(
        "dequantize",
        call,
        oracle,
        (whole(_MOST_WORD, (3, 2 * bits), dtype="uint32"), whole(120, (3, 64 // size), 1, "uint8")),
        dtypes=("uint8",),
        variant=mode,
        grows=((1, size * bits // 32), (1, 1)),
        without=_CODES,
    )


def _product_row(
    name: str,
    variant: str,
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    x: tuple[int, ...],
    packed: np.ndarray,
    grows: tuple[int, ...],
) -> Row:
    """A row of a product of ``x`` with a matrix of 4 bits, whose scales and biases are arguments too."""
    groups, fixed = Domain(shape=(*packed.shape[:-1], packed.shape[-1] // 4)), (0,) * packed.ndim
    return Row(
        name,
        lambda mx, x, scales, biases: function(mx, x, mx.array(packed), scales, biases),
        lambda x, scales, biases: oracle(x, values(packed, 4, scales, biases)),
        (Domain(shape=x), groups, groups),
        dtypes=FLOATS,
        variant=variant,
        ulp=8,
        mlx_dtypes=_SINGLE,
        grows=(grows, fixed, fixed),
    )


_MATRIX = random_words(4, 5, 8)
_MATRICES = random_words(4, 3, 5, 8)


def _chosen(mx: Any) -> dict[str, Any]:
    return {"lhs_indices": mx.array([[0], [1]]), "rhs_indices": mx.array([2, 0, 2])}


_EXPERTS = np.arange(40) ** 2 % 7 % 3
"""The matrices that many rows choose."""


def _gathered(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x[[[0], [1]]] @ y[[2, 0, 2]]


def _swapped(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def _rounded_float4(x: np.ndarray) -> np.ndarray:
    """The numbers after quantisation to 4 bits with the scale 1."""
    codes = float_codes(x, 4).astype(np.int64)
    return FLOAT4[codes % 8] * np.where(codes >= 8, -1, 1)


def _with_six(mx: Any, x: Any) -> Any:
    """``x`` with a 6 before each row of 31 numbers, which makes a group of 32 with the scale 1."""
    return mx.concatenate([mx.full_like(x[..., :1], 6.0), x], axis=-1)


def _six(x: np.ndarray) -> np.ndarray:
    return _rounded_float4(np.concatenate([np.full((*x.shape[:-1], 1), 6.0), x], axis=-1))


def _block_mask(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    spread = np.repeat(np.repeat(mask, 32, -2), 32, -1)
    return spread[..., : shape[-2], : shape[-1]]


_KEPT = np.array([[True, False], [True, True]])


ROWS = [
    *[
        Row(
            "quantize",
            lambda mx, x, bits=bits: mx.quantize(x, 32, bits)[0],
            lambda x, bits=bits: affine(x, 32, bits)[0],
            dtypes=_SINGLE,
            shape=(3, 64),
            variant=f"codes of {bits} bits",
            grows=((1, 64),),
            without=_CODES | {"special": "codes of groups with infinities mean nothing"},
        )
        for bits in (3, 4)
    ],
    Row(
        "quantize",
        lambda mx, x: mx.quantize(x, 32, 4)[1:],
        lambda x: affine(x, 32, 4)[1:],
        dtypes=_SINGLE,
        shape=(3, 64),
        variant="scales and biases",
        grows=((1, 64),),
        without=dict.fromkeys(("jvp", "vjp", "second order"), "jumps where the number of steps changes"),
    ),
    *[
        Row(
            "quantize",
            lambda mx, x, mode=mode: mx.quantize(x, mode=mode),
            lambda x, mode=mode: float_groups(x, mode),
            dtypes=_SINGLE,
            shape=(3, 64),
            variant=mode,
            grows=((1, 64),),
            without=_CODES | {"special": "codes of groups with infinities mean nothing"},
        )
        for mode in _MODES
    ],
    *[_dequantize_row(bits) for bits in (3, 8)],
    *[_float_dequantize_row(mode) for mode in _MODES],
    _product_row(
        "quantized_matmul",
        "transposed",
        lambda mx, x, *w: mx.quantized_matmul(x, *w, group_size=32),
        lambda x, w: x @ w.T,
        (2, 3, 64),
        _MATRIX,
        (1, 1, 0),
    ),
    _product_row(
        "quantized_matmul",
        "plain",
        lambda mx, x, *w: mx.quantized_matmul(x, *w, transpose=False, group_size=32),
        lambda x, w: x @ w,
        (3, 5),
        _MATRIX,
        (1, 0),
    ),
    _product_row(
        "gather_qmm",
        "transposed",
        lambda mx, x, *w: mx.gather_qmm(x, *w, **_chosen(mx), group_size=32),
        lambda x, w: _gathered(x, _swapped(w)),
        (2, 4, 64),
        _MATRICES,
        (0, 1, 0),
    ),
    Row(
        "qqmm",
        lambda mx, x, y: mx.qqmm(_with_six(mx, x), _with_six(mx, y), mode="mxfp4"),
        lambda x, y: _six(x) @ _six(y).T,
        (Domain(-5.5, 5.5, shape=(2, 31)), Domain(-5.5, 5.5, shape=(3, 31))),
        dtypes=FLOATS,
        ulp=4,
        grows=((1, 0), (1, 0)),
        without=_ROUNDED | {"mlx": "MLX has it on GPUs only"},
    ),
    Row(
        "gather_qqmm",
        lambda mx, x, y: mx.gather_qqmm(_with_six(mx, x), _with_six(mx, y), mode="mxfp4", **_chosen(mx)),
        lambda x, y: _gathered(_six(x), _swapped(_six(y))),
        (Domain(-5.5, 5.5, shape=(2, 2, 31)), Domain(-5.5, 5.5, shape=(3, 4, 31))),
        dtypes=FLOATS,
        ulp=4,
        grows=((0, 1, 0), (0, 1, 0)),
        without=_ROUNDED | {"mlx": "MLX has it on GPUs only"},
    ),
    Row(
        "gather_mm",
        lambda mx, x, y: mx.gather_mm(x, y, **_chosen(mx)),
        _gathered,
        (Domain(shape=(2, 4, 5)), Domain(shape=(3, 5, 3))),
        dtypes=FLOATS,
        ulp=4,
        mlx_dtypes=_SINGLE,
    ),
    Row(
        "gather_mm",
        lambda mx, x, y: mx.gather_mm(x, y, rhs_indices=mx.array(_EXPERTS)),
        lambda x, y: x @ y[_EXPERTS],
        (Domain(shape=(40, 2, 5)), Domain(shape=(3, 5, 3))),
        dtypes=FLOATS,
        ulp=4,
        variant="many rows of few matrices",
        grows=((0, 1, 1), (1, 1, 1)),
        mlx_dtypes=_SINGLE,
    ),
    Row(
        "segmented_mm",
        lambda mx, a, b: mx.segmented_mm(a, b, mx.array([[0, 3], [2, 6], [4, 4]])),
        lambda a, b: np.stack([a[:, start:end] @ b[start:end] for start, end in ((0, 3), (2, 6), (4, 4))]),
        (Domain(shape=(4, 6)), Domain(shape=(6, 3))),
        dtypes=FLOATS,
        ulp=4,
        mlx_dtypes=_SINGLE,
    ),
    Row(
        "block_masked_mm",
        lambda mx, a, b: mx.block_masked_mm(a, b, 32, mask_lhs=mx.array(_KEPT), mask_out=mx.array([[False], [True]])),
        lambda a, b: np.where([[False]] * 32 + [[True]] * 4, (a * _block_mask(_KEPT, a.shape)) @ b, 0),
        (Domain(shape=(36, 40)), Domain(shape=(40, 3))),
        dtypes=FLOATS,
        ulp=8,
        variant="booleans",
        without={"special": "NaN in what is masked counts as zero, here but not in the oracle"},
        mlx_dtypes=_SINGLE,
    ),
    Row(
        "block_masked_mm",
        lambda mx, a, b, mask: mx.block_masked_mm(a, b, 32, mask_rhs=mask),
        lambda a, b, mask: a @ (b * _block_mask(mask, b.shape)),
        (Domain(shape=(2, 3, 40)), Domain(shape=(2, 40, 36)), Domain(shape=(2, 2))),
        dtypes=FLOATS,
        ulp=8,
        variant="factors",
        mlx_dtypes=_SINGLE,
        grows=((1, 1, 0), (1, 0, 0), (0, 0)),
    ),
]
