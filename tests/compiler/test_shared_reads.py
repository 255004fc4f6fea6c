"""Kernels that read the same large array in equal loops become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import weft.core as mx
from tests.checks import bits

ROWS, COLUMNS = 320, 256  # more bytes than `shared_size`
X = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(1))
Y = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(2))
W = mx.random.normal((COLUMNS, 64), key=mx.random.key(3))

Function = Callable[..., Sequence[Any]]


def steps_of(function: Function, *arrays: mx.array) -> int:
    """How many steps there are for the results, which are those of the operations one by one."""
    compiled = mx.compile(function)
    found = compiled(*arrays)
    mx.eval(found)
    expected = function(*arrays)
    for one in expected:
        mx.eval(one)
    assert [bits(one) for one in found] == [bits(one) for one in expected]
    return len(compiled.explain(*arrays).steps)


def assigned(x: mx.array, change: mx.array) -> mx.array:
    """An array with another interior."""
    copy = mx.array(x)
    copy[1:-1, 1:-1] = change
    return copy


ONE: dict[str, Function] = {
    "elementwise": lambda x, y: [x * 2, x + 1, mx.abs(x) + y],
    "slices": lambda x, y: [x[1:, 1:] - x[:-1, 1:], x[1:, 1:] - x[1:, :-1]],
    "another input each": lambda x, y: [x + y, x * y[::-1]],
    "one slow operation": lambda x, y: [mx.exp(x), x + y],
}
SEVERAL: dict[str, Function] = {
    "other loops": lambda x, y: [x[1:] - x[:-1], x[:, 1:] - x[:, :-1]],
    "nothing in common": lambda x, y: [x * 2, y * 2],
    "one needs the other": lambda x, y: [x * 2, x[1:] + (x * 2).sum(), x + mx.cumsum(x * 2)[::-1].reshape(x.shape)],
    "other parts": lambda x, y: [x[:160] + 1, x[160:] + 1],
    "slow operations in both": lambda x, y: [mx.exp(x), mx.sin(x)],
}


@pytest.mark.parametrize("name", ONE)
def test_what_reads_the_same_array_is_one_kernel(name: str) -> None:
    assert steps_of(ONE[name], X, Y) == 1
    assert steps_of(ONE[name], X[:32], Y[:32]) > 1


@pytest.mark.parametrize("name", SEVERAL)
def test_what_gains_nothing_stays_apart(name: str) -> None:
    assert steps_of(SEVERAL[name], X, Y) >= len(SEVERAL[name](X, Y))


def test_results_of_kernels_are_shared_too() -> None:
    """The second pair of kernels reads what the first one stores."""

    def waves(x: mx.array, y: mx.array) -> list[mx.array]:
        for _ in range(2):
            x, y = (
                assigned(x, x[2:, 1:-1] - y[:-2, 1:-1]),
                assigned(y, y[1:-1, 2:] + x[1:-1, :-2]),
            )
        return [x, y]

    apart = sum(steps_of(lambda *arrays, k=k: [waves(*arrays)[k]], X[:64], Y[:64]) for k in range(2))
    assert steps_of(waves, X, Y) < apart


def test_operands_and_results_of_calls_stay_apart() -> None:
    """They become parts of the call."""
    assert steps_of(lambda x, w: [mx.maximum(x, 0) @ w, x + 1], X, W) == 3


def test_what_is_updated_in_place_is_read_before() -> None:
    state = [mx.array(X), mx.array(Y)]

    def step() -> None:
        x, y = state
        state[0] = assigned(x, x[1:-1, 1:-1] + y[2:, 2:])
        state[1] = assigned(y, y[1:-1, 1:-1] - x[:-2, :-2])

    compiled = mx.compile(step, inputs=state, outputs=state)
    for _ in range(3):
        compiled()
    found = [bits(one) for one in state]
    state[:] = [mx.array(X), mx.array(Y)]
    for _ in range(3):
        step()
        mx.eval(state)
    assert found == [bits(one) for one in state]
