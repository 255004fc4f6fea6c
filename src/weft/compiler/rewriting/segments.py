"""Cuts a graph over several streams into segments, each of which runs on one stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.graph.node import Node
from weft.runtime.devices import Stream

Depth = tuple[int, Stream]
"""How many changes of stream there are before a node, and the node's stream."""

SegmentKey = tuple[int, Stream, frozenset[Stream], frozenset[Stream]]


class Segment(NamedTuple):
    """Nodes that are computed on one stream, and which of them are sent to which other streams."""

    stream: Stream
    nodes: list[Node]
    sends: list[tuple[Node, Stream]]


def segments_of(order: Sequence[Node], wanted: Sequence[Node], caller: Stream) -> list[Segment]:
    """The segments of a graph, in an order in which they can be submitted.

    Their nodes are the ``wanted`` ones, and those that other segments need. Nodes without a stream run on the stream of
    the ``caller``.
    """
    keys = _assigned(order, caller)
    needed: dict[Node, dict[Stream, None]] = {node: {} for node in wanted}
    for node in order:
        for source in _sources(node):
            if source in keys and keys[source] != keys[node] and source.inputs:
                needed.setdefault(source, {})[keys[node][1]] = None
    segments: dict[SegmentKey, Segment] = {}
    for node in order:
        if node in needed:
            key = keys[node]
            segment = segments.setdefault(key, Segment(key[1], [], []))
            segment.nodes.append(node)
            segment.sends.extend([(node, stream) for stream in needed[node] if stream != key[1]])
    return [segments[key] for key in sorted(segments, key=_turn)]


def _assigned(order: Sequence[Node], caller: Stream) -> dict[Node, SegmentKey]:
    """The segment of each node. Two nodes are in one segment if they are on one stream, have equally many changes of
    stream before them, wait for the same other streams, and are awaited by the same other streams. So no node waits for
    another one merely because they are on the same stream. All results of one node are in its segment."""
    depths: dict[Node, Depth] = {}
    awaited: dict[Node, frozenset[Stream]] = {}
    for node in order:
        stream = node.stream or caller
        known = [source for source in _sources(node) if source in depths]
        depth = max([depths[source][0] + (depths[source][1] != stream) for source in known], default=0)
        depths[node] = depth, stream
        own = [awaited[source] for source in known if depths[source] == depths[node]]
        awaited[node] = frozenset(depths[source][1] for source in known if depths[source][1] != stream).union(*own)
    waiting: dict[Node, frozenset[Stream]] = dict.fromkeys(order, frozenset())
    for node in reversed(order):
        for source in _sources(node):
            if source in depths:
                other = depths[node][1]
                if other != depths[source][1]:
                    waiting[source] |= {other}
                elif depths[source] == depths[node]:
                    waiting[source] |= waiting[node]
    found = {node: (*depths[node], awaited[node], waiting[node]) for node in order}
    for node in order:
        if _is_computed_result(node) and node.inputs[0] in found:
            found[node] = found[node.inputs[0]]
    return found


def _sources(node: Node) -> Sequence[Node]:
    """The nodes from which a node is computed. One that is an alias of another node depends on that node alone."""
    alias = None if node.primitive is None else node.primitive.alias(node)
    return node.inputs if alias is None else (alias,)


def _is_computed_result(node: Node) -> bool:
    """Whether a node is one of several results of another node, and not an alias of some input."""
    primitive = node.primitive
    return primitive is not None and primitive.is_result and primitive.alias(node) is None


def _turn(key: SegmentKey) -> tuple[int, int, int]:
    """The order of segments: those that compute inputs of others come before these. Between segments of equal depth,
    one that computes an input of another waits for at most as many streams, and at least as many streams wait for
    it."""
    depth, _, awaited, waiting = key
    return depth, len(awaited), -len(waiting)
