"""Elementwise operations on rotated arrays, such as `roll` makes of a periodic grid to get the neighbours of each
point.

A rotated array is a copy of another one, its source. An elementwise operation can read the source instead: its result
is cut into boxes where the rotation wraps around, and each box is computed from slices. So no copy is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

import weft.primitives as p
from weft.compiler.regions import Box
from weft.graph.node import Node, Shape, serial_of

MOST_MADE = 64
"""A result of more operations takes so long to compute that copies do not matter, and code for its boxes takes long to
generate."""

MOST_NODES = 1 << 12
"""The most nodes that may be added to a graph. Planning that many takes some tenths of a second."""

SHORTEST_ROW = 64
"""Shorter rows are not cut, because their parts would not fill vectors."""

Cuts = list[list[int]]
"""For each axis, where its boxes begin, and where the last one ends."""


class RotatedReads:
    """Replacements for the nodes of a graph that are computed elementwise from rotated arrays. ``members`` are the
    nodes whose results are stored. Each becomes an update of at most ``most`` boxes, if it has at least ``least``
    elements for each of them.

    The elementwise nodes between the rotated arrays and a member are computed again for each box. Members that are cut
    in the same way share the slices and nodes of a box.
    """

    def __init__(self, order: Sequence[Node], outputs: Sequence[Node], most: int, least: int) -> None:
        self.members: set[Node] = set()
        self._inside: set[Node] = set()
        self._rotated: set[Node] = set()
        self._cuts: list[Cuts] = []
        self._parts: dict[tuple[Node, int, int], Node] = {}
        if most and any(map(_is_rotated, order)):
            self._find(order, set(outputs), most, least)

    def _find(self, order: Sequence[Node], outputs: set[Node], most: int, least: int) -> None:
        others = set(outputs)
        for node in order:
            if not _is_elementwise(node):
                others.update(node.inputs)
        for node in order:
            if node not in others:
                (self._inside if _is_elementwise(node) else self._rotated).add(node)
        self._rotated = {node for node in self._rotated if _is_rotated(node)}
        left = MOST_NODES
        for node in order:
            if not _is_elementwise(node) or node in self._inside:
                continue
            made, read = self._made_of(node)
            cuts = [] if len(made) > MOST_MADE or any(map(_is_of_rows, read)) else self._cuts_of(node, read)
            count = _count(cuts)
            if 1 < count <= most and node.size >= least * count and _has_long_rows(cuts):
                left -= len(made) * count
                if left >= 0:
                    self.members.add(node)

    def _made_of(self, node: Node) -> tuple[list[Node], list[Node]]:
        """The nodes that are computed for a member, in order, and the nodes that these read."""
        made: set[Node] = set()
        read: set[Node] = set()
        pending = [node]
        while pending:
            for source in pending.pop().inputs:
                if source not in self._inside:
                    read.add(source)
                elif source not in made:
                    made.add(source)
                    pending.append(source)
        return [*sorted(made, key=serial_of), node], sorted(read, key=serial_of)

    def _cuts_of(self, node: Node, read: Sequence[Node]) -> Cuts:
        cuts: Cuts = [[0, extent] for extent in node.shape]
        for source in read:
            _, offsets = _source_of(source) if source in self._rotated else (source, (0,) * node.ndim)
            for found, offset, extent in zip(cuts, offsets, node.shape, strict=True):
                if offset != 0 and all(extent - offset != cut for cut in found):
                    found.append(extent - offset)
        return [sorted(found) for found in cuts]

    def replaced(self, node: Node) -> Node | None:
        """The update that writes the boxes of a member; None for other nodes."""
        if node not in self.members:
            return None
        made, read = self._made_of(node)
        cuts = self._cuts_of(node, read)
        if cuts not in self._cuts:
            self._cuts.append(cuts)
        number = self._cuts.index(cuts)
        boxes = list(_boxes(cuts))
        for position, box in enumerate(boxes):
            for source in read:
                self._parts.setdefault((source, number, position), self._sliced(source, box))
            for one in made:
                if (one, number, position) not in self._parts:
                    inputs = tuple([self._parts[source, number, position] for source in one.inputs])
                    part = Node(one.primitive, inputs, one.params, box.sizes, one.dtype, None)
                    self._parts[one, number, position] = part
        parts = [self._parts[node, number, position] for position in range(len(boxes))]
        found: Node = p.made_of_boxes(parts, [box.starts for box in boxes], node.shape)
        return found

    def _sliced(self, node: Node, box: Box) -> Node:
        """A box of an array that a member reads."""
        if p.is_constant(node):
            return node
        starts = box.starts
        if node in self._rotated:
            extents = node.shape
            node, offsets = _source_of(node)
            moved = zip(starts, offsets, extents, strict=True)
            starts = tuple([(start + offset) % extent if offset != 0 else start for start, offset, extent in moved])
        return p.box_of(node, starts, box.sizes)


def _is_elementwise(node: Node) -> bool:
    return isinstance(node.primitive, p.Elementwise)


def _is_rotated(node: Node) -> bool:
    return node.primitive is not None and node.primitive.rotated(node) is not None


def _is_of_rows(node: Node) -> bool:
    """Whether a node is the result of a fold or scan, or a view of it. Then a kernel may do whole rows, with everything
    that is computed from them."""
    while p.is_view(node):
        node = node.inputs[0]
    return isinstance(node.primitive, p.Folding | p.Scan)


def _source_of(node: Node) -> tuple[Node, Shape]:
    """The array of which a rotated array is a copy, perhaps after several rotations, and the offset on each axis."""
    extents, offsets = node.shape, (0,) * node.ndim
    found = node.primitive.rotated(node)
    while found is not None:
        node, more = found
        offsets = tuple([(a + b) % n for a, b, n in zip(offsets, more, extents, strict=True)])
        found = None if node.primitive is None else node.primitive.rotated(node)
    return node, offsets


def _count(cuts: Cuts) -> int:
    return prod([len(found) - 1 for found in cuts])


def _has_long_rows(cuts: Cuts) -> bool:
    return len(cuts[-1]) == 2 or cuts[-1][-1] >= SHORTEST_ROW


def _boxes(cuts: Cuts) -> Iterator[Box]:
    for spans in product(*[list(pairwise(found)) for found in cuts]):
        yield Box(tuple([start for start, _ in spans]), tuple([end - start for start, end in spans]))
