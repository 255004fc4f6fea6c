"""Reductions over nothing, or over axes of one element, beside other reductions in the same kernel."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (1, 1)])
def test_a_sum_over_nothing_is_not_repeated_by_its_neighbour(shape: tuple[int, ...]) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    inner = mx.logsumexp(mx.array(x))
    expected = np.log(np.exp(x).sum())
    np.testing.assert_allclose(np.array(inner.sum()), expected, rtol=1e-6)
    np.testing.assert_allclose(np.array(mx.mean(inner)), expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", [mx.sum, mx.prod, mx.max, mx.min, mx.all, mx.any, mx.argmax, mx.argmin])
def test_one_element(reduction: object) -> None:
    x = mx.array([[2.0], [3.0]])
    name = reduction.__name__  # type: ignore[attr-defined]  # they are functions
    result = reduction(x, axis=1)  # type: ignore[operator]  # they are functions
    assert result.tolist() == getattr(np, name)(np.array([[2.0], [3.0]]), axis=1).tolist()
