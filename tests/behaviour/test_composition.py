"""Every transformation takes the result of every other: all orders up to depth three."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import Counted, assert_close, assert_same_bits

Function = Callable[[mx.array], mx.array]

LAST = 3  # the length of the last axis, over which `potential_gradient` sums


def potential_gradient(x: mx.array) -> mx.array:
    """`s x + Im exp((1/2 + i) x)` with `s = sum x**2` over the last axis.

    Both terms are gradients, so the Jacobian is symmetric: rows and columns of it have the same sums, and `grad` of
    the sum, `vjp` of ones and `jvp` of ones must agree.
    """
    squares = (x * x) @ mx.ones((LAST, LAST))
    return x * squares + mx.exp(0.5 * x) * mx.sin(x)


def expected_derivative(order: int, x: np.ndarray) -> np.ndarray:
    """The Jacobian applied to ones, `order` times, written out by hand."""
    total, squares = x.sum(-1, keepdims=True), (x * x).sum(-1, keepdims=True)
    polynomial = [
        x * squares,
        squares + 2 * x * total,
        4 * total + 2 * LAST * x,
        np.full_like(x, 6 * LAST),
    ][order]
    wave = ((0.5 + 1j) ** order * np.exp((0.5 + 1j) * x)).imag
    return polynomial + wave


def grad_of_sum(f: Function) -> Function:
    return mx.grad(lambda x: f(x).sum())


def value_and_grad_of_sum(f: Function) -> Function:
    return lambda x: mx.value_and_grad(lambda y: f(y).sum())(x)[1]


def jvp_of_ones(f: Function) -> Function:
    return lambda x: mx.jvp(f, [x], [mx.ones_like(x)])[1][0]


def vjp_of_ones(f: Function) -> Function:
    return lambda x: mx.vjp(f, [x], [mx.ones_like(x)])[1][0]


TRANSFORMATIONS: dict[str, Callable[[Function], Function]] = {
    "grad": grad_of_sum,
    "vjp": vjp_of_ones,
    "jvp": jvp_of_ones,
    "vmap": mx.vmap,
    "compile": mx.compile,
    "checkpoint": mx.checkpoint,
}
DIFFERENTIATING = {"grad", "vjp", "jvp", "value_and_grad"}
ORDERS = [order for depth in (1, 2, 3) for order in itertools.product(TRANSFORMATIONS, repeat=depth)]


def point() -> mx.array:
    """Enough axes for three nested vmaps, and one more."""
    return mx.array(np.linspace(-1, 1, 2 * 1 * 2 * LAST).reshape(2, 1, 2, LAST), dtype=mx.float32)


def compose(order: tuple[str, ...], f: Function) -> Function:
    for name in reversed(order):
        f = TRANSFORMATIONS[name](f)
    return f


@pytest.mark.some_rows(40)
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_every_order(order: tuple[str, ...]) -> None:
    x = point()
    result = compose(order, potential_gradient)(x)
    derivatives = sum(name in DIFFERENTIATING for name in order)
    assert_close(result, expected_derivative(derivatives, np.array(x, dtype=np.float64)), rtol=2e-4, atol=2e-4)
    if "compile" in order:
        uncompiled = tuple(name for name in order if name != "compile")
        assert_same_bits(result, compose(uncompiled, potential_gradient)(x))


@pytest.mark.parametrize("depth", [4, 5, 6])
def test_deeper_nests(depth: int) -> None:
    """Differentiating, mapping and compiling in turn, over and over."""
    f: Function = mx.sin
    for level in range(depth):
        f = mx.compile(mx.vmap(grad_of_sum(f))) if level % 2 else mx.vmap(mx.compile(jvp_of_ones(f)))
    x = np.linspace(0, 1, 3).reshape((1,) * depth + (3,))
    assert_close(f(mx.array(x, dtype=mx.float32)), np.sin(x + depth * np.pi / 2), rtol=1e-4, atol=1e-5)


def test_value_and_grad_inside_everything() -> None:
    x = point()
    expected = expected_derivative(1, np.array(x, dtype=np.float64))
    for transformation in (mx.vmap, mx.compile, mx.checkpoint):
        assert_close(transformation(value_and_grad_of_sum(potential_gradient))(x), expected, rtol=1e-4, atol=1e-5)
        assert_close(value_and_grad_of_sum(transformation(potential_gradient))(x), expected, rtol=1e-4, atol=1e-5)


def test_per_example_gradients() -> None:
    def loss(w: mx.array, x: mx.array, y: mx.array) -> mx.array:
        return mx.square(w @ x - y).sum()

    w, xs, ys = mx.array([[1.0, 2.0]]), mx.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), mx.array([[0.0], [1.0], [2.0]])
    per_example = mx.vmap(mx.grad(loss), in_axes=(None, 0, 0))
    expected = [mx.grad(loss)(w, x, y).tolist() for x, y in zip(xs, ys, strict=True)]
    assert per_example(w, xs, ys).tolist() == expected
    assert_same_bits(mx.compile(per_example)(w, xs, ys), per_example(w, xs, ys))


def test_jacobian_by_rows_and_by_columns() -> None:
    def f(x: mx.array) -> mx.array:
        return mx.stack([x[0] * x[1], mx.sin(x[2]), x.sum()])

    x, basis = mx.array([1.0, 2.0, 0.0]), mx.eye(3)
    expected = [[2.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    by_rows = mx.vmap(lambda v: mx.vjp(f, [x], [v])[1][0])(basis)
    by_columns = mx.vmap(lambda u: mx.jvp(f, [x], [u])[1][0], out_axes=1)(basis)
    assert by_rows.tolist() == expected
    assert by_columns.tolist() == expected


def test_a_transformed_compiled_function_is_not_compiled() -> None:
    """Each call differentiates anew, but the compiled function inside is not traced again."""
    inner = Counted(lambda x: x * x)
    outer = Counted(mx.compile(inner.function))
    gradient = mx.grad(outer.function)
    for value in (1.0, 2.0, 3.0):
        assert gradient(mx.array(value)).item() == 2 * value
    assert outer.calls == 3
    assert inner.calls == 1


def test_compiled_gradient_of_a_compiled_function_traces_once() -> None:
    inner = Counted(lambda x: mx.sin(x) * x)
    step = mx.compile(mx.value_and_grad(mx.compile(inner.function)))
    results: list[Any] = [step(mx.array(float(value))) for value in range(4)]
    assert inner.calls == 1
    assert_close([gradient for _, gradient in results], [np.sin(v) + v * np.cos(v) for v in range(4)])
