"""Elements added around an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of, shown
from weft.graph.extents import AnyExtent, agree, largest
from weft.ops.arguments import (
    Array,
    array_argument,
    array_of,
    dimensions_text,
    entries_of,
    extent_constant,
    fresh,
    integer_of,
    shape_text,
    to_dtype,
)
from weft.ops.convert import python_scalar
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["pad"]

Widths = list[tuple[int, int]]
Source = Callable[[Array, AnyExtent], Array]


@replayed
def pad(
    a: Array,
    pad_width: int | Sequence[Any],
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant",
    constant_values: Any = 0,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The array with elements added at both ends of its axes.

    Args:
        pad_width: ``n`` or ``(n,)`` for both ends of every axis, ``(before, after)`` for every axis, or one such pair
            per axis.
        mode: the new elements: ``"constant"``; ``"edge"``, the nearest element; ``"reflect"`` or ``"symmetric"``, the
            mirrored array, without or with the element at the edge.
        constant_values: a number or a 0-d array, for ``"constant"``.

    Raises:
        ValueError: a negative width, too many widths, an unknown mode, or an axis without elements that could be
            repeated.

    >>> mx.pad(mx.array([1, 2, 3]), (1, 2))
    array([0, 1, 2, 3, 0, 0], dtype=int32)
    >>> mx.pad(mx.array([1, 2, 3]), (2, 1), mode="reflect")
    array([3, 2, 1, 2, 3, 2], dtype=int32)
    """
    x = array_argument("pad", a)
    widths = _widths(pad_width, x.node.ndim)
    if one_of("pad", "mode", mode, ("constant", "edge", *_SOURCES)) == "constant":
        return _with_constant(x, widths, constant_values)
    for axis, (before, behind) in enumerate(widths):
        if before or behind:
            x = _with_own_elements(x, axis, before, behind, mode)
    return fresh(x)


def _widths(pad_width: Any, ndim: int) -> Widths:
    """One pair per axis."""
    given = entries_of(pad_width)
    if given and isinstance(given[0], (list, tuple)):
        pairs = [_pair(one) for one in given]
    else:
        pairs = [_pair(given)] if given else []
    if len(pairs) == 1:
        pairs = pairs * ndim
    if len(pairs) != ndim:
        raise ValueError(f"[pad] {len(pairs)} pairs of widths are given for an array with {dimensions_text(ndim)}.")
    for axis, (before, behind) in enumerate(pairs):
        if before < 0 or behind < 0:
            raise ValueError(f"[pad] Widths cannot be negative; got {(before, behind)} for axis {axis}.")
    return pairs


def _pair(widths: Any) -> tuple[int, int]:
    if isinstance(widths, (list, tuple)) and len(widths) in (1, 2):
        before, behind = integer_of("pad", "A width", widths[0]), integer_of("pad", "A width", widths[-1])
        return before, behind
    raise ValueError(f"[pad] Widths are one int or two, for all axes or for each; got {shown(widths)}.")


def _with_constant(x: Array, widths: Widths, constant: Any) -> Array:
    dtype = x.node.dtype
    scalar = python_scalar(constant)
    if scalar is not None and not (isinstance(scalar, complex) and not dtype.is_complex):
        value = array_of("pad", "constant_values", scalar, dtype)
    else:
        value = to_dtype(array_argument("pad", constant, "constant_values"), dtype)
    if value.node.shape:
        raise ValueError(
            f"[pad] constant_values must be one number; got an array of shape {shape_text(value.node.shape)}."
        )
    if not any(before or behind for before, behind in widths):
        return fresh(x)
    low = tuple([before for before, _ in widths])
    high = tuple([behind for _, behind in widths])
    return p.pad(x, value, low=low, high=high)


def _with_own_elements(x: Array, axis: int, before: int, behind: int, mode: str) -> Array:
    shape = x.node.shape
    extent = shape[axis]
    if agree(extent, 0):
        raise ValueError(
            f"[pad] Axis {axis} of shape {shape_text(shape)} has no elements that mode {mode!r} could repeat."
        )
    if mode == "edge":
        first, last = _repeated(x, axis, 0, before), _repeated(x, axis, extent - 1, behind)
    else:
        source = _SOURCES[mode]
        first, last = _mirrored(x, axis, -before, before, source), _mirrored(x, axis, extent, behind, source)
    return p.concatenate(*first, x, *last, axis=axis)


def _repeated(x: Array, axis: int, start: AnyExtent, count: int) -> list[Array]:
    """``count`` times the elements at ``start`` along an axis, as one array or none."""
    if not count:
        return []
    shape = x.node.shape
    starts = tuple([start if a == axis else 0 for a in range(len(shape))])
    one, several = [(*shape[:axis], size, *shape[axis + 1 :]) for size in (1, count)]
    edge = p.slice_(x, starts=starts, sizes=one, steps=(1,) * len(shape))
    return [p.broadcast(edge, shape=several)]


def _mirrored(x: Array, axis: int, start: AnyExtent, count: int, source: Source) -> list[Array]:
    """``count`` elements from ``start`` on, outside of the axis, of the array mirrored as often as necessary: as one
    array or none."""
    if not count:
        return []
    shape = x.node.shape
    index = p.iota(shape=(count,), axis=0, dtype=dtypes.int32)
    position = source(p.add(index, extent_constant(start, dtypes.int32)), shape[axis])
    found = p.gather(x, position, axes=(axis,), slice_sizes=(*shape[:axis], 1, *shape[axis + 1 :]))
    return [p.move_axis(p.squeeze(found, axes=(axis + 1,)), 0, axis)]


def _without_edge(position: Array, extent: AnyExtent) -> Array:
    """0 1 2 1 0 1 2 ...: mirrored, with edges once."""
    period = extent_constant(largest(2 * extent - 2, 1), dtypes.int32)
    phase = p.remainder(position, period)
    return p.minimum(phase, p.subtract(period, phase))


def _with_edge(position: Array, extent: AnyExtent) -> Array:
    """0 1 2 2 1 0 0 1 ...: mirrored, with edges twice."""
    period = extent_constant(2 * extent, dtypes.int32)
    last = extent_constant(2 * extent - 1, dtypes.int32)
    phase = p.remainder(position, period)
    return p.minimum(phase, p.subtract(last, phase))


_SOURCES = {"reflect": _without_edge, "symmetric": _with_edge}
