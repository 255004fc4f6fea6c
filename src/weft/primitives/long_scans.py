"""Scans of long rows in one pass over memory, in which blocks of threads pass totals to each other."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import product
from weft.graph.node import Node, Shape
from weft.primitives.base import Primitive
from weft.primitives.routine import Routine
from weft.primitives.scans import ROW_CHUNK, Scan, chunk_for, cumprod, cumsum

__all__ = ["long_cumprod", "long_cumsum"]


class LongScan(Primitive):
    """A `Scan` of the rows of a matrix, computed in chunks. It replaces `Scan` in plans; users do not call it."""

    parameters = ("reverse", "inclusive")
    routine: Routine

    def __init__(self, scan: Scan) -> None:
        self.name = f"long_{scan.name}"
        self.scan = scan
        self.routine = Routine(names=(f"{scan.name} of long rows", f"{scan.name}s of long rows"))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype

    def instead_of(self, node: Node) -> Node | None:
        """A node that gives the result of the scan; None if the scan is not cut into chunks along rows."""
        (x,), (axis, reverse, inclusive, _) = node.inputs, node.params
        if axis != node.ndim - 1 or chunk_for(node.shape, axis) != ROW_CHUNK:
            return None
        shape = product(node.shape[:-1]), node.shape[-1]
        matrix = p.reshape(p.wrap(x), shape=shape).node
        rows = Node(self, (matrix,), (reverse, inclusive), shape, node.dtype, None)  # None: on the stream of the plan
        result: Node = p.reshape(p.wrap(rows), shape=node.shape).node
        return result


long_cumsum = LongScan(cumsum)
long_cumprod = LongScan(cumprod)
