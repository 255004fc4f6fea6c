"""Plans of cuDNN: which of its engines computes a graph of operations, and steps of Weft's plans that run them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
"""Addresses of tensors are multiples of this many bytes."""
_CACHED = 1024
"""How many plans are cached for a card."""
_THREADS = 4
"""How many plans are made at the same time. cuDNN takes up to half a second for one, most of it on one thread."""


class Note(IntEnum):
    """What cuDNN says about the numerical behaviour of an engine."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5


ALWAYS_AVOIDED = frozenset({Note.NONDETERMINISTIC, Note.REDUCED_PRECISION_REDUCTION, Note.FFT, Note.WINOGRAD})
"""Engines with these notes are avoided: results must be equal in all runs, and sums as accurate as usual for their
length and dtype."""


class CudnnWork(NamedTuple):
    """A request to cuDNN: operations on tensors. The tensors in ``memory`` have addresses; ``numbers`` are values known
    on the host (identifier of the tensor, type, value). Engines that have one of the ``avoided`` notes are not used."""

    title: str
    operations: tuple[DescriptorContent, ...]
    memory: tuple[int, ...]
    numbers: tuple[tuple[int, Of, float], ...] = ()
    avoided: frozenset[Note] = ALWAYS_AVOIDED


class CudnnPlan(NamedTuple):
    """What cuDNN executes for a request, and its bytes of scratch memory."""

    native: Descriptor
    scratch: int


class CudnnPlans:
    """The latest plans of one card. Steps that were queued hold their own plans. ``enter`` makes the card the current
    one of a thread, and ``memory`` allocates copies, which memory statistics leave out."""

    def __init__(self, library: Library, memory: Any, enter: Callable[[], object]) -> None:
        self.library = library
        self.memory = memory
        self._enter = enter
        self._handles: list[int] = []
        """Those that no thread uses: a handle may be used by one thread at a time."""
        self._threads = ThreadPoolExecutor(_THREADS, "weft cuDNN")
        self._found: dict[CudnnWork, Future[CudnnPlan | None]] = {}
        self._lock = fork_safe_lock()

    def of(self, work: CudnnWork) -> CudnnPlan | None:
        """The plan for a request; None if no engine can compute it as required."""
        return self.begun(work).result()

    def begun(self, work: CudnnWork) -> Future[CudnnPlan | None]:
        """As `of`, but a thread makes the plan. For equal requests it is the same object."""
        with self._lock:
            found = self._found.get(work)
            if found is None or (found.done() and found.exception() is not None):
                if len(self._found) >= _CACHED:
                    del self._found[next(iter(self._found))]
                found = self._found[work] = self._started(work)
            return found

    def unfinished(self) -> list[Future[CudnnPlan | None]]:
        """The plans that threads are making."""
        with self._lock:
            return [found for found in self._found.values() if not found.done()]

    def _started(self, work: CudnnWork) -> Future[CudnnPlan | None]:
        try:
            return self._threads.submit(self._new, work)
        except RuntimeError:  # no thread can be started: the interpreter ends, or there are too many
            found: Future[CudnnPlan | None] = Future()
            found.set_result(self._new(work))
            return found

    def _new(self, work: CudnnWork) -> CudnnPlan | None:
        self._enter()
        try:
            handle = self._handles.pop()
        except IndexError:
            handle = self.library.handle()
        try:
            return self._with_handle(handle, work)
        finally:
            self._handles.append(handle)

    def _with_handle(self, handle: int, work: CudnnWork) -> CudnnPlan | None:
        known: dict[DescriptorContent, Descriptor] = {}
        try:
            operations = [self.library.made(one, known) for one in work.operations]
            graph = Descriptor(self.library, DescriptorKind.GRAPH)
            graph.set(Attribute.GRAPH_OPERATIONS, Of.DESCRIPTOR, *operations).set(
                Attribute.GRAPH_HANDLE, Of.HANDLE, handle
            ).finalized()
        except CudnnError:
            return None
        for mode in (_HEURISTICS_A, _FALLBACK):
            for configuration in self._configurations(graph, mode):
                plan = self._planned(handle, graph, configuration, work.avoided)
                if plan is not None:
                    return plan
        return None

    def _configurations(self, graph: Descriptor, mode: int) -> list[Descriptor]:
        """Configurations of engines for a graph, the best ones first."""
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

    def _planned(
        self, handle: int, graph: Descriptor, configuration: Descriptor, avoided: frozenset[Note]
    ) -> CudnnPlan | None:
        try:
            (engine,) = configuration.get_descriptors(Attribute.CONFIGURATION_ENGINE, DescriptorKind.ENGINE, 1)
            if avoided.intersection(engine.get(Attribute.ENGINE_NOTES, Of.NUMERICAL_NOTE, _MOST_NOTES)):
                return None
            native = Descriptor(self.library, DescriptorKind.PLAN)
            native.set(Attribute.PLAN_HANDLE, Of.HANDLE, handle).set(
                Attribute.PLAN_CONFIGURATION, Of.DESCRIPTOR, configuration
            ).finalized()
            native.used.append(graph)
            return CudnnPlan(native, native.get(Attribute.PLAN_SCRATCH, Of.INT64)[0])
        except CudnnError:
            return None


class _Pack(Descriptor):
    """The addresses of one run, and the copies at some of these addresses."""

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
    """A step that cuDNN computes. ``places`` are those of the tensors in memory, first the operands, which have
    ``sizes`` in bytes, and of scratch memory. An operand at an address that cuDNN cannot read is copied
    first.

    It may be several calls, each for the parts of the tensors that begin ``offsets`` bytes after their beginnings.
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
            handle = plans.library.handle()
            plans.library.call("cudnnSetStream", handle, queue.handle)
            handle = queue.handles.setdefault(CUDNN, handle)
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
            actions.append(queue.waiting())  # a graph would not hold the copies
        return actions

    def _copied(self, addresses: Sequence[int], plans: CudnnPlans) -> tuple[list[tuple[Buffer, int]], list[int]]:
        """Copies of operands whose addresses are not multiples of `ALIGNMENT`, each with the operand's address; and the
        addresses to give to cuDNN."""
        given = list(addresses)
        copies = []
        for position, size in enumerate(self.sizes):
            if given[position] % ALIGNMENT:
                copies.append((Buffer(plans.memory, size), given[position]))
                given[position] = copies[-1][0].address
        return copies, given

    def check(self, code: int) -> None:
        _library().check(code, f"cudnnBackendExecute for {self.title}")


def call_without_places(work: CudnnWork) -> CudnnCall:
    """A call for tensors that are nowhere, for rehearsals."""
    return CudnnCall(work.title, ((0, 0),) * (len(work.memory) + 1), work, ())


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
                found = shared[CUDNN] = CudnnPlans(_library(), OwnMemory(engine), engine.entered)
    return found


def is_waiting(engine: CudaEngine | None) -> bool:
    """Whether plans for a card are being made."""
    found: CudnnPlans | None = None if engine is None else engine.order.shared.get(CUDNN)
    return found is not None and bool(found.unfinished())


@cache
def _library() -> Library:
    return Library(CUDNN.functions(SIGNATURES))
