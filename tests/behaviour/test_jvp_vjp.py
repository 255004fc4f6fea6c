"""`jvp` and `vjp`: what goes in, what comes out, and that the two agree."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_close


def product_and_sine(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
    return x * y, mx.sin(x)


def test_jvp_gives_outputs_and_tangents_in_lists() -> None:
    outputs, tangents = mx.jvp(mx.sin, [mx.array(0.0)], [mx.array(2.0)])
    assert repr(outputs) == "[array(0, dtype=float32)]"
    assert repr(tangents) == "[array(2, dtype=float32)]"


def test_vjp_gives_outputs_and_cotangents_in_lists() -> None:
    outputs, cotangents = mx.vjp(mx.sin, [mx.array(0.0)], [mx.array(2.0)])
    assert repr(outputs) == "[array(0, dtype=float32)]"
    assert repr(cotangents) == "[array(2, dtype=float32)]"


def test_jvp_of_several_inputs_and_outputs() -> None:
    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    outputs, tangents = mx.jvp(product_and_sine, [x, y], [mx.ones(2), mx.zeros(2)])
    assert_close(outputs, [[3.0, 8.0], np.sin([1.0, 2.0])])
    assert_close(tangents, [[3.0, 4.0], np.cos([1.0, 2.0])])


def test_vjp_of_several_inputs_and_outputs() -> None:
    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    _, cotangents = mx.vjp(product_and_sine, [x, y], [mx.ones(2), mx.array([0.0, 10.0])])
    assert_close(cotangents, [[3.0, 4.0 + 10 * np.cos(2.0)], [1.0, 2.0]])


def test_an_output_that_does_not_depend_on_the_input() -> None:
    constant = mx.array([5.0, 6.0])
    _, tangents = mx.jvp(lambda x: (x * 2, constant), [mx.ones(2)], [mx.ones(2)])
    assert [t.tolist() for t in tangents] == [[2.0, 2.0], [0.0, 0.0]]
    _, cotangents = mx.vjp(lambda x: (x * 2, constant), [mx.ones(2)], [mx.ones(2), mx.ones(2)])
    assert cotangents[0].tolist() == [2.0, 2.0]


def test_the_input_returned_as_it_is() -> None:
    assert mx.jvp(lambda x: x, [mx.array(1.0)], [mx.array(4.0)])[1][0].item() == 4.0
    assert mx.vjp(lambda x: x, [mx.array(1.0)], [mx.array(4.0)])[1][0].item() == 4.0
    assert mx.vjp(lambda x: (x, x), [mx.array(1.0)], [mx.array(4.0), mx.array(3.0)])[1][0].item() == 7.0


FUNCTIONS = {
    "matmul": lambda x: x @ x.T,
    "softmax": lambda x: mx.softmax(x, axis=-1) * x,
    "normalise": lambda x: (x - x.mean(axis=-1, keepdims=True)) * mx.rsqrt(x.var(axis=-1, keepdims=True) + 0.1),
    "views": lambda x: mx.concatenate([x[:, ::-1], x.reshape(4, 3)[:3].T], axis=1),
    "gather": lambda x: x[mx.array([0, 2, 2])] * x[:, mx.array([1])],
    "where": lambda x: mx.where(x > 0, mx.exp(x), x * x),
    "maximum": lambda x: mx.maximum(x, 0.1) + x.max(axis=0),
    "broadcast": lambda x: mx.broadcast_to(x[:1], (5, 4)) * x[0, 0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_modes_agree(name: str) -> None:
    """The inner products <v, J u> and <J' v, u> are the same number."""
    function = FUNCTIONS[name]
    generator = np.random.default_rng(11)
    x, u = (mx.array(generator.normal(size=(3, 4)), dtype=mx.float64) for _ in range(2))
    outputs, tangents = mx.jvp(function, [x], [u])
    v = mx.array(generator.normal(size=outputs[0].shape), dtype=mx.float64)
    _, cotangents = mx.vjp(function, [x], [v])
    forward, backward = (v * tangents[0]).sum().item(), (cotangents[0] * u).sum().item()
    assert forward == pytest.approx(backward, rel=1e-9)
    assert abs(forward) > 1e-6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jvp_agrees_with_central_differences(name: str) -> None:
    function = FUNCTIONS[name]
    generator = np.random.default_rng(12)
    x, u = (mx.array(generator.normal(size=(3, 4)), dtype=mx.float64) for _ in range(2))
    step = mx.array(1e-6, dtype=mx.float64)
    expected = (function(x + step * u) - function(x - step * u)) / (2 * step)
    assert_close(mx.jvp(function, [x], [u])[1][0], expected, rtol=1e-6, atol=1e-7)


def test_jvp_of_vjp_and_back() -> None:
    def cubic(x: mx.array) -> mx.array:
        return x * x * x

    x, one = mx.array(2.0), mx.array(1.0)
    forward_over_reverse = mx.jvp(lambda a: mx.vjp(cubic, [a], [one])[1][0], [x], [one])[1][0]
    reverse_over_forward = mx.vjp(lambda a: mx.jvp(cubic, [a], [one])[1][0], [x], [one])[1][0]
    assert forward_over_reverse.item() == 12.0
    assert reverse_over_forward.item() == 12.0


def test_tangents_may_depend_on_an_outer_differentiation() -> None:
    """Tangents of two nested transformations are not confused."""

    def outer(x: mx.array) -> mx.array:
        return x * mx.jvp(lambda y: x + y, [mx.array(1.0)], [mx.array(1.0)])[1][0]

    assert mx.jvp(outer, [mx.array(1.0)], [mx.array(1.0)])[1][0].item() == 1.0
    assert mx.grad(lambda x: x * mx.grad(lambda y: x * y)(mx.array(7.0)))(mx.array(3.0)).item() == 6.0


def test_tangents_of_comparisons_keep_the_dtype_of_what_is_compared() -> None:
    x = mx.array([[1.0, -1.0]], mx.float16)
    for function in (lambda x: x > 0, lambda x: (x == 1).T, lambda x: mx.expand_dims(x < x, 0)):
        (output,), (tangent,) = mx.jvp(function, [x], [x])
        assert output.dtype == mx.bool_
        assert (tangent.dtype, tangent.shape) == (mx.float16, output.shape)
        assert not mx.any(tangent)
    (_,), (tangent,) = mx.jvp(mx.argmax, [x], [x])
    assert tangent.dtype == mx.uint32
