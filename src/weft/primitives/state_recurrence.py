"""A recurrence of matrices, and inverses of triangular matrices, of which `gated_delta_update` is made.

Both are planned as matrix products. How many depends on extents that planning knows, so one trace serves all shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Primitive, Tangent

__all__ = ["state_recurrence", "unit_triangular_inverse"]


def _planned(primitive: Primitive, *inputs: Node, **params: Any) -> Node:
    """A node for a planned graph that replaces another one."""
    shape, dtype = primitive.infer(*inputs, **params)
    return primitive.node(inputs, params, shape, dtype, None)


def _slice(x: Node, axes: dict[int, tuple[int, int]]) -> Node:
    """The part of ``x`` given by a start and a size for some of its axes."""
    starts = tuple([axes.get(axis, (0, 0))[0] for axis in range(x.ndim)])
    sizes = tuple([axes.get(axis, (0, extent))[1] for axis, extent in enumerate(x.shape)])
    return _planned(p.slice_, x, starts=starts, sizes=sizes, steps=(1,) * x.ndim)


def _transposed(x: Node) -> Node:
    last = x.ndim - 1
    return _planned(p.transpose, x, axes=(*range(last - 1), last, last - 1))


class StateRecurrence(Primitive):
    """Matrices with ``y[0] = first`` and ``y[i + 1] = a[i] * y[i] - (y[i] @ w[i].T) @ k[i] + b[i]``.

    Inputs: ``a (..., N)``, ``w`` and ``k (..., N, C, K)``, ``b (..., N, V, K)``, ``first (..., V, K)``. The result is
    ``(..., N, V, K)``; it is the states before each step, so the last entries of the first four inputs are not used.
    ``N`` is not zero.
    """

    name = "state_recurrence"

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        a, w, k, b, first = inputs
        batch = a.shape
        fits = (
            agree(w.shape, k.shape)
            and agree(w.shape[:-2], batch)
            and agree(b.shape, (*batch, first.shape[-2], w.shape[-1]))
            and agree(first.shape, (*batch[:-1], *b.shape[-2:]))
        )
        if not fits or any(node.dtype is not a.dtype for node in inputs):
            raise TypeError(f"state_recurrence: got {', '.join(describe(node.shape, node.dtype) for node in inputs)}")
        return b.shape, b.dtype

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs, axes)), 0

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        a, w, k, b, first = inputs
        of_a, of_w, of_k, of_b, of_first = tangents
        change = p.zeros_like(b) if of_b is None else of_b
        if of_a is not None:
            change = change + _spread(of_a, output) * output
        if of_w is not None:
            change = change - p.matmul(_with_transpose(output, of_w), k)
        if of_k is not None:
            change = change - p.matmul(_with_transpose(output, w), of_k)
        return self(a, w, k, change, p.zeros_like(first) if of_first is None else of_first)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        """The cotangents follow a recurrence of the same kind, which runs backwards."""
        a, w, k, _, first = inputs
        axis = a.node.ndim - 1
        backwards = [_reversed(x, axis) for x in (a, k, w, cotangent)]
        later = _reversed(self(*backwards, p.zeros_like(first)), axis)
        before = p.matrix_transpose(later)
        return [
            p.sum(output * later, axes=(axis + 1, axis + 2)) if wanted[0] else None,
            -p.matmul(p.matmul(k, before), output) if wanted[1] else None,
            -p.matmul(_with_transpose(w, output), later) if wanted[2] else None,
            later if wanted[3] else None,
            self._of_first(a, w, k, cotangent, later, axis) if wanted[4] else None,
        ]

    @staticmethod
    def _of_first(a: Array, w: Array, k: Array, cotangent: Array, later: Array, axis: int) -> Array:
        a, w, k, cotangent, later = [_first_along(x, axis) for x in (a, w, k, cotangent, later)]
        return cotangent + _spread(a, later) * later - p.matmul(_with_transpose(later, k), w)

    def lowered(self, node: Node) -> Node | None:
        a, w, k, b, first = node.inputs
        axis = a.ndim - 1
        count = a.shape[axis]
        state = first
        states = [_planned(p.expand, state, axes=(axis,))]
        for index in range(count - 1):
            factor, left, right, more = [
                _planned(p.squeeze, _slice(x, {axis: (index, 1)}), axes=(axis,)) for x in (a, w, k, b)
            ]
            taken = _planned(p.matmul, _planned(p.matmul, state, _transposed(left)), right)
            spread = _planned(p.expand, factor, axes=(axis, axis + 1))
            kept = _planned(p.multiply, _planned(p.broadcast, spread, shape=state.shape), state)
            state = _planned(p.add, _planned(p.subtract, kept, taken), more)
            states.append(_planned(p.expand, state, axes=(axis,)))
        return states[0] if count == 1 else _planned(p.concatenate, *states, axis=axis)


def _with_transpose(left: Array, right: Array) -> Array:
    """``left @ right.T``."""
    return p.matmul(left, p.matrix_transpose(right))


def _spread(x: Array, like: Array) -> Array:
    """``x`` repeated over the last two axes of ``like``."""
    ndim = x.node.ndim
    return p.broadcast(p.expand(x, axes=(ndim, ndim + 1)), shape=like.node.shape)


def _reversed(x: Array, axis: int) -> Array:
    shape = x.node.shape
    starts = tuple([extent - 1 if position == axis else 0 for position, extent in enumerate(shape)])
    steps = tuple([-1 if position == axis else 1 for position in range(len(shape))])
    return p.slice_(x, starts=starts, sizes=shape, steps=steps)


def _first_along(x: Array, axis: int) -> Array:
    shape = x.node.shape
    sizes = (*shape[:axis], 1, *shape[axis + 1 :])
    return p.squeeze(p.slice_(x, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape)), axes=(axis,))


class UnitTriangularInverse(Primitive):
    """The inverses of ``I + L`` for matrices in the last two axes, of which only the part L below the diagonal is read.

    A call adds the numbers 0 and 1 as inputs, because planning cannot make constants. The inverse is made of those of
    the two blocks on the diagonal, which is as stable as forward substitution.
    """

    name = "unit_triangular_inverse"

    def __call__(self, *operands: Any, **params: Any) -> Array:
        if len(operands) == 1:
            dtype = operands[0].node.dtype
            operands = (*operands, p.zeros((), dtype), p.ones((), dtype))
        return super().__call__(*operands)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x = inputs[0]
        if x.ndim < 2 or not agree(x.shape[-1], x.shape[-2]):
            raise ValueError(f"unit_triangular_inverse: got {describe(x.shape, x.dtype)}")
        return x.shape, x.dtype

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        axis = axes[0]
        assert axis is not None
        return self(p.move_axis(inputs[0], axis, 0), *inputs[1:]), 0

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        t = tangents[0]
        return None if t is None else -p.matmul(p.matmul(output, _below_diagonal(t)), output)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        turned = p.matrix_transpose(output)
        return [_below_diagonal(-p.matmul(p.matmul(turned, cotangent), turned)), None, None]

    def lowered(self, node: Node) -> Node | None:
        x, zero, one = node.inputs
        size = node.shape[-1]
        whole = 1
        while whole < size:
            whole *= 2
        high = (*(0,) * (x.ndim - 2), whole - size, whole - size)
        padded = x if whole == size else _planned(p.pad, x, zero, low=(0,) * x.ndim, high=high)
        inverse = _inverse(padded, zero, one)
        last = node.ndim - 1
        return inverse if whole == size else _slice(inverse, {last - 1: (0, size), last: (0, size)})


def _inverse(x: Node, zero: Node, one: Node) -> Node:
    """The inverses for an extent that is a power of two; all blocks of one size are inverted together."""
    size = x.shape[-1]
    if size == 1:
        return _filled(one, x.shape)
    half, row, column, blocks = size // 2, x.ndim - 2, x.ndim - 1, x.ndim - 2
    halves = [
        _planned(p.expand, _slice(x, {row: (start, half), column: (start, half)}), axes=(blocks,))
        for start in (0, half)
    ]
    inverses = _inverse(_planned(p.concatenate, *halves, axis=blocks), zero, one)
    upper, lower = [
        _planned(p.squeeze, _slice(inverses, {blocks: (position, 1)}), axes=(blocks,)) for position in (0, 1)
    ]
    corner = _planned(p.negative, _slice(x, {row: (half, half), column: (0, half)}))
    if half > 1:
        corner = _planned(p.matmul, _planned(p.matmul, lower, corner), upper)
    nothing = _filled(zero, upper.shape)
    rows = [_planned(p.concatenate, *pair, axis=column) for pair in ((upper, nothing), (corner, lower))]
    return _planned(p.concatenate, *rows, axis=row)


def _filled(number: Node, shape: Shape) -> Node:
    return _planned(p.broadcast, _planned(p.expand, number, axes=tuple(range(len(shape)))), shape=shape)


def _below_diagonal(x: Array) -> Array:
    shape, ndim = x.node.shape, x.node.ndim
    rows, columns = [p.iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in (ndim - 2, ndim - 1)]
    return p.select(p.less(columns, rows), x, p.zeros_like(x))


state_recurrence = StateRecurrence()
unit_triangular_inverse = UnitTriangularInverse()
