"""Arrays of short rows that are computed column by column: each column is an array of its own.

If a kernel walks along rows of a few elements, it leaves most lanes of its vectors empty, and folds them across the
lanes. Where rows are put together from columns and taken apart again, as the state of a differential equation is in
each of its steps, they would go through memory in between. As columns they stay in registers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import weft.primitives as p
from weft.compiler.fusion.builder import NARROW_LANES
from weft.graph.node import Node, Shape

MANY_ROWS = 256
"""For fewer rows, more operations take more time than walking along the rows."""

MOST_COLUMNS = 1 << 11
"""The most columns that may be computed instead of the arrays of a graph that belong together."""

FEWEST_LANES = 16
"""As many lanes fill a vector."""


def places_of_columns(order: Sequence[Node], most: int) -> list[tuple[int, int]]:
    """Ranks of arrays, and the axis along which rows may be short, where it may pay to compute columns; higher ranks
    come first, since folding them gives columns of others."""
    found: set[tuple[int, int]] = set()
    for node in order:
        if isinstance(node.primitive, p.Reduction):
            last = node.inputs[0].ndim - 1
            if node.params[0] == (last,) and 1 < node.inputs[0].shape[last] <= most:
                found |= {(rank, rank - 1) for rank in range(2, last + 2)}
        elif node.primitive is not None:
            axes = [axis for axis, extent in enumerate(node.shape) if 1 < extent <= most]
            found |= {(node.ndim, axis) for axis in axes if p.consists_of_columns(node, axis)}
            if any(_is_spread(x) for x in node.inputs):
                found.add((node.ndim, node.ndim - 1))
    return sorted(found, reverse=True)


class ComputedColumns:
    """Replacements for the nodes of a graph that are computed column by column along ``axis`` of arrays of rank
    ``ndim``. ``members`` are these nodes.

    Nodes that read each other belong together, if their rows have the same number: all of them are computed like this,
    or none. It pays if columns are joined to rows that they read, if rows are folded and the results are spread over
    rows again, or if any column is spread over narrow rows, since it is then read once. It is not done with results of
    calls, since kernels may become a part of these.
    """

    def __init__(self, order: Sequence[Node], outputs: Sequence[Node], ndim: int, axis: int, most: int) -> None:
        self._ndim, self._axis, self._most = ndim, axis, most
        self._columns: dict[Node, list[Node]] = {}
        self._part: dict[Node, Node] = {}
        self._folds: set[Node] = set()
        self._folded_alone: set[Node] = set()
        self.members: set[Node] = set()
        parts: dict[Node, list[Node]] = defaultdict(list)
        for node in self._linked(order):
            parts[self._first(node)].append(node)
        for nodes in parts.values():
            members = [node for node in nodes if self._is_computed(node)]
            few = sum([node.shape[axis] for node in members]) <= MOST_COLUMNS
            if few and self._pays(nodes, members) and not any(map(_reads_call, members)):
                self.members.update(members)
                self._folds.update([node for node in nodes if isinstance(node.primitive, p.Reduction)])
                self._folded_alone.update(self._folds_alone(nodes, members, order, outputs))

    def _linked(self, order: Sequence[Node]) -> list[Node]:
        """The nodes that go over the same rows as one of their inputs or users, linked to these. The rows of one of
        them are short."""
        found: dict[Node, Shape] = {}
        for node in order:
            rows = self._rows(node)
            if rows is None:
                continue
            found[node] = rows
            for source in node.inputs:
                if source in found and found[source] == rows:
                    self._part[self._first(source)] = self._first(node)
        wide = {self._first(node) for node in found if self._is_computed(node)}
        return [node for node in found if self._first(node) in wide]

    def _first(self, node: Node) -> Node:
        """The node that stands for all nodes that are linked."""
        while (other := self._part.get(node, node)) is not node:
            self._part[node] = self._part.get(other, other)
            node = other
        return node

    def _rows(self, node: Node) -> Shape | None:
        """The extents of the rows that a node goes over, whether it has a column for them or several; None if it does
        something else."""
        primitive, axis = node.primitive, self._axis
        if primitive is None or primitive.is_constant:
            return None
        if isinstance(primitive, p.Reduction):
            if node.params[0] != (axis,) or node.ndim != self._ndim - 1:
                return None
        elif not (primitive.is_view or isinstance(primitive, p.Elementwise) or p.consists_of_columns(node, axis)):
            return None
        if node.ndim == self._ndim - 1:
            return node.shape
        if node.ndim != self._ndim or not 0 < node.shape[axis] <= self._most:
            return None
        return (*node.shape[:axis], *node.shape[axis + 1 :])

    def _is_computed(self, node: Node) -> bool:
        if node.ndim != self._ndim or node.primitive.is_view or isinstance(node.primitive, p.Reduction):
            return False
        extent = node.shape[self._axis]
        return 1 < extent <= self._most and node.size >= MANY_ROWS * extent and self._has_lanes(node)

    def _has_lanes(self, node: Node) -> bool:
        """Whether the lanes of a kernel that goes over a column fill a vector."""
        *others, last = [n for axis, n in enumerate(node.shape) if axis != self._axis]
        return last >= FEWEST_LANES or (last <= NARROW_LANES and bool(others) and others[-1] >= FEWEST_LANES)

    def _folds_alone(
        self, nodes: Sequence[Node], members: Sequence[Node], order: Sequence[Node], outputs: Sequence[Node]
    ) -> list[Node]:
        """What folds results of linked nodes along another axis, if that can be done for each column by itself, and
        nothing else reads them: it would read them from memory, along another axis than columns would be."""
        inside, computed = set(nodes), set(members)
        users = [node for node in order if node not in inside and not inside.isdisjoint(node.inputs)]
        axes = [p.folded_axis(node, self._axis) for node in users]
        if not users or axes[0] is None or any(axis != axes[0] for axis in axes) or not inside.isdisjoint(outputs):
            return []
        if not all(node.inputs[0] in computed for node in users):
            return []
        lanes = [extent for axis, extent in enumerate(users[0].inputs[0].shape[:-1]) if axis != axes[0]][-1]
        return users if lanes >= FEWEST_LANES else []

    def _pays(self, nodes: Sequence[Node], members: Sequence[Node]) -> bool:
        """Whether linked nodes should be computed column by column."""
        if not members:
            return False
        together = set(nodes)
        folds = any(isinstance(node.primitive, p.Reduction) for node in nodes)
        if folds and any(p.repeats(node) and node.inputs[0] in together for node in nodes):
            return True
        if not folds and self._axis == self._ndim - 1 and any(map(_is_spread, [x for n in members for x in n.inputs])):
            return True
        read = [source for node in nodes for source in node.inputs if source in together]
        return any(p.consists_of_columns(source, self._axis) and self._is_computed(source) for source in read)

    def replaced(self, node: Node) -> Node | None:
        """What takes the place of a node that is computed by columns, or that reads such a node; None for others."""
        if node in self.members:
            return self._joined([self._computed(node, position) for position in range(node.shape[self._axis])])
        columns = self._columns.get(node.inputs[0]) if node.inputs else None
        if node in self._folds:
            found: Node = node.primitive.unrolled(node, columns or ())
            return found
        if columns is None:
            return None
        if node in self._folded_alone:
            folded = p.folded_axis(node, self._axis)
            assert folded is not None
            return p.joined_columns(p.folded_columns(node, columns, folded), node.ndim - 1)
        shown = p.shown_columns(node, self._axis) if node.primitive.is_view else None
        if not shown:
            return None
        if node.ndim < self._ndim:
            return p.without_axis(columns[shown[0]], self._axis)
        return columns[shown[0]] if len(shown) == 1 else self._joined([columns[position] for position in shown])

    def _computed(self, node: Node, position: int) -> Node:
        """A column of a member."""
        if p.consists_of_columns(node, self._axis):
            return self._column(*p.source_of_column(node, self._axis, position))
        operands = [self._column(x, position) if x.shape else x for x in node.inputs]
        return p.column_of_operands(node, self._axis, operands)

    def _column(self, x: Node, position: int) -> Node:
        columns = self._columns.get(x)
        if columns is not None:
            return columns[position]
        return x if x.shape[self._axis] == 1 else p.column_of(x, self._axis, position)

    def _joined(self, columns: list[Node]) -> Node:
        joined = p.joined_columns(columns, self._axis)
        self._columns[joined] = columns
        return joined


def _is_spread(x: Node) -> bool:
    """Whether each row of ``x`` is narrow, and repeats one element, which is another one in the next row."""
    if not p.repeats(x) or x.ndim < 2 or not 1 < x.shape[-1] <= NARROW_LANES:
        return False
    return x.inputs[0].shape[-1] == 1 and x.inputs[0].shape[-2:-1] == x.shape[-2:-1]


def _reads_call(node: Node) -> bool:
    """Whether a call of a routine computes something that a node reads."""
    sources = [_seen(x).primitive for x in node.inputs]
    return any(one is not None and (one.is_result or one.routine is not None) for one in sources)


def _seen(node: Node) -> Node:
    """The node that views show."""
    while p.is_view(node):
        node = node.inputs[0]
    return node
