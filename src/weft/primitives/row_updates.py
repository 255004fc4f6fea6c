"""Updates of rows that are known to come in groups: all of one row together, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import product
from weft.graph.node import Node, Shape
from weft.primitives import index_code
from weft.primitives.base import Primitive
from weft.primitives.index import Term, added, scaled
from weft.primitives.indexing import Indexed
from weft.primitives.routine import Routine

__all__ = ["row_numbers", "row_updates"]


class RowNumbers(Indexed):
    """The number of the row that each update of a `scatter` goes to, if the first axes of ``sizes`` are those of rows:
    the inputs are indices along them. One that goes nowhere has the number of the row behind the last one."""

    name = "row_numbers"
    parameters = ("sizes", "outside")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, dtypes.uint32

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        sizes, outside = node.params
        total, valid = Term(0), None
        for position, extent in enumerate(sizes):
            at, inside = k.read_index(position, index, extent, extent)
            total = added(scaled(total, extent), at)
            if inside is not None:
                valid = inside if valid is None else index_code.both(k, valid, inside)
        number = k.index_value(total)
        if valid is not None and outside == "nowhere":
            number = k.apply(p.select, valid, number, k.number(product(sizes)))
        return index_code.converted(k, number, dtypes.uint32)


row_numbers = RowNumbers()


def _reads(node: Node, position: int, strides: Shape) -> bool:
    """Rows that are updated may lie anywhere; all else is contiguous."""
    if position == 0:
        return True
    contiguous, step = True, 1
    for extent, stride in zip(reversed(node.inputs[position].shape), reversed(strides), strict=True):
        contiguous, step = contiguous and (extent == 1 or stride == step), step * extent
    return contiguous


class RowUpdates(Primitive):
    """A copy of ``x``, a matrix, whose rows were combined with rows of ``updates``.

    Arguments are ``x, updates, order, starts``: row ``r`` is combined with the updates whose numbers are in ``order``
    from ``starts[r]`` to ``starts[r + 1]``, one after the other. ``mode`` is a key of `COMBINE`. Users have `scatter`:
    this is what a plan may do for it.
    """

    name = "row_updates"
    parameters = ("mode",)
    routine: Routine = Routine(accepts=_reads, names=("update of rows", "updates of rows"))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype


row_updates = RowUpdates()
