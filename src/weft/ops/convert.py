"""Arrays from Python numbers, nested lists and NumPy data."""

from __future__ import annotations

import math
import operator
from typing import Any, Protocol, runtime_checkable

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import shown
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.extents import AnyExtent, decide, value_of
from weft.graph.node import Handle, Shape, leaf, wrap
from weft.graph.shown import Extent
from weft.graph.symbolic import SymbolicExtent
from weft.primitives.base import Array
from weft.runtime import interchange
from weft.runtime.devices import Stream
from weft.runtime.unread import Read, Unread

NumPyArray = np.ndarray[Any, Any]

__all__ = ["ArrayLike", "as_array", "fits", "from_numpy", "python_scalar", "scalar_dtype", "unread"]

_SCALARS = (bool, int, float, complex, SymbolicExtent)


@runtime_checkable
class ArrayLike(Protocol):
    """An object that can return an array, and may be given as an argument in its place.

    >>> class Pair:
    ...     def __mlx_array__(self):
    ...         return mx.array([1, 2])
    >>> mx.sum(Pair())
    array(3, dtype=int32)
    """

    def __mlx_array__(self) -> Any:
        """The array."""


def as_array(value: Any, dtype: Dtype | None = None) -> Array:
    """An array of ``value``: an array, a number, NumPy data, or nested lists and tuples of numbers.

    Numbers become constants of the graph; without ``dtype`` they are ``int32`` (``int64`` if they do not fit),
    ``float32`` or ``complex64``.

    Raises:
        TypeError: ``value`` is something else.
        ValueError: nested lists of different lengths, or a number that does not fit ``dtype``.
    """
    if isinstance(value, Handle):
        if dtype is None or value.node.dtype is dtype:
            return value
        return p.cast(value, dtype=dtype)
    if isinstance(value, _SCALARS):
        return _scalar_array(value, dtype)
    if isinstance(value, Extent):
        return _scalar_array(value.symbolic, dtype)
    if isinstance(value, (list, tuple)):
        return from_numpy(_from_sequence(value, dtype), dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return from_numpy(np.asarray(value), dtype)
    if hasattr(value, "__mlx_array__"):
        return as_array(value.__mlx_array__(), dtype)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return from_numpy(np.asarray(value), dtype)
    raise ArgumentTypeError(f"expected an array, a number, NumPy data or nested lists of numbers, got {shown(value)}")


def scalar_dtype(value: Any, other: Dtype | None = None) -> Dtype:
    """`dtypes.scalar_dtype`, also for a symbolic extent. That the extent fits the dtype is recorded as a decision."""
    if type(value) is not SymbolicExtent:
        return dtypes.scalar_dtype(value, other)
    if other is None or other.is_bool:
        other = dtypes.int32 if fits(value, dtypes.int32) else dtypes.int64
    if other.is_integer and not fits(value, other):
        return dtypes.scalar_dtype(value_of(value), other)  # raises, because it does not fit
    return other


def fits(number: AnyExtent | SymbolicExtent, dtype: Dtype) -> bool:
    """Whether a number fits an integer dtype. For an extent this is recorded as a decision."""
    if type(number) is int:
        return dtype.lowest <= number <= dtype.highest
    return decide(operator.ge, number, dtype.lowest) and decide(operator.le, number, dtype.highest)


def _scalar_array(value: Any, dtype: Dtype | None) -> Array:
    if dtype is None:
        dtype = scalar_dtype(value)
    elif type(value) in (int, SymbolicExtent) and not dtype.is_bool:
        scalar_dtype(value, dtype)  # raises if the number does not fit
    elif dtype.is_integer and not math.isfinite(value.real):
        raise ValueError(f"{value} does not fit {dtype.name}, which holds whole numbers only")
    return wrap(p.constant.make(value, dtype))


def _from_sequence(value: list[Any] | tuple[Any, ...], dtype: Dtype | None) -> NumPyArray:
    """The numbers in the dtype that they would have one by one: int32, where NumPy would take int64, if they fit."""
    values = np.array(value)
    if dtype is None and values.dtype == np.int64 and values.size:
        fits = dtypes.int32.lowest <= values.min() and values.max() <= dtypes.int32.highest
        return values.astype(np.int32) if fits else values
    return values


def from_numpy(values: NumPyArray, dtype: Dtype | None = None) -> Array:
    """An array with the elements of ``values``; without ``dtype``, float64 becomes float32.

    The elements are copied: later changes of ``values`` have no effect.
    """
    if dtype is None:
        dtype = dtypes.from_numpy(values.dtype)
    if dtype.is_integer and values.dtype.kind in "fcV":
        # In NumPy the result for NaN and for numbers that are too large depends on the processor.
        return p.cast(from_numpy(values, dtypes.float64), dtype=dtype)
    if values.dtype.kind == "c" and dtype.is_floating:
        values = values.real
    if values.dtype != dtype.numpy:
        values = _converted(values, dtype)
    return wrap(leaf(interchange.from_numpy(values), values.shape, dtype))


def from_bytes(data: bytes, shape: tuple[int, ...], dtype: Dtype) -> Array:
    """An array of a few elements, which are given row by row."""
    return wrap(leaf(interchange.from_bytes(data, shape), shape, dtype))


def _converted(values: NumPyArray, dtype: Dtype) -> NumPyArray:
    if dtype.is_integer and values.dtype.kind in "biu":  # wraps around without a warning
        return np.asarray(values, dtype=dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, dtype=dtype.numpy)


def unread(shape: Shape, strides: Shape, dtype: Dtype, read: Read, stream: Stream) -> Array:
    """An array whose elements ``read`` writes into its memory when they are first needed."""
    awaited = Unread(math.prod(shape) * dtype.size, strides, read, stream)
    return wrap(leaf(awaited.view, shape, dtype))


def python_scalar(value: Any) -> Any:
    """``value`` as a Python number if it is a number (also of NumPy) or a symbolic extent; else None."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Extent):
        return value.symbolic
    return value.item() if isinstance(value, np.generic) else None
