"""Updates of rows, grouped by row: those of one row are applied together, in their order."""

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
    """The number of the row to which each update of a `scatter` goes. The rows are indexed by the first axes of
    ``sizes``; the inputs are indices along them. An update that goes nowhere gets the number after that of the last
    row."""

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
    """The rows to be updated may have any stride; all other operands must be contiguous."""
    if position == 0:
        return True
    contiguous, step = True, 1
    for extent, stride in zip(reversed(node.inputs[position].shape), reversed(strides), strict=True):
        contiguous, step = contiguous and (extent == 1 or stride == step), step * extent
    return contiguous


class RowUpdates(Primitive):
    """A copy of the matrix ``x`` with rows of ``updates`` combined into its rows.

    Arguments are ``x, updates, order, starts``: row ``r`` is combined with the updates ``order[starts[r]]`` to
    ``order[starts[r + 1] - 1]``, one after the other. ``mode`` is a key of `COMBINE`. It replaces `scatter` in plans;
    users do not call it.
    """

    name = "row_updates"
    parameters = ("mode",)
    routine: Routine = Routine(accepts=_reads, names=("update of rows", "updates of rows"))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype


row_updates = RowUpdates()


def scattered_by_rows(node: Node) -> Node | None:
    """A node with the result of a `scatter` whose updates are whole rows: they are sorted by row, which preserves the
    order of updates of one row. None if updates are not rows, or if an index counts along an axis, so that no two
    updates meet."""
    x, *indices, updates = node.inputs
    axes, mode, outside = node.params
    sizes, count, slices = x.shape[: len(axes)], indices[0].size, updates.shape[indices[0].ndim :]
    rows, width = product(sizes), product(x.shape[len(axes) :])
    if axes != tuple(range(len(axes))) or slices != (*[1] * len(axes), *x.shape[len(axes) :]):
        return None
    if x.dtype.is_complex or not x.size or any(_counts(index) for index in indices):
        return None
    if max(count, rows) >= p.LARGEST_INDEX:
        return None
    numbers = p.row_numbers(*[p.wrap(index) for index in indices], sizes=sizes, outside=outside)
    number = p.reshape(numbers, shape=(count,))
    order = p.argsort(number, start=0, count=count)
    found = p.gather(number, order, axes=(0,), slice_sizes=(1,), outside="nearest")
    every = p.iota(shape=(rows + 1,), axis=0, dtype=dtypes.uint32)
    starts = p.searchsorted(p.reshape(found, shape=(count,)), every, right=False)
    given = [p.reshape(p.wrap(part), shape=shape) for part, shape in ((x, (rows, width)), (updates, (count, width)))]
    inputs = tuple([part.node for part in (*given, order, starts)])
    updated = Node(row_updates, inputs, (mode,), (rows, width), x.dtype, None)  # None: on the stream of the plan
    result: Node = p.reshape(p.wrap(updated), shape=x.shape).node
    return result


def _counts(index: Node) -> bool:
    """Whether the elements of an index count along an axis."""
    while p.is_view(index):
        index = index.inputs[0]
    return index.primitive is p.iota
