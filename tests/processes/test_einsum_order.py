"""The order of a contraction is the same in all processes."""

from __future__ import annotations

import weft.core as mx
from tests.checks import run_python

SUBSCRIPTS = "ab,bc,cd,de,ef,fg,gh,hi,ij,jk,kl,lm,mn,no,op,pq"
PROGRAM = f"""
import weft.core as mx
print(mx.einsum_path({SUBSCRIPTS!r}, *[mx.zeros((2, 2))] * 16)[0])
"""


def test_another_process_finds_the_same_order() -> None:
    """Python iterates over a set of letters in another order in each process."""
    path, _ = mx.einsum_path(SUBSCRIPTS, *[mx.zeros((2, 2))] * 16)
    assert run_python(PROGRAM, PYTHONHASHSEED="1").strip() == str(path)
