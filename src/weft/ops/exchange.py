"""Memory of other devices than the host, shared with other libraries: DLPack and ``__cuda_array_interface__``."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.compiler.running.evaluate import evaluate, finish
from weft.dtypes import Dtype
from weft.graph.node import leaf, wrap
from weft.ops.arguments import Array
from weft.ops.values import elements, seen, value
from weft.runtime import dlpack
from weft.runtime.available import engine_at
from weft.runtime.devices import Device, default_stream, gpu, with_stream
from weft.runtime.dlpack import READ_ONLY, Received, Sharing
from weft.runtime.interchange import may_be_written, to_numpy
from weft.runtime.memory import contiguous_strides, shared_with_others

_ACTION = "exchange"


def dlpack_device(array: Array) -> dlpack.Device:
    """The result of ``__dlpack_device__``: where the elements are, or will be when queued work is done."""
    sharing = value(array.node, _ACTION).buffer.engine.sharing
    return dlpack.CPU if sharing is None else sharing.device


def to_dlpack(
    array: Array, stream: Any, max_version: dlpack.Version, device: dlpack.Device | None, copy: bool | None
) -> Any:
    """The result of ``__dlpack__``."""
    sharing = value(array.node, _ACTION).buffer.engine.sharing
    if sharing is not None and device in (None, sharing.device):
        return _on_device(array, sharing, stream, max_version, copy)
    if copy is False:
        seen(array.node, _ACTION, BufferError)
    if sharing is not None:
        if device != dlpack.CPU:
            raise BufferError(f"the array is on device {sharing.device} of DLPack; it cannot be shared with {device}")
        stream = device = None
    return dlpack.to_dlpack(elements(array.node, _ACTION), stream, max_version, device, copy)


def _on_device(array: Array, sharing: Sharing, stream: Any, max_version: dlpack.Version, copy: bool | None) -> Any:
    """The capsule of an array on its own device."""
    node = array.node
    view = value(node, _ACTION)
    writable = may_be_written(view, node.shape)
    if not (writable or dlpack.tells_read_only(max_version)):
        if copy is False:
            raise BufferError(READ_ONLY)
        copy = True
    if copy:
        node = _copied(array, view.buffer.engine.device, node.dtype).node
        view, writable = value(node, _ACTION), True
    sharing.give(view.address, stream)
    values = to_numpy(view, node.shape, node.dtype, writable)
    return dlpack.moved_to(sharing.device, dlpack.capsule_of(values, max_version=max_version))


def cuda_array_interface(array: Array) -> dict[str, Any]:
    """The result of ``__cuda_array_interface__``, version 3. The handle keeps the memory."""
    node = array.node
    if node.dtype is dtypes.bfloat16:
        raise AttributeError("There is no type of __cuda_array_interface__ for bfloat16; use DLPack.")
    view = value(node, _ACTION)
    sharing = view.buffer.engine.sharing
    if sharing is None:
        raise AttributeError(f"The array is in the memory of {view.buffer.engine.device}, not on a GPU.")
    writable = may_be_written(view, node.shape)
    weakref.finalize(array, _let_go, shared_with_others(view, writable)).atexit = False
    own = sharing.own_stream()
    sharing.give(view.address, own)
    empty = 0 in node.shape
    return {
        "version": 3,
        "shape": node.shape,
        "typestr": node.dtype.numpy.str,
        "data": (0 if empty else view.address, not writable),
        "strides": None if empty else tuple([stride * node.dtype.size for stride in view.strides]),
        "stream": own,
    }


def _let_go(export: Any) -> None:
    """Does nothing; as a callback, it holds its argument until it is called."""


def from_device(x: Any, dtype: Dtype | None = None, copy: bool | None = True) -> Array | None:
    """An array in another library's memory of a GPU; None if ``x`` is elsewhere. float64 becomes float32 unless
    ``dtype`` is given.

    Without a copy it changes when the other library writes to that memory. A copy is finished when this returns.
    """
    found = _received(x)
    if found is None:
        return None
    dtype = dtype or dtypes.from_numpy(found.dtype.numpy)
    shared = wrap(leaf(*found))
    if not copy and dtype is found.dtype:
        return shared
    if copy is False:
        raise BufferError(f"{found.dtype.name} becomes {dtype.name} here, which takes a copy; leave copy=False out.")
    copied = _copied(shared, found.view.buffer.engine.device, dtype)
    finish([copied.node])
    return copied


def _copied(array: Array, device: Device, dtype: Dtype) -> Array:
    """A copy in the memory of a device; it is queued."""
    if dtype is array.node.dtype:
        copy = with_stream(default_stream(device), p.copy, array)
    else:
        copy = with_stream(default_stream(device), p.cast, array, dtype=dtype)
    evaluate([copy.node])
    return copy


def _received(x: Any) -> Received | None:
    """The other library's array on a GPU, shared."""
    if hasattr(x, "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        engine = _sharing_engine(number) if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED) else None
        return None if engine is None else _from_capsule(x, engine)
    interface = getattr(x, "__cuda_array_interface__", None)
    engine = None if interface is None else _sharing_engine(0)
    return None if interface is None or engine is None else _from_interface(x, interface, engine)


def _sharing_engine(card: int) -> Any:
    """The engine of a card, if it is available and can share its memory."""
    engine = engine_at(Device(gpu, card))
    return None if engine is None or engine.sharing is None else engine


def _from_capsule(x: Any, engine: Any) -> Received:
    stream = engine.sharing.own_stream()
    try:
        capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # it does not know the newer versions of DLPack
        capsule = x.__dlpack__(stream=stream)
    found = dlpack.received(capsule, engine)
    engine.sharing.take(found.view.buffer)
    return found


def _from_interface(x: Any, interface: dict[str, Any], engine: Any) -> Received:
    if interface.get("mask") is not None:
        raise BufferError("an array with a mask cannot be shared")
    dtype = dtypes.same_as_numpy(np.dtype(interface["typestr"]))
    if dtype is None:
        raise BufferError(f"there is no dtype for the type {interface['typestr']!r}")
    shape, (address, _), strides = tuple(interface["shape"]), interface["data"], interface.get("strides")
    if strides is None:
        steps = contiguous_strides(shape)
    elif any(stride % dtype.size for stride in strides):
        raise BufferError(f"strides of {strides} bytes are no multiples of the size of {dtype.name}")
    else:
        steps = tuple([stride // dtype.size for stride in strides])
    if address:
        engine = _sharing_engine(engine.sharing.card_of(address))
    found = dlpack.view_of(engine, address, shape, steps, dtype, x)
    engine.sharing.take(found.view.buffer, interface.get("stream"))
    return found
