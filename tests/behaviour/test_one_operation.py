"""One operation on values and on views of values: one plan serves all that differ only in where their elements
begin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx

pytestmark = pytest.mark.usefixtures("donated_from_one_byte")


def matrix(rows: int = 6, columns: int = 6) -> mx.array:
    x = mx.array(np.arange(rows * columns, dtype=np.float32).reshape(rows, columns))
    mx.eval(x)
    return x


VIEWS: dict[str, Callable[[mx.array], mx.array]] = {
    "a row": lambda x: x[2],
    "the last column": lambda x: x[:, -1],
    "an element": lambda x: x[1, 3],
    "an element of a row": lambda x: x[1][3],
    "a part": lambda x: x[1:4, 2:],
    "backwards": lambda x: x[::-2, 3],
    "nothing": lambda x: x[2:2],
    "transposed": lambda x: x.T[1],
    "broadcast": lambda x: mx.broadcast_to(x[0], (3, 6)),
    "in another shape": lambda x: x.reshape(2, 18),
    "in a shape that needs a copy": lambda x: x.T.reshape(36),
    "of another type": lambda x: x.view(mx.int32),
    "with a new axis": lambda x: x[:, None, 2],
    "windows": lambda x: mx.as_strided(x, (3, 2), (6, 1), 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_value(name: str) -> None:
    x, y = matrix(), matrix()
    part, held = VIEWS[name](x), VIEWS[name](y)
    expected = np.array(VIEWS[name](matrix()))
    one = mx.array(1, part.dtype)
    mx.eval(one)
    np.testing.assert_array_equal(np.array(part + part), expected + expected)
    np.testing.assert_array_equal(np.array(held + one), expected + np.array(one))
    np.testing.assert_array_equal(np.array(held * 3), expected * 3)
    np.testing.assert_array_equal(np.array(held), expected)


def test_showing_a_value_needs_no_plan() -> None:
    x = matrix()
    before = weft.counters().plans
    assert x[2].tolist() == [12, 13, 14, 15, 16, 17]
    assert x[1][3].item() == 9
    assert x.T[1, 2:4].tolist() == [13, 19]
    assert weft.counters().plans == before
    row = x[0]
    mx.eval(row)
    del x
    assert (row * 2).tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("name", ["abc", "aab", "aba", "abb", "aaa"])
@pytest.mark.parametrize("kind", ["values", "views"])
def test_any_inputs_may_be_the_same(name: str, kind: str) -> None:
    values = {letter: matrix() % number == 0 for number, letter in enumerate("abc", 2)}
    mx.eval(*values.values())
    arrays = {"values": values, "views": {letter: value[1] for letter, value in values.items()}}[kind]
    x, y, z = [arrays[letter] for letter in name]
    results = [mx.where(x, y, z), mx.where(z, x, y), mx.where(y, z, x)]
    mx.eval(results)
    a, b, c = np.array(x), np.array(y), np.array(z)
    for found, expected in zip(results, [np.where(a, b, c), np.where(c, a, b), np.where(b, c, a)], strict=True):
        np.testing.assert_array_equal(np.array(found), expected)


def test_rows_and_columns_need_one_plan() -> None:
    x, y = matrix(40, 7), matrix(7, 40)
    before = weft.counters()
    sums = [x[i] + y[:, i] for i in range(40)]
    for one in sums[:20]:
        mx.eval(one)
    mx.eval(sums)
    assert (weft.counters() - before).plans <= 1
    np.testing.assert_array_equal(np.array(mx.stack(sums)), np.array(x) + np.array(y).T)


def test_the_same_array_twice_is_another_operation_than_two_arrays() -> None:
    x, y = matrix(), matrix() + 1
    mx.eval(y)
    for left, right in ((x, y), (x, x), (y, x), (y, y)):
        np.testing.assert_array_equal(np.array(left - right), np.array(left) - np.array(right))


@pytest.mark.parametrize("number", [2.0, 3.0, -0.0, float("nan")])
def test_numbers_do_not_need_a_plan_of_their_own(number: float) -> None:
    x = matrix()
    mx.eval(x * 0.5)
    before = weft.counters()
    found = np.array(x * number)
    assert (weft.counters() - before).plans == 0
    np.testing.assert_array_equal(found, np.array(x) * np.float32(number))


def test_threads_that_evaluate_the_same_views() -> None:
    for _ in range(20):
        x = matrix(50, 50)
        parts = [x[i] for i in range(50)]
        results = [part * 2 for part in parts]
        threads = [threading.Thread(target=mx.eval, args=(results, parts)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(np.array(mx.stack(results)), np.array(x) * 2)


def row_of_another(x: Any, other: Any) -> None:
    x[1] = other[2]


def own_row(x: Any, other: Any) -> None:
    x[1] = x[2]


def own_column_as_a_row(x: Any, other: Any) -> None:
    x[1] = x[:, 3].copy() if isinstance(x, np.ndarray) else x[:, 3]


def element(x: Any, other: Any) -> None:
    x[1, 2] = x[2, 3]


ASSIGNED = [row_of_another, own_row, own_column_as_a_row, element]
HELD: dict[str, Callable[[Any, Any], Any]] = {
    "the array": lambda x, other: x[...],
    "a row": lambda x, other: x[1],
    "rows": lambda x, other: x[1:],
    "its transpose": lambda x, other: x.T,
    "what is computed of it": lambda x, other: x + other,
    "a row of the other": lambda x, other: other[2],
}


def base_of(x: mx.array) -> int:
    return int(np.array(x, copy=False).__array_interface__["data"][0])


@pytest.mark.parametrize("assign", [row_of_another, own_row, element])
def test_what_is_assigned_from_a_view_is_written_in_place(assign: Callable[[Any, Any], None]) -> None:
    x, other = matrix(300, 300), matrix(300, 300)
    expected = np.array(x)
    base = base_of(x)
    assign(x, other)
    assign(expected, np.array(other))
    mx.eval(x)
    assert base_of(x) == base
    np.testing.assert_array_equal(np.array(x), expected)


@pytest.mark.parametrize("assign", ASSIGNED)
@pytest.mark.parametrize("name", HELD)
def test_what_is_assigned_from_a_view_leaves_alone_what_is_held(assign: Callable[[Any, Any], None], name: str) -> None:
    x, other = matrix(300, 300), matrix(300, 300)
    held, wanted = HELD[name](x, other), HELD[name](np.array(x), np.array(other))
    expected = np.array(x)
    assign(x, other)
    assign(expected, np.array(other))
    mx.eval(x)
    np.testing.assert_array_equal(np.array(x), expected)
    np.testing.assert_array_equal(np.array(held), wanted)


def test_assigning_rows_of_another_array_takes_one_plan_each() -> None:
    x, y = matrix(40, 40), matrix(40, 40)
    before = weft.counters().plans
    for i in range(10):
        x[i] = y[2 * i]
        mx.eval(x)
    assert weft.counters().plans - before == 10
    np.testing.assert_array_equal(np.array(x)[:10], np.array(y)[:20:2])
