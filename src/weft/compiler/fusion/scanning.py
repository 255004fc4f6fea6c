"""Scans in fused groups: which groups can walk along rows in the order that a scan needs."""

from __future__ import annotations

from weft.compiler.index import own_axes, whole_axes
from weft.graph.node import Node
from weft.primitives.index import Terms

from .groups import Chunks, FusedGroup


def fits(node: Node, group: FusedGroup, terms: Terms) -> bool:
    """Whether a group that uses a scan at ``terms`` can compute it.

    Its loops must be exactly those over the axes of the scan, because they decide in which order elements are joined.
    What the group folds may depend on the scan, so both have to walk forward along whole rows.
    """
    if whole_axes(terms, node.shape, group.extents) != tuple(group.axes):
        return False
    if group.reduced not in ((), (_loop_axis(node, terms),)):
        return False
    backwards, size = node.primitive.backwards(node), node.primitive.chunk_size(node)
    if group.folds:
        return group.chunks is None and size is None and not backwards and not group.backwards
    return group.backwards is None or (group.backwards is backwards and _chunk_size(group) == size)


def include(node: Node, group: FusedGroup, terms: Terms) -> None:
    """Let a group compute a scan at ``terms``: walk in its direction, and in its chunks if it has any."""
    axis = _loop_axis(node, terms)
    size = node.primitive.chunk_size(node)
    group.reduced = (axis,)
    group.backwards = node.primitive.backwards(node)
    if size is not None and group.chunks is None:
        cut(group, axis, size)


def cut(group: FusedGroup, axis: int, size: int) -> Chunks:
    """Cut a loop axis of a group into chunks."""
    count = -(-group.extents[axis] // size)
    _, (number,) = own_axes((count,))
    group.extents[number] = count
    group.chunks = Chunks(axis, number, size)
    return group.chunks


def may_fold(group: FusedGroup) -> bool:
    """Whether rows are walked as a whole, as reductions need it.

    The group may have scans from the end: what it folds does not depend on them, and is done in a pass of its own.
    """
    return group.chunks is None


def _loop_axis(node: Node, terms: Terms) -> int:
    """The loop axis along which a scan goes."""
    ((axis, _),) = terms[node.primitive.axis(node)].axes
    return axis


def _chunk_size(group: FusedGroup) -> int | None:
    return None if group.chunks is None else group.chunks.size
