"""Every row of the operation table has the same bits on the reference device as on the CPU.

Products of complex matrices and linear algebra differ in their last bits: on the CPU they are those of BLAS and LAPACK,
which define no order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import Row, bits, flat, to_array, to_numpy
from tests.ops.table import ROWS
from tests.ops.test_table import from_library
from tests.sampling import Cases


def check(row: Row, dtype: str, seed: int) -> None:
    arguments = row.sample(seed, dtype)
    wanted = flat(row.function(mx, *[to_array(x) for x in arguments]))
    mx.eval(wanted)
    with mx.stream(mx.gpu):
        got = flat(row.function(mx, *[to_array(x) for x in arguments]))
        mx.eval(got)
    for here, there in zip(got, wanted, strict=True):
        assert here.dtype == there.dtype
        assert here.shape == there.shape
        if from_library(row, dtype):
            np.testing.assert_allclose(to_numpy(here), to_numpy(there), rtol=1e-5, atol=1e-5)
        else:
            assert bits(to_numpy(here)) == bits(to_numpy(there)), dtype


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row.dtypes])
def test_the_bits_of_the_cpu(row: Row, cases: Cases, seed: int) -> None:
    """In one of the dtypes of the row."""
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


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("shape", [(3, 500), (40, 70), (5, 9, 33)], ids=str)
def test_the_order_of_folds(fold: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """Another order of these terms has another sum in float64; and the CPU walks over each shape in its own way."""
    x = mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=shape), dtype=mx.float64)
    for axis in range(len(shape)):
        wanted = FOLDS[fold](x, axis)
        mx.eval(wanted)
        with mx.stream(mx.gpu):
            assert bits(to_numpy(FOLDS[fold](x, axis))) == bits(to_numpy(wanted)), axis
