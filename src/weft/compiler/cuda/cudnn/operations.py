"""Nodes that stand for a work of cuDNN in graphs that are planned, and their steps."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.routine import Routine, RoutineCall, RoutineStep
from weft.primitives.structure import Several, result_of
from weft.runtime.cuda.cudnn.plans import CudnnCall, Work, plans_of

Results = Sequence[tuple[Shape, Dtype]]


class CudnnOperation(Several):
    """Computed by cuDNN, of inputs and into results that lie in row-major order.

    A node says what the ``work`` is, shapes and dtypes of the ``results``, the bytes of ``scratch`` memory, how many
    scalar operations (``arithmetic``) it takes; and for each call of cuDNN that does a part, how many bytes behind the
    first ones the inputs and results of that begin (``offsets``; none if there is one call).
    """

    parameters = ("work", "results", "scratch", "arithmetic", "offsets")

    def __init__(self, name: str, names: tuple[str, str]) -> None:
        self.name = name
        self._results: weakref.WeakKeyDictionary[Node, list[weakref.ref[Node]]] = weakref.WeakKeyDictionary()
        self.routine = Routine(
            scratch=lambda node: node.keywords["scratch"],
            arithmetic=lambda node: node.keywords["arithmetic"],
            names=names,
        )
        self.routine.on("cuda")(_step)

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        return list(params["results"])

    def results(
        self,
        machine: Any,
        work: Work,
        inputs: Sequence[Node],
        results: Results,
        arithmetic: int,
        offsets: Sequence[Sequence[int]] = (),
    ) -> list[Node] | None:
        """Nodes for the results of a work on a machine; None if cuDNN does not do it there."""
        plans = plans_of(machine)
        plan = None if plans is None else plans.of(work)
        if plan is None:
            return None
        params = (work, tuple(results), plan.scratch, arithmetic, tuple(map(tuple, offsets)))
        return self.results_of(Node(self, tuple(inputs), params, *results[0], None))

    def results_of(self, node: Node) -> list[Node]:
        """The nodes for the results of a node of this operation: those that there are already, for a graph has one for
        each."""
        known = [reference() for reference in self._results.get(node, ())] or [None] * len(node.keywords["results"])
        found = [result_of(node, number) if one is None else one for number, one in enumerate(known)]
        self._results[node] = [weakref.ref(one) for one in found]
        return found


def _step(call: RoutineCall) -> RoutineStep:
    places = [(one.slot, one.offset) for one in (*call.operands, *call.results)]
    if call.params["scratch"]:
        places.append(call.scratch)
    work: Work = call.params["work"]
    sizes = tuple([prod(one.shape) * one.dtype.size for one in call.operands])
    code = CudnnCall(work.title, tuple(places), work, sizes, call.params["offsets"])
    return RoutineStep(code, work=call.params["arithmetic"], way="cuDNN")
