"""Reading and writing through indices, compared with NumPy; updates that combine; elements along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx


def weft_index(index: Any) -> Any:
    """The index with Weft arrays in place of NumPy's."""
    if isinstance(index, tuple):
        return tuple(weft_index(part) for part in index)
    return mx.array(index) if isinstance(index, np.ndarray) else index


@st.composite
def shapes_and_indices(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    """A shape and an index into it: ints, slices, arrays that broadcast together, None and an ellipsis."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    used = draw(st.integers(0, len(shape)))
    with_ellipsis = draw(st.booleans())
    front = draw(st.integers(0, used)) if with_ellipsis else used
    axes = [*range(front), *range(len(shape) - (used - front), len(shape))]
    array_shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (2, 3), (0,)]))
    index: list[Any] = []
    for axis in axes:
        if with_ellipsis and len([part for part in index if part is not None]) == front:
            index.append(Ellipsis)
            with_ellipsis = False
        extent = shape[axis]
        indices = st.integers(-extent, extent - 1)
        bounds = st.none() | st.integers(-6, 6)
        kind = draw(st.sampled_from(["int", "slice", "slice", "array"]))
        if kind == "int":
            index.append(draw(indices))
        elif kind == "slice":
            index.append(slice(draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, 3, -1, -2]))))
        else:
            size = int(np.prod(array_shape))
            values = draw(st.lists(indices, min_size=size, max_size=size))
            index.append(np.array(values, np.int32).reshape(array_shape))
        if draw(st.integers(0, 5)) == 0:
            index.append(None)
    if with_ellipsis:
        index.append(Ellipsis)
    return shape, tuple(index)


@given(shapes_and_indices())
def test_reading_is_that_of_numpy(case: tuple[tuple[int, ...], Any]) -> None:
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    result = mx.array(x)[weft_index(index)]
    expected = x[index]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(result), expected)


@given(shapes_and_indices(), st.booleans())
def test_writing_is_that_of_numpy(case: tuple[tuple[int, ...], Any], is_scalar: bool) -> None:
    shape, index = case
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    a = mx.array(x)
    before = a.node
    value = np.float32(-1) if is_scalar else -1 - np.arange(x[index].size, dtype=np.float32).reshape(x[index].shape)
    expected = x.copy()
    expected[index] = value
    a[weft_index(index)] = -1.0 if is_scalar else mx.array(value)
    assert a.node is not before
    np.testing.assert_array_equal(np.asarray(a), expected)


@given(shapes_and_indices(), st.sampled_from(["add", "subtract", "multiply", "divide", "maximum", "minimum"]))
def test_updates_count_every_index(case: tuple[tuple[int, ...], Any], name: str) -> None:
    shape, index = case
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float64).reshape(shape)
    value = 2 + np.arange(x[index].size, dtype=np.float64).reshape(x[index].shape) % 3
    expected = x.copy()
    getattr(np, name).at(expected, index, value)
    a = mx.array(x, mx.float64)
    result = getattr(a.at[weft_index(index)], name)(mx.array(value, mx.float64))
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-14)
    np.testing.assert_array_equal(np.asarray(a), x)


@pytest.mark.parametrize(
    ("index", "error", "parts"),
    [
        (2, IndexError, ["2", "axis 0", "2 elements", "(2, 3)"]),
        (-3, IndexError, ["-3", "axis 0"]),
        ((0, 5), IndexError, ["5", "axis 1", "3 elements"]),
        ((slice(None), -4), IndexError, ["-4", "axis 1"]),
        ((0, 0, 0), IndexError, ["3", "(2, 3)"]),
        ((..., ...), IndexError, ["ellipsis"]),
        (1.5, ValueError, ["1.5", "float"]),
        ("a", ValueError, ["'a'", "str"]),
        ((0, (1, 2)), ValueError, ["tuple"]),
        (slice(0, 1.5), ValueError, ["1.5", "slice"]),
        (slice(None, None, 0), ValueError, ["step"]),
        (True, ValueError, ["True"]),
        (np.array([True, False, True]), IndexError, ["(3,)", "(2, 3)"]),
        (np.array([0.5]), ValueError, ["float32"]),
        ((np.array([0, 1, 0]), np.array([0, 1])), ValueError, ["(3,)", "(2,)"]),
    ],
    ids=repr,
)
def test_indices_that_cannot_be(index: Any, error: type[Exception], parts: list[str]) -> None:
    a = mx.zeros((2, 3))
    with pytest.raises(error) as caught:
        _ = a[weft_index(index)]
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("index", [2, (0, 5), (0, 0, 0), 1.5, slice(None, None, 0)], ids=repr)
def test_a_failed_assignment_changes_nothing(index: Any) -> None:
    a = mx.zeros((2, 3))
    with pytest.raises((IndexError, ValueError)):
        a[index] = 1
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        a[0] = mx.ones(4)
    with pytest.raises(TypeError, match="str"):
        a[0] = "x"
    assert a.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_values_are_converted_and_broadcast() -> None:
    a = mx.arange(5)
    a[0] = 2.7
    a[1:3] = mx.array([[9.9, 8.9]])
    a[3] = True
    a[4:] = [6]
    assert repr(a) == "array([2, 9, 8, 1, 6], dtype=int32)"
    with pytest.raises(ValueError, match="int8"):
        mx.zeros(2, mx.int8)[0:1] = 300
    with pytest.raises(ValueError, match=r"\(2, 1\).*\(2,\)"):
        a[1:3] = mx.array([[4], [5]])
    b = mx.zeros((2, 3))
    b[..., None] = mx.ones((3, 1))
    assert b.tolist() == [[1, 1, 1]] * 2


def test_the_last_of_equal_indices_stays() -> None:
    a = mx.zeros(3)
    a[mx.array([1, 1, 0])] = mx.array([5.0, 6.0, 7.0])
    assert a.tolist() == [7, 6, 0]


def test_masks() -> None:
    a = mx.arange(5)
    a[a > 2] = mx.array([8, 9])
    assert a.tolist() == [0, 1, 2, 8, 9]
    a[[True, False, True, False, False]] = 7
    assert a.tolist() == [7, 1, 7, 8, 9]
    a[np.array([False, True, False, False, True])] = mx.array([5, 6, 100])
    assert a.tolist() == [7, 5, 7, 8, 6]
    a[a > 100] = mx.array([1, 2])
    assert a.tolist() == [7, 5, 7, 8, 6]
    a[True] = 3
    assert a.tolist() == [3] * 5
    b = mx.zeros((2, 2, 2))
    rows = mx.array([[True, False], [False, True]])
    b[rows] = mx.array([[1.0, 2.0], [3.0, 4.0]])
    assert b.tolist() == [[[1, 2], [0, 0]], [[0, 0], [3, 4]]]
    b[rows] = mx.array([5.0, 6.0])
    assert b.tolist() == [[[5, 6], [0, 0]], [[0, 0], [5, 6]]]
    assert mx.arange(4).at[mx.arange(4) > 1].add(10).tolist() == [0, 1, 12, 13]


def test_masks_that_do_not_fit() -> None:
    a = mx.arange(6).reshape(2, 3)
    with pytest.raises(ValueError, match=r"2 places.*1 value"):
        a[a > 3] = mx.array([1])
    with pytest.raises(ValueError, match=r"\(3,\).*\(2, 3\)"):
        a[mx.array([True, False, True])] = 1
    with pytest.raises(ValueError, match="stands alone"):
        mx.compile(lambda a, mask: a.at[mask, 0].add(1))(a, mx.array([True, False]))
    with pytest.raises(IndexError, match=r"\(2,\)"):
        a[0, mx.array([True, False])] = 1
    with pytest.raises(ValueError, match="broadcast"):
        a[mx.array([True, False])] = mx.ones((2, 2))


TALL, WIDE = np.array([True, False, True]), np.array([False, True, True, False])
BESIDE: list[tuple[Any, Any]] = [
    ((slice(None), TALL), [[[1.0], [2.0]]]),
    ((slice(None), TALL), np.arange(16.0).reshape(2, 2, 4)),
    ((slice(None), TALL, slice(None)), 5.0),
    ((..., WIDE), [3.0, 4.0]),
    ((..., WIDE), np.arange(12.0).reshape(2, 3, 2)),
    ((..., WIDE), [[1.0], [2.0], [3.0]]),
    ((slice(None), TALL[:, None] & WIDE), [1.0, 2.0, 3.0, 4.0]),
    ((TALL[:2], ...), [[[1.0], [2.0], [3.0]]]),
    ((1, TALL), np.arange(8.0).reshape(2, 4)),
    ((slice(None), TALL, 0), [1.0, 2.0]),
    ((slice(None), TALL, WIDE), [1.0, 2.0]),
    ((np.array([1, 0]), TALL), 6.0),
    ((None, slice(1, None), TALL), 7.0),
    ((slice(None), [True, False, True]), 8.0),
]
"""Masks among other indices of an array of shape (2, 3, 4), and values to assign."""


@pytest.mark.parametrize(("index", "value"), BESIDE)
def test_masks_beside_other_indices(index: tuple[Any, ...], value: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    new = np.array(value, np.float32)
    ours = weft_index(index)
    assigned, a = x.copy(), mx.array(x)
    assigned[index] = new
    a[ours] = mx.array(new)
    np.testing.assert_array_equal(a, assigned)
    added = x.copy()
    np.add.at(added, index, new)
    np.testing.assert_array_equal(mx.array(x).at[ours].add(mx.array(new)), added)


@pytest.mark.parametrize(("index", "value"), BESIDE[:8])
def test_masks_that_stand_alone_are_traced(index: tuple[Any, ...], value: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    new = np.array(value, np.float32)
    expected = x.copy()
    expected[index] = new

    def assign(x: mx.array, mask: mx.array, new: mx.array) -> mx.array:
        x = x + 0
        x[tuple(mask if isinstance(item, np.ndarray) else item for item in index)] = new
        return x

    (mask,) = [mx.array(item) for item in index if isinstance(item, np.ndarray)]
    arguments = (mx.array(x), mask, mx.array(new))
    np.testing.assert_array_equal(mx.compile(assign)(*arguments), expected)
    np.testing.assert_array_equal(mx.compile(assign, shapeless=True)(*arguments), expected)
    mapped = mx.vmap(assign, in_axes=(0, None, None))(mx.array(x)[None], *arguments[1:])
    np.testing.assert_array_equal(mapped[0], expected)


def test_updates_of_integers_round_down() -> None:
    assert mx.array([7, 7, -7]).at[1:].divide(2).tolist() == [7, 3, -4]
    assert mx.array([5, 6], mx.uint8).at[0].subtract(2).tolist() == [3, 6]
    with pytest.raises(ValueError, match="Say where"):
        mx.array([1]).at.add(1)


def test_gradients_reach_what_was_read_and_written() -> None:
    x = mx.array([1.0, 2.0, 3.0])
    index = mx.array([2, 2, 0])
    assert mx.grad(lambda x: (x[index] * mx.array([1.0, 10.0, 100.0])).sum())(x).tolist() == [100, 0, 11]
    assert mx.grad(lambda x: x[::-2].sum())(x).tolist() == [1, 0, 1]

    def written(x: mx.array, y: mx.array) -> mx.array:
        x = x * 1
        x[1:] = y
        x[index[:1]] = x[0] * 5
        return (x * mx.array([1.0, 10.0, 100.0])).sum()

    gradients = mx.grad(written, argnums=(0, 1))(x, mx.array([4.0, 5.0]))
    assert [g.tolist() for g in gradients] == [[501, 0, 0], [10, 0]]


def test_masked_assignment_can_be_traced() -> None:
    def f(x: mx.array, v: mx.array) -> mx.array:
        x = x + 0
        x[x > 1] = v
        return x

    x, v = mx.array([[3.0, 0.0], [1.0, 2.0]]), mx.array([7.0, 8.0])
    assert mx.compile(f)(x, v).tolist() == [[7, 0], [1, 8]]
    assert mx.vmap(f, in_axes=(0, None))(x, v).tolist() == [[7, 0], [1, 7]]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_take(axis: int) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(np.int32)
    a = mx.array(x)
    for index in (1, -1, np.array(1), np.array([0, 1, -1]), np.array([[0], [1]])):
        result = mx.take(a, index if isinstance(index, int) else mx.array(index), axis=axis)
        np.testing.assert_array_equal(np.asarray(result), np.take(x, index, axis=axis))
    np.testing.assert_array_equal(np.asarray(mx.take(a, mx.array([5, -1]))), np.take(x, [5, -1]))
    assert mx.take(a, 7).item() == 7
    with pytest.raises(IndexError, match="9"):
        mx.take(a, 9, axis=axis)


def test_along_an_axis() -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(np.float32)[:, ::-1]
    a = mx.array(x)
    for axis in (0, 1, 2, -1):
        index = np.argsort(-x, axis=axis)[:, :1].astype(np.int32)
        index = index[:1] if axis == 0 else index
        indices = np.broadcast_to(
            index, [n if d == axis % 3 else m for d, (m, n) in enumerate(zip(x.shape, index.shape, strict=True))]
        )
        expected = np.take_along_axis(x, indices, axis)
        np.testing.assert_array_equal(np.asarray(mx.take_along_axis(a, mx.array(index), axis)), expected)
        written = x.copy()
        np.put_along_axis(written, indices, -1, axis)
        result = mx.put_along_axis(a, mx.array(index), mx.array(-1), axis)
        np.testing.assert_array_equal(np.asarray(result), written)
    flat = mx.put_along_axis(a, mx.array([0, 5]), mx.array([50.0, 60.0]))
    assert (flat.shape, flat[0, 0, 0].item(), flat[0, 1, 1].item()) == ((2, 3, 4), 50, 60)
    assert mx.take_along_axis(a, mx.array([0, -1]), None).tolist() == [x.flat[0], x.flat[-1]]

    def put(a: mx.array, index: mx.array, axis: int) -> mx.array:
        return mx.put_along_axis(a, index, mx.array(0), axis)

    for function in (mx.take_along_axis, put):
        with pytest.raises(ValueError, match=r"\(2,\).*\(2, 3, 4\)"):
            function(a, mx.array([0, 1]), 0)
        with pytest.raises(IndexError, match="3"):
            function(a, mx.zeros((1, 1, 1), mx.int32), 3)
        with pytest.raises(ValueError, match="integers"):
            function(a, mx.zeros((1, 1, 1)), 0)


def test_parts_that_start_where_an_array_says() -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(np.int32)
    a = mx.array(x)
    part = mx.slice(a, mx.array([1, 2]), axes=(1, -1), slice_size=(2, 2, 1))
    np.testing.assert_array_equal(np.asarray(part), x[:, 1:3, 2:3])
    changed = mx.slice_update(a, mx.zeros((2, 2, 1), mx.int32), mx.array([1, 2]), axes=(1, -1))
    expected = x.copy()
    expected[:, 1:3, 2:3] = 0
    np.testing.assert_array_equal(np.asarray(changed), expected)
    repeated = mx.slice_update(a, mx.array([1, 2, 3, 4]), mx.array(1), axes=(0,))
    assert repeated[1].tolist() == [[1, 2, 3, 4]] * 3
    assert repeated[0].tolist() == x[0].tolist()
    with pytest.raises(ValueError, match="start_indices"):
        mx.slice(a, mx.array([0]), (0, 1), (1, 2, 4))
    with pytest.raises(ValueError, match="twice"):
        mx.slice(a, mx.array([0, 0]), (0, 0), (1, 2, 4))
    with pytest.raises(ValueError, match=r"\(3, 3, 4\)"):
        mx.slice(a, mx.array([0]), (0,), (3, 3, 4))
    with pytest.raises(ValueError, match=r"\(3, 3, 4\)"):
        mx.slice_update(a, mx.zeros((3, 3, 4)), mx.array([0]), (0,))


def test_slices_of_nothing_begin_anywhere() -> None:
    nothing, start = mx.zeros((0, 3)), mx.array([0])
    assert mx.slice(nothing, start, [0], [0, 2]).shape == (0, 2)
    assert mx.slice_update(nothing, nothing, start, [0]).shape == (0, 3)


def test_dynamic_slices_along_no_axis() -> None:
    none = mx.array([], mx.int32)
    a = mx.arange(6).reshape(2, 3)
    for transformation in (lambda f: f, mx.compile, lambda f: mx.compile(f, shapeless=True)):
        part = transformation(lambda x: mx.slice(x, none, [], (2, 2)))
        changed = transformation(lambda x, update: mx.slice_update(x, update, none, ()))
        assert part(a).tolist() == [[0, 1], [3, 4]]
        assert changed(a, mx.array([[7], [8]])).tolist() == [[7, 1, 2], [8, 4, 5]]
        assert changed(mx.array(1), mx.array(2)).item() == 2
    assert mx.vmap(lambda x: mx.slice(x, none, [], (2,)))(a).tolist() == [[0, 1], [3, 4]]
    assert mx.grad(lambda x: mx.slice(x, none, [], (1, 2)).sum())(mx.ones((2, 3))).tolist() == [[1, 1, 0], [0, 0, 0]]
