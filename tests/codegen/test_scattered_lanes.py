"""Scatters whose indices and updates are computed in lanes, and combined with elements in memory one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import weft.core as mx

from .planned import plans_of

SIZES = (64, 79, 255, 256, 257, 1000)


# NumPy compares complex numbers in another way.
CASES = [
    *product(["add", "multiply", "maximum", "minimum"], [mx.float32, mx.float16, mx.int8]),
    *product(["add", "multiply"], [mx.complex64]),
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_updates_of_one_element_are_combined_in_order(name: str, dtype: mx.Dtype) -> None:
    combine: np.ufunc = getattr(np, name)
    for size in SIZES:
        numbers = np.random.default_rng(size)
        into = numbers.integers(1, 9, 7).astype(np.dtype(str(dtype).split(".")[-1]))
        updates = (numbers.integers(1, 30, size) / 8).astype(into.dtype)
        at = numbers.integers(-7, 7, size)
        want = into.copy()
        with np.errstate(all="ignore"):
            for index, update in zip(at, updates, strict=True):
                want[index] = combine(want[index], update, dtype=into.dtype)
        indexed = mx.array(into).at[mx.array(at)]
        got = getattr(indexed, name)(mx.array(updates))
        assert np.array(got).tobytes() == want.tobytes()


def test_conditions_and_indices_are_computed_in_lanes() -> None:
    def histogram(x: mx.array) -> mx.array:
        at = (x * 8).astype(mx.int32)
        return mx.zeros((4, 8)).at[at % 5, at].add(x)

    for size in SIZES:
        x = mx.random.uniform(-0.5, 1.5, (size,), key=mx.random.key(size))
        want = np.zeros((4, 8), np.float32)
        for value in np.array(x):
            row, column = int(np.trunc(value * np.float32(8))) % 5, int(np.trunc(value * np.float32(8)))
            if row < 4 and -8 <= column < 8:
                want[row, column] += value
        assert np.array_equal(np.array(mx.compile(histogram)(x)), want)


@pytest.mark.parametrize(("size", "lane"), [(63, "none"), (64, "reduced")])
def test_a_few_updates_are_written_without_vectors(size: int, lane: str) -> None:
    def add(at: mx.array, x: mx.array) -> mx.array:
        return mx.zeros(9).at[at].add(mx.sin(x))

    (plan,) = plans_of(mx.compile(add), mx.arange(size) % 9, mx.ones(size))
    assert f"lane={lane}" in str(plan)
