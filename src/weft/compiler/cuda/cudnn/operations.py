"""Nodes for works of cuDNN in planned graphs, and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from weft.compiler.cuda.library_operations import LibraryOperation, Results
from weft.graph.node import Node
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.cuda.cudnn.plans import CudnnCall, CudnnWork, plans_of


class CudnnOperation(LibraryOperation):
    """A work of cuDNN. If it is done in several calls, ``offsets`` says for each one how many bytes after the first
    one's its inputs and results begin; it is empty if there is one call."""

    def __init__(self, name: str, names: tuple[str, str]) -> None:
        super().__init__(name, names, _step, more=("offsets",))

    def results(
        self,
        machine: Any,
        work: CudnnWork,
        inputs: Sequence[Node],
        results: Results,
        arithmetic: int,
        offsets: Sequence[Sequence[int]] = (),
    ) -> list[Node] | None:
        """Nodes for the results of a work on a machine; None if cuDNN cannot do it there."""
        plans = plans_of(machine)
        plan = None if plans is None else plans.of(work)
        if plan is None:
            return None
        parts = tuple(map(tuple, offsets))
        return self.of(inputs, results, work=work, scratch=plan.scratch, arithmetic=arithmetic, offsets=parts)


def _step(call: RoutineCall) -> RoutineStep:
    places = [(one.slot, one.offset) for one in (*call.operands, *call.results)]
    if call.params["scratch"]:
        places.append(call.scratch)
    work: CudnnWork = call.params["work"]
    sizes = tuple([prod(one.shape) * one.dtype.size for one in call.operands])
    code = CudnnCall(work.title, tuple(places), work, sizes, call.params["offsets"])
    return RoutineStep(code, work=call.params["arithmetic"], way="cuDNN")
