"""Rows whose interior has a loop of its own, without masks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.cpu.loops import generate
from weft.compiler.cpu.schedule import CpuSchedule
from weft.runtime.executor import set_thread_count, thread_count
from weft.runtime.host import host


def schedules_of(function: Any, *arguments: mx.array) -> list[tuple[CpuSchedule, str]]:
    """The schedules of all kernels that a function needs, and their LLVM IR."""
    with mx.stream(mx.cpu):
        plans = plans_of(function, *arguments)
    launches = [record.launch for plan in plans for record in plan.describe().records if record.launch is not None]
    found = []
    for launch in launches:
        schedule = host.target.schedule(launch)
        assert isinstance(schedule, CpuSchedule)
        found.append((schedule, generate(launch.kernel, schedule, "kernel")))
    return found


def neighbours(x: Any, pad: Any) -> Any:
    p = pad(x, [(0, 0), (1, 1), (1, 1)])
    return p[:, 2:, 1:-1] + p[:, :-2, 1:-1] - 2 * p[:, 1:-1, 2:] * p[:, 1:-1, :-2]


@pytest.mark.parametrize("columns", [1, 13, 14, 15, 30, 61, 62, 63, 64, 65, 78, 79, 130])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex64", "int8", "int64", "bool_"])
def test_sums_of_neighbours(columns: int, dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(-3, 4, (3, 7, columns))
    if dtype == "bool_":
        expected = np.pad(x != 0, [(0, 0), (1, 1), (1, 1)])
        p = mx.pad(mx.array(x != 0), [(0, 0), (1, 1), (1, 1)])
        found = p[:, 2:, 1:-1] | p[:, 1:-1, :-2]
        np.testing.assert_array_equal(np.array(found), expected[:, 2:, 1:-1] | expected[:, 1:-1, :-2])
        return
    function = mx.compile(lambda x: neighbours(neighbours(x, mx.pad), mx.pad))
    found = function(mx.array(x).astype(getattr(mx, dtype)))
    with np.errstate(over="ignore"):
        wanted = neighbours(neighbours(x, np.pad), np.pad)
    if dtype == "int8":
        wanted = wanted.astype(np.int8)
    np.testing.assert_array_equal(np.array(found.astype(mx.float32 if dtype == "float16" else found.dtype)), wanted)


@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 70),
    st.integers(0, 150),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_two_arrays_with_zeros_around_them(
    before: int, after: int, other: int, columns: int, above: int, rows: int
) -> None:
    """The interior is where both are, and there may be none."""
    extent = before + columns + after
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) + 1
    y = np.arange((rows + above) * max(extent - other, 0), dtype=np.float32).reshape(rows + above, -1) + 1
    around = [(above, 0), (before, after)], [(0, 0), (extent - y.shape[1], 0)]
    found = mx.pad(mx.array(x), around[0]) * 3 + mx.pad(mx.array(y), around[1]) * 2
    np.testing.assert_array_equal(np.array(found), np.pad(x, around[0]) * 3 + np.pad(y, around[1]) * 2)


def test_blocks_of_a_long_row(rng: np.random.Generator) -> None:
    """Threads do a block of lanes each, whose interior ends where the block does."""
    x = rng.normal(size=(2, 300_001)).astype(np.float32)
    p = np.pad(x, [(0, 0), (40_000, 3)])
    q = mx.pad(mx.array(x), [(0, 0), (40_000, 3)])
    np.testing.assert_array_equal(np.array(q[:, 1:] * q[:, :-1]), p[:, 1:] * p[:, :-1])


def test_an_interior_has_no_masks(rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=(4, 9, 80)).astype(np.float32))
    found = [pair for pair in schedules_of(lambda x: neighbours(x, mx.pad), x) if pair[0].has_interior]
    assert found
    for schedule, text in found:
        assert "interior apart" in schedule.text
        masked = len(re.findall(r"= call <16 x float> @llvm.masked.load", text))
        plain = len(re.findall(r"= load <16 x float>", text))
        assert masked == 2 * plain > 0  # in whole vectors at both ends, which share their code, and in the rest


@pytest.mark.parametrize(
    "around",
    [[(0, 0), (0, 0), (200, 200)], [(0, 0), (0, 0), (190, 210)]],
    ids=["half of the lanes", "less"],
)
def test_short_interiors_and_short_rows_have_no_loop(around: Any, rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=(4, 9, 80)).astype(np.float32))
    assert not any(one.has_interior for one, _ in schedules_of(lambda x: mx.pad(x, around) + 1, x))
    short = mx.array(rng.normal(size=(4, 9, 60)).astype(np.float32))
    assert not any(
        one.has_interior for one, _ in schedules_of(lambda x: mx.pad(x, [(0, 0), (0, 0), (1, 1)]) + 1, short)
    )


def test_parts_that_exclude_each_other_have_no_interior(rng: np.random.Generator) -> None:
    x, y = (mx.array(rng.normal(size=(4, 100)).astype(np.float32)) for _ in range(2))
    assert not any(one.has_interior for one, _ in schedules_of(lambda x, y: mx.concatenate([x, y], 1) + 1, x, y))


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("shape", [(5, 3, 70), (2, 3, 5, 70), (1, 1, 1000), (7, 1, 2, 3, 17), (30, 4_000)])
def test_rows_of_several_axes(shape: tuple[int, ...], threads: int, rng: np.random.Generator) -> None:
    """Units begin and end anywhere in the rows of the last axis."""
    x = rng.normal(size=tuple(extent + 1 for extent in shape)).astype(np.float32)
    inner, outer = tuple(slice(1, None) for _ in shape), tuple(slice(None, -1) for _ in shape)
    y, before = mx.array(x), thread_count()
    try:
        set_thread_count(threads)
        found = np.array(y[inner] * 2 + y[outer])
    finally:
        set_thread_count(before)
    np.testing.assert_array_equal(found, x[inner] * 2 + x[outer])
