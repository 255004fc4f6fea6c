"""Operations that compute nothing and mark the graph for transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Primitive, Tangent
from weft.primitives.index import Terms
from weft.primitives.untrusted import check_axis, check_inputs, require
from weft.runtime.devices import current_stream

__all__ = [
    "Several",
    "barrier",
    "identity",
    "marked_call",
    "new_mark",
    "project",
    "result_count",
    "result_of",
    "settle_results",
    "settled",
    "stop_gradient",
    "with_derivative_of",
]


class Identity(Primitive):
    """Another node for the same value. Transformations differentiate with respect to such nodes."""

    name = "identity"

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        require(bool(inputs), "it has no inputs")

    def alias(self, node: Node) -> Node | None:
        return node.inputs[0]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return tangents[0]

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [cotangent] + [None] * (len(inputs) - 1)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        if axes[0] is None:
            raise ValueError(f"{self.name}: no input is mapped")
        return self(inputs[0], **params), axes[0]


class StopGradient(Identity):
    """The same value with a derivative of zero."""

    name = "stop_gradient"

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [None]


class WithDerivativeOf(Identity):
    """The value of the first input with the derivative of the second: both are the same, computed in different ways."""

    name = "with_derivative_of"

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return tangents[1]

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [None, cotangent]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*p.batch_first(inputs, axes), **params), 0


new_mark = count().__next__
"""A number that is different in each call."""


class Barrier(Identity):
    """The same value as the first input, in a node that is never merged with an equal one. Steps that use it are
    ordered by its position in the program, after the steps that compute the other inputs.

    ``mark`` makes each use unique; see `new_mark`. `checkpoint` recomputes after barriers: without them the
    recomputation would be merged with the first computation, and its results would stay in memory.
    """

    name = "barrier"
    parameters = ("mark",)
    is_view = True
    is_unique = True

    def alias(self, node: Node) -> Node | None:
        return None

    def behind(self, node: Node, index: Terms) -> tuple[Node, Terms] | None:
        return node.inputs[0], index

    def shown(self, node: Node, strides: Shape) -> tuple[Shape, int] | None:
        return strides, 0

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        return self(*inputs, **params), axes[0]


class Several(Primitive):
    """A primitive with several results, which a call returns as a list.

    A call makes one node, with the shape and dtype of the first result, and a `Project` of it for each result; only the
    latter have values. ``infer_results`` gives the shape and dtype of each. Rules take and return lists with an entry
    per result: ``jvp(tangents, inputs, outputs)`` returns tangents, ``vjp(cotangents, inputs, outputs, wanted)`` takes
    cotangents (None is zero), and ``vmap(inputs, axes)`` returns pairs of a result and its axis.
    """

    several = True

    def __call__(self, *operands: Any, **params: Any) -> list[Array]:
        nodes = tuple([operand.node for operand in operands])
        results = self.infer_results(*nodes, **params)
        stream = current_stream()
        node = self.node(nodes, params, *results[0], stream)
        return [
            wrap(Node(project, (node,), (position,), shape, dtype, stream))
            for position, (shape, dtype) in enumerate(results)
        ]

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        """Shape and dtype of each result."""
        raise NotImplementedError(f"{self.name} has no shape rule")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return self.infer_results(*inputs, **params)[0]

    def alias_of(self, node: Node, position: int) -> Node | None:
        """The input that has the same value as a result, if the operation computes nothing."""
        return None

    def expanded_results(self, node: Node) -> Sequence[Node] | None:
        """Nodes of other operations for all results, which are planned instead, as in `expanded`; or None."""
        return None


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a function that defines its own, on flat lists; None for a rule that it does not define.

    ``vjp(primals, cotangents, outputs)``, ``jvp(primals, tangents, outputs)``, and ``vmap(inputs, axes, outputs)``,
    which gets the output nodes of one example and returns pairs of output and axis. ``batched(rules, axes, out_axes)``
    gives the rules of the mapped function if it has no vmap rule.
    """

    vjp: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vmap: Callable[..., Any] | None
    batched: Callable[[Rules, Sequence[int | None], Sequence[int | None]], Rules]


