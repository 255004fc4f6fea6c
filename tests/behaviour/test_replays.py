"""Public functions that record which nodes they make, and replay them for arguments like earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft.graph.node import reachable
from weft.primitives.base import is_constant

pytestmark = pytest.mark.usefixtures("donated_from_one_byte")

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)

CALLS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "softmax of all": mx.softmax,
    "logsumexp": lambda x: mx.logsumexp(x, axis=1, keepdims=True),
    "rms_norm": lambda x: mx.fast.rms_norm(x, x[0, 0] + 1, 1e-5),
    "rms_norm of halves": lambda x: mx.fast.rms_norm(x.astype(mx.float16), None, 0.0),
    "layer_norm": lambda x: mx.fast.layer_norm(x, None, x[0, 0], 1e-5),
    "rope": lambda x: mx.fast.rope(x, 2, traditional=True, base=10000.0, scale=0.5, offset=7),
    "rope at positions": lambda x: mx.fast.rope(
        x, 4, traditional=False, base=None, scale=1.0, offset=mx.array([1, 2]), freqs=mx.array([1.0, 2.0])
    ),
    "matmul": lambda x: x @ mx.swapaxes(x, 1, 2),
    "matmul of rows": lambda x: x @ mx.ones((4, 5)),
    "a matrix with itself": lambda x: mx.matmul(x[:, :2, :2], x[:, :2, :2]),
    "attention": lambda x: mx.fast.scaled_dot_product_attention(x[None], x[None] + 1, x[None] * 2, scale=0.3),
    "reshape": lambda x: mx.reshape(x, (4, -1)),
    "transpose": lambda x: mx.transpose(x, (2, 0, 1)),
    "astype": lambda x: mx.astype(x, mx.int32),
    "astype of the same": lambda x: mx.astype(x, mx.float32),
    "mean": lambda x: mx.mean(x, axis=(0, 2)),
    "var": lambda x: mx.var(x, axis=1, ddof=1),
    "sort": lambda x: mx.sort(x, axis=1),
    "sort of all": lambda x: mx.sort(x, axis=None, descending=True),
    "argsort": lambda x: mx.argsort(x).astype(mx.float32),
    "cumsum": lambda x: mx.cumsum(x, axis=1, reverse=True, include_initial=True),
    "pad": lambda x: mx.pad(x, 1, constant_values=2),
    "pad at one end": lambda x: mx.pad(x, [(0, 1), (0, 0), (2, 0)], mode="edge"),
    "take": lambda x: mx.take(x, mx.array([1, 0]), axis=1),
    "rows of a table": lambda x: x[mx.array([[1, 0, -1]])],
    "a row at an array without axes": lambda x: x[mx.array(1)],
    "take_along_axis": lambda x: mx.take_along_axis(x, mx.array([[[2, 0]]]), axis=-1),
    "clip": lambda x: mx.clip(x, -0.5, 1),
    "clip by arrays": lambda x: mx.clip(x, x[0], None),
    "std": lambda x: mx.std(x, axis=-1, keepdims=True),
    "argmin": lambda x: mx.argmin(x, axis=1).astype(mx.float32),
    "take of one": lambda x: mx.take(x, 1, axis=2),
    "sum of a number": lambda x: mx.sum(mx.full((), 2.0)),
    "an array with itself": lambda x: mx.concatenate([x, x, x + 1], axis=1),
    "a vector with itself": lambda x: x[0, 0] @ x[0, 0],
    "stack": lambda x: mx.stack([x, x * 2], axis=1),
    "one of several parts": lambda x: mx.split(x, [1, 3], axis=2)[1],
    "where": lambda x: mx.where(x > 0, x, 0.0),
    "where of one": lambda x: mx.where(x > 0, x, x),
    "a row to each row": lambda x: x * x[0, 0] + x[:, :, :1],
    "constants": lambda x: x + mx.zeros((3, 4)) + mx.arange(4) - mx.eye(3, 4),
    "addmm": lambda x: mx.addmm(x[0, 0, :3], x[0], x[1].T),
    "parts and arrays": lambda x: x[1, ..., None, mx.array([0, 2])],
    "a mask": lambda x: mx.where(mx.logical_and(x > 0, x > 0), x, -x),
    "put_along_axis": lambda x: mx.put_along_axis(x, mx.array([[[1]]]), mx.array(2.0), axis=2),
    "additions at indices": lambda x: x.at[mx.array([0, 0])].add(x[0]),
    "einsum": lambda x: mx.einsum("ijk,ijl->kl", x, x + 1),
}


def nodes_of(x: mx.array) -> list[tuple[Any, ...]]:
    """Operations in the order in which they were made, with numbers by their value; inputs as positions."""
    order = [node for node in reachable([x.node]) if not is_constant(node)]
    position = {node: number for number, node in enumerate(order)}
    return [
        (node.primitive, node.params, node.shape, node.dtype, [position.get(y, y.params) for y in node.inputs])
        for node in order
    ]


@pytest.mark.parametrize("name", CALLS)
def test_the_same_nodes_are_made_again(name: str) -> None:
    call = CALLS[name]
    first, again, _, other = [call(mx.array(factor * X)) for factor in (1, 1, 3, 2)]
    assert nodes_of(first) == nodes_of(again) == nodes_of(other)
    assert first.node is not again.node
    np.testing.assert_array_equal(np.array(first), np.array(again))
    np.testing.assert_array_equal(np.array(other), np.array(mx.compile(call)(mx.array(2 * X))))


@pytest.mark.parametrize("name", CALLS)
def test_what_is_replayed_is_differentiated(name: str) -> None:
    if name in {"astype", "sum of a number"}:
        pytest.skip("it has no gradient")
    call = CALLS[name]
    gradient = mx.grad(lambda x: mx.sum(call(x) * 3))
    expected = gradient(mx.array(X))
    for _ in range(3):
        call(mx.array(X))
    for _ in range(2):
        np.testing.assert_array_equal(np.array(gradient(mx.array(X))), np.array(expected))


def test_errors_do_not_depend_on_earlier_calls() -> None:
    x = mx.array(X)
    mx.reshape(x, (4, 6))
    with pytest.raises(TypeError):
        mx.reshape(x, (4.0, 6.0))  # type: ignore[arg-type]  # wrong on purpose
    mx.softmax(x, axis=1)
    with pytest.raises(TypeError):
        mx.softmax(x, axis=1.0)  # type: ignore[arg-type]  # wrong on purpose
    mx.var(x, ddof=1)
    with pytest.raises(TypeError):
        mx.var(x, ddof="1")  # type: ignore[arg-type]  # wrong on purpose

    for _ in range(3):
        mx.sum(x)
    with pytest.raises(TypeError, match=r"^\[sum\] stream must be a stream"):
        mx.sum(x, stream=1)  # type: ignore[arg-type]  # wrong on purpose


def test_an_array_may_also_be_a_number() -> None:
    for _ in range(3):
        for count in (2, 3):
            n = mx.array([count])
            assert mx.tile(n, n).tolist() == [count] * count  # type: ignore[arg-type]  # arrays of ints are taken


def test_calls_that_differ_in_types_or_in_what_is_the_same_array() -> None:
    x, y = mx.array(X[0]), mx.array(X[1])
    for _ in range(4):
        np.testing.assert_array_equal(np.array(mx.concatenate([x, y, x])), np.concatenate([X[0], X[1], X[0]]))
        np.testing.assert_array_equal(np.array(mx.concatenate([x, x, y])), np.concatenate([X[0], X[0], X[1]]))
        assert [mx.full((1,), value).dtype for value in (1, True, 1.0)] == [mx.int32, mx.bool_, mx.float32]
        assert [math.copysign(1, mx.full((1,), value).item()) for value in (0.0, -0.0)] == [1, -1]


def test_several_results_keep_their_type() -> None:
    x = mx.array(X)
    for _ in range(3):
        parts, rows = mx.split(x, 2), mx.unstack(x)
        assert (type(parts), type(rows)) == (list, tuple)
        np.testing.assert_array_equal(np.array(parts[1]), X[1:])
        np.testing.assert_array_equal(np.array(rows[1]), X[1])


def test_numbers_in_what_a_trace_replays_belong_to_it() -> None:
    def f(x: mx.array) -> mx.array:
        y = mx.clip(x, 0.25, 0.75)
        numbers.append([node.serial > x.node.serial for node in reachable([y.node]) if is_constant(node)])
        return mx.sum(y)

    numbers: list[list[bool]] = []
    for _ in range(3):
        mx.grad(f)(mx.array(X))
    assert numbers == [[True, True]] * 3


def test_signs_of_zero_are_told_apart() -> None:
    x = mx.zeros((1, 2))
    found = [np.array(mx.fast.rms_norm(x, None, eps)) for eps in (0.0, -0.0)]
    assert all(np.isnan(one).all() for one in found)


def test_numbers_that_differ_from_call_to_call() -> None:
    for scale in (1.0, 2.0):
        x = mx.fast.rope(mx.ones((1, 1, 2)), 2, traditional=True, base=9.0, scale=scale, offset=1)
        cosine, sine = math.cos(scale), math.sin(scale)
        np.testing.assert_allclose(np.array(x)[0, 0], [cosine - sine, cosine + sine], rtol=1e-6)


def test_streams_and_precision_are_those_of_the_call() -> None:
    x = mx.array(X[0])
    stream = mx.new_stream(mx.cpu)
    plain, named = mx.softmax(x), mx.softmax(x, stream=stream)
    assert plain.node.stream is not stream
    assert {node.stream for node in reachable([named.node]) if node.inputs} == {stream}
    y = mx.array(X[0].T.copy())
    with weft.matmul_precision("fast"):
        fast = mx.matmul(x.astype(mx.bfloat16), y.astype(mx.bfloat16))
    exact = mx.matmul(x.astype(mx.bfloat16), y.astype(mx.bfloat16))
    assert fast.node.params != exact.node.params


def test_open_extents_are_traced() -> None:
    call = mx.compile(lambda x: mx.softmax(x, axis=-1) @ mx.swapaxes(x, 0, 1), shapeless=True)
    for rows in (2, 3, 2):
        x = mx.array(np.ones((rows, 4), np.float32))
        np.testing.assert_array_equal(np.array(call(x)), np.ones((rows, rows), np.float32))
