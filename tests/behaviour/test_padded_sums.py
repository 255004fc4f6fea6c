"""Gradients of programs that read an array part by part: the bits are those of adding up cotangents that are padded
with zeros, and the work grows in proportion to the number of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits
from weft.graph.node import reachable
from weft.primitives import padded_sums
from weft.transforms import known_gradients

Function = Callable[[mx.array], mx.array]


def read_by(parts: Callable[[mx.array], list[mx.array]]) -> Function:
    """A function that uses each part in another way, one after the other."""

    def function(x: mx.array) -> mx.array:
        total = mx.zeros((), x.dtype)
        for number, part in enumerate(parts(x)):
            total = total + mx.sum(mx.tanh(part * (number - 3)))
        return total

    return function


def between(x: mx.array) -> mx.array:
    """What is not padded comes before, among and after the parts, and is added in this order."""
    total = mx.sum(mx.sin(x))
    for t in range(3):
        total = total + mx.sum(mx.exp(x[t]) * t)
    total = total + mx.sum(mx.cos(x) * 3)
    for t in range(3, 7):
        total = total + mx.sum(mx.exp(x[t]) * t)
    return total + mx.sum(x * x)


FUNCTIONS: dict[str, Function] = {
    "rows": read_by(lambda x: [x[t] for t in range(7)]),
    "some rows": read_by(lambda x: [x[t] for t in (5, 1, 2)]),
    "one row": read_by(lambda x: [x[2], x[2], x[2]]),
    "columns": read_by(lambda x: [x[:, t] for t in range(6)]),
    "last column first": read_by(lambda x: [x[:, -t - 1] for t in range(6)]),
    "rows twice": read_by(lambda x: [x[t // 2] for t in range(14)]),
    "rows of which some come again": read_by(lambda x: [x[t] for t in (0, 1, 1, 2, 0, 3, 1, 4, 5)]),
    "spans": read_by(lambda x: [x[:, :2], x[:, 2:3], x[:, 4:6]]),
    "reversed spans": read_by(lambda x: [x[1::-1], x[4:1:-1], x[6:5:-1]]),
    "nothing": read_by(lambda x: [x[0:0], x[0], x[3:3], x[6]]),
    "elements": read_by(lambda x: [x[i, j] for i in range(7) for j in range(6)]),
    "boxes": read_by(lambda x: [x[0:3, 0:2], x[3:4, 1:2], x[0:3, 2:6], x[5:6]]),
    "boxes that are not in rows": read_by(lambda x: [x[0:3, 0:2], x[2:5, 2:4]]),
    "windows": read_by(lambda x: [x[t : t + 3] for t in range(5)]),
    "boxes of which one is in another": read_by(lambda x: [x[0:4], x[1:2], x[0:4, 1:2]]),
    "all and rows": read_by(lambda x: [x, x[0], x[1], x]),
    "steps": read_by(lambda x: [x[::2], x[1::2], x[0], x[1]]),
    "parts of parts": read_by(lambda x: [row[t] for row in mx.split(x, 7) for t in [0]]),
    "split": read_by(lambda x: [part for row in mx.split(x, 3, axis=1) for part in mx.split(row, 7)]),
    "between": between,
    "no function of the parts": lambda x: mx.sum(x[0] * x[3]) + mx.sum(x[1] * x[2]),
}


def numbers(dtype: mx.Dtype, shape: tuple[int, ...] = (7, 6)) -> mx.array:
    generator = np.random.default_rng(5)
    drawn = generator.normal(size=shape)
    drawn[0, 0] = np.inf
    drawn[1, 1] = np.nan
    drawn[2] = 0.0
    drawn[3] = -0.0
    return mx.array(drawn.astype(np.float32)).astype(dtype)


@pytest.fixture
def fewest(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many sums as possible are joined."""
    monkeypatch.setattr(padded_sums, "FEWEST_JOINED", 2)
    return 2


