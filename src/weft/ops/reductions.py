"""Functions that reduce axes: sums, extremes, moments and functions made of them."""

from __future__ import annotations

import builtins
import math
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import AnyExtent, agree, decide_equal, largest, product
from weft.ops.arguments import (
    Array,
    array_argument,
    axes_of,
    axis_of,
    extent_constant,
    fresh,
    inexact,
    integer_of,
    real_number,
    shape_text,
    to_dtype,
)
from weft.ops.replays import replayed
from weft.primitives.reductions import Reduction
from weft.runtime.devices import StreamOrDevice

Axis = int | list[int] | tuple[int, ...] | None

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "logsumexp",
    "max",
    "mean",
    "min",
    "minmax",
    "prod",
    "softmax",
    "std",
    "sum",
    "var",
]


def whole_sum_dtype(dtype: Dtype) -> Dtype:
    """The dtype of sums and products of ``dtype``: small integers and booleans are summed in 32 bits."""
    if dtype.is_inexact or dtype.size >= 4:
        return dtype
    return dtypes.uint32 if dtype.is_integer and not dtype.is_signed else dtypes.int32


def _reduced(primitive: Reduction, x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    result = primitive(x, axes=axes)
    return p.expand(result, axes=axes) if keepdims and axes else result


@replayed
def sum(
    a: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Dtype | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The sum over axes; for booleans and integers of less than 32 bits, in int32 or uint32.

    Args:
        axis: an axis, several, or None for all.
        keepdims: keep the axes, with extent 1.
        dtype: the dtype to which elements are converted before they are added.

    Raises:
        AxisError: there is no such axis; the error is a ValueError and an IndexError.

    >>> mx.sum(mx.array([[1, 2], [3, 4]]), axis=0)
    array([4, 6], dtype=int32)
    """
    return _total("sum", p.sum, a, axis, keepdims, dtype)


@replayed
def prod(
    a: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    dtype: Dtype | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The product over axes; for booleans and integers of less than 32 bits, in int32 or uint32.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.
        dtype: the dtype to which elements are converted before they are multiplied.

    >>> mx.prod(mx.array([[1, 2], [3, 4]]), axis=1)
    array([2, 12], dtype=int32)
    """
    return _total("prod", p.prod, a, axis, keepdims, dtype)


def _total(name: str, primitive: Reduction, a: Any, axis: Axis, keepdims: bool, dtype: Dtype | None) -> Array:
    x = array_argument(name, a)
    axes = axes_of(name, axis, x.node.ndim)
    x = to_dtype(x, whole_sum_dtype(x.node.dtype) if dtype is None else as_dtype(dtype))
    return _reduced(primitive, x, axes, keepdims)


def _plain(name: str, primitive: Reduction, a: Any, axis: Axis, keepdims: bool) -> Array:
    x = array_argument(name, a)
    return _reduced(primitive, x, axes_of(name, axis, x.node.ndim), keepdims)


@replayed
def max(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The largest element over axes; NaN if one is NaN. Complex numbers are compared by real, then by imaginary part.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    Raises:
        ValueError: there are no elements.

    >>> mx.max(mx.array([[1, 4], [3, 2]]), axis=0)
    array([3, 4], dtype=int32)
    """
    return _plain("max", p.max_, a, axis, keepdims)


@replayed
def min(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The smallest element over axes; NaN if one is NaN. Complex numbers are compared by real, then by imaginary part.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    Raises:
        ValueError: there are no elements.

    >>> mx.min(mx.array([[1, 4], [3, 2]]), axis=0)
    array([1, 2], dtype=int32)
    """
    return _plain("min", p.min_, a, axis, keepdims)


@replayed
def minmax(
    a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None
) -> tuple[Array, Array]:
    """`min` and `max` together.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.minmax(mx.array([3, 1, 2]))
    (array(1, dtype=int32), array(3, dtype=int32))
    """
    x = array_argument("minmax", a)
    axes = axes_of("minmax", axis, x.node.ndim)
    if builtins.any(agree(x.node.shape[axis], 0) for axis in axes):
        raise ValueError(f"[minmax] Cannot reduce axes {axes} of shape {shape_text(x.node.shape)}: no elements.")
    return _reduced(p.min_, x, axes, keepdims), _reduced(p.max_, x, axes, keepdims)


@replayed
def all(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """Whether all elements over axes are different from zero.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.all(mx.array([[1, 0], [1, 1]]), axis=1)
    array([False, True], dtype=bool)
    """
    return _plain("all", p.all_, a, axis, keepdims)


@replayed
def any(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """Whether any element over axes is different from zero.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.any(mx.array([[1, 0], [0, 0]]), axis=1)
    array([True, False], dtype=bool)
    """
    return _plain("any", p.any_, a, axis, keepdims)


@replayed
def count_nonzero(a: Array, /, *, axis: Axis = None, keepdims: bool = False, stream: StreamOrDevice = None) -> Array:
    """How many elements over axes are not zero, as int32.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.count_nonzero(mx.array([0, 2, 0, 3]))
    array(2, dtype=int32)
    """
    x = array_argument("count_nonzero", a)
    axes = axes_of("count_nonzero", axis, x.node.ndim)
    ones = p.cast(to_dtype(x, dtypes.bool_), dtype=dtypes.int32)
    return _reduced(p.sum, ones, axes, keepdims)


@replayed
def argmax(a: Array, /, axis: int | None = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The index of the largest element along an axis, as uint32: the first of equal ones, or that of the first NaN.

    Args:
        axis: the axis; None for the flattened array.
        keepdims: keep the axes, with extent 1.

    Raises:
        ValueError: there are no elements.

    >>> mx.argmax(mx.array([[1, 4], [3, 2]]), axis=1)
    array([1, 0], dtype=uint32)
    """
    return _index_of("argmax", p.argmax, a, axis, keepdims)


@replayed
def argmin(a: Array, /, axis: int | None = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The index of the smallest element along an axis, as uint32: the first of equal ones, or that of the first NaN.

    Args:
        axis: the axis; None for the flattened array.
        keepdims: keep the axes, with extent 1.

    Raises:
        ValueError: there are no elements.

    >>> mx.argmin(mx.array([[1, 4], [3, 2]]), axis=1)
    array([0, 1], dtype=uint32)
    """
    return _index_of("argmin", p.argmin, a, axis, keepdims)


def _index_of(name: str, primitive: Reduction, a: Any, axis: int | None, keepdims: bool) -> Array:
    x = array_argument(name, a)
    if axis is not None:
        return _reduced(primitive, x, (axis_of(name, axis, x.node.ndim),), keepdims)
    ndim = x.node.ndim
    result = primitive(p.reshape(x, shape=(x.node.size,)), axes=(0,))
    return p.expand(result, axes=tuple(range(ndim))) if keepdims and ndim else result


def _halves_widened(dtype: Dtype) -> Dtype:
    """float32 for half precision, because its sums and squares overflow long before its means do."""
    dtype = inexact(dtype)
    return dtypes.float32 if dtype.is_floating and dtype.size == 2 else dtype


def _mean_of(x: Array, axes: tuple[int, ...]) -> Array:
    count = product([x.node.shape[axis] for axis in axes])
    return p.divide(p.sum(x, axes=axes), extent_constant(count, x.node.dtype))


@replayed
def mean(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The mean over axes; of integers in float32; half precision is computed in float32.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.mean(mx.array([[1, 2], [3, 5]]), axis=1)
    array([1.5, 4], dtype=float32)
    """
    x = array_argument("mean", a)
    axes = axes_of("mean", axis, x.node.ndim)
    dtype = inexact(x.node.dtype)
    result = to_dtype(_mean_of(to_dtype(x, _halves_widened(dtype)), axes), dtype)
    return p.expand(result, axes=axes) if keepdims and axes else result


@replayed
def var(
    a: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: int = 0,
    *,
    correction: float | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The variance over axes: the sum of squared distances from the mean, divided by the count n minus ``ddof``.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.
        ddof: 0 for the variance of these numbers, 1 for an unbiased estimate from a sample.
        correction: what is subtracted from n instead of ``ddof``; it may be a fraction.

    >>> mx.var(mx.array([1.0, 2.0, 3.0, 4.0]))
    array(1.25, dtype=float32)
    """
    return _moment("var", a, axis, keepdims, _subtracted("var", ddof, correction), False)


@replayed
def std(
    a: Array,
    /,
    axis: Axis = None,
    keepdims: bool = False,
    ddof: int = 0,
    *,
    correction: float | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The standard deviation over axes: the square root of `var`.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.
        ddof, correction: as for `var`.

    >>> mx.std(mx.array([1.0, 2.0, 3.0, 4.0]))
    array(1.11803, dtype=float32)
    """
    return _moment("std", a, axis, keepdims, _subtracted("std", ddof, correction), True)


def _subtracted(name: str, ddof: Any, correction: Any) -> Any:
    """The number that is subtracted from the count: an int, or a fraction given as ``correction``."""
    if correction is None:
        return integer_of(name, "ddof", ddof)
    number = real_number(name, "correction", correction)
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _divided(total: Array, count: AnyExtent, subtracted: float) -> Array:
    """``total`` over ``count`` minus the subtracted number, or over 0 if that is negative."""
    dtype = total.node.dtype
    if isinstance(subtracted, int):
        return p.divide(total, extent_constant(largest(count - subtracted, 0), dtype))
    rest = extent_constant(count, dtype) - subtracted
    divisor = p.maximum(rest, p.zeros_like(rest))
    if total.node.ndim:
        divisor = p.broadcast(p.expand(divisor, axes=range(total.node.ndim)), shape=total.node.shape)
    return p.divide(total, divisor)


def _moment(name: str, a: Any, axis: Axis, keepdims: bool, subtracted: float, rooted: bool) -> Array:
    x = array_argument(name, a)
    axes = axes_of(name, axis, x.node.ndim)
    dtype = inexact(x.node.dtype)
    x = to_dtype(x, _halves_widened(dtype))
    centre = _mean_of(x, axes)
    if axes:
        centre = p.broadcast(p.expand(centre, axes=axes), shape=x.node.shape)
    squares = _squared_magnitude(p.subtract(x, centre))
    count = product([x.node.shape[axis] for axis in axes])
    result = _divided(p.sum(squares, axes=axes), count, subtracted)
    if rooted:
        result = p.sqrt(result)
    if dtype.is_floating:
        result = to_dtype(result, dtype)
    return p.expand(result, axes=axes) if keepdims and axes else result


def _squared_magnitude(x: Array) -> Array:
    if not x.node.dtype.is_complex:
        return p.square(x)
    parts = (p.square(p.real(x)), p.square(p.imag(x)))
    return p.add(*parts)


def _spread_maximum(x: Array, axes: tuple[int, ...]) -> Array:
    """The largest real part over ``axes``, repeated along these, as a constant for derivatives."""
    real = p.real(x) if x.node.dtype.is_complex else x
    largest = p.stop_gradient(p.max_(real, axes=axes))
    return p.expand(largest, axes=axes) if axes else largest


def _is_empty(x: Array, axes: tuple[int, ...]) -> bool:
    """Whether there are no elements to reduce."""
    return builtins.any(decide_equal(x.node.shape[axis], 0) for axis in axes)


@replayed
def logsumexp(a: Array, /, axis: Axis = None, keepdims: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """log(sum(exp(a))) over axes without overflow; integers are computed in float32. For no elements it is -inf.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        keepdims: keep the axes, with extent 1.

    >>> mx.logsumexp(mx.array([1000.0, 1000.0]))
    array(1000.69, dtype=float32)
    """
    x = array_argument("logsumexp", a)
    axes = axes_of("logsumexp", axis, x.node.ndim)
    dtype = inexact(x.node.dtype)
    x = to_dtype(x, _halves_widened(dtype))
    if _is_empty(x, axes):
        result = to_dtype(p.log(p.sum(x, axes=axes)), dtype)
        return p.expand(result, axes=axes) if keepdims else result
    largest = _spread_maximum(x, axes)
    finite = p.less(p.absolute(largest), math.inf)
    shift = to_dtype(p.select(finite, largest, p.zeros_like(largest)), x.node.dtype)
    spread = p.broadcast(shift, shape=x.node.shape) if axes else shift
    total = p.sum(p.exp(p.subtract(x, spread)), axes=axes)
    flat = p.squeeze(shift, axes=axes) if axes else shift
    result = to_dtype(p.add(p.log(total), flat), dtype)
    return p.expand(result, axes=axes) if keepdims and axes else result


@replayed
def softmax(a: Array, /, axis: Axis = None, *, precise: bool = False, stream: StreamOrDevice = None) -> Array:
    """exp(a) / sum(exp(a)) over axes without overflow; integers and half precision are computed in float32.

    Args:
        axis: an axis, several, or None for all; `AxisError` where one does not exist.
        precise: accepted for compatibility with MLX; without effect.

    >>> mx.softmax(mx.array([[0.0, 0.0], [1000.0, 0.0]]), axis=-1)
    array([[0.5, 0.5],
           [1, 0]], dtype=float32)
    """
    x = array_argument("softmax", a)
    axes = axes_of("softmax", axis, x.node.ndim)
    dtype = inexact(x.node.dtype)
    x = to_dtype(x, _halves_widened(dtype))
    if _is_empty(x, axes):
        return to_dtype(fresh(x), dtype)
    shape = x.node.shape
    largest = to_dtype(_spread_maximum(x, axes), x.node.dtype)
    spread = p.broadcast(largest, shape=shape) if axes else largest
    powers = p.exp(p.subtract(x, spread))
    total = p.sum(powers, axes=axes)
    if axes:
        total = p.broadcast(p.expand(total, axes=axes), shape=shape)
    return to_dtype(p.divide(powers, total), dtype)
