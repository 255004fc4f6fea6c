"""Matrix products on the reference device."""

from __future__ import annotations

import numpy as np

import weft.primitives as p
from tests.reference.lanes import fused
from tests.reference.routines import by
from weft.compiler.cpu.product_step import DEPTH


@by(p.matmul.routine)
def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Every element is the sum, in order, of blocks of ``DEPTH`` terms, each summed in order with fused multiply-adds.
    Elements of half precision are float32 before. Complex products are those of NumPy."""
    if a.dtype.itemsize == 2:
        a, b = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for start in range(0, a.shape[-1], DEPTH):
        total = total + _block(a[..., start : start + DEPTH], b[..., start : start + DEPTH, :])
    return total


def _block(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "c":
        return np.matmul(a, b)
    total = np.zeros((), a.dtype)
    for term in range(a.shape[-1]):
        total = fused(a[..., term, None], b[..., term, None, :], total)
    return total
