"""Which operations share a kernel.

Nodes are visited from the outputs backwards, so that when a node is placed all its uses are known: as part of a
cluster, at an index of that cluster's loops, or as a whole array in memory. A node joins its consumer if that is the
only one (at one index); a node with several consumers is stored once, by the consumer that can do so without a
cycle, or by a cluster of its own. Reductions join the elementwise operations behind them, and the rows these are
spread over again: softmax is one cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

import weft.primitives as p
from weft.compiler.index import own_axes, whole_axes
from weft.compiler.target import FusionLimits
from weft.compiler.units import CallUnit, Cluster, Layout, Root, Unit, Use
from weft.graph.node import Node, Shape
from weft.primitives.index import ZERO, Term, Terms
from weft.runtime.memory import contiguous_strides


class Fusion:
    """Places every node of a graph in a unit. ``units`` are in the order in which they can run."""

    def __init__(
        self, order: Sequence[Node], outputs: Iterable[Node], inputs: dict[Node, Shape], limits: FusionLimits
    ) -> None:
        self.inputs = inputs
        self.limits = limits
        self.copies: dict[Any, Node] = {}
        self._layouts: dict[Node, Layout | None] = {}
        self.uses: dict[Node, list[Use]] = {}
        self.stored: dict[Node, list[Unit]] = {}
        self._units: list[Unit] = []
        self._results: dict[Node, dict[int, Node]] = {}
        self._wanted = set(outputs)
        for node in reversed(order):
            self._place(node)
        self.units = _sorted(self._units)

    def _place(self, node: Node) -> None:
        uses = self.uses.pop(node, [])
        if node in self.inputs or not (uses or node in self._wanted):
            return
        in_memory = node in self._wanted or any(terms is None for _, terms in uses)
        if node.primitive.is_view:
            self._place_view(node, uses, in_memory)
        elif node.primitive.is_result:
            self._place_result(node, uses)
        elif node.primitive.routine is not None:
            self._place_call(node, uses)
        elif isinstance(node.primitive, p.Update):
            self._place_update(node, uses)
        elif isinstance(node.primitive, p.Reduction):
            self._place_reduction(node, uses, in_memory)
        elif p.is_constant(node):
            if in_memory:
                self._store_in_new_cluster(node, uses)
        else:
            self._place_fusable(node, uses, in_memory)

    def _new_cluster(self, shape: Shape, serial: int) -> tuple[Cluster, Terms]:
        terms, axes = own_axes(shape)
        extents = {term.axes[0][0]: extent for term, extent in zip(terms, shape, strict=True) if term.axes}
        cluster = Cluster(len(self._units), serial, axes=list(axes), extents=extents)
        self._units.append(cluster)
        return cluster, terms

    def _use(self, node: Node, unit: Unit, terms: Terms | None) -> None:
        if node not in self.inputs:
            self.uses.setdefault(node, []).append((unit, terms))

    def _link(self, earlier: Unit, uses: Iterable[Use]) -> None:
        """Note that ``earlier`` runs before the units of ``uses``."""
        gained = 0
        for unit, _ in uses:
            if unit is not earlier and earlier not in unit.needs:
                unit.needs.add(earlier)
                gained |= unit.after | (1 << unit.number)
        gained &= ~earlier.after
        if not gained:
            return
        earlier.after |= gained
        bit = 1 << earlier.number
        if earlier.needs:
            for unit in self._units:
                if unit.after & bit:
                    unit.after |= gained

    def _can_join(self, cluster: Unit, uses: Iterable[Use]) -> bool:
        """Whether ``cluster`` may store what ``uses`` need: it must not itself need any of them."""
        bit = 0
        for unit, _ in uses:
            if unit is not cluster:
                bit |= unit.after & (1 << cluster.number)
        return not bit

    def _place_view(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        opaque = _behind(node) is None
        if (in_memory and self.layout(node) is None) or (opaque and not self._is_viewable(node)):
            source = node.inputs[0]
            self.copies[node] = copy = copy_of(source)
            self._layouts.pop(node, None)
            self._store_in_new_cluster(copy, [(unit, None) for unit, _ in uses])
        elif in_memory and self._computes_nothing(node):
            self._store_in_new_cluster(node, uses)
            return
        source = self.copies.get(node, node.inputs[0])
        if node in self._wanted:
            self._wanted.add(source)
        for unit, terms in uses:
            step = None if terms is None or opaque else node.primitive.behind(node, terms)
            if step is not None and node not in self.copies:
                self._use(step[0], unit, step[1])
            elif source is not self.copies.get(node):
                self._use(source, unit, None)

    def _is_viewable(self, node: Node) -> bool:
        """Whether strides over something in memory can show a view."""
        return self.layout(node) is not None and not self._computes_nothing(node)

    def _computes_nothing(self, node: Node) -> bool:
        """Whether a view shows a constant: nothing that would be in memory by itself."""
        layout = self.layout(node)
        return layout is not None and p.is_constant(layout.base) and layout.base not in self.stored

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

    def _store_in_new_cluster(self, node: Node, uses: list[Use]) -> Cluster:
        cluster, terms = self._new_cluster(node.shape, node.serial)
        self._store(node, cluster, terms, uses)
        self._expand(node, cluster, terms)
        return cluster

    def _store(self, node: Node, cluster: Cluster, terms: Terms, uses: Iterable[Use]) -> None:
        cluster.roots.append(Root(node, terms, node))
        cluster.serial = max(cluster.serial, node.serial)
        self.stored[node] = [cluster]
        self._link(cluster, uses)

    def _expand(self, node: Node, cluster: Cluster, terms: Terms) -> None:
        """Make the inputs of a node that is computed in ``cluster`` used there."""
        cluster.members += 1
        primitive = node.primitive
        if isinstance(primitive, p.Elementwise):
            for source in node.inputs:
                self._use(source, cluster, terms if source.shape else ())
        elif isinstance(primitive, p.Indexed):
            recorder = _Recorder(node)
            primitive.element(recorder, terms, node)
            for position, at in recorder.reads:
                computed = any(term.computed for term in at)
                self._use(node.inputs[position], cluster, None if computed else at)
        else:
            step = primitive.behind(node, terms)
            if step is not None:
                self._use(step[0], cluster, step[1])

    def _place_fusable(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        places = set(uses)
        if not in_memory and len(places) == 1:
            unit, terms = uses[0]
            if isinstance(unit, Cluster) and terms is not None and self._may_inline(node, unit, terms):
                self._expand(node, unit, terms)
                return
        if node.primitive.is_counted and not in_memory:
            return
        if not in_memory and self._repeat(node, places):
            return
        for unit, terms in dict.fromkeys(uses):
            if terms is not None and isinstance(unit, Cluster) and self._may_store(node, unit, terms, uses):
                self._store(node, unit, terms, uses)
                self._expand(node, unit, terms)
                return
        self._store_in_new_cluster(node, uses)

    def _repeat(self, node: Node, places: Iterable[Use]) -> bool:
        """Compute a node in each of its users, if it is cheap and made of much less than it is: storing the result of
        broadcasting would take longer."""
        if _operations_from_less(node, node.size // self.limits.fewer, self.limits.repeated_operations) is None:
            return False
        uses = [(unit, terms) for unit, terms in places if isinstance(unit, Cluster) and terms is not None]
        if any(unit.members >= self.limits.members for unit, _ in uses):
            return False
        for unit, terms in uses:
            self._expand(node, unit, terms)
        return True

    def _may_inline(self, node: Node, cluster: Cluster, terms: Terms) -> bool:
        """Whether computing ``node`` inside ``cluster`` repeats no work that matters."""
        if cluster.members >= self.limits.members:
            return False
        if node.primitive.is_counted or not cluster.axes:
            return True
        used = {axis for term in terms for axis, _ in term.axes}
        lane = cluster.axes[-1]
        if lane not in used:
            return True
        missing = [axis for axis in cluster.axes if axis not in used and cluster.extents[axis] != 1]
        return not missing or (isinstance(node.primitive, p.Elementwise) and node.primitive.cheap)

    def _may_store(self, node: Node, cluster: Cluster, terms: Terms, uses: list[Use]) -> bool:
        if cluster.members >= self.limits.members or cluster.scattering:
            return False
        if any(unit is cluster and other != terms for unit, other in uses):
            return False
        axes = whole_axes(terms, node.shape, cluster.extents)
        if axes is None or axes not in (tuple(cluster.axes), cluster.kept):
            return False
        return self._can_join(cluster, uses)

    def _place_reduction(self, node: Node, uses: list[Use], in_memory: bool) -> None:
        for unit, terms in dict.fromkeys(uses):
            if terms is None or not isinstance(unit, Cluster) or not self._may_reduce(node, unit, terms, uses):
                continue
            self._join_reduction(node, unit, terms)
            if in_memory or len(set(uses)) > 1:
                self._store(node, unit, terms, uses)
            else:
                unit.serial = max(unit.serial, node.serial)
            return
        self._reduce_in_new_cluster(node, uses)

    def _reduce_in_new_cluster(self, node: Node, uses: list[Use]) -> None:
        source, axes = node.inputs[0], node.params[0]
        cluster, terms = self._new_cluster(source.shape, node.serial)
        cluster.reduced = tuple([terms[axis].axes[0][0] for axis in axes if terms[axis].axes])
        cluster.members += 1
        self._store(node, cluster, tuple([term for axis, term in enumerate(terms) if axis not in axes]), uses)
        self._use(source, cluster, terms)

    def _may_reduce(self, node: Node, cluster: Cluster, terms: Terms, uses: list[Use]) -> bool:
        """Whether a reduction can be computed in the rows of a cluster that uses its result."""
        if cluster.members >= self.limits.members or cluster.scattering:
            return False
        if any(unit is cluster and other != terms for unit, other in uses) or not self._can_join(cluster, uses):
            return False
        kept = whole_axes(terms, node.shape, cluster.extents)
        return kept is not None and self._reduced_axes(node, cluster, kept) is not None

    def _reduced_axes(self, node: Node, cluster: Cluster, kept: tuple[int, ...]) -> tuple[int, ...] | None:
        """The loop axes that the reduction would fold: those of the cluster, or () if fresh ones have to be made."""
        source, folded = node.inputs[0].shape, node.params[0]
        extents = [(axis in folded, extent) for axis, extent in enumerate(source) if extent != 1]
        if kept == tuple(cluster.axes) and not cluster.reduced:
            return ()
        if len(extents) != len(cluster.axes):
            return None
        for (is_folded, extent), axis in zip(extents, cluster.axes, strict=True):
            if cluster.extents[axis] != extent or is_folded == (axis in kept):
                return None
        reduced = tuple([axis for axis in cluster.axes if axis not in kept])
        if cluster.reduced:
            return reduced if reduced == cluster.reduced else None
        return reduced if self._rows_pay(cluster, kept) else None

    def _rows_pay(self, cluster: Cluster, kept: tuple[int, ...]) -> bool:
        """Whether walking row by row leaves enough to do in parallel."""
        rows, size = 1, 1
        for axis in cluster.axes:
            size *= cluster.extents[axis]
            rows *= cluster.extents[axis] if axis in kept else 1
        return rows >= self.limits.group_rows or size <= self.limits.group_size

    def _join_reduction(self, node: Node, cluster: Cluster, terms: Terms) -> None:
        source, folded = node.inputs[0].shape, node.params[0]
        kept = whole_axes(terms, node.shape, cluster.extents)
        assert kept is not None
        reduced = self._reduced_axes(node, cluster, kept)
        assert reduced is not None
        if reduced == ():
            inner, axes = self._insert_axes(cluster, source, folded, kept)
            cluster.axes, cluster.reduced = axes, tuple([axis for axis in axes if axis not in kept])
        else:
            cluster.reduced = reduced
            following = iter(cluster.axes)
            inner = [ZERO if extent == 1 else Term(0, ((next(following), 1),)) for extent in source]
        cluster.members += 1
        self._use(node.inputs[0], cluster, tuple(inner))

    def _insert_axes(
        self, cluster: Cluster, source: Shape, folded: Sequence[int], kept: Sequence[int]
    ) -> tuple[list[Term], list[int]]:
        """The cluster's axes with fresh ones for the folded axes of ``source`` among them."""
        existing = iter(kept)
        inner: list[Term] = []
        axes: list[int] = []
        for axis, extent in enumerate(source):
            if extent == 1:
                inner.append(ZERO)
                continue
            if axis in folded:
                _, (loop,) = own_axes((extent,))
                cluster.extents[loop] = extent
            else:
                loop = next(existing)
            axes.append(loop)
            inner.append(Term(0, ((loop, 1),)))
        return inner, axes

    def _place_result(self, node: Node, uses: list[Use]) -> None:
        """One of several results is stored by what computes all of them."""
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

    def _place_call(self, node: Node, uses: list[Use]) -> None:
        results = self._results_of(node)
        unit = CallUnit(len(self._units), node.serial, node=node, results=results)
        self._units.append(unit)
        self.stored.update((result, [unit]) for result in results)
        self._link(unit, uses)
        accepts = node.primitive.routine.accepts
        for position, source in enumerate(node.inputs):
            layout = self.layout(source)
            if layout is not None and accepts(node, position, layout.strides) and not self._computes_nothing(source):
                self._use(source, unit, None)
            else:
                copy = copy_of(source)
                self.copies[unit, position] = copy
                self._store_in_new_cluster(copy, [(unit, None)])

    def operand(self, unit: CallUnit, position: int) -> Node:
        """What a routine reads: its input, or a contiguous copy of it."""
        return self.copies.get((unit, position), unit.node.inputs[position])

    def _place_update(self, node: Node, uses: list[Use]) -> None:
        """One cluster per input writes its part of the result."""
        writers: list[Cluster] = []
        for part in node.primitive.parts(node):
            source = node.inputs[part.position]
            cluster, terms = self._new_cluster(source.shape, node.serial)
            cluster.roots.append(Root(source, terms, node, part))
            if isinstance(part, p.ScatterPart):
                self._scatter(cluster, node, part, terms)
            self._link(cluster, uses)
            writers.append(cluster)
            self._use(source, cluster, terms)
        if not node.primitive.disjoint:
            for earlier, later in pairwise(writers):
                self._link(earlier, [(later, None)])
        self.stored[node] = list(writers)

    def _scatter(self, cluster: Cluster, node: Node, part: p.ScatterPart, terms: Terms) -> None:
        indices = [node.inputs[position] for position in part.indices]
        at = terms[: indices[0].ndim]
        cluster.reduced = tuple([term.axes[0][0] for term in at if term.axes])
        cluster.scattering = True
        for index in indices:
            self._use(index, cluster, at)


