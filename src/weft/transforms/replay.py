"""A recorded graph, applied to other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.graph.dims import Binding, Dim, resolved
from weft.graph.node import Node, reachable
from weft.runtime.devices import Stream, current_stream


class Recording:
    """The part of a graph between ``inputs`` and ``outputs``, in topological order."""

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        depending = set(inputs)
        self.nodes: list[Node] = []
        first = min((node.serial for node in inputs), default=0)
        for node in reachable(outputs, first - 1):
            if node not in depending and (any(source in depending for source in node.inputs) or _is_symbolic(node)):
                depending.add(node)
                self.nodes.append(node)
        self.steps = [(node.primitive, node.inputs, node.params, node.shape, node.dtype, node.stream) for node in self.nodes]

    def outside(self) -> list[Node]:
        """Nodes that the graph uses without being part of it, apart from constants."""
        inside = set(self.nodes)
        used = [source for node in self.nodes for source in node.inputs]
        return [
            node for node in dict.fromkeys([*used, *self.outputs]) if node not in inside and not p.is_constant(node)
        ]

    def replay(self, inputs: Sequence[Node]) -> list[Node]:
        """The outputs for other inputs of the same shapes and dtypes, as new nodes."""
        known: dict[Node, Node] = dict(zip(self.inputs, inputs, strict=True))
        stream = current_stream()
        for node, (primitive, sources, params, shape, dtype, own) in zip(self.nodes, self.steps, strict=True):
            replaced = tuple([known.get(source, source) for source in sources])
            known[node] = Node(primitive, replaced, params, shape, dtype, own or stream)
        return [known.get(node, node) for node in self.outputs]

    def reshaped(self, inputs: Sequence[Node], binding: Binding) -> list[Node]:
        """The outputs for inputs of other shapes: shapes and parameters are worked out again."""
        known: dict[Node, Node] = dict(zip(self.inputs, inputs, strict=True))
        stream: Stream | None = current_stream()
        for node, (primitive, sources, params, _, _, own) in zip(self.nodes, self.steps, strict=True):
            replaced = tuple([known.get(source, source) for source in sources])
            values = resolved(params, binding)
            keywords: dict[str, Any] = dict(zip(primitive.parameters, values, strict=True))
            shape, dtype = (), node.dtype
            if primitive is not p.constant:
                shape, dtype = primitive.infer(*replaced, **keywords)
            known[node] = Node(primitive, replaced, values, shape, dtype, own or stream)
        return [known.get(node, node) for node in self.outputs]


def _is_symbolic(node: Node) -> bool:
    """Whether a node is another one for other input shapes, though it does not depend on the inputs."""
    return any(type(extent) is Dim for extent in node.shape) or (p.is_constant(node) and type(node.params[0]) is Dim)
