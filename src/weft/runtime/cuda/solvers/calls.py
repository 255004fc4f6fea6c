"""Steps of a card's plan that compute linear algebra by libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.runtime.atomic import Action
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.shared_libraries import CUSOLVER
from weft.runtime.cuda.solvers import libraries
from weft.runtime.cuda.solvers.libraries import Functions
from weft.runtime.cuda.solvers.problems import Problem
from weft.runtime.cuda.solvers.writing import SolverWriter
from weft.runtime.locks import fork_safe_lock
from weft.runtime.steps import Place

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_CACHED = 4096
"""At most this many sizes of scratch memory are cached for a card."""

_new = fork_safe_lock()


class Handles:
    """The handles of both libraries for a driver's stream. They live as long as the process."""

    def __init__(self, library: Functions, stream: int | None = None) -> None:
        self.solver = library.made("cusolverDnCreate")
        self.blas = library.made("cublasCreate_v2")
        self.params = library.made("cusolverDnCreateParams")
        if stream is not None:
            library.call("cusolverDnSetStream", self.solver, stream)
            library.call("cublasSetStream_v2", self.blas, stream)


class Solvers:
    """How much scratch memory functions need on one card."""

    def __init__(self, library: Functions) -> None:
        self.library = library
        self._handles = Handles(library)
        self.rotations = library.made("cusolverDnCreateGesvdjInfo")
        self._lock = fork_safe_lock()
        self._sizes: dict[tuple[Any, ...], tuple[int, int]] = {}

    def size(self, name: str, arguments: Sequence[Any], after: Sequence[Any] = ()) -> int:
        """How many elements a function says that it needs; ``after`` are its arguments after that number."""
        found = ctypes.c_int()
        self.library.call(name, self._handles.solver, *arguments, ctypes.byref(found), *after)
        return found.value

    def sizes(self, name: str, arguments: Sequence[Any], count: int | None) -> tuple[int, int]:
        """How many bytes a function says that it needs on the card and on the host."""
        key = name, *arguments, count
        with self._lock:
            found = self._sizes.get(key)
            if found is None:
                if len(self._sizes) >= _CACHED:
                    self._sizes.clear()
                size, on_host = ctypes.c_size_t(), ctypes.c_size_t()
                given = *arguments, ctypes.byref(size), ctypes.byref(on_host), *([] if count is None else [count])
                self.library.call(name, self._handles.solver, self._handles.params, *given)
                found = self._sizes[key] = size.value, on_host.value
            return found

    def scratch(self, problem: Problem) -> int:
        """The bytes of scratch memory of a `SolverCall`."""
        writer = SolverWriter(problem.number, self, ())
        problem.write(writer)
        return writer.size


@dataclass(frozen=True)
class SolverCall(LibraryCall):
    """``places`` are those of operands, results and scratch memory. Scratch memory begins, at a multiple of
    `ALIGNMENT`, with the lists of addresses that the problem needs."""

    title: str
    places: tuple[Place, ...]
    problem: Problem
    is_captured: bool = True

    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        solvers: Solvers = queue.shared[CUSOLVER]
        handles = queue.handles.get(CUSOLVER)
        if handles is None:
            handles = queue.handles[CUSOLVER] = Handles(solvers.library, queue.handle)
        *memory, scratch = addresses
        writer = SolverWriter(self.problem.number, solvers, memory, scratch, queue, handles)
        self.problem.write(writer)
        return writer.actions

    def check(self, code: int) -> None:
        libraries.check(code, f"{self.title}: {self.problem}")


def missing() -> str:
    """Why the libraries cannot be used; "" if they can."""
    return libraries.missing()


def solvers_of(engine: CudaEngine) -> Solvers:
    """The `Solvers` of a card. Its context becomes that of this thread."""
    shared = engine.for_libraries()
    with _new:
        found: Solvers | None = shared.get(CUSOLVER)
        if found is None:
            found = shared[CUSOLVER] = Solvers(libraries.functions())
        return found
