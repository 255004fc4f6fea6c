"""`grad` and `value_and_grad`: printed results, which arguments, trees, higher orders, `stop_gradient`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_close, structure


def squared_error(w: mx.array, x: mx.array, y: mx.array) -> mx.array:
    return mx.mean(mx.square(w * x - y))


def regression_data() -> tuple[mx.array, mx.array, mx.array]:
    return mx.array(1.0), mx.array([0.5, -0.5]), mx.array([1.5, -1.5])


def test_grad_of_sine() -> None:
    assert repr(mx.grad(mx.sin)(mx.array(mx.pi))) == "array(-1, dtype=float32)"


def test_grad_of_grad_of_sine() -> None:
    assert repr(mx.grad(mx.grad(mx.sin))(mx.array(mx.pi / 2))) == "array(-1, dtype=float32)"


def test_gradient_of_a_loss_is_with_respect_to_the_first_argument() -> None:
    w, x, y = regression_data()
    assert repr(squared_error(w, x, y)) == "array(1, dtype=float32)"
    assert repr(mx.grad(squared_error)(w, x, y)) == "array(-1, dtype=float32)"


def test_argnums_chooses_another_argument() -> None:
    w, x, y = regression_data()
    assert repr(mx.grad(squared_error, argnums=1)(w, x, y)) == "array([-1, 1], dtype=float32)"


def test_argnums_as_a_sequence_gives_a_tuple() -> None:
    w, x, y = regression_data()
    gradients = mx.grad(squared_error, argnums=(0, 1))(w, x, y)
    assert isinstance(gradients, tuple)
    assert repr(gradients) == "(array(-1, dtype=float32), array([-1, 1], dtype=float32))"


def test_parameters_in_a_dict() -> None:
    def loss(parameters: dict[str, mx.array], x: mx.array, y: mx.array) -> mx.array:
        return mx.mean(mx.square(parameters["weight"] * x + parameters["bias"] - y))

    w, x, y = regression_data()
    gradient = mx.grad(loss)({"weight": w, "bias": mx.array(0.0)}, x, y)
    assert repr(gradient) == "{'weight': array(-1, dtype=float32), 'bias': array(0, dtype=float32)}"


def test_value_and_grad() -> None:
    w, x, y = regression_data()
    value, gradient = mx.value_and_grad(squared_error)(w, x, y)
    assert repr(value) == "array(1, dtype=float32)"
    assert repr(gradient) == "array(-1, dtype=float32)"


def test_value_and_grad_evaluates_the_function_once() -> None:
    calls = []

    def loss(x: mx.array) -> mx.array:
        calls.append(1)
        return x * x

    mx.value_and_grad(loss)(mx.array(2.0))
    assert len(calls) == 1


def test_value_and_grad_passes_further_results_through() -> None:
    def loss(x: mx.array) -> tuple[Any, ...]:
        return x.sum(), x * 2, "note"

    (value, doubled, note), gradient = mx.value_and_grad(loss)(mx.array([1.0, 2.0]))
    assert repr(value) == "array(3, dtype=float32)"
    assert repr(doubled) == "array([2, 4], dtype=float32)"
    assert note == "note"
    assert repr(gradient) == "array([1, 1], dtype=float32)"


def cubic(x: mx.array, y: mx.array) -> mx.array:
    return x * x * y


@pytest.mark.parametrize(
    ("choice", "args", "kwargs", "expected"),
    [
        ({"argnums": [0]}, (2.0, 3.0), {}, "array(12, dtype=float32)"),
        ({"argnames": "y"}, (2.0,), {"y": 3.0}, "(None, {'y': array(4, dtype=float32)})"),
        ({"argnums": [], "argnames": "y"}, (2.0,), {"y": 3.0}, "(None, {'y': array(4, dtype=float32)})"),
        (
            {"argnames": ["x", "y"]},
            (),
            {"x": 2.0, "y": 3.0},
            "(None, {'x': array(12, dtype=float32), 'y': array(4, dtype=float32)})",
        ),
        (
            {"argnums": 0, "argnames": "y"},
            (2.0,),
            {"y": 3.0},
            "(array(12, dtype=float32), {'y': array(4, dtype=float32)})",
        ),
    ],
)
def test_argnames(choice: dict, args: tuple, kwargs: dict, expected: str) -> None:
    arrays = [mx.array(value) for value in args]
    named = {name: mx.array(value) for name, value in kwargs.items()}
    assert repr(mx.grad(cubic, **choice)(*arrays, **named)) == expected
    value, gradients = mx.value_and_grad(cubic, **choice)(*arrays, **named)
    assert repr(value) == "array(12, dtype=float32)"
    assert repr(gradients) == expected


def test_the_gradient_has_the_tree_of_the_argument() -> None:
    parameters = {
        "layers": [{"w": mx.array([1.0, 2.0])}, {"w": mx.array([3.0, 4.0])}],
        "pair": (mx.array(2.0), [mx.array([[5.0]])]),
    }

    def loss(p: Any) -> mx.array:
        first, second = p["layers"]
        return (first["w"] * second["w"]).sum() * p["pair"][0] + p["pair"][1][0].sum()

    gradient = mx.grad(loss)(parameters)
    assert structure(gradient) == structure(parameters)
    assert gradient["layers"][0]["w"].tolist() == [6.0, 8.0]
    assert gradient["layers"][1]["w"].tolist() == [2.0, 4.0]
    assert gradient["pair"][0].item() == 11.0
    assert gradient["pair"][1][0].tolist() == [[1.0]]


def test_an_argument_that_is_not_used_has_gradient_zero() -> None:
    gradient = mx.grad(lambda x, y: (x * 2).sum(), argnums=1)(mx.ones(2), mx.ones((2, 3)))
    assert gradient.tolist() == [[0.0] * 3] * 2
    assert gradient.dtype == mx.float32


def test_the_same_array_used_many_times() -> None:
    assert mx.grad(lambda x: x * x * x + x)(mx.array(2.0)).item() == 13.0


def test_captured_arrays_are_not_differentiated() -> None:
    captured = mx.array(3.0)
    assert mx.grad(lambda x: x * captured)(captured).item() == 3.0


def test_an_input_of_grad_has_a_value_to_branch_on() -> None:
    def absolute(x: mx.array) -> mx.array:
        return x if x > 0 else -x

    assert mx.grad(absolute)(mx.array(3.0)).item() == 1.0
    assert mx.grad(absolute)(mx.array(-3.0)).item() == -1.0


def test_a_value_read_while_differentiating_is_a_constant() -> None:
    gradient = mx.grad(lambda x: (x * x.sum().item()).sum())(mx.array([1.0, 2.0]))
    assert gradient.tolist() == [3.0, 3.0]


def test_higher_orders_of_a_power() -> None:
    derivative = lambda x: x**5  # noqa: E731 - reassigned in the loop
    for expected in (80.0, 160.0, 240.0, 240.0, 120.0, 0.0):
        derivative = mx.grad(derivative)
        assert derivative(mx.array(2.0)).item() == pytest.approx(expected, rel=1e-5)


def test_mixed_second_derivative() -> None:
    mixed = mx.grad(mx.grad(cubic, argnums=0), argnums=1)
    assert mixed(mx.array(2.0), mx.array(3.0)).item() == 4.0


def test_hessian_through_a_matmul() -> None:
    matrix = mx.array([[2.0, 1.0], [1.0, 3.0]])
    gradient = mx.grad(lambda x: 0.5 * (x @ matrix @ x))
    hessian = mx.vmap(lambda direction: mx.jvp(gradient, [mx.array([1.0, -1.0])], [direction])[1][0])(mx.eye(2))
    assert_close(hessian, matrix)


def test_gradient_of_a_function_that_updates_in_place() -> None:
    def loss(x: mx.array) -> mx.array:
        y = mx.zeros((3,))
        y[0] = x[1] * 2
        y[1:] += x[1:] * x[1:]
        x = x * 1
        x *= 3
        return (y * mx.array([1.0, 10.0, 100.0])).sum() + x.sum()

    gradient = mx.grad(loss)(mx.array([1.0, 2.0, 3.0]))
    assert gradient.tolist() == [3.0, 2.0 + 40.0 + 3.0, 600.0 + 3.0]


def test_the_arguments_themselves_are_left_alone() -> None:
    def loss(x: mx.array) -> mx.array:
        x += 1
        return (x * x).sum()

    x = mx.array([1.0, 2.0])
    assert mx.grad(loss)(x).tolist() == [4.0, 6.0]
    assert x.tolist() == [1.0, 2.0]


def test_stop_gradient() -> None:
    def loss(x: mx.array) -> mx.array:
        return x * mx.stop_gradient(x * x)

    assert mx.grad(loss)(mx.array(3.0)).item() == 9.0
    assert mx.grad(mx.grad(loss))(mx.array(3.0)).item() == 0.0
    assert mx.jvp(loss, [mx.array(3.0)], [mx.array(1.0)])[1][0].item() == 9.0
    assert mx.vmap(mx.grad(loss))(mx.array([1.0, 2.0])).tolist() == [1.0, 4.0]
    assert mx.compile(mx.grad(loss))(mx.array(3.0)).item() == 9.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_gradient_has_the_dtype_of_the_argument(dtype: str) -> None:
    x = mx.array([1.0, 2.0], dtype=getattr(mx, dtype))
    gradient = mx.grad(lambda a: (a.astype(mx.float32) * 3).sum())(x)
    assert gradient.dtype == x.dtype
    assert gradient.tolist() == [3.0, 3.0]


def test_gradient_through_broadcasting_sums_over_it() -> None:
    row, column = mx.ones((1, 3)), mx.ones((2, 1))
    by_row, by_column = mx.grad(lambda r, c: (r * c * 2).sum(), argnums=(0, 1))(row, column)
    assert by_row.tolist() == [[4.0, 4.0, 4.0]]
    assert by_column.tolist() == [[6.0], [6.0]]


def test_gradient_against_central_differences_of_a_small_network() -> None:
    generator = np.random.default_rng(3)
    weights = [generator.normal(size=size) for size in ((4, 5), (5,), (5, 3))]
    x, labels = generator.normal(size=(6, 4)), generator.integers(0, 3, 6)

    def loss(w1: mx.array, b1: mx.array, w2: mx.array) -> mx.array:
        logits = mx.tanh(mx.array(x, dtype=mx.float64) @ w1 + b1) @ w2
        picked = mx.take_along_axis(logits, mx.array(labels)[:, None], axis=-1)
        return mx.mean(mx.logsumexp(logits, axis=-1, keepdims=True) - picked)

    def loss_of(values: list[np.ndarray]) -> float:
        return loss(*(mx.array(value, dtype=mx.float64) for value in values)).item()

    gradients = mx.grad(loss, argnums=(0, 1, 2))(*(mx.array(w, dtype=mx.float64) for w in weights))
    for position, gradient in enumerate(gradients):
        direction = generator.normal(size=weights[position].shape)
        step = [1e-5 * direction if k == position else np.zeros_like(w) for k, w in enumerate(weights)]
        above = loss_of([w + s for w, s in zip(weights, step, strict=True)])
        below = loss_of([w - s for w, s in zip(weights, step, strict=True)])
        expected = (above - below) / 2e-5
        assert float((np.array(gradient) * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-9)
