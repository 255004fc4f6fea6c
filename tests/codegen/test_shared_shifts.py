"""Integers shifted by one count that all of them share."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [3, 2000])
def test_counts_inside_and_outside_of_the_bits(dtype: str, size: int) -> None:
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(bounds.min, bounds.max, size, dtype, endpoint=True)
    counts = [*range(bounds.bits + 2), bounds.max, *([-1, bounds.min] if bounds.min < 0 else [])]
    for count in counts:
        shift = mx.array(count, dtype=getattr(mx, dtype))
        got = np.array(mx.array(x) << shift), np.array(mx.array(x) >> shift)
        if 0 <= count < bounds.bits:
            want = x << x.dtype.type(count), x >> x.dtype.type(count)
        else:
            want = np.zeros_like(x), np.where(x < 0, x.dtype.type(-1 if bounds.min < 0 else 0), x.dtype.type(0))
        np.testing.assert_array_equal(got[0], want[0], err_msg=f"<< {count}")
        np.testing.assert_array_equal(got[1], want[1], err_msg=f">> {count}")


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64"])
def test_one_number_that_shifts_divides_and_is_an_exponent(dtype: str) -> None:
    x = np.arange(100, dtype=dtype)
    array = mx.array(x)
    np.testing.assert_array_equal(np.array((array**7 // 7 << 7) ^ (array % 7 >> 7)), (x**7 // 7 << 7) ^ (x % 7 >> 7))
