"""Arrays for the tests of the second device."""

from __future__ import annotations

import numpy as np

import weft.core as mx
from weft.runtime.memory import View


def numbers(*shape: int) -> mx.array:
    """An array that was made from NumPy and is on the CPU."""
    return mx.array(np.arange(np.prod(shape)).reshape(shape).astype(np.float32))


def view_of(x: mx.array) -> View:
    """The view of memory with the elements of an array, after its evaluation."""
    mx.eval(x)
    assert x.node.value is not None
    return x.node.value
