"""BLAS through the function pointers that SciPy exports for Cython."""

from __future__ import annotations

import ctypes
from functools import cache

from weft import dtypes
from weft.dtypes import Dtype

GEMM = {dtypes.float32: "sgemm", dtypes.float64: "dgemm", dtypes.complex64: "cgemm"}


@cache
def address(routine: str) -> int:
    """The address of a BLAS routine with Fortran's calling convention."""
    from scipy.linalg import cython_blas  # 60 ms of import time that programs without a matrix product do not pay

    capsule = cython_blas.__pyx_capi__[routine]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = pointer_of(capsule, name_of(capsule))
    if not pointer:
        raise ImportError(f"SciPy does not export {routine}")
    return int(pointer)


def gemm_address(dtype: Dtype) -> int:
    """The matrix product of a dtype."""
    return address(GEMM[dtype])