class _Recorder:
    """Stands in for the kernel builder to find out which inputs an `Indexed` primitive reads where."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reads: list[tuple[int, Terms]] = []

    def read(self, position: int, terms: Sequence[Term], where: int | None = None) -> int:
        self.reads.append((position, tuple(terms)))
        return 0

    def read_place(self, position: int, terms: Sequence[Term], count: int, extent: int) -> tuple[Term, int | None]:
        self.reads.append((position, tuple(terms)))
        return Term(0, (), ((0, 1),)), 0

    def zero(self, dtype: Any) -> int:
        return 0

    def inside(self, bounds: Sequence[Any]) -> int | None:
        return 0 if bounds else None

    def apply(self, primitive: Any, *values: int, **params: Any) -> int:
        return 0

    def place(self, term: Term) -> int:
        return 0

    def number(self, value: int) -> int:
        return 0

    def linear(self, terms: Sequence[Term], shape: Shape) -> int:
        return 0

    def fixed(self, value: int) -> Term:
        return Term(value)

    def shift(self, term: Term, distance: int) -> Term:
        return Term(term.start + distance, term.axes, term.computed)

    def plus(self, left: Term, right: Term) -> Term:
        return Term(left.start + right.start, left.axes + right.axes, left.computed + right.computed)


def _operations_from_less(node: Node, most: int, limit: int) -> int | None:
    """How many cheap operations make ``node`` of nodes with at most ``most`` elements; None if there is no such way in
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


def _sorted(units: list[Unit]) -> list[Unit]:
    """Units in an order in which each comes after what it needs, close to the order of the user's program."""
    waiting = {unit: len(unit.needs) for unit in units}
    users: dict[Unit, list[Unit]] = {}
    for unit in units:
        for needed in unit.needs:
            users.setdefault(needed, []).append(unit)
    ready = [(unit.serial, unit.number, unit) for unit in units if not unit.needs]
    heapify(ready)
    order: list[Unit] = []
    while ready:
        _, _, unit = heappop(ready)
        order.append(unit)
        for user in users.get(unit, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (user.serial, user.number, user))
    if len(order) != len(units):
        raise AssertionError("the units of a plan need each other in a circle")
    return order
