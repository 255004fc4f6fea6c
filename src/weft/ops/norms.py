"""Norms of vectors and matrices, and cross products: the part of ``mx.linalg`` that is made of other operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import wrong_type
from weft.graph.extents import decide_equal
from weft.ops.arguments import (
    Array,
    array_argument,
    axis_of,
    broadcast,
    broadcasted_shape,
    distinct_axes,
    entries_of,
    integer_of,
    promoted,
    real_number,
    shape_text,
    to_dtype,
)
from weft.ops.reductions import max as largest
from weft.ops.reductions import min as smallest
from weft.ops.reductions import sum as total
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["cross", "norm"]

_MATRIX_ORDERS = "1, -1, 2, -2, inf, -inf, 'fro' or 'nuc'"


@replayed
def norm(
    a: Array,
    /,
    ord: int | float | str | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """Norms of vectors or matrices.

    ====== ============================ ===================================
    ord    of matrices                  of vectors
    ====== ============================ ===================================
    None   as for 'fro'                 as for 2
    'fro'  root of the sum of squares   no such norm
    'nuc'  sum of the singular values   no such norm
    inf    largest sum of a row         largest absolute value
    -inf   smallest sum of a row        smallest absolute value
    0      no such norm                 number of elements that are not 0
    1      largest sum of a column      sum of absolute values
    -1     smallest sum of a column     as for others
    2      largest singular value       root of the sum of squares
    -2     smallest singular value      as for others
    others no such norm                 ``sum(abs(a) ** ord) ** (1 / ord)``
    ====== ============================ ===================================

    Args:
        a: an array; integers are converted to float32.
        ord: the norm.
        axis: one axis for vectors, two for matrices (rows, columns). By default all, which must be one or two unless
            ``ord`` is None.
        keepdims: keep the axes, with extent 1.

    Returns:
        The norms, which are real.

    Raises:
        ValueError: there is no such norm, or too many axes are given.
        IndexError: there is no such axis.

    >>> mx.linalg.norm(mx.array([3.0, 4.0]))
    array(5, dtype=float32)
    >>> mx.linalg.norm(mx.array([[1.0, -2.0], [3.0, 4.0]]), 1)
    array(6, dtype=float32)
    """
    x = array_argument("linalg.norm", a)
    return norm_over("linalg.norm", x, ord, _axes("linalg.norm", axis, x.node.ndim), keepdims)


def norm_over(name: str, x: Array, order: Any, axes: tuple[int, ...], keepdims: bool) -> Array:
    """`norm` over axes that are counted from the front. Messages name the function ``name``."""
    dtype = x.node.dtype
    if not dtype.is_inexact:
        x = to_dtype(x, dtypes.float32)
    elif dtype in (dtypes.float16, dtypes.bfloat16):
        return to_dtype(_norm(name, to_dtype(x, dtypes.float32), order, axes, keepdims), dtype)
    return _norm(name, x, order, axes, keepdims)


def _axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes in the given order: rows first."""
    if axis is None:
        return tuple(range(ndim))
    return distinct_axes(name, entries_of(axis), ndim)


def _norm(name: str, x: Array, order: Any, axes: tuple[int, ...], keepdims: bool) -> Array:
    if order is None:
        return _root_of_squares(x, axes, keepdims)
    if isinstance(order, str):
        if len(axes) != 2 or order not in ("fro", "f", "nuc"):
            raise ValueError(
                f"[{name}] There is no norm {order!r} over {len(axes)} ax{'i' if len(axes) == 1 else 'e'}s: 'fro' and "
                "'nuc' are norms of matrices, over two axes."
            )
        if order == "nuc":
            return _of_singular_values(x, axes, keepdims, total)
        return _root_of_squares(x, axes, keepdims)
    number = real_number(name, "ord", order)
    if isinstance(number, bool):
        raise wrong_type(name, "ord", "a number, a string or None", order)
    if len(axes) == 1:
        return _of_vectors(x, number, axes[0], keepdims)
    if len(axes) == 2:
        return _of_matrices(name, x, number, axes, keepdims)
    raise ValueError(f"[{name}] With ord={order} a norm is over one axis or two, not {len(axes)}: name them with axis.")


