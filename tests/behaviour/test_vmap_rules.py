"""Batching rules of single operations, and rules that find that a result does not depend on the mapped axis."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.checks import bits
from tests.toy_operations import numbers, squares


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_stack_of_left_matrices_is_one_product(axis: int) -> None:
    """All rows of the stack times the common matrix: one product without a stack, with the same bits as separate
    products."""
    stack, right = numbers(3, 4, 5), numbers(*{0: (5, 2), 1: (5, 2), 2: (4, 2)}[axis])
    mapped = mx.vmap(mx.matmul, in_axes=(axis, None))
    rows = np.moveaxis(np.array(stack), axis, 0)
    expected = [bits(mx.array(matrix, stack.dtype) @ right) for matrix in rows]
    assert [bits(result) for result in mapped(stack, right)] == expected
    (product,) = [step for step in mx.compile(mapped).explain(stack, right).steps if step.kind == "call"]
    assert product.text.endswith(f" {(rows.shape[0] * rows.shape[1], right.shape[1])}")


def test_what_is_made_of_a_result_without_an_axis() -> None:
    """It is computed from what the rule returned, not from the placeholder of the example."""

    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return mx.sin(x)

    @f.vmap
    def f_vmap(inputs: mx.array, axes: int | None) -> tuple[mx.array, None]:
        return mx.array(2.0), None

    found = mx.vmap(lambda x: mx.square(f(x)) + x)(mx.arange(3.0))
    assert found.tolist() == [4.0, 5.0, 6.0]


def test_several_results_of_a_result_without_an_axis() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return x

    @f.vmap
    def f_vmap(inputs: mx.array, axes: int | None) -> tuple[mx.array, None]:
        return numbers(2, 3), None

    def example(x: mx.array) -> mx.array:
        sums, turned = squares(f(x))
        return sums.sum().astype(mx.float64) + turned[0, 0] + x.sum()

    found = mx.vmap(example)(numbers(4, 2, 3))
    assert found.tolist() == [19 + 1 + total for total in (-3, 33, 69, 105)]
