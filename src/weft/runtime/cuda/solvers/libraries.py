"""The functions of cuSOLVER and cuBLAS that steps of plans call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

from weft.runtime.cuda.driver import CudaError, CudaMemoryError
from weft.runtime.cuda.shared_libraries import BLAS, CUSOLVER, Signatures

_Pointer, _Int, _Long, _Size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t

_NO_MEMORY, _NO_MEMORY_OF_BLAS = 2, 3
"""CUSOLVER_STATUS_ALLOC_FAILED and CUBLAS_STATUS_ALLOC_FAILED; cuBLAS has no status 2."""


class Number(IntEnum):
    """Values of cudaDataType_t."""

    FLOAT32 = 0
    FLOAT64 = 1
    COMPLEX64 = 4

    @property
    def letter(self) -> str:
        """The letter of the type in names of functions."""
        return {Number.FLOAT32: "S", Number.FLOAT64: "D", Number.COMPLEX64: "C"}[self]

    @property
    def size(self) -> int:
        return 4 if self is Number.FLOAT32 else 8

    @property
    def real(self) -> Number:
        return Number.FLOAT32 if self is Number.COMPLEX64 else self


class Triangle(IntEnum):
    """Values of cublasFillMode_t."""

    LOWER = 0
    UPPER = 1


class Turn(IntEnum):
    """Values of cublasOperation_t."""

    NONE = 0
    TRANSPOSE = 1
    ADJOINT = 2


RIGHT_SIDE = 1
"""A value of cublasSideMode_t."""

_MATRIX = _Pointer, _Int
_WORK = _Pointer, _Int
_ROTATED = _Pointer, _Int, _Int, _Int, *_MATRIX, _Pointer, *_MATRIX, *_MATRIX
_OF_A_NUMBER: Mapping[str, tuple[Any, ...]] = {
    "cusolverDn?potrf_bufferSize": (_Pointer, _Int, _Int, *_MATRIX, _Pointer),
    "cusolverDn?potrf": (_Pointer, _Int, _Int, *_MATRIX, *_WORK, _Pointer),
    "cusolverDn?potrfBatched": (_Pointer, _Int, _Int, *_MATRIX, _Pointer, _Int),
    "cusolverDn?getrf_bufferSize": (_Pointer, _Int, _Int, *_MATRIX, _Pointer),
    "cusolverDn?getrf": (_Pointer, _Int, _Int, *_MATRIX, _Pointer, _Pointer, _Pointer),
    "cusolverDn?getrs": (_Pointer, _Int, _Int, _Int, *_MATRIX, _Pointer, *_MATRIX, _Pointer),
    "cusolverDn?geqrf_bufferSize": (_Pointer, _Int, _Int, *_MATRIX, _Pointer),
    "cusolverDn?geqrf": (_Pointer, _Int, _Int, *_MATRIX, _Pointer, *_WORK, _Pointer),
    "cublas?geam": (_Pointer, _Int, _Int, _Int, _Int, _Pointer, *_MATRIX, _Pointer, *_MATRIX, *_MATRIX),
    "cublas?trsm_v2": (_Pointer, _Int, _Int, _Int, _Int, _Int, _Int, _Pointer, *_MATRIX, *_MATRIX),
    "cublas?trsmBatched": (_Pointer, _Int, _Int, _Int, _Int, _Int, _Int, _Pointer, *_MATRIX, *_MATRIX, _Int),
    "cublas?getrfBatched": (_Pointer, _Int, *_MATRIX, _Pointer, _Pointer, _Int),
    "cublas?geqrfBatched": (_Pointer, _Int, _Int, *_MATRIX, _Pointer, _Pointer, _Int),
    "cusolverDn?gesvdjBatched_bufferSize": (*_ROTATED, _Pointer, _Pointer, _Int),
    "cusolverDn?gesvdjBatched": (*_ROTATED, *_WORK, _Pointer, _Pointer, _Int),
}
_OF_ALL = {"S": "orgqr", "D": "orgqr", "C": "ungqr"}
_ORTHONORMAL: Signatures = {
    name: arguments
    for letter, routine in _OF_ALL.items()
    for name, arguments in {
        f"cusolverDn{letter}{routine}_bufferSize": (_Pointer, _Int, _Int, _Int, *_MATRIX, _Pointer, _Pointer),
        f"cusolverDn{letter}{routine}": (_Pointer, _Int, _Int, _Int, *_MATRIX, _Pointer, *_WORK, _Pointer),
    }.items()
}
_WIDE = _Int, _Pointer, _Long
_SIZES, _MEMORY = (_Pointer, _Pointer), (_Pointer, _Size, _Pointer, _Size, _Pointer)
_EIGEN = _Pointer, _Pointer, _Int, _Int, _Long, *_WIDE, _Int, _Pointer, _Int
_SINGULAR = _Long, _Long, *_WIDE, _Int, _Pointer, *_WIDE, *_WIDE, _Int
_EXACT = _Pointer, _Pointer, ctypes.c_char, ctypes.c_char, *_SINGULAR
_POLAR = _Pointer, _Pointer, _Int, _Int, *_SINGULAR

SIGNATURES: Signatures = {
    "cusolverDnCreate": (_Pointer,),
    "cusolverDnCreateParams": (_Pointer,),
    "cusolverDnCreateGesvdjInfo": (_Pointer,),
    "cusolverDnSetStream": (_Pointer, _Pointer),
    "cublasCreate_v2": (_Pointer,),
    "cublasSetStream_v2": (_Pointer, _Pointer),
    "cusolverDnXsyevd_bufferSize": (*_EIGEN, *_SIZES),
    "cusolverDnXsyevd": (*_EIGEN, *_MEMORY),
    "cusolverDnXsyevBatched_bufferSize": (*_EIGEN, *_SIZES, _Long),
    "cusolverDnXsyevBatched": (*_EIGEN, *_MEMORY, _Long),
    "cusolverDnXgesvd_bufferSize": (*_EXACT, *_SIZES),
    "cusolverDnXgesvd": (*_EXACT, *_MEMORY),
    "cusolverDnXgesvdp_bufferSize": (*_POLAR, *_SIZES),
    "cusolverDnXgesvdp": (*_POLAR, *_MEMORY, _Pointer),
    **{name.replace("?", number.letter): arguments for name, arguments in _OF_A_NUMBER.items() for number in Number},
    **_ORTHONORMAL,
}


def orthonormal(number: Number) -> str:
    """The name, without the letter, of the function that computes the columns of Q."""
    return _OF_ALL[number.letter]


def missing() -> str:
    """Why the libraries cannot be used; "" if they can."""
    return BLAS.missing() or CUSOLVER.missing()


class Functions:
    """The functions of both libraries, which must not be `missing`."""

    def __init__(self, functions: Mapping[str, Callable[..., int]]) -> None:
        self.named = functions

    def call(self, name: str, *arguments: Any) -> None:
        check(self.named[name](*arguments), name)

    def made(self, name: str) -> int:
        """The object that a function without other arguments makes."""
        made = _Pointer()
        self.call(name, ctypes.byref(made))
        return made.value or 0


def check(code: int, called: str) -> None:
    """Raise the error of a code other than 0."""
    if code:
        is_memory = code == _NO_MEMORY or (code == _NO_MEMORY_OF_BLAS and called.startswith("cublas"))
        kind = CudaMemoryError if is_memory else CudaError
        raise kind(f"status {code}", "cuSOLVER or cuBLAS failed", called)


@cache
def functions() -> Functions:
    of_blas = {name: arguments for name, arguments in SIGNATURES.items() if name.startswith("cublas")}
    others = {name: arguments for name, arguments in SIGNATURES.items() if name not in of_blas}
    return Functions({**BLAS.functions(of_blas), **CUSOLVER.functions(others)})
