"""The graph that is planned, and the passes that rewrite it before it is fused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import weft.primitives as p
from weft.compiler.program import Entry
from weft.graph.node import Node, Placeholder, Shape, next_serial, reachable
from weft.graph.symbolic import open_trace
from weft.graph.tracing import no_value


@dataclass(slots=True)
class Graph:
    """A private copy of the graph that passes may change.

    ``order`` is topological, ``inputs`` gives the strides of inputs. Serials are in the order of the program, which the
    order of steps follows.
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
    """Raise unless all extents are plain ints: nothing else is planned."""
    for primitive, *rest in entries:
        trace = open_trace(tuple(rest))
        if trace is not None:
            _, shape, dtype, _ = rest
            raise no_value(Node(primitive, (), (), shape, dtype, None), trace, "evaluate")


def planned_graph(entries: Sequence[Entry], outputs: Sequence[int]) -> Graph:
    """The graph of a program's key after all passes."""
    graph = graph_of(entries, outputs)
    for rewrite in PASSES:
        graph = rewrite(graph)
    return graph


def expansion(graph: Graph) -> Graph:
    """Operations become several others, in an order that extents decide: see `Primitive.expanded`."""
    return _replaced(graph, lambda node: None if node.primitive is None else node.primitive.expanded(node))


def lowering(graph: Graph) -> Graph:
    """Operations become simpler ones, now that all extents are known: see `Primitive.lowered`."""
    return _replaced(graph, lambda node: None if node.primitive is None else node.primitive.lowered(node))


def transposed_results(graph: Graph) -> Graph:
    """``transpose(a @ b)`` becomes ``b.T @ a.T`` if the product has no other use, with the same bits. See
    `Primitive.swapped`."""
    candidates = {node for node in graph.order if _swaps_last_axes(node)}
    if not candidates:
        return graph
    uses = Counter(graph.outputs)
    for node in graph.order:
        uses.update(node.inputs)

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


Pass = Callable[[Graph], Graph]
PASSES: tuple[Pass, ...] = (expansion, lowering, transposed_results)
"""In the order in which they are applied."""


def _replaced(graph: Graph, rule: Callable[[Node], Node | None]) -> Graph:
    """The graph with each node replaced by what ``rule`` makes of it, if it makes anything.

    Serials are renewed so that a replacement keeps the position of the original.
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
