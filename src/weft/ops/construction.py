"""Arrays from numbers of Python, NumPy and other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import wrong_type
from weft.dtypes import Dtype, as_dtype
from weft.errors import ArgumentTypeError
from weft.graph.node import Handle, wrap
from weft.ops.arguments import Array, array_of, fresh
from weft.ops.convert import as_array
from weft.ops.entrance import on_stream
from weft.ops.exchange import from_device
from weft.ops.nested import from_nested
from weft.runtime.devices import StreamOrDevice
from weft.runtime.dlpack import numpy_from_dlpack

__all__ = ["asarray", "construct", "from_dlpack"]


def construct(value: Any, dtype: Dtype | None = None, name: str = "array", argument: str = "val") -> Array:
    """A new array of ``value``; see `mx.array`. ``name`` and ``argument`` are used in messages."""
    if dtype is not None:
        dtype = as_dtype(dtype)
    elif type(value) is float:
        return wrap(p.constant.make(value, dtypes.float32))
    if isinstance(value, Handle):
        found = as_array(value, dtype)
        return fresh(found) if found is value else found
    if isinstance(value, (bool, int, float, complex)):
        return array_of(name, argument, value, dtype)
    if isinstance(value, (list, tuple)):
        return from_nested(name, value, dtype)
    on_device = None if isinstance(value, (np.ndarray, np.generic, str)) else from_device(value, dtype)
    if on_device is not None:
        return on_device
    return array_of(name, argument, _foreign(value), dtype)


def _foreign(value: Any) -> Any:
    """NumPy data, in the byte order of the machine, from an object that provides it by one of several protocols."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, (np.generic, str)) or hasattr(value, "__mlx_array__"):
        return value
    if _offers_dlpack(value):
        return numpy_from_dlpack(value)
    if hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return value


def _offers_dlpack(value: Any) -> bool:
    """Whether to read elements by DLPack. ``__array__`` knows no bfloat16, but may copy from another device."""
    if not hasattr(value, "__dlpack__"):
        return False
    return not hasattr(value, "__array__") or value.__dlpack_device__()[0] == 1


@on_stream
def asarray(a: Any, dtype: Dtype | None = None, *, device: StreamOrDevice = None, copy: bool | None = None) -> Array:
    """An array of ``a``, which may already be one.

    Args:
        a: a number, nested lists, an array, or NumPy data; see `mx.array`.
        dtype: of the elements; that of ``a`` if None.
        device: where the elements must be; None leaves an array on its device.
        copy: False raises if a copy would be needed, as for everything but an array of that dtype; True copies an
            array, too.

    Raises:
        ValueError: a copy is needed and ``copy`` is False.

    >>> mx.asarray([1, 2])
    array([1, 2], dtype=int32)
    """
    if not (copy is None or isinstance(copy, bool)):
        raise wrong_type("asarray", "copy", "True, False or None", copy)
    if copy is False and not (isinstance(a, Handle) and (dtype is None or dtype is a.node.dtype)):
        raise ValueError("[asarray] This cannot be made an array of that dtype without a copy; leave copy=False out.")
    array = construct(a, dtype, "asarray", "a")
    return p.copy(array) if copy and isinstance(a, Handle) else array


@on_stream
def from_dlpack(x: Any, /, *, device: StreamOrDevice = None, copy: bool | None = None) -> Array:
    """An array from another library's array, through DLPack.

    Elements on the CPU are copied. Elements on a GPU are shared: if the other library changes them later, the result
    changes, too. float64 is converted to float32, which takes a copy.

    Args:
        x: an object with ``__dlpack__`` on the CPU or on an NVIDIA GPU.
        device: where the elements must be; None for the default device.
        copy: True also copies elements of a GPU. False raises where a copy is needed.

    Raises:
        TypeError: ``x`` offers no DLPack.
        ValueError: ``copy`` is False, and ``x`` is on the CPU.
        BufferError: ``x`` is on a device that Weft does not know, or cannot be shared and ``copy`` is False.

    >>> import numpy as np
    >>> mx.from_dlpack(np.arange(3, dtype=np.int32))
    array([0, 1, 2], dtype=int32)
    """
    if isinstance(x, Handle):
        return asarray(fresh(x), copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(f"[from_dlpack] x must have __dlpack__; {type(x).__name__} has not. Use mx.array.")
    shared = from_device(x, copy=copy)
    if shared is not None:
        return shared
    if copy is False:
        raise ValueError("[from_dlpack] Memory of another library on the CPU is always copied; leave copy=False out.")
    return construct(numpy_from_dlpack(x), None, "from_dlpack", "x")
