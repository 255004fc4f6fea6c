"""Which operations share a kernel.

Nodes are visited from the outputs backwards, so that when it is the turn of a node all its uses are known: as part of a
group, at an index of that group's loops, or as a whole array in memory. A node joins its consumer if that is the
only one (at one index); a node with several consumers is stored once, by the consumer that can do so without a
cycle, or by a group of its own. Reductions join the elementwise operations behind them, and the rows these are
spread over again: softmax is one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

import weft.primitives as p
from weft.compiler import scanning
from weft.compiler.builder import axes_apart
from weft.compiler.groups import FusedGroup, Group, Layout, Root, RoutineGroup, Use
from weft.compiler.index import own_axes, whole_axes
from weft.compiler.kernel import VIRTUAL_LANES
from weft.compiler.reads import ReadRecorder
from weft.compiler.target import FusionLimits
from weft.graph.node import Node, Shape
from weft.primitives.index import ZERO, Term, Terms
from weft.runtime.memory import contiguous_strides


class Fusion:
    """Assigns every node of a graph to a group. ``groups`` are in the order in which they can run."""

    def __init__(
        self, order: Sequence[Node], outputs: Iterable[Node], inputs: dict[Node, Shape], limits: FusionLimits
    ) -> None:
        self.inputs = inputs
        self.limits = limits
        self.copies: dict[Any, Node] = {}
        self._layouts: dict[Node, Layout | None] = {}
        self.uses: dict[Node, list[Use]] = {}
        self.stored: dict[Node, list[Group]] = {}
        self._groups: list[Group] = []
        self._results: dict[Node, dict[int, Node]] = {}
        self._totals: dict[Any, tuple[FusedGroup, Terms]] = {}
        self._wanted = set(outputs)
        for node in reversed(order):
            self._assign(node)
        self.groups = _sorted(self._groups)

    def _assign(self, node: Node) -> None:
        uses = self.uses.pop(node, [])
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
        elif isinstance(node.primitive, p.Reduction | p.Scan):
            self._assign_along_rows(node, uses, in_memory)
        elif isinstance(node.primitive, p.ChunkTotals):
            self._assign_totals(node, uses)
        elif p.is_constant(node):
            if in_memory:
                self._store_in_new_group(node, uses)
        else:
            self._assign_fusable(node, uses, in_memory)

    def _new_fused_group(self, shape: Shape, serial: int) -> tuple[FusedGroup, Terms]:
        terms, axes = own_axes(shape)
        extents = {term.axes[0][0]: extent for term, extent in zip(terms, shape, strict=True) if term.axes}
        group = FusedGroup(len(self._groups), serial, axes=list(axes), extents=extents)
        self._groups.append(group)
        return group, terms

    def _use(self, node: Node, user: Group, terms: Terms | None) -> None:
        if node not in self.inputs:
            self.uses.setdefault(node, []).append((user, terms))

    def _link(self, earlier: Group, uses: Iterable[Use]) -> None:
        """Note that ``earlier`` runs before the groups of ``uses``."""
        gained = 0
        for user, _ in uses:
            if user is not earlier and earlier not in user.needs:
                user.needs.add(earlier)
                gained |= user.after | (1 << user.number)
        gained &= ~earlier.after
        if not gained:
            return
        earlier.after |= gained
        bit = 1 << earlier.number
        if earlier.needs:
            for group in self._groups:
                if group.after & bit:
                    group.after |= gained

    def _can_join(self, group: Group, uses: Iterable[Use]) -> bool:
        """Whether ``group`` may store what ``uses`` need. False if it needs one of them itself (a cycle)."""
        bit = 0
        for user, _ in uses:
            if user is not group:
                bit |= user.after & (1 << group.number)
        return not bit

    def _assign_view(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        index_cannot_pass = _behind(node) is None
        if (in_memory and self.layout(node) is None) or (index_cannot_pass and not self._is_viewable(node)):
            source = node.inputs[0]
            self.copies[node] = copy = copy_of(source)
            self._layouts.pop(node, None)
            self._store_in_new_group(copy, [(user, None) for user, _ in uses])
        elif in_memory and (self._computes_nothing(node) or (self._is_turned(node) and not index_cannot_pass)):
            self._store_in_new_group(node, uses)
            return
        source = self.copies.get(node, node.inputs[0])
        if node in self._wanted:
            self._wanted.add(source)
        for user, terms in uses:
            step = None if terms is None or index_cannot_pass else node.primitive.behind(node, terms)
            if step is not None and node not in self.copies:
                self._use(step[0], user, step[1])
            elif source is not self.copies.get(node):
                self._use(source, user, None)

    def _is_viewable(self, node: Node) -> bool:
        """Whether strides over something in memory can show a view."""
        return self.layout(node) is not None and not self._computes_nothing(node)

    def _computes_nothing(self, node: Node) -> bool:
        """Whether the base of a view is a constant, which has no memory unless a group stores it."""
        layout = self.layout(node)
        return layout is not None and p.is_constant(layout.base) and layout.base not in self.stored

    def _is_turned(self, node: Node) -> bool:
        """Whether strides would show the transpose of what is computed, though it might as well be computed in the
        order of the view, and no other view is shown by strides over it."""
        layout = self.layout(node)
        if layout is None or not node.shape or node.shape[-1] < VIRTUAL_LANES or layout.strides[-1] == 1:
            return False
        base = layout.base
        if not (isinstance(base.primitive, p.Indexed) and base.primitive.reads_anywhere) or base in self.uses:
            return False
        shown = [view for view, other in self._layouts.items() if other is not None and other.base is base]
        return all(view.serial <= node.serial for view in shown)

    def layout(self, node: Node) -> Layout | None:
        """Where ``node`` is, or will be if it is stored; None for a view that no strides describe."""
        chain: list[Node] = []
        while not self._has_memory(node) and node not in self._layouts:
            chain.append(node)
            node = self.copies.get(node, node.inputs[0])
        if self._has_memory(node):
            strides = self.inputs[node] if node in self.inputs else contiguous_strides(node.shape)
            found: Layout | None = Layout(node, strides, 0)
        else:
            found = self._layouts[node]
        for view in reversed(chain):
            found = None if found is None else _seen_through(view, found)
            self._layouts[view] = found
        return found

    def _has_memory(self, node: Node) -> bool:
        return node in self.stored or node in self.inputs or not p.is_view(node)

    def _store_in_new_group(self, node: Node, uses: list[Use]) -> FusedGroup:
        group, terms = self._new_fused_group(node.shape, node.serial)
        self._store(node, group, terms, uses)
        self._expand(node, group, terms)
        return group

    def _store(self, node: Node, group: FusedGroup, terms: Terms, uses: Iterable[Use]) -> None:
        group.roots.append(Root(node, terms, node))
        group.serial = max(group.serial, node.serial)
        self.stored[node] = [group]
        self._link(group, uses)

    def _expand(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        """Make the inputs of a node that is computed in ``group`` used there."""
        group.members += 1
        primitive = node.primitive
        if isinstance(primitive, p.Elementwise):
            for source in node.inputs:
                self._use(source, group, terms if source.shape else ())
        elif isinstance(primitive, p.Indexed):
            recorder = ReadRecorder(node)
            primitive.element(recorder, terms, node)
            for position, at in recorder.reads:
                computed = any(term.computed for term in at)
                self._use(node.inputs[position], group, None if computed else at)
        else:
            step = primitive.behind(node, terms)
            if step is not None:
                self._use(step[0], group, step[1])

    def _assign_fusable(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        distinct = set(uses)
        if not in_memory and self._inline(node, list(dict.fromkeys(uses))):
            return
        if node.primitive.is_counted and not in_memory:
            return
        if not in_memory and self._repeat(node, distinct):
            return
        for user, terms in dict.fromkeys(uses):
            if terms is not None and isinstance(user, FusedGroup) and self._may_store(node, user, terms, uses):
                self._store(node, user, terms, uses)
                self._expand(node, user, terms)
                return
        self._store_in_new_group(node, uses)

    def _inline(self, node: Node, uses: Sequence[Use]) -> bool:
        """Compute a node inside of the one group that uses it; returns whether that is done."""
        if len(uses) > 1 and not _are_apart(uses):
            return False
        fused = [(user, terms) for user, terms in uses if isinstance(user, FusedGroup) and terms is not None]
        if len(fused) < len(uses) or not all(self._may_inline(node, user, terms) for user, terms in fused):
            return False
        for user, terms in fused:
            self._expand(node, user, terms)
        return True

    def _repeat(self, node: Node, uses: Iterable[Use]) -> bool:
        """Recompute a cheap node in each of its users if its inputs are much smaller; returns whether that is done.
        Storing the result of broadcasting would take longer."""
        if _operations_from_less(node, node.size // self.limits.fewer, self.limits.repeated_operations) is None:
            return False
        fused = [(user, terms) for user, terms in uses if isinstance(user, FusedGroup) and terms is not None]
        if any(user.members >= self.limits.members for user, _ in fused):
            return False
        for user, terms in fused:
            self._expand(node, user, terms)
        return True

    def _may_inline(self, node: Node, group: FusedGroup, terms: Terms) -> bool:
        """Whether computing ``node`` inside ``group`` repeats no work that matters."""
        if group.members >= self.limits.members:
            return False
        if node.primitive.is_counted or not group.axes:
            return True
        used = {axis for term in terms for axis, _ in term.axes}
        lane = group.axes[-1]
        if lane not in used:
            return True
        missing = [axis for axis in group.axes if axis not in used and group.extents[axis] != 1]
        return not missing or (isinstance(node.primitive, p.Elementwise) and node.primitive.cheap)

    def _may_store(self, node: Node, group: FusedGroup, terms: Terms, uses: list[Use]) -> bool:
        if group.members >= self.limits.members or group.scattering:
            return False
        if any(user is group and other != terms for user, other in uses):
            return False
        axes = whole_axes(terms, node.shape, group.extents)
        by_row = axes == group.parallel and group.chunks is None
        if axes is None or not (axes == tuple(group.axes) or by_row):
            return False
        return self._can_join(group, uses)

    def _assign_along_rows(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        """A reduction or a scan is computed in the rows of a group that uses it, or in a group of its own."""
        scans = isinstance(node.primitive, p.Scan)
        for user, terms in dict.fromkeys(uses):
            if terms is None or not isinstance(user, FusedGroup) or not self._may_compute(user, terms, uses):
                continue
            if not (scanning.fits(node, user, terms) if scans else self._may_reduce(node, user, terms)):
                continue
            (self._scan if scans else self._join_reduction)(node, user, terms)
            if in_memory or len(set(uses)) > 1:
                self._store(node, user, terms, uses)
            else:
                user.serial = max(user.serial, node.serial)
            return
        (self._scan_in_new_group if scans else self._reduce_in_new_group)(node, uses)

    def _reduce_in_new_group(self, node: Node, uses: list[Use]) -> None:
        source, axes = node.inputs[0], node.params[0]
        group, terms = self._new_fused_group(source.shape, node.serial)
        group.reduced = tuple([terms[axis].axes[0][0] for axis in axes if terms[axis].axes])
        group.folds = True
        group.members += 1
        self._store(node, group, tuple([term for axis, term in enumerate(terms) if axis not in axes]), uses)
        self._use(source, group, terms)

    def _may_reduce(self, node: Node, group: FusedGroup, terms: Terms) -> bool:
        """Whether a reduction can be computed in the rows of a group that uses its result."""
        if not scanning.may_fold(group):
            return False
        parallel = whole_axes(terms, node.shape, group.extents)
        return parallel is not None and self._reduced_axes(node, group, parallel) is not None

    def _may_compute(self, group: FusedGroup, terms: Terms, uses: list[Use]) -> bool:
        """Whether a group has room for one more node that it uses, at one index only, and needs none of the users."""
        if group.members >= self.limits.members or group.scattering:
            return False
        return not any(user is group and other != terms for user, other in uses) and self._can_join(group, uses)

    def _reduced_axes(self, node: Node, group: FusedGroup, parallel: tuple[int, ...]) -> tuple[int, ...] | None:
        """The loop axes that the reduction would fold: those of the group, or () if fresh ones have to be made."""
        source, folded = node.inputs[0].shape, node.params[0]
        extents = [(axis in folded, extent) for axis, extent in enumerate(source) if extent != 1]
        if parallel == tuple(group.axes) and not group.reduced:
            return ()
        if len(extents) != len(group.axes):
            return None
        for (is_folded, extent), axis in zip(extents, group.axes, strict=True):
            if group.extents[axis] != extent or is_folded == (axis in parallel):
                return None
        reduced = tuple([axis for axis in group.axes if axis not in parallel])
        if group.reduced:
            return reduced if reduced == group.reduced else None
        return reduced if self._rows_pay(group, parallel) else None

    def _rows_pay(self, group: FusedGroup, parallel: tuple[int, ...]) -> bool:
        """Whether walking row by row leaves enough to do in parallel."""
        rows, size = 1, 1
        for axis in group.axes:
            size *= group.extents[axis]
            rows *= group.extents[axis] if axis in parallel else 1
        return rows >= self.limits.group_rows or size <= self.limits.group_size

    def _join_reduction(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        source, folded = node.inputs[0].shape, node.params[0]
        parallel = whole_axes(terms, node.shape, group.extents)
        assert parallel is not None
        reduced = self._reduced_axes(node, group, parallel)
        assert reduced is not None
        if reduced == ():
            inner, axes = self._insert_axes(group, source, folded, parallel)
            group.axes, group.reduced = axes, tuple([axis for axis in axes if axis not in parallel])
        else:
            group.reduced = reduced
            following = iter(group.axes)
            inner = [ZERO if extent == 1 else Term(0, ((next(following), 1),)) for extent in source]
        group.folds = True
        group.members += 1
        self._use(node.inputs[0], group, tuple(inner))

    def _insert_axes(
        self, group: FusedGroup, source: Shape, folded: Sequence[int], parallel: Sequence[int]
    ) -> tuple[list[Term], list[int]]:
        """The group's axes with fresh ones for the folded axes of ``source`` among them."""
        existing = iter(parallel)
        inner: list[Term] = []
        axes: list[int] = []
        for axis, extent in enumerate(source):
            if extent == 1:
                inner.append(ZERO)
                continue
            if axis in folded:
                _, (loop,) = own_axes((extent,))
                group.extents[loop] = extent
            else:
                loop = next(existing)
            axes.append(loop)
            inner.append(Term(0, ((loop, 1),)))
        return inner, axes

    def _scan_in_new_group(self, node: Node, uses: list[Use]) -> None:
        group, terms = self._new_fused_group(node.shape, node.serial)
        self._store(node, group, terms, uses)
        self._scan(node, group, terms)

    def _scan(self, node: Node, group: FusedGroup, terms: Terms) -> None:
        """Compute a scan in a group."""
        scanning.include(node, group, terms)
        group.members += 1
        for source in node.primitive.scanned(node):
            self._use(source, group, terms)
        for source in node.primitive.before(node):
            self._use(source, group, None)

    def _assign_totals(self, node: Node, uses: list[Use]) -> None:
        """All accumulators of a scan are stored by one group."""
        key = (node.primitive, node.inputs)
        found = self._totals.get(key)
        if found is not None and self._can_join(found[0], uses):
            self._store(node, *found, uses)
            return
        axis = node.primitive.axis(node)
        group, terms = self._new_fused_group(node.inputs[0].shape, node.serial)
        ((loop, _),) = terms[axis].axes
        chunks = scanning.cut(group, loop, node.primitive.chunk_size(node))
        group.reduced, group.folds = (loop,), True
        group.members += 1
        at = (*terms[:axis], Term(0, ((chunks.number, 1),)), *terms[axis + 1 :])
        self._totals[key] = group, at
        self._store(node, group, at, uses)
        for source in node.inputs:
            self._use(source, group, terms)

    def _assign_result(self, node: Node, uses: list[Use]) -> None:
        """A result is stored by the routine that computes all results."""
        whole = node.inputs[0]
        self._results.setdefault(whole, {})[node.params[0]] = node
        self.uses.setdefault(whole, []).extend(uses)
        if node in self._wanted:
            self._wanted.add(whole)

    def _results_of(self, node: Node) -> list[Node]:
        """The nodes in memory that a routine computes; those that nobody asked for are made here."""
        if not node.primitive.several:
            return [node]
        asked = self._results[node]
        return [asked.get(position) or p.result_of(node, position) for position in range(p.result_count(node))]

    def _assign_routine(self, node: Node, uses: list[Use]) -> None:
        results = self._results_of(node)
        group = RoutineGroup(len(self._groups), node.serial, node=node, results=results)
        self._groups.append(group)
        self.stored.update((result, [group]) for result in results)
        self._link(group, uses)
        accepts = node.primitive.routine.accepts
        for position, source in enumerate(node.inputs):
            layout = self.layout(source)
            if layout is not None and accepts(node, position, layout.strides) and not self._computes_nothing(source):
                self._use(source, group, None)
            else:
                copy = copy_of(source)
                self.copies[group, position] = copy
                self._store_in_new_group(copy, [(group, None)])

    def operand(self, group: RoutineGroup, position: int) -> Node:
        """What a routine reads: its input, or a contiguous copy of it, if the routine cannot read its layout."""
        return self.copies.get((group, position), group.node.inputs[position])

    def _assign_update(self, node: Node, uses: list[Use]) -> None:
        """One group per input writes its part of the result."""
        writers: list[FusedGroup] = []
        for write in node.primitive.writes(node):
            source = node.inputs[write.position]
            group, terms = self._new_fused_group(source.shape, node.serial)
            group.roots.append(Root(source, terms, node, write))
            if isinstance(write, p.ScatterWrite):
                self._scatter(group, node, write, terms)
            self._link(group, uses)
            writers.append(group)
            self._use(source, group, terms)
        if not node.primitive.disjoint:
            for earlier, later in pairwise(writers):
                self._link(earlier, [(later, None)])
        self.stored[node] = list(writers)

    def _scatter(self, group: FusedGroup, node: Node, write: p.ScatterWrite, terms: Terms) -> None:
        indices = [node.inputs[position] for position in write.indices]
        at = terms[: indices[0].ndim]
        apart = axes_apart(node, write, at)
        group.reduced = tuple([term.axes[0][0] for term in at if term.axes and term.axes[0][0] not in apart])
        group.scattering = True
        for index in indices:
            self._use(index, group, at)


