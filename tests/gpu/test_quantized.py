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
    rng: np.random.Generator, shape: tuple[int, int, int], dtype: mx.Dtype, group_size: int = 64, bits: int = 4
) -> tuple[mx.array, tuple[mx.array, mx.array, mx.array]]:
    """A left operand and a quantised matrix, for the given rows, columns and terms."""
    rows, columns, inner = shape
    with mx.stream(mx.cpu):
        matrix = mx.quantize(mx.array(rng.normal(size=(columns, inner)), dtype=dtype), group_size, bits)
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


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_sums_of_integers(rng: np.random.Generator, group_size: int, bits: int) -> None:
    for rows, dtype in ((1, mx.float32), (3, mx.bfloat16), (8, mx.float16)):
        x, matrix = operands(rng, (rows, 100, 21 * 128), dtype, group_size, bits)
        wanted, found = (
            mx.quantized_matmul(x, *matrix, group_size=group_size, bits=bits, stream=device)
            for device in (mx.cpu, mx.gpu)
        )
        assert_same_bits(found, wanted)


def test_many_rows_of_half_precision(rng: np.random.Generator) -> None:
    """The elements of the matrix are rounded too: results differ in their last bits."""
    x, matrix = operands(rng, (200, 300, 1024), mx.bfloat16)
    wanted = np.array(mx.quantized_matmul(x, *matrix, stream=mx.cpu).astype(mx.float32, stream=mx.cpu))
    found = np.array(mx.quantized_matmul(x, *matrix, stream=mx.gpu).astype(mx.float32, stream=mx.cpu))
    assert abs(found - wanted).max() < 2.0**-7 * abs(wanted).max()
    assert_same_bits(*[mx.quantized_matmul(x, *matrix, stream=mx.gpu) for _ in range(2)])
