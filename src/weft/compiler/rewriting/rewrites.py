"""The graph that is planned, and the rewrites that change it before it is fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import weft.primitives as p
from weft.compiler.fusion.layouts import Layouts
from weft.compiler.program import Entry
from weft.compiler.target import Target
from weft.graph.node import Node, Placeholder, Shape, next_serial, reachable, serial_of
from weft.graph.symbolic import open_trace
from weft.graph.tracing import no_value
from weft.primitives.base import Primitive
from weft.runtime.memory import contiguous_strides
from weft.runtime.precision import REPRODUCIBLE, matmul_precision

from .columns import ComputedColumns, places_of_columns
from .rotations import RotatedReads
from .short_rows import JoinedRows
from .sums_of_calls import SumsOfCalls

UNROLLED_ELEMENTS = 8
"""Reductions of up to this many elements are unrolled. One of more elements fills the lanes of a vector well enough."""

UNROLLED_AGAIN = 16
"""Reductions of up to this many elements are unrolled if these are computed from a small input that is read again and
again: folding across the lanes of vectors would take most of the time."""

UNROLLED_OPERATIONS = 32
"""The most operations that an unrolled reduction may add to a kernel."""

UNROLLED_CHEAP = 160
"""The same for cheap operations on a small input that is read again and again. The kernel is cut into pieces."""

MANY_ROWS = 256
"""From so many rows on, more kernels take less time than kernels that walk along rows of few elements."""

AGAIN = 64
"""An input is worth a copy if each of its elements is read at least this often."""


@dataclass(eq=False, repr=False, slots=True)
class Graph:
    """A private copy of the graph, which rewrites may change.

    ``order`` is topological, ``inputs`` gives the strides of inputs. Serials are in the order of the program, and steps
    are ordered by them.
    """

    order: Sequence[Node]
    outputs: list[Node]
    inputs: dict[Node, Shape]
    constants: list[Node]


def graph_of(entries: Sequence[Entry], outputs: Sequence[int]) -> Graph:
    """A fresh node for each entry of a program's key; ``outputs`` are positions of entries.

    Raises:
        TraceError: an operation depends on an extent that a trace leaves open.
    """
    _require_plain(entries)
    nodes: list[Node] = []
    inputs: dict[Node, Shape] = {}
    constants: list[Node] = []
    for primitive, *rest in entries:
        if primitive is None:
            _, shape, dtype, strides = rest
            node: Node = Placeholder(None, shape, dtype)
            inputs[node] = strides
        elif primitive.is_constant:
            number, dtype = rest
            node = Node(primitive, (), (number,), (), dtype, None)
            constants.append(node)
        else:
            params, shape, dtype, positions = rest
            sources = tuple([nodes[position] for position in positions])
            node = Node(primitive, sources, params, shape, dtype, None)
        nodes.append(node)
    return Graph(nodes, [nodes[position] for position in outputs], inputs, constants)


def _require_plain(entries: Sequence[Entry]) -> None:
    """Raise unless all extents are plain ints: symbolic ones cannot be planned."""
    for primitive, *rest in entries:
        trace = None if all(map(_is_plain, rest)) else open_trace(tuple(rest))
        if trace is not None:
            _, shape, dtype, _ = rest
            raise no_value(Node(primitive, (), (), shape, dtype, None), trace, "evaluate")


_PLAIN = frozenset({int})


def _is_plain(value: object) -> bool:
    """Whether a parameter is not a tuple, or is a tuple of plain ints only, as most shapes are."""
    return type(value) is not tuple or _PLAIN.issuperset(map(type, value))


def planned_graph(entries: Sequence[Entry], outputs: Sequence[int], target: Target | None = None) -> Graph:
    """The graph of a program's key after all rewrites, for a target that may replace some operations. A plan depends on
    its program alone, so products that rewrites make do not follow the precision that is set while it is made."""
    with matmul_precision(REPRODUCIBLE):
        graph = lowering(expansion(graph_of(entries, outputs), target))
        if target is not None and target.limits.in_parts:
            graph = partition(graph)
        if target is not None:
            graph = adaptation(graph, target)
            graph = columns(graph, target.limits.columns)
        graph = short_reductions(graph, 0 if target is None else target.limits.narrow_row)
        for rewrite in REWRITES:
            graph = rewrite(graph)
        if target is None:
            return graph
        graph = sharing(sums_of_calls(graph, target), target)
        return assignments(long_rows(boxes(graph, target), target.limits.short_row), target)


def expansion(graph: Graph, target: Target | None = None) -> Graph:
    """Some operations become several others, which depend on the extents (see `Primitive.expanded`) or which the target
    prefers (see `Target.replaced`)."""
    results: dict[Node, Sequence[Node] | None] = {}

    def replaced(node: Node) -> Sequence[Node] | None:
        return None if target is None else target.replaced(node)

    def expanded(node: Node) -> Node | None:
        primitive = node.primitive
        if primitive is None or primitive.several:
            return None
        if not primitive.is_result:
            instead = replaced(node)
            return primitive.expanded(node) if instead is None else instead[0]
        whole = node.inputs[0]
        if whole not in results:
            instead = replaced(whole)
            results[whole] = whole.primitive.expanded_results(whole) if instead is None else instead
        found = results[whole]
        return None if found is None else found[node.params[0]]

    return _replaced(graph, expanded)


def lowering(graph: Graph) -> Graph:
    """Some operations become simpler ones, since all extents are known here; see `Primitive.lowered`."""
    return _replaced(graph, lambda node: None if node.primitive is None else node.primitive.lowered(node))


def partition(graph: Graph) -> Graph:
    """Long folds become folds of parts, followed by a fold of the parts' results; see `Primitive.in_parts`."""
    return _replaced(graph, lambda node: None if node.primitive is None else node.primitive.in_parts(node))


