"""NumPy arrays and buffers: copied in, shared without a copy on the way out."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from weft import dtypes
from weft.dtypes import Dtype
from weft.runtime.holders import only_known
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
        target = np.ndarray(array.shape, array.dtype, whole_buffer(view, writable=True))
        np.copyto(target, array)
    return view


def is_on_host(view: View) -> bool:
    """Whether NumPy can see the elements without a copy."""
    return view.buffer.engine is host


def in_host_memory(view: View, shape: tuple[int, ...], dtype: Dtype) -> View:
    """The same elements in memory that NumPy can see."""
    return view if is_on_host(view) else on_host(view, span_of(shape, view.strides, dtype.size))


def may_be_written(view: View, shape: tuple[int, ...]) -> bool:
    """Whether writing to an element changes no other one, neither of the same array nor of another: the elements are
    apart, and only ``view`` and what was shared before refer to its buffer."""
    if 0 in view.strides and any(not stride and extent > 1 for extent, stride in zip(shape, view.strides, strict=True)):
        return False
    known = 1 if _export_of(view.buffer) is None else 2
    return is_on_host(view) and only_known([view.buffer], [known])


def to_numpy(view: View, shape: tuple[int, ...], dtype: Dtype, writable: bool) -> np.ndarray[Any, Any]:
    """The elements of ``view`` as a NumPy array without a copy, which keeps the buffer alive."""
    if 0 in shape:  # it may begin anywhere, also behind the buffer
        return np.empty(shape, dtype.numpy)
    strides = tuple([stride * dtype.size for stride in view.strides])
    return np.ndarray(shape, dtype.numpy, whole_buffer(view, writable), view.offset, strides)


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
        number = kind()
        view.buffer.engine.copy_out(view.buffer, view.offset, memoryview(number).cast("B"))
        return number.value
    view = on_host(view, (0, dtype.size))
    return to_numpy(View(view.buffer, view.offset, ()), (), dtype, writable=False).item()


_Memory = ctypes.c_char * (1 << 62)
"""The memory from an address on, whatever there is: to make a type for each size would take longer than all else."""


def whole_buffer(view: View, writable: bool) -> memoryview:
    """All bytes of the buffer of ``view``, which they keep alive."""
    buffer = view.buffer
    export = _export_of(buffer)
    if export is None:
        export = _Export(buffer)
        buffer.export = weakref.ref(export)
    memory = _Memory.from_address(buffer.address)
    memory.export = export  # type: ignore[attr-defined]  # objects of ctypes have attributes
    found = memoryview(memory)[: buffer.size]
    return found if writable else found.toreadonly()


class _Export:
    """Holds a buffer for all NumPy arrays that share it."""

    __slots__ = ("__weakref__", "_buffer")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer


def _export_of(buffer: Buffer) -> _Export | None:
    reference = getattr(buffer, "export", None)
    return None if reference is None else reference()


DLPACK_CPU = (1, 0)
_BFLOAT, _UNSIGNED = 4, 1
"""Codes of kinds of numbers in DLPack."""
_CODE = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Where the code stands in what a capsule of that name points to, in bytes (dlpack.h)."""

_name_of_capsule = ctypes.pythonapi.PyCapsule_GetName
_name_of_capsule.restype, _name_of_capsule.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of_capsule.restype, _pointer_of_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _kind_of(capsule: Any) -> Any:
    """The code of the kind of numbers of a DLPack capsule, which can be written."""
    name = _name_of_capsule(capsule)
    return ctypes.c_uint8.from_address(_pointer_of_capsule(capsule, name) + _CODE[name])


READ_ONLY = (
    "The memory of the array is read-only, because other arrays share it (or it repeats elements); make a copy, for "
    "example with np.array(a)."
)


def to_dlpack(
    values: np.ndarray[Any, Any],
    stream: Any,
    max_version: tuple[int, int] | None,
    device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """A DLPack capsule of a NumPy array; the arguments are those of ``__dlpack__``.

    Raises:
        BufferError: on another device, or without a copy where one is needed.
        ValueError: there is a stream; memory of the CPU has none.
    """
    if stream is not None:
        raise ValueError(
            f"An array is exported on the CPU, where DLPack has no streams: stream must be None, not {stream!r}."
        )
    if max_version is not None and max_version >= (1, 0):
        return _capsule(values, max_version=max_version, dl_device=device, copy=copy)
    # Before version 1 DLPack could not say that memory is read-only.
    if not values.flags.writeable and copy is False:
        raise BufferError(READ_ONLY)
    if device not in (None, DLPACK_CPU):
        raise BufferError(f"An array is exported on the CPU, which DLPack calls {DLPACK_CPU}; asked for was {device}.")
    return _capsule(values if values.flags.writeable and not copy else values.copy())


def _capsule(values: np.ndarray[Any, Any], **keywords: Any) -> Any:
    """NumPy knows no bfloat16: it exports integers, and the capsule is corrected."""
    if values.dtype != dtypes.bfloat16.numpy:
        return values.__dlpack__(**keywords)
    capsule = values.view(np.uint16).__dlpack__(**keywords)
    _kind_of(capsule).value = _BFLOAT
    return capsule


class _Received:
    """A capsule, to be handed on to NumPy."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def from_dlpack(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array that shares the memory of another library's array on the CPU, through DLPack."""
    device = value.__dlpack_device__()
    if device[0] != DLPACK_CPU[0]:
        raise BufferError(f"the array is on device {device[0]}, number {device[1]}, of DLPack, not on the CPU")
    capsule = value.__dlpack__()
    kind = _kind_of(capsule)
    is_bfloat = kind.value == _BFLOAT
    if is_bfloat:
        kind.value = _UNSIGNED
    array = np.from_dlpack(_Received(capsule, device))
    return array.view(dtypes.bfloat16.numpy) if is_bfloat else array
