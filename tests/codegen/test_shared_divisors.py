"""Integers divided by one that all of them share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft.core as mx

WIDE = ("int16", "uint16", "int32", "uint32", "int64", "uint64")


def _numbers(bounds: np.iinfo, seed: int) -> Iterator[int]:
    """Numbers of every size, among them powers of two and their neighbours."""
    random = np.random.default_rng(seed)
    for power in range(bounds.bits):
        odd = int(random.integers(1 << 62, 1 << 63, dtype=np.uint64)) >> (63 - power)
        yield from ((1 << power) - 1, 1 << power, (1 << power) + 1, odd)
        yield from (-(1 << power) - 1, -(1 << power), 1 - (1 << power), -odd)


def _check(x: np.ndarray, y: int) -> None:
    dividend, divisor = mx.array(x), mx.array(y, dtype=getattr(mx, x.dtype.name))
    got = np.array(dividend // divisor), np.array(dividend % divisor)
    with np.errstate(divide="ignore", over="ignore"):
        want = np.floor_divide(x, x.dtype.type(y)), np.remainder(x, x.dtype.type(y))
    if y == 0:
        want = np.zeros_like(x), x
    np.testing.assert_array_equal(got[0], want[0], err_msg=f"// {y}")
    np.testing.assert_array_equal(got[1], want[1], err_msg=f"% {y}")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_pair_of_bytes(dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype)
    for divisor in every:
        _check(every, int(divisor))


@pytest.mark.parametrize("dtype", WIDE)
def test_quotients_on_both_sides_of_an_integer(dtype: str) -> None:
    bounds = np.iinfo(dtype)
    divisors = {y for y in (*_numbers(bounds, 1), 0, 3, 7, 10, -3, -10) if bounds.min <= y <= bounds.max}
    quotients = [*_numbers(bounds, 2)]
    for y in sorted(divisors):
        products = [q * y + rest for q in quotients for rest in (-1, 0, 1)]
        found = [x for x in (*products, bounds.min, bounds.max, 0) if bounds.min <= x <= bounds.max]
        _check(np.array(found, dtype), y)


def test_a_divisor_that_a_long_formula_shares() -> None:
    x = np.arange(-1000, 1000, dtype=np.int32)
    array, want = mx.array(x), x
    for number in range(40):
        array, want = (array * 7 + number) // 3 + array % 11, (want * 7 + number) // 3 + want % 11
    np.testing.assert_array_equal(np.array(array), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", *WIDE])
def test_powers_of_two_that_are_python_numbers(dtype: str) -> None:
    bounds = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(bounds.min, bounds.max, 100, dtype, endpoint=True)
    for power in range(bounds.bits - (bounds.min < 0)):
        got = mx.array(x) // (1 << power)
        assert got.dtype == getattr(mx, dtype)
        np.testing.assert_array_equal(np.array(got), x // x.dtype.type(1 << power), err_msg=f"2^{power}")
