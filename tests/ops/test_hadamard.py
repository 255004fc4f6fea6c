"""The Walsh-Hadamard transform: its matrices, and lengths that are unknown when it is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits

ORDERS = (1, 2, 8, 12, 20, 24, 28, 40, 56, 64, 96, 128)


@pytest.mark.parametrize("order", ORDERS)
def test_the_matrix(order: int) -> None:
    matrix = np.array(mx.hadamard_transform(mx.eye(order), 1.0))
    assert set(matrix.ravel()) <= {1.0, -1.0}
    np.testing.assert_array_equal(matrix @ matrix.T, order * np.eye(order))


@pytest.mark.parametrize("order", ORDERS)
def test_the_matrix_is_that_of_mlx(mlx: Any, order: int) -> None:
    ours, theirs = mx.hadamard_transform(mx.eye(order), 1.0), mlx.hadamard_transform(mlx.eye(order), 1.0)
    np.testing.assert_array_equal(np.array(ours), np.array(theirs))


def test_the_usual_scale_and_half_precision(rng: np.random.Generator) -> None:
    """Half precision is computed in float32 and rounded only at the end."""
    x = mx.array(rng.normal(size=(3, 512)).astype(np.float16))
    assert_same_bits(mx.hadamard_transform(x), mx.hadamard_transform(x.astype(mx.float32)).astype(mx.float16))
    exact = np.array(mx.hadamard_transform(x.astype(mx.float64)))
    np.testing.assert_allclose(np.array(mx.hadamard_transform(x)), exact, rtol=0.501 * 2**-10, atol=1e-6)
    np.testing.assert_allclose((exact**2).sum(), (np.array(x).astype(np.float64) ** 2).sum(), rtol=1e-12)


def test_shapeless_serves_all_lengths(rng: np.random.Generator) -> None:
    compiled = mx.compile(lambda x: mx.hadamard_transform(x), shapeless=True)
    for length in (4, 1, 8, 12, 40, 256, 28):
        x = mx.array(rng.normal(size=(2, length)).astype(np.float32))
        assert_same_bits(compiled(x), mx.hadamard_transform(x))
    with pytest.raises(ValueError, match="the last axis has 3 elements"):
        compiled(mx.zeros((2, 3)))


@pytest.mark.parametrize("length", [0, 3, 36 + 1, 60])
def test_other_lengths_are_errors(length: int) -> None:
    with pytest.raises(ValueError, match=rf"The last axis has {length} elements .* m = 1, 12, 20 or 28"):
        mx.hadamard_transform(mx.zeros((2, length)))
