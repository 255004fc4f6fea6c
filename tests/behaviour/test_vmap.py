"""`vmap`: axes, trees of axes, nesting, arguments that are not mapped, and that it equals a loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_close

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(("axis", "expected"), [(0, [3.0, 12.0]), (1, [3.0, 5.0, 7.0]), (-1, [3.0, 5.0, 7.0])])
def test_in_axes(axis: int, expected: list[float]) -> None:
    assert mx.vmap(mx.sum, in_axes=axis)(mx.array(A)).tolist() == expected


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 3, 4)), (1, (3, 2, 4)), (2, (3, 4, 2)), (-1, (3, 4, 2))])
def test_out_axes(axis: int, shape: tuple[int, ...]) -> None:
    result = mx.vmap(lambda m: m * 2, out_axes=axis)(mx.array(B))
    assert result.shape == shape
    np.testing.assert_array_equal(np.array(result), np.moveaxis(B * 2, 0, axis))


@pytest.mark.parametrize("in_axis", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("out_axis", [-3, -2, -1, 0, 1, 2])
def test_every_pair_of_axes(in_axis: int, out_axis: int) -> None:
    """The function sees the axes that are left, in order."""
    result = mx.vmap(lambda m: m.T * 2, in_axes=in_axis, out_axes=out_axis)(mx.array(B))
    moved = np.moveaxis(B, in_axis, 0)
    np.testing.assert_array_equal(np.array(result), np.moveaxis(moved.transpose(0, 2, 1) * 2, 0, out_axis))


def test_arguments_mapped_along_different_axes() -> None:
    result = mx.vmap(lambda x, y: x + y, in_axes=(0, 1))(mx.array(A), mx.array(A.T))
    assert result.tolist() == (2 * A).tolist()


def test_none_is_not_mapped() -> None:
    result = mx.vmap(lambda x, w: x * w, in_axes=(0, None))(mx.array(A), mx.array([1.0, 10.0, 100.0]))
    assert result.tolist() == (A * np.array([1, 10, 100])).tolist()


def test_axes_are_nested_like_the_arguments() -> None:
    def f(parameters: dict[str, Any], z: mx.array) -> mx.array:
        return parameters["a"] + parameters["b"][0] * z

    mapped = mx.vmap(f, in_axes=({"a": 0, "b": [None]}, 1))
    result = mapped({"a": mx.array(A), "b": [mx.array([1.0, 2.0, 3.0])]}, mx.array(A.T))
    assert result.tolist() == (A + np.array([1, 2, 3]) * A).tolist()


def test_one_axis_stands_for_a_whole_argument() -> None:
    def f(parameters: dict[str, Any], z: mx.array) -> mx.array:
        return parameters["a"] + parameters["b"][0] * z

    result = mx.vmap(f, in_axes=(0, None))({"a": mx.array(A), "b": [mx.array(A)]}, mx.ones(3))
    assert result.tolist() == (2 * A).tolist()


def test_out_axes_are_nested_like_the_result() -> None:
    def f(row: mx.array) -> dict[str, mx.array]:
        return {"twice": row * 2, "sum": row.sum()}

    result = mx.vmap(f, out_axes={"twice": 1, "sum": 0})(mx.array(A))
    assert result["twice"].tolist() == (2 * A).T.tolist()
    assert result["sum"].tolist() == [3.0, 12.0]
    twice, total = mx.vmap(lambda row: (row * 2, row.sum()), out_axes=(-1, 0))(mx.array(A))
    assert twice.shape == (3, 2)
    assert total.shape == (2,)


def test_a_result_that_is_not_mapped_is_repeated() -> None:
    mapped, constant = mx.vmap(lambda row, w: (row, w), in_axes=(0, None))(mx.array(A), mx.array([7.0, 8.0]))
    assert mapped.tolist() == A.tolist()
    assert constant.tolist() == [[7.0, 8.0]] * 2
    assert mx.vmap(lambda row: mx.array([1, 2]))(mx.array(A)).tolist() == [[1, 2]] * 2


def test_captured_arrays_are_not_mapped() -> None:
    captured = mx.array([1.0, 10.0, 100.0])
    assert mx.vmap(lambda row: row * captured)(mx.array(A)).tolist() == (A * np.array([1, 10, 100])).tolist()


def test_outer_product_by_two_vmaps() -> None:
    table = mx.vmap(mx.vmap(mx.multiply, in_axes=(None, 0)), in_axes=(0, None))(mx.arange(3), mx.arange(4))
    assert table.tolist() == np.multiply.outer(np.arange(3), np.arange(4)).tolist()


def test_matmul_from_inner_products() -> None:
    product = mx.vmap(mx.vmap(mx.inner, in_axes=(None, 1)), in_axes=(0, None))(mx.array(A), mx.array(A.T))
    assert product.tolist() == (A @ A.T).tolist()


def test_a_mapped_dot_product_is_a_product_of_matrices() -> None:
    x, y = mx.random.normal((2, 3, 300), key=mx.random.key(0))
    matrix = mx.vmap(mx.vmap(lambda a, b: a @ b, in_axes=(None, 0)), in_axes=(0, None))(x, y)
    assert matrix.tolist() == (x @ y.T).tolist()
    assert (x[0] @ y[0]).item() == mx.sum(x[0] * y[0]).item()


def test_mapping_over_no_rows() -> None:
    result = mx.vmap(lambda row: mx.sin(row).sum())(mx.zeros((0, 3)))
    assert result.shape == (0,)


def test_indexing_by_a_mapped_index() -> None:
    assert mx.vmap(lambda row, i: row[i])(mx.array(A), mx.array([0, 2])).tolist() == [0.0, 5.0]


def test_assigning_to_a_mapped_array() -> None:
    def f(row: mx.array, i: mx.array) -> mx.array:
        row[i] = 9
        row[0] += 1
        return row

    assert mx.vmap(f)(mx.array(A), mx.array([1, 2])).tolist() == [[1.0, 9.0, 2.0], [4.0, 4.0, 9.0]]


def test_each_key_draws_its_own_numbers() -> None:
    keys = mx.random.split(mx.random.key(1), 5)
    mapped = mx.vmap(lambda key: mx.random.normal((3,), key=key))(keys)
    looped = mx.stack([mx.random.normal((3,), key=key) for key in keys])
    assert mapped.tolist() == looped.tolist()


LOOPED: dict[str, Callable[[mx.array], mx.array]] = {
    "transpose and reshape": lambda m: m.T.reshape(2, 6),
    "reductions": lambda m: m.sum(axis=0) + m.max() + m.mean(axis=-1)[0] + mx.logsumexp(m),
    "argmax": lambda m: mx.argmax(m, axis=1),
    "softmax over all": lambda m: mx.softmax(m, axis=(0, 1)),
    "matmul": lambda m: m @ m.T,
    "matrix times vector": lambda m: m @ m[0],
    "concatenate and stack": lambda m: mx.concatenate([m, mx.stack([m[0], mx.ones(4)])], axis=0),
    "broadcast": lambda m: m + m[:, :1] + mx.broadcast_to(m[0, 0], (3, 4)),
    "where": lambda m: mx.where(m > 0, m, mx.zeros((3, 4))),
    "slices": lambda m: m[::-1, 1:3],
    "pad": lambda m: mx.pad(m, ((1, 0), (0, 2))),
    "take": lambda m: mx.take(m, mx.array([2, 0]), axis=0),
    "take along": lambda m: mx.take_along_axis(m, mx.array([[0], [1], [3]]), axis=1),
    "split": lambda m: mx.split(m, 2, axis=1)[1],
    "squeeze and expand": lambda m: mx.expand_dims(m[:1], (0, 3)).squeeze(1),
    "tile and roll": lambda m: mx.roll(mx.tile(m, (2, 1)), 1, axis=0),
    "tensordot": lambda m: mx.tensordot(m, m, axes=2),
    "flatten": lambda m: m.flatten(),
}


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equals_a_loop(name: str, axis: int) -> None:
    function = LOOPED[name]
    stacked = np.random.default_rng(5).normal(size=(5, 3, 4)).astype(np.float32)
    expected = np.stack([np.array(function(mx.array(m))) for m in stacked])
    mapped = mx.vmap(function, in_axes=axis)(mx.array(np.moveaxis(stacked, 0, axis)))
    assert_close(mapped, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOOPED)
def test_nested_equals_nested_loops(name: str) -> None:
    function = LOOPED[name]
    stacked = np.random.default_rng(6).normal(size=(2, 3, 3, 4)).astype(np.float32)
    expected = np.stack([np.stack([np.array(function(mx.array(m))) for m in row]) for row in stacked])
    assert_close(mx.vmap(mx.vmap(function))(mx.array(stacked)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_much_faster_than_a_loop() -> None:
    """At least 200 times faster than the Python loop over 4096 rows."""
    x, y = mx.random.normal((4096, 100)), mx.random.normal((100, 4096))
    mapped = mx.vmap(lambda a, b: a + b, in_axes=(0, 1))

    def seconds(step: Callable[[], Any], repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            mx.eval(step())
            times.append(time.perf_counter() - start)
        return min(times)

    loop = seconds(lambda: [x[i] + y[:, i] for i in range(4096)], 3)
    assert loop / seconds(lambda: mapped(x, y), 100) >= 200
