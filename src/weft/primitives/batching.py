"""Functions for batching rules: they move the mapped axes of operands to one position."""

from __future__ import annotations

from collections.abc import Sequence

import weft.primitives as p
from weft.graph.extents import AnyExtent
from weft.graph.node import Shape
from weft.primitives.base import Array, is_constant

__all__ = ["align_batch", "batch_first", "batch_size", "move_axis", "with_batch"]


def batch_size(inputs: Sequence[Array], axes: Sequence[int | None]) -> AnyExtent:
    """The extent of the mapped axis."""
    return next(x.node.shape[axis] for x, axis in zip(inputs, axes, strict=True) if axis is not None)


def move_axis(x: Array, source: int, target: int) -> Array:
    """``x`` with axis ``source`` moved to ``target``."""
    if source == target:
        return x
    order = [axis for axis in range(x.node.ndim) if axis != source]
    order.insert(target, source)
    return p.transpose(x, axes=tuple(order))


def insert(shape: Shape, axis: int, extent: AnyExtent) -> Shape:
    return (*shape[:axis], extent, *shape[axis:])


def with_batch(x: Array, axis: int | None, target: int, size: AnyExtent) -> Array:
    """``x`` with its mapped axis at ``target``, repeated there if it has none."""
    if axis is not None:
        return move_axis(x, axis, target)
    expanded = p.expand(x, axes=(target,))
    return p.broadcast(expanded, shape=insert(x.node.shape, target, size))


def align_batch(inputs: Sequence[Array], axes: Sequence[int | None]) -> tuple[list[Array], int]:
    """All inputs with the mapped axis at the same position; unmapped constants are unchanged."""
    size = batch_size(inputs, axes)
    target = next(axis for axis in axes if axis is not None)
    aligned = [
        x if axis is None and is_constant(x.node) else with_batch(x, axis, target, size)
        for x, axis in zip(inputs, axes, strict=True)
    ]
    return aligned, target


def batch_first(inputs: Sequence[Array], axes: Sequence[int | None]) -> list[Array]:
    """All inputs with the mapped axis in front."""
    size = batch_size(inputs, axes)
    return [with_batch(x, axis, 0, size) for x, axis in zip(inputs, axes, strict=True)]


def shift_axes(axes: Sequence[int], batch_axis: int) -> tuple[int, ...]:
    """Axis numbers of an operand after an axis was inserted at ``batch_axis``."""
    return tuple(axis + (axis >= batch_axis) for axis in axes)
