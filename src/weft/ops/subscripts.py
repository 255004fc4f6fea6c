"""What ``a[index]`` selects, for reading and for writing.

An index is taken apart into a strided part of the array (ints and slices) and indices within that part,
which arrays give. Reading is a slice, a gather and a few views; writing goes the same way back.
"""

from __future__ import annotations

import builtins
import math
import operator
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import plain_int, shown
from weft.compiler.evaluate import evaluate
from weft.graph.extents import AnyExtent, agree, decide, decide_equal, smallest
from weft.graph.node import Handle, Node, Shape
from weft.graph.shown import Extent
from weft.graph.tracing import trace_of
from weft.ops.arguments import Array, array_of, broadcast, broadcasted_shape, shape_text, to_dtype
from weft.ops.axis_index import checked_index, from_front, need_elements, strided_range
from weft.ops.convert import as_array, python_scalar
from weft.ops.sets import nonzero
from weft.runtime.devices import current_stream
from weft.runtime.interchange import scalar

__all__ = ["Subscript", "divided", "getitem", "setitem", "update"]

_EVERYTHING = slice(None)
_PLAIN_BOUNDS = {int, type(None)}
_NO_SHAPE = (
    "Booleans as an index select a number of elements that depends on their values, so the result has no shape before "
    "it is computed. Use mx.where(mask, a, other). Assignment works: a[mask] = value, with the mask as the only index."
)
_NAMED = -1
"""Stands for an axis that an int or an array names."""
_APART = -2
"""Stands for an ellipsis: arrays on both sides of it are not neighbours, even if it stands for no axis."""


def getitem(x: Array, index: Any) -> Array:
    """``x[index]``, by the rules of NumPy.

    The shape of what a mask selects depends on its values, so masks are evaluated, and refused where they are traced.

    Raises:
        IndexError: an int is out of range, there are more of them than axes, or a mask has another shape.
        ValueError: the index is of another type, or a mask is traced.
    """
    node = x.node
    items = index if type(index) is tuple else (index,)
    for common in (_entry_or_column, _neighbours):
        found = common(node, items)
        if found is not None:
            return found
    if _has_mask(index):
        index = _with_lists_as_masks(index)
        if not isinstance(index, tuple) and not index.ndim:  # a mask without axes selects the whole array or nothing
            return getitem(p.expand(x, axes=(0,)), as_array(index)[None])
        index = _without_masks(index, node.shape)
    return Subscript(node.shape, index).read(x)


def _is_mask(item: Any) -> builtins.bool:
    if isinstance(item, Handle):
        return item.node.dtype.is_bool
    if isinstance(item, list):
        return isinstance(_first(item), (builtins.bool, np.bool_))
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _with_lists_as_masks(index: Any) -> Any:
    """The index with arrays in the place of lists that begin with a boolean."""
    if isinstance(index, tuple):
        return tuple([_with_lists_as_masks(item) for item in index])
    return as_array(index) if isinstance(index, list) and _is_mask(index) else index


def _has_mask(index: Any) -> builtins.bool:
    return builtins.any(map(_is_mask, index)) if isinstance(index, tuple) else _is_mask(index)


def _without_masks(index: Any, shape: Shape) -> Any:
    """An index in which the places where a mask is true stand instead of the mask."""
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
            raise ValueError(_NO_SHAPE)
        if len(shape) < axis + ndim or not all(map(agree, mask.node.shape, shape[axis : axis + ndim])):
            raise IndexError(
                f"A mask of shape {shape_text(mask.node.shape)} does not fit axes {axis} to {axis + ndim - 1} of an "
                f"array of shape {shape_text(shape)}."
            )
        entries += nonzero(mask)
        axis += ndim
    return tuple(entries)


def _axes_of(item: Any) -> int:
    """How many axes an entry of an index stands for."""
    if _is_mask(item):
        return int(item.ndim)
    return int(item is not None)


def _entry_or_column(node: Node, items: tuple[Any, ...]) -> Array | None:
    """What ints, and slices of everything, select; None if it takes more, or if they are not inside.

    This is common, so it skips checks that cannot fail.
    """
    shape = node.shape
    if len(items) > len(shape):
        return None
    axes, positions, rest = [], [], []
    for axis, item in enumerate(items):
        extent: Any = shape[axis]
        if type(item) is int and type(extent) is int and -extent <= item < extent:
            axes.append(axis)
            positions.append(item if item >= 0 else item + extent)
        elif type(item) is slice and item == _EVERYTHING:
            rest.append(extent)
        else:
            return None
    if not axes:
        return None
    rest += shape[len(items) :]
    params = (tuple(axes), tuple(positions))
    return p.wrap(Node(p.pick, (node,), params, tuple(rest), node.dtype, current_stream()))


