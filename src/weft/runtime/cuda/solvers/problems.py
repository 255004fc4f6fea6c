"""What the libraries compute, for stacks of matrices that are contiguous in memory.

The libraries store matrices by columns; rows, columns and triangles are named here as the libraries see them.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.runtime.cuda.solvers.libraries import RIGHT_SIDE, Number, Triangle, Turn, orthonormal
from weft.runtime.cuda.solvers.writing import POINTER, SolverScratch, SolverWriter

_INTEGER = 4
_MOST_WORK = 1 << 30
"""A stack of matrices that would need more bytes of scratch memory is computed in parts."""

SMALL = 32
"""The most rows and columns of matrices whose singular values a library computes for a stack in one call."""

_ONES: dict[Number, Any] = {
    Number.FLOAT32: (ctypes.c_float * 1)(1),
    Number.FLOAT64: (ctypes.c_double * 1)(1),
    Number.COMPLEX64: (ctypes.c_float * 2)(1, 0),
}
_ZEROS: dict[Number, Any] = {number: type(one)() for number, one in _ONES.items()}
_FEWEST_POLAR_ROWS = 128


@dataclass(frozen=True)
class Problem(ABC):
    """``count`` problems, computed one after the other or, if ``together``, in one call, which takes lists of
    addresses."""

    number: Number
    count: int
    together: bool

    @property
    def is_captured(self) -> bool:
        """Whether the calls can be captured into a graph; those that wait for the card cannot."""
        return True

    @property
    def lists(self) -> Sequence[tuple[int, int]]:
        """The lists of matrices' addresses at the beginning of scratch memory: for each, the operand or result, and the
        bytes of a matrix."""
        return ()

    @abstractmethod
    def write(self, w: SolverWriter) -> None:
        """Reserve scratch memory, and call functions."""

    def taken_lists(self, w: SolverWriter) -> list[int]:
        return [w.part(POINTER * self.count) for _ in self.lists]

    def size(self, *extents: int) -> int:
        """The bytes of an array of these extents."""
        size = self.number.size
        for extent in extents:
            size *= extent
        return size


@dataclass(frozen=True)
class Cholesky(Problem):
    """Places: operand; factors, beside whose triangle the elements are those of the operand; codes."""

    n: int
    triangle: Triangle

    @property
    def lists(self) -> Sequence[tuple[int, int]]:
        return [(1, self.size(self.n, self.n))] if self.together else ()

    def write(self, w: SolverWriter) -> None:
        lists, n = self.taken_lists(w), self.n
        a, factor, info = map(w.address, range(3))
        whole = self.size(n, n)
        w.copy(factor, a, self.count * whole)
        if self.together:
            w.solver("potrfBatched", self.triangle, n, lists[0], n, info, self.count)
            return
        elements = w.elements("potrf", self.triangle, n, factor, n)
        work = w.part(self.size(elements))
        for i in range(self.count):
            address = factor + i * whole
            w.solver("potrf", self.triangle, n, address, n, work, elements, info + i * _INTEGER)


@dataclass(frozen=True)
class Factors(Problem):
    """Places: operand; LU factors, pivots counted from one, and codes."""

    rows: int
    columns: int

    @property
    def lists(self) -> Sequence[tuple[int, int]]:
        return [(1, self.size(self.rows, self.columns))] if self.together else ()

    def write(self, w: SolverWriter) -> None:
        lists, m, n = self.taken_lists(w), self.rows, self.columns
        a, factors, pivots, info = map(w.address, range(4))
        whole = self.size(m, n)
        w.copy(factors, a, self.count * whole)
        if self.together:
            w.blas("getrfBatched", n, lists[0], n, pivots, info, self.count)
            return
        work = w.part(self.size(w.elements("getrf", m, n, factors, m)))
        for i in range(self.count):
            found = pivots + i * min(m, n) * _INTEGER
            w.solver("getrf", m, n, factors + i * whole, m, work, found, info + i * _INTEGER)


@dataclass(frozen=True)
class Solutions(Problem):
    """Places: factors, pivots and right sides; solutions and codes."""

    n: int
    columns: int
    turn: Turn

    def write(self, w: SolverWriter) -> None:
        n, k = self.n, self.columns
        factors, pivots, b, x, info = map(w.address, range(5))
        w.copy(x, b, self.count * self.size(n, k))
        for i in range(self.count):
            known = factors + i * self.size(n, n), n, pivots + i * n * _INTEGER
            w.solver("getrs", self.turn, n, k, *known, x + i * self.size(n, k), n, info + i * _INTEGER)


@dataclass(frozen=True)
class Triangular(Problem):
    """Places: triangles T and right sides B; ``B T^-1``, with T transposed if the problem says so."""

    n: int
    rows: int
    triangle: Triangle
    turn: Turn
    unit: bool

    @property
    def lists(self) -> Sequence[tuple[int, int]]:
        return [(0, self.size(self.n, self.n)), (2, self.size(self.n, self.rows))] if self.together else ()

    def write(self, w: SolverWriter) -> None:
        lists, n, m = self.taken_lists(w), self.n, self.rows
        a, b, x = map(w.address, range(3))
        w.copy(x, b, self.count * self.size(m, n))
        what = RIGHT_SIDE, self.triangle, self.turn, int(self.unit), m, n, _ONES[self.number]
        if self.together:
            w.blas("trsmBatched", *what, lists[0], n, lists[1], m, self.count)
            return
        for i in range(self.count):
            w.blas("trsm_v2", *what, a + i * self.size(n, n), n, x + i * self.size(m, n), m)


@dataclass(frozen=True)
class Orthonormal(Problem):
    """Places: operand; R with other numbers below it, the columns of Q, and codes."""

    rows: int
    columns: int

    def write(self, w: SolverWriter) -> None:
        m, n = self.rows, self.columns
        k = min(m, n)
        a, factored, q, info = map(w.address, range(4))
        w.copy(factored, a, self.count * self.size(m, n))
        scales = w.part(self.size(k))
        elements = w.elements("geqrf", m, n, factored, m)
        of_columns = orthonormal(self.number)
        more = w.elements(of_columns, m, k, k, q, m, scales)
        work = w.part(self.size(max(elements, more)))
        for i in range(self.count):
            found, columns, code = factored + i * self.size(m, n), q + i * self.size(m, k), info + i * _INTEGER
            w.solver("geqrf", m, n, found, m, scales, work, elements, code)
            w.copy(columns, found, self.size(m, k))
            w.solver(of_columns, m, k, k, columns, m, scales, work, more, code)


@dataclass(frozen=True)
class Reflections(Problem):
    """Places: operand; R with the vectors of reflections below it, and the reflections' factors."""

    rows: int
    columns: int

    @property
    def lists(self) -> Sequence[tuple[int, int]]:
        return [(1, self.size(self.rows, self.columns)), (2, self.size(min(self.rows, self.columns)))]

    def write(self, w: SolverWriter) -> None:
        (matrices, scales), m, n = self.taken_lists(w), self.rows, self.columns
        w.copy(w.address(1), w.address(0), self.count * self.size(m, n))
        w.blas("geqrfBatched", m, n, matrices, m, scales, ctypes.pointer(ctypes.c_int()), self.count)


