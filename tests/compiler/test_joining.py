"""Many values joined to one array: what programs choose anew each time needs no plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import weft.core as mx
from weft.compiler.running.joining import _OFTEN
from weft.runtime import counters


def _parts(data: mx.array, starts: Sequence[int]) -> list[mx.array]:
    return [data[start : start + number % 3] for number, start in enumerate(starts)]


@pytest.mark.parametrize("then", [lambda x: x, lambda x: x.reshape(-1) * 2 + 1], ids=["alone", "within"])
def test_parts_that_differ_each_time_are_copied_without_a_plan(then: object, rng: np.random.Generator) -> None:
    values = rng.normal(size=(30, 5)).astype(np.float32)
    data = mx.array(values)
    mx.eval(data, then(mx.concatenate(_parts(data, range(9)))))  # type: ignore[operator]
    before = counters.plans
    for _ in range(3):
        starts = [int(start) for start in rng.integers(0, 28, 9)]
        found = then(mx.concatenate(_parts(data, starts)))  # type: ignore[operator]
        expected = np.concatenate([values[start : start + number % 3] for number, start in enumerate(starts)])
        np.testing.assert_array_equal(np.array(found), np.array(then(mx.array(expected))))  # type: ignore[operator]
    assert counters.plans == before


def test_the_same_parts_are_planned_when_they_come_often() -> None:
    data = mx.arange(30)
    mx.eval(data)
    before = counters.plans
    planned = []
    for _ in range(_OFTEN + 1):
        assert mx.stack([data[number] for number in (3, 1, 4, 1, 5, 9, 2, 6, 5)]).tolist() == [
            3,
            1,
            4,
            1,
            5,
            9,
            2,
            6,
            5,
        ]
        planned.append(counters.plans - before)
    assert planned == [0] * (_OFTEN - 1) + [1, 1]


def test_a_joined_array_keeps_its_elements_when_parts_change() -> None:
    rows = [mx.full((4,), number) for number in range(8)]
    mx.eval(rows)
    joined = mx.concatenate([rows[0], *rows, rows[7][::-1], rows[3][:0]])
    first = rows[0]
    first[1] = 9
    mx.eval(joined, first)
    joined[0] = 5
    assert joined.tolist() == [5, 0, 0, 0, *[number for number in range(8) for _ in range(4)], 7, 7, 7, 7]
    assert (first.tolist(), rows[1].tolist()) == ([0, 9, 0, 0], [1, 1, 1, 1])


def test_parts_that_are_not_in_one_piece_are_joined() -> None:
    data = mx.arange(60).reshape(6, 10)
    mx.eval(data)
    assert mx.concatenate([data[:, number] for number in range(9)])[::6].tolist() == list(range(9))
    assert mx.stack([data[1]] * 8, axis=1)[2].tolist() == [12] * 8
