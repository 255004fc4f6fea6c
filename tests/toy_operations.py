"""Operations that are not part of Weft: a routine with two results, a view, an update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import weft.core as mx
import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen import loading
from weft.graph.extents import product
from weft.graph.node import Node
from weft.primitives.routine import Routine, RoutineCall, RoutineStep


class Squares(p.Several):
    """For rows of float64: the sums of their squares, as float32, and the squares in reverse order.

    Its routine has two steps: the first one writes the squares to scratch memory.
    """

    name = "squares"
    routine: Routine = Routine(
        scratch=lambda node: node.inputs[0].size * 8,
        arithmetic=lambda node: 2 * node.inputs[0].size,
        loops=lambda node: (node.inputs[0].shape[:-1], node.inputs[0].shape[-1:]),
    )

    def infer_results(self, *inputs: Node, **params: Any) -> list[Any]:
        return [(inputs[0].shape[:-1], dtypes.float32), (inputs[0].shape, dtypes.float64)]

    def jvp(self, tangents: Sequence[Any], inputs: Sequence[Any], output: Any, /, **params: Any) -> Any:
        change = inputs[0] * tangents[0] * 2
        last = change.node.ndim - 1
        return [p.cast(p.sum(change, axes=(last,)), dtype=dtypes.float32), p.reversed_rows(change)]

    def vjp(self, cotangent: Any, inputs: Sequence[Any], output: Any, wanted: Sequence[bool], /, **params: Any) -> Any:
        (of_sum, of_squares), x = cotangent, inputs[0]
        change = p.zeros_like(x) if of_squares is None else p.reversed_rows(of_squares)
        if of_sum is not None:
            spread = p.expand(p.cast(of_sum, dtype=dtypes.float64), axes=(x.node.ndim - 1,))
            change = change + p.broadcast(spread, shape=x.node.shape)
        return [change * x * 2]

    def vmap(self, inputs: Sequence[Any], axes: Sequence[int | None], /, **params: Any) -> Any:
        return [(result, 0) for result in self(*p.batch_first(inputs, axes))]


squares = Squares()

_POINTER = """
  %sp{k} = getelementptr i64, ptr %numbers, i64 {slot}
  %slot{k} = load i64, ptr %sp{k}
  %op{k} = getelementptr i64, ptr %numbers, i64 {offset}
  %offset{k} = load i64, ptr %op{k}
  %tp{k} = getelementptr ptr, ptr %table, i64 %slot{k}
  %base{k} = load ptr, ptr %tp{k}
  %m{k} = getelementptr i8, ptr %base{k}, i64 %offset{k}"""

_LOCATIONS = "".join([_POINTER.format(k=k, slot=2 * k + 1, offset=2 * k + 2) for k in range(4)])

_CODE = f"""
define void @squares(ptr %numbers, ptr %table, i64 %begin, i64 %end) {{
entry:
  %n = load i64, ptr %numbers {_LOCATIONS}
  %first = mul i64 %begin, %n
  %last = mul i64 %end, %n
  br label %loop
loop:
  %i = phi i64 [%first, %entry], [%i1, %one]
  %left = icmp slt i64 %i, %last
  br i1 %left, label %one, label %done
one:
  %xp = getelementptr double, ptr %m0, i64 %i
  %x = load double, ptr %xp
  %xx = fmul double %x, %x
  %scratch = getelementptr double, ptr %m3, i64 %i
  store double %xx, ptr %scratch
  %i1 = add i64 %i, 1
  br label %loop
done:
  ret void
}}

define void @turn(ptr %numbers, ptr %table, i64 %begin, i64 %end) {{
entry:
  %n = load i64, ptr %numbers {_LOCATIONS}
  br label %rows
rows:
  %row = phi i64 [%begin, %entry], [%row1, %sum_out]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %one, label %done
one:
  %start = mul i64 %row, %n
  br label %turn
turn:
  %j = phi i64 [0, %one], [%j1, %turn_one]
  %sum = phi double [0.0, %one], [%sum1, %turn_one]
  %rest = icmp slt i64 %j, %n
  br i1 %rest, label %turn_one, label %sum_out
turn_one:
  %j1 = add i64 %j, 1
  %from = add i64 %start, %j
  %fp = getelementptr double, ptr %m3, i64 %from
  %value = load double, ptr %fp
  %sum1 = fadd double %sum, %value
  %back = sub i64 %n, %j1
  %to = add i64 %start, %back
  %tp = getelementptr double, ptr %m2, i64 %to
  store double %value, ptr %tp
  br label %turn
sum_out:
  %narrow = fptrunc double %sum to float
  %out = getelementptr float, ptr %m1, i64 %row
  store float %narrow, ptr %out
  %row1 = add i64 %row, 1
  br label %rows
done:
  ret void
}}
"""


@cache
def addresses() -> dict[str, int]:
    return loading.load(_CODE, lambda: _CODE, ("squares", "turn"), lasting=False)


@squares.routine.on("cpu")
def steps(call: RoutineCall) -> list[RoutineStep]:
    (x,), (sums, turned) = call.operands, call.results
    n, rows = x.shape[-1], product(x.shape[:-1])
    locations = [(x.slot, x.offset), (sums.slot, sums.offset), (turned.slot, turned.offset), call.scratch]
    numbers = [n, *[number for location in locations for number in location]]
    return [RoutineStep(addresses()[name], numbers, rows, 1, rows * n) for name in ("squares", "turn")]


def _infer_windows(x: Node, *, width: int) -> Any:
    return (*x.shape[:-1], x.shape[-1] - width + 1, width), x.dtype


def _windows_transposed(ct: Any, x: Any, width: int) -> Any:
    """Each element of a row gets the sum of the cotangents of the windows that contain it."""
    *rows, count, _ = ct.node.shape
    total = p.zeros_like(x)
    for column in range(width):
        part = p.slice_(ct, starts=(*[0] * len(rows), 0, column), sizes=(*rows, count, 1), steps=(1,) * ct.node.ndim)
        shown = p.squeeze(part, axes=(ct.node.ndim - 1,))
        low, high = (*[0] * len(rows), column), (*[0] * len(rows), width - 1 - column)
        total = total + p.pad(shown, p.zeros((), ct.node.dtype), low=low, high=high)
    return total


windows: p.View = p.View(
    "windows",
    ("width",),
    _infer_windows,
    _windows_transposed,
    lambda x, axis, width: (windows(p.move_axis(x, axis, 0), width=width), 0),
    axis_terms=lambda source, width: [
        *[p.AxisTerm(axis) for axis in range(len(source) - 1)],
        p.AxisTerm(len(source) - 1, inner=len(source)),
    ],
)
"""The overlapping windows of ``width`` elements of each row."""


class Framed(p.Update):
    """A copy of a matrix whose first row is replaced by a second operand, and then its last row by a third one."""

    name = "framed"

    def infer(self, *inputs: Node, **params: Any) -> Any:
        return inputs[0].shape, inputs[0].dtype

    def writes(self, node: Node) -> list[p.Write]:
        rows, one = node.shape[0], (1, 1)
        return [
            p.RegionWrite(0, (0, 0), one),
            p.RegionWrite(1, (0, 0), one),
            p.RegionWrite(2, (rows - 1, 0), one),
        ]


framed = Framed()


def numbers(*shape: int) -> mx.array:
    """Small integers as float64, whose sums of squares are exact."""
    return mx.arange(product(shape), dtype=mx.float64).reshape(shape) - 3
