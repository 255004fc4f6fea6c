"""BLAS and LAPACK through the function pointers that SciPy exports for Cython."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from functools import cache
from typing import Any

from weft.runtime.atomic import without_interrupts


def _load(module: str) -> Any:
    """A module of ``scipy.linalg``, without importing the package ``scipy.linalg``, which would add 300 ms to the first
    call."""
    name = f"scipy.linalg.{module}"
    package = importlib.util.find_spec("scipy")
    if package is not None and package.submodule_search_locations:
        folder = os.path.join(package.submodule_search_locations[0], "linalg")
        details = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
        found = importlib.machinery.FileFinder(folder, details).find_spec(module)
        if found is not None and found.origin is not None and name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, found.origin)
            if spec is not None and spec.loader is not None:
                loaded = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(loaded)
                return loaded
    return importlib.import_module(name)


@cache
def _module(name: str) -> Any:
    """A module whose routines are used. SciPy's OpenBLAS is told to use only the calling thread.

    Weft's own threads share the work. If two pools of threads wait by spinning, they take processor time from each
    other: on a busy machine a small training step took 80 ms instead of 0.7.
    """
    module = without_interrupts(lambda: _load(name))
    library = ctypes.CDLL(module.__file__)
    for setter in ("scipy_openblas_set_num_threads", "openblas_set_num_threads"):
        set_threads = getattr(library, setter, None)
        if set_threads is not None:
            set_threads(ctypes.c_int(1))
            break
    return module


def blas(routine: str) -> int:
    """The address of a BLAS routine with Fortran's calling convention."""
    return _address("cython_blas", routine)


def lapack(routine: str) -> int:
    """The address of a LAPACK routine with Fortran's calling convention."""
    return _address("cython_lapack", routine)


@cache
def _address(module: str, routine: str) -> int:
    capsule = _module(module).__pyx_capi__[routine]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = pointer_of(capsule, name_of(capsule))
    if not pointer:
        raise ImportError(f"SciPy does not export {routine}")
    return int(pointer)
