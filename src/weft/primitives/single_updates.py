"""Scatters into rows of equal elements that update one element of each row.

The updated elements are found by comparing indices in the kernel that uses the result, so that no array of equal
elements is stored. The gradient of taking one element of each row, as in a cross entropy, is such a scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.indexing import Indexed

__all__ = ["single_update", "with_single_updates"]


class SingleUpdate(Indexed):
    """A copy of ``x`` in which one element of each row along ``axis`` is combined with an update.

    Arguments are ``x, index, updates``; ``mode`` and ``outside`` are those of `Scatter`. The index has extent 1 along
    the axis, and so have the updates, whose last axes are those of their slices. Planning makes it of a scatter; it has
    no derivatives or other rules.
    """

    name = "single_update"
    parameters = ("axis", "mode", "outside")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        axis, mode, outside = node.params
        extent, first = node.shape[axis], k.fixed(0)
        at = (*index[:axis], first, *index[axis + 1 :])
        found, inside = k.read_index(1, at, extent, extent)
        here = k.apply(p.equal, k.index_value(found), k.index_value(index[axis]))
        if inside is not None and outside == "nowhere":
            here = k.apply(p.logical_and, here, inside)
        before, update = k.read(0, index), k.read(2, (*at, *[first] * node.ndim))
        combine = p.COMBINE[mode]
        return k.apply(p.select, here, update if combine is None else k.apply(combine, before, update), before)


single_update = SingleUpdate()


def with_single_updates(node: Node) -> Node | None:
    """The `SingleUpdate` that replaces a scatter into one element of each row of equal elements; None for other
    scatters."""
    axes, mode, outside = node.params
    x, *indices, updates = node.inputs
    if tuple(axes) != tuple(range(node.ndim)) or indices[0].ndim != node.ndim or not _is_one_element(x):
        return None
    apart = [axis for axis in axes if not _counts(indices[axis], axis, node.shape[axis])]
    if len(apart) != 1 or indices[0].shape != (*node.shape[: apart[0]], 1, *node.shape[apart[0] + 1 :]):
        return None
    (axis,) = apart
    return Node(single_update, (x, indices[axis], updates), (axis, mode, outside), node.shape, node.dtype, None)


def _counts(index: Node, axis: int, extent: int) -> bool:
    """Whether an index counts along an axis from its first to its last element."""
    return index.primitive is p.iota and index.primitive.counts_along(index) == axis and index.shape[axis] == extent


def _is_one_element(x: Node) -> bool:
    """Whether all elements of an array are the same element in memory."""
    while p.is_view(x) and x.size > 1:
        x = x.inputs[0]
    return x.size == 1
