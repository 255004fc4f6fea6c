"""Matrix products by NVIDIA's cuBLASLt."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import CudaError, CudaMemoryError
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.shared_libraries import CUBLAS, Signatures
from weft.runtime.steps import Place

_Pointer = ctypes.c_void_p
_Int, _Size = ctypes.c_int, ctypes.c_size_t

_SIGNATURES: Signatures = {
    "cublasLtCreate": (_Pointer,),
    "cublasLtMatrixLayoutCreate": (_Pointer, _Int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_Pointer,),
    "cublasLtMatrixLayoutSetAttribute": (_Pointer, _Int, _Pointer, _Size),
    "cublasLtMatmulDescCreate": (_Pointer, _Int, _Int),
    "cublasLtMatmulDescDestroy": (_Pointer,),
    "cublasLtMatmulDescSetAttribute": (_Pointer, _Int, _Pointer, _Size),
    "cublasLtMatmulPreferenceCreate": (_Pointer,),
    "cublasLtMatmulPreferenceDestroy": (_Pointer,),
    "cublasLtMatmulPreferenceSetAttribute": (_Pointer, _Int, _Pointer, _Size),
    "cublasLtMatmulAlgoGetHeuristic": (*[_Pointer] * 7, _Int, _Pointer, _Pointer),
    "cublasLtMatmul": (*[_Pointer] * 14, _Size, _Pointer),
}

# Values of cudaDataType_t and cublasComputeType_t
FLOAT32, FLOAT64, FLOAT16, COMPLEX64, BFLOAT16 = 0, 1, 2, 4, 14
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77

# Attributes of layouts, of matrix products and of preferences, by number
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_MOST_SCRATCH, _REDUCTIONS, _ALIGNMENT_A, _ALIGNMENT_B, _ALIGNMENT_C, _ALIGNMENT_D = 1, 3, 5, 6, 7, 8
_IN_COMPUTE_TYPE = 2
"""Partial sums are stored in the type in which sums are computed, and added in a fixed order: the bits are the same in
each run."""

_MOST_ALIGNMENT = 256
"""The largest alignment of addresses that matters to the library, which requires it of scratch memory."""

SPARE = _MOST_ALIGNMENT
"""Extra bytes of scratch memory: the part that is used begins at the first multiple of the alignment."""

_ALLOCATION_FAILED, _NOT_SUPPORTED = 3, 15
_CACHED = 1024
"""At most this many ways to compute products are cached for a card."""


class MatrixLayout(NamedTuple):
    """A matrix, or a batch of them, as the library sees it: element type, rows, columns, the distance between columns
    and between matrices of a batch in elements."""

    kind: int
    rows: int
    columns: int
    leading: int
    stride: int


class MatmulProblem(NamedTuple):
    """A kind of product: both operands and whether each is transposed, the result, the size of the batch, the type in
    which sums are computed, the type of the factors alpha and beta, and the bytes of scratch memory."""

    left: MatrixLayout
    right: MatrixLayout
    result: MatrixLayout
    transposed: tuple[bool, bool]
    batch: int
    compute: int
    factors: int
    scratch: int


class _Products(NamedTuple):
    title: str
    places: tuple[Place, ...]
    problem: MatmulProblem
    offsets: tuple[tuple[int, int, int], ...]


class ProductCall(_Products, LibraryCall):
    """Products of one kind. ``places`` has both operands, the result and scratch memory, of which there are `SPARE`
    bytes more than the problem says; each product is at its own ``offsets`` in bytes from the first three."""

    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        library = _library()
        *bases, scratch = addresses
        scratch += -scratch % _MOST_ALIGNMENT
        handle = _handle_of(queue)
        one, zero = _FACTORS[self.problem.factors]
        actions = []
        for offsets in self.offsets:
            left, right, result = [base + offset for base, offset in zip(bases, offsets, strict=True)]
            alignments = _alignment(left), _alignment(right), _alignment(result)
            way = _way(self, alignments, handle, queue)
            operands = one, left, way.left, right, way.right, zero, result, way.result, result, way.result
            memory = scratch, way.scratch
            actions.append((library.multiply, handle, way.operation, *operands, way.algorithm, *memory, queue.handle))
        return actions

    def check(self, code: int) -> None:
        _check(code, "cublasLtMatmul", f" for {self.title}: {self.problem}")


class ProductWay(NamedTuple):
    """How a product is computed: its descriptors for the library, and the algorithm that the library chose."""

    operation: Any
    left: Any
    right: Any
    result: Any
    algorithm: Any
    scratch: int


class _HeuristicResult(ctypes.Structure):
    """The structure cublasLtMatmulHeuristicResult_t of cublasLt.h."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("scratch", _Size),
        ("state", _Int),
        ("waves", ctypes.c_float),
        ("reserved", _Int * 4),
    )


