"""Elements at computed indices."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import plain_int, shortened
from weft.graph.extents import agree, decide, decide_equal
from weft.graph.node import Shape
from weft.graph.shown import Extent
from weft.graph.symbolic import SymbolicExtent
from weft.ops.arguments import (
    Array,
    array_argument,
    axis_of,
    broadcast,
    broadcasted_shape,
    distinct_axes,
    sequence_of,
    shape_of,
    shape_text,
    to_dtype,
)
from weft.ops.axis_index import from_front, inside, need_elements
from weft.ops.masks import broadcast_update
from weft.ops.replays import replayed
from weft.primitives.batching import insert
from weft.runtime.devices import StreamOrDevice

__all__ = ["put_along_axis", "slice", "slice_update", "take", "take_along_axis"]


@replayed
def take(a: Array, /, indices: int | Array, axis: int | None = None, *, stream: StreamOrDevice = None) -> Array:
    """Entries of ``a`` along an axis.

    Args:
        a: an array.
        indices: an int, or an array of integers of any shape. Negative ones count from the end. Those of an array that
            are out of range are moved to the nearest one inside.
        axis: the axis; None for the flattened array.

    Returns:
        ``a`` with ``axis`` replaced by the axes of ``indices``.

    Raises:
        IndexError: there is no such axis (an AxisError), or an int is out of range.

    >>> mx.take(mx.array([[1, 2, 3], [4, 5, 6]]), mx.array([2, 0]), axis=1)
    array([[3, 1],
           [6, 4]], dtype=int32)
    """
    x = array_argument("take", a)
    if axis is None:
        x = p.reshape(x, shape=(x.node.size,))
        along = 0
    else:
        along = axis_of("take", axis, x.node.ndim)
    if isinstance(indices, Extent):
        indices = indices.symbolic
    if isinstance(indices, int) and not isinstance(indices, bool):
        indices = plain_int(indices)
    if type(indices) in (int, SymbolicExtent):
        return _entry(x, indices, along)
    index = _indices("take", indices)
    shape = x.node.shape
    sizes = (*shape[:along], 1, *shape[along + 1 :])
    need_elements("take", shape, (along,), index)
    taken = p.gather(x, index, axes=(along,), slice_sizes=sizes)
    dimensions = index.node.ndim
    taken = p.squeeze(taken, axes=(dimensions + along,))
    if along == 0 or dimensions == 0:
        return taken
    order = (*range(dimensions, dimensions + along), *range(dimensions), *range(dimensions + along, taken.node.ndim))
    return p.transpose(taken, axes=order)


def _entry(x: Array, index: Any, axis: int) -> Array:
    shape = x.node.shape
    found = inside(from_front(index, shape[axis]), shape[axis])
    if found is None:
        raise IndexError(
            f"[take] Index {shortened(index)} is out of range for axis {axis} of an array of shape {shape_text(shape)}."
        )
    starts = tuple([found if one == axis else 0 for one in range(len(shape))])
    sizes = (*shape[:axis], 1, *shape[axis + 1 :])
    part = p.slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    return p.squeeze(part, axes=(axis,))


def _indices(name: str, indices: Any) -> Array:
    array = array_argument(name, indices, "indices")
    if not array.node.dtype.is_integer:
        raise ValueError(f"[{name}] indices must be integers, not {array.node.dtype.name}.")
    return array


@replayed
def take_along_axis(a: Array, /, indices: Array, axis: int | None = -1, *, stream: StreamOrDevice = None) -> Array:
    """Elements of ``a`` along an axis, with separate indices for each row.

    Args:
        a: an array.
        indices: integers, with as many axes as ``a``; all but ``axis`` are broadcast with those of ``a``.
        axis: the axis; None for the flattened arrays.

    Raises:
        AxisError: there is no such axis; the error is a ValueError and an IndexError.
        ValueError: ``indices`` does not fit ``a``.

    >>> a = mx.array([[3, 1, 2], [6, 5, 4]])
    >>> mx.take_along_axis(a, mx.argmin(a, axis=1, keepdims=True), axis=1)
    array([[1],
           [4]], dtype=int32)
    """
    x, index, along = _aligned("take_along_axis", a, indices, axis)
    shapes = [_without(array.node.shape, along) for array in (x, index)]
    others = broadcasted_shape("take_along_axis", shapes)
    index = broadcast(index, insert(others, along, index.node.shape[along]))
    x = broadcast(x, insert(others, along, x.node.shape[along]))
    rank = x.node.ndim
    need_elements("take_along_axis", x.node.shape, (along,), index)
    taken = p.gather(x, *_index_of_each_axis(index, along), axes=tuple(range(rank)), slice_sizes=(1,) * rank)
    return p.squeeze(taken, axes=tuple(range(rank, 2 * rank)))


@replayed
def put_along_axis(
    a: Array, /, indices: Array, values: Array, axis: int | None = None, *, stream: StreamOrDevice = None
) -> Array:
    """A copy of ``a`` with some elements along an axis replaced, with separate indices for each row.

    Args:
        a: an array.
        indices: integers, with as many axes as ``a``; all but ``axis`` are broadcast to those of ``a``.
        values: the new elements, broadcast to ``indices`` and converted to the dtype of ``a``.
        axis: the axis; None for the flattened arrays.

    Raises:
        AxisError: there is no such axis; the error is a ValueError and an IndexError.
        ValueError: ``indices`` or ``values`` do not fit.

    >>> mx.put_along_axis(mx.zeros((2, 3)), mx.array([[0], [2]]), mx.array([[5.0], [6.0]]), axis=1)
    array([[5, 0, 0],
           [0, 0, 6]], dtype=float32)
    """
    x, index, along = _aligned("put_along_axis", a, indices, axis)
    shape = x.node.shape
    index = _broadcast_to_rows("put_along_axis", index, shape, along)
    new = to_dtype(array_argument("put_along_axis", values, "values"), x.node.dtype)
    new = broadcast_update(new, index.node.shape, "put_along_axis")
    rank = len(shape)
    need_elements("put_along_axis", shape, (along,), index)
    new = p.expand(new, axes=tuple(range(rank, 2 * rank)))
    result = p.scatter(x, *_index_of_each_axis(index, along), new, axes=tuple(range(rank)), mode="set")
    return result if axis is not None else p.reshape(result, shape=array_argument("put_along_axis", a).node.shape)


def _broadcast_to_rows(name: str, index: Array, shape: Shape, axis: int) -> Array:
    """``index`` broadcast to ``shape``, except along one axis."""
    target = insert(_without(shape, axis), axis, index.node.shape[axis])
    if not agree(broadcasted_shape(name, [index.node.shape, target]), target):
        raise ValueError(
            f"[{name}] indices of shape {shape_text(index.node.shape)} do not fit an array of shape "
            f"{shape_text(shape)} along axis {axis}."
        )
    return broadcast(index, target)


def _aligned(name: str, a: Any, indices: Any, axis: int | None) -> tuple[Array, Array, int]:
    """The array, the indices with as many axes, and the axis."""
    x, index = array_argument(name, a), _indices(name, indices)
    if axis is None:
        flat_x, flat_index = (p.reshape(array, shape=(array.node.size,)) for array in (x, index))
        return flat_x, flat_index, 0
    along = axis_of(name, axis, x.node.ndim)
    if index.node.ndim != x.node.ndim:
        raise ValueError(
            f"[{name}] indices of shape {shape_text(index.node.shape)} must have as many axes as the array, whose "
            f"shape is {shape_text(x.node.shape)}."
        )
    return x, index, along


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _index_of_each_axis(index: Array, axis: int) -> list[Array]:
    """For each axis its index: ``index`` along ``axis``, the element's own along the others."""
    shape = index.node.shape
    return [index if one == axis else p.iota(shape=shape, axis=one, dtype=dtypes.int32) for one in range(len(shape))]


