"""Arrays of short rows that are computed column by column, with the bits of walking along the rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of

Function = Callable[[mx.array], mx.array]


def softmax(x: mx.array) -> mx.array:
    return mx.softmax(x, axis=-1)


def directions(x: mx.array) -> mx.array:
    return x / mx.sqrt(mx.sum(x * x, axis=-1, keepdims=True))


def rates(state: mx.array) -> mx.array:
    x, y, z = (state[..., column] for column in range(3))
    return mx.stack([y - x, x * (2 - z) - y, x * y - z], axis=-1)


def steps(state: mx.array) -> mx.array:
    for _ in range(3):
        middle = state + 0.5 * rates(state)
        state = state + 0.1 * rates(middle)
    return state


def steps_of_rows(state: mx.array) -> mx.array:
    return mx.transpose(steps(mx.transpose(state)))


def moved(state: mx.array) -> mx.array:
    place, speed = state[:, :2], state[:, 2:]
    distance = mx.max(mx.abs(place), axis=1, keepdims=True)
    return state * 0.5 + mx.concatenate([speed, -place / (1 + distance)], axis=1)


def forces(x: mx.array) -> mx.array:
    d = x[:, None] - x[None]
    squares = mx.sum(d * d, axis=-1)
    return mx.sum(d * mx.exp(-squares)[..., None], axis=1)


def blended(x: mx.array) -> mx.array:
    share = x[..., 3:]
    return x[..., :3] * share + mx.sqrt(mx.abs(x[..., 1:])) * (1 - share)


COLOURS = mx.array([[0.37 * row, 0.5 - row, 3.0] for row in range(20)])


def between_pixels(place: mx.array) -> mx.array:
    """Colours between those of two neighbouring pixels."""
    pixel = mx.floor(mx.clip(mx.abs(place) * 5, 0, 18))
    share, number = (mx.abs(place) - pixel)[..., None], pixel.astype(mx.int32)
    return COLOURS[number] * (1 - share) + COLOURS[number + 1] * share


def gradient(function: Function) -> Function:
    return mx.grad(lambda x: mx.sum(mx.sin(function(x))))


PROGRAMS: list[tuple[Function, tuple[int, ...], int]] = [
    (softmax, (300, 5), 0),
    (softmax, (2, 150, 3), 1),
    (directions, (1001, 3), 0),
    (steps, (257, 3), 0),
    (steps_of_rows, (3, 300), 1),
    (moved, (300, 4), 0),
    (blended, (300, 4), 0),
    (blended, (5, 257, 4), 0),
    (between_pixels, (700,), 0),
]
"""Functions, shapes of arguments, and an axis along which results do not depend on each other."""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16], ids=str)
@pytest.mark.parametrize(("function", "shape", "axis"), PROGRAMS)
def test_bits_stay_the_same(function: Function, shape: tuple[int, ...], axis: int, dtype: mx.Dtype) -> None:
    """Of a few rows, no columns are computed."""
    x = mx.random.normal(shape, key=mx.random.key(1)).astype(dtype)
    for made in (function, gradient(function)):
        few = range(0, shape[axis], 100)
        parts = [made(mx.take(x, mx.arange(start, min(start + 100, shape[axis])), axis=axis)) for start in few]
        assert_same_bits(made(x), mx.concatenate(parts, axis=axis))


@pytest.mark.parametrize(("count", "ndim"), [(40, 3), (600, 2)])
def test_forces_are_added_in_order(count: int, ndim: int) -> None:
    """The sums of columns have the order of the sums of rows, as if each operation was evaluated by itself."""
    x = mx.random.normal((count, ndim), key=mx.random.key(2))
    d = evaluated(x[:, None] - x[None])
    squares = evaluated(mx.sum(evaluated(d * d), axis=-1))
    products = evaluated(d * evaluated(mx.exp(-squares))[..., None])
    assert_same_bits(mx.compile(forces)(x), evaluated(mx.sum(products, axis=1)))


def evaluated(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


@pytest.mark.parametrize(("function", "shape"), [program[:2] for program in PROGRAMS])
def test_they_are_one_kernel(function: Function, shape: tuple[int, ...]) -> None:
    (plan,) = plans_of(mx.compile(function), mx.ones(shape))
    assert str(plan).count("kernel rows") == 1


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [((300, 4), ["kernel rows=0"]), ((100, 4), ["kernel rows=1"]), ((300, 6), ["kernel rows=1"])],
    ids=["narrow", "few", "wide"],
)
def test_a_column_that_is_spread_over_narrow_rows_is_read_once(shape: tuple[int, ...], kinds: list[str]) -> None:
    (plan,) = plans_of(mx.compile(lambda x: x[:, 1:] * x[:, :1]), mx.ones(shape))
    lines = [line for line in str(plan).splitlines() if line.startswith("kernel rows")]
    assert [line[: len(kind)] for line, kind in zip(lines, kinds, strict=True)] == kinds


def test_gradients_of_columns_do_not_nest_what_is_padded() -> None:
    """Where a column of zeros around another one was computed as such, formulas grew with the power of the steps."""
    plans_of(mx.compile(gradient(lambda x: steps(steps(x)))), mx.ones((300, 3)))
