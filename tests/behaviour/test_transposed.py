"""Operands that are contiguous along another axis than the result."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx

SHAPES = [(3, 5), (16, 16), (17, 33), (40, 15), (2, 7), (100, 31), (31, 100), (1, 9)]
DTYPES = ["float32", "float64", "int8", "bool_", "complex64", "float16", "bfloat16", "int64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_adding_a_transposed_array(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    x = mx.array(rng.integers(0, 2, shape)).astype(getattr(mx, dtype))
    y = mx.array(rng.integers(0, 2, shape[::-1])).astype(getattr(mx, dtype))
    mx.eval(x, y)
    result = (x + y.T).astype(mx.float32)
    expected = (x + mx.contiguous(y.T)).astype(mx.float32)
    assert result.tolist() == expected.tolist()
    small = np.array(x.astype(mx.float32)) + np.array(y.astype(mx.float32)).T
    if dtype == "bool_":
        small = np.minimum(small, 1)
    assert result.tolist() == small.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16", "complex64"])
@pytest.mark.parametrize("shape", [(16, 16), (17, 33), (40, 15), (100, 31), (35, 600)])
def test_folding_along_the_contiguous_axis(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    """Results have the bits of those of an array whose lanes are contiguous."""
    x = mx.array((rng.standard_normal(shape) * 50).astype(np.float32)).astype(getattr(mx, dtype))
    y = mx.array((rng.standard_normal(shape) * 50).astype(np.float32)).astype(getattr(mx, dtype))
    mx.eval(x, y)
    for fold in (mx.sum, mx.max, mx.argmin, mx.cumsum, lambda z, axis: mx.sum(z * y.T, axis=axis)):
        got, want = fold(x.T, axis=0), fold(mx.contiguous(x.T), axis=0)
        assert np.array(got).tobytes() == np.array(want).tobytes()


def test_three_axes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 18, 20)).astype(np.float32)
    y = rng.standard_normal((20, 5, 18)).astype(np.float32)
    result = mx.array(x) * mx.exp(mx.array(y).transpose(1, 2, 0))
    np.testing.assert_allclose(np.array(result), x * np.exp(y.transpose(1, 2, 0)), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_routine_reads_a_broadcast_of_what_no_strides_describe(compiled: bool, rng: np.random.Generator) -> None:
    """The copy has the elements before the broadcast; a sort needs rows that are completely in memory."""
    x = rng.normal(size=(8, 3, 2))
    flat = np.moveaxis(x, 0, 1).reshape(3, 16)

    def function(x: mx.array) -> mx.array:
        return mx.sort(mx.broadcast_to(mx.moveaxis(x, 0, 1).reshape(3, 16)[None], (4, 3, 16)))

    got = (mx.compile(function) if compiled else function)(mx.array(x, mx.float64))
    assert np.array_equal(np.array(got), np.broadcast_to(np.sort(flat), (4, 3, 16)))
