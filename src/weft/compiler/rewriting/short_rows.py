"""Elementwise operations on short rows with an operand that is the same for all rows: several rows become one.

The lanes of a kernel go along the last axis, and three channels of an image fill three of sixteen lanes. All rows
together cannot be walked as one row if an operand is repeated for each row, unless that operand is copied several
times, to the length of several rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import weft.primitives as p
from weft.compiler.open_numbers import as_a_whole
from weft.graph.node import Node, Shape
from weft.runtime.memory import contiguous_strides

LONG = 1024
"""The most elements of a joined row."""

MANY = 1 << 14
"""For fewer elements, copying the repeated operand is not worth it."""


@as_a_whole
def rows_joined(shape: Shape, short: int) -> int:
    """How many rows of an array are joined to one, if they have less than ``short`` elements. 1: none are joined."""
    if len(shape) < 2 or not 1 < shape[-1] < short or prod(shape) < MANY:
        return 1
    rows = prod(shape[:-1])
    return next((count for count in range(LONG // shape[-1], 1, -1) if rows % count == 0), 1)


class JoinedRows:
    """Replacements for the nodes of a graph that are computed on joined rows. ``members`` are these nodes.

    Elementwise nodes that read each other are joined all or none. They are not joined if a node without a routine reads
    one of them, since its kernel has other loops. Numbers are compared last, because a template is only good for
    programs where such comparisons give the same results.
    """

    def __init__(self, order: Sequence[Node], inputs: dict[Node, Shape], short: int) -> None:
        self._inputs, self._short = inputs, short
        self._wide: dict[Node, Node] = {}
        self.members: set[Node] = set()
        if any(map(p.repeats, order)):
            for nodes, is_read in _elementwise_parts(order):
                if not is_read and self._fit(nodes):
                    self.members.update(nodes)

    def _fit(self, nodes: set[Node]) -> bool:
        """Whether all that the nodes read, besides each other, are arrays in memory and repeated rows, and at least one
        is a repeated row."""
        others = {x for node in nodes for x in node.inputs if x not in nodes and not p.is_constant(x)}
        repeated = {x for x in others if p.repeats(x)}
        whole = others - repeated
        if not repeated or not all(x in self._inputs or x.primitive.routine is not None for x in whole):
            return False
        if rows_joined(next(iter(nodes)).shape, self._short) == 1:
            return False
        rows = [p.repeated_row(x) for x in repeated]
        if not all(rows) or not any(row is not None and row.size > 1 for row in rows):
            return False
        return all(self._inputs[x] == contiguous_strides(x.shape) for x in whole if x in self._inputs)

    def replaced(self, node: Node) -> Node | None:
        """A view of the node on joined rows that is computed instead; None if the node is not replaced."""
        if node not in self.members:
            return None
        extent, count = node.shape[-1], rows_joined(node.shape, self._short)
        shape = (prod(node.shape[:-1]) // count, count * extent)
        sources = tuple([self._operand(x, shape, count) for x in node.inputs])
        found = Node(node.primitive, sources, node.params, shape, node.dtype, None)
        view = p.reshaped(found, node.shape)
        self._wide[view] = found
        return view

    def _operand(self, x: Node, shape: Shape, count: int) -> Node:
        if p.is_constant(x):
            return x
        if x not in self._wide:
            row = p.repeated_row(x)
            self._wide[x] = p.reshaped(x, shape) if row is None else p.joined_row(row, count, shape)
        return self._wide[x]


def _elementwise_parts(order: Sequence[Node]) -> list[tuple[set[Node], bool]]:
    """The sets of elementwise nodes that read each other, each with whether a node without a routine reads one of
    them."""
    parts: dict[Node, set[Node]] = {}
    read: set[Node] = set()
    for node in order:
        primitive = node.primitive
        if isinstance(primitive, p.Elementwise) and not primitive.is_view:
            joined = [parts[x] for x in node.inputs if x in parts]
            part = parts[node] = max(joined, key=len, default=set())
            part.add(node)
            for smaller in joined:
                if smaller is not part:
                    part |= smaller
                    parts.update(dict.fromkeys(smaller, part))
        elif primitive is not None and primitive.routine is None:
            read.update(node.inputs)
    return [(part, not part.isdisjoint(read)) for part in {id(part): part for part in parts.values()}.values()]
