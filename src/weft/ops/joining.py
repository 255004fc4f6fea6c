"""Functions that join, split and repeat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import shown
from weft.dtypes import promote
from weft.errors import ArgumentTypeError
from weft.graph.extents import AnyExtent, agree, derived, fixed, identical, largest, named, smallest, value_of
from weft.graph.node import Handle, Shape
from weft.ops.arguments import (
    Array,
    array_argument,
    as_sequence,
    axes_of,
    axis_of,
    count_of,
    entries_of,
    fresh,
    integer_of,
    promoted,
    refuse_traced,
    shape_text,
    to_dtype,
)
from weft.ops.entrance import on_stream
from weft.ops.indexing import take
from weft.ops.replays import replayed
from weft.ops.scans import cumsum
from weft.runtime.devices import StreamOrDevice

__all__ = ["concat", "concatenate", "diff", "flip", "repeat", "roll", "split", "stack", "tile", "unstack"]


def part(x: Array, axis: int, start: AnyExtent, size: AnyExtent, step: int = 1) -> Array:
    """``size`` elements along one axis, and all elements along the others."""
    shape = x.node.shape
    return p.slice_(
        x,
        starts=tuple([start if one == axis else 0 for one in range(len(shape))]),
        sizes=(*shape[:axis], size, *shape[axis + 1 :]),
        steps=tuple([step if one == axis else 1 for one in range(len(shape))]),
    )


def _operands(name: str, arrays: Any, axis: Any) -> list[Array]:
    """A non-empty list of arrays converted to one dtype. An array is taken as the list of its rows."""
    if isinstance(arrays, Handle) and isinstance(axis, Handle):
        raise ArgumentTypeError(f"[{name}] The arrays are one argument: write [a, b].")
    if isinstance(arrays, Handle) and arrays.node.ndim:
        arrays = unstack(arrays)
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentTypeError(f"[{name}] takes a list of arrays; got {shown(arrays)}.")
    if not arrays:
        raise ValueError(f"[{name}] The list of arrays is empty.")
    operands = [array_argument(name, one, f"array {n}") for n, one in enumerate(arrays)]
    dtype = operands[0].node.dtype
    for x in operands[1:]:
        dtype = promote(dtype, x.node.dtype)
    return [to_dtype(x, dtype) for x in operands]


@replayed
def concatenate(arrays: Sequence[Array], axis: int | None = 0, *, stream: StreamOrDevice = None) -> Array:
    """Arrays one after the other along an axis, promoted to one dtype.

    Args:
        arrays: their other axes have equal extents.
        axis: the axis; None flattens the arrays first.

    Raises:
        ValueError: there are no arrays, or shapes do not fit.

    >>> mx.concatenate([mx.array([1, 2]), mx.array([3])])
    array([1, 2, 3], dtype=int32)
    """
    operands = _operands("concatenate", arrays, axis)
    if axis is None:
        operands = [p.reshape(x, shape=(x.node.size,)) for x in operands]
        axis = 0
    joined = axis_of("concatenate", axis, operands[0].node.ndim)
    if len(operands) == 1:
        return fresh(operands[0])
    _check_shapes("concatenate", [x.node.shape for x in operands], joined)
    return p.concatenate(*operands, axis=joined)


def _check_shapes(name: str, shapes: Sequence[Shape], axis: int) -> None:
    first = shapes[0]
    for shape in shapes[1:]:
        others, wanted = [(*one[:axis], *one[axis + 1 :]) for one in (shape, first)]
        if len(shape) != len(first) or not agree(others, wanted):
            raise ValueError(
                f"[{name}] Shapes must be equal but for axis {axis}; "
                f"got {', '.join(shape_text(one) for one in shapes)}."
            )


concat = concatenate


@replayed
def stack(arrays: Sequence[Array], axis: int | None = 0, *, stream: StreamOrDevice = None) -> Array:
    """Arrays of one shape along a new axis, promoted to one dtype.

    Args:
        axis: the position of the new axis in the result.

    Raises:
        ValueError: there are no arrays, or their shapes differ.

    >>> mx.stack([mx.array([1, 2]), mx.array([3, 4])])
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    operands = _operands("stack", arrays, axis)
    shapes = [x.node.shape for x in operands]
    if any(not agree(shape, shapes[0]) for shape in shapes):
        raise ValueError(f"[stack] Shapes must be equal; got {', '.join(shape_text(shape) for shape in shapes)}.")
    new = axis_of("stack", 0 if axis is None else axis, len(shapes[0]) + 1)
    expanded = [p.expand(x, axes=(new,)) for x in operands]
    return expanded[0] if len(expanded) == 1 else p.concatenate(*expanded, axis=new)


