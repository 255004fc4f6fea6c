"""The memory of an array read with other strides or as another dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import agree
from weft.ops.arguments import (
    Array,
    array_argument,
    checked_extents,
    count_of,
    fresh,
    integer_of,
    sequence_of,
    shape_of,
    shape_text,
)
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice
from weft.runtime.memory import contiguous_strides

__all__ = ["as_strided", "view"]


@replayed
def as_strided(
    a: Array,
    /,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """Elements of ``a`` in row-major order, selected by strides.

    The element at ``index`` is number ``offset + sum(index * strides)`` of ``a`` in row-major order, for any layout in
    memory. If several indices select one element, its gradient is the sum of theirs.

    Args:
        a: an array.
        shape: the shape of the result; by default that of ``a``.
        strides: one per axis of ``shape``, in elements, possibly negative; by default those of row-major order.
        offset: the number of the first element.

    Raises:
        ValueError: an element outside of ``a`` would be read, or the numbers of axes and strides differ.

    >>> mx.as_strided(mx.arange(5), (3, 3), (1, 1))
    array([[0, 1, 2],
           [1, 2, 3],
           [2, 3, 4]], dtype=int32)
    """
    x = array_argument("as_strided", a)
    extents = x.node.shape if shape is None else checked_extents("as_strided", shape_of("as_strided", shape))
    if strides is None:
        steps = contiguous_strides(extents)
    else:
        steps = tuple([
            integer_of("as_strided", "A stride", step) for step in sequence_of("as_strided", "strides", strides)
        ])  # fmt: skip
    if len(steps) != len(extents):
        raise ValueError(
            f"[as_strided] Shape {shape_text(extents)} and strides {steps} differ in their numbers of axes."
        )
    flat = p.reshape(x, shape=(x.node.size,))
    return p.as_strided(flat, shape=extents, strides=steps, offset=count_of("as_strided", "offset", offset))


@replayed
def view(a: Any, dtype: Dtype, stream: StreamOrDevice = None) -> Array:
    """The bytes of the elements, read as another dtype.

    If the sizes of the dtypes differ, the last axis becomes shorter or longer. A byte read as ``bool_`` is True if it
    is not 0. Elements are little-endian. A signalling NaN of bfloat16 becomes a quiet one.

    Args:
        a: an array or a number.
        dtype: the dtype of the result.

    Raises:
        ValueError: the bytes of the last axis are no whole number of elements, or ``a`` is 0-d and the sizes differ.

    >>> mx.view(mx.array([1.0, -0.0]), mx.uint32)
    array([1065353216, 2147483648], dtype=uint32)
    >>> mx.view(mx.array([[1, 256]]), mx.uint16)
    array([[1, 0, 256, 0]], dtype=uint16)
    """
    x = array_argument("view", a)
    target, source = as_dtype(dtype), x.node.dtype
    if target is source:
        return fresh(x)
    if target.size == source.size:
        return p.reinterpret(x, dtype=target)
    if not x.node.shape:
        raise ValueError(
            f"[view] A 0-d array of {source.name} cannot be read as {target.name}, whose elements have another size."
        )
    words = x if source.name == _word(source).name else p.reinterpret(x, dtype=_word(source))
    words = (_joined if target.size > source.size else _divided)(words, _word(target))
    return words if words.node.dtype is target else p.reinterpret(words, dtype=target)


def _word(dtype: Dtype) -> Dtype:
    """The unsigned integer dtype of the same size."""
    return dtypes.UNSIGNED[dtype.size]


def _divided(x: Array, part: Dtype) -> Array:
    """Unsigned integers split into smaller ones, the lowest first."""
    *outer, extent = x.node.shape
    count = x.node.dtype.size // part.size
    parts = [p.cast(p.right_shift(x, 8 * part.size * n) if n else x, dtype=part) for n in range(count)]
    last = len(outer) + 1
    joined = p.concatenate(*[p.expand(one, axes=(last,)) for one in parts], axis=last)
    return p.reshape(joined, shape=(*outer, extent * count))


def _joined(x: Array, whole: Dtype) -> Array:
    """Groups of unsigned integers joined into larger ones."""
    *outer, extent = x.node.shape
    source = x.node.dtype
    count = whole.size // source.size
    if not agree(extent % count, 0):
        raise ValueError(
            f"[view] {extent} elements of {source.size} bytes along the last axis are no whole number of elements of "
            f"{whole.size} bytes."
        )
    rows = p.reshape(x, shape=(*outer, extent // count, count))
    last, shape = len(outer) + 1, rows.node.shape
    result = None
    for n in range(count):
        part = p.slice_(rows, starts=(*[0] * last, n), sizes=(*shape[:-1], 1), steps=(1,) * (last + 1))
        one = p.cast(p.squeeze(part, axes=(last,)), dtype=whole)
        shifted = p.left_shift(one, 8 * source.size * n) if n else one
        result = shifted if result is None else p.bitwise_or(result, shifted)
    return result
