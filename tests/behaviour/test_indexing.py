"""Indexing and assignment: the same elements as with NumPy, and assignments never change other handles."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from weft.errors import TraceError

BASE = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


class Arrays:
    """Marks an index that is an array: built for Weft or for NumPy."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"array{self.values}"


INDICES: list[Any] = [
    0,
    -1,
    (0, 1),
    (0, 1, -1),
    (1, 2, 3),
    ...,
    (...,),
    None,
    (None, 0),
    (slice(None), None, 1),
    (..., None),
    (..., 1),
    (0, ..., 1),
    (slice(None), 1),
    slice(1, None),
    slice(5, 9),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(None), slice(2, 0, -1)),
    (slice(None), slice(-2, None)),
    (slice(None), slice(None), slice(None, None, 3)),
    (slice(0, 0), slice(None)),
    (1, slice(None, None, -2), slice(3, None, -1)),
    Arrays([1, 0]),
    Arrays([0, 0, -1]),
    Arrays([[0], [1]]),
    Arrays(1),
    Arrays([]),
    (slice(None), Arrays([2, 0])),
    (slice(None), Arrays([[2, 0], [1, 1]])),
    (Arrays([0, 1]), Arrays([2, 0])),
    (Arrays([[0], [1]]), Arrays([2, 0])),
    (Arrays([0, 1]), slice(None), Arrays([2, 0])),
    (slice(None), Arrays([0, 1]), Arrays([2, 0])),
    (0, Arrays([1, 2]), slice(1, 3)),
    (slice(None), None, Arrays([0])),
    (..., Arrays([3, 0])),
    (Arrays([1]), 2, Arrays([3])),
    (slice(None, None, -1), Arrays([2]), slice(None, None, 2)),
    [0, 1],
]
# Left out: NumPy's lists inside of a tuple, and boolean masks, whose results have no fixed shape.


