"""Quantised matrices as steps of a plan for a GPU."""

from __future__ import annotations

from math import prod
from typing import Any

import weft.primitives as p
from weft.compiler.cuda.quantized import blocks, dequantize, few_rows
from weft.graph.node import Node
from weft.primitives.quantized_formats import Format
from weft.primitives.routine import RoutineCall, RoutineStep

p.dequantize.routine.on("cuda")(dequantize.step)


def _scratch(node: Node) -> int:
    *batch, rows, columns = node.shape
    if _has_few_rows(rows, node.keywords):
        return 0
    return blocks.scratch_bytes((rows, columns, node.inputs[0].shape[-1]), prod(batch), node.dtype)


def _has_few_rows(rows: int, params: dict[str, Any]) -> bool:
    return rows <= few_rows.MOST_ROWS and bool(params["transpose"])


@p.quantized_matmul.routine.on("cuda", scratch=_scratch)
def steps(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The steps for a product."""
    params = dict(call.params)
    few = _has_few_rows(call.results[0].shape[-2], params)
    transpose = params.pop("transpose")
    kind = Format(**params)
    return few_rows.step(call, kind) if few else blocks.steps(call, kind, transpose)
