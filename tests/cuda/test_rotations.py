"""What is made of rotated arrays is made in boxes on GPUs too, of slices, and no rotated array is in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from tests.cuda.device import BlocksEngine
from tests.cuda.test_kernels import same_bits


@pytest.fixture(autouse=True)
def smaller_boxes(engine: BlocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small grids are cut as well: simulated blocks take their time."""
    assert engine.target.limits.most_boxes > 9
    monkeypatch.setattr(engine.target, "limits", replace(engine.target.limits, box_elements=1 << 12))


def test_neighbours_on_a_line(rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=13_000).astype(np.float32))

    def difference(x: mx.array) -> mx.array:
        return mx.roll(x, 1) - 2 * x + mx.roll(x, -1)

    assert same_bits(difference, x)
    with mx.stream(mx.gpu):
        (plan,) = plans_of(difference, x)
    assert (plan.steps.count, plan.arena) == (3, 0)


def test_neighbours_on_a_grid(rng: np.random.Generator) -> None:
    x, y = (mx.array(rng.normal(size=(200, 190)).astype(np.float32)) for _ in range(2))

    def step(x: mx.array, y: mx.array) -> mx.array:
        around = mx.roll(x, 1, 0) + mx.roll(x, -1, 0) + mx.roll(x, 1, 1) + mx.roll(x, -1, 1) - 4 * x
        return x + around * y

    assert same_bits(step, x, y)
    with mx.stream(mx.gpu):
        (plan,) = plans_of(step, x, y)
    assert (plan.steps.count, plan.arena) == (9, 0)


def test_boxes_that_are_too_small(engine: BlocksEngine, rng: np.random.Generator) -> None:
    """Launching kernels for them would take longer than copying what is rotated."""
    x = mx.array(rng.normal(size=12_000).astype(np.float32))
    with mx.stream(mx.gpu):
        (plan,) = plans_of(lambda x: mx.roll(x, 1) - 2 * x + mx.roll(x, -1), x)
    assert plan.arena > 0
