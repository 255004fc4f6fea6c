"""Products of operands that were converted from half precision: they are read as they were, and bits are the same."""

from __future__ import annotations

from itertools import product

import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from tests.sampling import Cases

# Rows, terms and columns: blocks, few rows, few columns, rows of the matrix side by side.
EXTENTS = [(60, 300, 70), (5, 40, 90), (1, 600, 64), (90, 33, 3), (2, 300, 5000), (130, 64, 260), (1, 128, 3000)]
HALVES = [mx.float16, mx.bfloat16]


def numbers(*shape: int, dtype: mx.Dtype) -> mx.array:
    x = mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)
    mx.eval(x)
    return x


def test_bits_are_those_of_converted_operands(cases: Cases) -> None:
    kinds = [(mx.float32, half) for half in HALVES] + [(half, mx.float32) for half in HALVES] + [tuple(HALVES)]
    ways = list(product(EXTENTS, kinds, [(False, False), (True, False), (False, True)]))
    for extents, dtypes, turned in cases.some(3, ways):
        rows, inner, columns = extents
        a, b = [
            mx.swapaxes(numbers(2, *shape[::-1], dtype=dtype), 1, 2) if is_turned else numbers(2, *shape, dtype=dtype)
            for shape, dtype, is_turned in zip([(rows, inner), (inner, columns)], dtypes, turned, strict=True)
        ]
        wide = [x.astype(mx.float32) for x in (a, b)]
        mx.eval(wide)
        assert_same_bits(a.astype(mx.float32) @ b.astype(mx.float32), wide[0] @ wide[1])


@pytest.mark.parametrize("dtype", HALVES)
def test_a_converted_operand_takes_no_memory(dtype: mx.Dtype) -> None:
    a, b = numbers(64, 512, dtype=mx.float32), numbers(300, 512, dtype=dtype)
    (plan,) = plans_of(lambda: a @ b.astype(mx.float32).T)
    assert (plan.steps.count, plan.arena) == (1, 0)
