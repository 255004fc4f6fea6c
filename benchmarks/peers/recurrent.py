"""A net of one LSTM and a classifier of its states, the same for all peers.

The weights of the four gates are stacked in this order: input, forget, new and output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import Floats, classes, floats

CLASSES = 10


def lstm_values(width: int) -> dict[str, Floats]:
    """Weights of inputs and states, the bias, and a linear layer."""
    shapes = {"Wx": (4 * width, width), "Wh": (4 * width, width), "bias": (4 * width,), "head": (CLASSES, width)}
    bound = width**-0.5
    return {
        name: np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def lstm_data(batch: int, steps: int, width: int) -> tuple[Floats, npt.NDArray[np.int32]]:
    """Sequences, and a label for each of their steps."""
    return floats(batch, steps, width), classes(batch * steps, CLASSES).reshape(batch, steps)