def _neighbours(node: Node, items: tuple[Any, ...]) -> Array | None:
    """What slices of neighbouring elements, and an ellipsis in front of one, select; None if it takes more.

    This is common, too.
    """
    shape = node.shape
    missing = len(shape) - len(items)
    if items and items[0] is Ellipsis:
        items = (*[_EVERYTHING] * (missing + 1), *items[1:])
    starts, sizes = [0] * len(shape), list(shape)
    if len(items) > len(shape):
        return None
    is_sliced = False
    for axis, item in enumerate(items):
        if type(item) is not slice:
            return None
        if item == _EVERYTHING:
            continue
        extent: Any = shape[axis]
        if type(extent) is not int or item.step is not None or {type(item.start), type(item.stop)} - _PLAIN_BOUNDS:
            return None
        start, stop, _ = item.indices(extent)
        sizes[axis] = builtins.max(stop - start, 0)
        starts[axis] = start if sizes[axis] else 0
        is_sliced = True
    if not is_sliced:
        return None
    part = tuple(sizes)
    return p.wrap(Node(p.slice_, (node,), (tuple(starts), part, (1,) * len(part)), part, node.dtype, current_stream()))


def setitem(x: Array, index: Any, value: Any) -> Array:
    """A copy of ``x`` in which ``x[index]`` is ``value``, broadcast and converted to the dtype of ``x``."""
    return update(x, index, value, "set")


def update(x: Array, index: Any, value: Any, mode: str, name: str = "setitem") -> Array:
    """A copy of ``x`` in which ``x[index]`` is replaced by ``value`` or combined with it.

    ``mode`` is a key of `COMBINE`. An index that arrays hold several times is combined as often; where values replace,
    the last one stays. Messages speak of the function ``name``.
    """
    new = new_value(x, value, name)
    mask = _mask(index)
    if mask is not None:
        return _masked(x, mask, new, mode, name)
    return Subscript(x.node.shape, index).write(x, new, mode, name)


def new_value(x: Array, value: Any, name: str) -> Array:
    dtype = x.node.dtype
    if isinstance(value, Handle):
        return to_dtype(value, dtype)
    if isinstance(value, float) and dtype.is_integer and math.isfinite(value):
        value = int(value)
    if python_scalar(value) is not None:
        return array_of(name, "value", value, dtype)
    try:
        return as_array(value, dtype)
    except TypeError as error:
        raise TypeError(
            f"[{name}] An array cannot be assigned {shown(value)}; "
            "it takes numbers, arrays and nested lists of numbers."
        ) from error