def adaptation(graph: Graph, target: Target) -> Graph:
    """Calls of routines take the form for which a target has steps; see ``adapts`` and ``rounds`` of `Routine.on`. If
    the only use of a result is a conversion to another dtype, the step may do the conversion itself."""
    routines = {node for node in graph.order if _is_adapted(node, target.kind)}
    if not routines:
        return graph
    uses = _uses(graph)

    def adapted(node: Node) -> Node | None:
        if node in routines:
            found: Node | None = node.primitive.routine.adapted(node, target.kind)
            if found is not None and _is_adapted(found, target.kind):
                routines.add(found)
                uses[found] = uses[node]
            return found
        if node.primitive is not p.cast or node.inputs[0] not in routines or uses[node.inputs[0]] > 1:
            return None
        source = node.inputs[0]
        if not source.primitive.routine.rounds(source, node.dtype, target.kind):
            return None
        return Node(source.primitive, source.inputs, source.params, node.shape, node.dtype, None)

    return _replaced(graph, adapted)


def _is_adapted(node: Node, kind: str) -> bool:
    return node.primitive is not None and node.primitive.routine is not None and node.primitive.routine.adapts_on(kind)


def columns(graph: Graph, most: int) -> Graph:
    """Arrays whose rows have at most ``most`` elements are computed column by column, where this keeps more values in
    registers; see `columns`."""
    for ndim, axis in places_of_columns(graph.order, most):
        found = ComputedColumns(graph.order, graph.outputs, ndim, axis, most)
        graph = _replaced(graph, found.replaced) if found.members else graph
    return graph


