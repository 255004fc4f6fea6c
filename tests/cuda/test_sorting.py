"""Sorting, partitioning and searching by kernels, run thread by thread: they have the bits of the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.cuda.device import BlocksEngine
from tests.cuda.test_kernels import in_stretches, same_bits
from tests.sampling import Cases
from weft.compiler.cuda.sorting import distribution, steps
from weft.compiler.cuda.sorting.distribution import Move, OfKeys, ThreadBlock
from weft.compiler.cuda.sorting.elements import Elements
from weft.compiler.running import evaluate

NAMES = ("bool_", "uint8", "int16", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64")

FUNCTIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "sort": lambda x: mx.sort(x, axis=-1),
    "argsort": lambda x: mx.argsort(x, axis=-1),
    "topk": lambda x: mx.topk(x, 5, axis=-1),
    "partition": lambda x: mx.partition(x, 9, axis=-1),
    "argpartition": lambda x: mx.argpartition(x, x.shape[-1] // 2, axis=-1),
    "left": lambda x: mx.searchsorted(mx.sort(x[0], axis=-1), x),
    "right": lambda x: mx.searchsorted(mx.sort(x[0], axis=-1), x, side="right"),
    "marked first": lambda x: p.marked_first(x != x[0, 0]),
}


@pytest.fixture
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows of more than 40 elements count as long."""
    block = ThreadBlock(64, 2, 1)
    short = {
        "VALUES": block,
        "INTEGERS": block,
        "WIDE_VALUES": block,
        "INDICES": block,
        "LONGEST_ROW": 40,
        "LONGEST_WIDE_ROW": 40,
    }
    short |= {"COUNTING_THREADS": 64, "SHORTEST_PART": 200}
    for name, value in short.items():
        monkeypatch.setattr(steps, name, value)
    evaluate.forget_plans()
    yield
    evaluate.forget_plans()


def sample(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> mx.array:
    """Elements some of which are equal, with zeros of both signs, infinities and NaN."""
    x = np.round(rng.normal(size=shape) * 8) / 4
    if name in ("float16", "bfloat16", "float32", "float64", "complex64"):
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], size=shape)
        x = np.where(rng.random(shape) < 0.3, special, x)
    if name == "complex64":
        both = np.stack([x, rng.permutation(x.ravel()).reshape(shape)], axis=-1).astype(np.float32)
        return mx.array(both.view(np.complex64)[..., 0])
    return mx.array(x.astype(np.float32)).astype(getattr(mx, name))


CASES = [(name, kind) for name in NAMES for kind in FUNCTIONS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("indices", [False, True], ids=["values", "indices"])
def test_blocks_fit_shared_memory(name: str, indices: bool) -> None:
    """A kernel may declare at most 48 KiB of it."""
    elements = Elements(getattr(mx, name), indices)
    longest = steps.block_for(steps.longest_row(elements))
    move, block = Move(indices, indices, True), steps.block_of(elements)
    for code in (
        steps.rows_code(elements, *longest),
        steps.totals_code(elements, OfKeys()),
        steps.move_code(elements, OfKeys(), move, wide=False),
    ):
        sizes = re.findall(r"addrspace\(3\) global \[(\d+) x i8\]", code.text())
        assert sum(map(int, sizes)) <= 48 << 10, (code.title, block)


def test_rows_of_a_block(cases: Cases, rng: np.random.Generator) -> None:
    for name, kind in cases.some(4, CASES):
        x = sample(rng, (2, int(rng.integers(10, 80))), name)
        assert same_bits(FUNCTIONS[kind], x), (name, kind, x.shape)


def test_rows_of_several_blocks(cases: Cases, rng: np.random.Generator, short_tiles: None) -> None:
    for name, kind in cases.some(1, CASES):
        x = sample(rng, (2, int(rng.integers(257, 400))), name)
        assert same_bits(FUNCTIONS[kind], x), (name, kind, x.shape)


def test_counts_of_long_rows_are_told_in_64_bits(
    rng: np.random.Generator, short_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "LARGEST_TOLD", 100)
    assert same_bits(FUNCTIONS["sort"], sample(rng, (2, 300), "uint8"))


def test_no_order_of_threads_changes_results(engine: BlocksEngine, rng: np.random.Generator, short_tiles: None) -> None:
    x = sample(rng, (2, 300), "int16")
    with engine.in_order(in_stretches(rng)):
        assert same_bits(FUNCTIONS["argsort"], x)
        assert same_bits(FUNCTIONS["argsort"], x[:, :30])
