"""Functions that return the same elements in another shape or order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.errors import ArgumentTypeError
from weft.graph.extents import AnyExtent, agree, decide_equal, product
from weft.graph.node import Shape, new_node
from weft.ops.arguments import (
    Array,
    array_argument,
    axes_of,
    axis_of,
    broadcast_anew,
    broadcasted_shape,
    checked_extents,
    dimensions_text,
    distinct_axes,
    entries_of,
    fresh,
    integer_of,
    sequence_of,
    shape_of,
    shape_text,
)
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice, current_stream

__all__ = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "expand_dims",
    "flatten",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "reshape",
    "squeeze",
    "swapaxes",
    "transpose",
    "unflatten",
]


@replayed
def reshape(
    a: Array, /, shape: int | Sequence[int], *, copy: bool | None = None, stream: StreamOrDevice = None
) -> Array:
    """The same elements, row by row, in another shape.

    Args:
        shape: an int or a sequence of ints; one of them may be -1, which stands for the extent that fits.
        copy: makes no difference, because an assignment to one array never changes another one.

    Raises:
        ValueError: the shape has another number of elements.

    >>> mx.reshape(mx.arange(6), (2, -1))
    array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    """
    x = array_argument("reshape", a)
    wanted = _inferred("reshape", shape_of("reshape", shape), x.node.size, x.node.shape)
    return p.reshape(x, shape=wanted)


def _inferred(name: str, wanted: Shape, size: AnyExtent, source: Shape) -> Shape:
    """``wanted`` with -1, if it occurs, replaced by the extent with which there are ``size`` elements."""
    open_axes = [axis for axis, extent in enumerate(wanted) if extent == -1]
    if not open_axes:
        checked_extents(name, wanted)
        known, left = product(wanted), 1
    else:
        if len(open_axes) > 1:
            raise ValueError(f"[{name}] Only one extent can be -1; got {shape_text(wanted)}.")
        others = [extent for axis, extent in enumerate(wanted) if axis != open_axes[0]]
        known = product(checked_extents(name, tuple(others)))
        if known == 0:
            raise ValueError(f"[{name}] The extent for -1 in {shape_text(wanted)} is open: there are no elements.")
        left = size // known
    if not agree(known * left, size):
        raise ValueError(
            f"[{name}] Cannot turn shape {shape_text(source)} with {size} elements into shape {shape_text(wanted)}."
        )
    return tuple([left if extent == -1 else extent for extent in wanted])


@replayed
def flatten(a: Array, /, start_axis: int = 0, end_axis: int = -1, *, stream: StreamOrDevice = None) -> Array:
    """The axes from ``start_axis`` to ``end_axis`` (included) merged into one.

    >>> mx.flatten(mx.zeros((2, 3, 4)), 0, 1).shape
    (6, 4)
    """
    x = array_argument("flatten", a)
    shape = x.node.shape
    ndim = len(shape)
    start_axis = integer_of("flatten", "start_axis", start_axis)
    end_axis = integer_of("flatten", "end_axis", end_axis)
    if ndim == 0:
        return p.reshape(x, shape=(1,))
    first = max(start_axis + ndim if start_axis < 0 else start_axis, 0)
    last = min(end_axis + ndim if end_axis < 0 else end_axis, ndim - 1)
    if first > last:
        raise ValueError(
            f"[flatten] start_axis {start_axis} is behind end_axis {end_axis} in an array with {dimensions_text(ndim)}."
        )
    if first == last:
        return fresh(x)
    joined = (*shape[:first], product(shape[first : last + 1]), *shape[last + 1 :])
    return p.reshape(x, shape=joined)


@replayed
def unflatten(a: Array, /, axis: int, shape: Sequence[int], *, stream: StreamOrDevice = None) -> Array:
    """One axis split into several.

    Args:
        axis: the axis to split.
        shape: the new extents; one of them may be -1.

    >>> mx.unflatten(mx.zeros((2, 6)), 1, (3, -1)).shape
    (2, 3, 2)
    """
    x = array_argument("unflatten", a)
    split = axis_of("unflatten", axis, x.node.ndim)
    parts = shape_of("unflatten", shape)
    if not parts:
        raise ValueError("[unflatten] The shape must have at least one extent.")
    extent = x.node.shape[split]
    parts = _inferred("unflatten", parts, extent, (extent,))
    decide_equal(product(parts), extent)  # needed as a decision: if another axis is empty, the shapes fit anyway
    wanted = (*x.node.shape[:split], *parts, *x.node.shape[split + 1 :])
    return p.reshape(x, shape=wanted)


@replayed
def transpose(a: Array, /, axes: Sequence[int] | None = None, *, stream: StreamOrDevice = None) -> Array:
    """The axes in another order.

    Args:
        axes: the axes of ``a`` in their new order; None reverses them.

    Raises:
        ValueError: an axis is missing or repeated.

    >>> mx.transpose(mx.array([[1, 2], [3, 4]]))
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = array_argument("transpose", a)
    ndim = x.node.ndim
    if axes is None:
        order = tuple(range(ndim))[::-1]
    else:
        axes = sequence_of("transpose", "axes", axes)
        if len(axes) != ndim:
            raise ValueError(f"[transpose] {len(axes)} axes are given for an array with {dimensions_text(ndim)}.")
        order = distinct_axes("transpose", axes, ndim)
    return _permuted(x, order)


