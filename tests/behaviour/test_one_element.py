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


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("widths", [(0, 99), (3, 50)])
@pytest.mark.parametrize("fold", [mx.sum, mx.softmax, mx.cumsum, mx.argmax])
def test_one_element_that_is_padded_and_kept(rows: int, widths: tuple[int, int], fold: object) -> None:
    """The kernel that folds the padded row also stores the row: once, not in each iteration of its loop."""
    values = np.arange(1, 1 + rows, dtype=np.float32)[:, None]
    held = mx.sqrt(mx.array(values))
    folded = fold(mx.pad(held, [(0, 0), widths]), axis=-1)  # type: ignore[operator]  # they are functions
    mx.eval(folded)
    assert held.tolist() == np.sqrt(values).tolist()
    padded = mx.array(np.pad(np.sqrt(values), [(0, 0), widths]))
    assert folded.tolist() == fold(padded, axis=-1).tolist()  # type: ignore[operator]  # as above


def test_a_view_by_strides_of_one_computed_element() -> None:
    x = mx.array([2.0])
    assert (mx.as_strided(x + 1, (1, 1), (1, 1), 0) * mx.array([3.0])).tolist() == [[9.0]]
    assert mx.convolve(x, mx.array([3.0])).tolist() == [6.0]
    assert mx.convolve(mx.array([2], mx.int32), x, mode="valid").tolist() == [4.0]
