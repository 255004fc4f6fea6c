"""Elementwise operations of two and three inputs."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Elementwise, SharedInput, Tangent, common_shape
from weft.primitives.unary import is_inexact, is_number, is_real, is_real_floating

__all__ = [
    "add",
    "arctan2",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "copysign",
    "divide",
    "equal",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "left_shift",
    "less",
    "less_equal",
    "logaddexp",
    "logical_and",
    "logical_or",
    "maximum",
    "minimum",
    "multiply",
    "nextafter",
    "not_equal",
    "power",
    "remainder",
    "right_shift",
    "select",
    "straight_through",
    "subtract",
]


def is_integral(dtype: Dtype) -> bool:
    return dtype.is_integer or dtype.is_bool


def _is_bool(dtype: Dtype) -> bool:
    return dtype.is_bool


add: Elementwise = Elementwise("add", lambda L, x, y: x | y if x.dtype.is_bool else x + y, (1, 1))
add.is_sum = True
subtract: Elementwise = Elementwise("subtract", lambda L, x, y: x - y, (1, -1), accepts=is_number)
subtract.is_difference = True
multiply: Elementwise = Elementwise(
    "multiply",
    lambda L, x, y: x & y if x.dtype.is_bool else x * y,
    (lambda t, out, x, y: t * y, lambda t, out, x, y: t * x),
)
divide: Elementwise = Elementwise(
    "divide",
    lambda L, x, y: x / y,
    (lambda t, out, x, y: t / y, lambda t, out, x, y: -(t * out / y)),
    accepts=is_inexact,
    cheap=False,
)
floor_divide: Elementwise = Elementwise(
    "floor_divide", lambda L, x, y: L.floor_divide(x, y), (None, None), accepts=is_real, cheap=False
)
remainder: Elementwise = Elementwise(
    "remainder",
    lambda L, x, y: L.remainder(x, y),
    (1, lambda t, out, x, y: -(t * p.floor_divide(x, y))),
    accepts=is_real,
    cheap=False,
)


def _prepare_divisor(L: Any, y: Any) -> Any:
    return L.shared_divisor(y)


floor_divide.shared = SharedInput(_prepare_divisor, lambda L, x, divisor: L.floor_divide_by(x, divisor))
remainder.shared = SharedInput(_prepare_divisor, lambda L, x, divisor: L.remainder_by(x, divisor))


def _power_in_base(t: Array, out: Array, x: Array, y: Array) -> Tangent:
    """t y x^(y - 1), and zero where the exponent is zero."""
    if p.is_constant(y.node):
        y = p.fill(y, x.node.shape)
    slope = y * p.power(x, y - 1)
    return t * p.select(p.equal(y, 0), p.zeros_like(slope), slope)


def _power_in_exponent(t: Array, out: Array, x: Array, y: Array) -> Tangent:
    """t x^y log x, and zero where the base is zero, because 0^y is constant for positive y."""
    if p.is_constant(x.node):
        x = p.fill(x, y.node.shape)
    safe = p.select(p.equal(x, 0), p.ones_like(x), x)
    return t * (out * p.log(safe))


power: Elementwise = Elementwise(
    "power", lambda L, x, y: L.power(x, y), (_power_in_base, _power_in_exponent), cheap=False, cost=40
)
power.shared = SharedInput(lambda L, y: L.shared_exponent(y), lambda L, x, exponent: L.power_by(x, exponent))
arctan2: Elementwise = Elementwise(
    "arctan2",
    lambda L, y, x: L.arctan2(y, x),
    (lambda t, out, y, x: t * x / (x * x + y * y), lambda t, out, y, x: -(t * y / (x * x + y * y))),
    accepts=is_real_floating,
    cheap=False,
)


copysign: Elementwise = Elementwise(
    "copysign",
    lambda L, x, y: L.copysign(x, y),
    (lambda t, out, x, y: t * p.sign(x) * p.copysign(p.ones_like(y), y), None),
    accepts=is_real_floating,
    exact=True,
)


def _hypot_share(t: Array, out: Array, side: Array) -> Array:
    """t side / out, and zero where both sides are zero."""
    zero = p.equal(out, 0)
    return p.select(zero, p.zeros_like(t), t * (side / p.select(zero, p.ones_like(out), out)))


hypot: Elementwise = Elementwise(
    "hypot",
    lambda L, x, y: L.hypot(x, y),
    (lambda t, out, x, y: _hypot_share(t, out, x), lambda t, out, x, y: _hypot_share(t, out, y)),
    accepts=is_real_floating,
    cheap=False,
)
nextafter: Elementwise = Elementwise(
    "nextafter", lambda L, x, y: L.nextafter(x, y), (1, None), accepts=is_real_floating, cheap=False
)


def _share(x: Array, y: Array) -> Array:
    """e^x / (e^x + e^y)."""
    return 1 / (1 + p.exp(y - x)) if x.node.dtype.is_complex else p.sigmoid(x - y)


logaddexp: Elementwise = Elementwise(
    "logaddexp",
    lambda L, x, y: L.logaddexp(x, y),
    (lambda t, out, x, y: t * _share(x, y), lambda t, out, x, y: t * _share(y, x)),
    accepts=is_inexact,
    cheap=False,
)


def complex_extreme(L: Any, relation: str, x: Any, y: Any) -> Any:
    """The larger (or smaller) of two complex numbers, compared by real, then by imaginary part; NaN if one is NaN."""
    x_is_nan, y_is_nan = L.compare_values("ne", x, x), L.compare_values("ne", y, y)
    return L.select(x_is_nan | (L.compare_values(relation, x, y) & ~y_is_nan), x, y)


def _where_larger(t: Array, chosen: Array) -> Array:
    return p.select(chosen, t, p.zeros_like(t))


maximum: Elementwise = Elementwise(
    "maximum",
    lambda L, x, y: complex_extreme(L, "gt", x, y) if x.dtype.is_complex else L.maximum(x, y),
    (lambda t, out, x, y: _where_larger(t, p.greater(x, y)), lambda t, out, x, y: _where_larger(t, p.less_equal(x, y))),
    exact=True,
)
maximum.is_bound = True
minimum: Elementwise = Elementwise(
    "minimum",
    lambda L, x, y: complex_extreme(L, "lt", x, y) if x.dtype.is_complex else L.minimum(x, y),
    (lambda t, out, x, y: _where_larger(t, p.less(x, y)), lambda t, out, x, y: _where_larger(t, p.greater_equal(x, y))),
    exact=True,
)


straight_through: Elementwise = Elementwise("straight_through", lambda L, value, x: value, (None, 1), exact=True)
"""The value of the first operand with the derivative of the second: rounded numbers with the derivative of unrounded
ones."""


class Comparison(Elementwise):
    """A comparison is constant almost everywhere: its tangents are zeros of the dtype of its inputs."""

    def tangent_like(self, node: Node) -> Node | None:
        return node.inputs[0]


def _comparison(name: str, relation: str) -> Elementwise:
    comparison = Comparison(
        name,
        lambda L, x, y: L.compare_values(relation, x, y),
        (None, None),
        result=dtypes.bool_,
    )
    comparison.relation = relation
    return comparison


equal: Elementwise = _comparison("equal", "eq")
not_equal: Elementwise = _comparison("not_equal", "ne")
less: Elementwise = _comparison("less", "lt")
less_equal: Elementwise = _comparison("less_equal", "le")
greater: Elementwise = _comparison("greater", "gt")
greater_equal: Elementwise = _comparison("greater_equal", "ge")

logical_and: Elementwise = Elementwise("logical_and", lambda L, x, y: x & y, (None, None), accepts=_is_bool)
logical_and.is_conjunction = True
logical_or: Elementwise = Elementwise("logical_or", lambda L, x, y: x | y, (None, None), accepts=_is_bool)
bitwise_and: Elementwise = Elementwise("bitwise_and", lambda L, x, y: x & y, (None, None), accepts=is_integral)
bitwise_or: Elementwise = Elementwise("bitwise_or", lambda L, x, y: x | y, (None, None), accepts=is_integral)
bitwise_xor: Elementwise = Elementwise("bitwise_xor", lambda L, x, y: x ^ y, (None, None), accepts=is_integral)


def _shift(name: str, shift: Any) -> Elementwise:
    return Elementwise(name, shift, (None, None), accepts=is_integral)


left_shift = _shift("left_shift", lambda L, x, y: L.shift_left(x, y))
right_shift = _shift("right_shift", lambda L, x, y: L.shift_right(x, y))


def _prepare_count(L: Any, y: Any) -> Any:
    return L.shared_count(y)


left_shift.shared = SharedInput(_prepare_count, lambda L, x, count: L.shift_left_by(x, count))
right_shift.shared = SharedInput(_prepare_count, lambda L, x, count: L.shift_right_by(x, count))


class Select(Elementwise):
    """``x`` where a condition holds, else ``y``; linear in ``x`` and ``y`` together."""

    def nodes_of(self, operands: Any) -> tuple[Node, ...]:
        condition, *values = operands
        return (condition.node, *super().nodes_of(values))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        condition, x, y = inputs
        if not condition.dtype.is_bool or x.dtype is not y.dtype:
            raise TypeError(f"where: got {', '.join(describe(n.shape, n.dtype) for n in inputs)}")
        return common_shape(self.name, inputs), x.dtype


select: Select = Select(
    "where",
    lambda L, condition, x, y: L.select(condition, x, y),
    (
        None,
        lambda t, out, condition, x, y: p.select(condition, t, p.zeros_like(t)),
        lambda t, out, condition, x, y: p.select(condition, p.zeros_like(t), t),
    ),
    exact=True,
)
