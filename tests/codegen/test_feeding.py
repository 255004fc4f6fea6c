"""Kernels that make the left operand of a product, one rectangle after the other, where the product needs each element
once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of

Function = Callable[..., mx.array]
ROWS, TERMS, COLUMNS = 2117, 518, 70


@pytest.fixture(scope="module")
def operands() -> dict[str, mx.array]:
    rng = np.random.default_rng(3)
    shapes = {"x": (ROWS, TERMS), "y": (TERMS, ROWS), "s": (TERMS,), "w": (TERMS, COLUMNS), "b": (COLUMNS,)}
    found = {name: mx.array(rng.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
    found["half"] = found["x"].astype(mx.bfloat16)
    found["order"] = mx.array(rng.integers(ROWS, size=ROWS))
    mx.eval(found)
    return found


# Functions that make the left operand, and the arrays that they are called with.
MADE: dict[str, tuple[Function, tuple[str, ...]]] = {
    "scaled": (lambda x, s: mx.maximum(x * s, 0), ("x", "s")),
    "by-columns": (lambda y, s: (mx.exp(y) * s[:, None]).T, ("y", "s")),
    "converted": (lambda half: half.astype(mx.float32), ("half",)),
    "gathered": (lambda x, order: mx.take(x, order, axis=0), ("x", "order")),
    "padded": (lambda x: mx.pad(x[5:, 9:], ((2, 3), (4, 5))), ("x",)),
    "float64": (lambda x: x.astype(mx.float64) * 3, ("x",)),
}


@pytest.mark.parametrize("name", MADE)
def test_a_product_has_the_bits_of_one_of_what_was_made_before(name: str, operands: dict[str, mx.array]) -> None:
    make, arguments = MADE[name]
    sources, w = [operands[name] for name in arguments], operands["w"]
    before = make(*sources)
    w = w.astype(before.dtype)
    mx.eval(before, w)
    assert mx.array_equal(make(*sources) @ w, before @ w).item()
    (plan,) = plans_of(lambda: make(*sources) @ w)
    assert (plan.steps.count, plan.arena) == (1, 0)


def test_what_feeds_and_what_is_attached_are_one_step(operands: dict[str, mx.array]) -> None:
    x, s, w, b = (operands[name] for name in "xswb")

    def layer() -> mx.array:
        return mx.tanh(mx.maximum(x * s, 0) @ w + b)

    product = mx.contiguous(mx.maximum(x * s, 0))
    mx.eval(product)
    product = product @ w
    mx.eval(product)
    assert mx.array_equal(layer(), mx.tanh(product + b)).item()
    (plan,) = plans_of(layer)
    (record,) = plan.describe().records
    assert record.operations == {"matmul": 1, "add": 1, "tanh": 1, "multiply": 1, "maximum": 1}
    assert record.bytes_read == sum(n.nbytes for n in (x, s, w, b))


def test_an_input_that_ends_is_not_written_while_it_is_read(rng: np.random.Generator) -> None:
    start = rng.normal(size=(2100, 512)).astype(np.float32)
    w = mx.array(rng.normal(size=(512, 512)).astype(np.float32))
    x = mx.array(start)
    for _ in range(2):
        x = mx.maximum(x * 0.5, 0) @ w
        mx.eval(x)
    wanted = mx.array(start)
    for _ in range(2):
        made = mx.maximum(wanted * 0.5, 0)
        mx.eval(made)
        wanted = made @ w
    assert mx.array_equal(x, wanted).item()


def test_an_operand_that_is_needed_again_is_stored(operands: dict[str, mx.array]) -> None:
    x, s, w = (operands[name] for name in "xsw")

    def used_twice() -> list[mx.array]:
        made = mx.maximum(x * s, 0)
        return [made @ w, made @ w[:, ::-1]]

    def asked_for() -> list[mx.array]:
        made = mx.maximum(x * s, 0)
        return [made @ w, made]

    wide = mx.concatenate([w] * 30, axis=1)
    mx.eval(wide)
    for function in (used_twice, asked_for, lambda: mx.maximum(x * s, 0) @ wide):
        (plan,) = plans_of(function)
        assert all(record.feeder is None for record in plan.describe().records)
