"""Which values each group that uses them computes again, from values that are in memory anyway, to save a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import weft.primitives as p
from weft.compiler.target import FusionLimits
from weft.graph.node import Node

from .groups import Group, Use
from .layouts import passes

UsesOf = Callable[[Node], Iterable[Use]]
IsStored = Callable[[Node], bool]


def saves_memory(node: Node, users: set[Group], uses_of: UsesOf, is_stored: IsStored, limits: FusionLimits) -> bool:
    """Whether several groups, the ``users`` of a node, should compute it again instead of reading it. They should if
    the operations cost less than the memory accesses, and if they read no more bytes for it, of values that are in
    memory anyway.

    ``uses_of`` gives the uses of a node that are known so far, ``is_stored`` whether it is stored whatever uses it.
    """
    size = node.nbytes
    left = limits.repeated_operations * (node.dtype.size if size >= limits.uncached_size else 1)
    read = 0
    pending, seen = [node], {node}
    while pending:
        made = pending.pop()
        left -= made.primitive.cost if isinstance(made.primitive, p.Elementwise) else left + 1
        if left < 0:
            return False
        for views in map(_seen_through, made.inputs):
            source = views[-1]
            if source in seen or p.is_constant(source) or source.size <= node.size // limits.fewer:
                continue
            seen.add(source)
            groups = {user for view in views for user, _ in uses_of(view)}
            if not (is_stored(source) or len(groups) > 1 or groups - users):
                pending.append(source)
            elif users - groups:
                read += source.nbytes
    return read <= size


def _seen_through(node: Node) -> list[Node]:
    """A node, and if it is a view what it shows, down to the node that has the elements."""
    views = [node]
    while passes(views[-1]):
        views.append(views[-1].inputs[0])
    return views