def for_weft(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(for_weft(part) for part in index)
    return mx.array(index.values, dtype=mx.int32) if isinstance(index, Arrays) else index


def for_numpy(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(for_numpy(part) for part in index)
    return np.array(index.values, dtype=np.int32) if isinstance(index, Arrays) else index


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_reading(index: Any) -> None:
    expected = BASE[for_numpy(index)]
    result = mx.array(BASE)[for_weft(index)]
    assert result.shape == expected.shape
    np.testing.assert_array_equal(np.array(result), expected)


def _read(array: Any, index: Any) -> Any:
    """The elements at an index; None for an index that is wrong."""
    try:
        return array[index]
    except (IndexError, ValueError):
        return None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_indices_of_a_few_entries(count: int) -> None:
    entries = [None, ..., slice(None), 1, -3, slice(1, None), slice(2, 0, -1), slice(None, None, 2), slice(5, 9)]
    array = BASE[1]
    for index in itertools.product(entries, repeat=count):
        expected, found = _read(array, index), _read(mx.array(array), index)
        assert (expected is None) == (found is None), index
        if expected is not None:
            np.testing.assert_array_equal(np.array(found), expected, err_msg=str(index))
            target, updated = array.copy(), mx.array(array)
            target[index] = 7
            updated[index] = 7
            np.testing.assert_array_equal(np.array(updated), target, err_msg=str(index))


@pytest.mark.parametrize("step", [2**70, -(2**70)])
def test_a_step_of_any_size(step: int) -> None:
    want = [0] if step > 0 else [2]
    assert mx.arange(3)[::step].tolist() == want
    assert mx.compile(lambda x: x[::step], shapeless=True)(mx.arange(3)).tolist() == want


def test_the_bounds_of_a_slice_may_be_arrays() -> None:
    start, stop, step = mx.array(2), mx.array(9, dtype=mx.uint8), mx.array(-3, dtype=mx.int64)
    x = mx.arange(12)
    assert x[start:stop].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert x[stop:start:step].tolist() == [9, 6, 3]
    x[:start] = 7
    assert x[: start + 1].tolist() == [7, 7, 2]
    for bound in (mx.array(1.0), mx.array([1]), mx.array(True)):
        with pytest.raises(ValueError, match="bounds of a slice"):
            x[bound:]
    with pytest.raises(TraceError, match="compile"):
        mx.compile(lambda x, start: x[start:])(x, start)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_writing_a_number(index: Any) -> None:
    expected, target = BASE.copy(), mx.array(BASE)
    expected[for_numpy(index)] = -1
    target[for_weft(index)] = -1
    np.testing.assert_array_equal(np.array(target), expected)


DISTINCT = [index for index in INDICES if "[0, 0, -1]" not in repr(index) and "[1, 1]" not in repr(index)]


@pytest.mark.parametrize("index", DISTINCT, ids=repr)
def test_writing_an_array(index: Any) -> None:
    expected, target = BASE.copy(), mx.array(BASE)
    values = -np.arange(1, BASE[for_numpy(index)].size + 1, dtype=np.float32).reshape(BASE[for_numpy(index)].shape)
    expected[for_numpy(index)] = values
    target[for_weft(index)] = mx.array(values)
    np.testing.assert_array_equal(np.array(target), expected)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_adding_at_an_index_counts_every_repeat(index: Any) -> None:
    expected = BASE.copy()
    np.add.at(expected, for_numpy(index), 2)
    np.testing.assert_array_equal(np.array(mx.array(BASE).at[for_weft(index)].add(2)), expected)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_the_gradient_of_reading_counts_how_often_each_element_was_read(index: Any) -> None:
    expected = np.zeros_like(BASE)
    np.add.at(expected, for_numpy(index), 1)
    gradient = mx.grad(lambda x: x[for_weft(index)].sum())(mx.array(BASE))
    np.testing.assert_array_equal(np.array(gradient), expected)


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_compiled_and_mapped(index: Any) -> None:
    x = mx.array(BASE)
    expected = x[for_weft(index)]
    assert_same_bits(mx.compile(lambda a: a[for_weft(index)])(x), expected)
    mapped = mx.vmap(lambda a: a[for_weft(index)])(mx.stack([x, x * 2]))
    np.testing.assert_array_equal(np.array(mapped), np.stack([np.array(expected), 2 * np.array(expected)]))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("add", [3.0, 1.0, 1.0]),
        ("subtract", [-1.0, 1.0, 1.0]),
        ("multiply", [2.0, 1.0, 1.0]),
        ("divide", [0.5, 1.0, 1.0]),
        ("maximum", [2.0, 1.0, 1.0]),
        ("minimum", [1.0, 1.0, 1.0]),
    ],
)
def test_updates_at_an_index(method: str, expected: list[float]) -> None:
    x = mx.ones((3,))
    assert getattr(x.at[0], method)(2.0).tolist() == expected
    assert getattr(x.at[mx.array([0])], method)(mx.array([2.0])).tolist() == expected
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_repeated_indices_in_updates() -> None:
    twice = mx.array([1, 1])
    x = mx.array([2.0, 2.0])
    assert x.at[twice].add(mx.array([1.0, 10.0])).tolist() == [2.0, 13.0]
    assert x.at[twice].subtract(1).tolist() == [2.0, 0.0]
    assert x.at[twice].multiply(3).tolist() == [2.0, 18.0]
    assert x.at[twice].maximum(mx.array([5.0, 3.0])).tolist() == [2.0, 5.0]
    assert x.at[twice].minimum(mx.array([0.5, 1.0])).tolist() == [2.0, 0.5]


def test_what_is_assigned_is_cast_to_the_array() -> None:
    x = mx.zeros((3,), dtype=mx.int32)
    x[0] = 2.7
    x[1:] = mx.array([1.2, 3.9])
    assert x.dtype == mx.int32
    assert x.tolist() == [2, 1, 3]


def test_what_is_assigned_is_broadcast() -> None:
    x = mx.zeros((2, 3))
    x[:, 1] = 5
    x[0] = mx.array([1.0, 2.0, 3.0])
    x[..., -1:] = mx.array([[7.0], [8.0]])
    assert x.tolist() == [[1.0, 2.0, 7.0], [0.0, 5.0, 8.0]]
    x[1:, 1:] += 1
    assert x.tolist() == [[1.0, 2.0, 7.0], [0.0, 6.0, 9.0]]


def test_a_mask_selects_what_is_assigned() -> None:
    x = mx.array([1, 2, 3])
    x[x > 1] = 0
    assert x.tolist() == [1, 0, 0]


def test_two_names_of_one_array_see_an_update() -> None:
    a = mx.array([1, 2, 3])
    b = a
    a += 1
    assert b.tolist() == [2, 3, 4]
    a[0] = 9
    assert b.tolist() == [9, 3, 4]


