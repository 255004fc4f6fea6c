"""Arrays to try the second device with."""

from __future__ import annotations

import numpy as np

import weft.core as mx
from weft.runtime.memory import View


def numbers(*shape: int) -> mx.array:
    """Evaluated on the CPU, from NumPy."""
    return mx.array(np.arange(np.prod(shape)).reshape(shape).astype(np.float32))


def view_of(x: mx.array) -> View:
    """Where the elements of an array are."""
    mx.eval(x)
    assert x.node.value is not None
    return x.node.value
