"""Matrix products on NVIDIA GPUs: products of a few rows by generated kernels, others by cuBLASLt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.compiler.cuda import few_rows
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.products import leading
from weft.primitives.routine import Operand, RoutineCall, RoutineStep
from weft.runtime.cuda import cublas
from weft.runtime.precision import FAST

_KINDS = {
    dtypes.float32: cublas.FLOAT32,
    dtypes.float64: cublas.FLOAT64,
    dtypes.float16: cublas.FLOAT16,
    dtypes.bfloat16: cublas.BFLOAT16,
    dtypes.complex64: cublas.COMPLEX64,
}
_NARROW = (dtypes.float16, dtypes.bfloat16)

_MOST_SCRATCH = 1 << 25
_LEAST_SCRATCH = 1 << 20
_SCRATCH_PER_ELEMENT = 32
"""Bytes of scratch memory for each element of the result: room for several partial sums of it."""

_MOST_CALLS = 64
"""If a product would need more calls of the library, because of where the matrices of an operand are in memory, that
operand is copied first."""


class _Axis(NamedTuple):
    """A batch axis: its extent, and the distances in elements from one matrix to the next of both operands and the
    result."""

    extent: int
    strides: list[int]


def _declines(node: Node) -> str:
    if has_few_rows(node):
        return ""
    return cublas.missing() or ("" if _is_known(node) else "cuBLASLt has no such products")


def _is_known(node: Node) -> bool:
    """Whether the library multiplies these dtypes."""
    a, b = [x.dtype for x in node.inputs]
    return a is b and a in _KINDS and (node.dtype is a or (a in _NARROW and node.dtype is dtypes.float32))


def _adapts(node: Node) -> Node | None:
    """Integers are multiplied and summed by a kernel. If only one operand is in half precision, it is converted to the
    dtype of the result, because the library multiplies operands of the same dtype."""
    if node.dtype.is_integer:
        return _sums_of_products(node)
    if cublas.missing() or _is_known(node) or has_few_rows(node):
        return None
    a, b = [_converted(x, node.dtype) for x in node.inputs]
    return Node(node.primitive, (a, b), node.params, node.shape, node.dtype, None)


def _sums_of_products(node: Node) -> Node:
    """A product as a sum over the last axis of products of all rows with all columns."""
    a, b = [wrap(_converted(x, node.dtype)) for x in node.inputs]
    last = node.ndim
    left, right = p.expand(a, axes=(last - 1,)), p.expand(p.matrix_transpose(b), axes=(last - 2,))
    shape = (*node.shape, node.inputs[0].shape[-1])
    terms = p.multiply(p.broadcast(left, shape=shape), p.broadcast(right, shape=shape)).node
    found = Node(p.sum, (terms,), ((last,),), node.shape, node.dtype, None)
    return p.sum.lowered(found) or found


def _converted(x: Node, dtype: Dtype) -> Node:
    return x if x.dtype is dtype else Node(p.cast, (x,), (dtype,), x.shape, dtype, None)


def has_few_rows(node: Node) -> bool:
    return _is_few(node.shape, node.inputs[0].shape[-1], [x.dtype for x in (node, *node.inputs)])


def _is_few(shape: Shape, inner: int, kinds: Sequence[Dtype]) -> bool:
    """Whether there are so few rows, or columns, that reading the other operand takes longer than multiplying."""
    known = all(kind in few_rows.DTYPES for kind in kinds)
    fits = inner <= few_rows.MOST_TERMS and prod(shape[:-2]) <= few_rows.MOST_PRODUCTS
    return known and fits and min(shape[-2:]) <= few_rows.MOST_ROWS


def _rounds(node: Node, dtype: Dtype) -> bool:
    """Whether sums can be rounded to half precision when they are stored. The library can do it if that is the dtype of
    the operands."""
    if has_few_rows(node):
        return dtype in _NARROW
    return not cublas.missing() and all(x.dtype is dtype for x in node.inputs) and dtype in _NARROW


def _accepts(node: Node, position: int, strides: Shape) -> bool:
    """Whether the matrices of an operand are stored by rows or by columns, and a few calls of the library can reach all
    of them."""
    shape = node.inputs[position].shape
    found = leading(shape[-2:], strides[-2:])
    if found is None or (has_few_rows(node) and found[1] > few_rows.MOST_DISTANCE):
        return False
    *outer, _ = _united([_Axis(n, [stride]) for n, stride in zip(shape[:-2], strides[:-2], strict=True)], 1)
    return prod([axis.extent for axis in outer]) <= _MOST_CALLS


def _scratch_for(shape: Shape) -> int:
    return min(max(_LEAST_SCRATCH, _SCRATCH_PER_ELEMENT * prod(shape)), _MOST_SCRATCH)


@p.matmul.routine.on(
    "cuda",
    accepts=_accepts,
    declines=_declines,
    adapts=_adapts,
    rounds=_rounds,
    scratch=lambda node: 0 if has_few_rows(node) else _scratch_for(node.shape) + cublas.SPARE,
)
def step(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The step for a matrix product.

    The library stores matrices by columns. Stored so, our row-major result is the transposed result: the product of the
    transposed operands in the other order.
    """
    (a, b), (out,) = call.operands, call.results
    rows, columns, inner = a.shape[-2], b.shape[-1], a.shape[-1]
    axes = [_Axis(n, strides) for n, *strides in zip(out.shape[:-2], a.strides, b.strides, out.strides, strict=False)]
    united = _united(axes, 3)
    if _is_few(out.shape, inner, [x.dtype for x in (a, b, out)]):
        return _steps_of_few_rows(call, united)
    *outer, batch = united
    (left, left_turned), (right, right_turned) = _matrix(b, batch.strides[1]), _matrix(a, batch.strides[0])
    factors = dtypes.float32 if out.dtype in _NARROW else out.dtype
    code = cublas.ProductCall(
        title=f"matmul of {a.dtype}",
        places=(*[(operand.slot, operand.offset) for operand in (b, a, out)], call.scratch),
        problem=cublas.MatmulProblem(
            left=left,
            right=right,
            result=cublas.MatrixLayout(_KINDS[out.dtype], columns, rows, columns, batch.strides[2]),
            transposed=(left_turned, right_turned),
            batch=batch.extent,
            compute=_compute(call, a.dtype),
            factors=_KINDS[factors],
            scratch=_scratch_for(out.shape),
        ),
        offsets=_offsets(outer, (a, b, out)),
    )
    return RoutineStep(code, work=prod(out.shape) * inner)