permute_dims = transpose


def reversed_axes(x: Array) -> Array:
    """``x.T``, which needs no checks of arguments."""
    node = x.node
    order = tuple(range(len(node.shape)))[::-1]
    if len(order) < 2:
        return fresh(x)
    return p.wrap(new_node(p.transpose, (node,), (order,), node.shape[::-1], node.dtype, current_stream()))


def _permuted(x: Array, order: tuple[int, ...]) -> Array:
    if order == tuple(range(len(order))):
        return fresh(x)
    return p.transpose(x, axes=order)


@replayed
def matrix_transpose(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The last two axes exchanged.

    Raises:
        ValueError: fewer than 2 dimensions.

    >>> mx.matrix_transpose(mx.zeros((2, 3, 4))).shape
    (2, 4, 3)
    """
    x = array_argument("matrix_transpose", a)
    if x.node.ndim < 2:
        raise ValueError(f"[matrix_transpose] A matrix needs at least 2 dimensions; the array has {x.node.ndim}.")
    return swapaxes(x, -1, -2)


@replayed
def swapaxes(a: Array, /, axis1: int, axis2: int, *, stream: StreamOrDevice = None) -> Array:
    """Two axes exchanged.

    Args:
        axis1, axis2: the axes; `AxisError` where one does not exist.

    >>> mx.swapaxes(mx.zeros((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    x = array_argument("swapaxes", a)
    ndim = x.node.ndim
    first, second = axis_of("swapaxes", axis1, ndim), axis_of("swapaxes", axis2, ndim)
    order = list(range(ndim))
    order[first], order[second] = second, first
    return _permuted(x, tuple(order))


@replayed
def moveaxis(
    a: Array,
    /,
    source: int | Sequence[int],
    destination: int | Sequence[int],
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """One axis or several moved to other positions; the others keep their order.

    Args:
        source: the axis, or several.
        destination: the positions in the result.

    Raises:
        IndexError: there is no such axis.
        ValueError: an axis is repeated, or the numbers of axes and positions differ.

    >>> mx.moveaxis(mx.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = array_argument("moveaxis", a)
    ndim = x.node.ndim
    starts, ends = [[axis_of("moveaxis", one, ndim) for one in entries_of(axes)] for axes in (source, destination)]
    if len(set(starts)) != len(starts) or len(set(ends)) != len(ends) or len(starts) != len(ends):
        raise ValueError(f"[moveaxis] Axes {starts} cannot move to {ends}: name as many, and none twice.")
    order = [axis for axis in range(ndim) if axis not in starts]
    for end, start in sorted(zip(ends, starts, strict=True)):
        order.insert(end, start)
    return _permuted(x, tuple(order))


@replayed
def squeeze(a: Array, /, axis: int | Sequence[int] | None = None, *, stream: StreamOrDevice = None) -> Array:
    """The array without axes of extent 1.

    Args:
        axis: an axis or several; None for all of extent 1.

    Raises:
        ValueError: the extent of an axis is not 1.

    >>> mx.squeeze(mx.zeros((1, 3, 1)), 0).shape
    (3, 1)
    """
    x = array_argument("squeeze", a)
    shape = x.node.shape
    if axis is None:
        axes = tuple([number for number, extent in enumerate(shape) if decide_equal(extent, 1)])
    else:
        axes = axes_of("squeeze", axis, len(shape))
    return p.squeeze(x, axes=axes) if axes else fresh(x)


@replayed
def expand_dims(a: Array, /, axis: int | Sequence[int], *, stream: StreamOrDevice = None) -> Array:
    """The array with new axes of extent 1.

    Args:
        axis: their positions in the result.

    >>> mx.expand_dims(mx.zeros((2, 3)), (0, -1)).shape
    (1, 2, 3, 1)
    """
    x = array_argument("expand_dims", a)
    added = len(entries_of(axis))
    if axis is None:
        raise ArgumentTypeError("[expand_dims] axis must be an int or a sequence of ints; got None.")
    axes = axes_of("expand_dims", axis, x.node.ndim + added)
    return p.expand(x, axes=axes) if axes else fresh(x)


@replayed
def broadcast_to(a: Any, /, shape: int | Sequence[int], *, stream: StreamOrDevice = None) -> Array:
    """The array repeated to ``shape`` without copying: axes of extent 1 and missing axes in front are repeated.

    Raises:
        ValueError: the shapes do not fit together.

    >>> mx.broadcast_to(mx.array([1, 2]), (2, 2))
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x = array_argument("broadcast_to", a)
    wanted = checked_extents("broadcast_to", shape_of("broadcast_to", shape))
    source = x.node.shape
    if len(source) > len(wanted) or not agree(broadcasted_shape("broadcast_to", (source, wanted)), wanted):
        raise ValueError(f"[broadcast_to] Shape {shape_text(source)} cannot be broadcast to {shape_text(wanted)}.")
    return broadcast_anew(x, wanted)


@replayed
def broadcast_arrays(*arrays: Array, stream: StreamOrDevice = None) -> list[Array]:
    """All arrays repeated to their common shape.

    >>> [x.shape for x in mx.broadcast_arrays(mx.zeros((3, 1)), mx.zeros(4))]
    [(3, 4), (3, 4)]
    """
    operands = [array_argument("broadcast_arrays", one, f"argument {n}") for n, one in enumerate(arrays, 1)]
    shape = broadcasted_shape("broadcast_arrays", [x.node.shape for x in operands])
    return [broadcast_anew(x, shape) for x in operands]


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to.

    >>> mx.broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    if not shapes:
        raise ValueError("[broadcast_shapes] At least one shape is needed.")
    return broadcasted_shape("broadcast_shapes", [shape_of("broadcast_shapes", shape) for shape in shapes])


def _with_axes(name: str, arrays: Sequence[Any], new_axes: Sequence[tuple[int, ...]]) -> Any:
    """The arrays with new axes, which ``new_axes`` lists for each number of dimensions: one result for one array, else
    a list."""
    results = []
    for array in arrays:
        x = array_argument(name, array)
        axes = new_axes[x.node.ndim] if x.node.ndim < len(new_axes) else ()
        results.append(p.expand(x, axes=axes) if axes else fresh(x))
    return results[0] if len(results) == 1 else results


@replayed
def atleast_1d(*arys: Array, stream: StreamOrDevice = None) -> Array | list[Array]:
    """Arrays with at least one dimension: one result for one array, else a list.

    >>> mx.atleast_1d(mx.array(3))
    array([3], dtype=int32)
    """
    return _with_axes("atleast_1d", arys, [(0,)])


@replayed
def atleast_2d(*arys: Array, stream: StreamOrDevice = None) -> Array | list[Array]:
    """Arrays with at least two dimensions, vectors as rows: one result for one array, else a list.

    >>> mx.atleast_2d(mx.array([1, 2])).shape
    (1, 2)
    """
    return _with_axes("atleast_2d", arys, [(0, 1), (0,)])


@replayed
def atleast_3d(*arys: Array, stream: StreamOrDevice = None) -> Array | list[Array]:
    """Arrays with at least three dimensions: ``(n,)`` becomes ``(1, n, 1)``, ``(m, n)`` becomes ``(m, n, 1)``.

    >>> mx.atleast_3d(mx.array([1, 2])).shape
    (1, 2, 1)
    """
    return _with_axes("atleast_3d", arys, [(0, 1, 2), (0, 2), (2,)])