class Marked(Several):
    """A call of a function with rules of its own.

    Inputs are the ``arguments`` primal inputs, then the outputs that the function's own graph computed, which are the
    values of the results. ``rules`` is a `Rules`.
    """

    name = "marked"
    parameters = ("rules", "arguments")
    is_transparent = True

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        return [(output.shape, output.dtype) for output in inputs[params["arguments"] :]]

    def alias_of(self, node: Node, position: int) -> Node | None:
        return node.inputs[node.params[1] + position]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        rules, count = params["rules"], params["arguments"]
        if rules.jvp is None or all(tangent is None for tangent in tangents[:count]):
            return tangents[count:]
        return rules.jvp(inputs[:count], tangents[:count], inputs[count:])

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        rules, count = params["rules"], params["arguments"]
        primals, outputs = inputs[:count], inputs[count:]
        if rules.vjp is None:
            return [None] * count + list(cotangent)
        filled = [p.zeros_like(x) if given is None else given for given, x in zip(cotangent, outputs, strict=True)]
        return [*rules.vjp(primals, filled, outputs), *([None] * len(outputs))]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> Any:
        rules, count = params["rules"], params["arguments"]
        out_axes = axes[count:]
        if rules.vmap is not None and any(axis is not None for axis in axes[:count]):
            examples = list(map(_one_example, inputs[count:], out_axes))
            return rules.vmap(inputs[:count], axes[:count], examples)
        batched = rules.batched(rules, axes[:count], out_axes)
        return list(zip(self(*inputs, rules=batched, arguments=count), out_axes, strict=True))


def _one_example(x: Array, axis: int | None) -> Node:
    """A node with the shape and dtype of one example of a mapped array."""
    shape = x.node.shape
    return Node(None, (), (), shape if axis is None else (*shape[:axis], *shape[axis + 1 :]), x.node.dtype, None)


class Project(Primitive):
    """Result ``position`` of a node with several results."""

    name = "project"
    parameters = ("position",)
    is_result = True

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        require(bool(inputs[0].primitive is not None and inputs[0].primitive.several), "its input has one result")
        check_axis(params["position"], result_count(inputs[0]))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        source = inputs[0]
        result: tuple[Shape, Dtype] = source.primitive.infer_results(*source.inputs, **source.keywords)[
            params["position"]
        ]
        return result

    def alias(self, node: Node) -> Node | None:
        source = node.inputs[0]
        found: Node | None = source.primitive.alias_of(source, node.params[0])
        return found


def result_count(node: Node) -> int:
    """How many results a node has."""
    return len(node.primitive.infer_results(*node.inputs, **node.keywords)) if node.primitive.several else 1


def result_of(node: Node, position: int) -> Node:
    """A node for one result of a node with several."""
    shape, dtype = node.primitive.infer_results(*node.inputs, **node.keywords)[position]
    return Node(project, (node,), (position,), shape, dtype, node.stream)


class Settled(Several):
    """A node with several results that have values: its inputs are nodes with these values."""

    name = "settled"
    is_transparent = True

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        return [(result.shape, result.dtype) for result in inputs]

    def alias_of(self, node: Node, position: int) -> Node | None:
        return node.inputs[position]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return tangents

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return list(cotangent)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> Any:
        return list(zip(self(*inputs), axes, strict=True))


def settle_results(node: Node, results: Sequence[Node]) -> None:
    """Replace a node with several results by the nodes that have the results' values."""
    for result in results:
        result.serial = node.serial - 1  # inputs must have lower serials than their node
    node.primitive, node.params, node.inputs = settled, (), tuple(results)


identity = Identity()
stop_gradient = StopGradient()
with_derivative_of = WithDerivativeOf()
barrier = Barrier()
marked_call = Marked()
project = Project()
settled = Settled()
