"""Kernels for arrays that are in no cache, tried with small ones: prefetches, stores past the caches and the costs of
distant accesses change no value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from weft.compiler.cpu import kinds, schedule
from weft.compiler.running import evaluate

ROWS = 37

PROGRAMS: dict[str, Callable[[mx.array, mx.array, mx.array], mx.array]] = {
    "taken": lambda x, y, i: x[i] * 2 + y,
    "taken and normalised": lambda x, y, i: mx.softmax(x[i] + y, axis=-1),
    "added": lambda x, y, i: x.at[i].add(y),
    "gradient of what is taken": lambda x, y, i: mx.grad(lambda x: (mx.sin(x[i]) * y).sum())(x),
    "transposed": lambda x, y, i: mx.exp(x.T).sum(0) + y[:, 0],
    "reversed": lambda x, y, i: x[::-1, ::-1] - y,
    "stacked": lambda x, y, i: mx.stack([x[i, 0], y[:, -1], x[:, 0]], axis=-1),
    "padded": lambda x, y, i: mx.pad(x[i], [(1, 1), (2, 0)]) + 1,
    "differences": lambda x, y, i: mx.grad(lambda x: mx.abs(x[1:] - x[:-1]).sum())(x[i] + y),
    "columns": lambda x, y, i: mx.concatenate([x[:, :1] * y[:, -1:], x], axis=1),
}


@pytest.mark.parametrize("columns", [1, 3, 5, 8, 13, 16, 21])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_small_arrays(name: str, columns: int, rng: np.random.Generator) -> None:
    x, y = (mx.array(rng.normal(size=(ROWS, columns)), mx.float32) for _ in range(2))
    numbers = mx.array(rng.integers(0, ROWS, ROWS))
    evaluate.forget_plans()
    wanted = PROGRAMS[name](x, y, numbers)
    mx.eval(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "DISTANT_BYTES", 1)
        for limit in ("FAR_BYTES", "STREAM_BYTES"):
            patch.setattr(kinds, limit, 1)
        evaluate.forget_plans()
        found = PROGRAMS[name](x, y, numbers)
        mx.eval(found)
    evaluate.forget_plans()
    assert_same_bits(found, wanted)
