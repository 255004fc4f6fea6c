"""Forward and reverse mode: walks over the nodes of a graph that depend on its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft.graph.node import Handle, Node, reachable, wrap
from weft.graph.tracing import follow
from weft.primitives.base import Array, Tangent, plus
from weft.runtime.devices import saved_stream, set_current_stream


def fresh(array: Array) -> Array:
    """The same value as a new node, with respect to which something can be differentiated."""
    source = array.node
    node = Node(p.identity, (source,), (), source.shape, source.dtype, source.stream)
    follow(node)
    return wrap(node)


class Results:
    """The results of nodes in the form that rules take: a list for `Several`."""

    def __init__(self, order: Sequence[Node]) -> None:
        self._order = order
        self._known: dict[tuple[Node, int], Node] | None = None

    def of(self, node: Node) -> Any:
        """The result of a node. For `Several` a list, which contains the result nodes of the graph where it has some:
        these may have been evaluated already."""
        if not node.primitive.several:
            return wrap(node)
        if self._known is None:
            found = [x for x in self._order if x.primitive is not None and x.primitive.is_result]
            self._known = {(x.inputs[0], x.params[0]): x for x in found}
        positions = range(p.result_count(node))
        return [wrap(self._known.get((node, position)) or p.result_of(node, position)) for position in positions]


class _Collected:
    """The cotangents of nodes, added up as they are found. Those that are padded with zeros are added together, because
    a loop over the parts of an array leaves one for each of them."""

    def __init__(self) -> None:
        self._sums: dict[Node, Any] = {}
        self._padded: dict[Node, list[p.Padded]] = {}
        """What is to be added to the sums, in this order."""

    def add(self, node: Node, cotangent: Array) -> None:
        padded = p.padded(cotangent)
        if padded is not None:
            self._padded.setdefault(node, []).append(padded)
        elif node in self._sums or node in self._padded:
            self._sums[node] = plus(self.pop(node), cotangent)
        else:
            self._sums[node] = cotangent

    def add_result(self, node: Node, position: int, cotangent: Array) -> None:
        """Note the cotangent of one result of `Several`."""
        if node not in self._sums:
            self._sums[node] = [None] * p.result_count(node)
        self._sums[node][position] = cotangent

    def pop(self, node: Node) -> Any:
        """The sum for a node, a list for `Several`, which is then forgotten."""
        total = self._sums.pop(node, None)
        if node not in self._padded:
            return total
        padded = self._padded.pop(node)
        stream = saved_stream()
        set_current_stream(padded[-1].array.node.stream)
        try:
            return p.plus_padded(total, padded)
        finally:
            set_current_stream(stream)


def pull_back(outputs: Sequence[Array], cotangents: Sequence[Tangent], targets: Sequence[Node]) -> list[Tangent]:
    """The cotangents of ``targets`` for given ``cotangents`` of ``outputs``. None stands for zero."""
    order, depending = _dependents([array.node for array in outputs], targets)
    collected = _Collected()
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and output.node in depending:
            collected.add(output.node, cotangent)
    stream = saved_stream()
    found: dict[Node, Tangent] = {}
    ends = set(targets)
    results = Results(order)
    try:
        for node in reversed(order):
            if node not in depending:
                continue
            cotangent = collected.pop(node)
            if node in ends:
                found[node] = cotangent
            elif cotangent is not None:
                set_current_stream(node.stream)
                _pull_through(node, cotangent, depending, collected, results)
    finally:
        set_current_stream(stream)
    return [found.get(node) for node in targets]


def _dependents(outputs: Sequence[Node], inputs: Sequence[Node]) -> tuple[list[Node], set[Node]]:
    """The nodes between ``inputs`` and ``outputs`` in topological order, and which of them can have a derivative."""
    depending = set(inputs)
    order = reachable(outputs, min((node.serial for node in inputs), default=0) - 1)
    for node in order:
        if not node.dtype.is_inexact and not (node.primitive is not None and node.primitive.several):
            continue
        for source in node.inputs:
            if source in depending:
                depending.add(node)
                break
    return order, depending


def _pull_through(node: Node, cotangent: Any, depending: set[Node], collected: _Collected, results: Results) -> None:
    """Add to ``collected`` what a node's cotangent contributes to the cotangents of its inputs."""
    primitive = node.primitive
    if primitive.is_result:
        collected.add_result(node.inputs[0], node.params[0], cotangent)
        return
    wanted = [source in depending for source in node.inputs]
    output = results.of(node) if primitive.several else wrap(node)
    if primitive.linear_jvp:
        found = _transposed(node, cotangent, wanted, output)
    else:
        found = primitive.vjp(cotangent, [wrap(x) for x in node.inputs], output, wanted, **node.keywords)
    for source, result in zip(node.inputs, found, strict=True):
        if result is not None and source in depending:
            collected.add(source, result)


def _transposed(node: Node, cotangent: Any, wanted: Sequence[bool], output: Any) -> Sequence[Tangent]:
    """The cotangents of a node's inputs, by its jvp rule: the rule is applied to tangents that are never evaluated, and
    the cotangent is pulled back through the operations that the rule made."""
    inputs = [wrap(x) for x in node.inputs]
    tangents = [
        p.zeros_like(x) if want and x.node.dtype.is_inexact else None for x, want in zip(inputs, wanted, strict=True)
    ]
    images = node.primitive.jvp(tangents, inputs, output, **node.keywords)
    if not node.primitive.several:
        images, cotangent = [images], [cotangent]
    pairs = [pair for pair in zip(images, cotangent, strict=True) if pair[0] is not None and pair[1] is not None]
    targets = [t.node for t in tangents if t is not None]
    found = iter(pull_back([image for image, _ in pairs], [given for _, given in pairs], targets))
    return [None if t is None else next(found) for t in tangents]


def push_forward(inputs: Sequence[Node], tangents: Sequence[Tangent], outputs: Sequence[Array]) -> list[Tangent]:
    """The tangents of ``outputs`` for given ``tangents`` of ``inputs``. None stands for zero."""
    known: dict[Node, Any] = {
        node: tangent for node, tangent in zip(inputs, tangents, strict=True) if tangent is not None
    }
    order, depending = _dependents([array.node for array in outputs], list(known))
    results = Results(order)
    stream = saved_stream()
    try:
        for node in order:
            if node in depending and node not in known:
                set_current_stream(node.stream)
                tangent = _push_through(node, known, results)
                if tangent is not None:
                    known[node] = tangent
    finally:
        set_current_stream(stream)
    return [known.get(array.node) for array in outputs]


def _push_through(node: Node, known: dict[Node, Any], results: Results) -> Any:
    primitive = node.primitive
    if primitive.is_result:
        tangents = known.get(node.inputs[0])
        return None if tangents is None else tangents[node.params[0]]
    tangents = [known.get(source) for source in node.inputs]
    if all(tangent is None for tangent in tangents):
        return None
    return primitive.jvp(tangents, [wrap(x) for x in node.inputs], results.of(node), **node.keywords)


def require_arrays(
    name: str, leaves: Sequence[Any], paths: Callable[[], Sequence[tuple[Any, ...]]], otherwise: str
) -> None:
    """Raise unless every leaf of the arguments is an array.

    ``paths`` gives for each leaf the number or name of its argument, and the keys that lead to it there. ``otherwise``
    says how else other values can be passed.
    """
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, Handle):
            argument, *keys = paths()[position]
            raise ValueError(
                f"[{name}] Argument {argument}{''.join([f'[{key!r}]' for key in keys])} is of type "
                f"{type(leaf).__name__}, not an array. Make a number an array with mx.array; {otherwise}"
            )
