"""NumPy arrays and buffers: NumPy's data is copied in; Weft's data is shared without a copy."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from weft import dtypes
from weft.dtypes import Dtype
from weft.runtime import recording
from weft.runtime.devices import current_stream, default_device, default_stream
from weft.runtime.holders import only_known
from weft.runtime.host import host
from weft.runtime.memory import Buffer, View, contiguous_strides, export_of, shared_with_others, span_of
from weft.runtime.transfers import on_host

_SMALL = 4096
"""Up to this many bytes an intermediate copy costs less than a NumPy view of the buffer."""
_LARGE = 1 << 20
"""Arrays of fewer bytes are copied to the host without asking the engine of the current stream for its limit."""


def from_numpy(array: np.ndarray[Any, Any]) -> View:
    """A row-major copy of ``array`` in a buffer of its own; the elements keep their bits."""
    size = array.nbytes
    if size >= _LARGE:
        stream = current_stream() or default_stream(default_device())
        if size >= stream.engine.takes_at_once:
            with suppress(MemoryError):  # if it fails, the copy below is made on the host
                return _on_device(array, stream.engine)
    view = View(Buffer(host, size), 0, contiguous_strides(array.shape))
    if size <= _SMALL:
        ctypes.memmove(view.address, array.tobytes(), size)
    else:
        target = np.ndarray(array.shape, array.dtype, whole_buffer(view, writable=True))
        np.copyto(target, array)
    return view


def from_bytes(data: bytes, shape: tuple[int, ...]) -> View:
    """The elements of an array, row by row, in a buffer of their own."""
    view = View(Buffer(host, len(data)), 0, contiguous_strides(shape))
    ctypes.memmove(view.address, data, len(data))
    return view


def _on_device(array: np.ndarray[Any, Any], engine: Any) -> View:
    rows = np.ascontiguousarray(array)
    buffer = Buffer(engine, rows.nbytes)
    with recording.transfer(host.device, engine.device, rows.nbytes):
        engine.copy_in(memoryview(rows.reshape(-1).view(np.uint8).data), buffer, 0)
    return View(buffer, 0, contiguous_strides(array.shape))


def is_on_host(view: View) -> bool:
    """Whether NumPy can see the elements without a copy."""
    return view.buffer.engine is host


@lru_cache
def _small_rows(shape: tuple[int, ...], dtype: Dtype) -> tuple[int, tuple[int, ...]]:
    """The bytes of an array and its row-major strides; 0 bytes and no strides if it is larger than `_SMALL`."""
    size = math.prod(shape) * dtype.size
    return (size, contiguous_strides(shape)) if size <= _SMALL else (0, ())


def small_from_elsewhere(view: View, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray[Any, Any] | None:
    """A copy of elements on a device, if copying them each time takes less than keeping a copy for the next time; else
    None."""
    buffer = view.buffer
    engine = buffer.engine
    if engine is host:
        return None
    size, strides = _small_rows(shape, dtype)
    if not size or view.strides != strides:
        return None
    if recording.recorders:
        with recording.transfer(engine.device, host.device, size):
            return np.ndarray(shape, dtype.numpy, engine.copied_out(buffer, view.offset, size))
    return np.ndarray(shape, dtype.numpy, engine.copied_out(buffer, view.offset, size))


def in_host_memory(view: View, shape: tuple[int, ...], dtype: Dtype) -> View:
    """A view of the same elements in memory that NumPy can see."""
    return view if is_on_host(view) else on_host(view, span_of(shape, view.strides, dtype.size))


def may_be_written(view: View, shape: tuple[int, ...]) -> bool:
    """Whether writing to one element changes no other element of this or another array: elements do not overlap, only
    ``view`` and earlier exports refer to the buffer, and it is no other library's."""
    if 0 in view.strides and any(not stride and extent > 1 for extent, stride in zip(shape, view.strides, strict=True)):
        return False
    known = 1 if view.buffer.export is None or export_of(view.buffer) is None else 2
    return view.buffer.is_own and only_known((view.buffer,), (known,))


def to_numpy(view: View, shape: tuple[int, ...], dtype: Dtype, writable: bool) -> np.ndarray[Any, Any]:
    """The elements of ``view`` as a NumPy array without a copy; the array holds the buffer.

    The elements must be on the host.
    """
    if 0 in shape:  # an empty view may begin anywhere, also after the end of the buffer
        return np.empty(shape, dtype.numpy)
    return np.ndarray(
        shape, dtype.numpy, whole_buffer(view, writable), view.offset, _in_bytes(view.strides, dtype.size)
    )


@lru_cache(1024)
def _in_bytes(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides in bytes, of elements of a size."""
    return tuple([stride * size for stride in strides])


_NUMBERS: dict[Dtype, Any] = {
    dtypes.bool_: ctypes.c_bool,
    dtypes.uint8: ctypes.c_uint8,
    dtypes.uint16: ctypes.c_uint16,
    dtypes.uint32: ctypes.c_uint32,
    dtypes.uint64: ctypes.c_uint64,
    dtypes.int8: ctypes.c_int8,
    dtypes.int16: ctypes.c_int16,
    dtypes.int32: ctypes.c_int32,
    dtypes.int64: ctypes.c_int64,
    dtypes.float32: ctypes.c_float,
    dtypes.float64: ctypes.c_double,
}


def scalar(view: View, dtype: Dtype) -> Any:
    """The first element of ``view`` as a Python number."""
    kind = _NUMBERS.get(dtype)
    if kind is not None and is_on_host(view):
        return kind.from_address(view.address).value
    if kind is not None:
        return kind.from_buffer(view.buffer.engine.copied_out(view.buffer, view.offset, dtype.size)).value
    view = on_host(view, (0, dtype.size))
    return to_numpy(View(view.buffer, view.offset, ()), (), dtype, writable=False).item()


def whole_buffer(view: View, writable: bool) -> Any:
    """All bytes of the buffer of ``view``, by Python's buffer protocol; the result holds the buffer."""
    export = shared_with_others(view, writable)
    return export if writable else memoryview(export).toreadonly()
