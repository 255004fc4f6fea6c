"""Updates at indices that occur several times: sorted by index, they have the bits of updates one after the other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from tests.cuda.test_kernels import same_bits
from tests.ops.row import bits, to_numpy
from tests.sampling import Cases
from weft.compiler.codegen import nvptx
from weft.compiler.cuda import scattering
from weft.compiler.cuda.scattering import FEWEST_UPDATES

COUNT = FEWEST_UPDATES + 3


def updated(mode: str, x: mx.array, *indices: mx.array, updates: mx.array) -> mx.array:
    if mode != "set":
        return getattr(x.at[indices], mode)(updates)
    result = mx.array(x)
    result[indices] = updates
    return result


def test_indices_may_repeat(cases: Cases, rng: np.random.Generator) -> None:
    modes = ("add", "set", "multiply", "maximum", "minimum")
    for mode, dtype in cases.some(2, list(product(modes, (mx.float32, mx.bfloat16, mx.int32)))):
        x, updates = (mx.array(rng.normal(size=size) * 10).astype(dtype) for size in ((9, 5), (COUNT, 5)))
        index = mx.array(rng.integers(-9, 9, COUNT))
        assert same_bits(lambda x, at, u, mode=mode: updated(mode, x, at, updates=u), x, index, updates), (mode, dtype)


def test_several_indices_and_rows_of_one_number(rng: np.random.Generator) -> None:
    x, updates = mx.array(rng.normal(size=(6, 7))), mx.array(rng.normal(size=COUNT))
    rows, columns = (mx.array(rng.integers(-extent, extent, COUNT)) for extent in x.shape)
    assert same_bits(lambda x: updated("add", x, rows, columns, updates=updates), x)


def test_gradient_of_an_embedding(rng: np.random.Generator) -> None:
    table, factors = mx.array(rng.normal(size=(20, 4))), mx.array(rng.normal(size=(COUNT, 4)))
    tokens = mx.array(rng.integers(0, 20, COUNT))
    gradient = mx.grad(lambda table: (table[tokens] * factors).sum())
    assert same_bits(gradient, table)
    with mx.stream(mx.gpu):
        assert any("row_updates" in str(plan) for plan in plans_of(gradient, table))


def test_the_current_stream_may_be_another_one_when_it_is_planned(rng: np.random.Generator) -> None:
    x, updates = (mx.array(rng.normal(size=(count, 4))) for count in (20, COUNT))
    index = mx.array(rng.integers(0, 20, COUNT))
    with mx.stream(mx.gpu):
        found = x.at[index].add(updates)
    with mx.stream(mx.cpu):
        wanted = x.at[index].add(updates)
        assert bits(to_numpy(found)) == bits(to_numpy(wanted))


def test_few_updates_of_a_large_array_are_done_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scattering, "BYTES_PER_UPDATE", 1)
    x, index, updates = mx.zeros((20, 3)), mx.zeros((COUNT,), mx.int32), mx.ones((COUNT, 3))
    with mx.stream(mx.gpu):
        assert not any("row_updates" in str(plan) for plan in plans_of(lambda x: x.at[index].add(updates), x))


def test_ptx() -> None:
    assert ".entry kernel(" in nvptx.ptx(scattering.generate(mx.bfloat16, "add", "kernel"), "sm_90")
