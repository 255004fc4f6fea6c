"""The length of formulas: how many operations a group has if it computes a value."""

from __future__ import annotations

from collections.abc import Collection

import weft.primitives as p
from weft.graph.node import Node

from .layouts import passes

NEAR = 16
"""How many arrays `near` finds."""


def is_longer(node: Node, most: int, inputs: Collection[Node]) -> bool:
    """Whether ``node`` is made by more than ``most`` operations from arrays in memory, reductions and smaller
    arrays."""
    found: set[Node] = set()
    pending = [node]
    while pending and len(found) <= most:
        source = pending.pop()
        while source not in inputs and passes(source):
            source = source.inputs[0]
        computed = isinstance(source.primitive, p.Elementwise | p.Indexed) and source.size == node.size
        if computed and source not in found and source not in inputs:
            found.add(source)
            pending += source.inputs
    return len(found) > most


def narrowest(node: Node, inputs: Collection[Node]) -> Node:
    """The node from which ``node`` is made by views and casts to wider types, if any."""
    while node not in inputs:
        source = node.inputs[0] if node.inputs else node
        widens = isinstance(node.primitive, p.Elementwise) and len(node.inputs) == 1
        if not passes(node) and not (widens and source.dtype.size < node.dtype.size):
            break
        node = source
    return node


def near(node: Node) -> set[Node]:
    """A node, and the arrays of the same size from which it is made element by element, up to `NEAR` of them."""
    found: set[Node] = set()
    pending = [node]
    while pending and len(found) < NEAR:
        source = pending.pop()
        if source.size == node.size and source not in found:
            found.add(source)
            if isinstance(source.primitive, p.Elementwise):
                pending += source.inputs
    return found


def operations_from_less(node: Node, most: int, limit: int) -> int | None:
    """How many cheap operations make ``node`` from nodes with at most ``most`` elements; None if it takes more than
    ``limit``, or others."""
    while passes(node):
        node = node.inputs[0]
    if node.size <= most:
        return 0
    if limit == 0 or not isinstance(node.primitive, p.Elementwise) or not node.primitive.cheap:
        return None
    count = 1
    for source in node.inputs:
        found = operations_from_less(source, most, limit - count)
        if found is None:
            return None
        count += found
    return count if count <= limit else None
