"""NumPy arrays and buffers: copied in, shared without a copy on the way out."""

from __future__ import annotations

import ctypes
import struct
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
        target = _memory(view, array.shape, array.dtype.itemsize, f"V{array.dtype.itemsize}", writable=True)
        np.copyto(target.view(array.dtype), array)
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
    apart = all(stride or extent <= 1 for extent, stride in zip(shape, view.strides, strict=True))
    known = 1 if _export_of(view.buffer) is None else 2
    return apart and is_on_host(view) and only_known([view.buffer], [known])


def to_numpy(view: View, shape: tuple[int, ...], dtype: Dtype, writable: bool) -> np.ndarray[Any, Any]:
    """The elements of ``view`` as a NumPy array without a copy, which keeps the buffer alive."""
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


def whole_buffer(view: View, writable: bool) -> np.ndarray[Any, Any]:
    """All bytes of the buffer of ``view``."""
    return _memory(View(view.buffer, 0, (1,)), (view.buffer.size,), 1, "|u1", writable)


class _Export:
    """Holds a buffer for all NumPy arrays that share it."""

    __slots__ = ("__weakref__", "_buffer")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer


def _export_of(buffer: Buffer) -> _Export | None:
    reference = getattr(buffer, "export", None)
    return None if reference is None else reference()


class _Memory:
    """What NumPy asks for the memory of; as the base of the array it made, it holds the export."""

    __slots__ = ("__array_interface__", "_export")

    def __init__(self, interface: dict[str, Any], export: _Export) -> None:
        self.__array_interface__ = interface
        self._export = export


def _memory(view: View, shape: tuple[int, ...], itemsize: int, typestr: str, writable: bool) -> np.ndarray[Any, Any]:
    interface = {
        "version": 3,
        "shape": shape,
        "typestr": typestr,
        "data": (view.address, not writable),
        "strides": tuple([stride * itemsize for stride in view.strides]),
    }
    export = _export_of(view.buffer)
    if export is None:
        export = _Export(view.buffer)
        view.buffer.export = weakref.ref(export)
    return np.asarray(_Memory(interface, export))


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
