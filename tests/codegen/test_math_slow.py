"""Every float32 number through every function of one argument."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.kernels import FLOAT32_BOUNDS, REFERENCES, kernel, method, ulps, worst
from weft import dtypes

CHUNK = 1 << 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", REFERENCES)
def test_all_float32_numbers(name):
    run = kernel(method(name), dtypes.float32)
    for start in range(0, 1 << 32, CHUNK):
        x = np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)
        got, exact = run(x), REFERENCES[name](x.astype(np.float64))
        assert np.max(ulps(got, exact)) <= FLOAT32_BOUNDS[name], f"{name}: {worst(x, got, exact)}"