def _operations_from_less(node: Node, most: int, limit: int) -> int | None:
    """How many cheap operations make ``node`` of nodes with at most ``most`` elements; None if that takes more than
    ``limit`` operations."""
    while _behind(node) is not None:
        node = node.inputs[0]
    if node.size <= most:
        return 0
    if limit == 0 or not isinstance(node.primitive, p.Elementwise) or not node.primitive.cheap:
        return None
    count = 1
    for source in node.inputs:
        found = _operations_from_less(source, most, limit - count)
        if found is None:
            return None
        count += found
    return count if count <= limit else None


def _are_apart(uses: Sequence[Use]) -> bool:
    """Whether one group uses a node at several places along axes that no loop walks over: no element is computed
    twice there."""
    indices = [terms for _, terms in uses if terms is not None]
    if len({user for user, _ in uses}) > 1 or len(indices) < len(uses):
        return False
    fixed = [axis for axis, column in enumerate(zip(*indices, strict=True)) if not any(map(_walks, column))]
    return len({tuple([terms[axis].start for axis in fixed]) for terms in indices}) == len(indices)


def _walks(term: Term) -> bool:
    return bool(term.axes or term.computed)


def _behind(node: Node) -> Any:
    """The input of a view that an index can pass, with an index there; else None."""
    return None if node.primitive is None else node.primitive.behind(node, (ZERO,) * node.ndim)


def _seen_through(view: Node, source: Layout) -> Layout | None:
    """The layout of a view of something with a layout."""
    shown = view.primitive.shown(view, source.strides)
    return None if shown is None else Layout(source.base, shown[0], source.offset + shown[1])


def copy_of(node: Node) -> Node:
    """A node that holds the same elements in row-major order; in the order of steps it stands with ``node``."""
    copy = p.copy_of(node)
    copy.serial = node.serial
    return copy


def _sorted(groups: list[Group]) -> list[Group]:
    """Groups, each after those it needs, close to the order of the user's program."""
    waiting = {group: len(group.needs) for group in groups}
    users: dict[Group, list[Group]] = {}
    for group in groups:
        for needed in group.needs:
            users.setdefault(needed, []).append(group)
    ready = [(group.serial, group.number, group) for group in groups if not group.needs]
    heapify(ready)
    order: list[Group] = []
    while ready:
        _, _, group = heappop(ready)
        order.append(group)
        for user in users.get(group, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (user.serial, user.number, user))
    if len(order) != len(groups):
        raise AssertionError("the groups of a plan need each other in a circle")
    return order
