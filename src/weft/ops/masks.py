"""Masks, which are boolean arrays in an index. How many elements they select depends on their values.

For reading, a mask is evaluated and replaced by the indices of its true elements. For assignment, if the rest of
the index selects everything, the mask decides for every element of the array which value it gets, so that the mask may
be traced.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.compiler.running.evaluate import evaluate
from weft.graph.extents import AnyExtent, agree, decide, decide_equal, identical, smallest
from weft.graph.node import Handle, Shape
from weft.graph.tracing import trace_of
from weft.ops.arguments import Array, broadcast, broadcasted_shape, shape_text
from weft.ops.convert import as_array
from weft.ops.sets import nonzero
from weft.runtime.interchange import scalar

__all__ = ["NO_SHAPE", "broadcast_update", "has_mask", "lone_mask", "masked", "with_lists_as_masks", "without_masks"]

NO_SHAPE = (
    "Booleans as an index select a number of elements that depends on their values, so the result has no shape before "
    "it is computed. Use mx.where(mask, a, other). Assignment works with a mask that stands alone: a[mask] = value, "
    "a[:, mask] = value."
)


def has_mask(index: Any) -> builtins.bool:
    return builtins.any(map(_is_mask, index)) if isinstance(index, tuple) else _is_mask(index)


def with_lists_as_masks(index: Any) -> Any:
    """The index with arrays in place of lists that begin with a boolean."""
    if isinstance(index, tuple):
        return tuple([with_lists_as_masks(item) for item in index])
    return as_array(index) if isinstance(index, list) and _is_mask(index) else index


def without_masks(index: Any, shape: Shape) -> Any:
    """The index with the indices of a mask's true elements in place of the mask."""
    entries: list[Any] = []
    axis = 0
    items = index if isinstance(index, tuple) else (index,)
    for position, item in enumerate(items):
        if not _is_mask(item):
            entries.append(item)
            axis += item is not None and item is not Ellipsis
            if item is Ellipsis:
                axis = len(shape) - builtins.sum([_axes_of(one) for one in items[position + 1 :]])
            continue
        mask = as_array(item)
        ndim = mask.node.ndim
        if not ndim or trace_of(mask.node) is not None:
            raise ValueError(NO_SHAPE)
        if len(shape) < axis + ndim or not all(map(agree, mask.node.shape, shape[axis : axis + ndim])):
            raise IndexError(
                f"A mask of shape {shape_text(mask.node.shape)} does not fit axes {axis} to {axis + ndim - 1} of an "
                f"array of shape {shape_text(shape)}."
            )
        entries += nonzero(mask)
        axis += ndim
    return tuple(entries)


def _is_mask(item: Any) -> builtins.bool:
    if isinstance(item, Handle):
        return item.node.dtype.is_bool
    if isinstance(item, list):
        return isinstance(_first(item), (builtins.bool, np.bool_))
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _first(values: Any) -> Any:
    """The first number in nested lists."""
    while isinstance(values, list):
        values = values[0] if values else None
    return values


def _axes_of(item: Any) -> int:
    """The number of axes that an entry of an index selects from."""
    if _is_mask(item):
        return int(item.ndim)
    return int(item is not None)


def lone_mask(index: Any, shape: Shape) -> tuple[Array, int] | None:
    """The only mask of an index that otherwise selects everything, and its first axis; None for any other index."""
    if not isinstance(index, tuple):
        mask = _mask(index)
        return None if mask is None else (mask, 0)
    positions = [position for position, item in enumerate(index) if _is_mask(item)]
    rest = [item for item in index if item is Ellipsis or (isinstance(item, slice) and item == slice(None))]
    if len(positions) != 1 or len(rest) != len(index) - 1:
        return None
    (position,) = positions
    mask = as_array(index[position])
    ellipses = sum(item is Ellipsis for item in rest)
    if not mask.node.ndim or ellipses > 1 or mask.node.ndim + len(rest) - ellipses > len(shape):
        return None
    behind = index[position + 1 :]
    is_from_end = ellipses > 0 and not builtins.any(item is Ellipsis for item in behind)
    return mask, len(shape) - len(behind) - mask.node.ndim if is_from_end else position


def _mask(index: Any) -> Array | None:
    """The index as an array of booleans, if it is one."""
    if isinstance(index, (builtins.bool, np.bool_)):
        return as_array(bool(index))
    if isinstance(index, list) and isinstance(_first(index), builtins.bool):
        index = as_array(index)
    if isinstance(index, np.ndarray) and index.dtype == np.bool_:
        index = as_array(index)
    return index if isinstance(index, Handle) and index.node.dtype.is_bool else None


