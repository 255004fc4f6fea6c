"""Numbers of float32 rounded to bfloat16, as the processor's own instruction or integer arithmetic does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.kernels import kernel
from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value

BEHIND = [0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
"""Lower halves of numbers, among them a tie and its neighbours."""


def in_memory(L: Lanes, x: Value) -> Any:
    """The number that is read where one was stored."""
    return L.half_from_bits(L.half_to_bits(Value(L, x.name, dtypes.bfloat16)), dtypes.bfloat16)


def in_register(L: Lanes, x: Value) -> Any:
    return L.round_to(x, dtypes.bfloat16)


def nearest(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Ties to even; a NaN becomes a quiet one."""
    is_nan = bits & 0x7FFFFFFF > 0x7F800000
    return np.where(is_nan, bits | 0x00400000, bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000


@pytest.mark.parametrize("rounded", [in_memory, in_register])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_to_bfloat16(rounded: Any, width: int) -> None:
    """Every upper half of a number, so subnormal numbers, infinity and NaN too, with some lower halves."""
    behind = np.array(BEHIND + [1 << bit for bit in range(16)], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16 | behind).reshape(-1)
    found = kernel(rounded, dtypes.float32, width=width)(bits.view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(found, nearest(bits))


PRODUCTS = {
    "tiny stack": ((400, 3, 3), (400, 3, 3)),
    "stack of columns": ((60, 9, 9), (60, 9, 1)),
    "stack in groups": ((60, 9, 9), (60, 9, 9)),
    "row": ((1, 64), (64, 100)),
    "long rows": ((2, 64), (64, 4096)),
    "blocks": ((70, 64), (64, 100)),
}
"""Products that are computed in different ways."""


@pytest.mark.parametrize("shapes", PRODUCTS.values(), ids=PRODUCTS)
def test_sums_of_products_that_are_nan_stay_nan(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """With every NaN of bfloat16 as a factor, or with the last ones, whose bits are all set, if rows are few."""
    left, right = shapes
    rows, terms = int(np.prod(left[:-1])), left[-1]
    nan = np.array([bits for bits in range(1 << 16) if bits & 0x7FFF > 0x7F80], np.uint16)
    if rows <= 2:
        nan = nan[-8:]
    for some in np.array_split(nan, -(-nan.size // rows)):
        a = np.full((rows, terms), 0x3F80, np.uint16)
        a[np.arange(some.size), np.arange(some.size) % terms] = some
        product = mx.array(a.reshape(left)).view(mx.bfloat16) @ mx.ones(right, dtype=mx.bfloat16)
        found = np.array(mx.isnan(product)).reshape(rows, -1)
        assert (found == (np.arange(rows) < some.size)[:, None]).all()
