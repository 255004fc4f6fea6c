"""Products of matrices chosen by indices, of segments of the summed axis, and of matrices with masked blocks."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.graph.extents import AnyExtent, agree, product
from weft.graph.node import Shape
from weft.ops.arguments import (
    Array,
    array_argument,
    broadcast,
    broadcasted_shape,
    integer_of,
    promoted,
    shape_text,
    to_dtype,
)
from weft.ops.axis_index import need_elements
from weft.ops.comparison import where
from weft.ops.entrance import on_stream
from weft.ops.indexing import take
from weft.ops.products import check_shapes, product_of
from weft.runtime.devices import StreamOrDevice

__all__ = ["block_masked_mm", "gather_mm", "segmented_mm"]

_BLOCK_SIZES = (32, 64)


@on_stream
def gather_mm(
    a: Array,
    b: Array,
    /,
    lhs_indices: Array | None = None,
    rhs_indices: Array | None = None,
    *,
    sorted_indices: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """Products of the matrices in the last two axes that indices choose.

    Args:
        a: ``(..., M, K)``.
        b: ``(..., K, N)``.
        lhs_indices: integers of any shape that number the matrices of ``a`` in row-major order; negative ones count
            from the end, and those out of range are moved to the nearest one inside. None for all matrices.
        rhs_indices: the same for ``b``. Both shapes of indices (or of all matrices) are broadcast.
        sorted_indices: a promise that the indices are sorted, which does not change the result.

    Returns:
        ``(..., M, N)``, where ``...`` is the shape of the indices.

    Raises:
        ValueError: indices are no integers, or shapes do not fit.

    >>> experts = mx.stack([mx.eye(2), 10 * mx.eye(2)])
    >>> mx.gather_mm(mx.ones((3, 1, 2)), experts, rhs_indices=mx.array([1, 0, 1]))
    array([[[10, 10]],
           [[1, 1]],
           [[10, 10]]], dtype=float32)
    """
    x, y = promoted("gather_mm", (a, b), words=("a", "b"))
    if x.node.ndim < 2 or y.node.ndim < 2:
        shapes = f"{shape_text(x.node.shape)} and {shape_text(y.node.shape)}"
        raise ValueError(f"[gather_mm] Operands need at least two dimensions; their shapes are {shapes}.")
    (x,) = chosen("gather_mm", [(x, lhs_indices, "lhs_indices")])
    if rhs_indices is None:
        return product_of("gather_mm", x, y)
    return _times_chosen("gather_mm", x, y, rhs_indices)


def _times_chosen(name: str, x: Array, y: Array, indices: Array) -> Array:
    """Matrices times those that indices choose."""
    check_shapes(name, x.node.shape, y.node.shape)
    *outer, inner, columns = y.node.shape
    index = chosen_index(name, tuple(outer), indices, "rhs_indices")
    *batch, rows, _ = x.node.shape
    joint = broadcasted_shape(name, (tuple(batch), index.node.shape))
    count = product(joint)
    left = p.reshape(broadcast(x, (*joint, rows, inner)), shape=(count, rows, inner))
    stack = p.reshape(y, shape=(product(outer), inner, columns))
    result = p.chosen_matmul(left, stack, p.reshape(broadcast(index, joint), shape=(count,)))
    return p.reshape(result, shape=(*joint, rows, columns))


def chosen(name: str, operands: list[tuple[Array, Array | None, str]]) -> list[Array]:
    """The matrices chosen by indices, with the shapes of all indices broadcast; each operand comes with its indices and
    their name in messages."""
    found = [_chosen(name, *operand) for operand in operands]
    batch = broadcasted_shape(name, [x.node.shape[:-2] for x in found])
    return [broadcast(x, (*batch, *x.node.shape[-2:])) for x in found]


def _chosen(name: str, x: Array, indices: Array | None, word: str) -> Array:
    if indices is None:
        return x
    index = _index(name, indices, word)
    *batch, rows, columns = x.node.shape
    return take(p.reshape(x, shape=(product(batch), rows, columns)), index, axis=0)


def chosen_index(name: str, batch: Shape, indices: Array | None, word: str) -> Array:
    """The numbers of the chosen matrices of a batch in row-major order, as int64, with negative indices counted from
    the end; all matrices without indices."""
    count = product(batch)
    if indices is None:
        return p.reshape(p.iota(shape=(count,), axis=0, dtype=dtypes.int64), shape=batch)
    index = to_dtype(_index(name, indices, word), dtypes.int64)
    need_elements(name, (count,), (0,), index)
    return p.select(p.less(index, 0), index + count, index)


def _index(name: str, indices: Array, word: str) -> Array:
    index = array_argument(name, indices, word)
    if not index.node.dtype.is_integer:
        raise ValueError(f"[{name}] {word} must be integers, not {index.node.dtype.name}.")
    return index


@on_stream
def segmented_mm(a: Array, b: Array, /, segments: Array, *, stream: StreamOrDevice = None) -> Array:
    """Products of segments: of the columns of ``a`` from a start to an end with the same rows of ``b``.

    Args:
        a: ``(M, K)``.
        b: ``(K, N)``.
        segments: integers, ``(..., 2)``: starts, and ends, which are not included. Segments may overlap, skip terms, be
            empty, and reach beyond ``K``, where there are no terms.

    Returns:
        ``(..., M, N)``.

    Raises:
        ValueError: segments are no integers, or shapes do not fit.

    >>> mx.segmented_mm(mx.ones((1, 5)), mx.ones((5, 1)), mx.array([[0, 2], [2, 5]]))
    array([[[2]],
           [[3]]], dtype=float32)
    """
    x, y = promoted("segmented_mm", (a, b), words=("a", "b"))
    parts = array_argument("segmented_mm", segments, "segments")
    left, right, wanted = x.node.shape, y.node.shape, parts.node.shape
    if not parts.node.dtype.is_integer:
        raise ValueError(f"[segmented_mm] segments must be integers, not {parts.node.dtype.name}.")
    fits = len(left) == len(right) == 2 and agree(left[1], right[0])
    if not fits or not wanted or not agree(wanted[-1], 2):
        raise ValueError(
            "[segmented_mm] The shapes must be (M, K), (K, N) and (..., 2); "
            f"they are {shape_text(left)}, {shape_text(right)} and {shape_text(wanted)}."
        )
    term = p.iota(shape=(left[1],), axis=0, dtype=dtypes.int64)
    bounds = to_dtype(parts, dtypes.int64)
    chosen_terms = (term >= bounds[..., :1]) & (term < bounds[..., 1:])
    # Both operands are masked, because zero times infinity is NaN.
    left_parts = where(chosen_terms[..., None, :], x, 0)
    right_parts = where(chosen_terms[..., None], y, 0)
    return product_of("segmented_mm", left_parts, right_parts)


@on_stream
def block_masked_mm(
    a: Array,
    b: Array,
    /,
    block_size: int = 64,
    mask_out: Array | None = None,
    mask_lhs: Array | None = None,
    mask_rhs: Array | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The product of matrices whose blocks are masked.

    A mask has an element for each block of ``block_size`` rows and columns; the last blocks may be smaller. Where a
    boolean mask is False the block counts as zeros, even if it contains NaN; the elements of other masks are factors of
    their blocks.

    Args:
        a: ``(..., M, K)``.
        b: ``(..., K, N)``.
        block_size: 32 or 64.
        mask_out: of the result, ``(..., ceil(M / block_size), ceil(N / block_size))``.
        mask_lhs: of ``a``, ``(..., ceil(M / block_size), ceil(K / block_size))``.
        mask_rhs: of ``b``, ``(..., ceil(K / block_size), ceil(N / block_size))``.

    Returns:
        ``(..., M, N)``.

    Raises:
        ValueError: another block size, or shapes that do not fit.

    >>> mx.block_masked_mm(mx.ones((2, 64)), mx.ones((64, 1)), 32, mask_lhs=mx.array([[True, False]]))
    array([[32],
           [32]], dtype=float32)
    """
    size = integer_of("block_masked_mm", "block_size", block_size)
    if size not in _BLOCK_SIZES:
        raise ValueError(f"[block_masked_mm] block_size must be 32 or 64; got {size}.")
    x, y = promoted("block_masked_mm", (a, b), words=("a", "b"))
    if x.node.ndim < 2 or y.node.ndim < 2 or not x.node.dtype.is_floating:
        operands = " and ".join([f"{shape_text(n.node.shape)} of {n.node.dtype.name}" for n in (x, y)])
        raise ValueError(f"[block_masked_mm] Operands are floating, with at least two dimensions; got {operands}.")
    x, y = _masked(x, mask_lhs, size, "mask_lhs"), _masked(y, mask_rhs, size, "mask_rhs")
    return _masked(product_of("block_masked_mm", x, y), mask_out, size, "mask_out")


