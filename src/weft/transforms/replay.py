"""A recorded graph, applied to other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.dims import Binding, Dim, resolved
from weft.graph.node import Node, Shape, reachable
from weft.runtime.devices import current_stream

Aval = tuple[Shape, Dtype]


class Recording:
    """The part of a graph between inputs and outputs, in topological order.

    It holds what steps do, not the nodes that did it: these may go, and their memory with them. ``others`` are the
    nodes that are used without being part of it, ``outside`` those among them that are no constants.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        places: dict[Node, int] = {node: place for place, node in enumerate(inputs)}
        count = len(places)
        inner: list[Node] = []
        first = min((node.serial for node in inputs), default=0)
        for node in reachable(outputs, first - 1):
            if node not in places and (any(source in places for source in node.inputs) or _is_symbolic(node)):
                places[node] = count + len(inner)
                inner.append(node)
        used = [source for node in inner for source in node.inputs]
        constants = dict.fromkeys(node for node in [*used, *outputs] if node not in places)
        places.update((node, -1 - place) for place, node in enumerate(constants))
        self.others = list(constants)
        self.outside = [node for node in constants if not p.is_constant(node)]
        self.has_streams = any(node.stream is not None for node in inner)
        self._steps = [
            (node.primitive, tuple([places[x] for x in node.inputs]), node.params, node.shape, node.dtype, node.stream)
            for node in inner
        ]
        self._outputs = [places[node] for node in outputs]

    def _run(self, inputs: Sequence[Node], remake: Callable[..., tuple[Aval, Any]] | None) -> list[Node]:
        """New nodes for all steps; ``remake`` works out shape, dtype and parameters again."""
        nodes = [*inputs]
        others = self.others
        stream = current_stream()
        for primitive, places, params, shape, dtype, own in self._steps:
            sources = tuple([nodes[place] if place >= 0 else others[-1 - place] for place in places])
            if remake is not None:
                (shape, dtype), params = remake(primitive, sources, params, dtype)
            nodes.append(Node(primitive, sources, params, shape, dtype, own or stream))
        return [nodes[place] if place >= 0 else others[-1 - place] for place in self._outputs]

    def replay(self, inputs: Sequence[Node]) -> list[Node]:
        """The outputs for other inputs of the same shapes and dtypes, as new nodes."""
        return self._run(inputs, None)

    def reshaped(self, inputs: Sequence[Node], binding: Binding) -> list[Node]:
        """The outputs for inputs of other shapes: shapes and parameters are worked out again."""

        def remake(primitive: p.Primitive, sources: tuple[Node, ...], params: Any, dtype: Dtype) -> tuple[Aval, Any]:
            values = resolved(params, binding)
            if primitive is p.constant:
                return ((), dtype), values
            keywords: dict[str, Any] = dict(zip(primitive.parameters, values, strict=True))
            return primitive.infer(*sources, **keywords), values

        return self._run(inputs, remake)


def _is_symbolic(node: Node) -> bool:
    """Whether a node is another one for other input shapes, though it does not depend on the inputs."""
    return any(type(extent) is Dim for extent in node.shape) or (p.is_constant(node) and type(node.params[0]) is Dim)
