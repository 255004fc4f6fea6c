"""Rows are folded in ways that take less time and give the bits of the definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.kernel import VIRTUAL_LANES

DTYPES = (mx.float32, mx.float64, mx.float16, mx.bfloat16)
LENGTHS = (5, 64, 100, 128, 333, 1030, 5000)


def rows_with_special_numbers(columns: int) -> np.ndarray:
    """Rows of zeros of both signs, of infinities, with NaNs of several patterns, and with other numbers."""
    rng = np.random.default_rng(columns)
    x = (rng.standard_normal((12, columns)) * 30).astype(np.float32)
    x[0] = np.where(rng.random(columns) < 0.5, -0.0, 0.0)
    x[1], x[2, columns // 2], x[3, ::3] = -np.inf, np.inf, -np.inf
    patterns = x.view(np.uint32)
    patterns[4, columns // 2], patterns[5, 0], patterns[5, -1] = 0x7FC00123, 0xFFC00001, 0x7FC001FF
    patterns[6] = 0x7FC00000 + rng.integers(0, 1 << 20, columns)
    x[7] *= 1e-3
    return x


def larger(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The merge that defines a maximum."""
    return np.where(np.isnan(a) | (a > b), a, b)


@pytest.mark.parametrize("columns", LENGTHS)
def test_a_maximum_has_the_bits_of_the_definition(columns: int) -> None:
    """Also which of several NaNs it is, and the sign of zero."""
    x = rows_with_special_numbers(columns)
    lanes = np.full((len(x), VIRTUAL_LANES), -np.inf, np.float32)
    for start in range(0, columns, VIRTUAL_LANES):
        here = x[:, start : start + VIRTUAL_LANES]
        lanes[:, : here.shape[1]] = larger(lanes[:, : here.shape[1]], here)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = larger(lanes[:, :half], lanes[:, half:])
    found = np.array(mx.max(mx.array(x), axis=-1))
    assert (found.view(np.uint32) == lanes[:, 0].view(np.uint32)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("bound", [lambda m: m, lambda m: mx.maximum(m, 1)], ids=["largest", "with another number"])
def test_powers_below_a_bound_have_the_bits_of_all_powers(
    dtype: mx.Dtype, columns: int, bound: Callable[[mx.array], mx.array]
) -> None:
    """Where the exponent is known not to be positive, other code computes the power."""
    x = mx.array(rows_with_special_numbers(columns)).astype(dtype)
    largest = bound(mx.max(x, axis=-1, keepdims=True))
    difference = x - largest
    mx.eval(difference)
    found = mx.compile(lambda x: mx.exp(x - bound(mx.max(x, axis=-1, keepdims=True))))(x)
    assert_same_bits(found, mx.exp(difference))


def test_only_the_same_numbers_are_known_to_be_bounded() -> None:
    """The maximum of other numbers, or what is subtracted from it, says nothing."""
    x, y = mx.array([[1.0, 2.0, 3.0]] * 20), mx.array([[0.0, 50.0, 80.0]] * 20)
    other = mx.compile(lambda x, y: mx.exp(y - mx.max(x, axis=-1, keepdims=True)))(x, y)
    turned = mx.compile(lambda x: mx.exp(mx.max(x, axis=-1, keepdims=True) - x))(y)
    assert_same_bits(other, mx.exp(mx.array([[-3.0, 47.0, 77.0]] * 20)))
    assert_same_bits(turned, mx.exp(mx.array([[80.0, 30.0, 0.0]] * 20)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", LENGTHS)
def test_sums_of_powers_have_the_bits_of_sums_of_stored_numbers(dtype: mx.Dtype, columns: int) -> None:
    x = (mx.random.normal((20, columns)) * 4).astype(dtype)
    powers = mx.exp(x)
    mx.eval(powers)
    found = mx.compile(lambda x: mx.sum(mx.exp(x), axis=-1))(x)
    assert_same_bits(found, mx.sum(powers, axis=-1))


@pytest.mark.parametrize("columns", [100, 128])
def test_powers_of_long_enough_rows_are_summed_in_a_pass_of_their_own(columns: int) -> None:
    plan = plans_of(mx.compile(lambda x: mx.softmax(x, axis=-1)), mx.random.normal((20, columns)))[-1]
    assert ("folds apart" in str(plan)) == (columns == 128)
