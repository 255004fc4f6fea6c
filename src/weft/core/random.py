"""Random numbers: ``mx.random``."""

import time as _time

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
seed(_time.time_ns())
