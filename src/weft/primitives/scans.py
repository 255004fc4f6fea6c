"""Scans: every element of a row (the last axis) is made of those before it.

A scan of n elements is planned as log2(n) elementwise operations, each of which joins twice as many elements as the
one before. That is decided when extents are numbers, so one trace serves all shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import agree, largest
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, Linear, Primitive, Tangent, conjugate_of, plus
from weft.primitives.batching import move_axis
from weft.primitives.untrusted import check_inputs, require

__all__ = ["products_before", "recurrence", "reversed_rows", "running_sum"]


def reversed_rows(x: Array) -> Array:
    shape = x.node.shape
    last = len(shape) - 1
    return p.slice_(x, starts=(*[0] * last, largest(shape[last] - 1, 0)), sizes=shape, steps=(*[1] * last, -1))


def _part(x: Node, start: int, size: int) -> Node:
    """``size`` elements of each row."""
    shape = (*x.shape[:-1], size)
    starts = (*[0] * (x.ndim - 1), start)
    return Node(p.slice_, (x,), (starts, shape, (1,) * x.ndim), shape, x.dtype, None)


def _behind(first: Node, rest: Node) -> Node:
    """Rows that begin with those of ``first``."""
    shape = (*first.shape[:-1], first.shape[-1] + rest.shape[-1])
    return Node(p.concatenate, (first, rest), (first.ndim - 1,), shape, first.dtype, None)


def _joined(primitive: Primitive, x: Node, y: Node) -> Node:
    return Node(primitive, (x, y), (), x.shape, x.dtype, None)


def _doubled(primitive: Primitive, x: Node) -> Node:
    """Every element combined with all elements before it, in log2(n) operations."""
    extent, distance = x.shape[-1], 1
    while distance < extent:
        rest = extent - distance
        x = _behind(_part(x, 0, distance), _joined(primitive, _part(x, distance, rest), _part(x, 0, rest)))
        distance *= 2
    return x


class RunningSum(Linear):
    """For every element of a row the sum of all elements up to it, itself included."""

    def __init__(self) -> None:
        super().__init__(
            "running_sum",
            (),
            lambda x: (x.shape, x.dtype),
            lambda ct, x: reversed_rows(running_sum(reversed_rows(ct))),
            lambda x, axis: (running_sum(move_axis(x, axis, 0)), 0),
            lambda x: require(x.ndim > 0, "it has no rows"),
        )

    def lowered(self, node: Node) -> Node | None:
        return _doubled(p.add, node.inputs[0])


class _Exclusive(Primitive):
    """A scan of ``rows`` inputs whose result begins with ``neutral``.

    A call adds that number as one more input, because no constants can be made during planning.
    """

    rows: int
    neutral: int

    def __call__(self, *operands: Any, **params: Any) -> Array:
        if len(operands) == self.rows:
            operands = (*operands, p.full((), self.neutral, operands[0].node.dtype))
        return super().__call__(*operands)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, self.rows + 1)
        *rows, neutral = inputs
        fits = all(agree(row.shape, rows[0].shape) for row in rows) and rows[0].ndim > 0 and neutral.ndim == 0
        require(fits, "its inputs are no rows and a number")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        first = inputs[0]
        if any(node.dtype is not first.dtype for node in inputs):
            raise TypeError(f"{self.name}: dtypes differ")
        return first.shape, first.dtype

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs[:-1], axes[:-1]), inputs[-1]), 0

    def lowered(self, node: Node) -> Node | None:
        (*rows, neutral), shape, dtype = node.inputs, node.shape, node.dtype
        if not shape[-1]:
            return rows[0]
        ones = (1,) * len(shape)
        single = Node(p.expand, (neutral,), (tuple(range(len(shape))),), ones, dtype, None)
        column = (*shape[:-1], 1)
        first = Node(p.broadcast, (single,), (column,), column, dtype, None)
        if shape[-1] == 1:
            return first
        return _behind(first, self.inclusive([_part(x, 0, shape[-1] - 1) for x in rows]))

    def inclusive(self, rows: list[Node]) -> Node:
        raise NotImplementedError


class ProductsBefore(_Exclusive):
    """For every element of a row the product of all before it."""

    name = "products_before"
    rows = 1
    neutral = 1

    def inclusive(self, rows: list[Node]) -> Node:
        return _doubled(p.multiply, rows[0])

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        x, t = inputs[0], tangents[0]
        return None if t is None else recurrence(x, t * output)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [_pulled_back(cotangent, inputs[0]) * conjugate_of(output), None]


class Recurrence(_Exclusive):
    """Rows with ``h[0] = 0`` and ``h[i + 1] = a[i] * h[i] + b[i]``, for ``a`` and ``b``."""

    name = "recurrence"
    rows = 2
    neutral = 0

    def inclusive(self, rows: list[Node]) -> Node:
        a, b = rows
        extent, distance = a.shape[-1], 1
        while distance < extent:
            rest = extent - distance
            factor = _part(a, distance, rest)
            later = _joined(p.add, _joined(p.multiply, factor, _part(b, 0, rest)), _part(b, distance, rest))
            b = _behind(_part(b, 0, distance), later)
            a = _behind(_part(a, 0, distance), _joined(p.multiply, factor, _part(a, 0, rest)))
            distance *= 2
        return b

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        a, (of_a, of_b, _) = inputs[0], tangents
        change = plus(None if of_a is None else of_a * output, of_b)
        return None if change is None else recurrence(a, change)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        of_b = _pulled_back(cotangent, inputs[0])
        return [of_b * conjugate_of(output), of_b, None]


def _pulled_back(cotangent: Array, factors: Array) -> Array:
    """The cotangent of ``b`` in a recurrence, which is a recurrence that runs backwards."""
    backwards = [reversed_rows(x) for x in (conjugate_of(factors), cotangent)]
    return reversed_rows(recurrence(*backwards))


running_sum = RunningSum()
products_before = ProductsBefore()
recurrence = Recurrence()
