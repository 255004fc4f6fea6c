"""Products with quantised matrices."""

from __future__ import annotations

from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, promote
from weft.graph.extents import product
from weft.ops.arguments import Array, array_argument, broadcast, broadcasted_shape, shape_text, to_dtype
from weft.ops.entrance import on_stream
from weft.ops.gathered_products import chosen, chosen_index
from weft.ops.products import check_shapes, product_of
from weft.ops.quantized_formats import format_of
from weft.ops.quantized_matrix import (
    QuantizedMatrix,
    check_floating_matrix,
    quantized,
    quantized_matrix,
    scale_of_all,
    wide_dtype,
)
from weft.primitives.quantized_formats import QuantizedFormat
from weft.runtime.devices import StreamOrDevice

__all__ = ["gather_qmm", "gather_qqmm", "qqmm", "quantized_matmul"]


@on_stream
def quantized_matmul(
    x: Array,
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The product with a quantised matrix.

    Sums are those of a product of float32 (or float64) matrices, rounded once to the dtype of the result. But up to
    eight rows of ``x`` (that are not float64) times a transposed affine matrix of 1, 2, 4 or 8 bits are multiplied
    faster, as integers: each term of ``x`` is rounded to a multiple of a power of two, 2**-22 to 2**-23 of the largest
    of the ``group_size`` terms that share a scale; the rest is exact up to the rounding of each group's sum. If not all
    terms of a group are finite, results are NaN.

    It is differentiable with respect to ``x`` and, in affine modes, to ``scales`` and ``biases``.

    Args:
        x: ``(..., M, K)`` or ``(K,)``.
        w: words of `quantize` for ``(..., N, K)`` or, if not ``transpose``, ``(..., K, N)`` numbers. Axes in front of
            the last two are broadcast with those of ``x``.
        scales: one for each group along the last axis of ``w``.
        biases: of the shape of ``scales``, for affine modes.
        transpose: whether to multiply by ``w`` transposed (``x @ w.T``) or not (``x @ w``).
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `quantize`.

    Returns:
        ``(..., M, N)``; in affine modes in the common dtype of ``x`` and ``scales``, else in that of ``x`` (float32 for
        integers).

    Raises:
        ValueError: shapes or dtypes do not fit each other or the parameters.

    >>> w = mx.quantize(mx.eye(64) * 2, bits=8)
    >>> mx.quantized_matmul(mx.arange(64.0), *w, bits=8)
    array([0, 2, 4, ..., 122, 124, 126], dtype=float32)
    """
    kind = format_of("quantized_matmul", mode, group_size, bits)
    matrix = quantized_matrix("quantized_matmul", kind, w, scales, biases, None)
    return _product("quantized_matmul", array_argument("quantized_matmul", x, "x"), matrix, bool(transpose))


@on_stream
def gather_qmm(
    x: Array,
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: Array | None = None,
    *,
    sorted_indices: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """`quantized_matmul` of matrices that indices choose; see `gather_mm`.

    Args:
        x: ``(..., M, K)``.
        w: words for ``(..., N, K)`` or, if not ``transpose``, ``(..., K, N)`` numbers.
        scales: as for `quantized_matmul`.
        biases: as for `quantized_matmul`.
        lhs_indices: the indices of matrices of ``x``.
        rhs_indices: the indices of matrices of ``w``, with their scales and biases.
        transpose: whether to multiply by ``w`` transposed.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `quantize`.
        global_scale: the one with which ``w`` was quantised.
        sorted_indices: a promise that the indices are sorted, which does not change the result.

    Returns:
        ``(..., M, N)``, where ``...`` is the shape of the indices.

    Raises:
        ValueError: shapes or dtypes do not fit each other or the parameters, or indices are no integers.

    >>> experts = mx.quantize(mx.stack([mx.eye(64), 10 * mx.eye(64)]), bits=8)
    >>> mx.gather_qmm(mx.ones((2, 1, 64)), *experts, rhs_indices=mx.array([1, 0]), bits=8)[:, 0, 0]
    array([10, 1], dtype=float32)
    """
    kind = format_of("gather_qmm", mode, group_size, bits)
    factor = scale_of_all("gather_qmm", kind, global_scale)
    matrix = quantized_matrix("gather_qmm", kind, w, scales, biases, factor)
    (left,) = chosen("gather_qmm", [(_matrices("gather_qmm", x), lhs_indices, "lhs_indices")])
    return _product("gather_qmm", left, matrix, bool(transpose), rhs_indices)


@on_stream
def qqmm(
    x: Array,
    w: Array,
    scales: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "nvfp4",
    global_scale_x: Array | None = None,
    global_scale_w: Array | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The product ``x @ w.T`` of two quantised matrices, for floating-point modes.

    Derivatives are those of the product of the quantised matrices; the rounding has derivative one.

    Args:
        x: floating, ``(..., M, K)``; it is quantised.
        w: floating, ``(..., N, K)``, to be quantised too, or words as `quantize` gives them.
        scales: those of ``w`` if it is quantised, else None.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: ``"nvfp4"``, ``"mxfp8"`` or ``"mxfp4"``.
        global_scale_x: a global scale for ``x``; see `quantize`.
        global_scale_w: the same for ``w``.

    Returns:
        ``(..., M, N)`` in the dtype of ``x``.

    Raises:
        ValueError: shapes or dtypes do not fit each other or the parameters, or the mode is affine.

    >>> mx.qqmm(mx.full((1, 32), 6.0), mx.full((2, 32), 3.0))
    array([[576, 576]], dtype=float32)
    """
    kind = _float_format("qqmm", mode, group_size, bits)
    left = _rounded("qqmm", "x", x, kind, scale_of_all("qqmm", kind, global_scale_x, "global_scale_x"))
    right = _right("qqmm", kind, w, scales, global_scale_w)
    if isinstance(right, QuantizedMatrix):
        return _product("qqmm", left, right, True)
    return _rounded_product("qqmm", left, right)


@on_stream
def gather_qqmm(
    x: Array,
    w: Array,
    /,
    scales: Array | None = None,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "nvfp4",
    global_scale_x: Array | None = None,
    global_scale_w: Array | None = None,
    *,
    sorted_indices: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """`qqmm` of matrices that indices choose; see `gather_mm`.

    Args:
        x: floating, ``(..., M, K)``.
        w: floating, ``(..., N, K)``, or words as `quantize` gives them.
        scales: those of ``w`` if it is quantised, else None.
        lhs_indices: the indices of matrices of ``x``.
        rhs_indices: the indices of matrices of ``w``, with their scales.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `qqmm`.
        global_scale_x: a global scale for ``x``; see `quantize`.
        global_scale_w: the same for ``w``.
        sorted_indices: a promise that the indices are sorted, which does not change the result.

    Returns:
        ``(..., M, N)`` in the dtype of ``x``, where ``...`` is the shape of the indices.

    Raises:
        ValueError: shapes or dtypes do not fit each other or the parameters, the mode is affine, or indices are no
            integers.

    >>> experts = mx.stack([mx.full((1, 32), 6.0), mx.full((1, 32), 3.0)])
    >>> mx.gather_qqmm(mx.full((2, 1, 32), 6.0), experts, rhs_indices=mx.array([1, 0]))[:, 0, 0]
    array([576, 1152], dtype=float32)
    """
    kind = _float_format("gather_qqmm", mode, group_size, bits)
    left = _rounded("gather_qqmm", "x", x, kind, scale_of_all("gather_qqmm", kind, global_scale_x, "global_scale_x"))
    right = _right("gather_qqmm", kind, w, scales, global_scale_w)
    if isinstance(right, QuantizedMatrix):
        (left,) = chosen("gather_qqmm", [(left, lhs_indices, "lhs_indices")])
        return _product("gather_qqmm", left, right, True, rhs_indices)
    left, right = chosen("gather_qqmm", [(left, lhs_indices, "lhs_indices"), (right, rhs_indices, "rhs_indices")])
    return _rounded_product("gather_qqmm", left, right)


def _matrices(name: str, x: Array) -> Array:
    found = array_argument(name, x, "x")
    if found.node.ndim < 2:
        raise ValueError(f"[{name}] x needs at least two dimensions; its shape is {shape_text(found.node.shape)}.")
    return found


def _product(name: str, x: Array, matrix: QuantizedMatrix, transpose: bool, indices: Array | None = None) -> Array:
    """The product with a quantised matrix, with each matrix of a stack, or with those that indices choose."""
    dtype = x.node.dtype
    if dtype.is_complex or dtype.is_bool:
        raise ValueError(f"[{name}] x must have real numbers; it has the dtype {dtype.name}.")
    dtype = promote(dtype, matrix.dtype or (dtype if dtype.is_floating else dtypes.float32))
    *stack, high, columns = matrix.shape
    if transpose:
        high, columns = columns, high
    check_shapes(name, x.node.shape, (*stack, high, columns))
    multiply = _multiplied if not stack and indices is None else _stack_multiplied
    return multiply(name, x, matrix.with_whole_scales(wide_dtype(dtype)), _Manner(transpose, dtype), indices)


class _Manner(NamedTuple):
    """Whether a quantised matrix is transposed, and the dtype of the result."""

    transpose: bool
    dtype: Dtype

    def product(self, x: Array, matrix: QuantizedMatrix, *parts: Array) -> Array:
        """The product with these parts of a matrix. The conversion of the result follows at once, so that a target may
        do both together."""
        x = to_dtype(x, wide_dtype(self.dtype))
        result = p.quantized_matmul(x, *parts, **matrix.kind._asdict(), transpose=self.transpose)
        return to_dtype(result, self.dtype)


def _multiplied(name: str, x: Array, matrix: QuantizedMatrix, manner: _Manner, indices: None) -> Array:
    """All rows of ``x`` times one matrix."""
    *outer, inner = x.node.shape
    rows = p.reshape(x, shape=(product(outer), inner))
    result = manner.product(rows, matrix, *matrix.parts)
    return p.reshape(result, shape=(*outer, result.node.shape[-1]))


def _stack_multiplied(name: str, x: Array, matrix: QuantizedMatrix, manner: _Manner, indices: Array | None) -> Array:
    """The matrices of ``x`` times all matrices of a stack, or those that indices choose; the shapes of both are
    broadcast."""
    is_row = x.node.ndim == 1
    if is_row:
        x = p.expand(x, axes=(0,))
    index = chosen_index(name, matrix.words.node.shape[:-2], indices, "rhs_indices")
    *outer, rows, inner = x.node.shape
    batch = broadcasted_shape(name, (tuple(outer), index.node.shape))
    count = product(batch)
    x = p.reshape(broadcast(x, (*batch, rows, inner)), shape=(count, rows, inner))
    index = p.reshape(broadcast(index, batch), shape=(count,))
    result = manner.product(x, matrix, *map(_one_stack, matrix.parts), index)
    result = p.reshape(result, shape=(*batch, rows, result.node.shape[-1]))
    return p.squeeze(result, axes=(len(batch),)) if is_row else result


def _one_stack(x: Array) -> Array:
    *outer, high, wide = x.node.shape
    return p.reshape(x, shape=(product(outer), high, wide))


def _float_format(name: str, mode: str, group_size: int | None, bits: int | None) -> QuantizedFormat:
    kind = format_of(name, mode, group_size, bits)
    if kind.affine:
        raise ValueError(f"[{name}] quantises both matrices, in a floating mode; the mode is 'affine'.")
    return kind


def _rounded(name: str, word: str, x: Array, kind: QuantizedFormat, factor: Array | None) -> Array:
    """A floating array rounded to quantised numbers, with the derivative of the unrounded array."""
    found = array_argument(name, x, word)
    check_floating_matrix(name, word, found, kind)
    return p.straight_through(quantized(found, kind, factor).values(found.node.dtype), found)


def _right(
    name: str, kind: QuantizedFormat, w: Array, scales: Array | None, global_scale: Array | None
) -> Array | QuantizedMatrix:
    """The right operand: numbers rounded to a format, or a matrix in this format."""
    factor = scale_of_all(name, kind, global_scale, "global_scale_w")
    if scales is None:
        return _rounded(name, "w", w, kind, factor)
    return quantized_matrix(name, kind, w, scales, None, factor)


def _rounded_product(name: str, x: Array, w: Array) -> Array:
    dtype = x.node.dtype
    wide = wide_dtype(dtype)
    return to_dtype(product_of(name, to_dtype(x, wide), p.matrix_transpose(to_dtype(w, wide))), dtype)
