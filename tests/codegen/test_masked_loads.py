"""Loads under a condition: of rows, and of one element in some lanes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.cpu.loops import generate
from weft.compiler.cpu.schedule import CpuSchedule
from weft.runtime.host import host


def text_of(function: Callable[..., Any], *arguments: mx.array) -> tuple[str, str]:
    """The only kernel that a function needs, and its LLVM IR."""
    with mx.stream(mx.cpu):
        (plan,) = plans_of(function, *arguments)
    (record,) = plan.describe().records
    assert record.launch is not None
    chosen = host.target.schedule(record.launch)
    assert isinstance(chosen, CpuSchedule)
    return str(record.launch.kernel), generate(record.launch.kernel, chosen, "kernel")


def with_mirrored_rows(x: Any, pad: Callable[..., Any]) -> Any:
    rest = x.shape[0] - 9
    return x[3:-3] + pad(x[2::-1], [(0, rest), (0, 0)]) + pad(x[:-4:-1], [(rest, 0), (0, 0)])


def test_rows_that_are_not_read_have_addresses_inside(rng: np.random.Generator) -> None:
    """There need not be memory before the first row and behind the last one, where loads without lanes are slow."""
    x = mx.array(rng.normal(size=(50, 70)).astype(np.float32))
    kernel, text = text_of(lambda x: with_mirrored_rows(x, mx.pad), x)
    assert len(re.findall(r"select i1 %\w+, ptr ", text)) >= kernel.count("] where %") == 2
    np.testing.assert_array_equal(np.array(with_mirrored_rows(x, mx.pad)), with_mirrored_rows(np.array(x), np.pad))


def with_columns(x: Any, pad: Callable[..., Any]) -> Any:
    rest = x.shape[1] - 1
    first, second = (x[:, 0] + x[:, 1])[:, None], (x[:, 1] + x[:, 2])[:, None]
    return x + pad(first, [(0, 0), (5, rest - 5)]) + pad(second, [(0, 0), (rest - 3, 3)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64", "int8", "int64"])
def test_an_element_for_some_lanes_is_read_once(dtype: str, rng: np.random.Generator) -> None:
    numbers = rng.integers(-9, 9, (5, 70))
    x = mx.array(numbers).astype(getattr(mx, dtype))
    kernel, text = text_of(lambda x: with_columns(x, mx.pad), x)
    assert kernel.count("uniform] where %") == 4
    assert "masked.gather" not in text
    assert_same_bits(with_columns(x, mx.pad), mx.array(with_columns(numbers, np.pad)).astype(x.dtype))


def test_indices_are_read_where_their_elements_are(rng: np.random.Generator) -> None:
    """What is gathered and then padded has no indices for the lanes that are added."""
    x, index = mx.array(rng.normal(size=50).astype(np.float32)), mx.array([3, 1, 40, 7], dtype=mx.int32)
    kernel, _ = text_of(lambda x, index: mx.pad(x[index], (20, 25)), x, index)
    assert kernel.count("load ") == kernel.count("] where %") == 2
    np.testing.assert_array_equal(np.array(mx.pad(x[index], (20, 25))), np.pad(np.array(x)[np.array(index)], (20, 25)))


def test_a_condition_of_another_piece(rng: np.random.Generator) -> None:
    """Two loads have one condition. The second piece of the body recalls it without what it was made of."""
    x, y = (mx.array(rng.integers(-9, 9, 700).astype(np.float32)) for _ in range(2))
    value = mx.pad(x, (2, 3))
    for number in range(150):
        value = value * 0.5 + number
    expected = np.pad(np.array(x), (2, 3))
    for number in range(150):
        expected = expected * np.float32(0.5) + np.float32(number)
    np.testing.assert_array_equal(np.array(value + mx.pad(y, (2, 3))), expected + np.pad(np.array(y), (2, 3)))


def test_masks_of_lanes_are_made_of_32_bits() -> None:
    """Comparing 64 bits of each lane takes several times as many instructions. Rows of equal length share a mask."""
    for function in (lambda x: mx.sum(x, axis=1), lambda x: x[:, :17] * 2, lambda x: mx.pad(x, 1)):
        _, text = text_of(function, mx.ones((30, 20)))
        assert not re.findall(r"icmp \w+ <16 x i64>", text)
        assert re.findall(r"icmp slt <16 x i32>", text)
    _, text = text_of(lambda x: mx.softmax(x, axis=1), mx.ones((30, 20)))
    assert len(re.findall(r"icmp slt <16 x i32> <i32 0,", text)) == 1
