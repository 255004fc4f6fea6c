"""One update of each row, of equal elements, becomes a choice in the kernel that uses it; other updates are
scattered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.primitives as p
from tests.checks import assert_same_bits

JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "set": lambda old, new: new,
}


def scattered(
    fill: float, updates: np.ndarray, indices: np.ndarray, extent: int, mode: str, outside: str
) -> tuple[mx.array, np.ndarray]:
    """The result of scattering updates along the last axis, by Weft and by a loop."""
    shape = (*updates.shape[:-1], extent)
    places = [p.iota(shape=indices.shape, axis=axis, dtype=mx.int32) for axis in range(indices.ndim - 1)]
    x = mx.broadcast_to(mx.array(fill), shape)
    ones = (1,) * len(shape)
    result: Any = p.scatter(
        x,
        *places,
        mx.array(indices),
        mx.array(updates).reshape(*updates.shape, *ones),
        axes=tuple(range(len(shape))),
        mode=mode,
        outside=outside,
    )
    wanted = np.full(shape, fill, updates.dtype)
    for place in np.ndindex(*indices.shape):
        index = indices[place] + extent * (indices[place] < 0)
        if 0 <= index < extent or outside == "nearest":
            at = (*place[:-1], min(max(index, 0), extent - 1))
            wanted[at] = JOINED[mode](wanted[at], updates[place])
    return result, wanted


@pytest.mark.parametrize("outside", ["nearest", "nowhere"])
@pytest.mark.parametrize("mode", JOINED)
def test_values(rng: np.random.Generator, mode: str, outside: str) -> None:
    """With indices inside, negative ones and some outside, and updates of -0."""
    for shape in ((5, 1), (2, 3, 1)):
        updates = np.where(rng.random(shape) < 0.3, -0.0, rng.normal(size=shape)).astype(np.float32)
        for fill in (0.0, 1.5):
            found, wanted = scattered(fill, updates, rng.integers(-9, 9, shape).astype(np.int32), 6, mode, outside)
            assert np.array(found).tobytes() == wanted.tobytes()


def names(function: Any, *arrays: mx.array) -> str:
    return " ".join(step.name for step in mx.compile(function).explain(*arrays).steps)


def test_the_gradient_of_a_cross_entropy_has_no_array_of_zeros() -> None:
    x, y = mx.random.normal((32, 500)), mx.arange(32)
    gradient = mx.grad(lambda x: nn.losses.cross_entropy(x, y, reduction="mean"))
    assert "scatter" not in names(gradient, x)
    assert_same_bits(mx.compile(gradient)(x), gradient(x))


def test_several_updates_of_a_row_are_scattered() -> None:
    x, y = mx.random.normal((8, 50)), mx.array([[3, 3]] * 8)
    assert "scatter" in names(mx.grad(lambda x: mx.square(mx.take_along_axis(x, y, axis=1)).sum()), x)
    assert "scatter" in names(lambda x: x.at[mx.arange(8), y[:, 0]].add(1.0), x)


def test_what_was_converted_is_taken_before(rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=(300, 400))).astype(mx.bfloat16)
    y = mx.array(rng.integers(0, 400, (300, 1)))

    def taken(x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        return mx.logsumexp(wide, axis=1) - mx.take_along_axis(wide, y, axis=1)[:, 0]

    assert mx.compile(taken).explain(x).temporary_bytes < 300 * 400
    assert_same_bits(taken(x), taken(mx.array(np.array(x.astype(mx.float32))).astype(mx.bfloat16)))
    wide = np.array(x.astype(mx.float32))
    assert np.allclose(
        np.array(taken(x)), np.logaddexp.reduce(wide, axis=1) - np.take_along_axis(wide, np.array(y), 1)[:, 0]
    )
