"""Every row of the operation table has the same bits on a card as on the CPU.

Linear algebra runs on the CPU by itself, so that it has the same bits, too.
"""

from __future__ import annotations

import pytest

import weft.core as mx
from tests.gpu.card import require_card
from tests.ops.row import Row, bits, flat, to_array, to_numpy
from tests.ops.table import ROWS

require_card()
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.dtypes])
def test_the_bits_of_the_cpu(row: Row, seed: int) -> None:
    """In all dtypes of the row."""
    for dtype in row.dtypes:
        arguments = row.sample(seed, dtype)
        wanted = flat(row.function(mx, *[to_array(x) for x in arguments]))
        mx.eval(wanted)
        with mx.stream(mx.gpu):
            got = flat(row.function(mx, *[to_array(x) for x in arguments]))
            mx.eval(got)
        for here, there in zip(got, wanted, strict=True):
            assert here.dtype == there.dtype
            assert here.shape == there.shape
            assert bits(to_numpy(here)) == bits(to_numpy(there)), dtype
