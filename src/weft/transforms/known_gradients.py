"""Gradients of graphs like ones that were differentiated before.

A function is called each time that it is differentiated, because it may do something else each time. If the graph that
it made is like an earlier one, the operations that pull back through it are like the earlier ones, too: rules of
primitives decide by nothing but the graph. So from the third graph of a kind on, they are made from a recording, as
those of functions in `weft.ops.replays` are. The rules of custom functions are users' code and are called each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft.compiler.planning.planner import CHECKS
from weft.graph.node import Node, next_serial, reachable
from weft.graph.symbolic import is_open
from weft.graph.tracing import open_on_this_thread
from weft.ops.recordings import Recording, Recordings, between, check_same
from weft.primitives.base import Array, Tangent
from weft.runtime.devices import Stream
from weft.runtime.precision import get_matmul_precision
from weft.transforms.autodiff import pull_back

MOST_OPERATIONS = 1 << 14
"""Larger graphs are hardly made again, and their keys take memory."""
MOST_RECORDINGS = 1024
HEAVIEST = 1 << 18
"""The most operations in recordings and entries in their keys together."""


class _Pull(NamedTuple):
    """A recording of pulling back. Its results are the cotangents of the targets with these ``numbers``."""

    recording: Recording
    numbers: Sequence[int]

    @property
    def operations(self) -> Sequence[Any]:
        return self.recording.operations


_known: Recordings[_Pull] = Recordings(MOST_RECORDINGS, HEAVIEST)


def pulled_back(outputs: Sequence[Array], cotangents: Sequence[Array], targets: Sequence[Node]) -> list[Tangent]:
    """What `pull_back` returns."""
    graph = _graph_of(outputs, cotangents, targets)
    if graph is None:
        return pull_back(outputs, cotangents, targets)
    key, nodes, stream = graph
    known = _known.get(key)
    if known is None:
        start = next_serial()
        pulled = pull_back(outputs, cotangents, targets)
        _known.note(key, lambda: _recorded(nodes, pulled, stream, start))
        return pulled
    count = len(nodes)
    found: list[Tangent] = [None] * len(targets)
    results = known.recording.replay(nodes, stream, open_on_this_thread() > 1)
    for number, result in zip(known.numbers, results, strict=True):
        found[number] = result
    if CHECKS:
        _check(nodes[:count], found, pull_back(outputs, cotangents, targets))
    return found


_Graph = tuple[tuple[Any, ...], list[Node], Stream | None]
"""Everything that rules may decide by; the nodes that they may use; the stream of all operations."""


def _graph_of(outputs: Sequence[Array], cotangents: Sequence[Array], targets: Sequence[Node]) -> _Graph | None:
    """A graph from targets to outputs. None if rules may run users' code for it, or set other streams or extents than
    another such graph has."""
    if not (targets and outputs) or any(map(_is_padded, cotangents)):
        return None
    ends = [array.node for array in outputs]
    stream = ends[0].stream
    structure: list[Any] = [get_matmul_precision(), None if stream is None else stream.engine, len(targets)]
    nodes = [*targets]
    numbers = dict(zip(nodes, range(len(nodes)), strict=True))
    for node in targets:
        structure += (node.shape, node.dtype)
    order = reachable(ends, min([node.serial for node in targets]) - 1)
    if len(order) > MOST_OPERATIONS or not _describe(order, stream, numbers, nodes, structure):
        return None
    for array in (*outputs, *cotangents):
        number = numbers.get(array.node)
        structure.append(_add(array.node, numbers, nodes, structure) if number is None else number)
    if open_on_this_thread() > 1 and any(is_open(node.shape) or is_open(node.params) for node in nodes):
        return None
    return tuple(structure), nodes, stream


def _is_padded(cotangent: Array) -> bool:
    """Whether it matters what an array is made of: those padded with zeros are added up without the zeros."""
    primitive = cotangent.node.primitive
    return primitive is not None and primitive.has_padded


def _describe(
    order: Sequence[Node], stream: Stream | None, numbers: dict[Node, int], nodes: list[Node], structure: list[Any]
) -> bool:
    """Add nodes, of which ``numbers`` has the targets, to a graph. Returns False if it is none for `_graph_of`."""
    for node in order:
        if node in numbers:
            continue
        primitive = node.primitive
        if primitive is None or primitive.is_constant:
            _add(node, numbers, nodes, structure)
            continue
        if node.stream is not stream or not primitive.equal_is_same or primitive.is_transparent:
            return False
        sources = []
        for source in node.inputs:
            number = numbers.get(source)
            sources.append(_add(source, numbers, nodes, structure) if number is None else number)
        numbers[node] = len(nodes)
        nodes.append(node)
        structure += (primitive, node.params, node.shape, node.dtype, tuple(sources))
    return True


def _add(node: Node, numbers: dict[Node, int], nodes: list[Node], structure: list[Any]) -> int:
    """Add an array that the graph only uses. Rules may look at what it is made by, but at no values other than those of
    constants, which are parameters."""
    number = numbers[node] = len(nodes)
    nodes.append(node)
    primitive, params = node.primitive, node.params
    if primitive is not None and not primitive.equal_is_same:
        params = (next_serial(),)  # as no other graph has
    structure += (primitive, params, node.shape, node.dtype)
    return number


def _recorded(nodes: Sequence[Node], found: Sequence[Tangent], stream: Stream | None, start: int) -> _Pull | None:
    """A recording of the nodes since ``start`` that give what was ``found``. None if not all depend on ``nodes`` alone,
    or not all are on the stream."""
    numbers = [number for number, cotangent in enumerate(found) if cotangent is not None]
    results = [found[number].node for number in numbers]  # type: ignore[union-attr]  # those that are not None
    for node in between(nodes, results):
        is_constant = p.is_constant(node)
        if node.serial < start or not (is_constant or node.stream is stream):
            return None
        if is_constant and node in results:  # evaluation may give it a value, so it must be a new node each time
            return None
    recording = Recording(nodes, results, list)
    return _Pull(recording, numbers) if recording.is_plain else None


def _check(nodes: Sequence[Node], found: Sequence[Tangent], expected: Sequence[Tangent]) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            if one is not other:
                raise AssertionError("a replayed gradient is zero, or is none")
        else:
            check_same(nodes, [one.node], [other.node])


def forget() -> None:
    """Forget all recordings."""
    _known.clear()
