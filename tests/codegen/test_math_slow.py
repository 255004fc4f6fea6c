"""Every eighth float32 number, others for each seed, through every function of one argument."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.kernels import FLOAT32_BOUNDS, REFERENCES, kernel, method, ulps, worst
from weft import dtypes

CHUNK = 1 << 20
STEP = 8
"""Reason: NumPy takes a minute for the expected results of all numbers."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", REFERENCES)
def test_float32_numbers_of_every_magnitude(name, seed):
    run = kernel(method(name), dtypes.float32)
    for start in range(seed % STEP, 1 << 32, CHUNK * STEP):
        x = np.arange(start, min(start + CHUNK * STEP, 1 << 32), STEP, dtype=np.uint32).view(np.float32)
        got, exact = run(x), REFERENCES[name](x.astype(np.float64))
        assert np.max(ulps(got, exact)) <= FLOAT32_BOUNDS[name], f"{name}: {worst(x, got, exact)}"
