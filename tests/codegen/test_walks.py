"""In which order the CPU goes over the elements of a kernel."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of


@pytest.mark.parametrize("axes", [(0, 3, 1, 2), (3, 0, 1, 2), (3, 1, 0, 2)], ids=str)
def test_a_transposed_array_is_read_in_tiles_wherever_its_last_axis_goes(
    axes: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Zeros around the result prevent that its axes are merged, so neighbours in memory may be neighbours along any of
    the row axes."""
    x = mx.array(rng.normal(size=(4, 30, 24, 40)).astype(np.float32))
    around = ((0, 0), (1, 0), (1, 1), (2, 1))

    def padded(x: mx.array) -> mx.array:
        return mx.pad(mx.transpose(x, axes), around)

    with mx.stream(mx.cpu):
        (plan,) = plans_of(padded, x)
        assert "tiled" in str(plan)
        np.testing.assert_array_equal(np.array(padded(x)), np.pad(np.transpose(np.array(x), axes), around))
