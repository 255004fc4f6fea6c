"""Kernels that are written in a special way for their shape give the results of the general ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.math import MathLanes
from weft.compiler.cpu import kinds
from weft.compiler.cpu import schedule as schedules
from weft.compiler.cpu.memory import load_first_bytes, store_first_bytes
from weft.compiler.cpu.side_by_side import lanes_in_turn
from weft.compiler.fusion import builder
from weft.compiler.passes import SHORT_ROW
from weft.compiler.running import evaluate
from weft.primitives import reductions


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return values


def plan_text(function: Callable[[mx.array], mx.array], x: mx.array) -> str:
    """The text of the plan for a function of one array."""
    return "\n".join(map(str, plans_of(function, x)))


def softmax(x: mx.array) -> mx.array:
    return mx.softmax(x, axis=-1)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 1000, SHORT_ROW - 1, SHORT_ROW])
@pytest.mark.parametrize("dtype", [mx.float16, mx.float32, mx.float64], ids=str)
def test_keeping_values_changes_no_bit(columns: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.array(normal(20, columns), dtype=dtype)
    kept = np.array(softmax(x))
    assert "short rows" in plan_text(softmax, x) or columns == 1
    monkeypatch.setattr(schedules, "SHORT_ROW", 0)
    evaluate.forget_plans()
    assert "short rows" not in plan_text(softmax, x)
    np.testing.assert_array_equal(kept, np.array(softmax(x)))


@pytest.mark.parametrize("columns", [2, 3, 4])
@pytest.mark.parametrize("dtype", [mx.bool_, mx.float16, mx.float32, mx.complex64], ids=str)
def test_lanes_beside_a_short_axis_change_no_bit(
    columns: int, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = mx.array(normal(columns)).astype(dtype)

    def scaled(x: mx.array) -> mx.array:
        return mx.where(factor != 0, x[:, ::-1] * factor + x, x.T.reshape(x.shape))

    x = mx.array(normal(35, columns) * 3).astype(dtype)
    beside = np.array(scaled(x).astype(mx.complex64))
    assert f"({columns},) () 35" in plan_text(scaled, x)
    monkeypatch.setattr(builder, "NARROW_LANES", 0)
    evaluate.forget_plans()
    assert f"(35,) () {columns}" in plan_text(scaled, x)
    np.testing.assert_array_equal(beside, np.array(scaled(x).astype(mx.complex64)))


def test_long_rows_are_not_kept_on_the_stack() -> None:
    x = mx.array(normal(20, SHORT_ROW + 1))
    assert "short rows" not in plan_text(softmax, x)


@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8, mx.float16, mx.float32, mx.int64, mx.complex64], ids=str)
@pytest.mark.parametrize("columns", [80, 61], ids=["aligned", "odd"])
def test_streaming_changes_no_bit(dtype: mx.Dtype, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(x: mx.array) -> mx.array:
        return mx.concatenate([x + x, x * x, x.T.reshape(x.shape)], axis=1)

    x = mx.array(normal(40, columns) * 3).astype(dtype)
    plain = np.array(pieces(x).astype(mx.complex64))
    monkeypatch.setattr(kinds, "STREAM_BYTES", 0)
    assert ("streamed" in plan_text(pieces, x)) == (columns == 80)
    evaluate.forget_plans()
    np.testing.assert_array_equal(plain, np.array(pieces(x).astype(mx.complex64)))


def test_large_results_are_streamed() -> None:
    x = mx.array(normal(1 << 12, 1 << 10))
    assert "streamed" in plan_text(lambda x: x + 1, x)
    assert "streamed" not in plan_text(lambda x: x[:100] + 1, x)
    np.testing.assert_array_equal(np.array(x + 1), np.array(x) + 1)


OF_BYTES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x[1:] * x[0] + x[1:, :1],
    "moved lanes": lambda x: (x[:, 1:] > x[:, :-1]) & (x[:, 1:] != x[:, :1]),
}


@pytest.mark.parametrize("name", OF_BYTES)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16"])
def test_turns_of_more_vectors_change_no_element(name: str, dtype: str) -> None:
    numbers = np.random.default_rng(0).integers(0, 200, (4, 149)).astype(dtype)
    x, function = mx.array(numbers), OF_BYTES[name]
    [plan] = plans_of(function, x)
    lanes = [lanes_in_turn(record.launch.kernel) for record in plan.describe().records if record.launch is not None]
    assert max(lanes) == (16 if dtype == "int16" else 64)
    np.testing.assert_array_equal(np.array(function(x)), function(numbers))


def test_first_bytes_are_copied_and_no_others() -> None:
    e = Emitter()
    lanes = MathLanes(e, 16)
    vector = load_first_bytes(lanes, "%source", "%count")
    store_first_bytes(lanes, vector, "%target", "%count")
    e.store("<16 x i8>", vector, e.assign("getelementptr i8, ptr %target, i64 16"))
    text = module([e], [e.function("first_bytes", "ptr %source, ptr %target, i64 %count")])
    address = loading.load(text, lambda: text, ("first_bytes",), lasting=False)["first_bytes"]
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    source = np.arange(1, 17, dtype=np.uint8)
    for count in range(1, 16):
        target = np.full(32, 255, np.uint8)
        copy(source.ctypes.data, target.ctypes.data, count)
        first = source[:count].tolist()
        assert target.tolist() == first + [255] * (16 - count) + first + [0] * (16 - count)


SWEEP_OUTER: dict[str, Callable[[mx.array], mx.array]] = {
    "sum": lambda x: x.sum(axis=0),
    "maximum": lambda x: x.max(axis=0),
    "argmin": lambda x: mx.argmin(x, axis=0),
    "of an expression": lambda x: mx.exp(x * x[0] + 1).sum(axis=0) / 3,
    "with what differs by lane and row": lambda x: (x - x[3] * x[:, :1]).sum(axis=0) * x[2] + x[1, 1],
    "complex": lambda x: (x + 1j).sum(axis=0),
    "middle axis": lambda x: x.reshape(5, -1, x.shape[1]).max(axis=1),
    "scan of a middle axis": lambda x: mx.cumsum(x.reshape(5, -1, x.shape[1]), axis=1, reverse=True),
    "scattered rows": lambda x: x.at[mx.array([3, 1, 3, 0, 49, 3, -2, 1, 50])].add(x[:9] * 3),
}


@pytest.mark.parametrize("columns", [16, 17, 40, 1024, 2500])
@pytest.mark.parametrize("name", SWEEP_OUTER)
def test_sweeps_outside_change_no_bit(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = SWEEP_OUTER[name], mx.array(normal(50, columns))
    assert ("sweep outer" in plan_text(function, x)) == (columns > 16)
    outer = np.array(function(x))
    monkeypatch.setattr(schedules, "SWEEP_OUTER_ROWS", 1 << 30)
    assert "sweep outer" not in plan_text(function, x)
    np.testing.assert_array_equal(outer, np.array(function(x)))


@pytest.mark.parametrize("columns", [40, 2500])
@pytest.mark.parametrize("name", SWEEP_OUTER)
def test_rows_one_after_the_other_change_no_bit(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of one row after the other, as used for rows that are too large for caches, give the same bits."""
    function, x = SWEEP_OUTER[name], mx.array(normal(50, columns))
    together = np.array(function(x))
    monkeypatch.setattr(kinds, "STREAM_BYTES", 0)
    monkeypatch.setattr(schedules, "PAGE", 0)
    assert "row by row" in plan_text(function, x)
    np.testing.assert_array_equal(together, np.array(function(x)))


