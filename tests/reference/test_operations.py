"""Every row of the operation table has the same bits on the reference device as on the CPU.

Products of complex matrices differ in their last bits: on the CPU they are those of BLAS, which defines no order.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import Row, bits, flat, to_array, to_numpy
from tests.ops.table import ROWS
from tests.ops.test_table import LIBRARY_CALLS
from tests.sampling import Cases


def check(row: Row, dtype: str, seed: int) -> None:
    arguments = row.sample(seed, dtype)
    wanted = flat(row.function(mx, *[to_array(x) for x in arguments]))
    mx.eval(wanted)
    with mx.stream(mx.gpu):
        got = flat(row.function(mx, *[to_array(x) for x in arguments]))
        mx.eval(got)
    for here, there in zip(got, wanted, strict=True):
        assert here.dtype == there.dtype
        assert here.shape == there.shape
        if dtype == "complex64" and row.name in LIBRARY_CALLS:
            np.testing.assert_allclose(np.array(here), np.array(there), rtol=1e-5, atol=1e-5)
        else:
            assert bits(to_numpy(here)) == bits(to_numpy(there)), dtype


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.dtypes])
def test_the_bits_of_the_cpu(row: Row, cases: Cases, seed: int) -> None:
    """In one of the dtypes of the row."""
    for dtype in cases.some(1, row.dtypes):
        check(row, dtype, seed)
