"""Quantised matrices as steps of a plan for a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.cuda.quantized import blocks, dequantize, few_rows
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.cuda import cublas

_MANY_ROWS = 32
"""From this many rows of half precision on, the library multiplies faster, even if the matrix has to be decoded
first."""

p.dequantize.routine.on("cuda")(dequantize.step)


def _scratch(node: Node) -> int:
    *batch, rows, columns = node.shape
    if _has_few_rows(node.shape, node.keywords):
        return 0
    return blocks.scratch_bytes((rows, columns, node.inputs[0].shape[-1]), prod(batch), node.dtype)


def _has_few_rows(shape: Shape, params: dict[str, Any]) -> bool:
    return shape[-2] <= few_rows.MOST_ROWS and bool(params["transpose"])


def _adapts(node: Node) -> Node | None:
    """For a left operand that was converted from half precision: a few rows are read unconverted. Many rows are
    multiplied by the library, with the matrix decoded to the same precision."""
    if node.dtype is not dtypes.float32:
        return None
    if not _has_few_rows(node.shape, node.keywords):
        many = node.shape[-2] >= _MANY_ROWS and not cublas.missing()
        found: Node | None = p.rounded_product(node) if many else None
        return found
    source = p.before_conversion(node.inputs[0])
    if source is node.inputs[0]:
        return None
    return Node(node.primitive, (source, *node.inputs[1:]), node.params, node.shape, node.dtype, None)


def _rounds(node: Node, dtype: Dtype) -> bool:
    """Whether sums can be rounded to half precision when they are stored."""
    return dtype in HALVES and node.dtype is dtypes.float32 and _has_few_rows(node.shape, node.keywords)


@p.quantized_matmul.routine.on("cuda", scratch=_scratch, adapts=_adapts, rounds=_rounds)
def steps(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The steps for a product."""
    params = dict(call.params)
    few = _has_few_rows(call.results[0].shape, params)
    transpose = params.pop("transpose")
    kind = QuantizedFormat(**params)
    return few_rows.step(call, kind) if few else blocks.steps(call, kind, transpose)