UPDATES: dict[str, Callable[[mx.array], Any]] = {
    "assignment": lambda a: a.__setitem__(0, 9),
    "in-place addition": lambda a: a.__iadd__(1),
    "in-place multiplication": lambda a: a.__imul__(7),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("evaluated", [False, True])
def test_what_was_made_before_an_update_keeps_its_value(update: str, evaluated: bool) -> None:
    a = mx.array([[1.0, 2.0], [3.0, 4.0]]) + 0
    if evaluated:
        mx.eval(a)
    made = {
        "row": a[0],
        "transposed": a.T,
        "flat": a.reshape(-1),
        "sum": a.sum(),
        "broadcast": mx.broadcast_to(a, (2, 2, 2)),
        "array": mx.array(a),
    }
    UPDATES[update](a)
    mx.eval(a)
    assert made["row"].tolist() == [1.0, 2.0]
    assert made["transposed"].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert made["flat"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert made["sum"].item() == 10.0
    assert made["broadcast"].tolist() == [[[1.0, 2.0], [3.0, 4.0]]] * 2
    assert made["array"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_assigning_to_a_view_leaves_the_array() -> None:
    a = mx.zeros((2, 2))
    row = a[0]
    row[0] = 5
    assert a.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert row.tolist() == [5.0, 0.0]


def test_assigning_an_array_to_itself() -> None:
    a = mx.arange(5)
    a[1:] = a[:-1]
    assert a.tolist() == [0, 0, 1, 2, 3]
    a[::-1] = a
    assert a.tolist() == [3, 2, 1, 0, 0]


def test_take_and_take_along_axis() -> None:
    x = mx.array(BASE)
    np.testing.assert_array_equal(np.array(mx.take(x, mx.array([5, 0, -1]))), np.take(BASE, [5, 0, -1]))
    np.testing.assert_array_equal(np.array(mx.take(x, mx.array([2, 0]), axis=1)), np.take(BASE, [2, 0], axis=1))
    np.testing.assert_array_equal(np.array(mx.take(x, 1, axis=-1)), np.take(BASE, 1, axis=-1))
    order = np.argsort(-BASE, axis=2)
    along = mx.take_along_axis(x, mx.array(order), axis=2)
    np.testing.assert_array_equal(np.array(along), np.take_along_axis(BASE, order, axis=2))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int64"])
def test_indices_of_every_integer_type(dtype: str) -> None:
    index = mx.array([2, 0], dtype=getattr(mx, dtype))
    assert mx.array([10, 20, 30])[index].tolist() == [30, 10]


def test_iterating_gives_the_rows() -> None:
    assert [row.tolist() for row in mx.array([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    first, second = mx.array([1, 2])
    assert (first.item(), second.item()) == (1, 2)


MASKS = [
    lambda x, m: x[m],
    lambda x, m: x[m[:, 0]],
    lambda x, m: x[1, m[0]],
    lambda x, m: x[..., m[0, 1]],
    lambda x, m: x[None, :, m[0]],
    lambda x, m: x[m[:, :, 0]],
    lambda x, m: x[:, m[0, :, 0], ::2],
    lambda x, m: x[m[0, 0, 0]],
    lambda x, m: x[0, 0, 0][m[1, 0, 0]],
    lambda x, m: x[m & ~m],
    lambda x, m: x[m[:, 0].tolist()],
    lambda x, m: x[1, m[0].tolist()],
    lambda x, m: x[m.tolist()],
]


@pytest.mark.parametrize("read", MASKS)
def test_masks_select_as_those_of_numpy(read: Any, rng: np.random.Generator) -> None:
    numbers, mask = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.random((2, 3, 4)) < 0.5
    try:
        want = read(numbers, mask)
    except IndexError:
        with pytest.raises(IndexError, match="mask"):
            read(mx.array(numbers), mx.array(mask))
        return
    got = read(mx.array(numbers), mx.array(mask))
    np.testing.assert_array_equal(np.array(got), want)


@pytest.mark.parametrize("transform", [mx.compile, mx.vmap])
def test_a_traced_mask_cannot_be_read(transform: Any) -> None:
    """The shape of the result would depend on values."""
    with pytest.raises((ValueError, TypeError, IndexError), match=r"(?i)bool"):
        transform(lambda x: x[x > 1])(mx.array([[1, 2, 3]]))


@pytest.mark.parametrize("read", [lambda a, i: a[i], lambda a, i: a.at[i].add(1), lambda a, i: a[:, i]])
def test_numbers_that_are_no_integers_do_not_index(read: Any) -> None:
    with pytest.raises(ValueError, match=r"integers, not float32 .*\(2,\).*\.astype\(mx\.int32\)"):
        read(mx.zeros((3, 3)), mx.array([0.0, 1.0]))