class Subscript:
    """What an index selects of an array of ``shape``.

    ``starts``, ``sizes`` and ``steps`` give the strided part; its axes ``single``, which ints and arrays name, are not
    in the result. ``arrays``, all of one shape, hold indices along ``array_axes`` (among ``single``) of the part; their
    dimensions stand in the result behind ``before`` axes of the part. ``new_axes`` are where None stands in the result.
    """

    __slots__ = (
        "_is_sliced", "array_axes", "arrays", "before", "new_axes", "shape", "single", "sizes", "starts", "steps",
    )  # fmt: skip

    def __init__(self, shape: Shape, index: Any) -> None:
        self.shape = shape
        entries = _entries(shape, index)
        strided: list[tuple[int, int, int]] = []
        single: list[int] = []
        array_axes: list[int] = []
        self._is_sliced = False
        # The entries as the result shows them: axes, None for new axes, _NAMED and _APART.
        shown: list[int | None] = []
        for entry in entries:
            if entry is None or entry is Ellipsis:
                shown.append(None if entry is None else _APART)
                continue
            axis = len(strided)
            extent = shape[axis]
            is_slice, is_array = isinstance(entry, slice), isinstance(entry, Handle)
            if is_array or (is_slice and entry == _EVERYTHING):
                strided.append((0, extent, 1))
            else:
                strided.append(
                    strided_range(entry, extent)
                    if is_slice
                    else (checked_index(from_front(entry, extent), extent, axis, shape), 1, 1)
                )
                self._is_sliced = True
            if is_slice:
                shown.append(axis)
                continue
            single.append(axis)
            shown.append(_NAMED)
            if is_array:
                array_axes.append(axis)
        self.starts = tuple([start for start, _, _ in strided])
        self.sizes = tuple([size for _, size, _ in strided])
        self.steps = tuple([step for _, _, step in strided])
        self.single, self.array_axes = tuple(single), tuple(array_axes)
        self.arrays: list[Array] = []
        self.before = 0
        self.new_axes: tuple[int, ...] = ()
        dimensions = 0
        if array_axes:
            arrays = [entry for entry in entries if isinstance(entry, Handle)]
            joint = broadcasted_shape("getitem", [array.node.shape for array in arrays])
            self.arrays = [broadcast(array, joint) for array in arrays]
            dimensions = len(joint)
        if array_axes or None in shown:
            self._arrange(shown, dimensions)

    def _arrange(self, entries: list[int | None], dimensions: int) -> None:
        """Where the result has the dimensions of arrays: at the first array if arrays are neighbours, else in front."""
        named = [position for position, entry in enumerate(entries) if entry == _NAMED]
        first = named[0] if named else 0
        if not self.arrays or named[-1] - first + 1 != len(named):
            first = 0
        first -= entries[:first].count(_APART)
        shown = [entry for entry in entries if entry not in (_NAMED, _APART)]
        self.before = sum(entry is not None for entry in shown[:first])
        shown[first:first] = [_NAMED] * dimensions
        self.new_axes = tuple([position for position, entry in enumerate(shown) if entry is None])

    @property
    def _order(self) -> tuple[int, ...]:
        """The axes of the result, but for new ones, as axes of a gathered part, which has arrays' dimensions first."""
        dimensions = self.arrays[0].node.ndim
        rank = len(self.shape) - len(self.single)
        before = range(dimensions, dimensions + self.before)
        return (*before, *range(dimensions), *range(dimensions + self.before, dimensions + rank))

    def _part(self, x: Array) -> Array:
        """The strided part. Extents do not decide whether it is sliced: if nodes depended on them, gradients would be
        summed in another order for other shapes."""
        if not self._is_sliced:
            return x
        return p.slice_(x, starts=self.starts, sizes=self.sizes, steps=self.steps)

    @property
    def _slice_sizes(self) -> Shape:
        return tuple([1 if axis in self.array_axes else size for axis, size in enumerate(self.sizes)])

    def read(self, x: Array) -> Array:
        """What is selected of ``x``."""
        result = self._part(x)
        offset = 0
        if self.arrays:
            need_elements("getitem", self.shape, self.array_axes, self.arrays[0])
            result = p.gather(result, *self.arrays, axes=self.array_axes, slice_sizes=self._slice_sizes)
            offset = self.arrays[0].node.ndim
        if self.single:
            result = p.squeeze(result, axes=tuple([axis + offset for axis in self.single]))
        if self.before and offset:
            result = p.transpose(result, axes=self._order)
        if self.new_axes:
            result = p.expand(result, axes=self.new_axes)
        return p.wrap(result.node) if result is x else result

    def write(self, x: Array, new: Array, mode: str, name: str = "setitem") -> Array:
        """``x`` with ``new`` in what is selected, or combined with it."""
        spread = self._spread(new, name)
        if self.arrays:
            need_elements(name, self.shape, self.array_axes, self.arrays[0])
            part = p.scatter(self._part(x), *self.arrays, spread, axes=self.array_axes, mode=mode)
        else:
            combine = p.COMBINE[mode]
            part = spread if combine is None else combine(self._part(x), spread)
        if not self._is_sliced:
            return part
        return p.slice_update(x, part, starts=self.starts, steps=self.steps)

    def _spread(self, new: Array, name: str) -> Array:
        """``new`` in the shape of the result, and then as the part or the scatter wants it."""
        dimensions = self.arrays[0].node.shape if self.arrays else ()
        extents = [size for axis, size in enumerate(self.sizes) if axis not in self.single]
        shape = [*extents[: self.before], *dimensions, *extents[self.before :]]
        for axis in self.new_axes:
            shape.insert(axis, 1)
        spread = broadcast_update(new, tuple(shape), name)
        if self.new_axes:
            spread = p.squeeze(spread, axes=self.new_axes)
        if self.before and dimensions:
            spread = p.transpose(spread, axes=p.inverse(self._order))
        if self.single:
            spread = p.expand(spread, axes=tuple([axis + len(dimensions) for axis in self.single]))
        return spread


def broadcast_update(new: Array, shape: Shape, name: str) -> Array:
    """``new`` broadcast to ``shape``; extents of 1 in front, more than ``shape`` has, are dropped."""
    found = new.node.shape
    extra = len(found) - len(shape)
    if extra > 0 and all(agree(extent, 1) for extent in found[:extra]):
        new = p.squeeze(new, axes=tuple(range(extra)))
    if new.node.ndim > len(shape) or not agree(broadcasted_shape(name, [new.node.shape, shape]), shape):
        raise ValueError(
            f"[{name}] Cannot broadcast an array of shape {shape_text(found)} to shape {shape_text(shape)}."
        )
    return broadcast(new, shape)


