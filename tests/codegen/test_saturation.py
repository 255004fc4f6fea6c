"""Floating-point numbers become the nearest integers of a dtype, also where they are out of its range."""

from __future__ import annotations

import math

import pytest

import weft.core as mx

BITS = (7, 8, 15, 16, 31, 32)
BOUNDS = [float((1 << bits) + more) for bits in BITS for more in (-1.0, -0.5, 0, 0.5)]
NUMBERS = [0.0, 0.5, 0.999, 1.5, 1e-40, 1e10, 1e30, math.inf, math.nan, 2147483520.0, 4294967040.0, *BOUNDS]


def integer(number: float, lowest: int, highest: int) -> int:
    if math.isnan(number):
        return 0
    return int(max(lowest, min(highest, number))) if math.isinf(number) else max(lowest, min(highest, int(number)))


@pytest.mark.parametrize("target", [mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32], ids=str)
@pytest.mark.parametrize("source", [mx.float16, mx.bfloat16, mx.float32, mx.float64], ids=str)
def test_they_are_the_nearest_ones(source: mx.Dtype, target: mx.Dtype) -> None:
    x = mx.array([*NUMBERS, *[-number for number in NUMBERS]], dtype=source)
    info = mx.iinfo(target)
    want = [integer(number, info.min, info.max) for number in x.tolist()]
    assert x.astype(target).tolist() == want
    assert [one.astype(target).item() for one in x] == want, "one lane"
