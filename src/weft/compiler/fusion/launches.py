"""The loop nests of groups: what they store is written into a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import weft.primitives as p
from weft.compiler.kernel import Launch
from weft.graph.node import Node, Shape
from weft.primitives import index_code
from weft.primitives.index import Term, added, scaled, shifted, weighted
from weft.runtime.memory import contiguous_strides

from .builder import Draft, launch_of
from .fusion import Fusion
from .groups import FusedGroup, Group, Root
from .narrow_rows import taken_rows

Watch = Callable[[Group, Node], None]

MANY_ROOTS = 17
"""From this many roots on, registers do not hold all values until the end, where they would be stored."""


class Launches:
    """Makes the loop nests of groups. ``watch`` is told which nodes each group computes."""

    def __init__(self, fusion: Fusion, watch: Watch | None) -> None:
        self.fusion = fusion
        self.watch = watch

    def of(self, group: FusedGroup, lanes_apart: bool = False) -> Launch | None:
        """The loop nest of a group; None if there is nothing to do."""
        if not group.roots or any(group.extents[axis] == 0 for axis in group.parallel):
            return None

        def in_memory(node: Node) -> tuple[Node, Shape, int] | None:
            layout = self.fusion.layout(node)
            if layout is None:
                return None
            stored = self.fusion.stored.get(layout.base, ())
            if group in stored or not (stored or layout.base in self.fusion.inputs):
                return None
            return layout.base, layout.strides, layout.offset

        def watched(node: Node) -> tuple[Node, Shape, int] | None:
            location = in_memory(node)
            if location is None and self.watch is not None:
                self.watch(group, node)
            return location

        readable = in_memory if self.watch is None else watched

        def new_draft() -> Draft:
            return Draft(readable, group.reduced, group.chunks, group.extents, self.fusion.lookup)

        draft, axes = self._draft(new_draft(), group), group.axes
        together = None if lanes_apart else taken_rows(draft, group, self.fusion.limits.taken_row)
        if together is not None:
            draft, axes = self._draft_of_rows(new_draft(), group, together), axes[:-1]
        return launch_of(draft, axes, group.extents, lanes_apart, self.fusion.limits.scattered_lanes)

    def _draft(self, draft: Draft, group: FusedGroup) -> Draft:
        """A draft with what a group computes and stores."""
        parts = _parts(group.roots)
        for root in _in_order(group.roots):
            for part in parts.pop(root.target, ()):
                draft.value(part.node, part.terms)
            self._store(draft, group, root)
        return draft

    def _draft_of_rows(self, draft: Draft, group: FusedGroup, axis: int) -> Draft:
        """A draft in which one body does all elements along an axis: it computes all of them, and then stores them."""
        indices = range(group.extents[axis])
        for index in indices:
            draft.fix(axis, index)
            for root in group.roots:
                draft.value(root.node, root.terms)
        for index in indices:
            draft.fix(axis, index)
            for root in group.roots:
                self._store(draft, group, root)
        return draft

    def _store(self, draft: Draft, group: FusedGroup, root: Root) -> None:
        strides = contiguous_strides(root.target.shape)
        combine, where = None, None
        if root.write is None:
            term = weighted(root.terms, strides)
        elif isinstance(root.write, p.RegionWrite):
            term = Term(0)
            parts = zip(root.terms, root.write.starts, root.write.steps, strides, strict=True)
            for at, start, step, stride in parts:
                term = added(term, scaled(shifted(scaled(at, step), start), stride))
        else:
            term, where = self._scatter_term(draft, root, root.write, strides)
            combine = root.write.combine
        value = draft.value(root.node, root.terms)
        scattered = isinstance(root.write, p.ScatterWrite)
        axes = group.axes if scattered else [axis for at in root.terms for axis, _ in at.axes]
        draft.store(value, term, root.target, root.node.dtype, axes, combine, where)

    def _scatter_term(
        self, draft: Draft, root: Root, part: p.ScatterWrite, strides: Sequence[int]
    ) -> tuple[Term, int | None]:
        """The index to which updates go, and the condition that they are stored (None: always)."""
        target = root.target
        indices = [target.inputs[position] for position in part.indices]
        rank = indices[0].ndim
        at, within = root.terms[:rank], root.terms[rank:]
        slices = root.node.shape[rank:]
        total = weighted(within, strides)
        valid: int | None = None
        drops = part.outside == "nowhere"
        read = index_code.as_it_is if drops else index_code.nearest
        for index, axis in zip(indices, part.axes, strict=True):
            extent = target.shape[axis]
            at_target, inside = draft.index_from(index, at, extent - slices[axis] + 1, extent, read)
            total = added(total, scaled(at_target, strides[axis]))
            if inside is not None and drops:
                valid = inside if valid is None else index_code.both(draft, valid, inside)
        return total, valid


def _parts(roots: Sequence[Root]) -> dict[Node, list[Root]]:
    """The roots that write to the same place and do not overlap. They may be neighbours in memory: all are computed
    before the first one is stored, so that they can be stored together."""
    parts: dict[Node, list[Root]] = {}
    for root in roots:
        if root.write is not None and root.target.primitive.disjoint:
            parts.setdefault(root.target, []).append(root)
    return parts


def _in_order(roots: Sequence[Root]) -> Sequence[Root]:
    """Many roots are sorted by the order in which their values are computed, so that each is stored when it is known.
    Roots that write parts stay in their order. For a thousand roots, this takes LLVM a tenth of the time."""
    if len(roots) < MANY_ROOTS or any(root.write is not None for root in roots):
        return roots
    return sorted(roots, key=lambda root: root.node.serial)