def _entries(shape: Shape, index: Any) -> list[Any]:
    """An int, a slice or an array of ints for each axis, None for new ones, and Ellipsis where one stood."""
    items = index if isinstance(index, tuple) else (index,)
    entries = [_entry(item) for item in items]
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise IndexError(f"Too many indices: {used} for an array of shape {shape_text(shape)}.")
    fill = [_EVERYTHING] * (len(shape) - used)
    ellipses = [position for position, entry in enumerate(entries) if entry is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError("An index can only have a single ellipsis (...).")
    if not ellipses:
        return entries + fill
    position = ellipses[0]
    return [*entries[:position], *fill, *entries[position:]]


def _entry(item: Any) -> Any:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (Handle, np.ndarray, list)):
        return _index_array(item)
    if isinstance(item, Extent):
        return item.symbolic
    if not isinstance(item, (builtins.bool, np.bool_)) and hasattr(item, "__index__"):
        return plain_int(item)
    raise ValueError(
        f"Cannot index an array with {shown(item)}; an index has ints, slices, None, ... and arrays or lists of ints."
    )


def _index_array(item: Any) -> Array:
    array = as_array(item, dtypes.int32) if isinstance(item, list) and not item else as_array(item)
    dtype = array.node.dtype
    if dtype.is_bool:
        raise ValueError(_NO_SHAPE)
    if not dtype.is_integer:
        raise ValueError(f"An array as an index holds integers, not {dtype.name}.")
    return array


def _mask(index: Any) -> Array | None:
    """The index as an array of booleans, if it is one."""
    if isinstance(index, (builtins.bool, np.bool_)):
        return as_array(bool(index))
    if isinstance(index, list) and isinstance(_first(index), builtins.bool):
        index = as_array(index)
    if isinstance(index, np.ndarray) and index.dtype == np.bool_:
        index = as_array(index)
    return index if isinstance(index, Handle) and index.node.dtype.is_bool else None


def _first(values: Any) -> Any:
    """The first number of nested lists."""
    while isinstance(values, list):
        values = values[0] if values else None
    return values


def _masked(x: Array, mask: Array, new: Array, mode: str, name: str) -> Array:
    """``x`` with ``new`` where ``mask``, whose axes are the first ones of ``x``, holds.

    Each index of the mask that holds gets all of ``new``; or, if ``new`` has one axis more, the next row of it.
    """
    shape, covered = x.node.shape, mask.node.ndim
    if not decide_equal(mask.node.shape, shape[:covered]):
        raise ValueError(
            f"[{name}] A mask of shape {shape_text(mask.node.shape)} does not fit an array of shape "
            f"{shape_text(shape)}: its axes must be the first ones of the array."
        )
    rest = shape[covered:]
    spread_mask = broadcast(p.expand(mask, axes=tuple(range(covered, len(shape)))), shape)
    if new.node.ndim == len(rest) + 1 and mode == "set":
        new = _rows_in_order(mask, broadcast_update(new, (new.node.shape[0], *rest), name))
    else:
        new = broadcast(broadcast_update(new, rest, name), shape)
    combine = p.COMBINE[mode]
    return p.select(spread_mask, new if combine is None else combine(x, new), x)


def _rows_in_order(mask: Array, rows: Array) -> Array:
    """For each element of ``mask`` the row that belongs to it: the first row to the first that holds, and so on."""
    count, *rest = rows.node.shape
    flat = p.cast(p.reshape(mask, shape=(mask.node.size,)), dtype=dtypes.int32)
    _check_count(flat, count)
    # So that there is a row to look up, even if no element needs it.
    missing = (1 - smallest(count, 1), *[0] * len(rest))
    rows = p.pad(rows, p.zeros((), rows.node.dtype), low=(0,) * rows.node.ndim, high=missing)
    index = p.reshape(p.cumsum(flat, axis=0, reverse=False, inclusive=True), shape=mask.node.shape) - 1
    index = p.maximum(index, 0)
    taken = p.gather(rows, index, axes=(0,), slice_sizes=(1, *rest))
    return p.squeeze(taken, axes=(mask.node.ndim,))


def _check_count(flat: Array, count: AnyExtent) -> None:
    """Say so if there are fewer than ``count`` rows for the elements of a mask that hold, unless the mask is traced."""
    if trace_of(flat.node) is not None:
        return
    total = p.sum(flat, axes=(0,)).node
    evaluate([total])
    assert total.value is not None
    wanted = scalar(total.value, total.dtype)
    if decide(operator.gt, wanted, count):
        raise ValueError(f"[setitem] The mask holds in {wanted} places, but there are only {count} values to assign.")


def divided(x: Array, index: Any, value: Any) -> Array:
    """A copy of ``x`` in which ``x[index]`` is divided by ``value``; integers are rounded down."""
    dtype = x.node.dtype
    divisor = update(p.ones_like(x), index, value, "multiply", "at.divide")
    return p.divide(x, divisor) if dtype.is_inexact else p.floor_divide(x, divisor)
