"""Plans of cuDNN: which of its engines does a graph of operations, and runs of them as steps of a plan of Weft."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.cudnn.descriptors import (
    ELEMENTS,
    SIGNATURES,
    Attribute,
    CudnnError,
    Descriptor,
    DescriptorContent,
    DescriptorKind,
    Library,
    Of,
)
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.shared_libraries import CUDNN
from weft.runtime.cuda.steps import OwnMemory
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer
from weft.runtime.steps import Place

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_new_plans = fork_safe_lock()

_HEURISTICS_A, _FALLBACK = 3, 2
_MOST_NOTES = 32
_MOST_ENGINES = 64
ALIGNMENT = 16
"""Tensors begin at a multiple of so many bytes."""
_CACHED = 1024
"""Plans of a card."""


class Note(IntEnum):
    """What cuDNN says of the numbers that an engine gives."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5


ALWAYS_AVOIDED = frozenset({Note.NONDETERMINISTIC, Note.REDUCED_PRECISION_REDUCTION, Note.FFT, Note.WINOGRAD})
"""Results are the same from run to run, and sums are as accurate as their number of terms and dtype let expect."""


class CudnnWork(NamedTuple):
    """What cuDNN is asked for: operations on tensors, of which those in ``memory`` have addresses, and ``numbers`` are
    values that the host knows (identifier of the tensor, type, value). Engines that have a note of ``avoided`` are not
    used."""

    title: str
    operations: tuple[DescriptorContent, ...]
    memory: tuple[int, ...]
    numbers: tuple[tuple[int, Of, float], ...] = ()
    avoided: frozenset[Note] = ALWAYS_AVOIDED


class CudnnPlan(NamedTuple):
    """What cuDNN executes for a work, and how many bytes of scratch memory that takes."""

    native: Descriptor
    scratch: int


class CudnnPlans:
    """The plans of one card: those that were made last. Steps that were queued keep theirs."""

    def __init__(self, library: Library, memory: Any) -> None:
        self.library = library
        self.memory = memory
        """For copies that users do not count."""
        self._handle = library.handle()
        self._found: dict[CudnnWork, CudnnPlan | None] = {}
        self._lock = fork_safe_lock()

    def of(self, work: CudnnWork) -> CudnnPlan | None:
        """The plan for a work; None if no engine does it as it has to be."""
        with self._lock:
            if work not in self._found:
                if len(self._found) == _CACHED:
                    del self._found[next(iter(self._found))]
                self._found[work] = self._new(work)
            return self._found[work]

    def _new(self, work: CudnnWork) -> CudnnPlan | None:
        known: dict[DescriptorContent, Descriptor] = {}
        try:
            operations = [self.library.made(one, known) for one in work.operations]
            graph = Descriptor(self.library, DescriptorKind.GRAPH)
            graph.set(Attribute.GRAPH_OPERATIONS, Of.DESCRIPTOR, *operations).set(
                Attribute.GRAPH_HANDLE, Of.HANDLE, self._handle
            ).finalized()
        except CudnnError:
            return None
        for mode in (_HEURISTICS_A, _FALLBACK):
            for configuration in self._configurations(graph, mode):
                plan = self._planned(graph, configuration, work.avoided)
                if plan is not None:
                    return plan
        return None

    def _configurations(self, graph: Descriptor, mode: int) -> list[Descriptor]:
        """Engines for a graph, the best ones first."""
        try:
            heuristics = Descriptor(self.library, DescriptorKind.HEURISTICS)
            heuristics.set(Attribute.HEURISTICS_GRAPH, Of.DESCRIPTOR, graph).set(
                Attribute.HEURISTICS_MODE, Of.HEURISTICS_MODE, mode
            ).finalized()
            return heuristics.get_descriptors(
                Attribute.HEURISTICS_CONFIGURATIONS, DescriptorKind.ENGINE_CONFIGURATION, _MOST_ENGINES
            )
        except CudnnError:
            return []

    def _planned(self, graph: Descriptor, configuration: Descriptor, avoided: frozenset[Note]) -> CudnnPlan | None:
        try:
            (engine,) = configuration.get_descriptors(Attribute.CONFIGURATION_ENGINE, DescriptorKind.ENGINE, 1)
            if avoided.intersection(engine.get(Attribute.ENGINE_NOTES, Of.NUMERICAL_NOTE, _MOST_NOTES)):
                return None
            native = Descriptor(self.library, DescriptorKind.PLAN)
            native.set(Attribute.PLAN_HANDLE, Of.HANDLE, self._handle).set(
                Attribute.PLAN_CONFIGURATION, Of.DESCRIPTOR, configuration
            ).finalized()
            native.used.append(graph)
            return CudnnPlan(native, native.get(Attribute.PLAN_SCRATCH, Of.INT64)[0])
        except CudnnError:
            return None


