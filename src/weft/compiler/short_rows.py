"""Elementwise work on short rows with an operand that is the same for all of them: many rows become one.

The lanes of a kernel go along the last axis, and three channels of an image fill three of sixteen lanes. All rows
together cannot be walked as one if an operand is repeated for each of them, unless there is a copy of it that is as
long as many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import weft.primitives as p
from weft.compiler.open_numbers import as_a_whole
from weft.graph.node import Node, Shape
from weft.runtime.memory import contiguous_strides

LONG = 1024
"""The most elements of a row that others were joined to."""

MANY = 1 << 14
"""For fewer elements a copy is not worth it."""


@as_a_whole
def rows_joined(shape: Shape, short: int) -> int:
    """How many rows of an array become one, if they have less than ``short`` elements; 1 if it stays as it is."""
    if len(shape) < 2 or not 1 < shape[-1] < short or prod(shape) < MANY:
        return 1
    rows = prod(shape[:-1])
    return next((count for count in range(LONG // shape[-1], 1, -1) if rows % count == 0), 1)


class JoinedRows:
    """What becomes of the nodes of a graph that are computed on joined rows; ``members`` are these.

    All elementwise nodes of one shape are, or none: if others than routines read one of them, these have other loops.
    """

    def __init__(self, order: Sequence[Node], inputs: dict[Node, Shape], short: int) -> None:
        self._inputs, self._short = inputs, short
        found: dict[Shape, list[Node]] = {}
        for node in order:
            if isinstance(node.primitive, p.Elementwise) and not node.primitive.is_view:
                found.setdefault(node.shape, []).append(node)
        self.members: set[Node] = set()
        for shape, nodes in found.items():
            if rows_joined(shape, short) > 1 and self._fit(nodes):
                self.members.update(nodes)
        if self.members:
            self._leave_out(order)
        self._wide: dict[Node, Node] = {}

    def _fit(self, nodes: Sequence[Node]) -> bool:
        """Whether nodes read each other, arrays in memory and repeated rows, of which there is one at least."""
        own = set(nodes)
        others = {x for node in nodes for x in node.inputs if x not in own and not p.is_constant(x)}
        rows = {x: row for x in others if (row := p.repeated_row(x)) is not None}
        is_any_repeated = any(row.size > 1 for row in rows.values())
        return is_any_repeated and all(map(self._is_in_memory, others - rows.keys()))

    def _is_in_memory(self, node: Node) -> bool:
        if node in self._inputs:
            return bool(self._inputs[node] == contiguous_strides(node.shape))
        return node.primitive.routine is not None

    def _leave_out(self, order: Sequence[Node]) -> None:
        """Leave out the shapes of which something else is made than by routines, which read memory."""
        other = {
            x.shape
            for node in order
            if node.primitive is not None and node not in self.members and node.primitive.routine is None
            for x in node.inputs
            if x in self.members
        }
        self.members = {node for node in self.members if node.shape not in other}

    def replaced(self, node: Node) -> Node | None:
        """A view of the node that is computed instead; None if it stays."""
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
