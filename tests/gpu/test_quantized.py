"""Products with quantised matrices on a card, of sizes that take too long without one."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card

require_card()
pytestmark = pytest.mark.gpu


def operands(
    rng: np.random.Generator, shape: tuple[int, int, int], dtype: mx.Dtype
) -> tuple[mx.array, tuple[mx.array, mx.array, mx.array]]:
    """A left operand and a quantised matrix of 4 bits, for the given rows, columns and terms."""
    rows, columns, inner = shape
    with mx.stream(mx.cpu):
        matrix = mx.quantize(mx.array(rng.normal(size=(columns, inner)), dtype=dtype))
        x = mx.array(rng.normal(size=(rows, inner)), dtype=dtype)
        mx.eval(x, matrix)
    return x, matrix


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1024, 4096), (1, 333, 14336), (7, 1000, 2880), (31, 500, 1024), (100, 64, 320)])
def test_the_bits_of_the_cpu(rng: np.random.Generator, shape: tuple[int, int, int], dtype: mx.Dtype) -> None:
    """For few rows, or for float32; the library multiplies many rows in half precision."""
    x, matrix = operands(rng, shape, mx.float32 if shape[0] > 31 else dtype)
    wanted = mx.quantized_matmul(x, *matrix, stream=mx.cpu)
    assert_same_bits(mx.quantized_matmul(x, *matrix, stream=mx.gpu), wanted)


def test_many_rows_of_half_precision(rng: np.random.Generator) -> None:
    """The elements of the matrix are rounded too: results differ in their last bits."""
    x, matrix = operands(rng, (200, 300, 1024), mx.bfloat16)
    wanted = np.array(mx.quantized_matmul(x, *matrix, stream=mx.cpu).astype(mx.float32, stream=mx.cpu))
    found = np.array(mx.quantized_matmul(x, *matrix, stream=mx.gpu).astype(mx.float32, stream=mx.cpu))
    assert abs(found - wanted).max() < 2.0**-7 * abs(wanted).max()
    assert_same_bits(*[mx.quantized_matmul(x, *matrix, stream=mx.gpu) for _ in range(2)])