@pytest.mark.parametrize(("columns", "units"), [(256, 16), (1000, 4)])
def test_blocks_of_lanes_of_rows_that_are_stored_and_folded(
    columns: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin at whole vectors are cut, so that there is work for many threads."""
    monkeypatch.setattr(schedules, "thread_count", lambda: 2)

    def function(x: mx.array) -> tuple[mx.array, mx.array]:
        positive = mx.where(x > 0, x * 2, 0)
        return positive, positive.sum(axis=0)

    x = mx.array(normal(1024, columns))
    (plan,) = plans_of(function, x)
    assert plan.steps.rows()[0][2] == units
    cut = list(map(np.array, function(x)))
    monkeypatch.setattr(schedules, "SHORTEST_FOLDED", 1 << 30)
    (plan,) = plans_of(function, x)
    assert plan.steps.rows()[0][2] == 4
    for first, second in zip(cut, map(np.array, function(x)), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("rows", "grain"), [(1024, 364), (4096, 99)])
def test_large_operands_are_work(rows: int, grain: int) -> None:
    """A thread takes fewer rows at once if it waits for memory."""
    (plan,) = plans_of(lambda x: x[:, :60] + 1, mx.array(normal(rows, 64)))
    assert plan.steps.rows()[0][2:] == (rows, grain)


PARTED = [
    ((1 << 18,), (0,)),
    ((1000, 700), (0, 1)),
    ((3, 300_000), (1,)),
    ((300_000, 3), (0,)),
    ((6, 320, 320), (1, 2)),
]


@pytest.mark.parametrize(("shape", "axes"), PARTED, ids=str)
def test_reductions_in_parts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    values = normal(*shape)
    x = mx.array(values)
    assert plan_text(lambda x: x.sum(axis=axes), x).count("reduce sum") == 2
    exact = values.astype(np.longdouble)
    np.testing.assert_allclose(
        np.array(x.sum(axis=axes)), exact.sum(axis=axes).astype(np.float64), rtol=2e-6, atol=1e-7
    )
    np.testing.assert_array_equal(np.array(x.max(axis=axes)), values.max(axis=axes))
    np.testing.assert_array_equal(np.array((x > 4).any(axis=axes)), (values > 4).any(axis=axes))
    small = x.astype(mx.float16)
    np.testing.assert_array_equal(np.array(small.max(axis=axes)), np.array(small).max(axis=axes))
    np.testing.assert_array_equal(
        np.array(small.sum(axis=axes)), np.array(small.astype(mx.float64).sum(axis=axes).astype(mx.float16))
    )
    whole = (x * 1000).astype(mx.int32)
    np.testing.assert_array_equal(np.array(whole.sum(axis=axes)), np.array(whole).sum(axis=axes, dtype=np.int32))


@pytest.mark.parametrize(("shape", "axis"), [((300_001,), 0), ((3, 300_000), 1), ((300_001, 3), 0)], ids=str)
def test_indices_and_complex_numbers_in_parts(shape: tuple[int, ...], axis: int) -> None:
    """The totals of a part are complete: the extreme and its index, and both parts of a complex number."""
    values = np.round(normal(*shape) * 10)  # so that there are equal ones
    functions = (mx.argmax, mx.argmin, mx.max, mx.min, mx.sum)
    numbers = values.astype(np.complex64) + 1j * np.roll(values, 7, axis).astype(np.float32)
    values[np.arange(values.size).reshape(shape) % 100_003 == 100_000] = np.nan
    for array in (np.nan_to_num(values), values, numbers):
        x = mx.array(array)
        for function in functions:
            name, folded = function.__name__, partial(function, axis=axis)
            several = name.startswith("arg") or array is numbers
            assert plan_text(folded, x).count(f"{name}_joined") == several
            np.testing.assert_array_equal(np.array(folded(x)), getattr(np, name)(array, axis=axis), name)


@pytest.mark.parametrize("extent", [1024, 1025, 2048, 40_000])
def test_long_rows_are_folded_in_chunks(extent: int) -> None:
    """NumPy, in the order of sums that is defined, gives the same bits."""

    def folded(elements: np.ndarray) -> float:
        lanes = np.pad(elements, (0, -elements.size % 16)).reshape(-1, 16).cumsum(axis=0)[-1]
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        return lanes.item()

    values = normal(extent).astype(np.float64) ** 3
    chunks = [folded(values[first : first + 1024]) for first in range(0, extent, 1024)]
    x = mx.array(values, dtype=mx.float64)
    assert mx.sum(x).item() == folded(np.array(chunks))
    assert np.array(mx.sum(mx.stack([x, x]), axis=1)).tolist() == [folded(np.array(chunks))] * 2


def test_a_prime_number_of_elements_is_cut() -> None:
    x = mx.ones((1_000_003,))
    assert plan_text(mx.sum, x).count("reduce sum") == 2
    assert mx.sum(x).item() == 1_000_003


def test_parts_of_several_axes_are_equal() -> None:
    for shape in [(7, 40_000), (1_000_003, 8), (30, 7, 5, 900), (3, 1_000_003), (64, 112, 112)]:
        axis, count = reductions.cut_of(shape, range(len(shape)), 1 << 14)
        assert shape[axis] % count == 0
        assert count < shape[axis] or axis > 0


@pytest.mark.parametrize("extent", [*range(8, 65), 77, 128])
def test_short_first_axes(extent: int) -> None:
    x = mx.array(np.random.default_rng(extent).integers(-9, 9, (extent, 10_000)).astype(np.float32))
    values = np.array(x)
    np.testing.assert_array_equal(np.array(x.sum(axis=0)), values.sum(axis=0))
    np.testing.assert_array_equal(np.array(x.max(axis=0)), values.max(axis=0))
    small = x.reshape(extent, 100, 100)
    np.testing.assert_array_equal(np.array(small.min(axis=0)), values.min(axis=0).reshape(100, 100))
    np.testing.assert_array_equal(np.array(small.sum(axis=(0, 1))), values.reshape(extent, 100, 100).sum(axis=(0, 1)))


@pytest.mark.parametrize("axis", [0, 1])
def test_updates_that_cannot_meet_are_parallel(axis: int) -> None:
    data, chosen, new = normal(40, 40), np.arange(1600).reshape(40, 40) ** 2 % 37, normal(40, 40, seed=1)
    x, indices, values, expected = mx.array(data), mx.array(chosen), mx.array(new), data.copy()

    def put(x: mx.array) -> mx.array:
        return mx.put_along_axis(x, indices, values, axis=axis)

    assert ("(40,) (40,) 1", "() (40,) 40")[axis == 0] in plan_text(put, x)
    np.put_along_axis(expected, chosen, new, axis)
    np.testing.assert_array_equal(np.array(put(x)), expected)
    mapped = mx.vmap(lambda a, i, v: a.at[i].add(v), in_axes=1 - axis, out_axes=1 - axis)
    added = data.copy()
    np.add.at(added, (np.arange(40)[:, None], chosen) if axis else (chosen, np.arange(40)), new)
    np.testing.assert_array_equal(np.array(mapped(x, indices, values)), added)


def test_what_a_long_body_adds_to_few_elements_is_added_in_order() -> None:
    values, expected = np.arange(300, dtype=np.int32), np.zeros(15, np.int32)
    indices = values * 7

    def added(indices: mx.array, values: mx.array) -> mx.array:
        for step in range(50):
            indices, values = (indices + step) % 15, (values * 3) ^ step
        return mx.zeros((15,), mx.int32).at[indices].add(values)

    result = added(mx.array(indices), mx.array(values))
    for step in range(50):
        indices, values = (indices + step) % 15, (values * 3) ^ step
    np.add.at(expected, indices, values)
    np.testing.assert_array_equal(np.array(result), expected)


@pytest.mark.parametrize("columns", [5, 8, 16, 50, 256])
def test_rows_that_are_asked_for_ahead_are_the_same(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, chosen = normal(100, columns), np.arange(-30, 70) * 7 % 100
    x, indices = mx.array(data), mx.array(chosen)
    monkeypatch.setattr(kinds, "FAR_BYTES", 1)
    assert "awaited" in plan_text(lambda x: x[indices] * 2, x)
    np.testing.assert_array_equal(np.array(x[indices] * 2), data[chosen] * 2)


@pytest.mark.parametrize("columns", [1, 12, 50])
def test_rows_that_are_written_far_away_are_the_same(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, chosen = normal(90, columns), np.arange(-40, 200).reshape(3, 80) * 7 % 93 - 3
    x, indices, new = mx.array(expected), mx.array(chosen), normal(3, 80, columns)
    monkeypatch.setattr(kinds, "FAR_BYTES", 1)

    def put(x: mx.array) -> mx.array:
        x[indices] = mx.array(new)
        return x

    assert ("awaited" in plan_text(put, x)) == (columns < 50)
    for row, index in zip(new.reshape(-1, columns), chosen.ravel(), strict=True):
        expected[index] = row
    np.testing.assert_array_equal(np.array(put(x)), expected)


def test_what_is_gathered_is_computed_in_the_order_of_the_result() -> None:
    data, chosen = normal(40, 50, 60), np.arange(66) * 7 % 60
    x, indices, expected = mx.array(data), mx.array(chosen), data[:, :, chosen]
    assert "int64[.||contiguous]" in plan_text(lambda x: x[:, :, indices], x)
    for views in range(1, 16):  # whichever views of it are wanted as well
        taken = x[:, :, indices]
        turned = taken.transpose(2, 1, 0)
        pairs = [
            (taken, expected),
            (turned, expected.T),
            (turned.reshape(66, -1), expected.T.reshape(66, -1)),
            (taken.reshape(-1, 66)[::3], expected.reshape(-1, 66)[::3]),
        ]
        wanted = [pair for number, pair in enumerate(pairs) if views >> number & 1]
        mx.eval([array for array, _ in wanted])
        for array, values in wanted:
            np.testing.assert_array_equal(np.array(array), values)


def test_each_of_many_values_is_stored_when_it_is_known() -> None:
    """For example the states of a trajectory in a list. If the kernel stored them at its end, it would hold all of them
    until then."""

    def steps(x: mx.array) -> list[mx.array]:
        found = [x]
        for _ in range(40):
            found.append(found[-1] * 0.5 + 1)
        return found[:0:-1]

    (plan,) = plans_of(steps, mx.ones((300, 50)))
    stores = [line.split() for line in str(plan).splitlines() if " = store " in line]
    assert len(stores) == 40
    assert all(int(line[0][1:]) == int(line[3][1:]) + 1 for line in stores)


@pytest.mark.parametrize("columns", [40, 1000, 1030])
def test_memory_is_prefetched_where_processors_read_short_ahead(
    columns: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Rows that are folded, or compared with each other one by one, have the same bits with prefetches, which also go
    behind the end of the array."""
    x = mx.array(rng.normal(size=(20, columns)).astype(np.float32))

    def results() -> list[mx.array]:
        return [mx.sum(x), mx.softmax(x, axis=1), mx.var(x, axis=1), mx.logsumexp(x, axis=1), mx.argmin(x, axis=0)]

    found = []
    for names in ((), (host.current().name,)):
        monkeypatch.setattr(kinds, "STREAM_BYTES", 1)
        monkeypatch.setattr(kinds, "READS_SHORT_AHEAD", names)
        for function in (results, lambda: mx.argmin(x, axis=0)):
            assert any("from memory" in str(plan) for plan in plans_of(function)) is bool(names)
        evaluate.forget_plans()
        found.append(results())
        mx.eval(found[-1])
    evaluate.forget_plans()
    assert_same_bits(*found)
