"""Sums of products of few terms, several of which one call computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import bits, run_python
from tests.codegen.planned import plans_of

Operands = Sequence[tuple[mx.array, mx.array]]


def drawn(count: int, terms: int, rows: int, columns: int, turned: str = "", dtype: mx.Dtype = mx.float32) -> Operands:
    """Left and right operands; those ``turned`` are stored by columns."""
    rng = np.random.default_rng((count, terms, rows, columns))
    found = []
    for _ in range(count):
        left, right = rng.normal(size=(rows, terms)), rng.normal(size=(terms, columns))
        one = mx.array(left.T.copy(), dtype).T if "left" in turned else mx.array(left, dtype)
        two = mx.array(right.T.copy(), dtype).T if "right" in turned else mx.array(right, dtype)
        mx.eval(one, two)
        found.append((one, two))
    return found


def added(operands: Operands, total: mx.array | None = None, one_by_one: bool = False) -> mx.array:
    """The sum of products, perhaps with a value for each addition, so that products are computed one by one."""
    for left, right in operands:
        product = left @ right
        if one_by_one:
            mx.eval(product)
        total = product if total is None else total + product
        if one_by_one:
            mx.eval(total)
    assert total is not None
    return total


def sums(function: Callable[..., Any], *arguments: object) -> list[str]:
    """The loops of the sums of products that are computed together."""
    return [step.loops for step in mx.compile(function).explain(*arguments).calls if "sum_of_products" in step.name]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
@pytest.mark.parametrize("turned", ["", "left", "right", "left and right"])
@pytest.mark.parametrize(
    ("count", "terms", "rows", "columns"),
    [(5, 32, 256, 128), (3, 17, 200, 131), (7, 60, 90, 400), (20, 5, 129, 257), (16, 1, 64, 5000)],
)
def test_bits_are_those_of_products_alone(
    count: int, terms: int, rows: int, columns: int, turned: str, dtype: mx.Dtype
) -> None:
    operands = drawn(count, terms, rows, columns, turned, dtype)
    total = mx.array(np.random.default_rng(1).normal(size=(rows, columns)), dtype)
    for start in (None, total):
        wanted = bits(added(operands, start, one_by_one=True))
        assert sums(added, operands, start)
        assert bits(mx.compile(added)(operands, start)) == wanted


def test_operands_may_lie_differently() -> None:
    operands = [drawn(1, 32, 256, 130, turned)[0] for turned in ("", "left", "right", "left and right", "")]
    operands = [(left + number, right) for number, (left, right) in enumerate(operands)]
    wanted = bits(added(operands, one_by_one=True))
    assert sums(added, operands) == ["256x130x[160]"]
    assert bits(mx.compile(added)(operands)) == wanted


def test_the_terms_of_one_call_are_those_of_a_block() -> None:
    assert sums(added, drawn(19, 32, 256, 128)) == ["256x128x[256]", "256x128x[256]", "256x128x[96]"]
    assert sums(added, drawn(9, 32, 256, 128)) == ["256x128x[256]"], "and the last product is computed alone"
    assert sums(added, drawn(8, 60, 256, 128)) == ["256x128x[240]"] * 2
    assert sums(added, drawn(4, 65, 256, 128)) == [], "there are too many terms"
    assert sums(added, drawn(4, 32, 64, 64)) == [], "a cache holds the result"
    assert sums(added, drawn(4, 32, 16, 4096)) == [], "there are few rows"


def test_products_with_other_uses_are_computed_alone() -> None:
    operands = drawn(4, 32, 256, 128)

    def with_products(operands: Operands) -> list[mx.array]:
        products = [left @ right for left, right in operands]
        return [products[0] + products[1] + products[2] + products[3], products[1]]

    def with_totals(operands: Operands) -> list[mx.array]:
        products = [left @ right for left, right in operands]
        total = products[0] + products[1]
        return [total + products[2] + products[3], mx.exp(total)]

    assert sums(with_products, operands) == ["256x128x[96]"]
    assert sums(with_totals, operands) == ["256x128x[64]", "256x128x[64]"]
    for function in (with_products, with_totals):
        alone = function([(left + 0, right) for left, right in operands])
        for found, wanted in zip(mx.compile(function)(operands), alone, strict=True):
            assert bits(found) == bits(wanted)


def test_a_kernel_is_attached_to_the_last_one() -> None:
    operands, x = drawn(12, 32, 256, 128), mx.ones((256, 128))

    def step(operands: Operands, x: mx.array) -> mx.array:
        return x - mx.square(added(operands)) * 0.5

    (plan,) = plans_of(lambda x: mx.compile(step)(operands, x), x)
    assert str(plan).count("attached to it") == 1
    total = added(operands, one_by_one=True)
    assert bits(mx.compile(step)(operands, x)) == bits(x - mx.square(total) * 0.5)


def test_memory_does_not_grow_with_the_number_of_products() -> None:
    """Not all operands of a sum are in memory together."""

    def summed(count: int) -> int:
        x = mx.ones((32, 256))

        def total(x: mx.array) -> mx.array:
            found = mx.zeros((256, 256))
            for number in range(count):
                left = mx.sin(x * number)
                found = found + left.T @ (left + 1)
            return found

        return plans_of(mx.compile(total), x)[-1].arena

    assert summed(80) == summed(40)


SUMS = """
import hashlib, numpy as np, weft.core as mx
rng = np.random.default_rng(0)
x = [mx.array(rng.normal(size=(40, 300)), mx.float32) for _ in range(10)]
total = x[0].T @ x[1]
for one in x[2:]:
    total = total + one.T @ x[0]
wide = mx.array(rng.normal(size=(1, 3000)), mx.float32)
wide = sum([column @ (wide + number) for number, column in enumerate(mx.split(x[0][:, :16], 16, 1))])
print(hashlib.sha1(np.array(mx.tanh(total)).tobytes() + np.array(wide).tobytes()).hexdigest())
"""


@pytest.mark.parametrize("level", ["", "x86-64-v3"])
def test_threads_change_no_bit(level: str) -> None:
    run = partial(run_python, SUMS, WEFT_CPU=level)
    assert len({run(WEFT_NUM_THREADS=str(count)) for count in (1, 2, 7)}) == 1
