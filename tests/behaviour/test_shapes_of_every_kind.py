"""Arrays without elements, without axes and with many axes, through every family of operations and transformations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits, leaves
from tests.sampling import Cases
from weft.graph.node import reachable

Shape = tuple[int, ...]
EIGHT = (2, 1, 3, 1, 2, 1, 1, 2)

SHAPES: list[Shape] = [
    (),
    (1,),
    (0,),
    (0, 0),
    *[(*(2, 3, 4)[:axis], 0, *(2, 3, 4)[axis + 1 :]) for axis in range(3)],
    (2, 3, 4),
    EIGHT,
    *[(*EIGHT[:axis], 0, *EIGHT[axis + 1 :]) for axis in range(8)],
    (1,) * 8,
    (2,) * 8,
    (1, 2) * 6,
    (1,) * 20,
]


def has_axes(x: Any) -> bool:
    return x.ndim > 0


def has_a_last_element(x: Any) -> bool:
    return x.ndim > 0 and x.shape[-1] > 0


def has_two_axes(x: Any) -> bool:
    return x.ndim > 1


def has_elements(x: Any) -> bool:
    return prod(x.shape) > 0


def always(x: Any) -> bool:
    return True


def reversed_axes(x: Any) -> Shape:
    return tuple(reversed(range(x.ndim)))


def numpy_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def last_rows(m: Any, x: Any) -> Any:
    """An index of several kinds: a slice, a new axis, and an ellipsis."""
    return x[::-1, None, ...]


def assigned(m: Any, x: Any) -> Any:
    y = x * 1
    y[..., 0] = x[..., -1] * 2
    return y


def scattered(x: Any) -> Any:
    indices = mx.zeros((2,), dtype=mx.int32)
    return mx.array(x).at[..., indices].add(mx.ones((*x.shape[:-1], 2)))


def numpy_scattered(x: Any) -> Any:
    y = x.copy()
    y[..., 0] += 2
    return y


Check = Callable[[Any], bool]
FAMILIES: dict[str, tuple[Check, Callable[..., Any], Callable[..., Any] | None]] = {
    "unary": (always, lambda m, x: m.tanh(x), None),
    "binary": (always, lambda m, x: x * x + 2 * x, None),
    "with a row": (has_axes, lambda m, x: x * x[..., :1], None),
    "with a new axis": (has_axes, lambda m, x: x[..., None] + x[..., None, :], None),
    "where": (always, lambda m, x: m.where(x > 1, x, -x), None),
    "cast": (always, lambda m, x: (x * 3).astype(m.int32), None),
    "sum": (always, lambda m, x: m.sum(x), None),
    "sum of the first axis": (has_axes, lambda m, x: m.sum(x, axis=0), None),
    "sum of the last axis": (has_axes, lambda m, x: m.sum(x, axis=-1, keepdims=True), None),
    "sum of outer axes": (has_two_axes, lambda m, x: m.sum(x, axis=(0, -1)), None),
    "sum of no axis": (always, lambda m, x: m.sum(x, axis=()), None),
    "prod": (has_axes, lambda m, x: m.prod(x, axis=-1), None),
    "all": (has_axes, lambda m, x: m.all(x > 1, axis=0), None),
    "any": (always, lambda m, x: m.any(x > 1), None),
    "max": (has_a_last_element, lambda m, x: m.max(x, axis=-1), None),
    "argmax": (has_a_last_element, lambda m, x: m.argmax(x, axis=-1), None),
    "mean": (has_elements, lambda m, x: m.mean(x), None),
    "var": (has_a_last_element, lambda m, x: m.var(x, axis=-1), None),
    "softmax": (has_a_last_element, lambda m, x: m.softmax(x, axis=-1), lambda x: numpy_softmax(x)),
    "logsumexp": (has_a_last_element, lambda m, x: m.logsumexp(x, axis=-1), lambda x: np.log(np.exp(x).sum(axis=-1))),
    "transpose": (always, lambda m, x: m.transpose(x, reversed_axes(x)), None),
    "transposed and used": (always, lambda m, x: m.transpose(x) * 2 + 1, None),
    "reshape": (always, lambda m, x: m.reshape(x, (*x.shape[::-1], 1)), None),
    "flatten": (always, lambda m, x: m.reshape(x, (prod(x.shape),)), None),
    "expand": (always, lambda m, x: m.expand_dims(x, (0, -1)), None),
    "squeeze": (always, lambda m, x: m.squeeze(x), None),
    "swap": (has_two_axes, lambda m, x: m.swapaxes(x, 0, -1), None),
    "move": (has_two_axes, lambda m, x: m.moveaxis(x, 0, -1), None),
    "broadcast": (always, lambda m, x: m.broadcast_to(x, (2, *x.shape)), None),
    "broadcast to nothing": (always, lambda m, x: m.broadcast_to(x, (0, *x.shape)), None),
    "flip": (has_axes, lambda m, x: m.flip(x, -1), None),
    "slice": (has_axes, lambda m, x: x[..., :1], None),
    "slice to nothing": (has_axes, lambda m, x: x[5:, ..., None], None),
    "index": (has_axes, last_rows, None),
    "gather": (has_a_last_element, lambda m, x: x[..., m.array([0, -1, 0])], None),
    "gather nothing": (has_axes, lambda m, x: m.take(x, m.zeros((0, 2), dtype=m.int32), axis=0), None),
    "take along": (
        has_axes,
        lambda m, x: m.take_along_axis(x, m.zeros((*x.shape[:-1], 0), dtype=m.int32), axis=-1),
        None,
    ),
    "assign": (has_a_last_element, assigned, None),
    "scatter": (has_a_last_element, lambda m, x: scattered(x), numpy_scattered),
    "concatenate": (has_axes, lambda m, x: m.concatenate([x, x * 2], axis=-1), None),
    "concatenate with nothing": (has_axes, lambda m, x: m.concatenate([x, x[:0], x], axis=0), None),
    "stack": (always, lambda m, x: m.stack([x, x + 1], axis=-1), None),
    "split": (has_axes, lambda m, x: m.split(x, [1], axis=-1), None),
    "tile": (has_axes, lambda m, x: m.tile(x, (2, *[1] * (x.ndim - 1))), None),
    "repeat": (has_axes, lambda m, x: m.repeat(x, 2, axis=0), None),
    "repeat never": (has_axes, lambda m, x: m.repeat(x, 0, axis=-1), None),
    "pad": (has_axes, lambda m, x: m.pad(x, [(1, 2)] * min(x.ndim, 3) + [(0, 0)] * (x.ndim - 3)), None),
    "roll": (has_axes, lambda m, x: m.roll(x, 1, axis=-1), None),
    "products of matrices": (has_two_axes, lambda m, x: x @ m.swapaxes(x, -1, -2), None),
    "product with a vector": (has_axes, lambda m, x: x @ m.ones((x.shape[-1],), dtype=m.float32), None),
    "outer": (has_elements, lambda m, x: m.outer(x[..., :1] if x.ndim else x, x), None),
    "tensordot": (has_axes, lambda m, x: m.tensordot(x, m.ones((x.shape[-1], 2), dtype=m.float32), axes=1), None),
    "einsum": (has_axes, lambda m, x: m.einsum("...i,...i->...", x, x), None),
    "diagonal": (has_two_axes, lambda m, x: m.diagonal(x), None),
    "like": (always, lambda m, x: m.zeros_like(x) + m.ones_like(x), None),
}


def values(shape: Shape) -> np.ndarray:
    return np.random.default_rng(prod(shape)).uniform(0.5, 1.5, shape).astype(np.float32)


def shapes_of(name: str) -> list[Shape]:
    """The shapes that a family applies to."""
    applies, _, _ = FAMILIES[name]
    return [shape for shape in SHAPES if applies(np.empty(shape))]


def in_numpy(name: str, x: np.ndarray) -> Any:
    _, function, other = FAMILIES[name]
    return other(x) if other is not None else function(np, x)


def in_weft(name: str) -> Callable[[mx.array], Any]:
    return partial(FAMILIES[name][1], mx)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


SAMPLE = 3
"""In the gate each test uses this many shapes of each family; the slow tests use all."""


@pytest.mark.parametrize("name", FAMILIES)
def test_values(name: str, cases: Cases) -> None:
    for shape in cases.some(SAMPLE, shapes_of(name)):
        x = values(shape)
        found, expected = as_list(in_weft(name)(mx.array(x))), as_list(in_numpy(name, x))
        for got, wanted in zip(found, expected, strict=True):
            assert got.shape == np.shape(wanted)
            np.testing.assert_allclose(np.array(got), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_compiled(name: str, cases: Cases) -> None:
    function = in_weft(name)
    for shape in cases.some(SAMPLE, shapes_of(name)):
        x = mx.array(values(shape))
        expected = function(x)
        assert_same_bits(mx.compile(lambda x: function(x))(x), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_vmap(name: str, cases: Cases) -> None:
    for shape, count in cases.some(2 * SAMPLE, list(product(shapes_of(name), [0, 1, 3]))):
        batch = values((count, *shape))
        found = as_list(mx.vmap(in_weft(name))(mx.array(batch)))
        one = as_list(in_numpy(name, values(shape)))
        expected = [as_list(in_numpy(name, x)) for x in batch]
        for position, got in enumerate(found):
            assert got.shape == (count, *np.shape(one[position]))
            for example in range(count):
                np.testing.assert_allclose(np.array(got)[example], expected[example][position], rtol=1e-5, atol=1e-6)


def differentiable(name: str) -> bool:
    dtype = as_list(in_weft(name)(mx.ones((2, 2))))[0].dtype
    return dtype == mx.float32


@pytest.mark.parametrize("name", [name for name in FAMILIES if differentiable(name)])
def test_derivatives(name: str, cases: Cases) -> None:
    for shape in cases.some(SAMPLE, shapes_of(name)):
        check_derivatives(name, shape)


def check_derivatives(name: str, shape: Shape) -> None:
    """Both modes agree (`<v, J u> = <J' v, u>`), and have the shapes of the argument and of the results."""
    x, u = mx.array(values(shape)), mx.cos(mx.array(values(shape)) * 7)

    def function(x: mx.array) -> list[mx.array]:
        return as_list(in_weft(name)(x))

    outputs, tangents = mx.jvp(lambda x: function(x), [x], [u])
    cotangents = [mx.sin(output * 5 + 1) for output in outputs]
    _, (gradient,) = mx.vjp(lambda x: function(x), [x], cotangents)
    assert gradient.shape == shape
    assert [tangent.shape for tangent in tangents] == [output.shape for output in outputs]
    forwards = sum(np.sum(np.array(v * t, np.float64)) for v, t in zip(cotangents, tangents, strict=True))
    np.testing.assert_allclose(np.sum(np.array(gradient * u, np.float64)), forwards, rtol=1e-4, atol=1e-4)
    assert_same_bits(mx.compile(lambda x: mx.vjp(lambda x: function(x), [x], cotangents)[1])(x), [gradient])


DECIDED_BY_A_SHAPE = [
    *("broadcast", "broadcast to nothing", "flatten", "product with a vector", "reshape", "scatter"),
    *("squeeze", "take along", "tensordot"),
]
"""Families whose results depend on which extents are 1, or on a shape written in the program: shapeless traces fix
these."""


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - set(DECIDED_BY_A_SHAPE)))
def test_shapeless(name: str) -> None:
    """Compiled for one shape and called with others, with and without elements."""
    applies, function, _ = FAMILIES[name]
    compiled = mx.compile(lambda x: function(mx, x), shapeless=True)
    for shape in [(2, 3, 4), (0, 3, 4), (5, 0, 2), (1, 1, 0), (1, 1, 1)]:
        if applies(np.empty(shape)):
            x = mx.array(values(shape))
            assert_same_bits(compiled(x), function(mx, x))


@pytest.mark.parametrize("name", DECIDED_BY_A_SHAPE)
def test_shapeless_where_a_shape_decides(name: str) -> None:
    compiled = mx.compile(in_weft(name), shapeless=True)
    x = mx.array(values((2, 3, 4)))
    assert_same_bits(compiled(x), in_weft(name)(x))
    with pytest.raises(ValueError, match="shapeless=True"):
        compiled(mx.array(values((1, 0, 5))))


def test_random_numbers() -> None:
    for shape in SHAPES:
        for sample in (mx.random.uniform(shape=shape), mx.random.normal(shape), mx.random.bernoulli(0.5, shape)):
            mx.eval(sample)
            assert sample.shape == shape


def test_creation() -> None:
    for shape in SHAPES:
        for made in (mx.zeros(shape), mx.ones(shape), mx.full(shape, 3.0), mx.array(np.full(shape, 7.0))):
            mx.eval(made)
            assert (made.shape, made.size) == (shape, prod(shape))
            assert np.array(made).shape == shape
            assert leaves(made.tolist()) == np.array(made).ravel().tolist()
    assert mx.arange(0).shape == mx.arange(5, 5).shape == mx.linspace(0, 1, 0).shape == (0,)
    assert mx.eye(0).shape == (0, 0)
    assert mx.tri(0, 3).shape == (0, 3)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_nothing_to_choose_from(name: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=rf"\[{name}\]"):
        getattr(mx, name)(mx.zeros(shape))


def test_streams_compile_and_gradients_of_a_step_without_elements() -> None:
    """A batch of no examples goes through a training step."""
    state = [mx.ones((4, 3)), mx.zeros((3,))]

    def step(x: mx.array, y: mx.array) -> mx.array:
        def loss(weight: mx.array, bias: mx.array) -> mx.array:
            return mx.square(x @ weight + bias - y).sum()

        value, gradients = mx.value_and_grad(loss, argnums=(0, 1))(*state)
        state[:] = [p - 0.1 * g for p, g in zip(state, gradients, strict=True)]
        return value

    compiled = mx.compile(step, inputs=state, outputs=state)
    assert compiled(mx.zeros((0, 4)), mx.zeros((0, 3))).item() == 0
    assert state[0].tolist() == [[1.0] * 3] * 4
    assert state[1].tolist() == [0.0] * 3


class _Count(int):
    """A subclass of int."""


@pytest.mark.parametrize("one", [True, _Count(1), np.int8(1)])
@pytest.mark.parametrize(
    "shaped",
    [
        lambda n: mx.zeros((n, 1)),
        lambda n: mx.reshape(mx.array(2.0), (n, -1)),
        lambda n: mx.broadcast_to(mx.array(2.0), (n, n)),
        lambda n: mx.unflatten(mx.array([2.0]), 0, (n, n)),
        lambda n: mx.array([[1.0], [2.0]])[:n],
        lambda n: mx.topk(mx.array([[1.0, 2.0]]), n),
        lambda n: mx.as_strided(mx.arange(4), (n, n), (1, 1)),
    ],
)
def test_extents_are_plain_ints(shaped: Callable[[Any], mx.array], one: Any) -> None:
    """Extents are plain ints whatever class of int was given, because nodes of equal shapes and parameters are
    merged."""
    x = shaped(one)
    assert [type(extent) for extent in x.shape] == [int] * x.ndim
    assert np.array(mx.astype(x, mx.float64)).shape == x.shape
    nodes = reachable([shaped(one).node])
    assert {type(n) for node in nodes for param in node.params if type(param) is tuple for n in param} <= {int}
