"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import wrong_type
from weft.graph.extents import AnyExtent, agree, decide_equal, derived, identical, named, product
from weft.graph.node import Shape
from weft.ops.arguments import (
    Array,
    axis_of,
    broadcast,
    broadcast_all,
    broadcasted_shape,
    count_of,
    distinct_axes,
    promoted,
    real_number,
    shape_text,
)
from weft.ops.reductions import whole_sum_dtype
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["addmm", "inner", "kron", "matmul", "outer", "tensordot", "vecdot"]


def _operands(name: str, a: Any, b: Any) -> list[Array]:
    """Two arrays, converted to one dtype."""
    operands = promoted(name, (a, b))
    if operands[0].node.dtype is dtypes.bool_:
        raise ValueError(
            f"[{name}] Matrix products are of numbers; the operands are bool. "
            "Convert one of them first, for example with astype(mx.int32)."
        )
    return operands


@replayed
def matmul(a: Array, b: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The products of the matrices in the last two axes; the axes in front are broadcast.

    On the left a vector is a row, on the right a column, and its axis is not in the result.

    Args:
        a: ``(..., M, K)`` or ``(K,)``. Sums of integers wrap around in their dtype.
        b: ``(..., K, N)`` or ``(K,)``.

    Returns:
        ``(..., M, N)``.

    Raises:
        ValueError: an argument is boolean or has no dimensions, or shapes do not fit.

    >>> mx.matmul(mx.array([[1.0, 2.0], [3.0, 4.0]]), mx.array([1.0, 1.0]))
    array([3, 7], dtype=float32)
    """
    x, y = _operands("matmul", a, b)
    return product_of("matmul", x, y)


def check_shapes(name: str, left: Shape, right: Shape) -> None:
    """Raise unless matrices or vectors of these shapes can be multiplied."""
    if not left or not right:
        raise ValueError(
            f"[{name}] Operands need at least one dimension; got shapes {shape_text(left)} and {shape_text(right)}."
        )
    if not agree(left[-1], right[-2 if len(right) > 1 else 0]):
        raise ValueError(
            f"[{name}] Shapes {shape_text(left)} and {shape_text(right)} do not fit: the last axis of the first must "
            f"have the extent of the {'second to last' if len(right) > 1 else 'only'} axis of the second."
        )


def product_of(name: str, a: Array, b: Array) -> Array:
    """`matmul` of operands of one dtype, for the function ``name``."""
    left, right = a.node.shape, b.node.shape
    check_shapes(name, left, right)
    if len(left) == len(right) == 1 and a.node.dtype.is_inexact:
        return p.dot(a, b)
    if len(left) == 1:
        a = p.expand(a, axes=(0,))
    if len(right) == 1:
        b = p.expand(b, axes=(1,))
    result = _batched(name, a, b)
    ndim = result.node.ndim
    dropped = [ndim - 2] if len(left) == 1 else []
    if len(right) == 1:
        dropped.append(ndim - 1)
    return p.squeeze(result, axes=tuple(dropped)) if dropped else result


def _batched(name: str, a: Array, b: Array) -> Array:
    left, right = a.node.shape, b.node.shape
    if len(right) == 2 and len(left) > 2:
        # Several matrices times a single one: their rows become one matrix.
        rows = p.reshape(a, shape=(product(left[:-1]), left[-1]))
        result = p.matmul(rows, b)
        return p.reshape(result, shape=(*left[:-1], right[-1]))
    batch = broadcasted_shape(name, (left[:-2], right[:-2]))
    return p.matmul(broadcast(a, (*batch, *left[-2:])), broadcast(b, (*batch, *right[-2:])))


@replayed
def addmm(
    c: Array,
    a: Array,
    b: Array,
    /,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """beta * c + alpha * (a @ b).

    Args:
        c: broadcast to the shape of the product.
        a: ``(..., M, K)`` or ``(K,)``.
        b: ``(..., K, N)`` or ``(K,)``.
        alpha: the factor of the product; an integer if the arrays are integers.
        beta: the factor of ``c``; an integer if the arrays are integers.

    Raises:
        ValueError: an argument is boolean, shapes do not fit, or a factor of integers is no integer.

    >>> mx.addmm(mx.array(1.0), mx.array([[1.0, 2.0]]), mx.array([[3.0], [4.0]]))
    array([[12]], dtype=float32)
    """
    x, y, z = promoted("addmm", (a, b, c), words=("a", "b", "c"))
    x, y = _operands("addmm", x, y)
    result = product_of("addmm", x, y)
    shape = result.node.shape
    if not agree(broadcasted_shape("addmm", (z.node.shape, shape)), shape):
        raise ValueError(f"[addmm] c of shape {shape_text(z.node.shape)} does not broadcast to {shape_text(shape)}.")
    result, z = _scaled("alpha", alpha, result), _scaled("beta", beta, z)
    return p.add(broadcast(z, shape), result)


def _scaled(word: str, factor: Any, x: Array) -> Array:
    dtype = x.node.dtype
    is_complex = isinstance(factor, complex) and dtype.is_complex
    number = factor if is_complex else real_number("addmm", word, factor)
    if isinstance(number, float) and not dtype.is_inexact:
        if not number.is_integer():
            raise ValueError(f"[addmm] {word} must be a whole number for arrays of {dtype.name}, not {number}.")
        number = int(number)
    return x if identical(number, 1) else p.multiply(x, number)


def _contracted(name: str, a: Array, b: Array, axes_a: Sequence[int], axes_b: Sequence[int]) -> Array:
    """The sum of products over pairs of axes, as one matrix product unless all axes are summed over."""
    left, right = a.node.shape, b.node.shape
    if not all(decide_equal(left[i], right[j]) for i, j in zip(axes_a, axes_b, strict=True)):
        raise ValueError(
            f"[{name}] Shapes {shape_text(left)} and {shape_text(right)} differ in the axes {tuple(axes_a)} and "
            f"{tuple(axes_b)} that are summed over."
        )
    if len(axes_a) == len(left) and len(axes_b) == len(right) and a.node.dtype.is_inexact:
        x, y = p.transpose(a, axes=tuple(axes_a)), p.transpose(b, axes=tuple(axes_b))
        return p.dot(*[p.reshape(one, shape=(product(left),)) for one in (x, y)])
    rows = [axis for axis in range(len(left)) if axis not in axes_a]
    columns = [axis for axis in range(len(right)) if axis not in axes_b]
    inner = product([left[axis] for axis in axes_a])
    row_shape = [left[axis] for axis in rows]
    column_shape = [right[axis] for axis in columns]
    x = p.transpose(a, axes=(*rows, *axes_a))
    y = p.transpose(b, axes=(*axes_b, *columns))
    x = p.reshape(x, shape=(product(row_shape), inner))
    y = p.reshape(y, shape=(inner, product(column_shape)))
    return p.reshape(p.matmul(x, y), shape=(*row_shape, *column_shape))


@replayed
def tensordot(a: Array, b: Array, /, axes: int | Sequence[Any] = 2, *, stream: StreamOrDevice = None) -> Array:
    """The sum of products over axes of both arrays.

    Args:
        axes: the number of last axes of ``a`` and first axes of ``b``; or the axes of each, as two lists.

    Raises:
        ValueError: an argument is boolean, or the extents of axes differ.

    >>> mx.tensordot(mx.ones((2, 3)), mx.ones((3, 4)), 1).shape
    (2, 4)
    """
    x, y = _operands("tensordot", a, b)
    left, right = x.node.ndim, y.node.ndim
    if isinstance(axes, (list, tuple)):
        axes_a, axes_b = _two_lists(axes, left, right)
    else:
        count = count_of("tensordot", "axes", axes)
        if count > min(left, right):
            raise ValueError(f"[tensordot] Cannot sum over {count} axes of arrays with {left} and {right} dimensions.")
        axes_a, axes_b = range(left - count, left), range(count)
    return _contracted("tensordot", x, y, axes_a, axes_b)


def _two_lists(axes: Sequence[Any], left: int, right: int) -> tuple[Sequence[int], Sequence[int]]:
    if len(axes) != 2 or not all(isinstance(one, (list, tuple)) for one in axes):
        raise wrong_type("tensordot", "axes", "an int or two lists of axes", axes)
    if len(axes[0]) != len(axes[1]):
        raise ValueError(
            f"[tensordot] {len(axes[0])} axes of the first array are paired with {len(axes[1])} of the second."
        )
    return distinct_axes("tensordot", axes[0], left), distinct_axes("tensordot", axes[1], right)


@replayed
def inner(a: Array, b: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The sum of products over the last axis of both; with a 0-d array, the product.

    Args:
        a, b: ``(..., K)``; the result has the other axes of ``a``, then those of ``b``.

    >>> mx.inner(mx.array([1.0, 2.0]), mx.array([3.0, 4.0]))
    array(11, dtype=float32)
    """
    x, y = promoted("inner", (a, b))
    if x.node.ndim == 0 or y.node.ndim == 0:
        return p.multiply(*broadcast_all("inner", (x, y)))
    x, y = _operands("inner", x, y)
    return _contracted("inner", x, y, [x.node.ndim - 1], [y.node.ndim - 1])


@replayed
def outer(a: Array, b: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The products of every element of ``a`` with every element of ``b``: ``(M,)`` and ``(N,)`` give ``(M, N)``.

    Arrays with more axes are flattened.

    >>> mx.outer(mx.array([1, 2]), mx.array([3, 4]))
    array([[3, 4],
           [6, 8]], dtype=int32)
    """
    x, y = promoted("outer", (a, b))
    m, n = x.node.size, y.node.size
    column = p.broadcast(p.reshape(x, shape=(m, 1)), shape=(m, n))
    row = p.broadcast(p.reshape(y, shape=(1, n)), shape=(m, n))
    return p.multiply(column, row)


@replayed
def vecdot(a: Array, b: Array, /, *, axis: int = -1, stream: StreamOrDevice = None) -> Array:
    """The sum of conj(a) * b over an axis; the other axes are broadcast.

    Args:
        a, b: arrays, promoted to one dtype.
        axis: the axis that is summed.

    Raises:
        ValueError: the extents along ``axis`` differ, or the other axes do not broadcast.

    >>> mx.vecdot(mx.array([[1, 2], [3, 4]]), mx.array([[1, 1], [1, 1]]))
    array([3, 7], dtype=int32)
    """
    x, y = promoted("vecdot", (a, b), whole_sum_dtype)
    shape = broadcasted_shape("vecdot", (x.node.shape, y.node.shape))
    along = axis_of("vecdot", axis, len(shape))
    left, right = [_extent_from_end(one, along - len(shape)) for one in (x, y)]
    if not agree(left, right):
        raise ValueError(
            f"[vecdot] Shapes {shape_text(x.node.shape)} and {shape_text(y.node.shape)} do not fit: along axis {axis} "
            "the extents must be equal, because only the other axes are broadcast."
        )
    # For another shape of the same shapeless trace, the extent is computed again.
    shape = (*shape[:along], derived(_common_extent, left, right), *shape[along + 1 :])
    x, y = broadcast(x, shape), broadcast(y, shape)
    if x.node.dtype.is_complex:
        x = p.conjugate(x)
    return p.sum(p.multiply(x, y), axes=(along,))


@named
def _common_extent(left: int, right: int) -> int:
    if left != right:
        raise ValueError(f"[vecdot] The extents {left} and {right} along the axis differ.")
    return left


def _extent_from_end(x: Array, axis: int) -> AnyExtent:
    """The extent of an axis that is counted from the end; 0 if there is no such axis."""
    extent: int = x.node.shape[axis] if -axis <= x.node.ndim else 0
    return extent


@replayed
def kron(a: Array, b: Array, *, stream: StreamOrDevice = None) -> Array:
    """The Kronecker product: every element of ``a`` replaced by its product with ``b``.

    Args:
        a, b: arrays; the one with fewer dimensions gets axes of extent 1 in front.

    >>> mx.kron(mx.array([1, 2]), mx.array([1, 10]))
    array([1, 10, 2, 20], dtype=int32)
    """
    x, y = promoted("kron", (a, b))
    ndim = max(x.node.ndim, y.node.ndim)
    left = (*([1] * (ndim - x.node.ndim)), *x.node.shape)
    right = (*([1] * (ndim - y.node.ndim)), *y.node.shape)
    pairs = tuple([n for pair in zip(left, right, strict=True) for n in pair])
    x = p.reshape(x, shape=tuple([n for extent in left for n in (extent, 1)]))
    y = p.reshape(y, shape=tuple([n for extent in right for n in (1, extent)]))
    products = p.multiply(broadcast(x, pairs), broadcast(y, pairs))
    return p.reshape(products, shape=tuple([m * n for m, n in zip(left, right, strict=True)]))
