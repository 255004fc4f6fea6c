"""Columns of short rows in memory, which are read and written together by whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx

from .planned import plans_of

ROWS = (1, 15, 16, 17, 4099)
DTYPES = (mx.bool_, mx.int8, mx.bfloat16, mx.float32, mx.complex64)


def _numbers(rows: int, width: int, dtype: mx.Dtype) -> mx.array:
    numbers = mx.random.randint(0, 100, (rows, width), key=mx.random.key(rows * width))
    return (numbers % 2 == 0) if dtype is mx.bool_ else numbers.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [2, 3, 5, 6, 8, 12, 16])
def test_columns_change_places(width: int, dtype: mx.Dtype) -> None:
    order = [(3 * column + 1) % width if width % 3 else width - 1 - column for column in range(width)]
    for rows in ROWS:
        x = _numbers(rows, width, dtype)
        turned = mx.compile(lambda x: mx.stack([x[:, column] for column in order], axis=1))(x)
        assert turned.tolist() == [[row[column] for column in order] for row in x.tolist()]


@pytest.mark.parametrize("columns", [(0, 1), (1, 4), (4, 2, 3)])
def test_some_columns(columns: tuple[int, ...]) -> None:
    """Nothing behind the last column that is wanted is read: the last row ends where the memory may end."""
    for rows in ROWS:
        x = _numbers(rows, 5, mx.float32)
        weighted = mx.compile(lambda x: sum(number * x[:, column] for number, column in enumerate(columns, 2)))(x)
        want = sum(number * np.array(x)[:, column] for number, column in enumerate(columns, 2))
        assert np.array_equal(np.array(weighted), want)


def test_they_are_one_kernel() -> None:
    x = mx.ones((100, 6))
    (plan,) = plans_of(mx.compile(lambda x: mx.stack([x[:, column] + column for column in range(6)], axis=1)), x)
    text = str(plan)
    assert text.count("kernel rows") == 1
    assert text.count("by 6") == 2


def test_an_input_that_ends_may_hold_them() -> None:
    """Columns are stored where others are read."""

    def swapped(x: mx.array) -> mx.array:
        return mx.stack([x[:, 1] + 1, x[:, 0] + 2], axis=1)

    x = mx.arange(200.0).reshape(100, 2) * 1
    want = np.array(x)[:, ::-1] + [1, 2]
    for _ in range(3):
        x = mx.compile(swapped)(x)
        assert x.tolist() == want.tolist()
        want = want[:, ::-1] + [1, 2]


def test_long_formulas_of_columns() -> None:
    """The body of the kernel is cut, so columns are read and written in its pieces."""

    def steps(x: mx.array) -> mx.array:
        columns = [x[:, column] for column in range(5)]
        for _ in range(40):
            columns = [one * 0.5 + other for one, other in zip(columns, [*columns[1:], columns[0]], strict=True)]
        return mx.stack(columns, axis=1)

    for rows in (100, 5000):
        x = _numbers(rows, 5, mx.float32)
        want = np.array(x)
        for _ in range(40):
            want = want * np.float32(0.5) + np.roll(want, -1, axis=1)
        assert mx.compile(steps)(x).tolist() == want.tolist()


def test_a_column_that_a_later_piece_needs_again() -> None:
    """Another column is only needed in the piece that reads both."""

    def steps(x: mx.array) -> mx.array:
        first = one = x[:, 0] + x[:, 1]
        for _ in range(150):
            one = one * 0.5 + 1
        return one + x[:, 0] * first

    x = _numbers(3000, 3, mx.float32)
    first, second, _ = np.array(x).T
    want = first + second
    for _ in range(150):
        want = want * np.float32(0.5) + 1
    assert np.array_equal(np.array(mx.compile(steps)(x)), want + first * (first + second))
