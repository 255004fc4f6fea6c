"""A recorded graph, which can be applied to other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, reachable
from weft.graph.symbolic import Binding, SymbolicExtent, is_open, resolved
from weft.primitives.untrusted import inferred
from weft.runtime.devices import current_stream

Aval = tuple[Shape, Dtype]


class RecordedGraph:
    """The part of a graph between inputs and outputs, in topological order.

    It holds a description of each operation, not its node, so that nodes and their memory can be freed. ``others`` are
    the nodes that operations use as values, because they do not depend on the inputs; ``outside`` are those that are no
    constants. ``untrusted``: the graph comes from a file, so for other shapes parameters are checked again as well.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], untrusted: bool = False) -> None:
        self._untrusted = untrusted
        self._shapes: tuple[tuple[Any, ...], ...] = tuple([node.shape for node in inputs])
        self.is_open = is_open(self._shapes)
        first = min((node.serial for node in inputs), default=0)
        depending = set(inputs)
        inner: list[Node] = []
        for node in reachable(outputs, first - 1, until=frozenset(inputs)):
            depends = not depending.isdisjoint(node.inputs)
            if depends or _is_symbolic(node):
                depending.add(node)
                inner.append(node)
                self.is_open = self.is_open or not depends
        inner = sorted([*inner, *_free_others(inner, depending, first)], key=lambda node: node.serial)
        positions: dict[Node, int] = {node: position for position, node in enumerate([*inputs, *inner])}
        used = [source for node in inner for source in node.inputs]
        constants = dict.fromkeys(node for node in [*used, *outputs] if node not in positions)
        positions.update((node, -1 - position) for position, node in enumerate(constants))
        self.others = list(constants)
        self.outside = [node for node in constants if not p.is_constant(node)]
        self.has_streams = any(node.stream is not None for node in inner)
        self._operations = [
            (
                node.primitive,
                tuple([positions[x] for x in node.inputs]),
                node.params,
                node.shape,
                node.dtype,
                node.stream,
            )
            for node in inner
        ]
        self._outputs = [positions[node] for node in outputs]
        self.is_open = self.is_open or any(is_open(node.shape) for node in constants)

    def _run(self, inputs: Sequence[Node], remake: Callable[..., tuple[Aval, Any]] | None) -> list[Node]:
        """New nodes for all operations. If ``remake`` is given, it calculates shape, dtype and parameters again."""
        nodes = [*inputs]
        others = self.others
        stream = current_stream()
        for primitive, positions, params, shape, dtype, own in self._operations:
            sources = tuple([nodes[position] if position >= 0 else others[-1 - position] for position in positions])
            if remake is not None:
                (shape, dtype), params = remake(primitive, sources, params, dtype)
            nodes.append(Node(primitive, sources, params, shape, dtype, own or stream))
        return [nodes[position] if position >= 0 else others[-1 - position] for position in self._outputs]

    def replay(self, inputs: Sequence[Node]) -> list[Node]:
        """The outputs for other inputs, as new nodes. The inputs must have the recorded shapes, unless extents are
        open."""
        return self.reshaped(inputs, self.binding(inputs)) if self.is_open else self._run(inputs, None)

    def binding(self, inputs: Sequence[Node]) -> Binding:
        """The values that the open extents of the recorded inputs have for these inputs."""
        return {
            symbolic: extent
            for shape, node in zip(self._shapes, inputs, strict=True)
            for symbolic, extent in zip(shape, node.shape, strict=True)
            if type(symbolic) is SymbolicExtent
        }

    def reshaped(self, inputs: Sequence[Node], binding: Binding) -> list[Node]:
        """The outputs for inputs of other shapes: shapes and parameters are calculated again."""

        def remake(primitive: p.Primitive, sources: tuple[Node, ...], params: Any, dtype: Dtype) -> tuple[Aval, Any]:
            values = resolved(params, binding)
            if primitive.is_constant:
                return ((), dtype), values
            keywords: dict[str, Any] = dict(zip(primitive.parameters, values, strict=True))
            if self._untrusted:
                return inferred(primitive, sources, keywords), values
            return primitive.infer(*sources, **keywords), values

        return self._run(inputs, remake)


def _free_others(inner: Sequence[Node], depending: set[Node], first: int) -> list[Node]:
    """Operations that do not depend on the inputs and are recorded nevertheless, because they take next to no time in a
    kernel: views, and elementwise operations on numbers that are broadcast. Evaluated as values, which is what becomes
    of other operations, a number that is broadcast could need much memory."""
    uniform = _uniform_others(inner, depending, first)
    found: dict[Node, None] = {}
    pending = [source for node in inner for source in node.inputs]
    while pending:
        node = pending.pop()
        if node in found or not _is_pending_other(node, depending, first):
            continue
        if isinstance(node.primitive, p.View) or node in uniform:
            found[node] = None
            pending.extend(node.inputs)
    return list(found)


def _uniform_others(inner: Sequence[Node], depending: set[Node], first: int) -> set[Node]:
    """Views and elementwise operations whose elements are all equal by the way they are made."""
    candidates: set[Node] = set()
    pending = [source for node in inner for source in node.inputs]
    while pending:
        node = pending.pop()
        is_free = isinstance(node.primitive, p.View | p.Elementwise) and node.shape != ()
        if is_free and node not in candidates and _is_pending_other(node, depending, first):
            candidates.add(node)
            pending.extend(node.inputs)
    uniform: set[Node] = set()
    for node in sorted(candidates, key=lambda node: node.serial):
        if all(source.shape == () or source in uniform for source in node.inputs):
            uniform.add(node)
    return uniform


def _is_pending_other(node: Node, depending: set[Node], first: int) -> bool:
    """Whether a node does not depend on the inputs, and was made by the function without a value so far."""
    return node not in depending and node.value is None and node.serial >= first


def _is_symbolic(node: Node) -> bool:
    """Whether a node differs for other input shapes, though it does not depend on the inputs' values."""
    return is_open(node.shape) or is_open(node.params)
