"""Every row of the operation table has the same bits on a card as on the CPU, unless a library computes it.

Operations that the CPU does for the card have the same bits, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import weft.core as mx
from tests.gpu.card import require_card
from tests.ops.row import Row, assert_near, bits, to_array, to_numpy
from tests.ops.table import ROWS
from weft.runtime import recording
from weft.runtime.cuda.steps import CudaSteps

require_card()
pytestmark = pytest.mark.gpu

OTHER_BITS = {"fast.scaled_dot_product_attention": ("float16", "bfloat16")}
"""Exceptions that docs/guide/same-bits.md names, even where Weft's own kernels compute everything: on a card, attention
rounds weights to half precision."""


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.dtypes])
def test_the_bits_of_the_cpu(row: Row, seed: int) -> None:
    """In all dtypes of the row, bits are the CPU's; or results are near the oracle's, if a library computes them."""
    for dtype in row.dtypes:
        arguments = row.sample(seed, dtype)
        pairs = row.on_cpu_and_gpu(arguments)
        if any(bits(to_numpy(here)) != bits(to_numpy(there)) for here, there in pairs):
            assert dtype in OTHER_BITS.get(row.name, ()) or libraries_used(row, arguments), dtype
            assert_near_oracle(row, arguments, [there for _, there in pairs], dtype)


def libraries_used(row: Row, arguments: Sequence[np.ndarray]) -> list[str]:
    """The calls of libraries for a row on the card."""
    with recording.recorded() as recorder, mx.stream(mx.gpu):
        mx.eval(row.function(mx, *[to_array(x) for x in arguments]))
    steps = [run.plan.steps for run in recorder.runs if isinstance(run.plan.steps, CudaSteps)]
    return [call.title for one in steps for call in one.calls.values()]


def assert_near_oracle(row: Row, arguments: Sequence[np.ndarray], got: Sequence[mx.array], dtype: str) -> None:
    for here, want in zip(got, row.expected(arguments), strict=True):
        assert_near(to_numpy(here), want, row.tolerance(dtype), row.elementwise)
