"""Indices of ints and slices, which select a strided part of an array: a frequent kind, which is read in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import EllipsisType
from typing import Any

import weft.primitives as p
from weft.graph.extents import AnyExtent
from weft.graph.node import Node, Shape, new_node
from weft.graph.tracing import open_traces
from weft.ops.arguments import Array
from weft.ops.masks import broadcast_update
from weft.runtime.devices import current_stream

__all__ = ["StridedPart", "picked", "strided_part", "without_axis"]

_EVERYTHING = slice(None)
_BOUNDS = frozenset({int, type(None)})


class StridedPart:
    """A part of an array: its first index, and its size and step along each axis. The axes ``single``, along which ints
    select, are not in the result. ``is_sliced`` tells whether there are slices that may leave elements out."""

    __slots__ = ("is_sliced", "single", "sizes", "starts", "steps")

    def __init__(self, starts: Shape, sizes: Shape, steps: Shape, single: tuple[int, ...], is_sliced: bool) -> None:
        self.starts, self.sizes, self.steps = starts, sizes, steps
        self.single, self.is_sliced = single, is_sliced

    def _extents(self) -> Shape:
        """The shape of the result."""
        single = self.single
        return tuple([size for axis, size in enumerate(self.sizes) if axis not in single]) if single else self.sizes

    def read(self, node: Node) -> Array:
        """The elements of the part."""
        if not self.is_sliced:
            return picked(node, self.single, [self.starts[axis] for axis in self.single])
        stream, dtype = current_stream(), node.dtype
        part = new_node(p.slice_, (node,), (self.starts, self.sizes, self.steps), self.sizes, dtype, stream)
        if self.single:
            part = new_node(p.squeeze, (part,), (self.single,), self._extents(), dtype, stream)
        return p.wrap(part)

    def write(self, x: Array, new: Array, mode: str, name: str) -> Array:
        """``x`` with ``new`` in place of the part, or combined with it by the ``mode`` (see `p.COMBINE`)."""
        part = broadcast_update(new, self._extents(), name)
        if self.single:
            spread = new_node(p.expand, (part.node,), (self.single,), self.sizes, part.node.dtype, current_stream())
            part = p.wrap(spread)
        combine = p.COMBINE[mode]
        if combine is not None:
            part = combine(p.slice_(x, starts=self.starts, sizes=self.sizes, steps=self.steps), part)
        node, params = x.node, (self.starts, self.steps)
        return p.wrap(new_node(p.slice_update, (node, part.node), params, node.shape, node.dtype, current_stream()))


@lru_cache(1024)
def without_axis(shape: Shape, axis: int) -> Shape:
    """The extents of the other axes, in one tuple for all arrays of ``shape``: the fewer objects there are, the less
    time Python's garbage collector takes. Not for shapes in a trace, whose symbolic extents it would hold."""
    return shape[:axis] + shape[axis + 1 :]


def picked(node: Node, axes: Sequence[int], positions: Sequence[AnyExtent]) -> Array:
    """The part of an array that ints select along some axes."""
    shape = node.shape
    if len(axes) == 1:
        (axis,), (position,) = axes, positions
        rest = shape[:axis] + shape[axis + 1 :] if open_traces else without_axis(shape, axis)
        return p.wrap(new_node(p.pick_one, (node,), (axis, position), rest, node.dtype, current_stream()))
    rest = tuple([extent for axis, extent in enumerate(shape) if axis not in axes])
    return p.wrap(new_node(p.pick, (node,), (tuple(axes), tuple(positions)), rest, node.dtype, current_stream()))


def strided_part(shape: Shape, index: Any) -> StridedPart | None:
    """The part that an index selects. None if the index has other entries than ints, slices and one ellipsis, is wrong,
    or selects the whole array, and if the part depends on symbolic extents."""
    items = index if type(index) is tuple else (index,)
    rank = len(shape)
    if items and (items[0] is Ellipsis or (len(items) > 1 and EllipsisType in map(type, items))):
        items = _without_ellipsis(items, rank)
    if len(items) > rank:
        return None
    starts, sizes, steps, single = [0] * rank, list(shape), [1] * rank, []
    is_sliced = False
    for axis, item in enumerate(items):
        extent: Any = shape[axis]
        kind = type(item)
        if kind is slice:
            if item.start is None and item.stop is None and item.step is None:
                continue
            part = _range_of(item, extent)
            if part is None:
                return None
            if part:
                starts[axis], steps[axis] = part.start, part.step
            sizes[axis] = len(part)
            is_sliced = True
        elif kind is int and type(extent) is int and -extent <= item < extent:
            single.append(axis)
            starts[axis], sizes[axis] = item if item >= 0 else item + extent, 1
        else:
            return None
    if not is_sliced and not single:
        return None
    return StridedPart(tuple(starts), tuple(sizes), tuple(steps), tuple(single), is_sliced)


def _without_ellipsis(items: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """An index with full slices in place of its first ellipsis."""
    position = 0 if items[0] is Ellipsis else [*map(type, items)].index(EllipsisType)
    return items[:position] + (_EVERYTHING,) * (rank - len(items) + 1) + items[position + 1 :]


def _range_of(part: slice, extent: Any) -> range | None:
    """The indices of a slice. None if not everything is a plain int, and for a step of 0 or beyond the extent."""
    step = part.step
    if type(extent) is not int or type(part.start) not in _BOUNDS or type(part.stop) not in _BOUNDS:
        return None
    if step is not None and not (type(step) is int and step and -extent <= step <= extent):
        return None
    return range(extent)[part]
