"""Powers of half precision with an exponent that all numbers share."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 2.5])
def test_all_numbers_have_the_bits_of_an_exponent_for_each(dtype: mx.Dtype, exponent: float) -> None:
    x = mx.array(np.arange(1 << 16, dtype=np.uint16)).view(dtype)
    shared = mx.array(exponent, dtype=dtype)
    apart = mx.contiguous(mx.broadcast_to(shared, x.shape))
    mx.eval(x, apart)
    got, want = mx.power(x, shared).view(mx.uint16), mx.power(x, apart).view(mx.uint16)
    np.testing.assert_array_equal(np.array(got), np.array(want))
