"""`eval`, `async_eval`, and functions that wait for streams or tell how much memory arrays use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import tree
from weft.compiler.running.evaluate import evaluate, evaluate_one, finish
from weft.graph.node import Handle, Node
from weft.runtime import streams
from weft.runtime.devices import StreamOrDevice, as_stream, default_device, default_stream
from weft.runtime.engine import engine_of
from weft.runtime.memory import size_class

__all__ = ["async_eval", "clear_streams", "eval", "get_array_buffer_size", "synchronize"]


def _nodes(args: Sequence[Any]) -> list[Node]:
    array = Handle.concrete
    flat = args[0] if len(args) == 1 and type(args[0]) is list else args
    nodes = [one.node for one in flat if type(one) is array]
    if len(nodes) == len(flat):  # the usual case: a walk would take several times as long
        return nodes
    return [leaf.node for leaf in tree.leaves_of(args) if isinstance(leaf, Handle)]


def eval(*args: Any) -> None:  # the name users know
    """Compute arrays, in any nesting of list, tuple and dict, and wait for them.

    Other objects, such as functions in the state of a model, are ignored.

    Raises:
        TraceError: an array is being traced, so it has no value.

    >>> x = mx.ones((2,)) * 3
    >>> mx.eval(x)
    """
    if len(args) == 1 and type(args[0]) is Handle.concrete:
        buffer = evaluate_one(args[0].node).buffer
        if buffer.engine.queues:
            buffer.engine.finish((buffer,))
    else:
        nodes = _nodes(args)
        evaluate(nodes)
        finish(nodes)


def async_eval(*args: Any) -> None:
    """Start to compute arrays without waiting for them; reading a value waits.

    >>> x = mx.ones((2,)) * 3
    >>> mx.async_eval(x)
    >>> x
    array([3, 3], dtype=float32)
    """
    if len(args) == 1 and type(args[0]) is Handle.concrete:
        node = args[0].node
        value = node.value
        if value is None or value.event is not None:
            evaluate([node], wait=False)
    else:
        evaluate(_nodes(args), wait=False)


def synchronize(stream: StreamOrDevice = None) -> None:
    """Wait until all work that was started on a stream (None: the default stream) is done.

    >>> mx.synchronize()
    """
    chosen = as_stream(stream) or default_stream(default_device())
    streams.synchronize(chosen)
    engine_of(chosen.device).finish()


def clear_streams() -> None:
    """Wait for all streams and end their threads. They start again when they are used.

    >>> mx.clear_streams()
    """
    streams.clear_streams()


def get_array_buffer_size(*args: Any) -> int:
    """How many bytes of memory arrays use, in any nesting of list, tuple and dict. Memory that several share counts
    once.

    It is the size of whole blocks, which may be larger than the arrays. Leaves that are no arrays are ignored.

    Raises:
        ValueError: an array has not been evaluated.

    >>> x = mx.zeros((256,))
    >>> mx.eval(x)
    >>> mx.get_array_buffer_size(x, [x])
    1024
    """
    buffers = {}
    for leaf in tree.leaves_of(args):
        if isinstance(leaf, Handle):
            view = leaf.node.value
            if view is None:
                raise ValueError("[get_array_buffer_size] An array has no memory before it is evaluated: call mx.eval.")
            buffers[id(view.buffer)] = view.buffer
    return sum(size_class(buffer.size) for buffer in buffers.values())
