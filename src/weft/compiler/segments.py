"""A graph over several streams is cut into parts that run on one stream each."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node
from weft.runtime.devices import Stream

Level = tuple[int, Stream]
Part = tuple[int, Stream, frozenset[Stream], frozenset[Stream]]


def segments_of(order: Sequence[Node], wanted: Sequence[Node], caller: Stream) -> list[tuple[Stream, list[Node]]]:
    """Parts of a graph, in an order in which they can be submitted, as streams and nodes that get values there.

    These are what is ``wanted``, and what other parts need. Nodes that name no stream are on that of the ``caller``.
    """
    part = _parts(order, caller)
    asked = set(wanted)
    for node in order:
        for source in _sources(node):
            if source in part and part[source] != part[node] and source.inputs:
                asked.add(source)
    members: dict[Part, list[Node]] = {}
    for node in order:
        if node in asked:
            members.setdefault(part[node], []).append(node)
    return [(found[1], members[found]) for found in sorted(members, key=_turn)]


def _parts(order: Sequence[Node], caller: Stream) -> dict[Node, Part]:
    """The part of each node: nodes of one stream with equally many changes of stream before them, and between which
    and other streams the same ones wait in each direction. So nothing waits for what it does not depend on because
    that happens to be on the same stream. All results of one node are where it is."""
    level: dict[Node, Level] = {}
    awaited: dict[Node, frozenset[Stream]] = {}
    for node in order:
        stream = node.stream or caller
        known = [source for source in _sources(node) if source in level]
        depth = max([level[source][0] + (level[source][1] != stream) for source in known], default=0)
        level[node] = depth, stream
        own = [awaited[source] for source in known if level[source] == level[node]]
        awaited[node] = frozenset(level[source][1] for source in known if level[source][1] != stream).union(*own)
    waiting: dict[Node, frozenset[Stream]] = dict.fromkeys(order, frozenset())
    for node in reversed(order):
        for source in _sources(node):
            if source in level:
                other = level[node][1]
                if other != level[source][1]:
                    waiting[source] |= {other}
                elif level[source] == level[node]:
                    waiting[source] |= waiting[node]
    parts = {node: (*level[node], awaited[node], waiting[node]) for node in order}
    for node in order:
        if _is_computed_result(node) and node.inputs[0] in parts:
            parts[node] = parts[node.inputs[0]]
    return parts


def _sources(node: Node) -> Sequence[Node]:
    """What a node is computed from: one that is another name depends on what it names alone."""
    alias = None if node.primitive is None else node.primitive.alias(node)
    return node.inputs if alias is None else (alias,)


def _is_computed_result(node: Node) -> bool:
    """Whether a node is one of several results of another, and no other name of something."""
    primitive = node.primitive
    return primitive is not None and primitive.is_result and primitive.alias(node) is None


def _turn(part: Part) -> tuple[int, int, int]:
    """Within a level, sources wait for no more streams than what is made of them, and as many wait for them."""
    depth, _, awaited, waiting = part
    return depth, len(awaited), -len(waiting)
