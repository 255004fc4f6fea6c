"""Sorting, selecting and searching beyond the operation table: every way to compute them, and every kind of numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
import weft.primitives as p
from tests.checks import run_python
from tests.ops.row import EVERY, numpy_dtype, to_numpy
from tests.sampling import Cases, examples
from weft.primitives.sort_cuts import FEW_ROWS, LONG, MANY_ROWS, MIDDLE, PARTED_BLOCK, SAMPLE, SHORT, SMALLEST_BLOCK

LENGTHS = [
    1, 2, 3, 15, 16, 17, SHORT - 1, SHORT, SHORT + 1, 100, MIDDLE - 1, MIDDLE, MIDDLE + 1, 1000, LONG - 1, LONG,
    LONG + SMALLEST_BLOCK + 5,
]  # fmt: skip
ROWS = [1, MANY_ROWS - 1, MANY_ROWS, FEW_ROWS + 1]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers with random bits."""
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Few different numbers: zeros, infinities and NaN of both signs."""
    if dtype == np.bool_ or dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    values = rng.choice([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0], shape)
    if dtype.kind == "c":
        values = values + 1j * rng.choice([0.0, -0.0, np.nan, 1.0], shape)
    return values.astype(dtype)


def close(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers that differ in their lowest bits, and some that differ in one of the highest."""
    if dtype == np.bool_:
        return drawn(rng, shape, dtype)
    bits = 8 * dtype.itemsize
    raw = rng.integers(0, 1 << min(bits - 3, 12), shape, np.uint64) | rng.integers(0, 2, shape, np.uint64) << (bits - 4)
    return raw.astype(f"u{dtype.itemsize}").view(dtype)


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...], np.dtype], np.ndarray]] = {
    "any bits": drawn,
    "special": special,
    "close": close,
    "equal": lambda rng, shape, dtype: np.ones(shape, dtype),
    "ascending": lambda rng, shape, dtype: np.sort(drawn(rng, shape, dtype)),
    "descending": lambda rng, shape, dtype: np.sort(drawn(rng, shape, dtype))[..., ::-1],
}


def order(x: np.ndarray) -> np.ndarray:
    """The indices that sort the rows."""
    return np.argsort(numbers(x), axis=-1, kind="stable")


def numbers(x: np.ndarray) -> np.ndarray:
    """``x`` in a dtype that NumPy can order."""
    return x if x.dtype.kind in "biufc" else x.astype(np.float32)


def array_of(x: np.ndarray, name: str) -> mx.array:
    """An array with the same bits; a conversion might change those of NaN."""
    if name != "bfloat16":
        return mx.array(np.ascontiguousarray(x), dtype=getattr(mx, name))
    wide = x.view(np.uint16).astype(np.uint32) << 16
    return mx.array(wide.view(np.float32)).astype(mx.bfloat16)


def memory(x: mx.array) -> np.ndarray:
    """The elements of an array; bfloat16 as float32, which keeps its bits."""
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)


def image(x: mx.array) -> bytes:
    """The memory of an array."""
    return memory(x).tobytes()


def check(x: mx.array, places: np.ndarray, start: int, count: int) -> None:
    """Compare every bit of a part of the sorted rows and of the indices with those of whole sorted rows."""
    wanted = places[..., start : start + count]
    np.testing.assert_array_equal(np.array(p.argsort(x, start=start, count=count)), wanted)
    # With NumPy: a gather in half precision may change the bits of NaN, as ARM64 does in conversions.
    elements = np.take_along_axis(memory(x), wanted, -1)
    assert image(p.sort(x, start=start, count=count)) == elements.tobytes()


GRID = [shape for shape in product(ROWS, LENGTHS) if shape[0] * shape[1] <= 20 * LONG]


