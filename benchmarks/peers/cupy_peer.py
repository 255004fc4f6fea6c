"""CuPy on a GPU, and copies of memory of the GPU."""

from __future__ import annotations

import math
from typing import Any

import cupy as cp
from cupyx.scipy.special import erf

from . import Work, floats


class _OnGpu:
    def __init__(self, threads: int) -> None:
        del threads

    def synchronize(self, result: Any) -> None:
        cp.cuda.Device().synchronize()


class CupyPeer(_OnGpu):
    def _called(self, function: Any, *shapes: tuple[int, ...]) -> Work:
        arrays = [cp.asarray(floats(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
        return lambda: function(*arrays)

    def gelu(self, shape: tuple[int, ...]) -> Work:
        return self._called(lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, shape)

    def softmax(self, shape: tuple[int, ...]) -> Work:
        def softmax(x: Any) -> Any:
            powers = cp.exp(x - x.max(axis=-1, keepdims=True))
            return powers / powers.sum(axis=-1, keepdims=True)

        return self._called(softmax, shape)

    def sum_all(self, shape: tuple[int, ...]) -> Work:
        return self._called(cp.sum, shape)

    def sum_first_axis(self, shape: tuple[int, ...]) -> Work:
        return self._called(lambda x: x.sum(axis=0), shape)

    def sum_last_axis(self, shape: tuple[int, ...]) -> Work:
        return self._called(lambda x: x.sum(axis=-1), shape)

    def transpose(self, shape: tuple[int, ...]) -> Work:
        return self._called(lambda x: cp.ascontiguousarray(x.T), shape)

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        return self._called(lambda x: cp.cumsum(x, axis=axis), shape)

    def sort(self, shape: tuple[int, ...]) -> Work:
        return self._called(cp.sort, shape)

    def add_value(self, shape: tuple[int, ...]) -> Work:
        return self._called(lambda x: cp.asnumpy(x + x), shape)


class CopyPeer(_OnGpu):
    """A copy from one array of the GPU to another."""

    def gelu(self, shape: tuple[int, ...]) -> Work:
        source = cp.asarray(floats(*shape))
        target = cp.zeros_like(source)
        return lambda: cp.copyto(target, source)

    def cumsum(self, shape: tuple[int, ...], axis: int) -> Work:
        del axis
        return self.gelu(shape)

    # All of these read one array; each is compared with a copy of that size.
    softmax = layer_norm = cross_entropy = softmax_gradient = layer_norm_gradient = gelu
    sum_all = sum_first_axis = sum_last_axis = transpose = gelu
