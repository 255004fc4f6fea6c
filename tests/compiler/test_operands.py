"""Operands of products whose axes go over several axes in memory: they are read where the product was chosen to read
them, whatever else is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx

_RANDOM = np.random.default_rng(0)
_ARRAYS = _RANDOM.standard_normal((3, 16, 20)).astype(np.float32)
_LEFT = _RANDOM.standard_normal((2, 16)).astype(np.float32)
_ROWS = np.array([2, 0, 1, 2])


@pytest.mark.parametrize(
    "others",
    [lambda m: m, lambda m: mx.sum(m, axis=0), lambda m: m.T @ mx.ones((m.shape[0], 2))],
    ids=["stored", "folded", "multiplied"],
)
@pytest.mark.parametrize("taken", [False, True], ids=["input", "gathered"])
def test_a_view_of_an_operand_is_also_needed_elsewhere(taken: bool, others: Callable[[mx.array], mx.array]) -> None:
    def multiplied(x: mx.array, left: mx.array) -> tuple[mx.array, mx.array]:
        matrix = mx.swapaxes(x[mx.array(_ROWS)] if taken else x, 1, 2).reshape(-1, 16)
        return left @ matrix.T, others(matrix)

    found, other = mx.compile(multiplied)(mx.array(_ARRAYS), mx.array(_LEFT))
    matrix = (_ARRAYS[_ROWS] if taken else _ARRAYS).swapaxes(1, 2).reshape(-1, 16)
    np.testing.assert_allclose(np.array(found), _LEFT @ matrix.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(other), np.array(others(mx.array(matrix))), rtol=1e-4, atol=1e-5)


def test_a_gradient_whose_forward_pass_is_kept() -> None:
    x, weights, along = mx.array(_ARRAYS[:, :, :16]), mx.array(_ARRAYS[:, :2, :16]), mx.array(_LEFT[0, :2])
    kept, (found,) = mx.vjp(lambda x: mx.einsum("abb,acb->c", x, weights), [x], [along])
    expected = np.zeros((3, 16, 16), np.float32)
    expected[:, range(16), range(16)] = np.einsum("acb,c->ab", _ARRAYS[:, :2, :16], _LEFT[0, :2])
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-5)
    assert kept[0].shape == (2,)
