"""Kernels of scans: which operations share one, the order in which elements are joined, and long rows in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits, run_python
from tests.codegen.planned import plans_of
from tests.sampling import Cases
from weft.compiler.cpu import kinds
from weft.compiler.running import evaluate
from weft.graph.node import reachable
from weft.primitives import scans

SCANS = ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"]
MANNERS = [{"reverse": reverse, "inclusive": inclusive} for reverse in (False, True) for inclusive in (True, False)]


def steps_of(function: Callable[..., Any], *arguments: mx.array) -> int:
    return sum(plan.steps.count for plan in plans_of(function, *arguments))


def scattered(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers whose sums depend on the order of the additions."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) * 10.0 ** rng.integers(-6, 7, size=shape)


def prefix_sums(row: np.ndarray) -> np.ndarray:
    """The definition along a last axis: in vectors of 16, the elements 1, 2, 4 and 8 before are added; then the total
    of all earlier vectors."""
    result = row.copy()
    for start in range(0, row.size, 16):
        vector = result[start : start + 16]
        for distance in (1, 2, 4, 8):
            vector[distance:] = vector[:-distance] + vector[distance:]
        if start:
            vector += result[start - 1]
    return result


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 32, 100, 5000])
def test_the_order_along_a_last_axis(size: int) -> None:
    x = scattered(3, size)
    expected = np.stack([prefix_sums(row) for row in x])
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array(x, mx.float64), axis=1)), expected)
    turned = mx.array(np.ascontiguousarray(x[:, ::-1]), mx.float64)
    np.testing.assert_array_equal(np.array(mx.cumsum(turned, axis=1, reverse=True)), expected[:, ::-1])
    before = np.concatenate([np.zeros((3, 1)), expected[:, :-1]], 1)
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array(x, mx.float64), axis=1, inclusive=False)), before)


@pytest.mark.parametrize("shape", [(7, 3), (40, 17), (9, 1100), (2, 50, 33)], ids=str)
def test_the_order_along_another_axis(shape: tuple[int, ...]) -> None:
    """Elements are added one after the other, whichever lanes a thread has."""
    x = scattered(*shape)
    axis = len(shape) - 2
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array(x, mx.float64), axis=axis)), np.cumsum(x, axis=axis))
    flipped = np.flip(np.cumsum(np.flip(x, axis), axis=axis), axis)
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array(x, mx.float64), axis=axis, reverse=True)), flipped)


@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (33,), (3, 100), (300_000,), (20, 3)], ids=str)
def test_a_sequential_scan_joins_one_element_after_the_other(shape: tuple[int, ...]) -> None:
    """Along any axis, also where other scans are computed in vectors and chunks."""
    x = scattered(*shape).astype(np.float32)
    for axis in range(len(shape)):
        for manner in MANNERS:
            turned = np.flip(x, axis) if manner["reverse"] else x
            expected = np.add.accumulate(turned, axis=axis, dtype=np.float32)
            if not manner["inclusive"]:
                expected = np.roll(expected, 1, axis)
                np.moveaxis(expected, axis, 0)[:1] = 0
            expected = np.flip(expected, axis) if manner["reverse"] else expected
            np.testing.assert_array_equal(np.array(p.sequential_cumsum(mx.array(x), axis=axis, **manner)), expected)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of more than 64 elements are cut into chunks."""
    for name, value in (("CHUNKED_SIZE", 64), ("CHUNK", 32), ("ROW_CHUNK", 32), ("SHORTEST_CHUNK", 20)):
        monkeypatch.setattr(scans, name, value)
    evaluate.forget_plans()
    yield
    evaluate.forget_plans()


LONG = [((65,), 0), ((96,), 0), ((3, 131), 1), ((70, 5), 0), ((2, 61, 3), 1), ((1, 300, 1), 1)]


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", SCANS)
def test_chunks(name: str, cases: Cases) -> None:
    """Operations that are exact, or nearly so, give the same result wherever a row is cut."""
    for (shape, axis), manner in cases.some(2, [(long, manner) for long in LONG for manner in MANNERS]):
        x = np.random.default_rng(len(shape)).integers(-3, 4, shape)
        y = mx.array(x, mx.float32 if name == "logcumsumexp" else mx.int16)
        scan = partial(getattr(mx, name), axis=axis, **manner)
        assert "ragged" in "".join(map(str, plans_of(scan, y)))
        got = np.moveaxis(np.array(scan(y)), axis, 0)
        rows = np.moveaxis(x, axis, 0)
        for index in range(len(rows)):
            before, behind = rows[: index + manner["inclusive"]], rows[index + (not manner["inclusive"]) :]
            np.testing.assert_allclose(got[index], folded(name, behind if manner["reverse"] else before), rtol=1e-6)


