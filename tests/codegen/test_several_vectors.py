"""Loops whose turns do several vectors, because operations wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.codegen import host
from weft.compiler.cpu.side_by_side import LONG_CHAIN, LONG_ROW

ROW = 2 * LONG_ROW + 45
"""Behind the last whole turn are vectors that are whole, and one that is not."""


def chain(x: Any, length: int) -> Any:
    for _ in range(length // 2):
        x = x * 3 + 1
    return x


def _together(function: Any, *arrays: mx.array) -> bool:
    return "several vectors at once" in "\n".join(map(str, plans_of(function, *arrays)))


def _has_many_registers() -> bool:
    return "+avx512f" in host.current().features


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint64", "float32"])
@pytest.mark.parametrize("rows", [1, 3])
def test_long_chains_in_long_rows(dtype: str, rows: int) -> None:
    numbers = np.arange(rows * ROW).reshape(rows, ROW) % 199
    x, first = mx.array(numbers.astype(dtype)), mx.array(numbers.astype(dtype)[:, :1])

    def function(x: mx.array, first: mx.array) -> mx.array:
        return chain(x ^ first if dtype != "float32" else x + first, LONG_CHAIN)

    with np.errstate(over="ignore"):
        a, b = numbers.astype(dtype), numbers.astype(dtype)[:, :1]
        want = chain(a ^ b if dtype != "float32" else a + b, LONG_CHAIN)
    np.testing.assert_array_equal(np.array(function(x, first)), want)
    assert _together(function, x, first) or not _has_many_registers()


def test_conditions_and_shared_shifts_in_several_vectors() -> None:
    x = np.arange(ROW, dtype=np.uint32) * 2654435761

    def function(x: Any, where: Any) -> Any:
        for count in (16, 13, 5, 17, 11, 3):
            x = where(x % 3 == 0, x ^ (x >> count), x * 5)
        return x

    got = np.array(function(mx.array(x), mx.where))
    np.testing.assert_array_equal(got, function(x, np.where))

    def scrambled(x: Any) -> Any:
        for count in (16, 13, 5, 17, 11, 3):
            x = (x ^ (x >> count)) * 5
        return x

    np.testing.assert_array_equal(np.array(scrambled(mx.array(x))), scrambled(x))
    assert _together(scrambled, mx.array(x)) or not _has_many_registers()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float32"])
@pytest.mark.parametrize("rest", [1, 15, 16, 17, 36, 52, 63])
def test_nothing_is_written_behind_a_row(dtype: str, rest: int) -> None:
    extent = LONG_ROW + rest
    numbers = (np.arange(3 * (extent + 80)) % 127).astype(dtype).reshape(3, -1)

    def function(x: Any) -> Any:
        return chain(x ^ 5 if dtype != "float32" else x + 5, LONG_CHAIN)

    x, y = mx.array(numbers), mx.array(numbers) + 0
    y[:, :extent] = function(x[:, :extent])
    wanted = numbers.copy()
    with np.errstate(over="ignore"):
        wanted[:, :extent] = function(numbers[:, :extent])
    np.testing.assert_array_equal(np.array(y), wanted)


def test_elsewhere_a_turn_does_one_vector() -> None:
    def sum_(x: mx.array) -> mx.array:
        return chain(x, LONG_CHAIN).sum()

    x = mx.array(np.ones(ROW, np.float32))
    assert not _together(lambda x: chain(x, LONG_CHAIN - 2), x)
    assert not _together(lambda x: chain(x, LONG_CHAIN), x[: LONG_ROW - 1])
    assert not _together(lambda x: mx.exp(chain(x, LONG_CHAIN)), x)
    assert not _together(sum_, x)


@pytest.mark.parametrize(("dtype", "together"), [("uint8", True), ("int16", True), ("int32", False)])
def test_small_elements_in_long_rows_fill_registers(dtype: str, together: bool) -> None:
    a, b = np.random.default_rng(0).integers(0, 127, (2, 3, ROW)).astype(dtype)

    def function(a: Any, b: Any) -> Any:
        return (a * 3 + b[:1]) * (a ^ b)

    x, y = mx.array(a), mx.array(b)
    np.testing.assert_array_equal(np.array(function(x, y)), function(a, b))
    assert _together(function, x, y) == together
    assert not _together(function, x[:, : LONG_ROW - 1], y[:, : LONG_ROW - 1])
    assert not _together(function, x[:, ::2], y[:, ::2])


def test_columns_of_bytes_fill_registers() -> None:
    a, b = np.random.default_rng(0).integers(0, 256, (2, ROW, 4)).astype(np.uint8)

    def function(a: Any, b: Any, wide: Any) -> Any:
        share = a[:, 3:].astype(wide)
        return ((a[:, :3].astype(wide) * share + b[:, :3].astype(wide) * (255 - share)) // 256).astype(a.dtype)

    x, y = mx.array(a), mx.array(b)
    np.testing.assert_array_equal(np.array(function(x, y, mx.uint16)), function(a, b, np.uint16))
    assert _together(lambda x, y: function(x, y, mx.uint16), x, y)
