"""NumPy (and `scipy.fft`) where it has the task, and copies of the same bytes, to measure what the memory allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg

from . import LARGEST, Work, classes, floats, fourier_data, matrices, right_sides, row_pairs

FLOAT32_BYTES = 4
SMALLEST = 2**20  # bytes; copies of fewer say nothing about the memory


class NumpyPeer:
    def __init__(self, threads: int) -> None:
        self.threads = threads  # Its BLAS reads OPENBLAS_NUM_THREADS.

    def matmul(self, size: int) -> Work:
        a, b = floats(size, size), floats(size, size, seed=1)
        return lambda: a @ b

    def converted_matmul(self, shape: tuple[int, ...], dtype: str) -> Work | None:
        """NumPy has no bfloat16; `matmul` measures float32."""
        if dtype == "bfloat16":
            return None
        a, b = (floats(*shape, seed=seed).astype(dtype) for seed in (0, 1))
        return lambda: (a @ b)[0].real

    def product(self, left: tuple[int, ...], right: tuple[int, ...], transposed: bool) -> Work:
        a, b = floats(*left), floats(*right, seed=1)
        return (lambda: a @ b.swapaxes(-1, -2)) if transposed else (lambda: a @ b)

    def linear_algebra(self, function: str, shape: tuple[int, ...]) -> Work:
        """SciPy for one matrix; NumPy for a stack, because SciPy loops over it in Python."""
        a, b = matrices(*shape), right_sides(*shape)
        linalg: Any = scipy.linalg if len(shape) == 2 else np.linalg
        if function == "cholesky" and len(shape) == 2:
            return lambda: linalg.cholesky(a, lower=True)
        if function == "solve":
            return lambda: linalg.solve(a, b)
        return lambda: getattr(linalg, function)(a)

    def variance(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: x.var(axis=-1)

    def sum_all(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: x.sum()

    def sum_first_axis(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: x.sum(axis=0)

    def sort(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: np.sort(x)

    def argsort(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: np.argsort(x)

    def topk(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: np.partition(x, -LARGEST)[..., -LARGEST:]

    def median(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: np.median(x, axis=-1)

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        x = floats(*shape)
        return lambda: x.cumsum(axis=axis)

    def logcumsumexp(self, shape: tuple[int, ...], axis: int) -> Work:
        x = floats(*shape)
        return lambda: np.logaddexp.accumulate(x, axis=axis)

    def gather(self, shape: tuple[int, ...], count: int) -> Work:
        x, i = floats(*shape), classes(count, shape[0])
        return lambda: x[i]

    def scatter_add(self, shape: tuple[int, ...], count: int) -> Work:
        x, i, v = floats(*shape), classes(count, shape[0]), floats(count, *shape[1:], seed=1)

        def work() -> Any:
            result = x.copy()
            np.add.at(result, i, v)
            return result

        return work

    def fourier(self, transform: str, shape: tuple[int, ...], **keywords: Any) -> Work:
        function, x = getattr(scipy.fft, transform), fourier_data(transform, shape)
        return lambda: function(x, workers=self.threads, **keywords)

    def distances(self, count: int, dimensions: int) -> Work:
        x, y = floats(count, dimensions), floats(count, dimensions, seed=1)
        return lambda: ((x[:, None] - y[None]) ** 2).sum(axis=-1)

    def add(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: x + x

    def add_value(self, shape: tuple[int, ...]) -> Work:
        x = floats(*shape)
        return lambda: np.array(x + x)

    def loop_add(self, rows: int, columns: int) -> Work:
        x, y = row_pairs(rows, columns)
        return lambda: [x[row] + y[:, row] for row in range(rows)]


class CopyPeer:
    """`np.copyto` into existing memory, with ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def gelu(self, shape: tuple[int, ...]) -> Work | None:
        source = floats(*shape).reshape(-1)
        if source.nbytes < SMALLEST:
            return None
        target = np.zeros_like(source)
        sources, targets = np.array_split(source, self.threads), np.array_split(target, self.threads)

        def work() -> Any:
            list(self.pool.map(np.copyto, targets, sources))
            return target

        return work

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work | None:
        del axis
        return self.gelu(shape)

    logcumsumexp = cumsum

    def quantized_product(self, rows: int, size: int, mode: str, bits: int) -> Work:
        """A sum over as many bytes as the matrix has, to measure reading."""
        scales = {"affine": 4 / 64, "mxfp4": 1 / 32}[mode]
        source = np.array_split(floats(int(size * size * (bits / 8 + scales)) // FLOAT32_BYTES), self.threads)
        return lambda: sum(self.pool.map(np.sum, source))

    # All of these read one array; each is compared with a copy of that size.
    softmax = layer_norm = logsumexp = variance = rms_norm = cross_entropy = gelu
    softmax_gradient = layer_norm_gradient = sum_all = sum_first_axis = gelu
