"""8-bit floating numbers: every code, every number of half precision, and numbers halfway between two codes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import to_array, to_numpy

E4M3 = ml_dtypes.float8_e4m3fn


def codes_of(x: np.ndarray) -> np.ndarray:
    """The codes to which another implementation rounds float32; numbers beyond 448 become 448."""
    with np.errstate(invalid="ignore"):
        return np.clip(x.astype(np.float32), -448, 448).astype(E4M3).view(np.uint8)


def every_half(kind: Any) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(kind)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_every_number_of_half_precision(kind: Any) -> None:
    x = every_half(kind)
    got = to_numpy(mx.to_fp8(mx.view(mx.array(x.view(np.uint16)), getattr(mx, np.dtype(kind).name))))
    np.testing.assert_array_equal(got, codes_of(x))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_the_codes_are_those_of_mlx_but_for_nan(mlx: Any, kind: Any) -> None:
    """MLX gives 448 for NaN."""
    x = every_half(kind)
    x = x[~np.isnan(x.astype(np.float32))]
    np.testing.assert_array_equal(to_numpy(mx.to_fp8(to_array(x))), np.array(mlx.to_fp8(to_array(x, mlx))))


def test_float32_between_two_codes(rng: np.random.Generator) -> None:
    codes = np.arange(0x7E, dtype=np.uint8).view(E4M3).astype(np.float64)
    middles = (codes[1:] + codes[:-1]) / 2
    around = np.concatenate([np.nextafter(middles.astype(np.float32), side) for side in (0, np.inf)])
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([middles, around, codes, [np.inf, np.nan, 449, 464, 1e-30]]).astype(np.float32)
    x = np.concatenate([x, -x, bits])
    np.testing.assert_array_equal(to_numpy(mx.to_fp8(mx.array(x))), codes_of(x))


def test_float64_is_rounded_once() -> None:
    """Numbers halfway between two codes, and neighbours that float32 would round to these."""
    codes = np.arange(0x7E, dtype=np.uint8).view(E4M3).astype(np.float64)
    middles = (codes[1:] + codes[:-1]) / 2
    for number, middle in enumerate(middles):
        near = np.array([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
        tie = number + number % 2
        assert to_numpy(mx.to_fp8(mx.array(near, dtype=mx.float64))).tolist() == [tie, number, number + 1]
        assert Fraction(near[1]) < Fraction(middle) < Fraction(near[2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_code(dtype: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    got = to_numpy(mx.from_fp8(mx.array(codes), getattr(mx, dtype)))
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.astype(np.float64), codes.view(E4M3).astype(np.float64))
    finite = codes % 0x80 != 0x7F
    assert ((np.signbit(got.astype(np.float32)) == (codes >= 0x80)) | ~finite).all()
    back = to_numpy(mx.to_fp8(mx.from_fp8(mx.array(codes), getattr(mx, dtype))))
    np.testing.assert_array_equal(back[finite], codes[finite])


def test_other_dtypes_are_errors() -> None:
    with pytest.raises(ValueError, match=r"\[to_fp8\] takes floating numbers, not int32"):
        mx.to_fp8(mx.array([1]))
    with pytest.raises(ValueError, match=r"\[from_fp8\] takes uint8, not int32"):
        mx.from_fp8(mx.array([1]))
    with pytest.raises(ValueError, match=r"\[from_fp8\] gives floating numbers, not int32"):
        mx.from_fp8(mx.array([1], mx.uint8), mx.int32)
