"""Products with quantised matrices."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.dtypes import promote
from weft.ops.arguments import Array, array_argument, shape_text, to_dtype
from weft.ops.entrance import on_stream
from weft.ops.gathered_products import chosen
from weft.ops.products import product_of
from weft.ops.quantized_formats import Format, format_of
from weft.ops.quantized_matrix import (
    QuantizedMatrix,
    check_floating_matrix,
    quantized,
    quantized_matrix,
    scale_of_all,
    wide_dtype,
)
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

    Sums are those of a product of float32 (float64) matrices, rounded once to the dtype of the result. There are
    derivatives with respect to ``x`` and, in affine modes, to ``scales`` and ``biases``.

    Args:
        x: ``(..., M, K)`` or ``(K,)``.
        w: words as `quantize` gives them, of ``(..., N, K)`` or, if not ``transpose``, ``(..., K, N)`` numbers. Axes in
            front of the last two are broadcast with those of ``x``.
        scales: one of each group along the last axis of ``w``.
        biases: of the shape of ``scales``, for affine modes.
        transpose: whether the rows of ``w`` are multiplied (``x @ w.T``) or its columns (``x @ w``).
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `quantize`.

    Returns:
        ``(..., M, N)``, in the dtype of ``x`` and ``scales`` together, for other modes than affine in that of ``x``
        (float32 for integers).

    Raises:
        ValueError: shapes or dtypes do not fit each other or the parameters.

    >>> w = mx.quantize(mx.eye(64) * 2, bits=8)
    >>> mx.quantized_matmul(mx.arange(64.0), *w, bits=8)
    array([0, 2, 4, ..., 122, 124, 126], dtype=float32)
    """
    kind = format_of("quantized_matmul", mode, group_size, bits)
    matrix = quantized_matrix("quantized_matmul", kind, w, scales, biases, None)
    return _product("quantized_matmul", array_argument("quantized_matmul", x, "x"), matrix, transpose)


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
    """`quantized_matmul` of the matrices that indices choose; see `gather_mm`.

    Args:
        x: ``(..., M, K)``.
        w: words of ``(..., N, K)`` or, if not ``transpose``, ``(..., K, N)`` numbers.
        scales: as for `quantized_matmul`.
        biases: as for `quantized_matmul`.
        lhs_indices: choose matrices of ``x``.
        rhs_indices: choose matrices of ``w``, with their scales and biases.
        transpose: whether the rows of ``w`` are multiplied.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `quantize`.
        global_scale: the one with which ``w`` was quantised.
        sorted_indices: a promise that the indices are sorted, which changes no result.

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
    left = _matrices("gather_qmm", x)
    left, matrix = _gathered("gather_qmm", left, matrix, lhs_indices, rhs_indices)
    return _product("gather_qmm", left, matrix, transpose)


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
    """The product ``x @ w.T`` of matrices that are both quantised, for floating modes.

    Derivatives are those of the product of the quantised matrices, as if quantising changed nothing.

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
    """`qqmm` of the matrices that indices choose; see `gather_mm`.

    Args:
        x: floating, ``(..., M, K)``.
        w: floating, ``(..., N, K)``, or words as `quantize` gives them.
        scales: those of ``w`` if it is quantised, else None.
        lhs_indices: choose matrices of ``x``.
        rhs_indices: choose matrices of ``w``, with their scales.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `qqmm`.
        global_scale_x: a global scale for ``x``; see `quantize`.
        global_scale_w: the same for ``w``.
        sorted_indices: a promise that the indices are sorted, which changes no result.

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
    operands = [(left, lhs_indices, "lhs_indices"), (right, rhs_indices, "rhs_indices")]
    left, right = chosen("gather_qqmm", operands)
    return _rounded_product("gather_qqmm", left, right)


def _matrices(name: str, x: Array) -> Array:
    found = array_argument(name, x, "x")
    if found.node.ndim < 2:
        raise ValueError(f"[{name}] x needs at least two dimensions; its shape is {shape_text(found.node.shape)}.")
    return found


def _product(name: str, x: Array, matrix: QuantizedMatrix, transpose: bool) -> Array:
    dtype = x.node.dtype
    if dtype.is_complex or dtype.is_bool:
        raise ValueError(f"[{name}] x must have real numbers; it has the dtype {dtype.name}.")
    dtype = promote(dtype, matrix.dtype or (dtype if dtype.is_floating else dtypes.float32))
    wide = wide_dtype(dtype)
    values = matrix.values(wide)
    if transpose:
        values = p.matrix_transpose(values)
    return to_dtype(product_of(name, to_dtype(x, wide), values), dtype)


def _gathered(
    name: str, x: Array, matrix: QuantizedMatrix, lhs_indices: Array | None, rhs_indices: Array | None
) -> tuple[Array, QuantizedMatrix]:
    """The matrices that indices choose."""
    parts = [matrix.words, matrix.scales, *([] if matrix.biases is None else [matrix.biases])]
    operands = [(part, rhs_indices, "rhs_indices") for part in parts]
    left, words, scales, *biases = chosen(name, [(x, lhs_indices, "lhs_indices"), *operands])
    return left, matrix._replace(words=words, scales=scales, biases=biases[0] if biases else None)


def _float_format(name: str, mode: str, group_size: int | None, bits: int | None) -> Format:
    kind = format_of(name, mode, group_size, bits)
    if kind.affine:
        raise ValueError(f"[{name}] quantises both matrices, in a floating mode; the mode is 'affine'.")
    return kind


def _rounded(name: str, word: str, x: Array, kind: Format, factor: Array | None) -> Array:
    """Floating matrices as their quantised numbers, with the derivative of the numbers before."""
    found = array_argument(name, x, word)
    check_floating_matrix(name, word, found, kind)
    values = to_dtype(quantized(found, kind, factor).values(wide_dtype(found.node.dtype)), found.node.dtype)
    return p.straight_through(values, found)


def _right(name: str, kind: Format, w: Array, scales: Array | None, global_scale: Array | None) -> Array:
    factor = scale_of_all(name, kind, global_scale, "global_scale_w")
    if scales is None:
        return _rounded(name, "w", w, kind, factor)
    matrix = quantized_matrix(name, kind, w, scales, None, factor)
    return matrix.values(dtypes.float32)


def _rounded_product(name: str, x: Array, w: Array) -> Array:
    dtype = x.node.dtype
    wide = wide_dtype(dtype)
    return to_dtype(product_of(name, to_dtype(x, wide), p.matrix_transpose(to_dtype(w, wide))), dtype)
