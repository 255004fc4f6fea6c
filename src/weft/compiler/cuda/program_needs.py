"""What programs need from a card: the card itself, plans with their kernels, and calls of cuBLASLt and cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.compiler.codegen import loading
from weft.compiler.cuda.code_descriptions import CodeDescriptions, problem_as_text, problem_in, work_as_text, work_in
from weft.compiler.cuda.head_start import HeadStart, KindOfNeed, Need
from weft.compiler.planning import plan_data
from weft.compiler.planning.plan import Unsealed
from weft.compiler.target import Target
from weft.runtime.cuda import cublas
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.cudnn import plans
from weft.runtime.cuda.cudnn.plans import CudnnCall
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.rehearsal import Rehearsal

_CARD, _PLAN, _PRODUCT, _CUDNN = "card", "plan", "product", "cuDNN"


class ProgramNeeds:
    """Prepares, on threads, what the program needed the last time it ran."""

    def __init__(self, target: Target, descriptions: CodeDescriptions) -> None:
        self._target, self._descriptions = target, descriptions
        self._head_start = HeadStart(
            target.key,
            {
                _CARD: KindOfNeed(self._begin_card, lambda need: None),
                _PLAN: KindOfNeed(lambda: None, self._make_plan),
                _PRODUCT: KindOfNeed(cublas.missing, self._make_product),
                _CUDNN: KindOfNeed(plans.missing, self._make_work),
            },
        )
        self._plans: dict[bytes, Unsealed] = {}
        """The parts of prepared plans, by the plans' keys on disk."""
        self._rehearsals: dict[str, Rehearsal] = {}

    def card_will_be_used(self) -> None:
        """Prepare what can be prepared before the card is used."""
        self._head_start.begin()

    def card_is_used(self) -> None:
        """Prepare the rest, after the first use of the card."""
        self._head_start.note([(_CARD, "")])
        self._head_start.make()

    def note_plan(self, key: bytes, parts: Unsealed) -> None:
        """Record that a plan is used which has this key on disk."""
        self._head_start.note([(_PLAN, key.hex()), *_needs_of(parts)])

    def ready_plan(self, key: bytes) -> Unsealed | None:
        """The parts of a plan, if it was prepared. They are returned only once, because the caller may change them."""
        return self._plans.pop(key, None)

    def _begin_card(self) -> None:
        if self._target.machine is not None:
            self._target.machine.entered()

    def _make_plan(self, need: str) -> None:
        """Read a plan from disk, and load its kernels."""
        key, disk, machine = bytes.fromhex(need), loading.disk_of_plans(), self._target.machine
        content = None if disk is None else disk.get(key)
        if content is None or machine is None:
            return
        machine.entered()
        parts = plan_data.from_bytes(content, self._target)
        if parts is not None:
            self._plans[key] = parts
            for step in parts.steps:
                if isinstance(step.code, CudaCode):
                    machine.load(step.code)

    def _make_product(self, need: str) -> None:
        if not cublas.missing():
            self._rehearse(_PRODUCT, cublas.product_without_places(problem_in(need)))

    def _make_work(self, need: str) -> None:
        work = work_in(need)
        if self._descriptions.scratch_for(work) is not None:
            self._rehearse(_CUDNN, plans.call_without_places(work))

    def _rehearse(self, kind: str, call: LibraryCall) -> None:
        machine: Any = self._target.machine
        if machine is not None:
            machine.entered()
            if kind not in self._rehearsals:
                self._rehearsals[kind] = machine.rehearsal()
            self._rehearsals[kind].rehearse(call)


def _needs_of(parts: Unsealed) -> Iterator[Need]:
    """Yield the needs of a plan's steps that concern libraries, each need once."""
    products, works = set(), set()
    for step in parts.steps:
        code = step.code
        if isinstance(code, cublas.ProductCall) and code.problem not in products:
            products.add(code.problem)
            yield _PRODUCT, problem_as_text(code.problem)
        elif isinstance(code, CudnnCall) and code.work not in works:
            works.add(code.work)
            yield _CUDNN, work_as_text(code.work)