def _steps_of_few_rows(call: RoutineCall, axes: Sequence[_Axis]) -> list[RoutineStep]:
    (a, b), (out,) = call.operands, call.results
    *outer, far, near = [_Axis(1, [0] * 3), *axes]
    batch = [(axis.extent, axis.strides[0], axis.strides[1], axis.strides[2]) for axis in (far, near)]
    transposed = bool(out.shape[-2] > out.shape[-1])
    return [
        few_rows.step(call, transposed, (left, right, result), batch)
        for right, left, result in _offsets(outer, (a, b, out))
    ]


def _united(axes: Sequence[_Axis], operands: int) -> list[_Axis]:
    """Axes over the same matrices: as few as possible, at least one, and the longest one last."""
    found: list[_Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        before = found[-1] if found else None
        if before is not None and all(
            far == axis.extent * near for far, near in zip(before.strides, axis.strides, strict=True)
        ):
            found[-1] = _Axis(before.extent * axis.extent, axis.strides)
        else:
            found.append(axis)
    return sorted(found, key=lambda axis: axis.extent) or [_Axis(1, [0] * operands)]


def _matrix(operand: Operand, stride: int) -> tuple[cublas.MatrixLayout, bool]:
    """The layout of an operand for the library, and whether the library has to transpose it."""
    (rows, columns), found = operand.shape[-2:], leading(operand.shape[-2:], operand.strides[-2:])
    if found is None:
        raise AssertionError(f"matmul cannot read an operand with strides {operand.strides}")
    by_columns, distance = found
    extents = (rows, columns) if by_columns else (columns, rows)
    return cublas.MatrixLayout(_KINDS[operand.dtype], *extents, distance, stride), bool(by_columns)


def _offsets(axes: Sequence[_Axis], operands: Sequence[Operand]) -> tuple[tuple[int, int, int], ...]:
    """For each call, the distances in bytes of its matrices from the first ones, in the library's order of operands."""
    found = []
    for indices in product(*[range(axis.extent) for axis in axes]):
        a, b, out = [
            sum([index * axis.strides[number] for index, axis in zip(indices, axes, strict=True)]) * operand.dtype.size
            for number, operand in enumerate(operands)
        ]
        found.append((b, a, out))
    return tuple(found)


def _compute(call: RoutineCall, dtype: Dtype) -> int:
    """The type in which the library adds up."""
    if dtype is dtypes.float64:
        return cublas.COMPUTE_64F
    if dtype is dtypes.float32 and call.params["precision"] == FAST:
        return cublas.COMPUTE_32F_FAST_TF32
    return cublas.COMPUTE_32F