@replayed
def split(
    a: Array, /, indices_or_sections: int | Sequence[int], axis: int = 0, *, stream: StreamOrDevice = None
) -> list[Array]:
    """The parts of an array along an axis.

    Args:
        indices_or_sections: the number of parts of equal size; or the index where each part but the first begins.
        axis: the axis.

    Raises:
        ValueError: the extent of the axis is no multiple of the number of parts.

    >>> mx.split(mx.arange(5), [2, 4])
    [array([0, 1], dtype=int32), array([2, 3], dtype=int32), array([4], dtype=int32)]
    """
    x = array_argument("split", a)
    along = axis_of("split", axis, x.node.ndim)
    extent = x.node.shape[along]
    indices = as_sequence(indices_or_sections)
    if indices is not None:
        bounds = [0, *[_bound(integer_of("split", "An index", one), extent) for one in indices], extent]
        sizes = [largest(end - start, 0) for start, end in pairwise(bounds)]
        starts = bounds[:-1]
    else:
        sections = integer_of("split", "indices_or_sections", indices_or_sections)
        if sections <= 0:
            raise ValueError(f"[split] The number of parts must be positive; got {sections}.")
        if value_of(extent) % sections:
            raise ValueError(
                f"[split] Axis {along} of shape {shape_text(x.node.shape)} does not divide into {sections} equal parts."
            )
        size = derived(_equal_part, extent, sections)
        sizes = [size] * sections
        starts = [size * n for n in range(sections)]
    return [part(x, along, start, size) for start, size in zip(starts, sizes, strict=True)]


@named
def _equal_part(extent: int, sections: int) -> int:
    if extent % sections:
        raise ValueError(f"[split] {extent} elements do not divide into {sections} equal parts.")
    return extent // sections


def _bound(index: int, extent: AnyExtent) -> AnyExtent:
    """The start of a slice at ``index``, counted from the front and limited to the axis."""
    if index < 0:
        index = index + extent
    return smallest(largest(index, 0), extent)


@replayed
def unstack(x: Array, /, *, axis: int = 0, stream: StreamOrDevice = None) -> tuple[Array, ...]:
    """A tuple of the entries along an axis.

    Args:
        axis: the axis, which the results do not have.

    >>> mx.unstack(mx.array([[1, 2], [3, 4]]))
    (array([1, 2], dtype=int32), array([3, 4], dtype=int32))
    """
    a = array_argument("unstack", x, "x")
    along = axis_of("unstack", axis, a.node.ndim)
    extent = fixed(a.node.shape[along])
    return tuple([p.squeeze(part(a, along, n, 1), axes=(along,)) for n in range(extent)])


@on_stream
def repeat(array: Array, repeats: int | Array, axis: int | None = None, *, stream: StreamOrDevice = None) -> Array:
    """Each element, or each slice along an axis, repeated.

    Args:
        repeats: how often; or an array of integers, one for each element along the axis. It is evaluated, because the
            shape of the result depends on its values.
        axis: the axis; None repeats the elements of the flattened array.

    Raises:
        ValueError: ``repeats`` is negative, or an array with another number of elements than the axis.
        TraceError: ``repeats`` is an array of a function that is being transformed or compiled.

    >>> mx.repeat(mx.array([1, 2]), 2)
    array([1, 1, 2, 2], dtype=int32)
    >>> mx.repeat(mx.array([1, 2, 3]), mx.array([0, 1, 2]))
    array([2, 3, 3], dtype=int32)
    """
    if isinstance(repeats, Handle) and repeats.node.ndim:
        x, along = _rows_to_repeat(array, axis)
        return _repeated_each(x, repeats, along)
    return _repeated(array, repeats, axis)


def _rows_to_repeat(array: Any, axis: Any) -> tuple[Array, int]:
    """An array and its axis along which elements are repeated; for None, the flattened array."""
    x = array_argument("repeat", array, "array")
    if axis is None:
        return p.reshape(x, shape=(x.node.size,)), 0
    return x, axis_of("repeat", axis, x.node.ndim)


@replayed
def _repeated(array: Any, repeats: Any, axis: Any) -> Array:
    """`repeat` with one number for all elements."""
    x, along = _rows_to_repeat(array, axis)
    times = count_of("repeat", "repeats", repeats)
    shape = x.node.shape
    each = p.expand(x, axes=(along + 1,))
    spread = p.broadcast(each, shape=(*shape[: along + 1], times, *shape[along + 1 :]))
    return p.reshape(spread, shape=(*shape[:along], shape[along] * times, *shape[along + 1 :]))


def _repeated_each(x: Array, repeats: Array, axis: int) -> Array:
    """The elements along an axis, each as often as an array of one dimension says."""
    if not repeats.node.dtype.is_integer:
        raise ArgumentTypeError(f"[repeat] repeats must be integers, not {repeats.node.dtype.name}.")
    extent = fixed(x.node.shape[axis])
    if repeats.node.ndim != 1 or not (agree(repeats.node.size, extent) or agree(repeats.node.size, 1)):
        raise ValueError(
            f"[repeat] repeats must be an int or an array of shape {shape_text((extent,))}; it has the shape "
            f"{shape_text(repeats.node.shape)}."
        )
    refuse_traced(repeats, "repeat", "Use mx.take with indices that have the shape of the result.")
    counts = p.broadcast(to_dtype(repeats, dtypes.int64), shape=(extent,))
    lowest = p.min_(counts, axes=(0,)).item() if extent else 0
    if lowest < 0:
        raise ValueError(f"[repeat] repeats cannot be negative; got {lowest}.")
    ends = cumsum(counts)
    size = ends[-1].item() if extent else 0
    return take(x, p.searchsorted(ends, p.iota(shape=(size,), axis=0, dtype=dtypes.int64), right=True), axis)


