"""Operations that compute nothing: they mark the graph for transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Primitive, Tangent
from weft.primitives.index import Terms
from weft.runtime.devices import current_stream


class Identity(Primitive):
    """Another node for the same value: what a transformation differentiates with respect to."""

    name = "identity"

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[0].shape, inputs[0].dtype

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
    """The same value, without a derivative."""

    name = "stop_gradient"

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [None]


class Barrier(Identity):
    """The same value, never shared with an equal computation outside; steps behind it run where it was made in the
    program.

    ``mark`` makes each use unique. `checkpoint` recomputes behind barriers: without them the recomputation would be
    recognised as common work and the memory kept after all.
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


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a function that brings its own, on flat lists; None where the function has none.

    ``vjp(primals, cotangents, outputs)``, ``jvp(primals, tangents, outputs)``, and ``vmap(inputs, axes, outputs)``,
    which gets the nodes of the outputs of one example, and gives pairs of output and axis.
    """

    vjp: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vmap: Callable[..., Any] | None


class Marked(Primitive):
    """A call of a function with rules of its own.

    Inputs are the ``arguments`` primal inputs, then the outputs that the function's own graph computed. There is one
    node per call; `Project` gives its outputs, which are just other names of the computed ones. ``rules`` is a `Rules`.
    """

    name = "marked"
    parameters = ("rules", "arguments")

    def __call__(self, *operands: Any, **params: Any) -> Array:
        nodes = tuple([operand.node for operand in operands])
        first = nodes[-1]
        values = (params["rules"], params["arguments"])
        return wrap(Node(self, nodes, values, first.shape, first.dtype, current_stream()))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return inputs[-1].shape, inputs[-1].dtype


class Project(Primitive):
    """Output ``position`` of a node with several outputs."""

    name = "project"
    parameters = ("position",)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        source = self.source(inputs[0], params["position"])
        return source.shape, source.dtype

    def alias(self, node: Node) -> Node | None:
        return self.source(node.inputs[0], node.params[0])

    @staticmethod
    def source(marked: Node, position: int) -> Node:
        return marked.inputs[marked.params[1] + position]


identity = Identity()
stop_gradient = StopGradient()
barrier = Barrier()
marked_call = Marked()
project = Project()
