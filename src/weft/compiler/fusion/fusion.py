"""Which operations share a kernel.

Nodes are visited from the outputs backwards. So when a node is visited, all its uses are known: as a part of a group,
at an index of that group's loops, or as a whole array in memory. A node joins its consumer if there is only one, and it
uses the node at a single index. A node with several consumers is stored once: by a consumer that can do so without a
cycle, or by a group of its own. Reductions join the elementwise operations that use them, also where results are
broadcast over the rows again: softmax is a single group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

import weft.primitives as p
from weft.compiler.compared_keys import Lookup
from weft.compiler.fusion import folding, remaking, scanning, uniting, updates
from weft.compiler.index import behind_in, index_in, keeps_places, refined, walked_axes, whole_axes
from weft.compiler.target import FusionLimits
from weft.graph.node import Node, Shape
from weft.primitives.index import Term, Terms, shifted

from .builder import axes_apart
from .dependencies import Users
from .formulas import near, operations_from_less
from .grouping import Grouping
from .groups import FusedGroup, Group, Layout, Root, RoutineGroup, Use
from .layouts import copy_of, passes


class Fusion(Grouping):
    """Assigns every node of a graph to a group. ``groups`` are in the order in which they can run. ``kind_for`` gives
    the kind of the target that does a call of a routine; targets differ in the layouts that they can read."""

    def __init__(
        self,
        order: Sequence[Node],
        outputs: Iterable[Node],
        inputs: dict[Node, Shape],
        limits: FusionLimits,
        kind_for: Callable[[Node], str] = lambda node: "",
        lookup: Lookup = dict,
        alone: Container[Node] = (),
    ) -> None:
        super().__init__(inputs, limits, lookup)
        self._alone, self._order = alone, order
        self._count: Counter[Node] = Counter()
        """How often each node is an input of others; filled on first use."""
        self.grown: list[Node] = []
        """Nodes that are stored because they can be attached to a call (`_follows_call`); never those that are
        ``alone``."""
        self._kind_for = kind_for
        self._results: dict[Node, dict[int, Node]] = {}
        self._totals: dict[Any, tuple[FusedGroup, Terms]] = {}
        self._folding: list[tuple[FusedGroup, Terms, Shape, set[Node], Any]] = []
        self._wanted = set(outputs)
        self._updates: list[Node] = []
        self._over_axes: dict[tuple[Group, int], Node] = {}
        """The operands of calls, by group and position, whose axes go over several axes in memory, each with the node
        of which it is a view and that has strides there."""
        self._shown: dict[Node, Node] = {}
        for node in reversed(order):
            uses = self._current(self._uses.pop(node, []))
            self._assign(node, uses)
            if node in self.inputs or node in self.stored:
                self._unite_readers(node, uses)
        self.groups = self.dependencies.in_order()

    def _assign(self, node: Node, uses: list[Use]) -> None:
        if node in self.inputs or not (uses or node in self._wanted):
            return
        in_memory = node in self._wanted or any(terms is None for _, terms in uses)
        if node.primitive.is_view:
            self._assign_view(node, uses, in_memory)
        elif node.primitive.is_result:
            self._assign_result(node, uses)
        elif node.primitive.routine is not None:
            self._assign_routine(node, uses)
        elif isinstance(node.primitive, p.Update):
            self._assign_update(node, uses)
        elif isinstance(node.primitive, p.Folding | p.Scan):
            self._assign_along_rows(node, uses, in_memory)
        elif isinstance(node.primitive, p.ChunkTotals):
            self._assign_totals(node, uses)
        elif p.is_constant(node):
            if in_memory:
                self._store_in_new_group(node, uses)
        else:
            self._assign_fusable(node, uses, in_memory)

    def _assign_view(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        """A view passes its uses on to its input, which is copied if neither an index nor strides describe the view.
        Where that is as good or better, the view itself is stored."""
        index_passes = passes(node)
        if (in_memory and self.layout(node) is None) or not (index_passes or self._layouts.is_viewable(node)):
            if not in_memory and self._pass_to_copy(node, uses):
                return
            self._store_in_new_group(self._layouts.copied(node), [(user, None) for user, _ in uses])
        elif in_memory and (self._layouts.computes_nothing(node) or (index_passes and self._is_transposed(node))):
            self._store_in_new_group(node, uses)
            return
        source = self.copies.get(node, node.inputs[0])
        if node in self._wanted:
            self._wanted.add(source)
        for user, terms in uses:
            step = None if terms is None else self._behind(node, user, terms, uses)
            if step is not None and node not in self.copies:
                self._use(step[0], user, step[1])
            elif source is not self.copies.get(node):
                self._use(source, user, None)

    def _behind(self, view: Node, user: Group, terms: Terms, uses: list[Use]) -> tuple[Node, Terms] | None:
        """The input that a view shows at an index, and the index in the input. If necessary, the loops of the group are
        split, provided that this is its only use of the view."""
        if not isinstance(user, FusedGroup) or not user.is_plain:
            return behind_in({}, view, terms)
        step = behind_in(user.extents, view, terms)
        if step is not None or not self._is_computed(view) or [other for other, _ in uses].count(user) > 1:
            return step
        if not keeps_places(view) or not uniting.goes_over(user, terms, view.shape):
            return None
        at = self._split(user, view.inputs[0].shape)
        return None if at is None else (view.inputs[0], at)

    def _pass_to_copy(self, view: Node, uses: list[Use]) -> bool:
        """Let the only user of a view read the input of the view, if it does nothing but copy the view: else, another
        group would copy the input before. Returns whether it does."""
        (user, terms), *others = uses
        if others or terms is None or view in self._wanted or not isinstance(user, FusedGroup):
            return False
        if not _only_copies(user, view):
            return False
        source = view.inputs[0]
        shape = refined(view.shape, source.shape)
        if shape is None or not keeps_places(view) or not uniting.goes_over(user, terms, view.shape):
            return False
        if self._split(user, shape) is None:
            return False
        at = index_in(user.extents, source.shape)
        assert at is not None, "loops that are not as fine as they should be"
        self._use(source, user, at)
        return True

    def _is_computed(self, node: Node) -> bool:
        """Whether a view shows a node that its user may compute. The nodes that views show are cached."""
        views = []
        while p.is_view(node) and node not in self._shown:
            views.append(node)
            node = node.inputs[0]
        node = self._shown.get(node, node)
        self._shown.update(dict.fromkeys(views, node))
        return node not in self.inputs and isinstance(node.primitive, p.Elementwise | p.Indexed)

    def _is_transposed(self, node: Node) -> bool:
        """Whether a view is the transpose of an array that nothing needs in memory so far, and that could as well be
        computed in the order of the view. It could not if a call was chosen for the order in which it reads the array.
        """
        layout = self.layout(node)
        found = layout is not None and layout.base not in self._uses and self._layouts.is_transposed(node)
        return found and node not in self._over_axes.values()

    def _assign_fusable(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        uses = list(self.lookup.fromkeys(uses))
        cut_off = node in self._cut_off
        stored = in_memory or cut_off
        if not stored and self._follows_call(node, uses):
            self.grown.append(node)
            self._store_in_new_group(node, uses)
            return
        if not stored and (self._inline(node, uses) or node.primitive.is_counted or self._repeat(node, uses)):
            return
        uses = self._united(node, uses)
        if not stored and (self._inline(node, uses) or self._remake(node, uses)):
            return
        users = Users(uses)
        for user, terms in uses:
            if terms is None or not isinstance(user, FusedGroup) or (cut_off and not user.is_plain):
                continue
            if self._may_store(node, user, terms, users):
                self._store(node, user, terms, uses)
                self._expand(node, user, terms)
                return
        self._store_in_new_group(node, uses)

    def _follows_call(self, node: Node, uses: Sequence[Use]) -> bool:
        """Whether a node should be stored because it can be made by a kernel attached to a call, whose result then need
        not be stored, and because its user can be attached to another call. Then a sum of many products is not computed
        after all of them are in memory, but product by product."""
        (user, _), *others = uses
        read = self._read_of_calls.get(user)
        if others or read is None or node in self._alone or not isinstance(node.primitive, p.Elementwise):
            return False
        if not 0 < self.limits.grown_size <= node.nbytes:
            return False
        if sum([source.shape == node.shape for source in node.inputs]) < 2:
            return False
        return any(map(self._is_left_by_call, read)) and any(map(self._is_left_by_call, node.inputs))

    def _is_left_by_call(self, node: Node) -> bool:
        """Whether a node has a single use and is the result of a call that can have an attached kernel, or a view or
        conversion of such a result."""
        if not self._count:
            self._count.update(chain.from_iterable([user.inputs for user in self._order]))
        while self._count[node] == 1 and node not in self.inputs:
            routine = node.primitive.routine
            if routine is not None:
                return routine.can_attach(self._kind_for(node))
            if not (p.is_view(node) or (isinstance(node.primitive, p.Elementwise) and len(node.inputs) == 1)):
                break
            node = node.inputs[0]
        return False

    def _inline(self, node: Node, uses: Sequence[Use]) -> bool:
        """Compute a node inside the group that uses it, if there is only one; returns whether that was done."""
        if len(uses) > 1 and not _are_apart(uses, self.lookup):
            return False
        fused = [(user, terms) for user, terms in uses if isinstance(user, FusedGroup) and terms is not None]
        if len(fused) < len(uses) or not all(self._may_inline(node, user, terms) for user, terms in fused):
            return False
        for user, terms in fused:
            self._expand(node, user, terms)
        return True

    def _repeat(self, node: Node, uses: Iterable[Use]) -> bool:
        """Compute a cheap node again in each of its users if its inputs are much smaller; returns whether that was
        done. Storing the result of a broadcast would take longer."""
        if operations_from_less(node, node.size // self.limits.fewer, self.limits.repeated_operations) is None:
            return False
        return self._compute_in_each(node, uses)

    def _remake(self, node: Node, uses: Sequence[Use]) -> bool:
        """Compute a node again in each of its users if its inputs are in memory anyway; returns whether that was
        done."""
        users = {user for user, _ in uses}
        if not remaking.saves_memory(node, users, self._uses_of, self._is_stored, self.limits):
            return False
        return self._compute_in_each(node, uses)

    def _uses_of(self, node: Node) -> Sequence[Use]:
        uses = self._uses.get(node)
        if not uses:
            return ()
        self._uses[node] = current = self._current(uses)
        return current

    def _is_stored(self, node: Node) -> bool:
        """Whether a node is stored in memory, whatever happens to its current user."""
        primitive = node.primitive
        return (
            node in self.inputs
            or node in self._wanted
            or any(terms is None for _, terms in self._uses_of(node))
            or primitive.is_result
            or primitive.routine is not None
            or isinstance(primitive, p.Update)
        )

    def _may_inline(self, node: Node, group: FusedGroup, terms: Terms) -> bool:
        """Whether computing ``node`` inside ``group`` repeats no expensive work."""
        if not self._has_room(group):
            return False
        if node.primitive.is_counted or not group.axes:
            return True
        used = {axis for term in terms for axis, _ in term.axes}
        lane = group.axes[-1]
        cheap = isinstance(node.primitive, p.Elementwise) and node.primitive.cheap
        if lane not in used:
            # In a sweep it would be computed for one element at a time, and again in each pass.
            return cheap or used.isdisjoint(group.reduced) or not isinstance(node.primitive, p.Elementwise)
        missing = [axis for axis in group.axes if axis not in used and group.extents[axis] != 1]
        return not missing or cheap

    def _may_store(self, node: Node, group: FusedGroup, terms: Terms, users: Users) -> bool:
        if not self._has_room(group) or group.scattering or users.use_elsewhere(group, terms):
            return False
        # A group that folds must not store operands of other shapes: it would not access memory in order.
        axes = (walked_axes if group.is_plain else whole_axes)(terms, node.shape, group.extents)
        by_row = axes == group.parallel and group.chunks is None
        if axes is None or not (axes == tuple(group.axes) or by_row):
            return False
        return users.may_need(group)

    def _assign_along_rows(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        """A reduction or a scan is computed in the rows of a group that uses it, or else in a group of its own."""
        scans = isinstance(node.primitive, p.Scan)
        users = Users(uses)
        for user, terms in self.lookup.fromkeys(uses):
            if terms is None or not isinstance(user, FusedGroup) or not self._may_compute(user, terms, users):
                continue
            if not (scanning.fits(node, user, terms) if scans else folding.fits(node, user, terms, self.limits)):
                continue
            (self._scan if scans else self._join_reduction)(node, user, terms)
            if in_memory or len(self.lookup.fromkeys(uses)) > 1:
                self._store(node, user, terms, uses)
            else:
                user.serial = max(user.serial, node.serial)
            return
        (self._scan_in_new_group if scans else self._reduce_in_new_group)(node, uses)

    def _reduce_in_new_group(self, node: Node, uses: list[Use]) -> None:
        axes = node.params[0]
        group, terms = self._group_that_folds(node.inputs[0], axes, (), node.serial, uses)
        group.reduced = tuple([terms[axis].axes[0][0] for axis in axes if terms[axis].axes])
        group.folds = True
        group.members += 1
        self._store(node, group, tuple([term for axis, term in enumerate(terms) if axis not in axes]), uses)
        for source in node.inputs:
            self._use_formula(source, group, terms)

    def _group_that_folds(
        self, source: Node, axes: tuple[int, ...], manner: tuple[Any, ...], serial: int, uses: list[Use]
    ) -> tuple[FusedGroup, Terms]:
        """A new group for a fold; or one that folds another array over the same ``axes`` and in the same ``manner``, if
        both are made by few operations from the same large array, which is then read only once. That is done only if
        each lane has its own results: otherwise one fold could keep the other from being done in parallel."""
        if source.ndim - 1 in axes or source.nbytes < self.limits.uncached_size:
            return self._new_fused_group(source.shape, serial)
        manner = axes, *manner
        users, made_from = Users(uses), near(source)
        for group, terms, shape, others, how in self._folding:
            fits = how == manner and shape == source.shape and not made_from.isdisjoint(others)
            if fits and self._has_room(group) and users.may_need(group):
                return group, terms
        group, terms = self._new_fused_group(source.shape, serial)
        self._folding.append((group, terms, source.shape, made_from, manner))
        return group, terms

    def _may_compute(self, group: FusedGroup, terms: Terms, users: Users) -> bool:
        """Whether a group may compute a node: it has room, uses the node at a single index, and needs none of the
        users."""
        if group.members >= self.limits.uncut_members or group.scattering or users.use_elsewhere(group, terms):
            return False
        return users.may_need(group)

    def _join_reduction(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        inner = folding.include(node, group, terms, self.limits)
        group.members += 1
        for source in node.inputs:
            self._use_formula(source, group, inner)

    def _scan_in_new_group(self, node: Node, uses: list[Use]) -> None:
        group, terms = self._new_fused_group(node.shape, node.serial)
        self._store(node, group, terms, uses)
        self._scan(node, group, terms)

    def _scan(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        """Compute a scan in a group."""
        scanning.include(node, group, terms)
        group.members += 1
        for source in node.primitive.scanned(node):
            self._use_formula(source, group, terms)
        for source in node.primitive.before(node):
            self._use(source, group, None)

    def _assign_totals(self, node: Node, uses: list[Use]) -> None:
        """A single group stores all accumulators of a scan or a reduction."""
        key = (node.primitive, node.inputs)
        found = self._totals.get(key)
        if found is not None and Users(uses).may_need(found[0]):
            self._store(node, *found, uses)
            return
        axis, size = node.primitive.axis(node), node.primitive.chunk_size(node)
        manner = size, node.primitive.manner(node)["reverse"]
        group, terms = self._group_that_folds(node.inputs[0], (axis,), manner, node.serial, uses)
        ((loop, _),) = terms[axis].axes
        chunks = group.chunks or scanning.cut(group, loop, size)
        group.reduced, group.folds = (loop,), True
        group.members += 1
        at = (*terms[:axis], Term(0, ((chunks.number, 1),)), *terms[axis + 1 :])
        self._totals[key] = group, at
        self._store(node, group, at, uses)
        for source in node.inputs:
            self._use_formula(source, group, terms)

    def _assign_result(self, node: Node, uses: list[Use]) -> None:
        """A result is stored by the call of the routine that computes all results."""
        whole = node.inputs[0]
        self._results.setdefault(whole, {})[node.params[0]] = node
        for user, terms in uses:
            self._use(whole, user, terms)
        if node in self._wanted:
            self._wanted.add(whole)

    def _results_of(self, node: Node) -> list[Node]:
        """The nodes of a routine's results. For those that are not used, nodes are made."""
        if not node.primitive.several:
            return [node]
        asked = self._results[node]
        return [asked.get(position) or p.result_of(node, position) for position in range(p.result_count(node))]

    def _assign_routine(self, node: Node, uses: list[Use]) -> None:
        results = self._results_of(node)
        group = RoutineGroup(self.dependencies.new_number(), node.serial, node=node, results=results)
        self.dependencies.add(group)
        self.stored.update((result, {group: None}) for result in results)
        self.dependencies.link(group, uses)
        for position in range(len(node.inputs)):
            self._assign_operand(group, position)

    def _assign_operand(self, group: RoutineGroup, position: int) -> None:
        """A routine reads an input in place, or a copy if it cannot read the layout of the input."""
        node, source = group.node, group.node.inputs[position]
        routine, kind = node.primitive.routine, self._kind_for(node)
        layout = self.layout(source) if self._layouts.is_viewable(source) else None
        if layout is not None and routine.accepts(node, position, layout.strides, kind):
            self._use(source, group, None)
            return
        found = self._layouts.over_axes(source)
        if found is not None and routine.reads(node, position, found[1].factors, kind):
            self._over_axes[group, position] = found[0]
            self._use(found[0], group, None)
            return
        strides = self._layouts.strides_in_copy(source) if self.layout(source) is None else None
        if strides is not None and routine.accepts(node, position, strides, kind):
            self._use(source, group, None)
            return
        copy = copy_of(source)
        self.copies[group, position] = copy
        self._store_in_new_group(copy, [(group, None)])

    def operand(self, group: RoutineGroup, position: int) -> Layout | None:
        """The layout of an operand of a routine: its input, or a contiguous copy of that."""
        source = self.copies.get((group, position), group.node.inputs[position])
        seen = self._over_axes.get((group, position))
        return self.layout(source) if seen is None else self._layouts.seen_over_axes(source, seen)

    def _assign_update(self, node: Node, uses: list[Use]) -> None:
        """For each input, a group writes its part of the result; a single group if these are columns. If a part will be
        partly overwritten, there is a group for each box that is left of it."""
        writers: dict[FusedGroup, None] = {}
        together = updates.writes_columns(node, self.limits.columns)
        for write, box in updates.parts_of(node):
            source = node.inputs[write.position]
            # If writes do not overlap, each is done as soon as its source is known, so that memory is released early.
            serial = source.serial if node.primitive.disjoint else node.serial
            if not (writers and together):
                group, terms = self._new_fused_group(box.sizes, serial)
            group.serial = max(group.serial, serial)
            at = tuple([shifted(term, start) for term, start in zip(terms, box.starts, strict=True)])
            group.roots.append(Root(source, at, node, write))
            if isinstance(write, p.ScatterWrite):
                self._scatter(group, node, write, at)
            writers[group] = None
            self._use_formula(source, group, at)
        self.dependencies.link_all(writers, uses)
        if not node.primitive.disjoint:
            for earlier, later in pairwise(writers):
                self.dependencies.link(earlier, [(later, None)])
        self.stored[node] = dict.fromkeys(writers)
        self._updates.append(node)

    @property
    def updated(self) -> list[tuple[Node, Node]]:
        """For each update, in order, the node whose memory holds what it begins with a copy of, and the result."""
        pairs = [(self.layout(node.inputs[0]), node) for node in reversed(self._updates)]
        return [(layout.base, node) for layout, node in pairs if layout is not None]

    def _scatter(self, group: FusedGroup, node: Node, write: p.ScatterWrite, terms: Terms) -> None:
        indices = [node.inputs[position] for position in write.indices]
        at = terms[: indices[0].ndim]
        apart = axes_apart(node, write, at)
        group.reduced = tuple([term.axes[0][0] for term in at if term.axes and term.axes[0][0] not in apart])
        group.scattering = True
        for index in indices:
            self._use(index, group, at)


def _only_copies(group: FusedGroup, view: Node) -> bool:
    """Whether all that a group computes is a copy of what a view, or a view of it, shows."""
    root, *others = group.roots
    if others or not p.is_copy(root.node):
        return False
    (shown,) = root.node.inputs
    while shown is not view and p.is_view(shown):
        (shown,) = shown.inputs
    return shown is view


def _are_apart(uses: Sequence[Use], lookup: Lookup) -> bool:
    """Whether a single group uses a node at several places that differ along axes without loops: then no element is
    computed twice."""
    indices = [terms for _, terms in uses if terms is not None]
    if len({user for user, _ in uses}) > 1 or len(indices) < len(uses):
        return False
    fixed = [axis for axis, column in enumerate(zip(*indices, strict=True)) if all(term.is_fixed for term in column)]
    return len(lookup.fromkeys([tuple([terms[axis].start for axis in fixed]) for terms in indices])) == len(indices)
