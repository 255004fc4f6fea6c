"""NVIDIA's libraries that plans call: where they are, and which wheels contain them. They are searched for when
needed."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from weft.runtime.atomic import without_interrupts
from weft.runtime.cuda.cards import LIBRARY

Signatures = Mapping[str, tuple[Any, ...]]
"""The argument types of functions that return a code."""


class SharedLibrary:
    """A library by its name in ``cuda-pathfinder``. ``files`` are its file names, those for newer versions of CUDA
    first; ``wheel`` is the package that contains it; ``made_for`` returns the version of CUDA that it was made for, as
    1000 times the major version plus 10 times the minor one."""

    def __init__(self, name: str, files: tuple[str, ...], wheel: str, made_for: Callable[[Any], int]) -> None:
        self.name = name
        self.files = files
        self.wheel = wheel
        self._made_for = made_for
        self._found: tuple[Any, str] | None = None

    def missing(self) -> str:
        """Why it cannot be used, and what would help; "" if it can be used."""
        return self._load()[1]

    @property
    def is_known_to_be_missing(self) -> bool:
        """Whether `missing` has found that it cannot be used."""
        return self._found is not None and self._found[1] != ""

    def functions(self, signatures: Signatures) -> dict[str, Callable[..., int]]:
        """Functions of the library, which must not be `missing`."""
        library, missing = self._load()
        if missing:
            raise OSError(missing)
        found = {}
        for name, arguments in signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
            found[name] = function
        return found

    def text(self, function: str, code: int) -> str:
        """What a function of the library says about a code."""
        describe = getattr(self._load()[0], function)
        describe.argtypes, describe.restype = (ctypes.c_int,), ctypes.c_char_p
        return (describe(code) or b"").decode()

    def version(self) -> str:
        """The version of CUDA that it was made for, or why it cannot be used."""
        library, missing = self._load()
        return missing or f"for CUDA {_shown(self._made_for(library))}"

    def _load(self) -> tuple[Any, str]:
        if self._found is None:
            self._found = without_interrupts(self._searched)
        return self._found

    def _searched(self) -> tuple[Any, str]:
        library = self._loaded_already() or self._of_a_wheel() or self._by_pathfinder() or self._by_name()
        if library is None:
            return None, f"{self.files[0]} is missing: pip install {self.wheel}"
        needed, there = self._made_for(library), _driver_version()
        if needed // 1000 > there // 1000:
            return None, f"{self.name} needs a driver for CUDA {_shown(needed)}, and this one is for {_shown(there)}"
        return library, ""

    def _loaded_already(self) -> Any:
        """The library if the process has loaded it, as torch does: loading another file would give a second library."""
        return _first([partial(ctypes.CDLL, file, os.RTLD_NOLOAD | os.RTLD_NOW) for file in self.files])

    def _of_a_wheel(self) -> Any:
        """The library in NVIDIA's wheels, searched for only in the usual folders: importing ``cuda.pathfinder``, which
        knows all places, takes longer than loading a library."""
        return _first([partial(_loaded, path) for path in _in_wheels(self.files)])

    def _by_pathfinder(self) -> Any:
        try:
            pathfinder: Any = importlib.import_module("cuda.pathfinder")
            return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib(self.name).abs_path)
        except (ImportError, RuntimeError, OSError):  # it is not installed, or does not find the library
            return None

    def _by_name(self) -> Any:
        return _first([partial(_loaded, file) for file in self.files])


def _first(loads: Sequence[Callable[[], Any]]) -> Any:
    """The result of the first of several ways to load a library that succeeds; None if all fail."""
    for load in loads:
        with suppress(OSError):
            return load()
    return None


def _in_wheels(files: Sequence[str]) -> Iterator[str]:
    """The paths of files in the folders of NVIDIA's wheels that are installed: ``nvidia/cu13/lib``,
    ``nvidia/cudnn/lib``."""
    folders = []
    for root in sys.path:
        with suppress(OSError), os.scandir(os.path.join(root, "nvidia")) as entries:
            folders += sorted([os.path.join(entry.path, "lib") for entry in entries])
    for file in files:
        for folder in folders:
            path = os.path.join(folder, file)
            if os.path.exists(path):
                yield path


_dlopen = ctypes.CDLL(None).dlopen
_dlopen.argtypes, _dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p


def _loaded(path: str) -> Any:
    """A library, loaded without the interpreter lock, which ``ctypes.CDLL`` would hold."""
    _dlopen(os.fsencode(path), os.RTLD_NOW)
    return ctypes.CDLL(path)


def _driver_version() -> int:
    version = ctypes.c_int()
    ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    return version.value


def _shown(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _as_told_by(name: str) -> Callable[[Any], int]:
    """Read the version from a function of the library."""

    def made_for(library: Any) -> int:
        function = getattr(library, name)
        function.restype = ctypes.c_size_t
        return int(function())

    return made_for


def _by_own_version(name: str) -> Callable[[Any], int]:
    """For libraries whose own major version, which a function returns, is one less than that of CUDA."""

    def made_for(library: Any) -> int:
        major = ctypes.c_int()
        getattr(library, name)(_MAJOR_VERSION, ctypes.byref(major))
        return 1000 * (major.value + 1)

    return made_for


_MAJOR_VERSION = 0
"""Values of libraryPropertyType."""

CUBLAS = SharedLibrary(
    "cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12"), "nvidia-cublas", _as_told_by("cublasLtGetCudartVersion")
)
CUDNN = SharedLibrary("cudnn", ("libcudnn.so.9",), "nvidia-cudnn-cu13", _as_told_by("cudnnGetCudartVersion"))
CUFFT = SharedLibrary(
    "cufft", ("libcufft.so.12", "libcufft.so.11"), "nvidia-cufft", _by_own_version("cufftGetProperty")
)
BLAS = SharedLibrary(
    "cublas", ("libcublas.so.13", "libcublas.so.12"), "nvidia-cublas", _as_told_by("cublasGetCudartVersion")
)
CUSOLVER = SharedLibrary(
    "cusolver", ("libcusolver.so.12", "libcusolver.so.11"), "nvidia-cusolver", _by_own_version("cusolverGetProperty")
)
ALL = (CUBLAS, CUDNN, CUFFT, BLAS, CUSOLVER)
