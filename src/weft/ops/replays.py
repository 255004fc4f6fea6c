"""Functions whose nodes are recorded and made again from the recording at calls with like arguments.

A function such as `softmax` checks its arguments and makes ten nodes by as many calls of primitives. For all arrays of
the same shapes and dtypes it makes the same operations, and eager programs call it for each layer in each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from types import EllipsisType, FunctionType, NoneType
from typing import Any, ParamSpec, TypeVar

import weft.primitives as p
from weft.compiler.bounded import BoundedCache
from weft.compiler.planner import CHECKS
from weft.dtypes import Dtype
from weft.graph.node import BareNode, Handle, Node, Shape, next_serial, serial_of, wrap
from weft.graph.symbolic import is_open
from weft.graph.tracing import is_tracing, open_traces
from weft.ops.entrance import in_the_name_of, on_stream
from weft.primitives.base import Elementwise
from weft.primitives.binary import Comparison
from weft.runtime.device import Device, DeviceType
from weft.runtime.devices import Stream, ThreadLocalStream, current_stream
from weft.runtime.locks import fork_safe_lock
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


Take = Callable[[Sequence[Node]], tuple[Node, ...]]
_Operation = tuple[p.Primitive, int, Take | None, tuple[Any, ...], Shape, Dtype]
"""Of a node to be made: the primitive; the position of its only input in a list of nodes, or what selects its inputs
from the list; parameters, shape and dtype."""


class Recording:
    """The operations from the inputs of a call to its results. ``several`` is the type of a list or tuple of results,
    and None for a single one.

    ``is_plain``: all operations are among those recorded, and no node has a mark of its own. ``uses_all``: no input is
    used by no operation, so that the function may have read its value as a number.
    """

    def __init__(self, inputs: Sequence[Node], results: Sequence[Node], several: type | None) -> None:
        made = between(inputs, results)
        used = set(results).union(*[node.inputs for node in made])
        self._numbers = [node for node in made if p.is_constant(node)]
        inner = [node for node in made if not p.is_constant(node)]
        self.uses_all = used.issuperset(inputs)
        self.is_plain = not any(node.primitive is None or node.primitive.is_unique for node in inner)
        positions = {node: position for position, node in enumerate([*inputs, *self._numbers, *inner])}
        self.operations = [_operation(node, [positions[source] for source in node.inputs]) for node in inner]
        self._results = [positions[result] for result in results]
        self._result = self._results[0] if several is None else 0
        self._several = several

    def replay(self, nodes: list[Node], stream: Stream | None, is_traced: bool) -> Any:
        """The results for other inputs, which are in ``nodes``, from new nodes on a stream, which are added to them.
        Numbers are the same nodes in each replay, but for traces, which distinguish nodes that are made while they run
        from earlier ones."""
        if self._numbers:
            nodes += map(_again, self._numbers) if is_traced else self._numbers
        for primitive, first, take, params, shape, dtype in self.operations:
            node = BareNode()  # what `new_node` does, inlined because a call takes as long
            node.primitive = primitive
            node.inputs = (nodes[first],) if take is None else take(nodes)
            node.params = params
            node.shape = shape
            node.dtype = dtype
            node.stream = stream
            node.serial = next_serial()
            node.value = None
            nodes.append(node)
        if self._several is None:
            return wrap(nodes[self._result])
        return self._several([wrap(nodes[position]) for position in self._results])


def _again(number: Node) -> Node:
    return Node(p.constant, (), number.params, (), number.dtype, None)


def between(inputs: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """The nodes from which results are computed, in the order of creation, without the inputs and what these come
    from."""
    seen, pending = set(inputs), list(results)
    found = []
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            found.append(node)
            pending += node.inputs
    return sorted(found, key=serial_of)


def _operation(node: Node, positions: Sequence[int]) -> _Operation:
    first = positions[0] if positions else 0
    take = None if len(positions) == 1 else itemgetter(*positions) if positions else _nothing
    return node.primitive, first, take, node.params, node.shape, node.dtype


def _nothing(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return ()


_recordings: BoundedCache[Recording] = BoundedCache(MOST_RECORDINGS, HEAVIEST)
_called_once: set[int] = set()
"""Hashes of the keys of calls that were made once. Many calls never come again, and to record one takes longer than the
call. Two calls of one hash do no harm, and when there are many hashes, all are forgotten."""
_never_replayed: set[int] = set()
"""Hashes of the keys of calls whose results cannot be replayed."""
_lock = fork_safe_lock()


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
        _note(whole_key, nodes, result)
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


def _note(key: tuple[Any, ...], inputs: Sequence[Node], result: Any) -> None:
    """Record a result, if the function was called with like arguments before and the result can be replayed."""
    number = hash(key)
    if number not in _called_once:
        note_hash(_called_once, number)
    elif number not in _never_replayed:
        results = _nodes_of(result)
        recording = Recording(inputs, results, type(result) if isinstance(result, (list, tuple)) else None)
        # Evaluation may give a constant a value, so it must be a new node each time.
        if recording.is_plain and recording.uses_all and not any(map(p.is_constant, results)):
            with _lock:
                _recordings.add(key, recording, len(recording.operations) + len(key))
        else:
            note_hash(_never_replayed, number)


def note_hash(numbers: set[int], number: int) -> None:
    """Add to the hashes of keys that were seen. If there are many, all are forgotten."""
    if len(numbers) >= MOST_RECORDINGS:
        numbers.clear()
    numbers.add(number)


def check_same(inputs: Sequence[Node], replayed: Sequence[Node], made: Sequence[Node]) -> None:
    """Raise unless nodes are computed from the inputs by the same operations, with the same numbers."""
    pairs, seen = list(zip(replayed, made, strict=True)), set(inputs)
    while pairs:
        one, other = pairs.pop()
        if one is other or one in seen:
            continue
        seen.add(one)
        described = [(node.primitive, node.params, node.shape, node.dtype, len(node.inputs)) for node in (one, other)]
        if described[0] != described[1] or other in inputs:
            raise AssertionError(f"{one} was replayed, where {other} is what the function makes")
        pairs += zip(one.inputs, other.inputs, strict=True)
