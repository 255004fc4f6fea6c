"""`custom_function` with vjp, jvp and vmap rules, and `checkpoint`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import weft.core as mx
from tests.checks import assert_same_bits


def product_with_rules() -> tuple[Any, list[tuple]]:
    """A product whose rules are deliberately wrong, to show which one was used; and a record of their calls."""
    calls: list[tuple] = []

    @mx.custom_function
    def product(x: mx.array, y: mx.array) -> mx.array:
        return x * y

    @product.vjp
    def product_vjp(primals: Any, cotangent: Any, output: Any) -> Any:
        calls.append(("vjp", primals, cotangent, output))
        x, y = primals
        return 10 * cotangent * y, 10 * cotangent * x

    @product.jvp
    def product_jvp(primals: Any, tangents: Any) -> Any:
        calls.append(("jvp", primals, tangents))
        return 3 * tangents[0]

    @product.vmap
    def product_vmap(inputs: Any, axes: Any) -> Any:
        calls.append(("vmap", inputs, axes))
        return 7 * inputs[0] * inputs[1], axes[0]

    return product, calls


def test_without_rules_it_is_the_function() -> None:
    @mx.custom_function
    def cubic(x: mx.array) -> mx.array:
        return x * x * x

    two = mx.array(2.0)
    assert cubic(two).item() == 8.0
    assert mx.grad(cubic)(two).item() == 12.0
    assert mx.jvp(cubic, [two], [mx.array(1.0)])[1][0].item() == 12.0
    assert mx.vmap(cubic)(mx.array([1.0, 2.0])).tolist() == [1.0, 8.0]
    assert mx.compile(cubic)(two).item() == 8.0


def test_its_vjp_receives_primals_cotangent_and_output() -> None:
    product, calls = product_with_rules()
    gradient = mx.grad(product, argnums=(0, 1))(mx.array(2.0), mx.array(3.0))
    assert [g.item() for g in gradient] == [30.0, 20.0]
    ((name, primals, cotangent, output),) = calls
    assert name == "vjp"
    assert [p.item() for p in primals] == [2.0, 3.0]
    assert cotangent.item() == 1.0
    assert output.item() == 6.0


def test_its_vjp_is_differentiable_itself() -> None:
    product, _ = product_with_rules()
    assert mx.grad(mx.grad(product), argnums=1)(mx.array(2.0), mx.array(3.0)).item() == 10.0


def test_its_jvp_receives_none_for_what_is_not_differentiated() -> None:
    product, calls = product_with_rules()
    three = mx.array(3.0)
    outputs, tangents = mx.jvp(lambda x: product(x, three), [mx.array(2.0)], [mx.array(5.0)])
    assert outputs[0].item() == 6.0
    assert tangents[0].item() == 15.0
    ((name, primals, given),) = calls
    assert name == "jvp"
    assert [p.item() for p in primals] == [2.0, 3.0]
    assert given[0].item() == 5.0
    assert given[1] is None


def test_its_vmap_receives_inputs_and_axes() -> None:
    product, calls = product_with_rules()
    result = mx.vmap(product, in_axes=(0, None))(mx.array([1.0, 2.0]), mx.array(3.0))
    assert result.tolist() == [21.0, 42.0]
    ((name, inputs, axes),) = calls
    assert name == "vmap"
    assert [i.shape for i in inputs] == [(2,), ()]
    assert tuple(axes) == (0, None)


def test_rules_apply_under_other_transformations() -> None:
    product, _ = product_with_rules()
    x, y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
    assert mx.vmap(mx.grad(product))(x, y).tolist() == [30.0, 40.0]
    assert mx.compile(mx.grad(product))(x[0], y[0]).item() == 30.0
    assert mx.grad(mx.compile(product))(x[0], y[0]).item() == 30.0
    assert mx.grad(mx.checkpoint(product))(x[0], y[0]).item() == 30.0
    assert mx.compile(mx.vmap(product))(x, y).tolist() == [21.0, 56.0]
    assert mx.vmap(mx.compile(product))(x, y).tolist() == [21.0, 56.0]
    assert mx.grad(lambda a: mx.vmap(mx.grad(product))(a, y).sum())(x).tolist() == [0.0, 0.0]
    assert mx.compile(product)(x[0], y[0]).item() == 3.0


def test_one_argument_comes_without_a_tuple() -> None:
    @mx.custom_function
    def square(x: mx.array) -> mx.array:
        return x * x

    @square.vjp
    def square_vjp(primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return primal * cotangent + output

    @square.jvp
    def square_jvp(primal: mx.array, tangent: mx.array) -> mx.array:
        return primal + tangent

    @square.vmap
    def square_vmap(x: mx.array, axis: int) -> tuple[mx.array, int]:
        assert axis == 1
        return x + 1, axis

    assert mx.grad(square)(mx.array(3.0)).item() == 12.0
    assert mx.jvp(square, [mx.array(3.0)], [mx.array(5.0)])[1][0].item() == 8.0
    assert mx.vmap(square, in_axes=1)(mx.zeros((2, 3))).shape == (3, 2)


def test_several_outputs() -> None:
    @mx.custom_function
    def product_and_sum(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        return x * y, x + y

    @product_and_sum.vjp
    def _(primals: Any, cotangents: Any, outputs: Any) -> Any:
        assert [o.item() for o in outputs] == [6.0, 5.0]
        return cotangents[0] * 100, cotangents[1] * 1000

    @product_and_sum.vmap
    def _(inputs: Any, axes: Any) -> Any:
        return (inputs[0] - inputs[1], inputs[0]), (axes[0], axes[0])

    cotangents = mx.vjp(product_and_sum, [mx.array(2.0), mx.array(3.0)], [mx.array(1.0), mx.array(2.0)])[1]
    assert [c.item() for c in cotangents] == [100.0, 2000.0]
    difference, first = mx.vmap(product_and_sum)(mx.array([5.0, 6.0]), mx.array([1.0, 1.0]))
    assert difference.tolist() == [4.0, 5.0]
    assert first.tolist() == [5.0, 6.0]


def test_trees_in_and_out() -> None:
    @mx.custom_function
    def total(parameters: dict[str, mx.array]) -> dict[str, mx.array]:
        return {"total": parameters["a"] + parameters["b"]}

    @total.vjp
    def _(primal: Any, cotangent: Any, output: Any) -> Any:
        return {"a": cotangent["total"] * 2, "b": cotangent["total"] * primal["a"]}

    parameters = {"a": mx.array(5.0), "b": mx.array(7.0)}
    gradient = mx.grad(lambda p: total(p)["total"])(parameters)
    assert repr(gradient) == "{'a': array(2, dtype=float32), 'b': array(5, dtype=float32)}"


def test_a_straight_through_estimator() -> None:
    @mx.custom_function
    def hard(x: mx.array) -> mx.array:
        return mx.round(x)

    @hard.vjp
    def _(primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return cotangent

    gradient = mx.grad(lambda x: (hard(x) * mx.array([1.0, 2.0])).sum())(mx.array([0.4, 1.6]))
    assert gradient.tolist() == [1.0, 2.0]


def test_checkpoint_gives_the_same_gradient() -> None:
    def block(x: mx.array, w: mx.array) -> mx.array:
        return mx.tanh(mx.sin(x @ w) @ w).sum()

    x, w = mx.random.normal((3, 4), key=mx.random.key(0)), mx.random.normal((4, 4), key=mx.random.key(1))
    plain, saving = mx.value_and_grad(block, argnums=(0, 1)), mx.value_and_grad(mx.checkpoint(block), argnums=(0, 1))
    assert_same_bits(saving(x, w), plain(x, w))
    assert_same_bits(mx.compile(saving)(x, w), plain(x, w))


def test_checkpoint_takes_trees_and_keyword_arguments() -> None:
    @mx.checkpoint
    def scaled(parameters: dict[str, mx.array], *, factor: float) -> dict[str, mx.array]:
        return {"scaled": parameters["x"] * factor}

    gradient = mx.grad(lambda p: scaled(p, factor=3.0)["scaled"].sum())({"x": mx.ones(2)})
    assert gradient["x"].tolist() == [3.0, 3.0]


def test_checkpoint_differentiates_captured_arrays_too() -> None:
    def loss(w: mx.array) -> mx.array:
        return mx.checkpoint(lambda x: (x * w).sum())(mx.array([1.0, 2.0]))

    assert mx.grad(loss)(mx.array(1.0)).item() == 3.0


def sines_in_order(x: mx.array) -> mx.array:
    """The checkpointed function reads an integer array that is computed outside of it."""
    order = mx.argsort(x)
    return mx.checkpoint(lambda y: (mx.sin(y)[order] * mx.array([1.0, 10.0, 100.0])).sum())(x)


def test_checkpoint_captures_integers_that_an_outer_transformation_replaces() -> None:
    rows = mx.array([[3.0, 1.0, 2.0], [2.0, 1.0, 3.0]])
    expected = mx.stack([mx.grad(sines_in_order)(row) for row in rows])
    compiled = mx.grad(mx.compile(sines_in_order))
    assert_same_bits(mx.stack([compiled(row) for row in rows]), expected)
    assert_same_bits(mx.grad(lambda x: mx.vmap(sines_in_order)(x).sum())(rows), expected)


def test_a_chain_of_checkpoints_does_not_record_what_was_computed_before() -> None:
    """The time of each call is that of the function, however long the graph of its argument is."""
    weight = mx.array([0.5])
    block = mx.checkpoint(lambda x: mx.sin(x) * weight)
    called = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal called
        called += 1

    def calls_of_one(x: mx.array) -> int:
        nonlocal called
        called = 0
        sys.setprofile(count)
        try:
            block(x)
        finally:
            sys.setprofile(None)
        return called

    x = mx.array([1.0])
    block(x)
    short = calls_of_one(x)
    for _ in range(50):
        x = mx.cos(block(x) + mx.full((1,), 0.5))
    assert calls_of_one(x) <= short + 10


def test_checkpoint_holds_less_memory_between_forward_and_backward() -> None:
    """A chain of blocks stores one array per block, not all intermediate ones."""
    weight = mx.full((256, 256), 1e-3)

    def block(x: mx.array) -> mx.array:
        for _ in range(4):
            x = mx.sin(x) @ weight
        return x

    def peak(step: Any) -> int:
        def loss(x: mx.array) -> mx.array:
            for _ in range(8):
                x = step(x)
            return x.sum()

        x = mx.ones((256, 256))
        mx.eval(x, weight)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(mx.grad(loss)(x))
        return mx.get_peak_memory() - before

    assert peak(mx.checkpoint(block)) < 0.8 * peak(block)


@pytest.mark.parametrize("transform", [mx.grad, mx.compile, mx.vmap, mx.checkpoint])
def test_a_custom_function_is_rebuilt_inside_another_function(transform: Any) -> None:
    def outer(x: mx.array) -> mx.array:
        @mx.custom_function
        def inner(z: mx.array) -> mx.array:
            return z * x

        return inner(x)

    argument = mx.array([2.0]) if transform is mx.vmap else mx.array(2.0)
    assert transform(outer)(argument).sum().item() == 4.0
