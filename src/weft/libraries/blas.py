"""BLAS through the function pointers that SciPy exports for Cython."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

from weft import dtypes
from weft.dtypes import Dtype

GEMM = {dtypes.float32: "sgemm", dtypes.float64: "dgemm", dtypes.complex64: "cgemm"}


@cache
def _module() -> Any:
    """The module whose routines are used, with SciPy's OpenBLAS kept on the calling thread.

    Weft's own threads share a product. Two pools that wait for work by spinning would take the processors from each
    other: on a busy machine that made a small training step take 80 ms instead of 0.7.
    """
    module = importlib.import_module("scipy.linalg.cython_blas")  # 60 ms that programs without products do not pay
    library = ctypes.CDLL(module.__file__)
    for name in ("scipy_openblas_set_num_threads", "openblas_set_num_threads"):
        set_threads = getattr(library, name, None)
        if set_threads is not None:
            set_threads(ctypes.c_int(1))
            break
    return module


@cache
def address(routine: str) -> int:
    """The address of a BLAS routine with Fortran's calling convention."""
    capsule = _module().__pyx_capi__[routine]
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
