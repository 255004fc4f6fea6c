"""Products of many rows with few matrices that indices choose: memory, sums that are derivatives, and what stays apart
when rows are put together in blocks."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import to_numpy

EXPERTS, INNER, COLUMNS = 5, 12, 7
INDICES = ["random", "sorted", "one expert", "out of range"]


def indices(kind: str, rng: np.random.Generator, rows: int) -> np.ndarray:
    found = rng.integers(0, EXPERTS, rows)
    if kind == "sorted":
        return np.sort(found)
    if kind == "one expert":
        return np.full(rows, EXPERTS - 1)
    return found if kind == "random" else rng.integers(-EXPERTS - 3, EXPERTS + 3, rows)


def inside(index: np.ndarray) -> np.ndarray:
    return np.clip(np.where(index < 0, index + EXPERTS, index), 0, EXPERTS - 1)


def product(x: mx.array, w: mx.array, index: mx.array) -> mx.array:
    return mx.gather_mm(x, w, rhs_indices=index)


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize(("rows", "high"), [(1, 1), (33, 1), (64, 3), (700, 1)])
def test_values_are_those_of_copied_matrices(rng: np.random.Generator, kind: str, rows: int, high: int) -> None:
    index = indices(kind, rng, rows)
    x, w = mx.array(rng.normal(size=(rows, high, INNER))), mx.array(rng.normal(size=(EXPERTS, INNER, COLUMNS)))
    expected = mx.matmul(x, w[mx.array(inside(index))])
    assert mx.array_equal(product(x, w, mx.array(index)), expected).item()


@pytest.mark.parametrize(("rows", "high"), [(0, 1), (64, 0), (0, 0)])
@pytest.mark.parametrize("matrices", [1, 4])
def test_no_rows_at_all(rows: int, high: int, matrices: int) -> None:
    x, w, index = mx.zeros((rows, high, INNER)), mx.ones((matrices, INNER, COLUMNS)), mx.zeros((rows,), mx.int32)
    value, slope = mx.value_and_grad(lambda w: product(x, w, index).sum())(w)
    assert product(x, w, index).shape == (rows, high, COLUMNS)
    assert value.item() == 0
    assert mx.array_equal(slope, mx.zeros_like(w)).item()
    words, scales, biases = mx.quantize(mx.ones((matrices, 32, 32)), group_size=32)
    found = mx.gather_qmm(mx.zeros((rows, high, 32)), words, scales, biases, rhs_indices=index, group_size=32)
    assert found.shape == (rows, high, 32)
    mx.eval(found)


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("rows", [6, 200])
def test_derivatives_of_first_and_second_order(rng: np.random.Generator, kind: str, rows: int) -> None:
    index = indices(kind, rng, rows)
    x = mx.array(rng.normal(size=(rows, 2, INNER)), mx.float64)
    w = mx.array(rng.normal(size=(EXPERTS, INNER, COLUMNS)), mx.float64)

    def derivatives(multiply):
        def loss(x, w):
            return mx.sin(multiply(x, w)).sum()

        def slopes(x, w):
            return sum((g * mx.cos(g)).sum() for g in mx.grad(loss, argnums=(0, 1))(x, w))

        return [*mx.grad(loss, argnums=(0, 1))(x, w), *mx.grad(slopes, argnums=(0, 1))(x, w)]

    found = derivatives(lambda x, w: product(x, w, mx.array(index)))
    expected = derivatives(lambda x, w: mx.matmul(x, w[mx.array(inside(index))]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-11, atol=1e-11)


def test_infinities_stay_with_their_rows_and_matrices(rng: np.random.Generator) -> None:
    index = indices("random", rng, 80)
    x, w = rng.normal(size=(80, 1, INNER)), rng.normal(size=(EXPERTS, INNER, COLUMNS))
    x[3], w[1] = np.inf, np.nan
    a, b, chosen = mx.array(x), mx.array(w), mx.array(index)
    assert mx.array_equal(product(a, b, chosen), mx.matmul(a, b[chosen]), equal_nan=True).item()
    slope = mx.grad(lambda w: product(a, w, chosen).sum())(b)
    others = np.delete(np.arange(EXPERTS), index[3])
    assert np.isfinite(to_numpy(slope)[others]).all()


def test_vmap_over_everything(rng: np.random.Generator) -> None:
    index = np.stack([indices("random", rng, 64) for _ in range(3)])
    x, w = mx.array(rng.normal(size=(3, 64, 1, INNER))), mx.array(rng.normal(size=(3, EXPERTS, INNER, COLUMNS)))
    together = mx.vmap(mx.grad(lambda w, x, i: (product(x, w, i) ** 2).sum()))(w, x, mx.array(index))
    alone = [mx.grad(lambda w, n=n: (product(x[n], w, mx.array(index[n])) ** 2).sum())(w[n]) for n in range(3)]
    np.testing.assert_allclose(to_numpy(together), to_numpy(mx.stack(alone)), rtol=1e-4, atol=1e-4)


def test_matrices_are_not_copied_for_every_row(rng: np.random.Generator) -> None:
    """1,024 copies of these matrices would have 32 MB."""
    x, w = mx.array(rng.normal(size=(1024, 1, 64))), mx.array(rng.normal(size=(8, 64, 128)))
    index = mx.array(rng.integers(0, 8, 1024))
    step = mx.compile(mx.grad(lambda x, w: (product(x, w, index) ** 2).sum(), argnums=(0, 1)))
    mx.eval(x, w, index)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(step(x, w))
    assert mx.get_peak_memory() - before < 12 << 20


@pytest.mark.parametrize("kind", INDICES)
def test_many_rows_with_quantised_matrices(rng: np.random.Generator, kind: str) -> None:
    """They have the bits of single products."""
    index = mx.array(indices(kind, rng, 60))
    x, w = mx.array(rng.normal(size=(60, 1, 64))), mx.array(rng.normal(size=(EXPERTS, COLUMNS, 64)))
    packed = mx.quantize(w, group_size=32, bits=4)

    def multiplied(x: mx.array, index: mx.array) -> mx.array:
        return mx.gather_qmm(x, *packed, rhs_indices=index, group_size=32, bits=4)

    single = [multiplied(x[row], index[row]) for row in range(60)]
    assert mx.array_equal(multiplied(x, index), mx.stack(single)).item()