def folded(name: str, rows: np.ndarray) -> Any:
    limits = np.iinfo(np.int16)
    match name:
        case "cumsum":
            return np.sum(rows, axis=0)
        case "cumprod":
            return np.prod(rows.astype(np.int16), axis=0, dtype=np.int16)
        case "cummax":
            return np.max(rows, axis=0, initial=limits.min)
        case "cummin":
            return np.min(rows, axis=0, initial=limits.max)
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(rows.astype(np.float64)), axis=0))


@pytest.mark.usefixtures("short_chunks")
def test_chunks_of_maps_that_do_not_commute(cases: Cases) -> None:
    for (shape, axis), manner in cases.some(5, [(long, manner) for long in LONG for manner in MANNERS]):
        a, b = np.random.default_rng(len(shape)).integers(-1, 2, (2, *shape))
        expected = np.moveaxis(np.zeros(shape), axis, 0)
        h = np.zeros(expected.shape[1:])
        indices = range(shape[axis])
        for index in reversed(indices) if manner["reverse"] else indices:
            before, h = h, np.take(a, index, axis) * h + np.take(b, index, axis)
            expected[index] = h if manner["inclusive"] else before
        got = p.recurrence(mx.array(a, mx.float32), mx.array(b, mx.float32), axis=axis, **manner)
        np.testing.assert_array_equal(np.array(got), np.moveaxis(expected, 0, axis))


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", SCANS)
def test_derivatives_across_chunks(name: str) -> None:
    """The derivative of a long row is that of the same row next to many others, which is not cut."""
    scan = getattr(mx, name)
    x = mx.array(np.random.default_rng(0).uniform(0.8, 1.2, (1, 70)), mx.float64)
    rows = mx.broadcast_to(x, (scans.ENOUGH_ROWS, 70))
    weights = mx.cos(mx.arange(70.0, dtype=mx.float64))
    long, many = (mx.grad(lambda x: (scan(x, axis=1) * weights).sum())(one) for one in (x, rows))
    np.testing.assert_allclose(np.array(long[0]), np.array(many[3]), rtol=1e-12, atol=1e-12)


