"""Values that stay in shared memory from one pass over a row to the next."""

from __future__ import annotations

import pytest

import weft.core as mx
from tests.ops.table import ROWS
from tests.ops.test_derivatives import Problem, check_second_order, check_vjp

ROW = {row.id: row for row in ROWS}


@pytest.mark.parametrize("name", ["softmax-last", "logsumexp-last"])
def test_what_a_pass_still_recalls_is_not_overwritten(name: str, seed: int) -> None:
    """Such kernels save a value in a pass that reads another one for the last time; it must not overwrite that one
    before."""
    mx.set_default_device(mx.gpu)
    check_vjp(Problem(ROW[name], "float64", seed))
    check_second_order(Problem(ROW[name], "float64", seed))
