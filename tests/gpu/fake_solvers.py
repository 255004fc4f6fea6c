"""cuSOLVER and cuBLAS without a card: functions that do what their manuals say, with LAPACK."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import scipy.linalg.blas
import scipy.linalg.lapack

from tests.gpu.fake_driver import FakeDriver
from weft.runtime.cuda.solvers.libraries import SIGNATURES, Number, Triangle, Turn

ELEMENTS: dict[int, Any] = {
    Number.FLOAT32: np.float32,
    Number.FLOAT64: np.float64,
    Number.COMPLEX64: np.complex64,
}
SCRATCH, SCRATCH_ON_HOST = 12, 24
_NAME = re.compile(r"(cusolverDn|cublas)([SDCX]?)(\w+)")


class FakeSolvers:
    """Every function needs `SCRATCH` elements or bytes of memory, which it overwrites."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self.called: list[str] = []
        self._handles = count(1)
        self._streams: dict[int, int] = {}
        self.named: dict[str, Callable[..., int]] = {name: self._function(name) for name in SIGNATURES}

    def call(self, name: str, *arguments: Any) -> None:
        assert self.named[name](*arguments) == 0, name

    def made(self, name: str) -> int:
        assert name in SIGNATURES
        return next(self._handles)

    def _function(self, name: str) -> Callable[..., int]:
        if "SetStream" in name:
            return self._set_stream
        if name.endswith("_bufferSize"):
            return partial(self._tell_sizes, name)
        return partial(self._queue, name)

    def _set_stream(self, handle: int, stream: int) -> int:
        self._streams[handle] = stream
        return 0

    def _tell_sizes(self, name: str, *arguments: Any) -> int:
        sizes = [one._obj for one in arguments if hasattr(one, "_obj")]
        for size, given in zip(sizes, (SCRATCH, SCRATCH_ON_HOST), strict=False):
            size.value = given
        assert len(sizes) == (2 if name.startswith("cusolverDnX") else 1)
        return 0

    def _queue(self, name: str, handle: int, *arguments: Any) -> int:
        assert len(arguments) + 1 == len(SIGNATURES[name]), name
        found = _NAME.fullmatch(name)
        assert found is not None
        _, letter, routine = found.groups()
        number = {one.letter: one for one in Number}.get(letter)
        if number is not None:
            arguments = (number, *arguments)
        self.called.append(routine)
        self._driver._queue(self._streams[handle], partial(getattr(self, f"_{routine}"), *arguments))
        return 0

    def _read(self, number: int, address: int, rows: int, columns: int, leading: int) -> np.ndarray:
        """A matrix that is stored by columns."""
        dtype = np.dtype(ELEMENTS[number])
        return self._parts(dtype, address, rows, columns, leading, None)

    def _write(self, number: int, address: int, leading: int, x: np.ndarray) -> None:
        rows, columns = x.shape
        self._parts(np.dtype(ELEMENTS[number]), address, rows, columns, leading, x)

    def _parts(
        self, dtype: np.dtype[Any], address: int, rows: int, columns: int, leading: int, x: np.ndarray | None
    ) -> np.ndarray:
        """Read a matrix; or write ``x``, as real and imaginary parts, because the memory has real numbers only."""
        real = np.dtype(np.float32) if dtype.kind == "c" else dtype
        places = (np.arange(rows)[:, None] + np.arange(columns) * leading) * dtype.itemsize
        if x is not None:
            self._driver.memory.write(address, places, x.real.astype(real))
            if dtype.kind == "c":
                self._driver.memory.write(address, places + 4, x.imag.astype(real))
            return x
        found = self._driver.memory.read(address, places, real)
        if dtype.kind == "c":
            found = (found + 1j * self._driver.memory.read(address, places + 4, real)).astype(dtype)
        return found

    def _spoil(self, work: int, size: int) -> None:
        self._driver.memory.write(work, np.arange(size), np.full(size, 0xEE, np.uint8))

    def _integers(self, address: int, values: Sequence[int]) -> None:
        self._driver.memory.write(address, 4 * np.arange(len(values)), np.array(values, np.int32))

    def _lapack(self, number: int, name: str) -> Any:
        return getattr(scipy.linalg.lapack, Number(number).letter.lower() + name)

    def _potrf(self, number: int, triangle: int, n: int, a: int, lda: int, work: int, lwork: int, info: int) -> None:
        self._spoil(work, lwork * Number(number).size)
        found, code = self._lapack(number, "potrf")(
            self._read(number, a, n, n, lda), lower=triangle == Triangle.LOWER, clean=0
        )
        self._write(number, a, lda, found)
        self._integers(info, [code])

    def _getrf(self, number: int, m: int, n: int, a: int, lda: int, work: int, pivots: int, info: int) -> None:
        self._spoil(work, SCRATCH * Number(number).size)
        found, order, code = self._lapack(number, "getrf")(self._read(number, a, m, n, lda))
        self._write(number, a, lda, found)
        self._integers(pivots, order + 1)
        self._integers(info, [code])

    def _getrs(
        self, number: int, turn: int, n: int, k: int, a: int, lda: int, pivots: int, b: int, ldb: int, info: int
    ) -> None:
        order = self._driver.memory.read(pivots, 4 * np.arange(n), np.dtype(np.int32)) - 1
        x, code = self._lapack(number, "getrs")(
            self._read(number, a, n, n, lda), order, self._read(number, b, n, k, ldb), trans=turn
        )
        self._write(number, b, ldb, x)
        self._integers(info, [code])

    def _geqrf(self, number: int, m: int, n: int, a: int, lda: int, tau: int, work: int, lwork: int, info: int) -> None:
        self._spoil(work, lwork * Number(number).size)
        found, scales, _, code = self._lapack(number, "geqrf")(self._read(number, a, m, n, lda))
        self._write(number, a, lda, found)
        self._write(number, tau, 1, scales[None, :])
        self._integers(info, [code])

    def _orgqr(
        self, number: int, m: int, n: int, k: int, a: int, lda: int, tau: int, work: int, lwork: int, info: int
    ) -> None:
        self._spoil(work, lwork * Number(number).size)
        name = "ungqr" if number == Number.COMPLEX64 else "orgqr"
        scales = self._read(number, tau, 1, k, 1)[0]
        found, _, code = self._lapack(number, name)(self._read(number, a, m, n, lda), scales)
        self._write(number, a, lda, found)
        self._integers(info, [code])

    _ungqr = _orgqr

    def _trsm_v2(
        self,
        number: int,
        side: int,
        triangle: int,
        turn: int,
        unit: int,
        m: int,
        n: int,
        alpha: Any,
        a: int,
        lda: int,
        b: int,
        ldb: int,
    ) -> None:
        assert alpha[0] == 1
        x = getattr(scipy.linalg.blas, Number(number).letter.lower() + "trsm")(
            1,
            self._read(number, a, n, n, lda),
            self._read(number, b, m, n, ldb),
            side=side,
            lower=triangle == Triangle.LOWER,
            trans_a=turn if turn != Turn.ADJOINT or number == Number.COMPLEX64 else Turn.TRANSPOSE,
            diag=unit,
        )
        self._write(number, b, ldb, x)

    def _syevd(self, params: int, job: int, triangle: int, n: int, *more: Any) -> None:
        number, a, lda, real, values, compute, *memory, info = more
        self._check_memory(memory)
        assert real == Number(number).real
        assert compute == number
        x = self._read(number, a, n, n, lda)
        found, vectors = np.linalg.eigh(x, UPLO="L" if triangle == Triangle.LOWER else "U")
        self._write(real, values, 1, found[None, :])
        self._write(number, a, lda, vectors if job else np.full_like(x, 7))
        self._integers(info, [0])

    def _gesvd(self, params: int, left: bytes, right: bytes, m: int, n: int, *more: Any) -> None:
        number, a, lda, real, values, _, u, ldu, _, vt, ldvt, _, *memory, info = more
        self._check_memory(memory)
        assert m >= n
        assert left == right
        x = self._read(number, a, m, n, lda)
        found = np.linalg.svd(x, full_matrices=left == b"A")
        self._write(number, a, lda, np.full_like(x, 7))
        self._write(real, values, 1, found[1][None, :])
        if left != b"N":
            self._write(number, u, ldu, found[0])
            self._write(number, vt, ldvt, found[2])
        self._integers(info, [0])

    def _gesvdp(self, params: int, job: int, economic: int, m: int, n: int, *more: Any) -> None:
        """For a singular matrix the values are wrong, and the error that is returned says so."""
        number, a, lda, real, values, _, u, ldu, _, v, ldv, _, *memory, info, error = more
        self._check_memory(memory)
        assert m >= n
        assert job == 1
        x = self._read(number, a, m, n, lda)
        found = np.linalg.svd(x, full_matrices=not economic)
        error.contents.value = float(found[1].min() < 1e-5)
        self._write(number, a, lda, np.full_like(x, 7))
        self._write(real, values, 1, found[1][None, :] + error.contents.value)
        self._write(number, u, ldu, found[0])
        self._write(number, v, ldv, found[2].conj().T)
        self._integers(info, [0])

    def _geam(self, number: int, turn: int, other_turn: int, m: int, n: int, *more: Any) -> None:
        alpha, a, lda, beta, b, ldb, c, ldc = more
        assert (turn, other_turn, alpha[0], beta[0], b, ldb) == (Turn.ADJOINT, Turn.NONE, 1, 0, c, ldc)
        self._write(number, c, ldc, self._read(number, a, n, m, lda).conj().T)

    def _addresses(self, place: int, count: int) -> list[int]:
        """The addresses in a list on the card."""
        return [int(x) for x in self._driver.memory.read(place, 8 * np.arange(count), np.dtype(np.int64))]

    def _potrfBatched(self, number: int, triangle: int, n: int, a: int, lda: int, info: int, count: int) -> None:
        for i, matrix in enumerate(self._addresses(a, count)):
            found, code = self._lapack(number, "potrf")(
                self._read(number, matrix, n, n, lda), lower=triangle == Triangle.LOWER, clean=0
            )
            self._write(number, matrix, lda, found)
            self._integers(info + 4 * i, [code])

    def _getrfBatched(self, number: int, n: int, a: int, lda: int, pivots: int, info: int, count: int) -> None:
        for i, matrix in enumerate(self._addresses(a, count)):
            found, order, code = self._lapack(number, "getrf")(self._read(number, matrix, n, n, lda))
            self._write(number, matrix, lda, found)
            self._integers(pivots + 4 * i * n, order + 1)
            self._integers(info + 4 * i, [code])

    def _trsmBatched(self, number: int, *arguments: Any) -> None:
        side, triangle, turn, unit, m, n, alpha, a, lda, b, ldb, count = arguments
        for matrix, x in zip(self._addresses(a, count), self._addresses(b, count), strict=True):
            self._trsm_v2(number, side, triangle, turn, unit, m, n, alpha, matrix, lda, x, ldb)

    def _geqrfBatched(self, number: int, m: int, n: int, a: int, lda: int, tau: int, info: Any, count: int) -> None:
        for matrix, scales in zip(self._addresses(a, count), self._addresses(tau, count), strict=True):
            found, factors, _, _ = self._lapack(number, "geqrf")(self._read(number, matrix, m, n, lda))
            self._write(number, matrix, lda, found)
            self._write(number, scales, 1, factors[None, :])
        info.contents.value = 0

    def _syevBatched(self, *arguments: Any) -> None:
        params, job, triangle, n, number, a, lda, real, values, compute, *memory, info, count = arguments
        for i in range(count):
            matrix, its_values = a + i * n * n * Number(number).size, values + i * n * Number(real).size
            more = number, matrix, lda, real, its_values, compute, *memory, info + 4 * i
            self._syevd(params, job, triangle, n, *more)

    def _gesvdjBatched(self, number: int, job: int, m: int, n: int, a: int, lda: int, values: int, *more: Any) -> None:
        u, ldu, v, ldv, work, lwork, info, _, count = more
        size = Number(number).size
        self._spoil(work, lwork * size)
        for i in range(count):
            found = np.linalg.svd(self._read(number, a + i * m * n * size, m, n, lda))
            real = Number(number).real
            self._write(real, values + i * min(m, n) * real.size, 1, found[1][None, :])
            if job:
                self._write(number, u + i * m * m * size, ldu, found[0])
                self._write(number, v + i * n * n * size, ldv, found[2].conj().T)
            self._integers(info + 4 * i, [0])

    def _check_memory(self, memory: Sequence[Any]) -> None:
        work, size, on_host, size_on_host = memory
        assert (size, size_on_host) == (SCRATCH, SCRATCH_ON_HOST)
        assert len(on_host) >= size_on_host
        self._spoil(work, size)
