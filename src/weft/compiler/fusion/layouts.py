"""Where the nodes of a graph are in memory, while it is fused: strides in what groups store, and in inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.compiler.index import keeps_places
from weft.compiler.kernel import VIRTUAL_LANES
from weft.graph.node import Node, Shape
from weft.primitives.routine import Factors
from weft.runtime.memory import contiguous_strides

from .groups import Group, Layout


class Layouts:
    """``stored`` gives the groups that store a node. ``copies`` gives the contiguous copy of a view, or of an operand
    of a call (by group and position)."""

    def __init__(self, inputs: dict[Node, Shape]) -> None:
        self.inputs = inputs
        self.stored: dict[Node, dict[Group, None]] = {}
        self.copies: dict[Any, Node] = {}
        self._found: dict[Node, Layout | None] = {}
        self._own: dict[Node, Layout] = {}
        """The layouts of nodes that have memory of their own."""

    def of(self, node: Node) -> Layout | None:
        """Where ``node`` is, or will be if it is stored; None for a view that no strides describe."""
        chain: list[Node] = []
        while True:
            if self._has_memory(node):
                found: Layout | None = self._own.get(node)
                if found is None:
                    strides = self.inputs[node] if node in self.inputs else contiguous_strides(node.shape)
                    found = self._own[node] = Layout(node, strides, 0)
                break
            if node in self._found:
                found = self._found[node]
                break
            chain.append(node)
            node = self.copies.get(node, node.inputs[0])
        for view in reversed(chain):
            found = None if found is None else seen_through(view, found)
            self._found[view] = found
        return found

    def over_axes(self, node: Node) -> tuple[Node, Layout] | None:
        """The layout of an operand whose axes may go over several axes in memory, and the node that has strides there
        and of which it is a view; None if the operand is no view of this kind."""
        source = node
        while not self.is_viewable(source):
            if not p.is_view(source) or self.computes_nothing(source):
                return None
            source = source.inputs[0]
        found = self.seen_over_axes(node, source)
        return None if found is None else (source, found)

    def seen_over_axes(self, node: Node, source: Node) -> Layout | None:
        """The layout of a view in the memory of ``source``, which has strides there, even if what is between them has
        memory of its own."""
        views: list[Node] = []
        while node is not source:
            views.append(node)
            node = node.inputs[0]
        layout = self.of(source)
        assert layout is not None
        factors: Factors | None = tuple([((n, stride),) for n, stride in zip(node.shape, layout.strides, strict=True)])
        for view in reversed(views):
            factors = None if factors is None else factors_through(view, factors)
        return None if factors is None else Layout(layout.base, (), layout.offset, factors)

    def _has_memory(self, node: Node) -> bool:
        return node in self.stored or node in self.inputs or not p.is_view(node)

    def copied(self, view: Node) -> Node:
        """A node for the input of a view, copied so that strides can describe the view."""
        self.copies[view] = copy = copy_of(view.inputs[0])
        self._found.pop(view, None)
        return copy

    def strides_in_copy(self, view: Node) -> Shape | None:
        """The strides of a view of a contiguous copy of its input."""
        found = seen_through(view, Layout(view, contiguous_strides(view.inputs[0].shape), 0))
        return None if found is None else found.strides

    def is_viewable(self, node: Node) -> bool:
        """Whether strides in memory can describe a view."""
        return self.of(node) is not None and not self.computes_nothing(node)

    def computes_nothing(self, node: Node) -> bool:
        """Whether the base of a view is a constant, which has no memory unless a group stores it."""
        layout = self.of(node)
        return layout is not None and p.is_constant(layout.base) and layout.base not in self.stored

    def is_transposed(self, node: Node) -> bool:
        """Whether strides describe a view as the transpose of a computed array that could as well be computed in the
        order of the view, and no other view is described by strides in that array."""
        layout = self.of(node)
        if layout is None or not node.shape or node.shape[-1] < VIRTUAL_LANES or layout.strides[-1] == 1:
            return False
        base = layout.base
        if not (isinstance(base.primitive, p.Indexed) and base.primitive.reads_anywhere):
            return False
        shown = [view for view, other in self._found.items() if other is not None and other.base is base]
        return node.size <= base.size and all(view.serial <= node.serial for view in shown)


def factors_through(view: Node, factors: Factors) -> Factors | None:
    """The axes in memory that the axes of a view go over, from those of its input; None if the view has no such
    axes."""
    source, primitive = view.inputs[0], view.primitive
    if keeps_places(view):
        return grouped([factor for axis in factors for factor in axis], view.shape)
    if not isinstance(primitive, p.View):
        return None
    terms = primitive.axis_terms(source.shape, **view.keywords)
    axes = [-1 if term.axis is None else term.axis for term in terms]
    if any((term.start, term.step, term.inner) != (0, 1, None) for term in terms):
        return None
    if sorted(axes) != list(range(view.ndim)) or view.size != source.size:
        return None
    return tuple([factors[axes.index(axis)] for axis in range(view.ndim)])


def grouped(factors: Sequence[tuple[int, int]], shape: Shape) -> Factors | None:
    """Axes in memory (extents and strides) grouped by the axes of ``shape``, which has as many elements in the same
    order. None if an axis of the shape would begin or end within an axis in memory that cannot be split there."""
    if 0 in shape:
        return None
    remaining = [(extent, stride) for extent, stride in factors if extent != 1]
    found: list[tuple[tuple[int, int], ...]] = []
    for whole in reversed(shape):
        left, axis = whole, list[tuple[int, int]]()
        while left > 1:
            extent, stride = remaining.pop()
            if extent > left and extent % left == 0:
                remaining.append((extent // left, stride * left))
                extent = left
            if left % extent:
                return None
            left //= extent
            if axis and axis[-1][0] * axis[-1][1] == stride:
                axis[-1] = axis[-1][0] * extent, axis[-1][1]
            else:
                axis.append((extent, stride))
        found.append(tuple(reversed(axis)) or ((1, 0),))
    return tuple(reversed(found))


def seen_through(view: Node, source: Layout) -> Layout | None:
    """The layout of a view, from that of its input; None if no strides describe it."""
    shown = view.primitive.shown(view, source.strides)
    return None if shown is None else Layout(source.base, shown[0], source.offset + shown[1])


def passes(node: Node) -> bool:
    """Whether a node is a view that an index can pass."""
    return node.primitive is not None and bool(node.primitive.passes(node))


def copy_of(node: Node) -> Node:
    """A copy of a node in row-major order. It has the serial of the node, which decides the order of steps."""
    copy = p.copy_of(node)
    copy.serial = node.serial
    return copy
