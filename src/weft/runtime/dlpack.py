"""DLPack capsules: the structures in them (dlpack.h), and corrections of what NumPy writes there.

NumPy makes the capsules of arrays on every device, because it only needs the addresses of elements and never reads
them.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft import dtypes
from weft.dtypes import Dtype
from weft.runtime.memory import Buffer, View, contiguous_strides, span_of

Device = tuple[int, int]
"""The kind of a device and its number."""

CPU: Device = (1, 0)
CUDA, CUDA_MANAGED = 2, 13
_BFLOAT, _UNSIGNED = 4, 1

_KINDS = {
    (6, 8): dtypes.bool_,
    **{(0, 8 * dtype.size): dtype for dtype in (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)},
    **{(1, 8 * dtype.size): dtype for dtype in (dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64)},
    **{(2, 8 * dtype.size): dtype for dtype in (dtypes.float16, dtypes.float32, dtypes.float64)},
    (_BFLOAT, 16): dtypes.bfloat16,
    (5, 64): dtypes.complex64,
}
_VERSIONED = b"dltensor_versioned"
_HEADER = {b"dltensor": 0, _VERSIONED: 32}
"""For each name of a capsule: at which byte after its pointer the description of the tensor begins."""
_MAJOR = 1


class Described(ctypes.Structure):
    """DLTensor. It lives as long as its capsule."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_name_of_capsule = ctypes.pythonapi.PyCapsule_GetName
_name_of_capsule.restype, _name_of_capsule.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of_capsule.restype, _pointer_of_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def described(capsule: Any) -> Described:
    """The description of the tensor in a capsule; it can be changed.

    Raises:
        BufferError: the version is unknown, or the capsule was consumed.
    """
    name = _name_of_capsule(capsule)
    if name not in _HEADER:
        raise BufferError(f"this is no DLPack capsule that can be read: it is called {name!r}")
    pointer = _pointer_of_capsule(capsule, name)
    if name == _VERSIONED:
        major = ctypes.c_uint32.from_address(pointer).value
        if major != _MAJOR:
            raise BufferError(f"the DLPack capsule is of version {major}, which is not known; {_MAJOR} is")
    return Described.from_address(pointer + _HEADER[name])


READ_ONLY = (
    "The memory of the array is read-only, because other arrays share it (or it repeats elements); make a copy, for "
    "example with np.array(a)."
)
Version = tuple[int, int] | None


def tells_read_only(version: Version) -> bool:
    """Whether a capsule of that version, the newest that its reader knows, can say that memory is read-only."""
    return version is not None and version >= (1, 0)


def to_dlpack(values: np.ndarray[Any, Any], stream: Any, version: Version, device: Device | None, copy: Any) -> Any:
    """A DLPack capsule of a NumPy array; the arguments are those of ``__dlpack__``.

    Raises:
        BufferError: the array is asked for on another device, or without a copy where one is needed.
        ValueError: there is a stream; memory of the CPU has none.
    """
    if stream is not None:
        raise ValueError(
            f"An array is exported on the CPU, where DLPack has no streams: stream must be None, not {stream!r}."
        )
    if tells_read_only(version):
        return capsule_of(values, max_version=version, dl_device=device, copy=copy)
    if not values.flags.writeable and copy is False:
        raise BufferError(READ_ONLY)
    if device not in (None, CPU):
        raise BufferError(f"An array is exported on the CPU, which DLPack calls {CPU}; asked for was {device}.")
    return capsule_of(values if values.flags.writeable and not copy else values.copy())


def capsule_of(values: np.ndarray[Any, Any], **keywords: Any) -> Any:
    """A capsule made by NumPy. NumPy knows no bfloat16: it exports integers, and the dtype in the capsule is
    corrected."""
    if values.dtype != dtypes.bfloat16.numpy:
        return values.__dlpack__(**keywords)
    capsule = values.view(np.uint16).__dlpack__(**keywords)
    described(capsule).kind = _BFLOAT
    return capsule


def moved_to(device: Device, capsule: Any) -> Any:
    """Correct the device in a capsule that NumPy made of memory on another device than the CPU."""
    tensor = described(capsule)
    tensor.device_kind, tensor.device_number = device
    if any(extent == 0 for extent in tensor.shape[: tensor.ndim]):
        tensor.data = None
    return capsule


class _Handed:
    """Passes a capsule on to NumPy, which wants an object with ``__dlpack__``."""

    def __init__(self, capsule: Any, device: Device) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Device:
        return self._device


def numpy_from_dlpack(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array that shares the memory of another library's array on the CPU, through DLPack."""
    device = value.__dlpack_device__()
    if device[0] != CPU[0]:
        raise BufferError(f"the array is on device {device[0]}, number {device[1]}, of DLPack, not on the CPU")
    capsule = value.__dlpack__()
    tensor = described(capsule)
    is_bfloat = tensor.kind == _BFLOAT
    if is_bfloat:
        tensor.kind = _UNSIGNED
    array = np.from_dlpack(_Handed(capsule, device))
    return array.view(dtypes.bfloat16.numpy) if is_bfloat else array


class Received(NamedTuple):
    """An array in the memory of another library."""

    view: View
    shape: tuple[int, ...]
    dtype: Dtype


def received(capsule: Any, engine: Any) -> Received:
    """The array of a capsule, in memory of ``engine``, without a copy.

    The capsule is not marked as consumed: the buffer holds it, and its own destructor releases the memory when the
    buffer ends, as for a capsule that nobody consumed. So no Python code runs then.
    """
    tensor = described(capsule)
    dtype = _KINDS.get((tensor.kind, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise BufferError(f"there is no dtype for DLPack's kind {tensor.kind} of {tensor.bits} bits")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    return view_of(engine, (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, capsule)


def view_of(
    engine: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Dtype, owner: Any
) -> Received:
    """A view of memory that is not Weft's, from an address on; ``owner`` is held as long as the view."""
    if address % dtype.size:
        raise BufferError(f"the elements of {dtype.name} are not aligned to their size, which only a copy can mend")
    low, high = span_of(shape, strides, dtype.size)
    buffer = Buffer.of_others(engine, address + low, high - low, owner) if high > low else Buffer(engine, 0)
    return Received(View(buffer, -low, strides), shape, dtype)


class Sharing(Protocol):
    """How an engine shares the memory of its device with other libraries: which queues wait for which."""

    device: Device

    def give(self, address: int, stream: Any) -> None:
        """Make a stream of another library (the argument of ``__dlpack__``) wait for the work that uses the memory at
        an address."""

    def card_of(self, address: int) -> int:
        """The number of the device that an address belongs to."""

    def own_stream(self) -> int:
        """A stream of Weft that another library can make wait for the library's own work."""

    def take(self, buffer: Buffer, stream: int | None = None) -> None:
        """Make all later work of Weft wait for `own_stream`, or for another library's ``stream``; hold the owner of the
        buffer's memory until the work that reads it is done."""
