"""Functions whose nodes are recorded at the first call and made again from the recording at calls with like arguments.

A function such as `softmax` checks its arguments and makes ten nodes by as many calls of primitives. For all arrays of
the same shapes and dtypes it makes the same operations, and eager programs call it for each layer in each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import weft.primitives as p
from weft.compiler.bounded import BoundedCache
from weft.compiler.planner import CHECKS
from weft.dtypes import Dtype
from weft.graph.node import Handle, Node, Shape, serial_of, wrap
from weft.graph.tracing import is_tracing, open_traces
from weft.ops.entrance import in_the_name_of
from weft.runtime.devices import Stream, current_stream
from weft.runtime.locks import fork_safe_lock
from weft.runtime.precision import get_matmul_precision

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["replayed"]

MOST_RECORDINGS = 4096
MOST_OPERATIONS = 1 << 16

# The types of arguments that are equal only if they mean the same. A tuple may contain equal numbers of different
# types, so only tuples of ints are accepted: see `_is_exact`.
_EXACT = frozenset({int, bool, str, type(None), Dtype})


class _Operation(NamedTuple):
    """A node to be made; ``take`` selects its inputs from a list of nodes. It is None if the ``first`` node is the only
    input."""

    primitive: p.Primitive
    first: int
    take: Callable[[Sequence[Node]], tuple[Node, ...]] | None
    params: tuple[Any, ...]
    shape: Shape
    dtype: Dtype


class Recording:
    """The operations from the inputs of a call to its result. Numbers among them are the same nodes in each replay.

    ``reads_values``: one of the inputs is used by no operation, so the function may have read its value as a number.
    """

    def __init__(self, inputs: Sequence[Node], result: Node) -> None:
        made = _between(inputs, result)
        used = {result}.union(*[node.inputs for node in made])
        self.reads_values = not used.issuperset(inputs)
        self._numbers = [node for node in made if p.is_constant(node)]
        inner = [node for node in made if not p.is_constant(node)]
        positions = {node: position for position, node in enumerate([*inputs, *self._numbers, *inner])}
        self.operations = [_operation(node, [positions[source] for source in node.inputs]) for node in inner]
        self._result = positions[result]

    def replay(self, inputs: Sequence[Node], stream: Stream | None) -> Any:
        """The result for other inputs, from new nodes on a stream."""
        nodes = [*inputs, *self._numbers]
        for primitive, first, take, params, shape, dtype in self.operations:
            sources = (nodes[first],) if take is None else take(nodes)
            nodes.append(Node(primitive, sources, params, shape, dtype, stream))
        return wrap(nodes[self._result])


def _between(inputs: Sequence[Node], result: Node) -> list[Node]:
    """The nodes from which a result is computed, in the order of creation, without the inputs and what these come
    from."""
    seen, pending = set(inputs), [result]
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
    return _Operation(node.primitive, first, take, node.params, node.shape, node.dtype)


def _nothing(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return ()


_recordings: BoundedCache[Recording] = BoundedCache(MOST_RECORDINGS, MOST_OPERATIONS)
_lock = fork_safe_lock()


def replayed(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: for arguments like earlier ones, the nodes of ``function`` are replayed.

    ``function`` returns one array and takes arrays, numbers, strings, dtypes and tuples of ints; which operations it
    makes depends only on these and on shapes and dtypes. Other arguments, and calls while a transformation is tracing,
    call ``function`` itself.
    """

    through = _called  # a local name, because `entrance` gets the globals of another module

    def entrance(*args: P.args, **kwargs: P.kwargs) -> R:
        return through(function, args, kwargs)

    return functools.wraps(function)(in_the_name_of(function, entrance))


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a function, from replayed nodes if possible."""
    if open_traces and is_tracing():
        return function(*args, **kwargs)
    stream = current_stream()
    key: list[Any] = [function, get_matmul_precision(), None if stream is None else stream.engine]
    nodes: list[Node] = []
    arguments: Sequence[Any] = args
    if kwargs:
        key += kwargs
        arguments = [*args, *kwargs.values()]
    kind = Handle.concrete
    for argument in arguments:
        if type(argument) is kind:
            node = argument.node
            nodes.append(node)
            key += (node.shape, node.dtype, node.primitive is p.constant)
        elif type(argument) in _EXACT or _is_exact(argument):
            key += (type(argument), argument)
        else:
            return function(*args, **kwargs)
    if len(nodes) > 1 and len(set(nodes)) < len(nodes):  # a recording cannot tell equal nodes apart
        return function(*args, **kwargs)
    recording = _recordings.get(tuple(key))
    if recording is not None:
        result = recording.replay(nodes, stream)
        if CHECKS:
            _check_same(nodes, result.node, function(*args, **kwargs).node)
        return result
    result = function(*args, **kwargs)
    _record(tuple(key), nodes, result.node)
    return result


def _record(key: tuple[Any, ...], inputs: Sequence[Node], result: Node) -> None:
    """Store the recording of a result, if it can be replayed."""
    if p.is_constant(result):  # evaluation may give it a value, so it must be a new node each time
        return
    recording = Recording(inputs, result)
    if not recording.reads_values:
        with _lock:
            _recordings.add(key, recording, len(recording.operations))


def _check_same(inputs: Sequence[Node], replayed: Node, made: Node) -> None:
    """Raise unless two nodes are computed from the inputs by the same operations, with the same numbers."""
    pairs, seen = [(replayed, made)], set(inputs)
    while pairs:
        one, other = pairs.pop()
        if one is other or one in seen:
            continue
        seen.add(one)
        described = [(node.primitive, node.params, node.shape, node.dtype, len(node.inputs)) for node in (one, other)]
        if described[0] != described[1] or other in inputs:
            raise AssertionError(f"{one} was replayed, where {other} is what the function makes")
        pairs += zip(one.inputs, other.inputs, strict=True)


def _is_exact(argument: Any) -> bool:
    """Whether every argument that equals this one means the same."""
    kind = type(argument)
    if kind is float:
        return argument != 0  # -0.0 equals 0.0
    return kind is tuple and all(type(entry) is int for entry in argument)