def added_up(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function if padded arrays are added one by one."""
    with monkeypatch.context() as context:
        context.setattr(padded_sums, "FEWEST_JOINED", 1 << 20)
        known_gradients.forget()
        found = function(*args)
        mx.eval(found)
        known_gradients.forget()
        return found


@pytest.mark.some_rows(14)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("fewest", [2, padded_sums.FEWEST_JOINED])
def test_gradients_have_the_bits_of_sums(
    name: str, dtype: mx.Dtype, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(padded_sums, "FEWEST_JOINED", fewest)
    x, function = numbers(dtype), FUNCTIONS[name]
    expected = added_up(monkeypatch, mx.grad(function), x)
    assert_same_bits(mx.grad(function)(x), expected)
    assert_same_bits(mx.compile(mx.grad(function))(x), expected)


@pytest.mark.some_rows(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformed_gradients_have_the_bits_of_sums(name: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function = FUNCTIONS[name]
    x = numbers(mx.float32)
    rows = mx.stack([x, -x, x + 1])

    def second(x: mx.array) -> mx.array:
        return mx.grad(lambda x: mx.sum(mx.grad(function)(x) * mx.sin(x)))(x)

    def mapped(x: mx.array) -> mx.array:
        return mx.grad(lambda x: mx.sum(mx.vmap(function)(x)))(x)

    def forward(x: mx.array) -> list[mx.array]:
        return mx.jvp(mx.grad(function), [x], [mx.cos(x)])[1]

    for transformed, at in ((second, x), (mapped, rows), (mx.vmap(mx.grad(function)), rows), (forward, x)):
        expected = added_up(monkeypatch, transformed, at)
        assert_same_bits(transformed(at), expected)
        assert_same_bits(mx.compile(transformed)(at), expected)


@pytest.mark.some_rows(5)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "split"])
def test_shapeless_gradients_have_the_bits_of_sums(name: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function = FUNCTIONS[name]
    compiled = mx.compile(mx.grad(function), shapeless=True)
    shapes = [(7, 6)] if name == "parts of parts" else [(7, 6), (7, 9), (11, 6), (12, 8)]
    for shape in shapes:
        x = numbers(mx.float32, shape)
        assert_same_bits(compiled(x), added_up(monkeypatch, mx.grad(function), x))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.complex64], ids=str)
def test_zeros_have_the_sign_that_sums_give_them(dtype: mx.Dtype, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.ones((8, 4)).astype(dtype)
    given = np.array([complex(-0.0, -0.0), complex(0.0, -0.0), complex(-0.0, 1.0), -1.0], np.complex64)
    cotangent = mx.array(given if dtype == mx.complex64 else given.real).astype(dtype)

    def made(count: int) -> mx.array:
        return mx.vjp(lambda x: [x[t] for t in range(count)], [x], [cotangent] * count)[1][0]

    for count in range(1, 9):
        assert_same_bits(made(count), added_up(monkeypatch, made, count))
    numbers_made = np.array(made(8).astype(mx.complex64)).view(np.float32)
    assert not np.signbit(numbers_made[numbers_made == 0]).any()


def test_complex_gradients(fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.array(np.random.default_rng(1).normal(size=(6, 4, 2)).astype(np.float32).view(np.complex64)[..., 0])

    def function(x: mx.array) -> mx.array:
        return sum((mx.sum(mx.real(mx.exp(x[t]) * (t - 2j))) for t in range(6)), mx.array(0.0))

    expected = added_up(monkeypatch, mx.grad(function), x)
    assert_same_bits(mx.grad(function)(x), expected)


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8], ids=str)
def test_sums_of_integers(dtype: mx.Dtype, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.arange(35).reshape(7, 5).astype(dtype)
    zero = p.zeros((), dtype)
    order = [3, 0, 6, 3, 1, 2, 4, 5, 3]
    arrays = [p.pad(x[t : t + 1], zero, low=(t, 0), high=(6 - t, 0)) for t in order]
    padded = [found for found in map(p.padded, arrays) if found is not None]
    assert len(padded) == len(order)
    for total in (None, x):
        expected = added_up(monkeypatch, p.plus_padded, total, padded)
        assert_same_bits(p.plus_padded(total, padded), expected)


def test_padding_with_other_numbers_is_added() -> None:
    x = mx.array([1.0, 2.0, 3.0])
    assert p.padded(mx.pad(x, 1)) is not None
    assert p.padded(mx.pad(x, 1, constant_values=1.0)) is None
    assert p.padded(mx.pad(x, 1, constant_values=-0.0)) is None
    assert p.padded(x) is None


def test_the_work_grows_with_the_number_of_parts() -> None:
    def elements_made(count: int) -> int:
        x = mx.ones((4, count))
        gradient = mx.grad(lambda x: sum((mx.sum(mx.sin(x[:, t])) for t in range(count)), mx.array(0.0)))(x)
        return sum(node.size for node in reachable([gradient.node]) if node.primitive is not None)

    assert elements_made(80) < 2.1 * elements_made(40)


def test_parts_of_several_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: mx.array) -> mx.array:
        q, r = mx.linalg.qr(x)
        return sum((mx.sum(mx.sin(q[:, t])) + mx.sum(mx.exp(r[t])) for t in range(6)), mx.array(0.0))

    x = mx.random.normal((6, 6), key=mx.random.key(3))
    expected = added_up(monkeypatch, mx.grad(function), x)
    assert_same_bits(mx.grad(function)(x), expected)
    assert_same_bits(mx.compile(mx.grad(function))(x), expected)


def test_streams_are_kept() -> None:
    """The sum is made on the stream on which the last part was read."""
    stream = mx.new_stream(mx.default_device())
    x = mx.ones((8, 2))

    def function(x: mx.array) -> mx.array:
        with mx.stream(stream):
            return sum((mx.sum(mx.sin(x[t])) for t in range(8)), mx.array(0.0))

    gradient = mx.grad(function)(x)
    assert gradient.node.stream == stream
    assert_same_bits(gradient, mx.cos(x))