@replayed
def tile(a: Array, reps: int | Sequence[int], /, *, stream: StreamOrDevice = None) -> Array:
    """The whole array several times along each axis.

    Args:
        reps: how often, for each of the last axes; more numbers than dimensions add axes in front.

    >>> mx.tile(mx.array([1, 2]), (2, 2))
    array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    x = array_argument("tile", a)
    counts = [count_of("tile", "reps", one) for one in entries_of(reps)]
    shape = x.node.shape
    ndim = max(len(counts), len(shape))
    extents = (*([1] * (ndim - len(shape))), *shape)
    counts = [1] * (ndim - len(counts)) + counts
    if ndim == 0:
        return fresh(x)
    rows = p.reshape(x, shape=tuple([n for extent in extents for n in (1, extent)]))
    pairs = tuple([n for pair in zip(counts, extents, strict=True) for n in pair])
    spread = p.broadcast(rows, shape=pairs)
    return p.reshape(spread, shape=tuple([n * m for n, m in zip(counts, extents, strict=True)]))


@replayed
def roll(
    a: Array,
    shift: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The elements moved along axes; those that leave at the end come back at the beginning.

    Args:
        shift: how far; several for several axes.
        axis: along which axes; None moves the elements of the flattened array.

    >>> mx.roll(mx.array([1, 2, 3]), 1)
    array([3, 1, 2], dtype=int32)
    """
    x = array_argument("roll", a)
    shifts = [integer_of("roll", "shift", one) for one in entries_of(shift)]
    shape = x.node.shape
    if axis is None:
        total = 0
        for one in shifts:
            total += one
        if len(shape) == 1:
            return fresh(_rolled(x, total, 0))
        flat = p.reshape(x, shape=(x.node.size,))
        return p.reshape(_rolled(flat, total, 0), shape=shape)
    axes = [axis_of("roll", one, len(shape)) for one in entries_of(axis)]
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    elif len(axes) == 1:
        axes = axes * len(shifts)
    if len(shifts) != len(axes):
        raise ValueError(f"[roll] {len(shifts)} shifts are given for {len(axes)} axes.")
    for distance, along in zip(shifts, axes, strict=True):
        x = _rolled(x, distance, along)
    return fresh(x)


def _rolled(x: Array, distance: int, axis: int) -> Array:
    extent = x.node.shape[axis]
    start = derived(_wrapped, distance, extent)
    end = extent - start
    return p.concatenate(part(x, axis, end, start), part(x, axis, 0, end), axis=axis)


@named
def _wrapped(distance: int, extent: int) -> int:
    return distance % extent if extent else 0


@replayed
def flip(a: Array, /, axis: int | Sequence[int] | None = None, *, stream: StreamOrDevice = None) -> Array:
    """The elements along axes in the opposite order.

    Args:
        axis: an axis, several, or None for all.

    >>> mx.flip(mx.array([[1, 2], [3, 4]]), 1)
    array([[2, 1],
           [4, 3]], dtype=int32)
    """
    x = array_argument("flip", a)
    shape = x.node.shape
    axes = axes_of("flip", axis, len(shape))
    if not axes or identical(x.node.size, 0):
        return fresh(x)
    return p.slice_(
        x,
        starts=tuple([largest(extent - 1, 0) if one in axes else 0 for one, extent in enumerate(shape)]),
        sizes=shape,
        steps=tuple([-1 if one in axes else 1 for one in range(len(shape))]),
    )


@replayed
def diff(
    a: Array,
    /,
    n: int = 1,
    axis: int = -1,
    *,
    prepend: Array | None = None,
    append: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The differences of neighbouring elements along an axis, taken ``n`` times; for booleans, whether they differ.

    ``prepend`` and ``append`` are first added before and after the array along the axis.

    Args:
        n: how often differences are taken.
        axis: the axis.

    >>> mx.diff(mx.array([1, 4, 9]))
    array([3, 5], dtype=int32)
    """
    x = array_argument("diff", a)
    along = axis_of("diff", axis, x.node.ndim)
    words = (("prepend", prepend), ("a", x), ("append", append))
    given = [(word, one) for word, one in words if one is not None]
    parts = promoted("diff", [one for _, one in given], words=[word for word, _ in given])
    _check_shapes("diff", [part.node.shape for part in parts], along)
    x = p.concatenate(*parts, axis=along) if len(parts) > 1 else x
    subtract = p.not_equal if x.node.dtype.is_bool else p.subtract
    for _ in range(count_of("diff", "n", n)):
        extent = x.node.shape[along]
        rest = largest(extent - 1, 0)
        start = extent - rest
        x = subtract(part(x, along, start, rest), part(x, along, 0, rest))
    return fresh(x)