@pytest.mark.some_rows(24)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", EVERY)
def test_every_bit(dtype: str, kind: str, cases: Cases, rng: np.random.Generator) -> None:
    """Which of equal elements comes first, and the bits of every NaN, are compared too."""
    for shape in cases.some(1, GRID):
        x = KINDS[kind](rng, shape, numpy_dtype(dtype))
        extent = shape[1]
        array, places = array_of(x, dtype), order(x)
        check(array, places, 0, extent)
        check(array, places, extent // 3, min(2, extent - extent // 3))
        check(array, places, extent - min(extent, 7), min(extent, 7))


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64"])
def test_a_sample_that_misleads(dtype: str, rng: np.random.Generator) -> None:
    """The elements of the sample, which decides between which elements rows are cut, are all equal to the smallest."""
    x = drawn(rng, (1, LONG + SMALLEST_BLOCK + 5), numpy_dtype(dtype)).copy()
    sample = np.arange(SAMPLE) * x.shape[1] // SAMPLE
    x[0, sample] = np.sort(x)[0, 0]
    check(array_of(x, dtype), order(x), LONG // 2, 3)


@pytest.mark.parametrize("length", [LENGTH for LENGTH in LENGTHS if LENGTH > 1])
def test_each_length(length: int, rng: np.random.Generator) -> None:
    """The gate takes lengths around each switch from one way of sorting to another, in one dtype."""
    for rows in ROWS[: 4 if length <= 1000 else 1]:
        x = special(rng, (rows, length), np.dtype(np.float32))
        x = np.where(rng.random(x.shape) < 0.5, x, rng.normal(size=x.shape).astype(np.float32))
        check(mx.array(x), order(x), 0, length)


LAYOUTS: dict[str, Callable[[np.ndarray], mx.array]] = {
    "transposed": lambda x: mx.array(np.ascontiguousarray(x.T)).T,
    "every second": lambda x: mx.array(np.repeat(x, 2, axis=1))[:, ::2],
    "reversed": lambda x: mx.array(np.ascontiguousarray(x[:, ::-1]))[:, ::-1],
    "broadcast": lambda x: mx.broadcast_to(mx.array(x[:1]), x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, 1, -2, None])
def test_layouts_and_axes(layout: str, axis: int | None, rng: np.random.Generator) -> None:
    x = rng.normal(size=(40, 50)).astype(np.float32)
    if layout == "broadcast":
        x = np.broadcast_to(x[:1], x.shape)
    array = LAYOUTS[layout](x)
    mx.eval(array)
    np.testing.assert_array_equal(np.array(mx.sort(array, axis=axis)), np.sort(x, axis=axis))
    np.testing.assert_array_equal(np.array(mx.argsort(array, axis=axis)), np.argsort(x, axis=axis, kind="stable"))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
def test_without_elements(shape: tuple[int, ...]) -> None:
    x = mx.zeros(shape)
    assert mx.sort(x).shape == mx.argsort(x).shape == shape
    assert mx.sort(x, axis=None).shape == (0,)
    assert mx.topk(x, 0).shape == (*shape[:-1], 0)
    assert mx.searchsorted(mx.zeros((0,)), x).shape == shape
    assert np.array(mx.searchsorted(mx.zeros((0,)), mx.ones((2,)))).tolist() == [0, 0]


def test_zero_dimensions() -> None:
    x = mx.array(3.0)
    assert mx.sort(x, axis=None).tolist() == [3.0]
    assert mx.median(x).item() == 3.0
    assert mx.searchsorted(mx.array([1.0, 4.0]), x).item() == 1
    for call in (mx.sort, mx.argsort, lambda x: mx.topk(x, 1), lambda x: mx.partition(x, 0)):
        with pytest.raises(IndexError, match="out of range"):
            call(x)


@given(st.data())
@examples(10)
def test_like_numpy(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(EVERY))
    shape = tuple(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = KINDS[data.draw(st.sampled_from(list(KINDS)))](rng, shape, numpy_dtype(name))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    array, moved = array_of(x, name), np.moveaxis(x, axis, -1)
    places = np.moveaxis(order(moved), -1, axis)
    np.testing.assert_array_equal(np.array(mx.argsort(array, axis=axis)), places)
    elements = mx.take_along_axis(array, mx.array(places.astype(np.uint32)), axis)
    assert image(mx.sort(array, axis=axis)) == image(elements)
    if shape[axis]:
        kth = data.draw(st.integers(-shape[axis], shape[axis] - 1))
        check_partition(array, elements, kth, axis)


def check_partition(x: mx.array, ordered: mx.array, kth: int, axis: int) -> None:
    """Both sides have the right elements, and so has ``kth``."""
    kth %= x.shape[axis]
    found = mx.partition(x, kth, axis=axis)
    places = mx.argpartition(x, kth, axis=axis)
    assert image(found) == image(mx.take_along_axis(x, places, axis))
    for ours, theirs in zip(
        mx.split(found, [kth, kth + 1], axis), mx.split(ordered, [kth, kth + 1], axis), strict=True
    ):
        np.testing.assert_array_equal(numbers(to_numpy(mx.sort(ours, axis=axis))), numbers(to_numpy(theirs)))


@pytest.mark.parametrize("dtype", EVERY)
def test_partition_keeps_order(dtype: str, cases: Cases, rng: np.random.Generator) -> None:
    """In rows that are not sorted as a whole, elements on each side keep their order, so every target gives the
    same."""
    shapes = [(1, MIDDLE + 1), (3, 1000), (1, PARTED_BLOCK), (2, PARTED_BLOCK + LONG), (FEW_ROWS, LONG)]
    for rows, extent in cases.some(2, shapes):
        x = KINDS["special" if rng.random() < 0.5 else "any bits"](rng, (rows, extent), numpy_dtype(dtype))
        places, kth = order(x), (0, int(rng.integers(extent)), extent - 2, extent - 1)[rng.integers(4)]
        for row, ordered in zip(places, np.take_along_axis(numbers(x), places, -1), strict=True):
            first, behind = (np.searchsorted(ordered, ordered[kth], side) for side in ("left", "right"))
            row[:first].sort()
            row[behind:].sort()
        array = array_of(x, dtype)
        np.testing.assert_array_equal(np.array(mx.argpartition(array, kth)), places)
        assert image(mx.partition(array, kth)) == image(
            mx.take_along_axis(array, mx.array(places.astype(np.uint32)), -1)
        )


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_marked_elements_first(share: float, rng: np.random.Generator) -> None:
    for shape in [(5,), (3, 300), (2, PARTED_BLOCK + 100)]:
        marks = rng.random(shape) < share
        np.testing.assert_array_equal(np.array(p.marked_first(mx.array(marks))), np.argsort(~marks, kind="stable"))


IN_THREADS = """
import hashlib
import numpy as np
import weft.core as mx
rng = np.random.default_rng(5)
digest = hashlib.sha256()
for shape in [(100000,), (3, 40000), (700, 60), (300, 1000)]:
    x = mx.array(np.round(rng.normal(size=shape) * 50).astype(np.float32) * np.float32(0.01))
    extent = shape[-1]
    results = [mx.sort(x), mx.argsort(x), mx.topk(x, 9), mx.median(x, axis=-1), mx.partition(x, 30),
               mx.argpartition(x, extent // 2), mx.searchsorted(mx.sort(x, axis=None), x),
               mx.argsort(x.astype(mx.float64)), mx.sort(x.astype(mx.complex64)), *mx.unique(x, 100, True, True, True)]
    for result in results:
        digest.update(np.array(result).tobytes())
print(digest.hexdigest())
"""


def test_threads_do_not_change_bits() -> None:
    assert len({run_python(IN_THREADS, WEFT_NUM_THREADS=str(count)) for count in (1, 7)}) == 1


def test_gradients_at_equal_elements() -> None:
    """The cotangent of a result goes to the element that it was copied from."""
    x = mx.array([2.0, 1.0, 2.0, 1.0])
    weights = mx.array([1.0, 10.0, 100.0, 1000.0])
    assert mx.grad(lambda x: mx.sum(mx.sort(x) * weights))(x).tolist() == [100.0, 1.0, 1000.0, 10.0]
    assert mx.grad(lambda x: mx.sum(mx.topk(x, 1)))(x).tolist() == [0.0, 0.0, 1.0, 0.0]
    assert mx.grad(mx.median)(x).tolist() == [0.5, 0.0, 0.0, 0.5]
    assert mx.grad(lambda x: mx.sum(mx.unique(x, 3) * weights[:3]))(x).tolist() == [10.0, 101.0, 0.0, 0.0]


def test_indices_have_no_derivative() -> None:
    x = mx.array([2.0, 1.0])
    for function in (mx.argsort, lambda x: mx.argpartition(x, 1), lambda x: mx.searchsorted(x, x)):
        _, (tangent,) = mx.jvp(lambda x, function=function: function(x).astype(mx.float32), [x], [x])
        assert tangent.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", EVERY)
def test_searchsorted(dtype: str, side: Literal["left", "right"], rng: np.random.Generator) -> None:
    for extent in (0, 1, 2, 7, 64, 1000):
        for kind in ("special", "any bits"):
            rows, values = (KINDS[kind](rng, (size,), numpy_dtype(dtype)) for size in (extent, 100))
            rows = rows[order(rows)]
            found = mx.searchsorted(array_of(rows, dtype), array_of(values, dtype), side)
            np.testing.assert_array_equal(np.array(found), np.searchsorted(numbers(rows), numbers(values), side))


def test_searchsorted_in_many_sequences(rng: np.random.Generator) -> None:
    rows = np.sort(rng.integers(0, 30, (4, 2, 20)), axis=-1)
    values = rng.integers(-3, 33, (4, 2, 3, 5))
    found = mx.vmap(mx.vmap(mx.searchsorted))(mx.array(rows), mx.array(values))
    for index in np.ndindex(4, 2):
        np.testing.assert_array_equal(np.array(found)[index], np.searchsorted(rows[index], values[index]))
    one = mx.vmap(mx.searchsorted, in_axes=(None, 1), out_axes=1)(mx.array(rows[0, 0]), mx.array(values[0, 0]))
    np.testing.assert_array_equal(np.array(one), np.searchsorted(rows[0, 0], values[0, 0]))


@pytest.mark.parametrize("size", [0, 1, 4, 9])
@pytest.mark.parametrize("fill", [None, 7])
def test_unique_like_mlx(mx_and_mlx: Any, size: int, fill: int | None, rng: np.random.Generator) -> None:
    for values in (
        [3.0, 1.0, 3.0],
        [0.0, -0.0, 2.0],
        [float("nan"), 1.0, float("nan")],
        rng.integers(0, 5, 12).tolist(),
    ):
        ours, theirs = (
            namespace.unique(namespace.array(values), size, True, True, True, fill_value=fill)
            for namespace in mx_and_mlx
        )
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.array(mine), np.array(other))


@pytest.fixture
def mx_and_mlx(mlx: Any) -> Any:
    return mx, mlx


WRONG: dict[str, tuple[type[Exception], str, Callable[[mx.array], Any]]] = {
    "axis": (IndexError, r"\[sort\] Axis 2 is out of range", lambda x: mx.sort(x, axis=2)),
    "kth": (ValueError, r"\[partition\] kth is 3, but there are 3", lambda x: mx.partition(x, 3)),
    "negative kth": (ValueError, r"\[argpartition\] kth is -4", lambda x: mx.argpartition(x, -4)),
    "k": (ValueError, r"\[topk\] k is 4, but there are 3", lambda x: mx.topk(x, 4)),
    "negative k": (ValueError, r"\[topk\] k cannot be negative", lambda x: mx.topk(x, -1)),
    "float as k": (TypeError, r"\[topk\] k must be an int", lambda x: mx.topk(x, 1.5)),  # type: ignore[arg-type]
    "no elements": (ValueError, r"\[median\] There are no elements", lambda x: mx.median(x[:0], axis=0)),
    "matrix": (ValueError, r"\[searchsorted\] The sorted sequence must be a vector", lambda x: mx.searchsorted(x, x)),
    "side": (ValueError, r'\[searchsorted\] side must be "left"', lambda x: mx.searchsorted(x[0], x, side="both")),
    "size": (ValueError, r"\[unique\] size cannot be negative", lambda x: mx.unique(x, -1)),
    "nothing": (ValueError, r"\[unique\] An empty array has no elements", lambda x: mx.unique(x[:0], 2)),
    "fill": (ValueError, r"\[unique\] fill_value must be one element", lambda x: mx.unique(x, 9, fill_value=x)),
    "list": (TypeError, r"\[sort\] a must be an array", lambda x: mx.sort([1, 2])),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    error, message, call = WRONG[name]
    with pytest.raises(error, match=message):
        call(mx.zeros((2, 3)))


def test_a_window_that_other_shapes_lack() -> None:
    largest = mx.compile(lambda x: mx.topk(x, 3), shapeless=True)
    assert largest(mx.array([5, 1, 4, 2])).tolist() == [2, 4, 5]
    with pytest.raises(ValueError, match="does not fit"):
        largest(mx.array([5, 1]))
