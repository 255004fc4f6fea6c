"""Gradients of graphs like earlier ones, which are made from recordings: they are those of the function at hand."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from weft.transforms import known_gradients


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    known_gradients.forget()


def known() -> int:
    return len(known_gradients._known)


def test_a_like_graph_is_recorded_once_and_gives_the_gradient_of_other_values() -> None:
    for number in range(5):
        x, scale = mx.array([1.0 + number]), mx.array([2.0 * number])
        found = mx.grad(lambda x, scale=scale: mx.sum(mx.sin(x) * x * scale))(x)
        assert found.item() == pytest.approx(((mx.cos(x) * x + mx.sin(x)) * scale).item())
    assert known() == 1


def test_numbers_of_python_may_change() -> None:
    for exponent in (2.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 3.0):
        assert mx.grad(lambda x, e=exponent: x**e * e)(mx.array(2.0)).item() == pytest.approx(
            exponent**2 * 2 ** (exponent - 1)
        )


def test_a_decision_by_values_is_made_in_each_call() -> None:
    def function(x: mx.array) -> mx.array:
        return x * x if x.item() > 0 else -3 * x

    gradient = mx.grad(function)
    for value in (1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0):
        assert gradient(mx.array(value)).item() == (2 * value if value > 0 else -3)


def test_what_a_closure_holds_may_change() -> None:
    weights = [mx.array([1.0, 2.0])]
    gradient = mx.grad(lambda x: mx.sum(x * weights[0]))
    for number in range(5):
        weights[0] = mx.array([1.0 * number, 2.0]) + 0
        assert gradient(mx.array([5.0, 6.0])).tolist() == [number, 2]


def test_arguments_may_be_unused_or_be_the_result() -> None:
    both = mx.grad(lambda x, y: x, argnums=(0, 1))
    for _ in range(4):
        one, zero = both(mx.array(1.0), mx.array(2.0))
        mx.eval(one, zero)
        assert (one.item(), zero.item()) == (1, 0)
        one += 1
    first = mx.vjp(lambda x, y: [x * y, y], [mx.array(2.0), mx.array(3.0)], [mx.array(1.0), mx.array(5.0)])[1]
    for _ in range(3):
        again = mx.vjp(lambda x, y: [x * y, y], [mx.array(2.0), mx.array(3.0)], [mx.array(1.0), mx.array(5.0)])[1]
        assert [x.item() for x in again] == [x.item() for x in first] == [3, 7]


def test_there_may_be_no_outputs_or_arguments() -> None:
    for _ in range(3):
        assert mx.vjp(lambda x: [], [mx.array(1.0)], [])[1][0].item() == 0
        assert mx.vjp(lambda: [mx.array(1.0)], [], [mx.array(1.0)])[1] == []


def test_cotangents_may_be_padded_with_other_arrays_or_numbers() -> None:
    parts = [mx.array([float(number), 10.0 * number]) for number in range(6)]
    mx.eval(parts)

    def function(x: mx.array) -> list[mx.array]:
        for part in parts:
            x = x * mx.sum(part * 0 + 0.5)
        return [x] * 6

    for order, around in [((0, 1, 2, 3, 4, 5), 0)] * 3 + [((5, 4, 3, 2, 1, 0), 0), ((0, 1, 2, 3, 4, 5), 1)]:
        inner = [parts[number] for number in order]
        padded = [mx.pad(part, (2 * n, 10 - 2 * n), constant_values=around) for n, part in enumerate(inner)]
        (found,) = mx.vjp(function, [mx.zeros((12,))], padded)[1]
        assert found.tolist() == (mx.concatenate(inner) + 5 * around).tolist()


@pytest.mark.parametrize("wrap", [mx.grad, mx.compile, mx.vmap, lambda f: mx.compile(mx.grad(f), shapeless=True)])
def test_transformations_of_replayed_gradients(wrap: Callable[..., Any]) -> None:
    x = mx.array([0.5, 1.5]) if wrap is mx.vmap else mx.array(0.5)
    gradient = mx.grad(lambda x: mx.exp(x) * x * 3)
    expected = wrap(gradient)(x).tolist()
    for _ in range(4):
        assert gradient(mx.array(0.5)).item() == pytest.approx((mx.exp(mx.array(0.5)) * 4.5).item())
        assert wrap(gradient)(x).tolist() == expected


def test_rules_of_users_are_called_each_time() -> None:
    factor = 0

    @mx.custom_function
    def function(x: mx.array) -> mx.array:
        return x * 2

    @function.vjp
    def backwards(primals: Any, cotangent: mx.array, output: mx.array) -> mx.array:
        nonlocal factor
        factor += 1
        return cotangent * factor

    gradient = mx.grad(lambda x: function(x) + 1)
    assert [gradient(mx.array(1.0)).item() for _ in range(5)] == [1, 2, 3, 4, 5]


def test_streams_are_those_of_the_operations() -> None:
    other = mx.new_stream(mx.cpu)
    for stream in (None, other, None, other, None, other):
        with mx.stream(stream or mx.default_stream(mx.cpu)):
            found = mx.grad(lambda x: mx.sin(x) * x)(mx.array(1.0))
        assert found.node.stream is (stream or mx.default_stream(mx.cpu))


def test_recordings_hold_no_arrays() -> None:
    captured = mx.ones((3,)) + 0
    mx.eval(captured)
    x = mx.array([1.0, 2.0, 3.0])
    for _ in range(4):
        mx.eval(mx.grad(lambda x, y=captured: mx.sum(mx.tanh(x) * y))(x))
    assert known() == 1
    references = [weakref.ref(captured.node), weakref.ref(x.node)]
    del captured, x
    gc.collect()
    assert [reference() for reference in references] == [None, None]
