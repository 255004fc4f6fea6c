"""Nodes for works of libraries in planned graphs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.routine import Count, MakeSteps, Routine
from weft.primitives.structure import Several, result_of

Results = Sequence[tuple[Shape, Dtype]]


class LibraryOperation(Several):
    """A work of a library. Inputs and results are in row-major order.

    A node says what the ``work`` is, shapes and dtypes of the ``results``, the bytes of ``scratch`` memory, and how
    many scalar operations (``arithmetic``) it takes. A library may have ``more`` parameters. ``names`` are singular and
    plural of a call's name, and ``step`` makes the step of a call. If a node does not say the bytes of scratch memory
    themselves, ``scratch`` finds them.
    """

    parameters: tuple[str, ...] = ("work", "results", "scratch", "arithmetic")

    def __init__(
        self,
        name: str,
        names: tuple[str, str],
        step: MakeSteps,
        more: tuple[str, ...] = (),
        scratch: Count = lambda node: node.keywords["scratch"],
    ) -> None:
        self.name = name
        self.parameters = (*self.parameters, *more)
        self._results: weakref.WeakKeyDictionary[Node, list[weakref.ref[Node]]] = weakref.WeakKeyDictionary()
        self.routine = Routine(
            scratch=scratch,
            arithmetic=lambda node: node.keywords["arithmetic"],
            names=names,
        )
        self.routine.on("cuda")(step)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        return list(params["results"])

    def of(self, inputs: Sequence[Node], results: Results, **params: Any) -> list[Node]:
        """New nodes for the results of a work."""
        params = {"results": tuple(results), **params}
        values = tuple([params[name] for name in self.parameters])
        return self.results_of(Node(self, tuple(inputs), values, *results[0], None))

    def results_of(self, node: Node) -> list[Node]:
        """The nodes for the results of a node of this operation. They exist already: a graph has one for each
        result."""
        known = [reference() for reference in self._results.get(node, ())] or [None] * len(node.keywords["results"])
        found = [result_of(node, number) if one is None else one for number, one in enumerate(known)]
        self._results[node] = [weakref.ref(one) for one in found]
        return found
