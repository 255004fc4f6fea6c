"""Ints and slices as indices along one axis: converted to count from the start, and checked against the extent."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from weft.checks import plain_int, shortened, shown
from weft.graph.extents import AnyExtent, agree, decide, derived, fixed, named
from weft.graph.node import Handle, Shape
from weft.graph.shown import Extent
from weft.graph.symbolic import AmbiguousExtentError, SymbolicExtent
from weft.ops.arguments import Array, shape_text

__all__ = ["checked_index", "from_front", "inside", "need_elements", "strided_range"]


def from_front(index: Any, extent: AnyExtent) -> AnyExtent:
    """An index counted from the start; a negative one that is not symbolic may be returned unchanged."""
    return derived(_from_front, index, extent) if type(index) is SymbolicExtent else index


@named
def _from_front(index: int, extent: int) -> int:
    return index + extent if index < 0 else index


def checked_index(index: AnyExtent, extent: AnyExtent, axis: int, shape: Shape) -> AnyExtent:
    found = inside(index, extent)
    if found is None:
        raise IndexError(
            f"Index {shortened(index)} is out of range for axis {axis}, which has {extent} elements "
            f"(shape {shape_text(shape)})."
        )
    return found


def need_elements(name: str, shape: Shape, axes: Sequence[int], index: Array) -> None:
    """Raise if an array of indices would select from axes without elements."""
    for axis in axes:
        if agree(shape[axis], 0) and not agree(index.node.size, 0):
            raise ValueError(
                f"[{name}] Axis {axis} of shape {shape_text(shape)} has no elements, but there are indices of shape "
                f"{shape_text(index.node.shape)} along it."
            )


def inside(index: AnyExtent, extent: AnyExtent) -> AnyExtent | None:
    """``index`` counted from the start, or None if it is out of range. The result is recorded as a decision."""
    try:
        found = index + extent if index < 0 else index
        return found if 0 <= found < extent else None
    except AmbiguousExtentError:
        found = index + extent if decide(operator.lt, index, 0) else index
        return found if decide(operator.ge, found, 0) and decide(operator.gt, extent, found) else None


_LONGEST_STEP = 2**48
"""No two elements in memory are farther apart. Larger numbers overflow where strides are counted in bytes."""


def strided_range(part: slice, extent: Any) -> tuple[AnyExtent, AnyExtent, AnyExtent]:
    """Start, number of elements and step of a slice of ``extent`` elements."""
    start, stop, step = (_bound(bound) for bound in (part.start, part.stop, part.step))
    step = 1 if step is None else max(-_LONGEST_STEP, min(fixed(step), _LONGEST_STEP))
    if step == 0:
        raise ValueError("A slice cannot have a step of 0.")
    if SymbolicExtent in (type(extent), type(start), type(stop)):
        return derived(_start_of, extent, start, stop, step), derived(_size_of, extent, start, stop, step), step
    indices = range(extent)[start:stop:step]
    return (indices.start, len(indices), step) if indices else (0, 0, 1)


@named
def _start_of(extent: int, start: int | None, stop: int | None, step: int) -> int:
    indices = range(extent)[start:stop:step]
    return indices.start if indices else 0


@named
def _size_of(extent: int, start: int | None, stop: int | None, step: int) -> int:
    return len(range(extent)[start:stop:step])


def _bound(bound: Any) -> Any:
    if bound is None:
        return None
    if isinstance(bound, Extent):
        return bound.symbolic
    is_array = isinstance(bound, Handle)
    if not hasattr(bound, "__index__") or (is_array and (bound.node.shape or not bound.node.dtype.is_integer)):
        raise ValueError(f"The bounds of a slice are ints, 0-d arrays of ints or None, not {shown(bound)}.")
    return plain_int(bound)
