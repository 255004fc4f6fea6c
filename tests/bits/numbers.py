"""Numbers for the programs whose digests are on file: the same with every NumPy, whose generators may change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

Shape = Sequence[int] | int


class Numbers:
    """The methods of a generator that rows of the operation table use. They draw from Python's ``random``, whose
    numbers never change."""

    def __init__(self, seed: str) -> None:
        self._generator = random.Random(seed)

    def random(self, shape: Shape = ()) -> np.ndarray:
        """Numbers from 0 to below 1."""
        size = int(np.prod(shape))
        return np.array([self._generator.random() for _ in range(size)], dtype=np.float64).reshape(shape)

    def uniform(self, low: float, high: float, shape: Shape = ()) -> np.ndarray:
        return low + (high - low) * self.random(shape)

    def choice(self, values: Any, shape: Shape = ()) -> np.ndarray:
        values = np.asarray(values)
        return values[(self.random(shape) * len(values)).astype(np.int64)]

    def permutation(self, size: int) -> np.ndarray:
        return np.argsort(self.random(size), kind="stable")