@dataclass(frozen=True)
class Eigenvalues(Problem):
    """Places: operand; eigenvalues, eigenvectors if they are wanted, and codes."""

    n: int
    triangle: Triangle
    vectors: bool

    @property
    def is_captured(self) -> bool:
        return self.together

    def write(self, w: SolverWriter) -> None:
        n = self.n
        a, values, *found, info = map(w.address, range(3 + self.vectors))
        address = found[0] if found else w.part(self.size(self.count, n, n))
        w.copy(address, a, self.size(self.count, n, n))
        number = self.number

        def described(matrix: int, its_values: int) -> Sequence[Any]:
            first = int(self.vectors), self.triangle, n
            return *first, number, matrix, n, number.real, its_values, number

        def of(i: int) -> Sequence[Any]:
            return described(address + i * self.size(n, n), values + i * n * number.real.size)

        if not self.together:
            work = w.work("Xsyevd", described, 2)
            for i in range(self.count):
                w.wide("Xsyevd", of(i), work, info + i * _INTEGER)
            return
        at_once = self.count
        while at_once > 1 and w.work_size("XsyevBatched", described, 2, at_once) > _MOST_WORK:
            at_once = -(-at_once // 2)
        work = w.work("XsyevBatched", described, 2, at_once)
        for i in range(0, self.count, at_once):
            w.wide("XsyevBatched", of(i), work, info + i * _INTEGER, min(at_once, self.count - i))


@dataclass(frozen=True)
class SingularValues(Problem):
    """Places: operand, with at least as many rows as columns; singular values, left and right vectors as columns if
    they are wanted (all left ones, or as many as there are columns), and codes.

    The polar decomposition is faster for all but small matrices. It reports if it had to change a matrix that is nearly
    singular; then the values are computed in the other way.
    """

    rows: int
    columns: int
    vectors: bool
    full: bool

    @property
    def is_captured(self) -> bool:
        return False

    @property
    def is_polar(self) -> bool:
        return self.rows >= _FEWEST_POLAR_ROWS

    def write(self, w: SolverWriter) -> None:
        m, n = self.rows, self.columns
        a, values, *found, info = map(w.address, range(3 + 2 * self.vectors))
        copy = w.part(self.size(m, n))
        sizes = self.size(m, m if self.full else n), self.size(n, n)
        if not self.vectors:
            found = [w.part(size) for size in sizes] if self.is_polar else [copy, copy]
        adjoint = w.part(self.size(n, n))
        work = w.work("Xgesvd", self._exactly, 4)
        polar = w.work("Xgesvdp", self._by_polar, 4) if self.is_polar else None
        for i in range(self.count):
            left, right = [x + i * size * self.vectors for x, size in zip(found, sizes, strict=True)]
            what = a + i * self.size(m, n), copy, values + i * n * self.number.real.size, left, right
            code = info + i * _INTEGER
            if polar is None:
                self._write_exactly(w, *what, adjoint, work, code)
                continue
            w.copy(copy, what[0], self.size(m, n))
            error = ctypes.pointer(ctypes.c_double())
            w.wide("Xgesvdp", self._by_polar(*what[1:]), polar, code, error)
            with w.unless_zero(error):
                self._write_exactly(w, *what, adjoint, work, code)

    def _by_polar(self, matrix: int, values: int, left: int, right: int) -> Sequence[Any]:
        m, n, number = self.rows, self.columns, self.number
        what = 1, int(not self.full), m, n, number, matrix, m
        return *what, number.real, values, number, left, m, number, right, n, number

    def _exactly(self, matrix: int, values: int, left: int, right: int) -> Sequence[Any]:
        m, n, number = self.rows, self.columns, self.number
        job = (b"A" if self.full else b"S") if self.vectors else b"N"
        what = job, job, m, n, number, matrix, m
        return *what, number.real, values, number, left, m, number, right, n, number

    def _write_exactly(
        self,
        w: SolverWriter,
        a: int,
        copy: int,
        values: int,
        left: int,
        right: int,
        adjoint: int,
        work: SolverScratch,
        info: int,
    ) -> None:
        n = self.columns
        w.copy(copy, a, self.size(self.rows, n))
        w.wide("Xgesvd", self._exactly(copy, values, left, adjoint), work, info)
        if self.vectors:
            turns = Turn.ADJOINT, Turn.NONE
            w.blas("geam", *turns, n, n, _ONES[self.number], adjoint, n, _ZEROS[self.number], right, n, right, n)


@dataclass(frozen=True)
class SmallSingularValues(Problem):
    """Places: operand of at most `SMALL` rows and columns; singular values, all left and right vectors (or memory for
    them), and codes."""

    rows: int
    columns: int
    vectors: bool

    def write(self, w: SolverWriter) -> None:
        m, n, count = self.rows, self.columns, self.count
        a, values, left, right, info = map(w.address, range(5))
        copy = w.part(self.size(count, m, n))
        w.copy(copy, a, self.size(count, m, n))
        what = int(self.vectors), m, n, copy, m, values, left, m, right, n
        elements = w.elements("gesvdjBatched", *what, after=(w.rotations, count))
        work = w.part(self.size(elements))
        w.solver("gesvdjBatched", *what, work, elements, info, w.rotations, count)