@replayed
def slice(
    a: Array, start_indices: Array, axes: Sequence[int], slice_size: Sequence[int], *, stream: StreamOrDevice = None
) -> Array:
    """A part of ``a`` whose start is given by an array.

    Args:
        a: an array.
        start_indices: integers, one for each of ``axes``. If the part would reach out of ``a``, it is moved inside.
        axes: the axes of ``start_indices``; along the others the part starts at 0.
        slice_size: the shape of the part.

    Raises:
        AxisError: there is no such axis; the error is a ValueError and an IndexError.
        ValueError: the numbers of axes differ, or the part is larger than ``a``.

    >>> mx.slice(mx.array([[1, 2, 3], [4, 5, 6]]), mx.array([1]), axes=[1], slice_size=[2, 2])
    array([[2, 3],
           [5, 6]], dtype=int32)
    """
    x = array_argument("slice", a)
    sizes = shape_of("slice", slice_size)
    shape = x.node.shape
    fits = len(sizes) == len(shape) and not any(
        size < 0 or decide(operator.lt, extent, size) for size, extent in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"[slice] slice_size={shape_text(sizes)} does not fit an array of shape {shape_text(shape)}.")
    starts, along = _starts("slice", start_indices, axes, len(shape))
    if not along:
        return p.slice_(x, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))
    return p.gather(x, *starts, axes=along, slice_sizes=sizes)


