"""Products of a few rows with affine quantised matrices, in NumPy: exact sums of integers, as
`weft.compiler.codegen.integer_sums` defines them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reference.lanes import fused

BLOCK = 256


def apply(dtype: np.dtype[Any], kind: dict[str, Any]) -> bool:
    """Whether products of a few rows in a format are defined so."""
    return kind.get("mode", "affine") == "affine" and 32 % kind.get("bits", 4) == 0 and dtype == np.float32


def product(
    x: np.ndarray, words: np.ndarray, scales: np.ndarray, biases: np.ndarray, group_size: int, bits: int
) -> np.ndarray:
    """``x @ w.T`` for float32 ``x``, with the sums of blocks of 256 terms added in order."""
    narrow = scales.itemsize == 2
    scales, biases = scales.astype(np.float32), biases.astype(np.float32)
    codes = ((words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & ((1 << bits) - 1)).reshape(len(words), -1)
    result = np.zeros((len(x), len(words)), np.float32)
    for row, terms in zip(result, x, strict=True):
        for start in range(0, len(terms), BLOCK):
            total = np.zeros(len(words), np.float32)
            for first in range(start, min(start + BLOCK, len(terms)), group_size):
                unit, numbers = in_units(terms[first : first + group_size])
                scale, bias = scales[:, first // group_size], biases[:, first // group_size]
                with np.errstate(all="ignore"):
                    zero = np.clip(np.nan_to_num(np.rint(-bias / scale), nan=0), 0, (1 << bits) - 1)
                    from_zero = codes[:, first : first + group_size].astype(np.int64) - zero[:, None].astype(np.int64)
                    total = fused(scale * unit, (from_zero @ numbers).astype(np.float32), total)
                    code = zero.astype(np.float32)
                    offset = fused(code, scale, bias) if narrow else code * scale + bias
                    total = fused(offset * unit, np.full_like(scale, numbers.sum()), total)
            row += total
    return result


def in_units(terms: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """The unit of a group, and its terms as multiples of it."""
    largest = abs(terms).max()
    if not np.isfinite(largest):
        return np.float32(np.nan), np.zeros(len(terms), np.int64)
    # The largest term has less than 23 bits and 127/128 in units; numbers below 2^-104 have the unit of that.
    exponent = max(np.frexp(largest)[1] - 1 if largest else -200, -104)
    if largest >= np.ldexp(2 - 1 / 64, exponent):
        exponent += 1
    numbers = np.rint(np.ldexp(terms.astype(np.float64), 22 - exponent))
    return np.float32(np.ldexp(1.0, exponent - 22)), numbers.astype(np.int64)