FUSED: dict[str, tuple[Callable[[mx.array], mx.array], int]] = {
    "between": (lambda x: mx.cumsum(mx.exp(x) * 2, axis=-1) + x, 1),
    "another axis": (lambda x: mx.cumsum(mx.exp(x) * 2, axis=0) / 3, 1),
    "backwards": (lambda x: mx.sqrt(mx.cumsum(mx.abs(x), axis=-1, reverse=True)), 1),
    "of a row group": (lambda x: mx.cumsum(mx.softmax(x, axis=-1), axis=-1), 1),
    "folded": (lambda x: mx.cummax(x, axis=-1) - mx.mean(mx.cummax(x, axis=-1), axis=-1, keepdims=True), 1),
    "expensive, twice": (lambda x: mx.logcumsumexp(x, axis=-1) - mx.logsumexp(x, axis=-1, keepdims=True), 1),
    "two of a row": (lambda x: mx.cumsum(x, axis=-1) * mx.cumprod(x, axis=-1, inclusive=False), 1),
    "one after the other": (lambda x: mx.cummax(mx.cumsum(x, axis=-1), axis=-1), 1),
    "view": (lambda x: mx.cumsum(x.T * 2, axis=-1), 1),
    "joined": (lambda x: mx.concatenate([mx.cumsum(x, axis=-1), mx.cummin(x, axis=-1)], axis=0), 2),
    "both directions": (lambda x: mx.cumsum(x, axis=-1) + mx.cumsum(x, axis=-1, reverse=True), 2),
    "two axes": (lambda x: mx.cumsum(mx.cumsum(x, axis=0), axis=1), 2),
    "shifted": (lambda x: mx.cumsum(x, axis=-1)[:, 1:] * 2, 2),
    "backwards, of a row group": (lambda x: mx.cumsum(mx.softmax(x, axis=-1), axis=-1, reverse=True), 1),
    "backwards over another axis": (lambda x: mx.cumsum(mx.softmax(x, axis=0), axis=0, reverse=True), 1),
    "folded from the end": (lambda x: mx.sum(mx.cumsum(x, axis=-1, reverse=True), axis=-1), 2),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_shares_a_kernel(name: str) -> None:
    """Results have the bits of separate kernels."""
    function, count = FUSED[name]
    for shape in [(5, 21), (40, 50)]:
        x = mx.array(scattered(*shape) / 1e6, mx.float32)
        assert steps_of(mx.compile(function), x) == count
        assert_same_bits(mx.compile(function)(x), apart(function, x))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_and_what_it_scans_are_both_stored(axis: int, reverse: bool) -> None:
    def scanned(x: mx.array) -> tuple[mx.array, mx.array]:
        y = mx.sin(x)
        return y, mx.cumsum(y, axis=axis, reverse=reverse)

    x = mx.array(scattered(40, 37), mx.float32)
    y = mx.sin(x)
    mx.eval(y)
    assert_same_bits(mx.compile(scanned)(x), (y, mx.cumsum(y, axis=axis, reverse=reverse)))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_and_a_scan_from_the_end_in_one_stage(axis: int) -> None:
    """They are two passes over the rows: a sum begins at the front."""

    def scanned(x: mx.array) -> tuple[mx.array, mx.array]:
        total = mx.sum(x, axis=axis, keepdims=True)
        y = mx.cumsum(x, axis=axis, reverse=True)
        return y, y / total

    x = mx.array(scattered(40, 37), mx.float64)
    assert steps_of(mx.compile(scanned), x) == 1
    y, parts = mx.compile(scanned)(x)
    assert_same_bits(y, mx.cumsum(x, axis=axis, reverse=True))
    total = mx.sum(x, axis=axis, keepdims=True)
    mx.eval(total)
    assert_same_bits(parts, y / total)


def apart(function: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
    """The result with each operation evaluated alone."""
    order: dict[Any, mx.array] = {}
    result = function(x)
    for node in reachable([result.node]):
        held = mx.array(0)
        held.node = node
        mx.eval(held)
        order[node] = held
    return result


SUMS_OF_EVERY_KIND = """
import hashlib
import numpy as np, weft.core as mx
rng = np.random.default_rng(0)
for shape, axis in [((300_007,), 0), ((3, 99_991), 1), ((70_001, 4), 0), ((50, 700), 0), ((700, 50), 1)]:
    x = mx.array(rng.normal(size=shape), mx.float64)
    for reverse in (False, True):
        print(hashlib.sha1(np.array(mx.cumsum(x, axis=axis, reverse=reverse))).hexdigest())
"""


@pytest.mark.parametrize("counts", [(1, 3), pytest.param((2, 4, 5, 6, 7), marks=pytest.mark.slow)], ids=str)
def test_threads_change_no_bit(counts: tuple[int, ...]) -> None:
    outputs = {run_python(SUMS_OF_EVERY_KIND, WEFT_NUM_THREADS=str(count)) for count in (1, *counts)}
    assert len(outputs) == 1


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_in_place(reverse: bool) -> None:
    """The result gets the memory of an input that is not used afterwards, also if it is computed chunk by chunk."""
    scan = partial(mx.cumsum, reverse=reverse)
    numbers = np.arange(500, dtype=np.int32)
    assert all(plan.donations for plan in plans_of(scan, mx.array(numbers)))
    x = mx.array(numbers)
    mx.eval(x)
    x = scan(x)
    expected = np.cumsum(numbers[::-1])[::-1] if reverse else np.cumsum(numbers)
    np.testing.assert_array_equal(np.array(x), expected)


@pytest.mark.parametrize("size", [1030, 1040])
def test_streaming_changes_no_bit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a scan from the end of a row, vectors are not aligned, and streaming stores are not used."""
    x = mx.array(scattered(8, 1040), mx.float32)[:, :size]
    for axis, reverse in [(0, False), (0, True), (1, False), (1, True)]:
        scan = partial(mx.cumsum, axis=axis, reverse=reverse)
        plain = np.array(scan(x))
        monkeypatch.setattr(kinds, "STREAM_BYTES", 0)
        text = "".join(map(str, plans_of(scan, x)))
        assert ("streamed" in text) == (size % 16 == 0 and not (axis == 1 and reverse))
        np.testing.assert_array_equal(np.array(scan(x)), plain)
        monkeypatch.undo()
        evaluate.forget_plans()


@pytest.mark.usefixtures("short_chunks")
def test_a_scan_of_another_one() -> None:
    """A scan of the results of another scan, both of them in chunks."""
    x = np.round(np.random.default_rng(0).uniform(-3, 4, 130)) * (1 + 2j)
    got = mx.cumsum(mx.real(mx.cumsum(mx.array(x, mx.complex64))))
    np.testing.assert_array_equal(np.array(got), np.cumsum(np.cumsum(x).real).astype(np.float32))