class _Pack(Descriptor):
    """The addresses of one run, and the copies that are at some of them."""

    def __init__(
        self, library: Library, work: CudnnWork, addresses: Sequence[int], scratch: int, copies: Sequence[Buffer]
    ) -> None:
        super().__init__(library, DescriptorKind.VARIANT_PACK)
        self._copies = copies
        self._numbers = [ELEMENTS[of](value) for _, of, value in work.numbers]
        pointers = [*addresses, *map(ctypes.addressof, self._numbers)]
        self.set(Attribute.PACK_IDENTIFIERS, Of.INT64, *work.memory, *[identifier for identifier, *_ in work.numbers])
        self.set(Attribute.PACK_ADDRESSES, Of.POINTER, *pointers).set(
            Attribute.PACK_SCRATCH, Of.POINTER, scratch
        ).finalized()


@dataclass(frozen=True)
class CudnnCall(LibraryCall):
    """A step that cuDNN computes. ``places`` are those of the tensors in memory, the operands of ``sizes`` bytes first,
    and of the scratch memory if any. An operand that begins where cuDNN cannot read it is copied.

    It may take several calls, each for a part of the tensors, which begins ``offsets`` bytes behind the whole.
    """

    title: str
    places: tuple[Place, ...]
    work: CudnnWork
    sizes: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...] = ()

    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        plans: CudnnPlans = queue.shared[CUDNN]
        plan = plans.of(self.work)
        if plan is None:
            raise AssertionError(f"cuDNN does not do {self.title}")
        handle = queue.handles.get(CUDNN)
        if handle is None:
            handle = queue.handles[CUDNN] = plans.library.handle()
            plans.library.call("cudnnSetStream", handle, queue.handle)
        count = len(self.work.memory)
        scratch = addresses[count] if plan.scratch else 0
        execute = plans.library.functions["cudnnBackendExecute"]
        copies, given = self._copied(addresses[:count], plans)
        actions = [queue.copying(copy.address, source, copy.size) for copy, source in copies]
        for offsets in self.offsets or ((0,) * count,):
            there = [address + offset for address, offset in zip(given, offsets, strict=True)]
            pack = _Pack(plans.library, self.work, there, scratch, [copy for copy, _ in copies])
            actions.append((execute, handle, plan.native, pack))
        if copies:
            actions.append(queue.waiting())  # a graph would not keep the copies
        return actions

    def _copied(self, addresses: Sequence[int], plans: CudnnPlans) -> tuple[list[tuple[Buffer, int]], list[int]]:
        """Copies of operands that do not begin at a multiple of `ALIGNMENT` bytes, each with the address of that; and
        the addresses that are given to cuDNN."""
        given = list(addresses)
        copies = []
        for position, size in enumerate(self.sizes):
            if given[position] % ALIGNMENT:
                copies.append((Buffer(plans.memory, size), given[position]))
                given[position] = copies[-1][0].address
        return copies, given

    def check(self, code: int) -> None:
        _library().check(code, f"cudnnBackendExecute for {self.title}")


def missing() -> str:
    """Why cuDNN cannot be used; "" if it can."""
    return CUDNN.missing()


def plans_of(engine: CudaEngine | None) -> CudnnPlans | None:
    """The plans of a card; None if there is no cuDNN, or no card."""
    if engine is None or missing():
        return None
    shared = engine.for_libraries()
    found: CudnnPlans | None = shared.get(CUDNN)
    if found is None:
        with _new_plans:
            found = shared.get(CUDNN)
            if found is None:
                found = shared[CUDNN] = CudnnPlans(_library(), OwnMemory(engine))
    return found


@cache
def _library() -> Library:
    return Library(CUDNN.functions(SIGNATURES))
