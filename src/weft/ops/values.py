"""How Python, NumPy and users of the buffer protocol read the values of arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from weft.compiler.running.evaluate import evaluate_one
from weft.dtypes import Dtype, bfloat16
from weft.errors import TraceError
from weft.formatting import format_array
from weft.graph.extents import agree
from weft.graph.node import Node, Shape, describe
from weft.graph.shown import shown_extent, shown_shape
from weft.graph.tracing import no_value, trace_of, traced_placeholder
from weft.runtime.dlpack import READ_ONLY
from weft.runtime.engine import Engine
from weft.runtime.host import host
from weft.runtime.interchange import (
    in_host_memory,
    may_be_written,
    scalar,
    small_from_elsewhere,
    to_numpy,
    whole_buffer,
)
from weft.runtime.memory import View

_WRITABLE = 1
"""The flag of the buffer protocol that requests writable memory."""

# ``action`` says in error messages what the values are read for.


def value(node: Node, action: str) -> View:
    """The view of the values, on any device."""
    view = node.value
    if view is None or view.event is not None:
        try:
            view = evaluate_one(node)
        except TraceError:
            placeholder = traced_placeholder(node)  # only for the error: it walks over the whole graph
            if placeholder is None:
                raise
            raise no_value(node, placeholder.trace, action) from None
    return view


def seen(node: Node, action: str, error: type[Exception]) -> View:
    """The view of the values, if NumPy can read them without a copy."""
    view = value(node, action)
    engine = view.buffer.engine
    if engine is not host:
        raise error(_elsewhere(action, engine))
    return view


@functools.lru_cache(8)
def _elsewhere(action: str, engine: Engine) -> str:
    """The message for values that are elsewhere. When NumPy tries several protocols, nobody sees it."""
    return f"Cannot {action} an array in the memory of {engine.device} without a copy; make one: np.array(a)."


def elements(node: Node, action: str) -> np.ndarray[Any, Any]:
    """The values as a NumPy array that shares their memory, or, if they are not on the host, has a copy of it.

    It is writable if no other array would change with it.
    """
    view = value(node, action)
    small = small_from_elsewhere(view, node.shape, node.dtype)
    if small is not None:
        return small
    on_host = in_host_memory(view, node.shape, node.dtype)
    return to_numpy(on_host, node.shape, node.dtype, on_host is view and may_be_written(view, node.shape))


def the_element(node: Node, action: str, remedy: str = "") -> Any:
    """The only element, as a Python number."""
    if not agree(node.size, 1):
        shape, size = shown_shape(node.shape), shown_extent(node.size)
        raise ValueError(f"Cannot {action} an array of shape {shape}: it has {size} elements, not one.{remedy}")
    return scalar(value(node, action), node.dtype)


def index(node: Node) -> int:
    """The only element, as an int for an index or a count."""
    if node.shape or not node.dtype.is_integer:
        raise TypeError(
            f"Only a 0-d array of integers can be an index or a count, not {describe(node.shape, node.dtype)}."
        )
    return int(the_element(node, "use as an index"))


def text(node: Node) -> str:
    """The text that is printed."""
    trace = trace_of(node)
    if trace is None:
        return format_array(elements(node, "print"), node.dtype)
    if trace.active:
        raise no_value(node, trace, "print")
    what = describe(node.shape, node.dtype)
    return f"array(<{what} traced by {trace}, without a value>, dtype={node.dtype.name})"


@functools.lru_cache(1024)
def _described(shape: Shape, strides: tuple[int, ...], dtype: Dtype) -> dict[str, Any]:
    """What ``__array_interface__`` tells about all arrays of a layout."""
    in_bytes = tuple([stride * dtype.size for stride in strides])
    return {"version": 3, "shape": shape, "typestr": dtype.numpy.str, "strides": in_bytes}


def array_interface(node: Node) -> dict[str, Any]:
    """The result of ``__array_interface__``."""
    shape, dtype = node.shape, node.dtype
    if dtype is bfloat16:
        raise AttributeError("There is no type of __array_interface__ for bfloat16; use np.asarray(a).")
    view = node.value
    if view is None or view.event is not None or view.buffer.engine is not host:
        view = seen(node, "make a NumPy array of", AttributeError)
    found = {**_described(shape, view.strides, dtype)}
    if 0 in shape:  # an empty array may begin anywhere, also after the end of the buffer
        found["data"] = b""
    else:
        found["data"], found["offset"] = whole_buffer(view, may_be_written(view, shape)), view.offset
    return found


def numpy_array(node: Node, dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """The result of ``__array__``."""
    if copy is False:
        seen(node, "make a NumPy array of", ValueError)
    view = value(node, "make a NumPy array of")
    small = small_from_elsewhere(view, node.shape, node.dtype)
    if small is None:
        values = elements(node, "make a NumPy array of")
    else:
        values, copy = small, None
    if copy is True:
        return values.astype(dtype) if dtype is not None else values.copy()
    if dtype is None or np.dtype(dtype) == values.dtype:
        return values
    if copy is False:
        raise ValueError(f"Cannot see an array of {node.dtype.name} as {np.dtype(dtype)} without a copy.")
    return values.astype(dtype)


def buffer(node: Node, flags: int) -> memoryview:
    """The result of ``__buffer__``."""
    if node.dtype is bfloat16:
        raise BufferError("Buffers have no bfloat16; use np.asarray(a), or convert with a.astype(mx.float32).")
    view = node.value
    if view is None or view.event is not None or view.buffer.engine is not host:
        view = seen(node, "take the buffer of", BufferError)
    values = to_numpy(view, node.shape, node.dtype, may_be_written(view, node.shape))
    if flags & _WRITABLE and not values.flags.writeable:
        raise BufferError(READ_ONLY)
    return values.data
