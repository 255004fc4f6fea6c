"""Kernels that are attached to products: the bits are those of two steps, and the memory is less."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
import weft.nn as nn
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.runtime import executor

Consumer = Callable[[mx.array, mx.array, mx.array], Any]

# Functions of a product, a vector with a number for each of its columns, and an array of the product's shape.
CONSUMERS: dict[str, Consumer] = {
    "bias and activation": lambda product, row, other: nn.gelu(product + row),
    "residual": lambda product, row, other: other + product * 0.5,
    "another size": lambda product, row, other: (product + other).astype(mx.float16),
    "softmax": lambda product, row, other: mx.softmax(product + other, axis=-1),
    "sum of each row": lambda product, row, other: mx.sum(mx.square(product), axis=-1),
    "two results": lambda product, row, other: (mx.exp(product * 0.01), mx.max(product, axis=-1)),
    "positions": lambda product, row, other: mx.where(
        mx.arange(product.shape[-1]) <= mx.arange(product.shape[-2])[:, None], product, row
    ),
    "a part of something": lambda product, row, other: mx.concatenate([product + 1, other], axis=-1),
    "needed otherwise": lambda product, row, other: (product, product + row),
    "other shape": lambda product, row, other: product.reshape(-1, *product.shape) - row,
    "scan": lambda product, row, other: mx.cumsum(product, axis=-1),
}

EXTENTS = st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 47, 48, 49, 64, 65, 96, 97, 130, 257, 290])


def numbers(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    x = mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)
    mx.eval(x)
    return x


@settings(max_examples=15)
@given(
    st.sampled_from(list(CONSUMERS)),
    st.sampled_from([mx.float32, mx.float32, mx.float64, mx.float16]),
    st.tuples(EXTENTS, EXTENTS, EXTENTS),
    st.sampled_from([(), (), (2,), (2, 3)]),
    st.tuples(st.booleans(), st.booleans()),
)
def test_bits_are_those_of_two_steps(
    name: str, dtype: mx.Dtype, extents: tuple[int, int, int], batch: tuple[int, ...], turned: tuple[bool, bool]
) -> None:
    rows, columns, inner = extents
    a, b = [
        mx.swapaxes(numbers(*batch, *shape[::-1], dtype=dtype), -1, -2)
        if is_turned
        else numbers(*batch, *shape, dtype=dtype)
        for shape, is_turned in zip([(rows, inner), (inner, columns)], turned, strict=True)
    ]
    row, other = numbers(columns, dtype=dtype), numbers(*batch, rows, columns, dtype=dtype)
    fused = mx.compile(lambda a, b, *others: CONSUMERS[name](a @ b, *others))(a, b, row, other)
    product = a @ b
    mx.eval(product)
    assert_same_bits(fused, CONSUMERS[name](product, row, other))


@pytest.mark.parametrize(
    ("name", "dtype", "extents"),
    [
        ("softmax", mx.float32, (260, 1300, 64)),  # rows are made of several tiles
        ("softmax", mx.float16, (150, 700, 64)),  # scratch memory for some rows
        ("another size", mx.float32, (300, 300, 520)),  # and for a tile, whose sums have three blocks
        ("another size", mx.float32, (900, 1100, 300)),  # which does not fit there
        ("residual", mx.float32, (1, 3000, 900)),  # rows of a matrix in memory side by side
        ("another size", mx.float32, (300, 1, 4200)),
        ("another size", mx.float64, (160, 16, 2100)),
    ],
)
def test_ways_of_large_products(name: str, dtype: mx.Dtype, extents: tuple[int, int, int]) -> None:
    rows, columns, inner = extents
    a, b = numbers(rows, inner, dtype=dtype), numbers(inner, columns, dtype=dtype)
    row, other = numbers(columns, dtype=dtype), numbers(rows, columns, dtype=dtype)
    product = a @ b
    mx.eval(product)
    wanted = CONSUMERS[name](product, row, other)
    mx.eval(wanted)
    before = executor.thread_count()
    for threads in (1, 2):
        executor.set_thread_count(threads)
        (plan,) = plans_of(lambda: CONSUMERS[name](a @ b, row, other))
        assert plan.steps.count == 1
        assert_same_bits(CONSUMERS[name](a @ b, row, other), wanted)
    executor.set_thread_count(before)


A, B, C = numbers(64, 48), numbers(48, 32), numbers(64, 32)


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (lambda: mx.maximum(A @ B + C, 0), 1),
        (lambda: nn.silu(A @ B) * (A @ (B + 0)), 3),  # one of two products is stored before
        (lambda: mx.softmax((A @ B).reshape(4, 16, 32) + C[:16], axis=-1), 1),
        (lambda: mx.exp(A @ B) @ C.T, 2),
        (lambda: (A @ B) - mx.sum(A @ B, axis=0), 2),  # the sums need all of the product
        (lambda: (A @ B)[::-1] + C, 2),
        (lambda: (A @ B)[:, :16] + C[:, :16], 2),
        (lambda: A @ A.T + (A @ A.T).T, 2),  # at two indices
    ],
)
def test_what_is_attached(function: Callable[[], Any], steps: int) -> None:
    (plan,) = plans_of(function)
    assert plan.steps.count == steps


def test_a_product_that_only_a_kernel_reads_has_no_memory() -> None:
    for function in (lambda: nn.gelu(A @ B), lambda: mx.sum(A @ B, axis=-1), lambda: (A @ B).astype(mx.float16)):
        (plan,) = plans_of(function)
        assert plan.arena == 0
    (plan,) = plans_of(lambda: [(A @ B) + 1, (A @ B) @ C.T])
    assert plan.arena == 64 * 32 * 4


def test_an_input_still_gives_its_memory() -> None:
    """The result gets the memory of an input. The sums of the product are not stored there, because the kernel still
    reads the input."""

    def step(weight: mx.array, a: mx.array, b: mx.array) -> mx.array:
        return weight - 0.1 * (a @ b)

    (plan,) = plans_of(mx.compile(step), C, A, B)
    assert (plan.donations, plan.arena, plan.steps.count) == ([(2, 0)], 0, 1)
    weight = C + 0
    mx.eval(weight)
    wanted = step(weight, A, B)
    mx.eval(wanted)
    weight = step(weight, A, B)
    assert_same_bits(weight, wanted)


def test_a_kernel_of_very_many_inputs_is_a_step_of_its_own() -> None:
    others = [C + number for number in range(250)]
    mx.eval(others)

    def added(product: mx.array) -> mx.array:
        return functools.reduce(mx.add, others, product)

    (plan,) = plans_of(lambda: added(A @ B))
    assert plan.steps.count == 2
    product = A @ B
    mx.eval(product)
    assert_same_bits(added(A @ B), added(product))


def test_what_is_said_of_it() -> None:
    (call,) = mx.compile(lambda a, b, c: mx.maximum(a @ b + c, 0)).explain(A, B, C).steps
    assert (call.kind, call.name, call.loops) == ("call", "matmul, add, maximum", "64x32x[48]")
    assert call.bytes_read == A.nbytes + B.nbytes + C.nbytes
    assert call.bytes_written == C.nbytes
    assert call.arithmetic == 64 * 32 * (2 * 48 + 2)
    assert call.writes == ["result 0 float32[64,32]"]
    assert "attached to it:\nkernel rows=1" in call.text


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_of_many_products_grows_with_each(dtype: mx.Dtype, turned: bool) -> None:
    """The memory does not grow: one kernel for the whole sum would need all products at once. It does need them if rows
    are read from the last to the first, as no kernel can be attached then."""
    count, size = 20, 192
    start = numbers(size, size, dtype=dtype)
    terms = [numbers(70, size, dtype=dtype) + number for number in range(count)]  # of 64 or less, calls have several
    mx.eval(terms)

    def added(evaluate: Callable[[mx.array], Any] = lambda x: None) -> mx.array:
        total = start
        for term in terms:
            product = term.T @ term
            evaluate(product)
            total = total + (product[::-1] if turned else product)
            evaluate(total)
        return mx.tanh(total)

    (plan,) = plans_of(added)
    assert plan.steps.count == count + turned
    assert (plan.arena > 3 * size * size * 4) is turned
    assert_same_bits(added(), added(mx.eval))