_FACTORS: dict[int, tuple[Any, Any]] = {
    FLOAT32: ((ctypes.c_float * 1)(1), (ctypes.c_float * 1)(0)),
    FLOAT64: ((ctypes.c_double * 1)(1), (ctypes.c_double * 1)(0)),
    COMPLEX64: ((ctypes.c_float * 2)(1, 0), (ctypes.c_float * 2)(0, 0)),
}
"""The numbers one and zero in each type of factors."""


def missing() -> str:
    """Why cuBLASLt cannot be used; "" if it can."""
    return CUBLAS.missing()


def _check(code: int, called: str, more: str = "") -> None:
    if code:
        name = CUBLAS.text("cublasLtGetStatusName", code)
        kind = CudaMemoryError if code == _ALLOCATION_FAILED else CudaError
        raise kind(name, CUBLAS.text("cublasLtGetStatusString", code), called, more)


class _Library:
    """The functions of cuBLASLt."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., int]] = CUBLAS.functions(_SIGNATURES)
        self.multiply = self._functions["cublasLtMatmul"]

    def _call(self, name: str, *arguments: Any) -> None:
        _check(self._functions[name](*arguments), name)

    def handle(self) -> _Pointer:
        """A new handle for the current context. It exists as long as the process."""
        handle = _Pointer()
        self._call("cublasLtCreate", ctypes.byref(handle))
        return handle

    def _made(self, what: str, *arguments: int) -> _Pointer:
        """A new descriptor, which is destroyed with the object returned."""
        made = _Pointer()
        self._call(f"cublasLt{what}Create", ctypes.byref(made), *arguments)
        weakref.finalize(made, self._functions[f"cublasLt{what}Destroy"], made.value).atexit = False
        return made

    def _set(self, what: str, made: _Pointer, attribute: int, value: Any) -> None:
        self._call(f"cublasLt{what}SetAttribute", made, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def layout(self, matrix: MatrixLayout, batch: int) -> _Pointer:
        made = self._made("MatrixLayout", *matrix[:4])
        if batch > 1:
            self._set("MatrixLayout", made, _BATCH_COUNT, ctypes.c_int32(batch))
            self._set("MatrixLayout", made, _BATCH_STRIDE, ctypes.c_int64(matrix.stride))
        return made

    def operation(self, problem: MatmulProblem) -> _Pointer:
        made = self._made("MatmulDesc", problem.compute, problem.factors)
        for attribute, transposed in zip((_TRANSPOSE_A, _TRANSPOSE_B), problem.transposed, strict=True):
            self._set("MatmulDesc", made, attribute, ctypes.c_int32(transposed))
        return made

    def way(self, problem: MatmulProblem, alignments: tuple[int, int, int], handle: Any, title: str) -> ProductWay:
        """The way that the library estimates to be fastest."""
        operation = self.operation(problem)
        left, right, result = [self.layout(matrix, problem.batch) for matrix in problem[:3]]
        preference = self._made("MatmulPreference")
        self._set("MatmulPreference", preference, _MOST_SCRATCH, ctypes.c_uint64(problem.scratch))
        self._set("MatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
        attributes = _ALIGNMENT_A, _ALIGNMENT_B, _ALIGNMENT_C, _ALIGNMENT_D
        for attribute, alignment in zip(attributes, (*alignments, alignments[2]), strict=True):
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
        chosen, count = _HeuristicResult(), _Int()
        described = operation, left, right, result, result, preference
        asked = handle, *described, 1, ctypes.byref(chosen), ctypes.byref(count)
        called = "cublasLtMatmulAlgoGetHeuristic"
        _check(self._functions[called](*asked), called, f" for {title}")
        _check(chosen.state if count.value else _NOT_SUPPORTED, called, f" for {title}")
        return ProductWay(operation, left, right, result, chosen.algorithm, chosen.scratch)


@cache
def _library() -> _Library:
    return _Library()


def _handle_of(queue: Queue) -> Any:
    found = queue.handles.get(CUBLAS)
    return queue.handles.setdefault(CUBLAS, _library().handle()) if found is None else found


def product_without_places(problem: MatmulProblem) -> ProductCall:
    """One product of operands that are nowhere, for rehearsals."""
    return ProductCall("a product", ((0, 0),) * 4, problem, ((0, 0, 0),))


def _alignment(address: int) -> int:
    """The largest power of two up to the library's limit that divides an address."""
    return min(address & -address, _MOST_ALIGNMENT)


def _way(call: ProductCall, alignments: tuple[int, int, int], handle: Any, queue: Queue) -> ProductWay:
    """How a product is computed on the card of a queue. It is the same on all queues of the card."""
    known: dict[Any, ProductWay] = queue.shared.setdefault(CUBLAS, {})
    key = call.problem, alignments
    found = known.get(key)
    if found is None:
        if len(known) >= _CACHED:
            known.clear()
        found = known[key] = _library().way(call.problem, alignments, handle, f"{call.title}: {call.problem}")
    return found