def masked(x: Array, mask: Array, axis: int, new: Array, mode: str, name: str) -> Array:
    """``x`` with ``new`` where ``mask`` is true; ``axis`` of ``x`` is the first axis of the mask.

    ``new`` is broadcast to what the mask selects, which has one axis in place of the mask's axes.
    """
    ndim, covered = x.node.ndim, mask.node.ndim
    selected = ndim - covered + 1
    extra = new.node.ndim - selected
    if extra > 0 and all(agree(extent, 1) for extent in new.node.shape[:extra]):
        new = p.squeeze(new, axes=tuple(range(extra)))
    if new.node.ndim <= selected and (axis or extra > 0):
        new = p.expand(new, axes=tuple(range(selected - new.node.ndim)))
        new = p.transpose(new, axes=(axis, *range(axis), *range(axis + 1, selected)))
        if agree(new.node.shape[0], 1):
            new = p.squeeze(new, axes=(0,))
    if not axis:
        return _masked_in_front(x, mask, new, mode, name)
    order = (*range(axis, axis + covered), *range(axis), *range(axis + covered, ndim))
    return p.transpose(_masked_in_front(p.transpose(x, axes=order), mask, new, mode, name), axes=p.inverse(order))


def _masked_in_front(x: Array, mask: Array, new: Array, mode: str, name: str) -> Array:
    """``x`` with ``new`` where ``mask`` is true; the axes of the mask are the first axes of ``x``.

    Each true element of the mask gets all of ``new``; or, if ``new`` has one axis more, the next row of it.
    """
    shape, covered = x.node.shape, mask.node.ndim
    if not decide_equal(mask.node.shape, shape[:covered]):
        raise ValueError(
            f"[{name}] A mask of shape {shape_text(mask.node.shape)} does not fit an array of shape "
            f"{shape_text(shape)}: its axes must be those of the array that it stands for."
        )
    rest = shape[covered:]
    spread_mask = broadcast(p.expand(mask, axes=tuple(range(covered, len(shape)))), shape)
    if new.node.ndim == len(rest) + 1:
        new = _rows_in_order(mask, broadcast_update(new, (new.node.shape[0], *rest), name))
    else:
        new = broadcast(broadcast_update(new, rest, name), shape)
    combine = p.COMBINE[mode]
    return p.select(spread_mask, new if combine is None else combine(x, new), x)


def _rows_in_order(mask: Array, rows: Array) -> Array:
    """For each element of ``mask`` its row: the first row for the first true element, and so on."""
    count, *rest = rows.node.shape
    flat = p.cast(p.reshape(mask, shape=(mask.node.size,)), dtype=dtypes.int32)
    _check_count(flat, count)
    # At least one row, so that indices are valid even if no element needs a row.
    missing = (1 - smallest(count, 1), *[0] * len(rest))
    rows = p.pad(rows, p.zeros((), rows.node.dtype), low=(0,) * rows.node.ndim, high=missing)
    index = p.reshape(p.cumsum(flat, axis=0, reverse=False, inclusive=True), shape=mask.node.shape) - 1
    index = p.maximum(index, 0)
    taken = p.gather(rows, index, axes=(0,), slice_sizes=(1, *rest))
    return p.squeeze(taken, axes=(mask.node.ndim,))


def _check_count(flat: Array, count: AnyExtent) -> None:
    """Raise if there are fewer than ``count`` rows for the true elements of a mask, unless the mask is traced."""
    if trace_of(flat.node) is not None:
        return
    total = p.sum(flat, axes=(0,)).node
    evaluate([total])
    assert total.value is not None
    wanted = scalar(total.value, total.dtype)
    if decide(operator.gt, wanted, count):
        raise ValueError(f"[setitem] The mask holds in {wanted} places, but there are only {count} values to assign.")


def broadcast_update(new: Array, shape: Shape, name: str) -> Array:
    """``new`` broadcast to ``shape``; surplus axes of extent 1 in front are dropped."""
    found = new.node.shape
    if not found or identical(found, shape):
        return broadcast(new, shape)
    extra = len(found) - len(shape)
    if extra > 0 and all(agree(extent, 1) for extent in found[:extra]):
        new = p.squeeze(new, axes=tuple(range(extra)))
    if new.node.ndim > len(shape) or not agree(broadcasted_shape(name, [new.node.shape, shape]), shape):
        raise ValueError(
            f"[{name}] Cannot broadcast an array of shape {shape_text(found)} to shape {shape_text(shape)}."
        )
    return broadcast(new, shape)
