"""Fourier transforms by NVIDIA's cuFFT: its plans, and runs of them as steps of a plan of Weft."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import CudaError, CudaMemoryError
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.shared_libraries import CUFFT, Signatures
from weft.runtime.cuda.steps import OwnMemory
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer
from weft.runtime.steps import Place

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_Pointer, _Int, _Long = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong

SIGNATURES: Signatures = {
    "cufftCreate": (_Pointer,),
    "cufftDestroy": (_Int,),
    "cufftSetAutoAllocation": (_Int, _Int),
    "cufftMakePlanMany64": (
        *(_Int, _Int, _Pointer),
        *(_Pointer, _Long, _Long),
        *(_Pointer, _Long, _Long),
        *(_Int, _Long, _Pointer),
    ),
    "cufftSetStream": (_Int, _Pointer),
    "cufftSetWorkArea": (_Int, _Pointer),
    "cufftExecC2C": (_Int, _Pointer, _Pointer, _Int),
    "cufftExecR2C": (_Int, _Pointer, _Pointer),
    "cufftExecC2R": (_Int, _Pointer, _Pointer),
}

_FORWARD, _INVERSE = -1, 1

_ALLOCATION_FAILED = 2

_CODES = {
    1: "CUFFT_INVALID_PLAN",
    _ALLOCATION_FAILED: "CUFFT_ALLOC_FAILED",
    3: "CUFFT_INVALID_TYPE",
    4: "CUFFT_INVALID_VALUE",
    5: "CUFFT_INTERNAL_ERROR",
    6: "CUFFT_EXEC_FAILED",
    7: "CUFFT_SETUP_FAILED",
    8: "CUFFT_INVALID_SIZE",
    11: "CUFFT_INVALID_DEVICE",
    13: "CUFFT_NO_WORKSPACE",
    14: "CUFFT_NOT_IMPLEMENTED",
    16: "CUFFT_NOT_SUPPORTED",
    17: "CUFFT_MISSING_DEPENDENCY",
}

_ALIGNMENT = 256
"""The alignment of scratch memory."""

_COMPLEX = 8
"""The bytes of a complex number. Every address that cuFFT gets is a multiple of it."""

_CACHED = 256
"""How many plans are cached for a card."""

_new_plans = fork_safe_lock()


class TransformKind(IntEnum):
    """Values of cufftType."""

    COMPLEX = 0x29
    FROM_REAL = 0x2A
    TO_REAL = 0x2C


class Transforms(NamedTuple):
    """Transforms along the middle one of three axes of arrays in row-major order. ``length`` counts the numbers of a
    transform: the complex ones, or the real ones if one side is real."""

    kind: TransformKind
    outer: int
    length: int
    inner: int

    @property
    def extents(self) -> tuple[int, int]:
        """How many numbers each transform reads, and how many it writes."""
        half = self.length // 2 + 1
        return (
            half if self.kind is TransformKind.TO_REAL else self.length,
            half if self.kind is TransformKind.FROM_REAL else self.length,
        )

    @property
    def widths(self) -> tuple[int, int]:
        """The bytes of one number of the operand and of the result."""
        return (
            _COMPLEX // 2 if self.kind is TransformKind.FROM_REAL else _COMPLEX,
            _COMPLEX // 2 if self.kind is TransformKind.TO_REAL else _COMPLEX,
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of the whole operand and of the whole result."""
        taken, given = [n * width for n, width in zip(self.extents, self.widths, strict=True)]
        return self.outer * self.inner * taken, self.outer * self.inner * given

    @property
    def at_once(self) -> int:
        """How many transforms one call does: those that are at equal distances, because cuFFT takes one stride between
        them."""
        return self.outer if self.inner == 1 else self.inner

    @property
    def calls(self) -> int:
        return 1 if self.inner == 1 else self.outer

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """For each call, at which byte of the operand and of the result it begins."""
        taken, given = [size // self.outer for size in self.sizes]
        return [(number * taken, number * given) for number in range(self.calls)]

    @property
    def is_aligned(self) -> bool:
        """Whether the addresses of all calls are aligned as cuFFT needs them."""
        return all(here % _COMPLEX == there % _COMPLEX == 0 for here, there in self.offsets)


class CufftPlan:
    """A plan of cuFFT and its bytes of scratch memory. ``ctypes`` passes it as its native handle."""

    def __init__(self, native: int, scratch: int, ended: deque[int]) -> None:
        self._as_parameter_ = native
        self.scratch = scratch
        weakref.finalize(self, ended.append, native).atexit = False


class CufftPlans:
    """The latest plans of one card. Steps that were queued hold their own plans."""

    def __init__(self, functions: Mapping[str, Callable[..., int]], engine: CudaEngine) -> None:
        self.functions = functions
        self.memory: Any = OwnMemory(engine)
        """Allocates copies, which memory statistics leave out."""
        self._finish = engine.finish
        self._found: dict[Transforms, CufftPlan] = {}
        self._ended: deque[int] = deque()
        self._lock = fork_safe_lock()

    def of(self, transforms: Transforms) -> CufftPlan:
        with self._lock:
            found = self._found.pop(transforms, None)
            if found is None:
                found = self._new(transforms)
            self._found[transforms] = found
            if len(self._found) > _CACHED:
                del self._found[next(iter(self._found))]
            return found

    def _new(self, transforms: Transforms) -> CufftPlan:
        self._destroy_ended()
        native, size = _Int(), ctypes.c_size_t()
        self._call("cufftCreate", ctypes.byref(native))
        plan = CufftPlan(native.value, 0, self._ended)
        self._call("cufftSetAutoAllocation", plan, 0)
        kind, _, length, inner = transforms
        layouts: list[Any] = []
        for extent in transforms.extents:
            # cuFFT uses strides only if it is given extents of memory; that of the first axis it ignores.
            layouts += [(_Long * 1)(extent), inner, extent if inner == 1 else 1]
        count, lengths = transforms.at_once, (_Long * 1)(length)
        self._call("cufftMakePlanMany64", plan, 1, lengths, *layouts, kind, count, ctypes.byref(size))
        plan.scratch = size.value
        return plan

    def _destroy_ended(self) -> None:
        if self._ended:
            self._finish()
        while self._ended:
            self.functions["cufftDestroy"](self._ended.popleft())

    def _call(self, name: str, *arguments: Any) -> None:
        _check(self.functions[name](*arguments), name)


@dataclass(frozen=True)
class TransformCall(LibraryCall):
    """A step that cuFFT computes: ``places`` are those of operand, result and scratch memory (`scratch_of`). An operand
    at an address that cuFFT cannot read is copied first."""

    title: str
    places: tuple[Place, ...]
    transforms: Transforms
    inverse: bool

    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        plans: CufftPlans = queue.shared[CUFFT]
        plan = plans.of(self.transforms)
        source, result, scratch = addresses
        scratch += -scratch % _ALIGNMENT
        actions = [
            (plans.functions["cufftSetStream"], plan, queue.handle),
            (plans.functions["cufftSetWorkArea"], plan, scratch),
        ]
        taken, _ = self.transforms.sizes
        copy = None
        if source % _COMPLEX:
            copy = Buffer(plans.memory, taken)
            actions.append(queue.copying(copy.address, source, taken))
            source = copy.address
        for here, there in self.transforms.offsets:
            actions.append(self._executed(plans, plan, _AddressInCopy(source + here, copy), result + there))
        if copy is not None:
            actions.append(queue.waiting())  # a graph would not hold the copy
        return actions

    def _executed(self, plans: CufftPlans, plan: CufftPlan, source: _AddressInCopy, result: int) -> Action:
        kind = self.transforms.kind
        if kind is TransformKind.COMPLEX:
            direction = _INVERSE if self.inverse else _FORWARD
            return plans.functions["cufftExecC2C"], plan, source, result, direction
        name = "cufftExecR2C" if kind is TransformKind.FROM_REAL else "cufftExecC2R"
        return plans.functions[name], plan, source, result

    def check(self, code: int) -> None:
        _check(code, "cufftExec", f" for {self.title}")


class _AddressInCopy:
    """An address for ``ctypes``, and the copy at that address, if any."""

    def __init__(self, address: int, copy: Buffer | None) -> None:
        self._as_parameter_ = ctypes.c_void_p(address)
        self._copy = copy


def missing() -> str:
    """Why cuFFT cannot be used; "" if it can."""
    return CUFFT.missing()


def scratch_of(engine: CudaEngine, transforms: Transforms) -> int:
    """The bytes of scratch memory of a `TransformCall`."""
    return _plans_of(engine).of(transforms).scratch + _ALIGNMENT


def _plans_of(engine: CudaEngine) -> CufftPlans:
    """The plans of a card. Its context becomes that of this thread."""
    shared = engine.for_libraries()
    with _new_plans:
        found: CufftPlans | None = shared.get(CUFFT)
        if found is None:
            found = shared[CUFFT] = CufftPlans(_functions(), engine)
        return found


def _check(code: int, called: str, more: str = "") -> None:
    if code:
        kind = CudaMemoryError if code == _ALLOCATION_FAILED else CudaError
        raise kind(_CODES.get(code, f"cufftResult {code}"), "cuFFT failed", called, more)


@cache
def _functions() -> Mapping[str, Callable[..., int]]:
    return CUFFT.functions(SIGNATURES)
