"""Scans of long rows in one pass over memory, where blocks of threads tell each other what they found."""

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
    """A `Scan` of the rows of a matrix, which is done in chunks.

    Users have the scan: this is what a plan may do for it.
    """

    parameters = ("reverse", "inclusive")
    routine: Routine

    def __init__(self, scan: Scan) -> None:
        self.name = f"long_{scan.name}"
        self.scan = scan
        self.routine = Routine(names=(f"{scan.name} of long rows", f"{scan.name}s of long rows"))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype

    def instead_of(self, node: Node) -> Node | None:
        """What gives the result of the scan; None if that is not done in chunks of rows."""
        (x,), (axis, reverse, inclusive, _) = node.inputs, node.params
        if axis != node.ndim - 1 or chunk_for(node.shape, axis) != ROW_CHUNK:
            return None
        shape = product(node.shape[:-1]), node.shape[-1]
        matrix = p.reshape(p.wrap(x), shape=shape).node
        rows = Node(self, (matrix,), (reverse, inclusive), shape, node.dtype, None)  # whichever stream is current here
        result: Node = p.reshape(p.wrap(rows), shape=node.shape).node
        return result


long_cumsum = LongScan(cumsum)
long_cumprod = LongScan(cumprod)
