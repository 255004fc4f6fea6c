"""Long Fourier transforms have the same bits on the reference device as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import bits, to_numpy


@pytest.mark.slow
@pytest.mark.parametrize("length", [375 * 360, 4099])
def test_the_bits_of_long_transforms(length: int, rng: np.random.Generator) -> None:
    """A transform that is computed in two halves, and one that is a convolution."""
    x = (rng.normal(size=length) + 1j * rng.normal(size=length)).astype(np.complex64)
    wanted = to_numpy(mx.fft.ifft(mx.array(x)))
    with mx.stream(mx.gpu):
        assert bits(to_numpy(mx.fft.ifft(mx.array(x)))) == bits(wanted)