@replayed
def slice_update(
    a: Array, update: Array, start_indices: Array, axes: Sequence[int], *, stream: StreamOrDevice = None
) -> Array:
    """A copy of ``a`` in which the part whose start is given by an array is replaced by ``update``.

    Args:
        a: an array.
        update: the new part, converted to the dtype of ``a``; if it lacks axes in front, it is repeated along those
            that are not in ``axes``.
        start_indices: integers, one for each of ``axes``. If the part would reach out of ``a``, it is moved inside.
        axes: the axes of ``start_indices``; along the others the part starts at 0.

    Raises:
        AxisError: there is no such axis; the error is a ValueError and an IndexError.
        ValueError: the numbers of axes differ, or the part is larger than ``a``.

    >>> mx.slice_update(mx.zeros((2, 3)), mx.ones((2, 1)), mx.array([1]), axes=[1])
    array([[0, 1, 0],
           [0, 1, 0]], dtype=float32)
    """
    x = array_argument("slice_update", a)
    shape = x.node.shape
    new = to_dtype(array_argument("slice_update", update, "update"), x.node.dtype)
    starts, along = _starts("slice_update", start_indices, axes, len(shape))
    found = new.node.shape
    missing = len(shape) - len(found)
    sizes = (*[1 if axis in along else shape[axis] for axis in range(missing)], *found)
    if missing < 0 or any(decide(operator.gt, size, extent) for size, extent in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"[slice_update] An update of shape {shape_text(found)} does not fit into shape {shape_text(shape)}."
        )
    part = broadcast(new, sizes)
    if not along:
        return p.slice_update(x, part, starts=(0,) * len(shape), steps=(1,) * len(shape))
    return p.scatter(x, *starts, part, axes=along, mode="set", outside="nearest")


def _starts(name: str, start_indices: Any, axes: Sequence[int], rank: int) -> tuple[list[Array], tuple[int, ...]]:
    """The starts as 0-d arrays, and their axes."""
    index = _indices(name, start_indices)
    along = distinct_axes(name, sequence_of(name, "axes", axes), rank)
    if not decide_equal(index.node.size, len(along)) or index.node.ndim > 1:
        raise ValueError(
            f"[{name}] start_indices of shape {shape_text(index.node.shape)} do not belong to {len(along)} axes: "
            "there is one start for each."
        )
    if index.node.ndim == 0:
        return [index], along
    parts = [p.slice_(index, starts=(position,), sizes=(1,), steps=(1,)) for position in range(len(along))]
    return [p.squeeze(part, axes=(0,)) for part in parts], along
