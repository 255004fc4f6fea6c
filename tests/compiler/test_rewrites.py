"""Passes over the graph before it is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import bits
from weft.dtypes import Dtype

A = mx.arange(30.0).reshape(5, 6)
B = mx.arange(42.0).reshape(6, 7)


def product_of(f: Callable[..., Any]) -> list[str]:
    """The loops of the products that are computed; the values are those of NumPy."""
    arrays = mx.array(A), mx.array(B)
    mx.eval(arrays)
    found = mx.compile(f)(*arrays)
    expected = f(np.array(A), np.array(B))
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(result), wanted)
    return [step.loops for step in mx.compile(f).explain(*arrays).calls]


@pytest.mark.parametrize(
    ("f", "loops"),
    [
        (lambda a, b: ((a @ b).T * 2,), ["7x5x[6]"]),
        (lambda a, b: ((a @ b).T.T * 2,), ["5x7x[6]"]),
        (lambda a, b: ((a @ b).T * 2, (a @ b) * 3), ["5x7x[6]"]),
        (lambda a, b: ((a @ b).T.T * 2, (a @ b).T.sum()), ["7x5x[6]"]),
    ],
    ids=["alone", "twice", "the product is used too", "the transpose is used too"],
)
def test_a_product_is_computed_once_as_it_is_wanted(f: Callable[..., Any], loops: list[str]) -> None:
    assert product_of(f) == loops


REDUCTIONS: list[Callable[..., mx.array]] = [
    *(mx.sum, mx.prod, mx.max, mx.min, mx.all, mx.any, mx.argmax, mx.argmin),
]


def test_short_products_of_complex_numbers_keep_the_signs_of_zeros() -> None:
    x = mx.array(np.array([[complex(-1, -0.0), complex(2, -0.0), 1]], np.complex64))
    assert bits(mx.prod(x, axis=1)) == bits(mx.prod(mx.concatenate([x, mx.ones((1, 6))], axis=1), axis=1))


@pytest.mark.parametrize(
    ("dtype", "shape", "axis"),
    [
        *[(dtype, (70, 3), -1) for dtype in (mx.float32, mx.bfloat16, mx.float64, mx.int32, mx.uint64)],
        (mx.float32, (3, 70), 0),
        (mx.float32, (5, 8, 7), 1),
        (mx.float32, (9, 5, 1), 1),
        (mx.float32, (20, 2, 3, 2), (1, 3)),
        (mx.float16, (20, 2, 2, 4), (1, 2)),
    ],
    ids=str,
)
def test_short_reductions_keep_their_bits(dtype: Dtype, shape: tuple[int, ...], axis: Any) -> None:
    numbers = np.random.default_rng(0).choice([-2.5, -0.0, 0.0, 1e-9, 1, 1.5, 3e7, np.inf, np.nan, -3e7], shape)
    x = mx.array(numbers).astype(dtype)
    functions = [f for f in REDUCTIONS if isinstance(axis, int) or f not in (mx.argmax, mx.argmin)]

    xs = [x + 0 for _ in functions]

    def unrolled(xs: list[mx.array]) -> list[mx.array]:
        return [f(-x, axis) for f, x in zip(functions, xs, strict=True)]

    def in_rows(xs: list[mx.array]) -> list[list[mx.array]]:
        sources = [-x for x in xs]
        return [[f(source, axis) for f, source in zip(functions, sources, strict=True)], sources]

    short, rows = mx.compile(unrolled), mx.compile(in_rows)
    assert [bits(found) for found in short(xs)] == [bits(found) for found in rows(xs)[0]]
    assert not any("[" in step.loops for step in short.explain(xs).steps)
    assert all("[" in step.loops for step in rows.explain(xs).steps)


def test_many_short_rows_that_have_other_uses_are_reduced_in_lanes() -> None:
    x = mx.random.normal((300, 3))

    def reduced(x: mx.array) -> list[mx.array]:
        source = -x
        return [mx.argmin(source, -1), mx.sum(source, -1), mx.softmax(source, -1), source]

    few = [reduced(x[start : start + 100]) for start in range(0, 300, 100)]
    compiled = mx.compile(reduced)
    assert list(map(bits, compiled(x))) == [bits(mx.concatenate(list(parts))) for parts in zip(*few, strict=True)]
    assert not any("[" in step.loops for step in compiled.explain(x).steps)


@pytest.mark.parametrize("count", [3, 16])
def test_distances_of_all_pairs_are_summed_in_one_kernel(count: int) -> None:
    a, b = mx.random.normal((70, count)), mx.random.normal((70, count))

    def squares(a: mx.array, b: mx.array) -> mx.array:
        return mx.square(a[:, None] - b)

    def summed(a: mx.array, b: mx.array) -> mx.array:
        return mx.rsqrt(mx.sum(squares(a, b), axis=-1)).sum(axis=-1)

    def in_rows(a: mx.array, b: mx.array) -> list[mx.array]:
        elements = squares(a, b)
        return [mx.rsqrt(mx.sum(elements, axis=-1)).sum(axis=-1), elements]

    assert bits(mx.compile(summed)(a, b)) == bits(mx.compile(in_rows)(a, b)[0])
    turned, whole = mx.compile(summed).explain(a, b).steps
    assert (turned.loops, whole.loops) == (f"{count}x70", "70x[70]")


def _many_operations(x: mx.array) -> mx.array:
    for number in range(12):
        x = x * 0.75 + number
    return x


@pytest.mark.parametrize(("count", "loops"), [(6, "70x70"), (7, "70x70x[7]")])
def test_sums_of_many_cheap_operations_on_all_pairs(count: int, loops: str) -> None:
    """If not too many, these are done for each element in lanes along the pairs."""
    a, b = mx.random.normal((70, count)), mx.random.normal((70, count))

    def elements(a: mx.array, b: mx.array) -> mx.array:
        return _many_operations(a[:, None] - b)

    def summed(a: mx.array, b: mx.array) -> mx.array:
        return mx.sum(elements(a, b), axis=-1)

    def in_rows(a: mx.array, b: mx.array) -> list[mx.array]:
        source = elements(a, b)
        return [mx.sum(source, axis=-1), source]

    assert bits(mx.compile(summed)(a, b)) == bits(mx.compile(in_rows)(a, b)[0])
    assert mx.compile(summed).explain(a, b).steps[-1].loops == loops


def test_expensive_operations_on_all_pairs_are_done_in_rows() -> None:
    a, b = mx.random.normal((70, 4)), mx.random.normal((70, 4))

    def summed(a: mx.array, b: mx.array) -> mx.array:
        return mx.sum(_many_operations(mx.exp(a[:, None] - b)), axis=-1)

    assert mx.compile(summed).explain(a, b).steps[-1].loops == "70x70x[4]"


@pytest.mark.parametrize("swapped", [False, True])
def test_only_what_differs_along_lanes_is_copied(swapped: bool) -> None:
    """The elements of the other array are the same for all lanes, and are read where they lie."""
    a, b = mx.random.normal((70, 16)), mx.random.normal((70, 16))

    def squares(a: mx.array, b: mx.array) -> mx.array:
        return mx.sum(mx.square(b[None] - a[:, None] if swapped else a[:, None] - b), axis=-1)

    _, whole = mx.compile(squares).explain(a, b).steps
    assert "stored" not in whole.operations
    assert mx.array_equal(mx.compile(squares)(a, b), squares(a, b))


def padded_operations(f: Callable[..., Any], *arrays: mx.array) -> list[str]:
    """The operations in the steps of a compiled function."""
    return sorted({name for step in mx.compile(f).explain(*arrays).steps for name in step.operations})


@pytest.mark.parametrize(
    ("f", "is_assigned"),
    [
        (lambda x: mx.pad(x, 1), True),
        (lambda x: mx.pad(x * 2, 1, constant_values=3), True),
        (lambda x: mx.sort(mx.pad(x, 1)), True),
        (lambda x: mx.pad(x, 1) + 1, False),
        (lambda x: mx.pad(x, 1).sum(axis=0), False),
        (lambda x: mx.pad(x[:10], 1), False),
    ],
    ids=["alone", "with what makes it", "for a routine", "in a kernel", "for a reduction", "small"],
)
def test_large_padded_arrays_are_assigned(f: Callable[..., mx.array], is_assigned: bool) -> None:
    x = mx.arange(300.0 * 300).reshape(300, 300)
    operations = padded_operations(f, x)
    assert ("slice_update" in operations, "pad" in operations) == (is_assigned, not is_assigned)
    assert mx.array_equal(mx.compile(f)(x), f(x))


@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8, mx.float16, mx.float32, mx.float64, mx.complex64])
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((70000,), ((1, 0),)),
        ((70000,), ((0, 5),)),
        ((70000,), ((0, 0),)),
        ((0, 300), ((0, 300), (0, 0))),
        ((40, 40, 40), ((1, 2), (0, 3), (4, 0))),
        ((3, 300, 1, 70), ((0, 0), (1, 1), (2, 0), (0, 0))),
        ((2, 2), ((200, 100), (100, 200))),
    ],
)
def test_large_padded_arrays_are_those_of_numpy(dtype: Dtype, shape: tuple[int, ...], widths: Any) -> None:
    x = (np.arange(np.prod(shape)) % 100).reshape(shape)
    a = mx.array(x).astype(dtype)
    expected = np.pad(np.array(a), widths, constant_values=1)
    for pad in (mx.pad, mx.compile(mx.pad)):
        np.testing.assert_array_equal(pad(a, widths, "constant", 1), expected)
