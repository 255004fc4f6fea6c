"""Functions whose nodes are recorded and made again from the recording at calls with like arguments.

A function such as `softmax` checks its arguments and makes ten nodes by as many calls of primitives. For all arrays of
the same shapes and dtypes it makes the same operations, and eager programs call it for each layer in each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType, FunctionType, NoneType
from typing import Any, ParamSpec, TypeVar

import weft.primitives as p
from weft.compiler.planning.planner import CHECKS
from weft.dtypes import Dtype
from weft.graph.node import Handle, Node
from weft.graph.symbolic import is_open
from weft.graph.tracing import is_tracing, open_traces
from weft.ops.entrance import in_the_name_of, on_stream
from weft.ops.recordings import Recording, Recordings, check_same
from weft.primitives.base import Elementwise
from weft.primitives.binary import Comparison
from weft.runtime.device import Device, DeviceType
from weft.runtime.devices import Stream, ThreadLocalStream, current_stream
from weft.runtime.precision import get_matmul_precision

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["replayed"]

MOST_RECORDINGS = 4096
HEAVIEST = 1 << 17
"""The most operations in recordings and entries in their keys together."""
MOST_ENTRIES = 1 << 10
"""The most entries of a list or tuple among the arguments of a call that is recorded."""

# The types of arguments that equal no argument of another type, and are equal only if they mean the same.
_EXACT = frozenset({NoneType, str, Dtype, EllipsisType, Elementwise, Comparison, FunctionType})
_ONE = frozenset({1})
_STREAMS = frozenset({Stream, ThreadLocalStream, Device, DeviceType})


_recordings: Recordings[Recording] = Recordings(MOST_RECORDINGS, HEAVIEST)


def replayed(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: from the third call with like arguments on, the nodes of ``function`` are replayed.

    ``function`` returns an array, or a list or tuple of arrays. Which operations it makes depends only on the shapes
    and dtypes of arrays among its arguments, and on arguments that are numbers, strings or dtypes, or lists, tuples and
    slices of all these. With other arguments ``function`` itself is called.

    As with `on_stream`, the stream that the parameter ``stream`` or ``device`` names is the current one meanwhile.
    """
    # Local names, because `entrance` gets the globals of another module.
    through = _called
    checked = on_stream(function)
    otherwise = on_stream(_on_current_stream(function))

    def entrance(*args: P.args, **kwargs: P.kwargs) -> R:
        return through(checked, otherwise, args, kwargs)

    return functools.wraps(function)(in_the_name_of(function, entrance))


def _on_current_stream(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, replayed on the stream that is current, also if the arguments name one."""

    @functools.wraps(function)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        return _called(function, function, args, kwargs)

    return inner


def _called(
    function: Callable[..., Any], otherwise: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a function, from replayed nodes if possible, else from ``otherwise``."""
    stream = current_stream()
    key: list[Any] = [function, get_matmul_precision(), None if stream is None else stream.engine]
    nodes: list[Node] = []
    arguments = args
    if kwargs:
        key.append(tuple(kwargs))
        arguments = (*args, *kwargs.values())
    if not _describe(arguments, key, nodes, function is otherwise):
        return otherwise(*args, **kwargs)
    if len(nodes) > 1 and len(set(nodes)) < len(nodes):
        nodes = _distinct(nodes, key)
        if not nodes:
            return otherwise(*args, **kwargs)
    is_traced = False
    if open_traces and is_tracing():
        is_traced = True
        if any(is_open(node.shape) for node in nodes):
            return otherwise(*args, **kwargs)
    whole_key = tuple(key)
    recording = _recordings.get(whole_key)
    if recording is None:
        result = function(*args, **kwargs)
        _recordings.note(whole_key, lambda: _recorded(nodes, result))
        return result
    count = len(nodes)
    result = recording.replay(nodes, stream, is_traced)
    if CHECKS:
        check_same(nodes[:count], _nodes_of(result), _nodes_of(function(*args, **kwargs)))
    return result


def _describe(arguments: Iterable[Any], key: list[Any], nodes: list[Node], ignores_streams: bool) -> bool:
    """Add to a key what arguments are, and to ``nodes`` the nodes of arrays. False if that cannot be said of one.

    The description of an argument begins with its type or with what only arguments of its type begin with, so that
    different arguments never have the same key.
    """
    array = Handle.concrete
    for argument in arguments:
        kind = type(argument)
        if kind is array:
            node = argument.node
            nodes.append(node)
            key += (node.primitive is p.constant, node.shape, node.dtype)
        elif kind is int or kind is bool:
            key.append(kind)
            key.append(argument)
        elif kind in _EXACT:
            key.append(argument)
        elif not _describe_other(argument, kind, key, nodes) and not (ignores_streams and kind in _STREAMS):
            return False
    return True


def _describe_other(argument: Any, kind: type, key: list[Any], nodes: list[Node]) -> bool:
    """`_describe` for floats and for what consists of several arguments."""
    key.append(kind)
    if kind is float:
        key.append(argument or repr(argument))  # -0.0 equals 0.0
        return True
    if kind is tuple or kind is list:
        key.append(len(argument))
        return len(argument) <= MOST_ENTRIES and _describe(argument, key, nodes, False)
    return kind is slice and _describe((argument.start, argument.stop, argument.step), key, nodes, False)


def _distinct(nodes: Sequence[Node], key: list[Any]) -> list[Node]:
    """The nodes without repetitions. Which ones are repeated is added to the key.

    There are none if functions may take an array as a number or a shape: a recording cannot tell that apart from
    another use of the same array.
    """
    positions: dict[Node, int] = {}
    repeated = []
    for node in nodes:
        if node.dtype.is_integer or _ONE.issuperset(node.shape):
            return []
        repeated.append(positions.setdefault(node, len(positions)))
    key.append(tuple(repeated))
    return list(positions)


def _nodes_of(result: Any) -> list[Node]:
    return [x.node for x in result] if isinstance(result, (list, tuple)) else [result.node]


def _recorded(inputs: Sequence[Node], result: Any) -> Recording | None:
    """A recording of a function's result, or None if it cannot be replayed."""
    results = _nodes_of(result)
    recording = Recording(inputs, results, type(result) if isinstance(result, (list, tuple)) else None)
    # Evaluation may give a constant a value, so it must be a new node each time.
    is_replayable = recording.is_plain and recording.uses_all and not any(map(p.is_constant, results))
    return recording if is_replayable else None
