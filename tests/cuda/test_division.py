"""Division of rows by a number that all elements of the row share, on GPUs: rounded as every division is."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import to_numpy

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -3.0, 2.0**-149, -(2.0**-149), 3 * 2.0**-149, 2.0**-126, 9 * 2.0**-149, 3.4e38, np.inf, -np.inf],
    dtype=np.float32,
)


def quotients(x: mx.array, divisors: mx.array) -> mx.array:
    """Rows divided by the sums of other rows, in which all elements but one are zero."""
    return x / mx.sum(divisors, axis=-1, keepdims=True)


def check(numerators: np.ndarray, divisors: np.ndarray) -> None:
    x = np.resize(numerators, (divisors.size, numerators.size)).astype(np.float32)
    rows = np.zeros_like(x)
    rows[np.arange(divisors.size), np.arange(divisors.size) % numerators.size] = divisors
    with np.errstate(all="ignore"):
        wanted = x / (divisors + np.float32(0))[:, None]
    with mx.stream(mx.gpu):
        found = to_numpy(quotients(mx.array(x), mx.array(rows)))
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(wanted)[numbers])


def test_zeros_infinities_and_subnormal_numbers() -> None:
    check(SPECIAL, SPECIAL)


@pytest.mark.parametrize("lanes", [100, 128])
def test_any_numbers(rng: np.random.Generator, lanes: int) -> None:
    bits = rng.integers(0, 1 << 32, size=lanes + 70, dtype=np.uint32)
    numbers = bits.view(np.float32)
    check(numbers[:lanes], numbers[lanes:])


def test_ties_between_subnormal_numbers() -> None:
    """Quotients halfway between two subnormal numbers are exact before they are rounded."""
    numerators = (np.arange(1, 128, 2) * 3 * 2.0**-149).astype(np.float32)
    check(numerators, np.array([6.0, -6.0, 12.0, 24.0, 1.5 * 2.0**20], dtype=np.float32))


@pytest.mark.parametrize("exponents", [(-70, 70), (-149, 127)], ids=["in-range", "any"])
def test_rows_whose_elements_threads_have_at_once(rng: np.random.Generator, exponents: tuple[int, int]) -> None:
    """Numbers of such rows are divided in float32, except those for which that would round wrongly."""
    mantissas = rng.uniform(1, 2, size=2048) * rng.choice([-1.0, 1.0], size=2048)
    numerators = np.ldexp(mantissas, rng.integers(*exponents, size=2048)).astype(np.float32)
    if exponents[0] < -126:
        numerators[: SPECIAL.size] = SPECIAL
    check(numerators, np.array([3.0, -1.0000001, 1.9999999, 2.0**-30, 2.0**50, 2.0**-149, 0.0], dtype=np.float32))
