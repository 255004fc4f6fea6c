"""What ``a[index]`` selects, for reading and for assignment.

An index is split into a strided part of the array (from ints and slices) and indices within that part (from arrays).
Reading is a slice, a gather and a few views; assignment reverses these steps.
"""

from __future__ import annotations

import builtins
import math
from types import NoneType
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import plain_int, shown
from weft.errors import ArgumentTypeError, AxisError
from weft.graph.node import Handle, Node, Shape, new_node
from weft.graph.shown import Extent
from weft.graph.tracing import open_traces
from weft.ops.arguments import Array, array_of, broadcast, broadcasted_shape, shape_text, to_dtype
from weft.ops.axis_index import checked_index, from_front, need_elements, strided_range
from weft.ops.convert import as_array, python_scalar
from weft.ops.masks import NO_SHAPE, broadcast_update, has_mask, lone_mask, masked, with_lists_as_masks, without_masks
from weft.ops.replays import replayed
from weft.ops.strided_parts import picked, strided_part, without_axis
from weft.runtime.devices import current_stream

__all__ = ["Subscript", "divided", "getitem", "setitem", "update"]

_EVERYTHING = slice(None)
_NAMED = -1
"""Marks an axis that is indexed by an int or an array."""
_APART = -2
"""Marks an ellipsis: arrays on both sides of it are not neighbours, even if it stands for no axis."""


def getitem(x: Array, index: Any) -> Array:
    """``x[index]``, by the rules of NumPy.

    The shape of what a mask selects depends on its values, so masks are evaluated, and refused where they are traced.

    Raises:
        IndexError: an int is out of range, there are more entries than axes, or a mask has another shape.
        ValueError: the index has another type, or a mask is traced.
    """
    node = x.node
    if type(index) is int and node.shape:
        extent: Any = node.shape[0]
        if type(extent) is int and -extent <= index < extent:
            position = index if index >= 0 else index + extent
            rest = node.shape[1:] if open_traces else without_axis(node.shape, 0)
            return p.wrap(new_node(p.pick_one, (node,), (0, position), rest, node.dtype, current_stream()))
    if type(index) is Handle.concrete and index.node.dtype.is_integer:
        return _selected(x, index)
    items = (None,) if index is None else index
    if type(items) is tuple:
        found = None if items and items[0] is Ellipsis else _entry_or_column(node, items)
        if found is None and NoneType in map(type, items):
            found = _with_new_axes(node, items)
        if found is not None:
            return found
    part = strided_part(node.shape, index)
    if part is not None:
        return part.read(node)
    if has_mask(index):
        index = with_lists_as_masks(index)
        if not isinstance(index, tuple) and not index.ndim:  # a mask without axes selects the whole array or nothing
            return getitem(p.expand(x, axes=(0,)), as_array(index)[None])
        index = without_masks(index, node.shape)
    return _selected(x, _with_arrays(index))


@replayed
def _selected(x: Array, index: Any) -> Array:
    """``x[index]`` without masks."""
    return Subscript(x.node.shape, index).read(x)


def _entry_or_column(node: Node, items: tuple[Any, ...]) -> Array | None:
    """The result for an index of ints and full slices; None for other indices, or if an int is out of range.

    Such indices are frequent, so the general steps are skipped.
    """
    shape = node.shape
    if len(items) > len(shape):
        return None
    axes, positions = [], []
    for axis, item in enumerate(items):
        kind = type(item)
        if kind is int:
            extent: Any = shape[axis]
            if type(extent) is not int or not -extent <= item < extent:
                return None
            axes.append(axis)
            positions.append(item if item >= 0 else item + extent)
        elif kind is not slice or item != _EVERYTHING:
            return None
    return picked(node, axes, positions) if axes else None


def _with_new_axes(node: Node, items: tuple[Any, ...]) -> Array | None:
    """The result for an index of None and full slices, possibly with an ellipsis; None for other indices."""
    slices, ellipses, new = 0, 0, 0
    for item in items:
        if item is None:
            new += 1
        elif item is Ellipsis:
            ellipses += 1
        elif type(item) is slice and item == _EVERYTHING:
            slices += 1
        else:
            return None
    rest = len(node.shape) - slices
    if not new or rest < 0 or ellipses > 1:
        return None
    shape = list(node.shape)
    axes, axis = [], 0
    for item in items:
        if item is None:
            axes.append(axis)
            shape.insert(axis, 1)
        axis += rest if item is Ellipsis else 1
    return p.wrap(new_node(p.expand, (node,), (tuple(axes),), tuple(shape), node.dtype, current_stream()))


def setitem(x: Array, index: Any, value: Any) -> Array:
    """A copy of ``x`` in which ``x[index]`` is ``value``, broadcast and converted to the dtype of ``x``."""
    return update(x, index, value, "set")


