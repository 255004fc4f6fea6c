"""Random numbers: ``mx.random``."""

from __future__ import annotations

import time

from weft.ops.multivariate import multivariate_normal
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
    "multivariate_normal",
    "normal",
    "permutation",
    "randint",
    "seed",
    "split",
    "state",
    "truncated_normal",
    "uniform",
]

# Every process starts elsewhere unless it seeds.
seed(time.time_ns())