def short_reductions(graph: Graph, narrow: int) -> Graph:
    """Reductions of few elements become operations on one input for each element. Then the lanes of a kernel go along
    another axis, and the kernel may also reduce the results. See `Reduction.unrolled`.

    Reductions of many rows of up to ``narrow`` elements do so even if a kernel that walks along the rows could serve
    other uses of the elements."""
    candidates = {node for node in graph.order if 1 < _elements_joined(node) <= UNROLLED_AGAIN}
    if not candidates:
        return graph
    uses = _uses(graph)

    def unrolled(node: Node) -> Node | None:
        if node not in candidates:
            return None
        source, elements = node.inputs[0], _elements_joined(node)
        computed = _made_in_place(source, UNROLLED_CHEAP // elements, uses)
        if computed is None:
            return None
        made, alone = computed
        again = _read_again(made, source) if alone else set()
        if not (again and all(map(_is_cheap, made))) and _operations(made) > UNROLLED_OPERATIONS // elements:
            return None
        if alone:
            if elements > UNROLLED_ELEMENTS and not again:
                return None
            _copy_for_lanes(again, made)
        elif node.size < MANY_ROWS or not source.shape[-1] == elements <= narrow:
            return None
        found: Node = node.primitive.unrolled(node)
        uses[found] = uses[node]
        return found

    return _replaced(graph, unrolled)


def _elements_joined(node: Node) -> int:
    """How many elements a reduction joins to one; 0 if the node is no reduction."""
    return node.inputs[0].size // node.size if isinstance(node.primitive, p.Reduction) and node.size else 0


def _is_cheap(node: Node) -> bool:
    return p.is_view(node) or (isinstance(node.primitive, p.Elementwise) and node.primitive.cheap)


def _operations(made: Sequence[Node]) -> int:
    return sum([not p.is_view(node) for node in made])


def _made_in_place(node: Node, most: int, uses: Counter[Node]) -> tuple[list[Node], bool] | None:
    """The operations and views that compute ``node``, in order, and whether nothing else uses one of them or of their
    inputs: else a kernel that walks along the rows could serve both uses. None if there are more than ``most``
    operations, or if one is a reduction, because such a kernel can fold twice.
    """
    used: Counter[Node] = Counter()
    made, pending = [], [node]
    while pending:
        source = pending.pop()
        used[source] += 1
        primitive = source.primitive
        if used[source] > 1 or primitive is None or primitive.is_constant or primitive.routine is not None:
            continue
        if not primitive.is_view:
            most -= 1
        if most < 0 or isinstance(primitive, p.Folding):
            return None
        made.append(source)
        pending += source.inputs
    alone = all(uses[source] <= count or p.is_constant(source) for source, count in used.items())
    return sorted(made, key=serial_of), alone


def _read_again(made: Sequence[Node], source: Node) -> set[Node]:
    """Inputs of the operations ``made`` that are read again and again to compute ``source``, have at least two axes,
    and the last axis of ``source``."""
    inputs = {x for node in made for x in node.inputs} - set(made)
    small = [x for x in inputs if x.size * AGAIN <= source.size]
    found = [x for x in small if x.ndim > 1 and x.shape[-1] == source.shape[-1] > 1]
    return {x for x in found if _differs_along_lanes(x, made, source)}


def _differs_along_lanes(x: Node, made: Sequence[Node], source: Node) -> bool:
    """Whether elements of ``source`` that differ only in the index on the last axis but one are made of different
    elements of ``x``. ``made`` are the operations between the two."""
    reached = {x}
    for node in made:
        if not reached.isdisjoint(node.inputs) and not _repeats_along_lanes(node):
            reached.add(node)
    return source in reached


def _repeats_along_lanes(node: Node) -> bool:
    return p.repeats(node) and node.inputs[0].shape[-2:-1] == (1,) and node.shape[-2] > 1


def _copy_for_lanes(inputs: Iterable[Node], users: Sequence[Node]) -> None:
    """Let the users of inputs read copies of them whose last axis is outermost in memory. When each element of that
    axis is an operand of its own, the elements of a vector are then neighbours in memory."""
    copies = {x: p.with_last_axis_outermost(x) for x in inputs}
    for node in users:
        node.inputs = tuple([copies.get(x, x) for x in node.inputs])
        node.serial = next_serial()  # greater than the serials of its new inputs


def transposed_results(graph: Graph) -> Graph:
    """``transpose(a @ b)`` becomes ``b.T @ a.T`` if the product has no other use, with the same bits. See
    `Primitive.swapped`."""
    candidates = {node for node in graph.order if _swaps_last_axes(node)}
    if not candidates:
        return graph
    uses = _uses(graph)

    def swapped(node: Node) -> Node | None:
        if node not in candidates or uses[node.inputs[0]] > 1:
            return None
        source = node.inputs[0]
        found: Node | None = source.primitive.swapped(source)
        if found is not None:
            uses[found] = uses[node]
        return found

    return _replaced(graph, swapped)


def _swaps_last_axes(node: Node) -> bool:
    last = node.ndim - 1
    is_transpose = node.primitive is p.transpose and node.inputs[0].primitive is not None
    return is_transpose and node.params[0] == (*range(last - 1), last, last - 1)


def sums_of_calls(graph: Graph, target: Target) -> Graph:
    """Sums of results of calls become calls that compute several of them and add them up; see `SumsOfCalls`."""
    routines = [node.primitive.routine for node in graph.order if node.primitive is not None]
    if sum([routine is not None and routine.sums(target.kind) is not None for routine in routines]) < 2:
        return graph
    sums = SumsOfCalls(graph.order, _uses(graph), target.kind)
    return _replaced(graph, sums.replaced) if sums.found else graph


def sharing(graph: Graph, target: Target) -> Graph:
    """Calls of a routine with the same last operand may share work on it, such as packing a matrix; see ``shares`` of
    `Routine.on`."""
    calls: dict[tuple[Primitive, Node], list[Node]] = {}
    for node in graph.order:
        routine = None if node.primitive is None else node.primitive.routine
        if routine is not None and routine.can_share(target.kind):
            calls.setdefault((node.primitive, node.inputs[-1]), []).append(node)
    instead: dict[Node, Callable[[Node], Node | None]] = {}
    layouts = Layouts(graph.inputs)
    for (primitive, operand), several in calls.items():
        if len(several) > 1 and primitive.routine is not None:
            layout = layouts.of(operand)
            strides = contiguous_strides(operand.shape) if layout is None else layout.strides
            found = primitive.routine.shared(several, strides, target.kind)
            if found is not None:
                instead.update(dict.fromkeys(several, found))
    return _replaced(graph, lambda node: instead[node](node) if node in instead else None) if instead else graph


def long_rows(graph: Graph, short: int) -> Graph:
    """Several rows of less than ``short`` elements become one row, where one operand is the same for all rows."""
    joined = JoinedRows(graph.order, graph.inputs, short)
    return _replaced(graph, joined.replaced) if joined.members else graph


def boxes(graph: Graph, target: Target) -> Graph:
    """Elementwise results of rotated arrays are computed box by box from the arrays that were rotated; see
    `rotations`."""
    reads = RotatedReads(graph.order, graph.outputs, target.limits.most_boxes, target.limits.box_elements)
    return _replaced(graph, reads.replaced) if reads.members else graph


def assignments(graph: Graph, target: Target) -> Graph:
    """Large results that are stored anyway are written part by part, by the kernels and calls that compute the parts;
    see `Primitive.assigned`. Values that kernels read are left alone, since the kernels compute them where they read
    them. So are operands of calls that a kernel may feed.
    """
    least = target.limits.assigned_size
    if not least:
        return graph

    def stores(node: Node) -> bool:
        routine = None if node.primitive is None else node.primitive.routine
        return routine is not None and not routine.can_feed(target.kind)

    read = {x for node in graph.order if not stores(node) for x in node.inputs}

    def assigned(node: Node) -> Node | None:
        if node.primitive is None or node in read:
            return None
        found: Node | None = node.primitive.assigned(node)
        return found if found is not None and node.size >= least else None

    return _replaced(graph, assigned)


def _uses(graph: Graph) -> Counter[Node]:
    """How often each node is an input of others, or an output."""
    uses = Counter(graph.outputs)
    for node in graph.order:
        uses.update(node.inputs)
    return uses


Rewrite = Callable[[Graph], Graph]
REWRITES: tuple[Rewrite, ...] = (transposed_results,)
"""Rewrites that do not depend on the target, in the order in which they are applied."""


def _replaced(graph: Graph, rule: Callable[[Node], Node | None]) -> Graph:
    """The graph with each node replaced by the node that ``rule`` returns for it, unless it returns None.

    Serials are renewed so that a replacement keeps the position of the original in the order.
    """
    replaced: dict[Node, Node] = {}
    for node in graph.order:
        if replaced and not replaced.keys().isdisjoint(node.inputs):
            node.inputs = tuple([replaced.get(source, source) for source in node.inputs])
        new = rule(node)
        if new is None:
            node.serial = next_serial()
        else:
            replaced[node] = new
    outputs = [replaced.get(node, node) for node in graph.outputs]
    return Graph(reachable(outputs), outputs, graph.inputs, graph.constants)
