"""Nodes for the columns of arrays: their parts with a single index along one axis. Arrays whose rows are short may be
computed column by column when they are planned."""

from __future__ import annotations

from collections.abc import Sequence

import weft.primitives as p
from weft.graph.node import Node, Shape
from weft.primitives.updates import RegionWrite, Update

__all__ = [
    "column_of",
    "column_of_operands",
    "consists_of_columns",
    "folded_axis",
    "folded_columns",
    "joined_columns",
    "shown_columns",
    "source_of_column",
    "without_axis",
]


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def column_of(x: Node, axis: int, position: int) -> Node:
    """A view of the column at a position along an axis, which it keeps."""
    return p.box_of(x, _with((0,) * x.ndim, axis, position), _with(x.shape, axis, 1))


def joined_columns(columns: Sequence[Node], axis: int) -> Node:
    """The array that consists of columns."""
    first = columns[0]
    return Node(p.concatenate, tuple(columns), (axis,), _with(first.shape, axis, len(columns)), first.dtype, None)


def without_axis(column: Node, axis: int) -> Node:
    """A view of a column without the axis along which it has one index."""
    shape = (*column.shape[:axis], *column.shape[axis + 1 :])
    return Node(p.squeeze, (column,), ((axis,),), shape, column.dtype, None)


def column_of_operands(node: Node, axis: int, operands: Sequence[Node]) -> Node:
    """A column of the result of an elementwise operation, from columns of its operands."""
    return Node(node.primitive, tuple(operands), node.params, _with(node.shape, axis, 1), node.dtype, None)


def shown_columns(view: Node, axis: int) -> Sequence[int] | None:
    """The positions along an axis of its input at which a view shows whole columns, if it does nothing else."""
    (x,) = view.inputs
    if view.primitive is p.pick_one:
        return (view.params[1],) if view.params[0] == axis else None
    if view.primitive is p.pick:
        return view.params[1] if view.params[0] == (axis,) else None
    if view.primitive is not p.slice_:
        return None
    starts, sizes, steps = view.params
    whole = all(size == extent for a, (size, extent) in enumerate(zip(sizes, x.shape, strict=True)) if a != axis)
    if not whole or any(step != 1 for a, step in enumerate(steps) if a != axis):
        return None
    return range(starts[axis], starts[axis] + sizes[axis] * steps[axis], steps[axis])


def consists_of_columns(node: Node, axis: int) -> bool:
    """Whether each column of a node is one of an input, or filled with a number."""
    if node.primitive is p.pad:
        low, high = node.params
        return not any(extent for sizes in (low, high) for a, extent in enumerate(sizes) if a != axis)
    return isinstance(node.primitive, Update) and node.primitive.disjoint and node.params[0] == axis


def source_of_column(node: Node, axis: int, position: int) -> tuple[Node, int]:
    """The array that has a column of a node for which `consists_of_columns` is true, and the position there."""
    if node.primitive is p.pad:
        x, number = node.inputs
        within = position - node.params[0][axis]
        if 0 <= within < x.shape[axis]:
            return x, within
        shape = _with(node.shape, axis, 1)
        return Node(p.broadcast, (number,), (shape,), shape, node.dtype, None), 0
    for write in node.primitive.writes(node):
        assert isinstance(write, RegionWrite)
        source = node.inputs[write.position]
        within = position - write.starts[axis]
        if 0 <= within < source.shape[axis]:
            return source, within
    raise AssertionError(f"nothing writes column {position} of {node}")


def folded_axis(node: Node, axis: int) -> int | None:
    """The axis along which a node folds an array, if this can be done for each column by itself with the same bits: it
    is not the last axis, so that elements are taken in order, and there are others. Else None."""
    if not isinstance(node.primitive, p.Reduction) or len(node.params[0]) != 1:
        return None
    last = node.inputs[0].ndim - 1
    (folded,) = node.params[0]
    return folded if axis == last and last > 1 and folded != last else None


def folded_columns(node: Node, columns: Sequence[Node], folded: int) -> list[Node]:
    """The columns of what a node folds along an axis. Lanes go along the last axis that is left."""
    found = []
    for column in columns:
        source, along = without_axis(column, column.ndim - 1), folded
        if folded == source.ndim - 1:
            order = (folded, *range(folded))
            shape = tuple([source.shape[axis] for axis in order])
            source, along = Node(p.transpose, (source,), (order,), shape, source.dtype, None), 0
        shape = (*source.shape[:along], *source.shape[along + 1 :])
        result = Node(node.primitive, (source,), ((along,),), shape, node.dtype, None)
        found.append(Node(p.expand, (result,), ((result.ndim,),), (*shape, 1), node.dtype, None))
    return found
