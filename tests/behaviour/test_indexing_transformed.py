"""Indices and masks under transformations, for random shapes: compared with NumPy and with a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.behaviour.test_indexing_updates import shapes_and_indices, weft_index
from tests.checks import assert_same_bits
from tests.sampling import examples

METHODS = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]


def parts(index: Any) -> tuple[list[np.ndarray], Any]:
    """The arrays of an index, and a function that puts other arrays in their places."""
    arrays = [part for part in index if isinstance(part, np.ndarray)]

    def filled(*others: Any) -> Any:
        rest = iter(others)
        return tuple(next(rest) if isinstance(part, np.ndarray) else part for part in index)

    return arrays, filled


@given(shapes_and_indices())
@examples(40)
def test_the_gradient_counts_how_often_an_element_was_read(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    x = np.zeros(shape, np.float32)
    weights = np.arange(1, x[index].size + 1, dtype=np.float32).reshape(x[index].shape)
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, index, weights)

    def weighted(a: mx.array) -> mx.array:
        return (a[weft_index(index)] * mx.array(weights)).sum()

    np.testing.assert_array_equal(np.array(mx.grad(weighted)(mx.array(x))), expected)


@given(shapes_and_indices(), st.data())
@examples(40)
def test_mapped_over_any_argument_is_a_loop(case: tuple[tuple[int, ...], Any], data: st.DataObject) -> None:
    """Over the array, each array of the index, the values, and any of these together."""
    shape, index = case
    method = data.draw(st.sampled_from(["read", "set", *METHODS]))
    arrays, filled = parts(index)
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    values = 2 + np.arange(x[index].size, dtype=np.float32).reshape(x[index].shape) % 3
    arguments = [x, values, *arrays]
    mapped = data.draw(st.lists(st.booleans(), min_size=len(arguments), max_size=len(arguments)).filter(any))

    def function(a: mx.array, v: mx.array, *indices: mx.array) -> mx.array:
        where = filled(*indices)
        if method == "read":
            return a[where] + v
        if method != "set":
            return getattr(a.at[where], method)(v)
        a = a + 0
        a[where] = v
        return a

    stacked = [
        mx.stack([mx.array(one), mx.array(one[::-1] if one.ndim else one)]) if axis else mx.array(one)
        for one, axis in zip(arguments, mapped, strict=True)
    ]
    axes = [0 if axis else None for axis in mapped]
    got = mx.vmap(function, in_axes=axes)(*stacked)
    rows = [function(*[one[n] if axis else one for one, axis in zip(stacked, mapped, strict=True)]) for n in range(2)]
    assert_same_bits(got, mx.stack(rows))


@given(shapes_and_indices(), st.sampled_from(["read", "set", *METHODS]))
@examples(25)
def test_compiled_gives_the_same_bits(case: tuple[tuple[int, ...], Any], method: str) -> None:
    shape, index = case
    arrays, filled = parts(index)
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)

    def function(a: mx.array, *indices: mx.array) -> mx.array:
        where = filled(*indices)
        if method == "read":
            return mx.exp(a)[where] * 2
        if method != "set":
            return getattr((a * 3).at[where], method)(1.5)
        a = a * 3
        a[where] = 1.5
        return a

    arguments = [mx.array(x), *map(mx.array, arrays)]
    for compiled in (mx.compile(function), mx.compile(function, shapeless=True)):
        assert_same_bits(compiled(*arguments), function(*arguments))


@st.composite
def shapes_and_masks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """An array, and a mask of some of its first axes."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    covered = draw(st.integers(0, len(shape)))
    size = int(np.prod(shape[:covered]))
    mask = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_).reshape(shape[:covered])
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape), mask


@given(shapes_and_masks(), st.sampled_from(["number", "one", "rows"]))
@examples(50)
def test_masks_are_those_of_numpy(case: tuple[np.ndarray, np.ndarray], kind: str) -> None:
    """For assignment that replaces. One row more than needed is allowed, as in MLX."""
    x, mask = case
    chosen = x[mask]
    value: Any = -1.0
    if kind == "one":
        value = -1 - np.arange(np.prod(x.shape[mask.ndim :]), dtype=np.float32).reshape(x.shape[mask.ndim :])
    if kind == "rows":
        value = -1 - np.arange(chosen.size, dtype=np.float32).reshape(chosen.shape)
    expected = x.copy()
    expected[mask] = value
    a = mx.array(x)
    a[mx.array(mask)] = mx.array(value) if isinstance(value, np.ndarray) else value
    np.testing.assert_array_equal(np.array(a), expected)
    gradient = mx.grad(lambda a: _masked(a, mx.array(mask), 0.0).sum())(mx.array(x))
    np.testing.assert_array_equal(np.array(gradient), np.broadcast_to(~_spread(mask, x.ndim), x.shape))


def _masked(a: mx.array, mask: mx.array, value: float) -> mx.array:
    a = a + 0
    a[mask] = value
    return a


def _spread(mask: np.ndarray, ndim: int) -> np.ndarray:
    return mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


@pytest.mark.parametrize("index", [None, ..., (), (None, ...), (None, None), True], ids=repr)
def test_arrays_without_axes(index: Any) -> None:
    a = mx.array(3.0)
    a[index] = 1
    assert (a.shape, a.item()) == ((), 1)
    assert (mx.array(3.0).at[index].add(2).shape, mx.array(3.0).at[index].add(2).item()) == ((), 5)
    gradient = mx.grad(lambda a: a.at[index].multiply(4).sum())
    assert gradient(mx.array(3.0)).item() == 4
    if index is not True:
        assert mx.array(3.0)[index].shape == np.array(3.0)[index].shape


def test_shapeless_updates_and_dynamic_slices() -> None:
    """Positions are computed; the extents of what is read and written are symbolic."""

    def function(x: mx.array, update: mx.array, start: mx.array) -> tuple[mx.array, ...]:
        changed = mx.slice_update(x, update, start, (0, 1))
        return changed, mx.roll(changed, 1, 1), mx.pad(changed, 1), mx.kron(changed, update), changed.at[start].add(1)

    compiled = mx.compile(function, shapeless=True)
    for rows, columns in ((3, 4), (5, 2), (7, 9)):
        x = mx.arange(rows * columns).reshape(rows, columns) * 1.0
        arguments = (x, -mx.ones((rows - 1, 2)), mx.array([1, 0]))
        assert_same_bits(compiled(*arguments), function(*arguments))
