"""Derivatives: forwards and backwards over the graph, along the nodes that depend on the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft.graph.node import Handle, Node, reachable, wrap
from weft.primitives.base import Array, Tangent, plus
from weft.runtime.devices import current_stream, set_current_stream


def fresh(array: Array) -> Array:
    """The same value under a node of its own, to differentiate with respect to."""
    source = array.node
    return wrap(Node(p.identity, (source,), (), source.shape, source.dtype, source.stream))


def pull_back(outputs: Sequence[Array], cotangents: Sequence[Tangent], targets: Sequence[Node]) -> list[Tangent]:
    """The cotangents of ``targets`` that belong to ``cotangents`` of ``outputs``; None is zero."""
    order, depending = _dependents([array.node for array in outputs], targets)
    collected: dict[Node, Any] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and output.node in depending:
            collected[output.node] = plus(collected.get(output.node), cotangent)
    stream = current_stream()
    found: dict[Node, Tangent] = {}
    ends = set(targets)
    try:
        for node in reversed(order):
            if node not in depending:
                continue
            cotangent = collected.pop(node, None)
            if node in ends:
                found[node] = cotangent
            elif cotangent is not None:
                set_current_stream(node.stream)
                _pull_through(node, cotangent, depending, collected)
    finally:
        set_current_stream(stream)
    return [found.get(node) for node in targets]


def _dependents(outputs: Sequence[Node], inputs: Sequence[Node]) -> tuple[list[Node], set[Node]]:
    """The graph between ``inputs`` and ``outputs`` in topological order, and which of it can carry a derivative."""
    depending = set(inputs)
    order = reachable(outputs, min((node.serial for node in inputs), default=0) - 1)
    for node in order:
        if not node.dtype.is_inexact and node.primitive is not p.marked_call:
            continue
        for source in node.inputs:
            if source in depending:
                depending.add(node)
                break
    return order, depending


def _pull_through(node: Node, cotangent: Any, depending: set[Node], collected: dict[Node, Any]) -> None:
    """Add what a node's cotangent means for its inputs."""
    primitive = node.primitive
    if primitive is p.project:
        marked = node.inputs[0]
        collected.setdefault(marked, {})[node.params[0]] = cotangent
        return
    if primitive is p.marked_call:
        results = _pull_through_marked(node, cotangent)
    else:
        wanted = [source in depending for source in node.inputs]
        results = primitive.vjp(cotangent, [wrap(x) for x in node.inputs], wrap(node), wanted, **node.keywords)
    for source, result in zip(node.inputs, results, strict=True):
        if result is not None and source in depending:
            collected[source] = plus(collected.get(source), result)


def _pull_through_marked(node: Node, cotangents: dict[int, Array]) -> Sequence[Tangent]:
    rules, count = node.params
    inputs = [wrap(x) for x in node.inputs]
    primals, outputs = inputs[:count], inputs[count:]
    if rules.vjp is None:
        return [None] * count + [cotangents.get(position) for position in range(len(outputs))]
    filled = [
        cotangents[position] if position in cotangents else p.zeros_like(output)
        for position, output in enumerate(outputs)
    ]
    return [*rules.vjp(primals, filled, outputs), *([None] * len(outputs))]


def push_forward(inputs: Sequence[Node], tangents: Sequence[Tangent], outputs: Sequence[Array]) -> list[Tangent]:
    """The tangents of ``outputs`` that belong to ``tangents`` of ``inputs``; None is zero."""
    known: dict[Node, Any] = {
        node: tangent for node, tangent in zip(inputs, tangents, strict=True) if tangent is not None
    }
    order, depending = _dependents([array.node for array in outputs], list(known))
    stream = current_stream()
    try:
        for node in order:
            if node in depending and node not in known:
                set_current_stream(node.stream)
                tangent = _push_through(node, known)
                if tangent is not None:
                    known[node] = tangent
    finally:
        set_current_stream(stream)
    return [known.get(array.node) for array in outputs]


def _push_through(node: Node, known: dict[Node, Any]) -> Any:
    primitive = node.primitive
    if primitive is p.project:
        tangents = known.get(node.inputs[0])
        return None if tangents is None else tangents[node.params[0]]
    if primitive is p.marked_call:
        return _push_through_marked(node, known)
    tangents = [known.get(source) for source in node.inputs]
    if all(tangent is None for tangent in tangents):
        return None
    return primitive.jvp(tangents, [wrap(x) for x in node.inputs], wrap(node), **node.keywords)


def _push_through_marked(node: Node, known: dict[Node, Any]) -> list[Tangent]:
    rules, count = node.params
    tangents = [known.get(source) for source in node.inputs]
    if rules.jvp is None or all(tangent is None for tangent in tangents[:count]):
        return tangents[count:]
    inputs = [wrap(x) for x in node.inputs]
    result: list[Tangent] = rules.jvp(inputs[:count], tangents[:count], inputs[count:])
    return result


def require_arrays(name: str, leaves: Sequence[Any], paths: Callable[[], Sequence[str]]) -> None:
    """Raise unless every leaf of an argument is an array."""
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, Handle):
            where = paths()[position]
            place = f" at {where}" if where else ""
            raise ValueError(f"[{name}] The argument{place} is a {type(leaf).__name__}; it should contain only arrays.")
