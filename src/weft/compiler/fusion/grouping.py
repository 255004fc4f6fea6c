"""The groups while fusion makes them: what they use, compute and store, and their loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import weft.primitives as p
from weft.compiler.compared_keys import Lookup
from weft.compiler.fusion import uniting
from weft.compiler.index import own_axes
from weft.compiler.target import FusionLimits
from weft.graph.node import Node, Shape
from weft.primitives.index import Terms

from .dependencies import Dependencies
from .formulas import is_longer, narrowest
from .groups import FusedGroup, Group, Layout, Root, RoutineGroup, Use
from .layouts import Layouts
from .reads import ReadRecorder


class Grouping:
    """The groups made so far. ``lookup`` makes dictionaries whose keys are uses of nodes at an index."""

    def __init__(self, inputs: dict[Node, Shape], limits: FusionLimits, lookup: Lookup) -> None:
        self.inputs = inputs
        self.limits = limits
        self.lookup = lookup
        self.dependencies = Dependencies()
        self._layouts = Layouts(inputs)
        self._uses: dict[Node, list[Use]] = {}
        self._renamed = uniting.Renamed()
        self._cut_off: set[Node] = set()
        """Nodes whose formulas are so long that their values are stored."""
        self._read_of_calls: dict[Group, list[Node]] = {}
        """The results of calls that each group reads."""

    def attach(self, group: FusedGroup, call: RoutineGroup) -> None:
        """Make a group a part of the step of a call, which then stores what the group stores."""
        for root in group.roots:
            self.replace_writer(root.target, group, call)
        self.dependencies.attach(group, call)

    def replace_writer(self, node: Node, group: Group, by: Group) -> None:
        """Note that a group stores what another one stored of a node."""
        writers = self.stored[node]
        writers.pop(group, None)
        writers[by] = None

    def _new_fused_group(self, shape: Shape, serial: int) -> tuple[FusedGroup, Terms]:
        terms, extents = own_axes(shape)
        group = FusedGroup(self.dependencies.new_number(), serial, axes=list(extents), extents=extents)
        self.dependencies.add(group)
        return group, terms

    def _use(self, node: Node, user: Group, terms: Terms | None) -> None:
        is_input = node in self.inputs
        if not is_input or self._is_worth_sharing(node):
            self._uses.setdefault(node, []).append((user, terms))
            if not is_input and node.primitive.routine is not None:
                self._read_of_calls.setdefault(user, []).append(node)

    def _use_formula(self, node: Node, user: FusedGroup, terms: Terms) -> None:
        """Note that a group uses what it folds, scans or writes. If a group is not plain, the body of its kernel is not
        cut: a long formula is computed by another group, and its value is stored."""
        self._use(node, user, terms)
        node = narrowest(node, self.inputs)
        if not user.is_plain and is_longer(node, self.limits.uncut_members, self.inputs):
            self._cut_off.add(node)

    def layout(self, node: Node) -> Layout | None:
        """Where ``node`` is, or will be if it is stored; None for a view that no strides describe."""
        return self._layouts.of(node)

    @property
    def stored(self) -> dict[Node, dict[Group, None]]:
        """The groups that store a node."""
        return self._layouts.stored

    @property
    def copies(self) -> dict[Any, Node]:
        """The copies of views, and of operands of calls by group and position."""
        return self._layouts.copies

    def _store_in_new_group(self, node: Node, uses: list[Use]) -> FusedGroup:
        group, terms = self._new_fused_group(node.shape, node.serial)
        self._store(node, group, terms, uses)
        self._expand(node, group, terms)
        return group

    def _store(self, node: Node, group: FusedGroup, terms: Terms, uses: Iterable[Use]) -> None:
        group.roots.append(Root(node, terms, node))
        group.serial = max(group.serial, node.serial)
        self.stored[node] = {group: None}
        self.dependencies.link(group, uses)

    def _expand(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        """Add the inputs of a node that is computed in ``group`` to its uses."""
        group.members += 1
        primitive = node.primitive
        if isinstance(primitive, p.Elementwise):
            group.slow += not primitive.cheap
            for source in node.inputs:
                self._use(source, group, terms if source.shape else ())
        elif isinstance(primitive, p.Indexed):
            group.indexed += 1
            recorder = ReadRecorder(node)
            primitive.element(recorder, terms, node)
            for position, at in recorder.reads:
                computed = any(term.computed for term in at)
                self._use(node.inputs[position], group, None if computed else at)
        else:
            step = primitive.behind(node, terms)
            if step is not None:
                self._use(step[0], group, step[1])

    def _has_room(self, group: FusedGroup) -> bool:
        """Whether a group may have one more member."""
        if group.members < self.limits.uncut_members:
            return True
        return group.is_plain and group.members < self.limits.members and group.indexed < self.limits.uncut_members

    def _current(self, uses: list[Use]) -> list[Use]:
        """The uses of a node after all renaming: by the groups and in the loops that exist at this point."""
        return self._renamed.uses(uses) if self._renamed else uses

    def _united(self, node: Node, uses: list[Use]) -> list[Use]:
        """Unite the groups whose loops go over exactly the elements of a node; returns the uses of the node
        afterwards."""
        first: FusedGroup | None = None
        for user, terms in uses:
            if terms is None or not isinstance(user, FusedGroup) or not uniting.goes_over(user, terms, node.shape):
                continue
            first = user if first is None else self._unite(first, user)
        return uses if first is None else list(self.lookup.fromkeys(self._current(uses)))

    def _is_worth_sharing(self, node: Node) -> bool:
        """Whether groups that read a node should be merged, so that it is read once."""
        return 0 < self.limits.shared_size <= node.nbytes

    def _unite_readers(self, node: Node, uses: Sequence[Use]) -> None:
        """Merge groups that read a node in memory and have equal loops. Groups whose arithmetic takes longer than
        reading are not merged."""
        if len(uses) < 2 or not self._is_worth_sharing(node):
            return
        found: dict[Shape, FusedGroup] = {}
        for user in list(dict.fromkeys([user for user, terms in self._current(list(uses)) if terms is not None])):
            if not isinstance(user, FusedGroup) or not self._may_share(user, node):
                continue
            loops = tuple([user.extents[axis] for axis in user.axes])
            other = found.setdefault(loops, user)
            few = user.members + other.members <= self.limits.shared_members
            if few and not (user.slow and other.slow):
                found[loops] = self._unite(other, user)

    def _may_share(self, group: FusedGroup, node: Node) -> bool:
        """Whether a group may be merged with another one that reads the same node. It has to read more than half of the
        node: two slices of less may have no element in common. A group that reads results of calls, or computes
        operands of calls, may become part of their steps instead."""
        most = 2 * prod([group.extents[axis] for axis in group.axes]) > node.size
        calls = group in self._read_of_calls or self.dependencies.is_before_call(group)
        return most and group.is_plain and not calls

    def _unite(self, group: FusedGroup, other: FusedGroup) -> FusedGroup:
        """Unite two groups that go over the same elements, if neither needs the other and they are not too large
        together. Returns the group to which a third one may be united."""
        if group.members + other.members > self.limits.members:
            return group if other.members > group.members else other
        if group is other or not self.dependencies.are_independent(group, other):
            return group
        pairs = (group, other), (other, group)
        # If loops are the same, the group that stores less is removed, so that values are not renamed again and again.
        smaller = len(group.roots) < len(other.roots) and [*group.extents.values()] == [*other.extents.values()]
        for kept, gone in reversed(pairs) if smaller else pairs:
            renaming = uniting.in_loops(kept.extents, gone)
            if renaming is not None:
                self._rename(gone, kept, renaming)
                kept.absorb(gone, in_front=smaller)
                for root in gone.roots:
                    self.replace_writer(root.target, gone, kept)
                self.dependencies.unite(kept, gone)
                return kept
        return group

    def _split(self, group: FusedGroup, shape: Shape) -> Terms | None:
        """Replace the loops of a group by loops over ``shape``, which has as many elements. Returns the index of an
        element of that shape; None if a loop is no product of the new ones."""
        terms, extents = own_axes(shape)
        renaming = uniting.in_loops(extents, group)
        if renaming is None:
            return None
        group.axes, group.extents = list(extents), extents
        self._rename(group, group, renaming)
        return terms

    def _rename(self, old: FusedGroup, new: FusedGroup, renaming: uniting.Renaming) -> None:
        """Replace uses and stores of one group, at an index, by those of another one, at an index of its own loops."""
        if old is not new and old in self._read_of_calls:
            self._read_of_calls.setdefault(new, []).extend(self._read_of_calls.pop(old))
        self._renamed.add(old, new, renaming)
        old.roots = uniting.renamed_roots(old, renaming)

    def _compute_in_each(self, node: Node, uses: Iterable[Use]) -> bool:
        """Compute a node in all groups that use it, if these have room; returns whether that was done."""
        fused = [(user, terms) for user, terms in uses if isinstance(user, FusedGroup) and terms is not None]
        if not all(self._has_room(user) for user, _ in fused):
            return False
        for user, terms in fused:
            self._expand(node, user, terms)
        return True
