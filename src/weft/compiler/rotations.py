"""Elementwise work on rotated arrays, such as `roll` makes of a periodic grid for its neighbours.

A rotated array is a copy of another one. What reads it element by element may read the other one: its result is cut
where the ends of that meet, into boxes, and each is computed of slices. So no copy is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

import weft.primitives as p
from weft.compiler.regions import Box
from weft.compiler.updates import STEP_ELEMENTS
from weft.graph.node import Node, Shape, serial_of

MOST_MADE = 64
"""Of more operations a result is made in so much time that copies do not matter, and code for its boxes takes long."""

MOST_NODES = 1 << 12
"""Planning so many more takes some tenths of a second."""

SHORTEST_ROW = 64
"""Shorter rows are not cut: their parts would not fill vectors."""

Cuts = list[list[int]]
"""Per axis where boxes begin, and the end of the last one."""


class RotatedReads:
    """What becomes of the nodes of a graph that are computed of rotated arrays; ``members`` are those whose results are
    stored, which become updates of at most ``most`` boxes.

    What others are made of element by element is made again for each box. Slices of one box stand once in the graph.
    """

    def __init__(self, order: Sequence[Node], outputs: Sequence[Node], most: int) -> None:
        self.members: set[Node] = set()
        self._inside: set[Node] = set()
        self._rotated: set[Node] = set()
        self._cuts: list[Cuts] = []
        self._parts: dict[tuple[Node, int, int], Node] = {}
        if most and any(map(_is_rotated, order)):
            self._find(order, set(outputs), most)

    def _find(self, order: Sequence[Node], outputs: set[Node], most: int) -> None:
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
            if 1 < count <= most and node.size >= STEP_ELEMENTS * count and _has_long_rows(cuts):
                left -= len(made) * count
                if left >= 0:
                    self.members.add(node)

    def _made_of(self, node: Node) -> tuple[list[Node], list[Node]]:
        """The nodes that are computed for a member, in order, and what they read."""
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
        """An update that writes the boxes of a member."""
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
        """A box of what a member reads."""
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
    """Whether a node shows what is folded or scanned: a kernel may do whole rows, and all that is made of them."""
    while p.is_view(node):
        node = node.inputs[0]
    return isinstance(node.primitive, p.Folding | p.Scan)


def _source_of(node: Node) -> tuple[Node, Shape]:
    """What a rotated array is a copy of, though rotated several times, and its offset on each axis."""
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
