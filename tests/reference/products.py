"""Matrix products on the reference device."""

from __future__ import annotations

import numpy as np

import weft.primitives as p
from tests.reference.lanes import fused
from tests.reference.routines import by
from weft.primitives.products import DEPTH


@by(p.matmul.routine, attaches=True)
def product(a: np.ndarray, b: np.ndarray, precision: str = "reproducible") -> np.ndarray:
    """Every element is the sum, in order, of blocks of ``DEPTH`` terms, each summed in order with fused multiply-adds.
    Elements of half precision become float32 first; complex products are made from real ones; products of integers wrap
    around."""
    if a.dtype.kind in "iu":
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return np.asarray(np.matmul(a.astype(wide), b.astype(wide)))
    if a.dtype.kind == "c":
        return np.ascontiguousarray(product(*_of_real(a, b))).view(a.dtype)
    a, b = [x.astype(np.float32) if x.dtype.itemsize == 2 else x for x in (a, b)]
    total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
    for start in range(0, a.shape[-1], DEPTH):
        total = total + _block(a[..., start : start + DEPTH], b[..., start : start + DEPTH, :])
    return total


def _of_real(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The real matrices of a complex product. The parts of ``a`` are terms; ``b`` has, for each term, a row and then
    the row of ``1j * b``, with the parts as columns."""
    *batch, inner, columns = b.shape
    right = np.empty((*batch, inner, 2, columns, 2), b.real.dtype)
    right[..., 0, :, 0], right[..., 0, :, 1] = b.real, b.imag
    right[..., 1, :, 0], right[..., 1, :, 1] = -b.imag, b.real
    return np.ascontiguousarray(a).view(a.real.dtype), right.reshape(*batch, 2 * inner, 2 * columns)


def _block(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((), a.dtype)
    for term in range(a.shape[-1]):
        total = fused(a[..., term, None], b[..., term, None, :], total)
    return total
