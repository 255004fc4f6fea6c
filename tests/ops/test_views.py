"""Memory read with other strides and as another dtype: views have the right elements, and none outside of the array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.ops.row import EVERY, numpy_dtype, to_array, to_numpy
from tests.sampling import Cases


def elements(x: np.ndarray, shape: list[int], strides: list[int], offset: int) -> np.ndarray | None:
    """The elements at ``offset + sum(index * strides)``, or None if one is outside."""
    index = np.full(shape, offset)
    for axis, step in enumerate(strides):
        index = index + step * np.arange(shape[axis]).reshape([-1 if n == axis else 1 for n in range(len(shape))])
    if index.size and not 0 <= index.min() <= index.max() < x.size:
        return None
    return x.ravel()[index] if index.size else np.zeros(shape, x.dtype)


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 7)), max_size=3),
    st.integers(0, 30),
    st.booleans(),
)
def test_as_strided_reads_what_it_says_or_refuses(
    shape: list[int], axes: list[tuple[int, int]], offset: int, turned: bool
) -> None:
    values = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    x = mx.array(values)
    if turned:
        values, x = values.T, x.T
    extents, strides = [extent for extent, _ in axes], [step for _, step in axes]
    expected = elements(values, extents, strides, offset)
    if expected is None:
        with pytest.raises(ValueError, match=r"\[as_strided\] Shape .* reads elements"):
            mx.as_strided(x, extents, strides, offset)
        return
    result = mx.as_strided(x, extents, strides, offset)
    assert result.tolist() == expected.tolist()
    assert (mx.as_strided(x, extents, strides, offset) + x.size).tolist() == (expected + values.size).tolist()


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((6,), (-1,), 5), ((3, 2), (1, 1), 0), ((2, 3), (1, 2), 0), ((6,), (0,), 5), ((3, 2), (1, 0), 1)],
)
def test_memory_that_is_read_twice_is_not_overwritten(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    """The result is as large as the argument, which ends, but must not be stored in its memory."""

    def function(x: mx.array) -> mx.array:
        return mx.as_strided(x, shape, strides, offset) + 1

    expected = elements(np.arange(6.0), list(shape), list(strides), offset)
    assert expected is not None
    for call in (function, mx.compile(function)):
        x = mx.arange(6.0) * 1
        mx.eval(x)
        arguments = [x]
        del x
        assert call(arguments.pop()).tolist() == (expected + 1).tolist()


GEOMETRIES = {
    "overlapping windows of images": (60, (2, 2, 2, 2, 2, 2), (30, 12, 4, 6, 2, 1), 2),
    "windows of one image": (36, (2, 2, 2, 2, 3), (12, 6, 12, 3, 1), 0),
    "rows that overlap": (12, (3, 6), (3, 1), 0),
    "rows one by one": (12, (3, 4), (4, 1), 0),
    "pairs backwards": (12, (2, 5, 2), (0, -2, 1), 10),
    "blocks with a gap": (12, (3, 2, 2), (4, 1, 1), 1),
    "blocks of single ones": (12, (1, 12), (12, 1), 0),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_cotangents_of_what_is_read_several_times_add_up(name: str, rng: np.random.Generator) -> None:
    size, shape, strides, offset = GEOMETRIES[name]
    places = elements(np.arange(size), list(shape), list(strides), offset)
    assert places is not None
    ct = rng.integers(-9, 9, shape).astype(np.float32)
    expected = np.zeros(size, np.float32)
    np.add.at(expected, places.ravel(), ct.ravel())
    _, (found,) = mx.vjp(lambda x: mx.as_strided(x, shape, strides, offset), [mx.zeros(size)], [mx.array(ct)])
    assert found.tolist() == expected.tolist()
    mapped = mx.vmap(
        lambda ct: mx.vjp(lambda x: mx.as_strided(x, shape, strides, offset), [mx.zeros(size)], [ct])[1][0]
    )
    assert mapped(mx.stack([mx.array(ct)] * 2)).tolist() == [expected.tolist()] * 2


def test_shapeless_checks_the_bounds_of_every_shape() -> None:
    compiled = mx.compile(lambda x: mx.as_strided(x, (3, 2), (2, 1)), shapeless=True)
    assert compiled(mx.arange(9)).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert compiled(mx.arange(6)).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="reads elements 0 to 5 of an array of 5"):
        compiled(mx.arange(5))


def test_arguments_of_as_strided() -> None:
    x = mx.arange(4)
    with pytest.raises(ValueError, match="differ in their numbers of axes"):
        mx.as_strided(x, (2,), (1, 2))
    with pytest.raises(ValueError, match="offset cannot be negative"):
        mx.as_strided(x, (2,), (1,), -1)
    with pytest.raises(ValueError, match="cannot be negative"):
        mx.as_strided(x, (-2,), (1,))
    with pytest.raises(TypeError, match="A stride must be an int"):
        mx.as_strided(x, (2,), (0.5,))  # type: ignore[arg-type]  # on purpose


def test_every_pair_of_dtypes(cases: Cases, rng: np.random.Generator) -> None:
    """The bytes stay the same; they are those of small numbers, which are not NaN in any dtype."""
    for source, target in cases.some(20, [(source, target) for source in EVERY for target in EVERY]):
        data = rng.integers(0, 2, (2, 3, 16), dtype=np.uint8)
        values, kind = data.view(numpy_dtype(source)), numpy_dtype(target)
        for x in (to_array(values), to_array(np.ascontiguousarray(values[::-1]))[::-1]):
            got = to_numpy(x.view(getattr(mx, target)))
            assert got.dtype == kind
            assert got.tobytes() == values.view(kind).tobytes()


def test_arguments_of_view() -> None:
    assert mx.view(1.0, mx.int32).item() == 0x3F800000
    assert mx.array([2, 0, 1], mx.uint8).view(mx.bool_).tolist() == [True, False, True]
    assert mx.zeros((3, 0)).view(mx.complex64).shape == (3, 0)
    with pytest.raises(ValueError, match=r"3 elements of 4 bytes along the last axis .* of 8 bytes"):
        mx.zeros((2, 3)).view(mx.float64)
    with pytest.raises(ValueError, match="0-d array of float32 cannot be read as int16"):
        mx.array(1.0).view(mx.int16)
    with pytest.raises(TypeError, match=r"mx\.float32"):
        mx.array(1.0).view("int32")  # type: ignore[arg-type]  # on purpose


def test_bits_have_no_derivative_but_the_same_dtype_has() -> None:
    x = mx.array([1.0, 2.0])
    assert mx.grad(lambda x: (x.view(mx.float32) ** 2).sum())(x).tolist() == [2.0, 4.0]
    assert mx.grad(lambda x: x.view(mx.int32).astype(mx.float32).sum())(x).tolist() == [0.0, 0.0]
    for transformed in (
        lambda f: mx.grad(lambda x: f(x).sum()),
        lambda f: lambda x: mx.jvp(f, [x], [x]),
    ):
        call: Any = transformed(lambda x: x.astype(mx.float16).view(mx.bfloat16))
        with pytest.raises(ValueError, match=r"float16 read as bfloat16 have no derivative.*astype"):
            call(x)
