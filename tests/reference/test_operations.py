"""Every row of the operation table has the same bits on the reference device as on the CPU.

Linear algebra differs in its last bits: the CPU uses LAPACK, which defines no order of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.ops.row import Row, bits, to_numpy
from tests.ops.table import ROWS
from tests.ops.test_table import from_library
from tests.sampling import Cases
from weft.compiler.running import evaluate
from weft.primitives import scans
from weft.primitives.sort_cuts import MIDDLE


def check(row: Row, dtype: str, seed: int) -> None:
    for there, here in row.on_cpu_and_gpu(row.sample(seed, dtype)):
        if from_library(row, dtype) or (row.name.startswith("linalg.") and row.name != "linalg.cross"):
            np.testing.assert_allclose(to_numpy(here), to_numpy(there), rtol=1e-5, atol=1e-5)
        else:
            assert bits(to_numpy(here)) == bits(to_numpy(there)), dtype


@pytest.mark.some_rows(60)
@pytest.mark.some_variants
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.dtypes])
def test_the_bits_of_the_cpu(row: Row, cases: Cases, seed: int) -> None:
    """In one dtype of the row, as a slow test in all."""
    for dtype in cases.some(1, row.dtypes):
        check(row, dtype, seed)


FOLDS: dict[str, Callable[[mx.array, int], mx.array]] = {
    "sum": lambda x, axis: mx.sum(x, axis=axis),
    "complex": lambda x, axis: mx.sum(x.astype(mx.complex64) * (1 + 2j), axis=axis),
    "argmax": lambda x, axis: mx.argmax(mx.round(x), axis=axis),
    "softmax": lambda x, axis: mx.softmax(x, axis=axis),
    "var": lambda x, axis: mx.var(x, axis=axis),
    "logsumexp": lambda x, axis: mx.logsumexp(x, axis=axis),
    "cumsum": lambda x, axis: mx.cumsum(mx.abs(x), axis=axis) * 2,
    "cumsum, reverse": lambda x, axis: mx.cumsum(x, axis=axis, reverse=True, inclusive=False),
    "recurrence": lambda x, axis: mx.grad(lambda x: mx.sum(mx.cumprod(mx.sin(x), axis=axis)))(x),
    "product": lambda x, axis: mx.matmul(x, mx.swapaxes(x, -1, -2)),
    "transposed": lambda x, axis: mx.sum(mx.swapaxes(x, 0, -1) * 2, axis=axis),
}


SHAPES = [(3, 500), (40, 70), (5, 9, 33), (530, 18)]
SLOW = ("product", (530, 18))
"""The reference, in plain Python, takes ten seconds for 5 million multiplications."""


@pytest.mark.some_rows(20)
@pytest.mark.parametrize(
    ("fold", "shape"),
    [
        pytest.param(fold, shape, id=f"{shape}-{fold}", marks=pytest.mark.slow if (fold, shape) == SLOW else ())
        for shape in SHAPES
        for fold in FOLDS
    ],
)
def test_the_order_of_folds(fold: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """In float64 another order of these terms gives another sum; and the CPU walks over each of the shapes in another
    way."""
    x = mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape), dtype=mx.float64)
    for axis in range(len(shape)):
        wanted = FOLDS[fold](x, axis)
        mx.eval(wanted)
        with mx.stream(mx.gpu):
            assert bits(to_numpy(FOLDS[fold](x, axis))) == bits(to_numpy(wanted)), axis


DRAWS: dict[str, Callable[[mx.array], mx.array]] = {
    "normal": lambda key: mx.random.normal((3, 21), key=key),
    "truncated normal": lambda key: mx.random.truncated_normal(-1, mx.array([0.5, 3]), (20, 2), mx.float16, key),
    "gumbel": lambda key: mx.random.gumbel((50,), mx.bfloat16, key),
    "laplace": lambda key: mx.random.laplace((50,), key=key),
    "categorical": lambda key: mx.random.categorical(mx.arange(40) * 0.1, num_samples=30, key=key),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_random_numbers(draw: str) -> None:
    wanted = DRAWS[draw](mx.random.key(5))
    mx.eval(wanted)
    with mx.stream(mx.gpu):
        assert bits(to_numpy(DRAWS[draw](mx.random.key(5)))) == bits(to_numpy(wanted))


SCANS: dict[str, Callable[..., mx.array]] = {
    "cumsum": mx.cumsum,
    "of complex numbers": lambda x, **manner: mx.cumprod(mx.exp(x * 1e-4j), **manner),
    "half": lambda x, **manner: mx.cummax(x.astype(mx.float16), **manner),
    "logcumsumexp": mx.logcumsumexp,
    "recurrence": lambda x, **manner: p.recurrence(mx.sin(x), x, **manner),
    "sequential": p.sequential_cumsum,
}


@pytest.mark.parametrize("scan", SCANS)
def test_the_order_of_scans_in_chunks(scan: str, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CHUNKED_SIZE", 64), ("CHUNK", 32), ("ROW_CHUNK", 32), ("SHORTEST_CHUNK", 20)):
        monkeypatch.setattr(scans, name, value)
    evaluate.forget_plans()
    rng = np.random.default_rng(0)
    ways = list(product([((3, 131), 1), ((70, 5), 0)], (False, True), (False, True)))
    for (shape, axis), reverse, inclusive in cases.some(2, ways):
        x = mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape), dtype=mx.float32)
        wanted = SCANS[scan](x, axis=axis, reverse=reverse, inclusive=inclusive)
        mx.eval(wanted)
        with mx.stream(mx.gpu):
            got = SCANS[scan](x, axis=axis, reverse=reverse, inclusive=inclusive)
            assert bits(to_numpy(got)) == bits(to_numpy(wanted))
    evaluate.forget_plans()


def test_partitions_of_long_rows(rng: np.random.Generator) -> None:
    """Rows of at most ``MIDDLE`` elements would be sorted."""
    x = mx.array(np.round(rng.normal(size=(3, MIDDLE + 50)) * 9).astype(np.float32))
    for function in (mx.partition, mx.argpartition):
        assert bits(to_numpy(function(x, 70, stream=mx.gpu))) == bits(to_numpy(function(x, 70)))
