"""Random numbers, ``mx.random``."""

from __future__ import annotations

from weft.ops.random import (
    bernoulli,
    categorical,
    gumbel,
    key,
    laplace,
    normal,
    permutation,
    randint,
    seed,
    split,
    state,
    truncated_normal,
    uniform,
)

__all__ = [
    "bernoulli",
    "categorical",
    "gumbel",
    "key",
    "laplace",
    "normal",
    "permutation",
    "randint",
    "seed",
    "split",
    "state",
    "truncated_normal",
    "uniform",
]
