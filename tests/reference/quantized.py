"""Products with quantised matrices on the reference device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import weft.primitives as p
from tests.reference import integer_sums
from tests.reference.lanes import fused
from tests.reference.products import product
from tests.reference.routines import by
from weft import dtypes
from weft.dtypes import Dtype

_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@by(p.quantized_matmul.routine)
def quantized_product(x: np.ndarray, *matrix: np.ndarray, transpose: bool, **kind: Any) -> np.ndarray:
    """The product with the numbers that the codes and scales represent; of a few rows, sums of integers."""
    parts = matrix[: 3 if kind["mode"] == "affine" else 2]
    if x.ndim == 3:
        index = np.clip(matrix[-1], 0, len(parts[0]) - 1)
        parts = tuple(part[index] for part in parts)
    if transpose and x.shape[-2] <= 8 and integer_sums.apply(x.dtype, kind):
        # A single matrix is a stack of one.
        stacks = [part.reshape(-1, *part.shape[-2:]) for part in (x, *parts)]
        sizes = kind["group_size"], kind["bits"]
        each = [integer_sums.product(a, b, c, d, *sizes) for a, b, c, d in zip(*stacks, strict=True)]
        return np.array(each, np.float32).reshape(*x.shape[:-1], parts[0].shape[-2])
    numbers = values(x.dtype, *parts, **kind)
    result: np.ndarray = product(x, np.swapaxes(numbers, -1, -2) if transpose else numbers)
    return result


@by(p.dequantize.routine)
def dequantized(*parts: np.ndarray, dtype: Dtype, **kind: Any) -> np.ndarray:
    return values(np.dtype(np.float64 if dtype is dtypes.float64 else np.float32), *parts, **kind)


def values(
    dtype: np.dtype[Any],
    words: np.ndarray,
    scales: np.ndarray,
    biases: np.ndarray | None = None,
    *,
    mode: str,
    bits: int,
    group_size: int,
) -> np.ndarray:
    single = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").reshape(*words.shape[:-1], -1, bits)
    codes = (single * (1 << np.arange(bits))).sum(-1)
    numbers = _numbers(codes, mode).astype(dtype)
    steps = np.repeat(_scales(scales, mode).astype(dtype), group_size, -1)
    with np.errstate(all="ignore"):
        if biases is None:
            return numbers * steps
        offsets = np.repeat(biases.astype(dtype), group_size, -1)
        groups: np.ndarray = fused(numbers, steps, offsets) if scales.itemsize == 2 else numbers * steps + offsets
        return groups


def _numbers(codes: np.ndarray, mode: str) -> np.ndarray:
    if mode == "affine":
        return codes
    if mode == "mxfp8":
        return codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return np.asarray(_FLOAT4[codes % 8] * np.where(codes >= 8, -1, 1))


def _scales(scales: np.ndarray, mode: str) -> np.ndarray:
    if scales.dtype != np.uint8:
        return scales
    kind = ml_dtypes.float8_e4m3fn if mode == "nvfp4" else ml_dtypes.float8_e8m0fnu
    return scales.view(kind).astype(np.float32)