def update(x: Array, index: Any, value: Any, mode: str, name: str = "setitem") -> Array:
    """A copy of ``x`` in which ``x[index]`` is replaced by ``value`` or combined with it.

    ``mode`` is a key of `COMBINE`. Where arrays contain an index several times, all its values are combined; if values
    replace, the last one remains. Messages name the function ``name``.
    """
    new = new_value(x, value, name)
    part = strided_part(x.node.shape, index)
    if part is not None:
        return part.write(x, new, mode, name)
    if (alone := lone_mask(index, x.node.shape)) is not None:
        write = masked if new.node.shape else _filled
        return write(x, *alone, new, mode, name)
    if has_mask(index):
        index = without_masks(with_lists_as_masks(index), x.node.shape)
    return _updated(x, _with_arrays(index), new, mode, name)


@replayed
def _filled(x: Array, mask: Array, axis: int, number: Array, mode: str, name: str) -> Array:
    """`masked` with a single number, so that the mask is not read to compare the number of its elements."""
    return masked(x, mask, axis, number, mode, name)


@replayed
def _updated(x: Array, index: Any, new: Array, mode: str, name: str) -> Array:
    """`update` without masks, by values of the dtype of ``x``."""
    return Subscript(x.node.shape, index).write(x, new, mode, name)


def new_value(x: Array, value: Any, name: str) -> Array:
    dtype = x.node.dtype
    if isinstance(value, Handle):
        return to_dtype(value, dtype)
    if type(value) is float and dtype.is_floating:
        return p.wrap(p.constant.make(value, dtype))
    if isinstance(value, float) and dtype.is_integer and math.isfinite(value):
        value = int(value)
    if python_scalar(value) is not None:
        return array_of(name, "value", value, dtype)
    try:
        return as_array(value, dtype)
    except TypeError as error:
        raise ArgumentTypeError(
            f"[{name}] An array cannot be assigned {shown(value)}; "
            "it takes numbers, arrays and nested lists of numbers."
        ) from error


class Subscript:
    """What an index selects of an array of ``shape``.

    ``starts``, ``sizes`` and ``steps`` give the strided part; its axes ``single``, which ints and arrays index, are not
    in the result. ``arrays``, all of one shape, hold indices along ``array_axes`` (among ``single``) of the part; their
    dimensions follow ``before`` axes of the part in the result. ``new_axes`` are the positions of None in the result.
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
        # The entries in the order of the result: axes, None for new axes, _NAMED and _APART.
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
        """Set where the result has the dimensions of arrays: at the first array if the arrays are neighbours, else in
        front."""
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
        """The axes of the result without new ones, as axes of a gathered part, in which the arrays' dimensions come
        first."""
        dimensions = self.arrays[0].node.ndim
        rank = len(self.shape) - len(self.single)
        before = range(dimensions, dimensions + self.before)
        return (*before, *range(dimensions), *range(dimensions + self.before, dimensions + rank))

    def _part(self, x: Array) -> Array:
        """The strided part. Whether it is sliced does not depend on extents: if nodes did, gradients would be summed in
        another order for other shapes."""
        if not self._is_sliced:
            return x
        return p.slice_(x, starts=self.starts, sizes=self.sizes, steps=self.steps)

    @property
    def _slice_sizes(self) -> Shape:
        return tuple([1 if axis in self.array_axes else size for axis, size in enumerate(self.sizes)])

    def read(self, x: Array) -> Array:
        """The selected elements of ``x``."""
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
        """``x`` with ``new`` in place of the selected elements, or combined with them."""
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
        """``new`` broadcast to the shape of the result, and arranged as the part or the scatter needs it."""
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


def _with_arrays(index: Any) -> Any:
    """An index with arrays in place of lists and NumPy arrays."""
    if isinstance(index, (list, np.ndarray)):
        return _index_array(index)
    return tuple(map(_with_arrays, index)) if type(index) is tuple else index


def _entries(shape: Shape, index: Any) -> list[Any]:
    """An int, a slice or an array of ints for each axis, None for new axes, and Ellipsis in its place."""
    items = index if isinstance(index, tuple) else (index,)
    entries = [_entry(item) for item in items]
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise AxisError(f"Too many indices: {used} for an array of shape {shape_text(shape)}.")
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
        raise ValueError(NO_SHAPE)
    if not dtype.is_integer:
        raise ValueError(
            f"An array as an index holds integers, not {dtype.name} (its shape is {array.node.shape}). Convert it with "
            ".astype(mx.int32)."
        )
    return array


def divided(x: Array, index: Any, value: Any) -> Array:
    """A copy of ``x`` in which ``x[index]`` is divided by ``value``; quotients of integers are rounded down."""
    dtype = x.node.dtype
    divisor = update(p.ones_like(x), index, value, "multiply", "at.divide")
    return p.divide(x, divisor) if dtype.is_inexact else p.floor_divide(x, divisor)
