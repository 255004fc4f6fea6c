"""Accesses of short rows that move alike share their offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.cpu.schedule import row_schedule_of, schedule_of
from weft.compiler.kernel import Launch


def weighted(x: Any, w: Any) -> Any:
    """Each row is the sum of five rows, with the weights of a row each."""
    return sum(w[..., i : i + 1] * x[:, i : i + w.shape[1]] for i in range(5))


def launch_of(*arguments: mx.array) -> Launch:
    """The only kernel that sums of rows need."""
    with mx.stream(mx.cpu):
        plans = plans_of(mx.compile(weighted), *arguments)
    (launch,) = [record.launch for plan in plans for record in plan.describe().records]
    assert launch is not None
    return launch


@pytest.mark.parametrize(("lanes", "shared"), [(3, True), (16, True), (40, True), (128, True), (129, False)])
def test_slices_of_one_array(lanes: int, shared: bool, rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(3, 13, lanes)).astype(np.float32), rng.normal(size=(3, 9, 5)).astype(np.float32)
    assert (len(schedule_of(launch_of(mx.array(x), mx.array(w))).alike) > 7) is shared
    np.testing.assert_allclose(np.array(weighted(mx.array(x), mx.array(w))), weighted(x, w), rtol=1e-5, atol=1e-5)


def test_a_call_that_runs_the_kernel_changes_strides() -> None:
    """Where the kernel is attached to a product, say, and reads rectangles of its result in scratch memory."""
    launch = launch_of(mx.zeros((3, 13, 16)), mx.zeros((3, 9, 5)))
    attached = row_schedule_of(launch)
    assert attached is not None
    assert attached.alike == ()


def test_the_same_kernel_with_other_strides(rng: np.random.Generator) -> None:
    """What moves alike in one launch need not in the next, whose kernel has the same text."""

    def total(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a * b - c * d

    compiled = mx.compile(total)
    for parts in [(0, 0, 0, 0), (0, 1, 2, 3), (1, 1, 0, 0), (3, 0, 0, 1)]:
        large = [rng.normal(size=(4, 6 + part, 20 + 3 * part)).astype(np.float32) for part in parts]
        arrays = [mx.array(x) for x in large]
        cut, wanted = [[x[:, :6, 1:20] for x in kind] for kind in (arrays, large)]
        np.testing.assert_allclose(np.array(compiled(*cut)), total(*wanted), rtol=1e-5, atol=1e-5)