def _root_of_squares(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
    parts = [p.real(x), p.imag(x)] if x.node.dtype.is_complex else [x]
    squares = sum([p.square(part) for part in parts[1:]], p.square(parts[0]))
    return p.sqrt(total(squares, tuple(axes), keepdims))


def _of_vectors(x: Array, order: float, axis: int, keepdims: bool) -> Array:
    if order == 2:
        return _root_of_squares(x, (axis,), keepdims)
    sizes = p.absolute(x)
    if order == math.inf:
        return largest(sizes, axis, keepdims)
    if order == -math.inf:
        return smallest(sizes, axis, keepdims)
    if order == 0:
        return total(p.cast(p.not_equal(sizes, 0), dtype=sizes.node.dtype), axis, keepdims)
    if order == 1:
        return total(sizes, axis, keepdims)
    return total(sizes**order, axis, keepdims) ** (1 / order)


def _of_matrices(name: str, x: Array, order: float, axes: tuple[int, ...], keepdims: bool) -> Array:
    rows, columns = axes
    if order in (2, -2):
        return _of_singular_values(x, axes, keepdims, largest if order == 2 else smallest)
    if order in (1, -1):
        added, left = rows, columns
    elif order in (math.inf, -math.inf):
        added, left = columns, rows
    else:
        raise ValueError(f"[{name}] There is no matrix norm with ord={order}; there are {_MATRIX_ORDERS}.")
    sums = total(p.absolute(x), added, True)
    found = (largest if order > 0 else smallest)(sums, left, True)
    return found if keepdims else p.squeeze(found, axes=tuple(sorted(axes)))


def _of_singular_values(x: Array, axes: tuple[int, ...], keepdims: bool, fold: Any) -> Array:
    others = [axis for axis in range(x.node.ndim) if axis not in axes]
    (values,) = p.svd(p.transpose(x, axes=(*others, *axes)), vectors=False, full=False)
    result = fold(values, -1)
    return p.expand(result, axes=tuple(sorted(axes))) if keepdims else result


@replayed
def cross(a: Array, b: Array, axis: int = -1, *, stream: StreamOrDevice = None) -> Array:
    """Cross products of vectors along an axis.

    Args:
        a: has extent 2 or 3 along the axis; the third component of vectors with two is zero.
        b: like ``a``. The other axes are broadcast.
        axis: the axis of the vectors.

    Returns:
        Vectors with three components, along the same axis.

    Raises:
        ValueError: other extents along the axis, or shapes that do not broadcast.
        IndexError: there is no such axis.

    >>> mx.linalg.cross(mx.array([1.0, 0.0, 0.0]), mx.array([0.0, 1.0, 0.0]))
    array([0, 0, 1], dtype=float32)
    """
    x, y = promoted("linalg.cross", (a, b))
    ndim = max(x.node.ndim, y.node.ndim)
    number = integer_of("linalg.cross", "An axis", axis)
    counted = min(x.node.ndim, y.node.ndim) if number < 0 else ndim
    along = axis_of("linalg.cross", number, counted) + ndim - counted
    left, right = _three_components(x, along, ndim), _three_components(y, along, ndim)
    shape = broadcasted_shape("linalg.cross", [one.node.shape for one in (*left, *right)])
    (a0, a1, a2), (b0, b1, b2) = [[broadcast(one, shape) for one in three] for three in (left, right)]
    parts = [a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0]
    return p.concatenate(*parts, axis=along)


def _three_components(x: Array, axis: int, ndim: int) -> list[Array]:
    """The components of vectors, each with extent 1 along ``axis``, with ``ndim`` axes."""
    if x.node.ndim < ndim:
        x = p.expand(x, axes=tuple(range(ndim - x.node.ndim)))
    shape = x.node.shape
    count = next((count for count in (2, 3) if decide_equal(shape[axis], count)), None)
    if count is None:
        raise ValueError(
            f"[linalg.cross] Vectors must have 2 or 3 components; axis {axis} of shape {shape_text(shape)} has another "
            "extent."
        )
    sizes = (*shape[:axis], 1, *shape[axis + 1 :])
    parts = [
        p.slice_(x, starts=tuple([k if at == axis else 0 for at in range(ndim)]), sizes=sizes, steps=(1,) * ndim)
        for k in range(count)
    ]
    return parts if count == 3 else [*parts, p.zeros_like(parts[0])]
