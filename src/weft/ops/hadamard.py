"""The Walsh-Hadamard transform."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent, derived, identical, named, value_of
from weft.ops.arguments import Array, array_argument, extent_constant, real_number, shape_text, to_dtype
from weft.ops.convert import from_numpy
from weft.ops.entrance import on_stream
from weft.primitives.conversions import wide_dtype
from weft.runtime.devices import StreamOrDevice

__all__ = ["hadamard_transform"]

_ORDERS = (12, 20, 28)
_CIRCULANTS = {20: ("+----", "+----", "++--+", "+-++-"), 28: ("+------", "++----+", "+-+--+-", "+--++--")}
"""First rows of the four circulant matrices of Williamson's construction."""


@on_stream
def hadamard_transform(a: Array, scale: float | None = None, stream: StreamOrDevice = None) -> Array:
    """The Walsh-Hadamard transform along the last axis.

    Each row is multiplied by a Hadamard matrix, whose elements are 1 and -1, and by ``scale``. For ``n = m * 2**k`` the
    matrix is the Kronecker product of one of order ``m`` and of ``scipy.linalg.hadamard(2**k)``. The matrix of order 12
    is Paley's (1933), those of 20 and 28 are Williamson's (1944).

    Args:
        a: the last axis has ``m * 2**k`` elements with m = 1, 12, 20 or 28; integers become float32.
        scale: by default ``1 / sqrt(n)``, with which the matrix is orthogonal.

    Raises:
        ValueError: the last axis has another length.

    >>> mx.hadamard_transform(mx.array([1.0, 2.0, 3.0, 4.0]))
    array([5, -1, -2, 0], dtype=float32)
    """
    x = array_argument("hadamard_transform", a)
    dtype = x.node.dtype if x.node.dtype.is_inexact else dtypes.float32
    x = to_dtype(x, dtype)
    extent = x.node.shape[-1] if x.node.shape else 1
    if not _order(value_of(extent)):
        raise ValueError(
            f"[hadamard_transform] The last axis has {extent} elements (shape {shape_text(x.node.shape)}); it must "
            "have m * 2**k with m = 1, 12, 20 or 28."
        )
    factor = derived(_usual_scale, extent) if scale is None else real_number("hadamard_transform", "scale", scale)
    if not dtype.is_complex:
        return _transformed(x, extent, factor, dtype)
    real, imag = (_transformed(part(x), extent, factor, dtypes.float32) for part in (p.real, p.imag))
    return to_dtype(real, dtype) + to_dtype(imag, dtype) * 1j


@named
def _order(extent: int) -> int:
    """The m with ``extent = m * 2**k`` for which there is a matrix; 0 if there is none."""
    for order in (1, *_ORDERS):
        rest, remainder = divmod(extent, order)
        if not remainder and rest and not rest & (rest - 1):
            return order
    return 0


@named
def _usual_scale(extent: int) -> Any:
    return 1 / math.sqrt(extent)


@named
def _rows(extent: int) -> int:
    """The number of rows, a multiple of m, when ``extent`` elements are arranged as a matrix that is about square; the
    number of columns is a power of two."""
    order = _order(extent)
    if not order:
        raise ValueError(f"the last axis has {extent} elements, not m * 2**k with m = 1, 12, 20 or 28")
    bits = (extent // order).bit_length() - 1
    return order << (bits // 2)


def _transformed(x: Array, extent: AnyExtent, factor: Any, dtype: Dtype) -> Array:
    """Real rows times the matrix and ``factor``. As the matrix is a Kronecker product, each row is arranged as a matrix
    and multiplied by smaller matrices from both sides."""
    wide = wide_dtype(dtype)
    rows = derived(_rows, extent)
    columns = extent // rows
    matrices = p.reshape(to_dtype(x, wide), shape=(x.node.size // extent, rows, columns))
    flat = p.reshape(matrices, shape=(x.node.size // extent * rows, columns))
    product = p.reshape(p.matmul(flat, _matrix(columns, wide)), shape=matrices.node.shape)
    if not identical(rows, 1):
        left = p.broadcast(p.expand(_matrix(rows, wide), axes=(0,)), shape=(matrices.node.shape[0], rows, rows))
        product = p.matmul(left, product)
    result = p.reshape(product, shape=x.node.shape) * p.wrap(p.constant.make(factor, wide))
    return to_dtype(result, dtype)


def _matrix(extent: AnyExtent, dtype: Dtype) -> Array:
    """The Hadamard matrix of a length that `_order` accepts."""
    shape = (extent, extent)
    order = derived(_order, extent)
    power = extent_constant(extent // order, dtypes.int32)
    row, column = (p.iota(shape=shape, axis=axis, dtype=dtypes.int32) for axis in (0, 1))
    common = p.bitwise_and(p.remainder(row, power), p.remainder(column, power))
    for bits in (16, 8, 4, 2, 1):
        common = p.bitwise_xor(common, p.right_shift(common, bits))
    sign = 1 - 2 * p.bitwise_and(common, 1)
    small = p.floor_divide(row, power) * order + p.floor_divide(column, power) + derived(_position, order)
    signs = from_numpy(_table(), dtypes.int8)
    outer = p.squeeze(p.gather(signs, small, axes=(0,), slice_sizes=(1,)), axes=(2,))
    return p.cast(sign * p.cast(outer, dtype=dtypes.int32), dtype=dtype)


@named
def _position(order: int) -> int:
    """Where the matrix of an order begins in `_table`."""
    return 1 + sum(m * m for m in _ORDERS if m < order) if order > 1 else 0


@functools.cache
def _table() -> np.ndarray[Any, Any]:
    """The matrices of orders 1, 12, 20 and 28, one after the other."""
    matrices = [np.ones((1, 1)), _paley(), *[_williamson(rows) for rows in _CIRCULANTS.values()]]
    return np.concatenate([matrix.ravel() for matrix in matrices]).astype(np.int8)


def _paley() -> np.ndarray[Any, Any]:
    """The matrix of order 12, from the squares modulo 5."""
    squares = np.array([0, 1, -1, -1, 1])
    inner = squares[(np.arange(5) - np.arange(5)[:, None]) % 5]
    conference = np.ones((6, 6), int) - np.eye(6, dtype=int)
    conference[1:, 1:] = inner
    return np.kron(conference, [[1, 1], [1, -1]]) + np.kron(np.eye(6, dtype=int), [[1, -1], [-1, -1]])


def _williamson(rows: tuple[str, ...]) -> np.ndarray[Any, Any]:
    a, b, c, d = [_circulant([1 if sign == "+" else -1 for sign in row]) for row in rows]
    return np.block([[a, b, c, d], [-b, a, -d, c], [-c, d, a, -b], [-d, -c, b, a]])


def _circulant(row: list[int]) -> np.ndarray[Any, Any]:
    return np.array([np.roll(row, shift) for shift in range(len(row))])
