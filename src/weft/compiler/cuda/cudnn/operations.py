"""Nodes for works of cuDNN in planned graphs, and their steps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import wait
from math import prod
from typing import Any

from weft.compiler.cuda.library_operations import LibraryOperation, Results
from weft.compiler.target import PlanAgainError
from weft.graph.node import Node
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.cuda.cudnn.plans import CudnnCall, CudnnPlans, CudnnWork, plans_of


class ExpectedPlan:
    """A plan that cuDNN makes while the program is planned. Its scratch memory is known when everything is placed in
    memory."""

    def __init__(self, plans: CudnnPlans, work: CudnnWork) -> None:
        self._plans = plans
        self._found = plans.begun(work)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExpectedPlan) and self._found is other._found

    def __hash__(self) -> int:
        return hash(self._found)

    @property
    def is_refused(self) -> bool:
        """Whether it is known that there is no such plan."""
        return self._found.done() and self._found.result() is None

    def scratch(self) -> int:
        """The bytes of scratch memory.

        Raises:
            PlanAgainError: cuDNN cannot do the work.
        """
        found = self._found.result()
        if found is None:
            wait(self._plans.unfinished())  # to know all that cuDNN refuses when the program is planned again
            raise PlanAgainError
        return found.scratch


class CudnnOperation(LibraryOperation):
    """A work of cuDNN. If it is done in several calls, ``offsets`` says for each one how many bytes after the first
    one's its inputs and results begin; it is empty if there is one call."""

    def __init__(self, name: str, names: tuple[str, str]) -> None:
        super().__init__(name, names, _step, ("offsets",), lambda node: node.keywords["scratch"].scratch())

    def results(
        self,
        machine: Any,
        work: CudnnWork,
        inputs: Sequence[Node],
        results: Results,
        arithmetic: int,
        offsets: Sequence[Sequence[int]] = (),
    ) -> list[Node] | None:
        """Nodes for the results of a work on a machine; None if it is known that cuDNN cannot do it there."""
        plans = plans_of(machine)
        if plans is None:
            return None
        plan = ExpectedPlan(plans, work)
        if plan.is_refused:
            return None
        parts = tuple(map(tuple, offsets))
        return self.of(inputs, results, work=work, scratch=plan, arithmetic=arithmetic, offsets=parts)


def _step(call: RoutineCall) -> RoutineStep:
    places = [*[(one.slot, one.offset) for one in (*call.operands, *call.results)], call.scratch]
    work: CudnnWork = call.params["work"]
    sizes = tuple([prod(one.shape) * one.dtype.size for one in call.operands])
    code = CudnnCall(work.title, tuple(places), work, sizes, call.params["offsets"])
    return RoutineStep(code, work=call.params["arithmetic"], way="cuDNN")
