"""Passes over the planned graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx

A = mx.arange(30.0).reshape(5, 6)
B = mx.arange(42.0).reshape(6, 7)


def product_of(f: Callable[..., Any]) -> list[str]:
    """The loops of the products that are computed; the values are those of NumPy."""
    arrays = mx.array(A), mx.array(B)
    mx.eval(arrays)
    found = mx.compile(f)(*arrays)
    expected = f(np.array(A), np.array(B))
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(result), wanted)
    return [step.loops for step in mx.compile(f).explain(*arrays).calls]


@pytest.mark.parametrize(
    ("f", "loops"),
    [
        (lambda a, b: ((a @ b).T * 2,), ["7x5x[6]"]),
        (lambda a, b: ((a @ b).T.T * 2,), ["5x7x[6]"]),
        (lambda a, b: ((a @ b).T * 2, (a @ b) * 3), ["5x7x[6]"]),
        (lambda a, b: ((a @ b).T.T * 2, (a @ b).T.sum()), ["7x5x[6]"]),
    ],
    ids=["alone", "twice", "the product is used too", "the transpose is used too"],
)
def test_a_product_is_computed_once_as_it_is_wanted(f: Callable[..., Any], loops: list[str]) -> None:
    assert product_of(f) == loops
