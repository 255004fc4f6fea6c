"""The elements of an array in row-major order, indexed with other strides or read as another dtype."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import values_of
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, Elementwise, Linear
from weft.primitives.batching import move_axis
from weft.primitives.untrusted import LARGEST, check_number, check_numbers, require
from weft.primitives.updates import scatter

__all__ = ["as_strided", "reinterpret"]


class AsStrided(Linear):
    """Elements of a vector: the element at an index is number ``offset + sum(index * strides)``.

    Several indices may read the same element, so their cotangents add up. A kernel that computed the vector at such
    indices would compute elements several times, so the vector is in memory and strides describe the result.
    """

    is_view = True

    def __init__(self) -> None:
        super().__init__(
            "as_strided",
            ("shape", "strides", "offset"),
            _infer_as_strided,
            _transpose_as_strided,
            _batch_as_strided,
            _check_as_strided,
        )

    def shown(self, node: Node, strides: Shape) -> tuple[Shape, int] | None:
        _, steps, offset = node.params
        return tuple([step * strides[0] for step in steps]), offset * strides[0]


def _check_as_strided(x: Node, *, shape: Shape, strides: Shape, offset: int) -> None:
    require(x.ndim == 1, "its input is no vector")
    check_numbers(shape)
    check_numbers(strides, len(shape), lowest=-LARGEST)
    check_number(offset)


def _infer_as_strided(x: Node, *, shape: Shape, strides: Shape, offset: int) -> tuple[Shape, Dtype]:
    extents, steps = values_of(shape), values_of(strides)
    (first,), (size,) = values_of((offset,)), values_of(x.shape)
    reach = [(extent - 1) * step for extent, step in zip(extents, steps, strict=True)]
    low, high = first + sum(min(r, 0) for r in reach), first + sum(max(r, 0) for r in reach)
    if 0 not in extents and not 0 <= low <= high < size:
        raise ValueError(
            f"[as_strided] Shape {extents} with strides {steps} and offset {first} reads elements {low} to {high} of "
            f"an array of {size}: they are counted from 0 in row-major order."
        )
    return shape, x.dtype


def _transpose_as_strided(ct: Array, x: Array, shape: Shape, strides: Shape, offset: int) -> Array:
    """Add up the cotangents of each element. Where indices along an axis read separate blocks or neighbouring
    elements, that axis becomes an axis of the slices that are written, so that the independence of writes is
    visible."""
    (size,) = x.node.shape
    rank = len(shape)
    blocks, inner = None, None
    if all(type(number) is int for number in (size, offset, *shape, *strides)):  # else it depends on symbolic extents
        inner = _side_by_side(shape, strides, offset, size)
        blocks = _blocks(shape, strides, offset, size)
        blocks = None if blocks == inner else blocks
    width = 1 if inner is None else shape[inner]
    length = (size if blocks is None else strides[blocks]) // width
    within = [axis for axis in range(rank) if axis not in (blocks, inner)]
    extents = tuple([shape[axis] for axis in within])
    index = p.fill(p.wrap(p.constant.make(offset // width, dtypes.int64)), extents)
    for position, axis in enumerate(within):
        index = index + p.iota(shape=extents, axis=position, dtype=dtypes.int64) * (strides[axis] // width)
    around = [axis for axis in (blocks, inner) if axis is not None]
    updates = p.transpose(ct, axes=(*within, *around))
    slices = (1 if blocks is None else shape[blocks], 1, width)
    target = p.zeros((slices[0], length, width), ct.node.dtype)
    updates = p.reshape(updates, shape=(*extents, *slices))
    return p.reshape(scatter(target, index, updates, axes=(1,), mode="add"), shape=(size,))


def _blocks(shape: Shape, strides: Shape, offset: int, size: int) -> int | None:
    """An axis whose indices each read a separate block of the vector, which together are the whole vector."""
    for axis, (extent, step) in enumerate(zip(shape, strides, strict=True)):
        others = [
            (n - 1) * stride for other, (n, stride) in enumerate(zip(shape, strides, strict=True)) if other != axis
        ]
        low, high = offset + sum(min(n, 0) for n in others), offset + sum(max(n, 0) for n in others)
        if extent > 1 and extent * step == size and 0 <= low <= high < step:
            return axis
    return None


def _side_by_side(shape: Shape, strides: Shape, offset: int, size: int) -> int | None:
    """An axis that reads neighbouring elements, while all other axes and the offset move by multiples of its extent."""
    for axis, (extent, step) in enumerate(zip(shape, strides, strict=True)):
        others = [offset, size, *strides[:axis], *strides[axis + 1 :]]
        if step == 1 and extent > 1 and not any(n % extent for n in others):
            return axis
    return None


def _batch_as_strided(x: Array, axis: int, *, shape: Shape, strides: Shape, offset: int) -> tuple[Array, int]:
    rows = move_axis(x, axis, 0)
    count, size = rows.node.shape
    flat = p.reshape(rows, shape=(count * size,))
    return as_strided(flat, shape=(count, *shape), strides=(size, *strides), offset=offset), 0


as_strided = AsStrided()


def _bits(L: Any, x: Any) -> Any:
    """The memory image of a value, as an unsigned integer of its size."""
    if x.dtype.is_complex:
        low, high = [L.convert(L.bitcast(part, dtypes.uint32), dtypes.uint64) for part in (x.real, x.imag)]
        return low | (high << 32)
    if x.dtype.is_bool:
        return L.convert(x, dtypes.uint8)
    return L.half_to_bits(x) if x.dtype.is_floating and x.dtype.size == 2 else x


def _from_bits(L: Any, bits: Any, dtype: Dtype) -> Any:
    """The value with this memory image; for booleans, any byte but 0 is True."""
    if dtype.is_complex:
        words = L.bitcast(bits, dtypes.uint64)
        low, high = L.convert(words, dtypes.uint32), L.convert(words >> 32, dtypes.uint32)
        return L.complex(L.bitcast(low, dtypes.float32), L.bitcast(high, dtypes.float32))
    if dtype.is_bool:
        return L.not_equal(bits, 0)
    if dtype.is_floating and dtype.size == 2:
        return L.half_from_bits(L.bitcast(bits, dtypes.uint16), dtype)
    return L.bitcast(bits, dtype)


class Reinterpret(Elementwise):
    """The memory image of each element, read as another dtype of the same size."""

    parameters = ("dtype",)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, params["dtype"]

    def value_dtype(self, dtype: Dtype, /, **params: Any) -> Dtype:
        result: Dtype = params["dtype"]
        return result


def _no_partial(t: Array, out: Array, x: Array, dtype: Dtype) -> Array | None:
    if not (x.node.dtype.is_inexact and dtype.is_inexact):
        return None
    raise ValueError(
        f"[view] The bits of {x.node.dtype.name} read as {dtype.name} have no derivative: convert the numbers with "
        "astype, or put stop_gradient around them."
    )


reinterpret: Elementwise = Reinterpret(
    "view", lambda L, x, dtype: _from_bits(L, _bits(L, x), dtype), (_no_partial,), holomorphic=False, exact=True
)
