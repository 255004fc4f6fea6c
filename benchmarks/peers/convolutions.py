"""Convolutions of one layer and a small convolutional net, the same for all peers.

Arrays are `(N, ..., C)` and weights `(O, ..., C / groups)`; frameworks that need channels first get views of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import Floats, classes, floats

IMAGE = (32, 32, 3)
CHANNELS = (32, 64, 64)
CLASSES = 10
SIZE = 3


@dataclass(frozen=True)
class Convolution:
    """The shapes of array and weights, and the geometry of windows; if `transposed`, of the transposed convolution."""

    array: tuple[int, ...]
    weights: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    transposed: bool = False

    @property
    def rank(self) -> int:
        return len(self.array) - 2

    @property
    def result(self) -> tuple[int, ...]:
        extents = zip(self.array[1:-1], self.weights[1:-1], strict=True)
        if self.transposed:
            inner = [(n - 1) * self.stride + size - 2 * self.padding for n, size in extents]
        else:
            inner = [(n + 2 * self.padding - size) // self.stride + 1 for n, size in extents]
        return (self.array[0], *inner, self.weights[0])

    def data(self) -> tuple[Floats, Floats, Floats]:
        """The array, the weights and the cotangent of the result."""
        return floats(*self.array), floats(*self.weights, seed=1), floats(*self.result, seed=2)


def cnn_values() -> dict[str, Floats]:
    """Weights of three convolutions and of a linear layer."""
    random = np.random.default_rng(3)
    inputs, values = IMAGE[-1], {}
    for number, outputs in enumerate(CHANNELS):
        scale = (2 / (inputs * SIZE**2)) ** 0.5
        values[f"kernel{number}"] = random.normal(0, scale, (outputs, SIZE, SIZE, inputs)).astype(np.float32)
        values[f"bias{number}"] = np.zeros(outputs, dtype=np.float32)
        inputs = outputs
    values["head"] = random.normal(0, inputs**-0.5, (CLASSES, inputs)).astype(np.float32)
    return values


def cnn_data(batch: int) -> tuple[Floats, npt.NDArray[np.int32]]:
    """A batch of images and labels."""
    return np.random.default_rng(1).random((batch, *IMAGE), dtype=np.float32), classes(batch, CLASSES)
