"""NumPy arrays and buffers: copied in, looked at without a copy on the way out."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from weft import dtypes
from weft.dtypes import Dtype
from weft.runtime.host import host
from weft.runtime.memory import Buffer, View, contiguous_strides, span_of
from weft.runtime.transfers import on_host

_SMALL = 4096
"""Up to this many bytes an intermediate copy costs less than a NumPy view of the buffer."""


def from_numpy(array: np.ndarray[Any, Any]) -> View:
    """A row-major copy of ``array`` in a buffer of its own; the elements keep their bits."""
    size = array.nbytes
    view = View(Buffer(host, size), 0, contiguous_strides(array.shape))
    if size <= _SMALL:
        ctypes.memmove(view.address, array.tobytes(), size)
    else:
        target = _memory(view, array.shape, array.dtype.itemsize, f"V{array.dtype.itemsize}", writable=True)
        np.copyto(target.view(array.dtype), array)
    return view


def is_on_host(view: View) -> bool:
    """Whether NumPy can see the elements without a copy."""
    return view.buffer.engine is host


def in_host_memory(view: View, shape: tuple[int, ...], dtype: Dtype) -> View:
    """The same elements in memory that NumPy can see."""
    return view if is_on_host(view) else on_host(view, span_of(shape, view.strides, dtype.size))


def to_numpy(view: View, shape: tuple[int, ...], dtype: Dtype, writable: bool = False) -> np.ndarray[Any, Any]:
    """The elements of ``view`` as a NumPy array without a copy, which keeps the buffer alive.

    It is read-only unless ``writable`` is asked for: arrays that share the buffer would change with it.
    """
    if dtype is dtypes.bfloat16:
        return _memory(view, shape, 2, "V2", writable).view(dtype.numpy)
    return _memory(view, shape, dtype.size, dtype.numpy.str, writable)


_FORMATS = {
    dtypes.bool_: "?",
    dtypes.uint8: "B",
    dtypes.uint16: "H",
    dtypes.uint32: "I",
    dtypes.uint64: "Q",
    dtypes.int8: "b",
    dtypes.int16: "h",
    dtypes.int32: "i",
    dtypes.int64: "q",
    dtypes.float16: "e",
    dtypes.float32: "f",
    dtypes.float64: "d",
    dtypes.complex64: "ff",
}


def scalar(view: View, dtype: Dtype) -> Any:
    """The first element of ``view`` as a Python number."""
    data = ctypes.string_at(on_host(view, (0, dtype.size)).address, dtype.size)
    if dtype is dtypes.bfloat16:
        return struct.unpack("<f", bytes(2) + data)[0]
    numbers = struct.unpack(f"={_FORMATS[dtype]}", data)
    return complex(*numbers) if dtype.is_complex else numbers[0]


def whole_buffer(view: View) -> np.ndarray[Any, Any]:
    """All bytes of the buffer of ``view``, read-only."""
    return _memory(View(view.buffer, 0, (1,)), (view.buffer.size,), 1, "|u1", writable=False)


class _Memory:
    """What NumPy asks for the memory of; as the base of the array it made, it holds the buffer."""

    __slots__ = ("__array_interface__", "_buffer")

    def __init__(self, interface: dict[str, Any], buffer: Buffer) -> None:
        self.__array_interface__ = interface
        self._buffer = buffer


def _memory(view: View, shape: tuple[int, ...], itemsize: int, typestr: str, writable: bool) -> np.ndarray[Any, Any]:
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": typestr,
        "data": (view.address, not writable),
        "strides": tuple([stride * itemsize for stride in view.strides]),
    }
    return np.asarray(_Memory(interface, view.buffer))
