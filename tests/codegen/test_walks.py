"""In which order the CPU goes over the elements of a kernel."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.cpu import schedule
from weft.compiler.cpu.lane_loops import MOST_TRANSPOSITIONS
from weft.compiler.cpu.loops import generate
from weft.compiler.cpu.schedule import CpuSchedule
from weft.runtime.host import host


@pytest.mark.parametrize("axes", [(0, 3, 1, 2), (3, 0, 1, 2), (3, 1, 0, 2)], ids=str)
def test_a_transposed_array_is_read_in_tiles_wherever_its_last_axis_goes(
    axes: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Zeros around the result prevent that its axes are merged, so neighbours in memory may be neighbours along any of
    the row axes."""
    x = mx.array(rng.normal(size=(4, 30, 24, 40)).astype(np.float32))
    around = ((0, 0), (1, 0), (1, 1), (2, 1))

    def padded(x: mx.array) -> mx.array:
        return mx.pad(mx.transpose(x, axes), around)

    with mx.stream(mx.cpu):
        (plan,) = plans_of(padded, x)
        assert "tiled" in str(plan)
        np.testing.assert_array_equal(np.array(padded(x)), np.pad(np.transpose(np.array(x), axes), around))


@pytest.mark.parametrize("count", [MOST_TRANSPOSITIONS, 30])
def test_code_that_transposes_many_arrays_is_written_once(count: int) -> None:
    arrays = [((mx.arange(30 * 37) * (k + 1)) % 11).reshape(30, 37).astype(mx.float32) for k in range(count)]
    others = [(x + 3).astype(mx.int32) for x in arrays[:3]]

    def total(start: mx.array, *arrays: mx.array) -> mx.array:
        return sum([x.T.astype(mx.float32) for x in arrays], start)

    with mx.stream(mx.cpu):
        start = mx.zeros((37, 30))
        (plan,) = plans_of(total, start, *arrays, *others)
        expected = sum([np.array(x).T for x in [*arrays, *others]])
        np.testing.assert_array_equal(np.array(total(start, *arrays, *others)), expected)
    (record,) = plan.describe().records
    assert record.launch is not None
    chosen = host.target.schedule(record.launch)
    assert isinstance(chosen, CpuSchedule)
    assert len(chosen.transposed) == count + len(others)
    assert generate(record.launch.kernel, chosen, "kernel").count("shufflevector") <= 64 * (MOST_TRANSPOSITIONS + 4)


@pytest.mark.parametrize("kinds", [("uint8",), ("int16", "bool_"), ("float64", "uint8"), ("complex64",)], ids=str)
def test_tiles_hold_any_number_of_rows_and_lanes(kinds: tuple[str, ...], rng: np.random.Generator) -> None:
    """Also fewer than are read at once, and for elements of several sizes."""
    for shape in [(1, 5), (3, 70), (8, 4), (15, 33), (16, 31), (32, 16), (63, 129), (130, 65)]:
        arrays = [mx.array(rng.integers(0, 2, shape)).astype(getattr(mx, kind)) for kind in kinds]
        with mx.stream(mx.cpu):
            total = sum([x.T.astype(mx.complex64) for x in arrays])
            np.testing.assert_array_equal(np.array(total), sum([np.array(x).T.astype(np.complex64) for x in arrays]))


@pytest.mark.parametrize(
    ("threads", "columns", "units"), [(2, 256, 4), (8, 256, 8), (16, 256, 16), (64, 256, 16), (64, 16, 1)]
)
def test_folds_along_rows_have_a_unit_for_each_thread(
    threads: int, columns: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that have little work are no shorter than a vector."""
    monkeypatch.setattr(schedule, "thread_count", lambda: threads)

    def folded(x: mx.array) -> mx.array:
        for _ in range(30):
            x = mx.sqrt(x)
        return mx.sum(x, 0)

    with mx.stream(mx.cpu):
        (plan,) = plans_of(folded, mx.ones((128, columns)))
    (record,) = plan.describe().records
    assert record.units == units
