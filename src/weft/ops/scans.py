"""Functions that combine every element along an axis with all elements before it."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.ops.arguments import Array, array_argument, axis_of, inexact, to_dtype
from weft.ops.replays import replayed
from weft.primitives.scans import Scan
from weft.runtime.devices import StreamOrDevice

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "logcumsumexp"]


@replayed
def cumsum(
    a: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Dtype | None = None,
    include_initial: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """For every element the sum of all elements up to it along an axis; for booleans in int32.

    Sums of floating numbers are accumulated in float64, and each result is rounded once.

    Args:
        axis: the axis; None for the flattened array, with a result that has one axis.
        reverse: sum from the end.
        inclusive: whether an element is in its own sum; otherwise the first sum is 0.
        dtype: the dtype to which elements are converted before they are added.
        include_initial: begin with 0, so that there is one more result.

    Returns:
        An array of the shape of ``a``, or of as many elements if ``axis`` is None.

    Raises:
        IndexError: there is no such axis.

    >>> mx.cumsum(mx.array([[1, 2, 3], [4, 5, 6]]), axis=1)
    array([[1, 3, 6],
           [4, 9, 15]], dtype=int32)
    >>> mx.cumsum(mx.array([1, 2, 3]), reverse=True, inclusive=False)
    array([5, 3, 0], dtype=int32)
    """
    x = _converted("cumsum", a, dtype)
    if x.node.dtype.is_bool:
        x = p.cast(x, dtype=dtypes.int32)
    return _from_initial(_scanned("cumsum", p.cumsum, x, axis, reverse, inclusive), 0, axis, include_initial, reverse)


@replayed
def cumprod(
    a: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Dtype | None = None,
    include_initial: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """For every element the product of all elements up to it along an axis.

    Products of floating numbers are accumulated in float64, and each result is rounded once.

    Args:
        axis: the axis; None for the flattened array, with a result that has one axis.
        reverse: multiply from the end.
        inclusive: whether an element is in its own product; otherwise the first product is 1.
        dtype: the dtype to which elements are converted before they are multiplied.
        include_initial: begin with 1, so that there is one more result.

    Returns:
        An array of the shape of ``a``, or of as many elements if ``axis`` is None.

    Raises:
        IndexError: there is no such axis.

    >>> mx.cumprod(mx.array([1, 2, 3, 4]))
    array([1, 2, 6, 24], dtype=int32)
    """
    x = _scanned("cumprod", p.cumprod, _converted("cumprod", a, dtype), axis, reverse, inclusive)
    return _from_initial(x, 1, axis, include_initial, reverse)


@replayed
def cummax(
    a: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    stream: StreamOrDevice = None,
) -> Array:
    """For every element the largest of all elements up to it along an axis; NaN from the first NaN on.

    Complex numbers are compared by real, then by imaginary part. The derivative is that of the last of equal elements.

    Args:
        axis: the axis; None for the flattened array, with a result that has one axis.
        reverse: begin at the end.
        inclusive: whether an element is compared itself; otherwise the first result is minus infinity or the smallest
            integer.

    Returns:
        An array of the shape of ``a``, or of as many elements if ``axis`` is None.

    Raises:
        IndexError: there is no such axis.

    >>> mx.cummax(mx.array([1, 3, 2, 4]))
    array([1, 3, 3, 4], dtype=int32)
    """
    return _scanned("cummax", p.cummax, array_argument("cummax", a), axis, reverse, inclusive)


@replayed
def cummin(
    a: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    stream: StreamOrDevice = None,
) -> Array:
    """For every element the smallest of all elements up to it along an axis; NaN from the first NaN on.

    Complex numbers are compared by real, then by imaginary part. The derivative is that of the last of equal elements.

    Args:
        axis: the axis; None for the flattened array, with a result that has one axis.
        reverse: begin at the end.
        inclusive: whether an element is compared itself; otherwise the first result is infinity or the largest integer.

    Returns:
        An array of the shape of ``a``, or of as many elements if ``axis`` is None.

    Raises:
        IndexError: there is no such axis.

    >>> mx.cummin(mx.array([4, 2, 3, 1]), reverse=True)
    array([1, 1, 1, 1], dtype=int32)
    """
    return _scanned("cummin", p.cummin, array_argument("cummin", a), axis, reverse, inclusive)


@replayed
def logcumsumexp(
    a: Array,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    stream: StreamOrDevice = None,
) -> Array:
    """log(cumsum(exp(a))) without overflow; integers are computed in float32.

    Args:
        axis: the axis; None for the flattened array, with a result that has one axis.
        reverse: sum from the end.
        inclusive: whether an element is in its own sum; otherwise the first result is minus infinity.

    Returns:
        An array of the shape of ``a``, or of as many elements if ``axis`` is None.

    Raises:
        IndexError: there is no such axis.

    >>> mx.logcumsumexp(mx.array([1000.0, 1000.0, -mx.inf]))
    array([1000, 1000.69, 1000.69], dtype=float32)
    """
    x = array_argument("logcumsumexp", a)
    x = to_dtype(x, inexact(x.node.dtype))
    return _scanned("logcumsumexp", p.logcumsumexp, x, axis, reverse, inclusive)


cumulative_sum = cumsum
cumulative_prod = cumprod


def _converted(name: str, a: Any, dtype: Dtype | None) -> Array:
    x = array_argument(name, a)
    return x if dtype is None else to_dtype(x, as_dtype(dtype))


def _scanned(name: str, scan: Scan, x: Array, axis: Any, reverse: Any, inclusive: Any) -> Array:
    if axis is None:
        x, axis = p.reshape(x, shape=(x.node.size,)), 0
    return scan(x, axis=axis_of(name, axis, x.node.ndim), reverse=bool(reverse), inclusive=bool(inclusive))


def _from_initial(x: Array, value: int, axis: Any, wanted: bool, reverse: Any) -> Array:
    """The results of a scan, with ``value`` added where it begins if that is ``wanted``."""
    if not wanted:
        return x
    along = axis_of("scan", 0 if axis is None else axis, x.node.ndim)
    shape = (*x.node.shape[:along], 1, *x.node.shape[along + 1 :])
    initial = p.full(shape, value, x.node.dtype)
    return p.concatenate(*((x, initial) if reverse else (initial, x)), axis=along)
