"""Products of operands whose rows, columns or terms are several axes in memory: they are read in place, with the bits
of a product of copies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.cpu.products.parts import MANY_TERMS
from weft.primitives.products import DEPTH

Operand = Callable[[mx.array], mx.array]

# The shape of an array, a function that makes the operand from it, and whether a product reads that without a copy as
# its left and as its right operand.
VIEWS: dict[str, tuple[tuple[int, ...], Operand, tuple[bool, bool]]] = {
    "rows-and-terms": ((7, 5, 6, 9), lambda x: x.transpose(0, 2, 1, 3).reshape(42, 45), (True, True)),
    "three-axes": ((3, 4, 2, 5, 6), lambda x: x.transpose(2, 1, 0, 4, 3).reshape(24, 30), (False, False)),
    "reversed": ((40, 6, 6), lambda x: x[:, ::-1, ::2].reshape(40, 18), (False, False)),
    "backwards": ((40, 3, 24), lambda x: x[::-1, ::-1].reshape(40, 72), (True, True)),
    "many-terms": ((36, 3, DEPTH, 2), lambda x: x.transpose(0, 2, 1, 3).reshape(36, 6 * DEPTH), (True, True)),
    "stacked": ((4, 40, 3, 8), lambda x: x.transpose(2, 1, 0, 3).reshape(3, 40, 32), (True, True)),
    "few-rows": ((9, 3, 2, 16), lambda x: x.transpose(0, 2, 1, 3).reshape(9, 96), (False, True)),
    "short-lines": ((9, 3, 8, 2), lambda x: x.transpose(0, 2, 1, 3).reshape(9, 48), (True, True)),
    "far-apart": ((5, 4, 6, 3), lambda x: x[..., 0].transpose(1, 0, 2).reshape(4, 30), (False, False)),
}


@pytest.mark.parametrize(
    ("name", "position", "dtype"),
    [*product(VIEWS, [0, 1], [mx.float32]), ("stacked", 0, mx.int32), ("many-terms", 1, mx.float64)],
)
def test_a_view_has_the_bits_of_its_copy(name: str, position: int, dtype: mx.Dtype, rng: np.random.Generator) -> None:
    shape, view, read = VIEWS[name]
    x = mx.array(rng.normal(size=shape) * 9, dtype=dtype)
    copied = mx.array(np.ascontiguousarray(np.array(view(x))), dtype=dtype)
    rows, terms = copied.shape[-2:]
    others = max(50, terms // MANY_TERMS + 1)  # so many that threads share the result, not the terms
    sizes = (others, rows) if position else (terms, others)
    other = mx.array(rng.normal(size=(*copied.shape[:-2], *sizes)) * 9, dtype=dtype)

    def multiplied(x: mx.array, other: mx.array) -> mx.array:
        return other @ view(x) if position else view(x) @ other

    found = multiplied(x, other)
    assert mx.array_equal(found, other @ copied if position else copied @ other).item()
    (plan,) = plans_of(lambda: multiplied(x, other))
    assert plan.steps.count == (1 if read[position] else 2), "the product reads the view, or a copy of it"


def test_what_follows_is_attached_to_a_product_of_views(rng: np.random.Generator) -> None:
    x, w, b = (mx.array(rng.normal(size=n).astype(np.float32)) for n in ((40, 3, 30, 8), (24, 70), (70,)))

    def layer(x: mx.array) -> mx.array:
        return mx.maximum(x.transpose(0, 2, 1, 3).reshape(1200, 24) @ w + b, 0)

    rows = mx.array(np.ascontiguousarray(np.array(x).transpose(0, 2, 1, 3)).reshape(1200, 24))
    alone = rows @ w
    mx.eval(alone)
    assert mx.array_equal(layer(x), mx.maximum(alone + b, 0)).item()
    (plan,) = plans_of(lambda: layer(x))
    assert plan.steps.count == 1


def test_windows_are_not_in_memory() -> None:
    x, w = mx.zeros((2, 30, 30, 8)), mx.zeros((24, 3, 3, 8))
    mx.eval(x, w)
    (plan,) = plans_of(lambda: mx.conv2d(x, w, padding=1))
    assert plan.steps.count == 2, "zeros are put around the array, and the product reads that"
    assert plan.arena < 1.5 * x.nbytes
    (plan,) = plans_of(lambda: mx.conv2d(x, w, stride=2))
    assert (plan.steps.count, plan.arena) == (1, 0)
    x, w = mx.zeros((2, 30, 30, 16)), mx.zeros((24, 3, 3, 16))
    mx.eval(x, w)
    for padding in (0, 1):
        (plan,) = plans_of(lambda padding=padding: mx.conv2d(x, w, padding=padding))
        assert (plan.steps.count, plan.arena) == (1, 0), "zeros around the array are not in memory either"


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("columns", [1, 2])
def test_what_follows_a_product_of_views_with_few_columns(
    columns: int, axis: int | None, rng: np.random.Generator
) -> None:
    """Such a product is stored in memory too, so that a kernel may be attached to it."""
    x, w, d = (mx.array(rng.normal(size=n).astype(np.float32)) for n in ((6, 5, 4, 3), (15, columns), (24, columns)))
    rows = mx.array(np.array(x.transpose(0, 2, 1, 3).reshape(24, 15)))
    alone = rows @ w
    mx.eval(alone)
    found = x.transpose(0, 2, 1, 3).reshape(24, 15) @ w
    followed = mx.sum(found * d, axis=axis)
    mx.eval(found, followed)
    assert mx.array_equal(followed, mx.sum(alone * d, axis=axis)).item()
