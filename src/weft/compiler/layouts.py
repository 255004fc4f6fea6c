"""Where the nodes of a graph are in memory while it is fused: strides over what groups store and over inputs."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft.compiler.groups import Group, Layout
from weft.compiler.kernel import VIRTUAL_LANES
from weft.graph.node import Node, Shape
from weft.primitives.index import ZERO
from weft.runtime.memory import contiguous_strides


class Layouts:
    """``stored`` says which groups store a node, ``copies`` which node is a contiguous copy of a view, or of an operand
    of a call (by group and position)."""

    def __init__(self, inputs: dict[Node, Shape]) -> None:
        self.inputs = inputs
        self.stored: dict[Node, list[Group]] = {}
        self.copies: dict[Any, Node] = {}
        self._found: dict[Node, Layout | None] = {}

    def of(self, node: Node) -> Layout | None:
        """Where ``node`` is, or will be if it is stored; None for a view that no strides describe."""
        chain: list[Node] = []
        while not self._has_memory(node) and node not in self._found:
            chain.append(node)
            node = self.copies.get(node, node.inputs[0])
        if self._has_memory(node):
            strides = self.inputs[node] if node in self.inputs else contiguous_strides(node.shape)
            found: Layout | None = Layout(node, strides, 0)
        else:
            found = self._found[node]
        for view in reversed(chain):
            found = None if found is None else seen_through(view, found)
            self._found[view] = found
        return found

    def _has_memory(self, node: Node) -> bool:
        return node in self.stored or node in self.inputs or not p.is_view(node)

    def copied(self, view: Node) -> Node:
        """The node that will hold the elements of a view, in their order."""
        self.copies[view] = copy = copy_of(view.inputs[0])
        self._found.pop(view, None)
        return copy

    def is_viewable(self, node: Node) -> bool:
        """Whether strides over something in memory can show a view."""
        return self.of(node) is not None and not self.computes_nothing(node)

    def computes_nothing(self, node: Node) -> bool:
        """Whether the base of a view is a constant, which has no memory unless a group stores it."""
        layout = self.of(node)
        return layout is not None and p.is_constant(layout.base) and layout.base not in self.stored

    def is_turned(self, node: Node) -> bool:
        """Whether strides would show the transpose of what is computed, though it might as well be computed in the
        order of the view, and no other view is shown by strides over it."""
        layout = self.of(node)
        if layout is None or not node.shape or node.shape[-1] < VIRTUAL_LANES or layout.strides[-1] == 1:
            return False
        base = layout.base
        if not (isinstance(base.primitive, p.Indexed) and base.primitive.reads_anywhere):
            return False
        shown = [view for view, other in self._found.items() if other is not None and other.base is base]
        return all(view.serial <= node.serial for view in shown)


def seen_through(view: Node, source: Layout) -> Layout | None:
    """The layout of a view of something with a layout."""
    shown = view.primitive.shown(view, source.strides)
    return None if shown is None else Layout(source.base, shown[0], source.offset + shown[1])


def behind(node: Node) -> Any:
    """The input of a view that an index can pass, with an index there; else None."""
    return None if node.primitive is None else node.primitive.behind(node, (ZERO,) * node.ndim)


def copy_of(node: Node) -> Node:
    """A node that holds the same elements in row-major order; in the order of steps it stands with ``node``."""
    copy = p.copy_of(node)
    copy.serial = node.serial
    return copy