def _masked(x: Array, mask: Array | None, size: int, word: str) -> Array:
    if mask is None:
        return x
    blocks = array_argument("block_masked_mm", mask, word)
    shape = x.node.shape
    high, wide = [(extent + (size - 1)) // size for extent in shape[-2:]]
    if blocks.node.ndim < 2 or not agree(blocks.node.shape[-2:], (high, wide)):
        raise ValueError(
            f"[block_masked_mm] {word} must have the shape (..., {high}, {wide}), one element for each block of {size} "
            f"rows and columns of {shape_text(shape[-2:])}; it has the shape {shape_text(blocks.node.shape)}."
        )
    joint = broadcasted_shape("block_masked_mm", [shape[:-2], blocks.node.shape[:-2]])
    factors = broadcast(_spread(blocks, size, shape), (*joint, *shape[-2:]))
    x = broadcast(x, (*joint, *shape[-2:]))
    if factors.node.dtype is dtypes.bool_:
        return p.select(factors, x, p.zeros_like(x))
    return x * to_dtype(factors, x.node.dtype)


def _spread(blocks: Array, size: int, shape: Shape) -> Array:
    """Each element of a mask, repeated over its block."""
    *outer, high, wide = blocks.node.shape
    apart = p.expand(blocks, axes=(len(outer) + 1, len(outer) + 3))
    repeated = p.broadcast(apart, shape=(*outer, high, size, wide, size))
    whole = p.reshape(repeated, shape=(*outer, high * size, wide * size))
    return _first(_first(whole, len(outer), shape[-2]), len(outer) + 1, shape[-1])


def _first(x: Array, axis: int, extent: AnyExtent) -> Array:
    shape = x.node.shape
    sizes = (*shape[:axis], extent, *shape[axis + 1 :])
    return p.slice_(x, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))
