"""vmap and compile of every row of the operation table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import Row, bits, checked, evaluated, flat, is_floating, is_inexact, to_array, to_numpy
from tests.ops.table import ROWS
from tests.sampling import Cases

BATCH = 3


WITH_ARGUMENTS = [row for row in ROWS if row.domains]


def mapped_axes(arguments: Sequence[np.ndarray]) -> list[tuple[int | None, ...]]:
    """Every axis of each argument alone; then the first axes, the last axes, and a mixture, of all arguments
    together."""
    count = len(arguments)
    alone: list[tuple[int | None, ...]] = [
        tuple(axis if n == position else None for n in range(count))
        for position, argument in enumerate(arguments)
        for axis in range(argument.ndim + 1)
    ]
    together: list[tuple[int | None, ...]] = [
        (0,) * count,
        (-1,) * count,
        tuple(min(n % 2, argument.ndim) for n, argument in enumerate(arguments)),
    ]
    return list(dict.fromkeys(alone + (together if count > 1 else [])))


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("vmap", WITH_ARGUMENTS))
def test_vmap_is_a_loop(row: Row, cases: Cases, seed: int) -> None:
    dtype = row.dtypes[0]
    samples = [row.sample(seed + n, dtype) for n in range(BATCH)]
    for axes in cases.some(2, mapped_axes(samples[0])):
        stacked = [
            np.stack([sample[n] for sample in samples], axis) if axis is not None else samples[0][n]
            for n, axis in enumerate(axes)
        ]
        rows = [[sample[n] if axis is not None else samples[0][n] for n, axis in enumerate(axes)] for sample in samples]
        looped = [flat(row.function(mx, *[to_array(x) for x in one])) for one in rows]
        wanted = [np.stack([to_numpy(y) for y in outputs]) for outputs in zip(*looped, strict=True)]
        mapped = mx.vmap(lambda *arrays: flat(row.function(mx, *arrays)), in_axes=axes)
        for got, want in zip(mapped(*[to_array(x) for x in stacked]), wanted, strict=True):
            assert_same(to_numpy(got), want, "vmap")


def assert_same(got: np.ndarray, want: np.ndarray, where: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), where
    if is_inexact(got):
        # Products of more rows may add up in another order, and an element whose terms cancel has the error of these:
        # they are about as large as the largest element.
        wide = np.complex64 if got.dtype.kind == "c" else np.float32
        got, want = got.astype(wide), want.astype(wide)
        largest = np.abs(want).max(initial=0, where=np.isfinite(want))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=max(1e-5, 1e-6 * largest), err_msg=where)
    else:
        np.testing.assert_array_equal(got, want, err_msg=where)


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("vmap", WITH_ARGUMENTS))
def test_vmap_to_the_last_axis(row: Row, seed: int) -> None:
    arguments = row.sample(seed, row.dtypes[0])
    stacked = [to_array(np.stack([x] * BATCH)) for x in arguments]
    mapped = mx.vmap(lambda *arrays: flat(row.function(mx, *arrays)), out_axes=-1)
    wanted = flat(row.function(mx, *[to_array(x) for x in arguments]))
    for got, want in zip(mapped(*stacked), wanted, strict=True):
        expected = np.stack([to_numpy(want)] * BATCH, -1)
        assert_same(to_numpy(got), expected, "out_axes=-1")


def gradient_of(row: Row, arguments: Sequence[np.ndarray]) -> Any:
    """The gradient of the sum of squares of the inexact results in the floating arguments; skips a test without any."""
    positions = [n for n, x in enumerate(arguments) if is_floating(x)]

    def loss(*arrays: Any) -> Any:
        results = [y for y in flat(row.function(mx, *arrays)) if mx.issubdtype(y.dtype, mx.inexact)]
        return sum([mx.sum(mx.square(mx.abs(y))) for y in results])

    if not positions or not isinstance(loss(*[to_array(x) for x in arguments]), mx.array):
        pytest.skip("no floating numbers on both sides")
    gradient = mx.grad(loss, argnums=positions)
    return lambda *arrays: flat(gradient(*arrays))


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("vmap", WITH_ARGUMENTS))
def test_vmap_of_the_gradient_is_a_loop(row: Row, seed: int) -> None:
    samples = [row.sample(seed + n, row.dtypes[0]) for n in range(BATCH)]
    gradient = gradient_of(row, samples[0])
    looped = [evaluated(gradient(*[to_array(x) for x in sample])) for sample in samples]
    mapped = evaluated(mx.vmap(gradient)(*[to_array(np.stack(one)) for one in zip(*samples, strict=True)]))
    for got, *wanted in zip(mapped, *looped, strict=True):
        assert_same(to_numpy(got), np.stack([to_numpy(want) for want in wanted]), "gradient")


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("compile", WITH_ARGUMENTS))
def test_compiled_gradient_gives_the_same_bits(row: Row, seed: int) -> None:
    arguments = row.sample(seed, row.dtypes[0])
    gradient = gradient_of(row, arguments)
    arrays = [to_array(x) for x in arguments]
    for got, want in zip(mx.compile(gradient)(*arrays), gradient(*arrays), strict=True):
        assert bits(to_numpy(got)) == bits(to_numpy(want))


def compared(row: Row, arguments: Sequence[np.ndarray], compiled: Any) -> None:
    arrays = [to_array(x) for x in arguments]
    eager = flat(row.function(mx, *arrays))
    for got, want in zip(flat(compiled(*arrays)), eager, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert bits(to_numpy(got)) == bits(to_numpy(want))


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("compile", ROWS))
def test_compiled_gives_the_same_bits(row: Row, seed: int) -> None:
    for dtype in row.dtypes[:2]:
        compiled = mx.compile(lambda *arrays: row.function(mx, *arrays))
        for again in range(2):
            compared(row, row.sample(seed + again, dtype), compiled)


@pytest.mark.some_checks
@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("shapeless", WITH_ARGUMENTS))
def test_shapeless_serves_other_shapes(row: Row, seed: int) -> None:
    calls = itertools.count()

    def counted(*arrays: Any) -> Any:
        next(calls)
        return row.function(mx, *arrays)

    compiled = mx.compile(counted, shapeless=True)
    for by in (0, 1, 3):
        rng = row.random(seed, f"grown by {by}")
        compared(row, row.grown(by, rng), compiled)
    assert next(calls) == 1, "traced again"
