"""Products of a few rows, run thread by thread: they have the bits of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import weft.core as mx
from tests.cuda.device import BlocksEngine
from tests.cuda.test_kernels import in_stretches, same_bits
from tests.sampling import Cases
from weft.compiler.codegen import nvptx
from weft.compiler.cuda import few_rows
from weft.compiler.running import evaluate

DTYPES = (mx.bfloat16, mx.float16, mx.float32)

LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "by rows": lambda x: x,
    "by columns": lambda x: mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "in the middle": lambda x: mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 2)])[..., 3:-2],
}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.array(rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3, size=shape)).astype(dtype)


def multiplies(
    rng: np.random.Generator,
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: mx.Dtype = mx.bfloat16,
    layouts: tuple[str, str] = ("by rows", "by columns"),
) -> bool:
    a, b = numbers(rng, left, dtype), numbers(rng, right, dtype)
    return same_bits(lambda a, b: LAYOUTS[layouts[0]](a) @ LAYOUTS[layouts[1]](b), a, b)


SHAPES = [
    ((1, 768), (768, 24)),
    ((1, 64), (64, 40)),
    ((3, 300), (300, 33)),
    ((1, 1), (1, 5)),
    ((2, 0), (0, 3)),
    ((20, 96), (96, 2)),
    ((3, 1, 64), (3, 64, 20)),
    ((2, 2, 1, 520), (2, 1, 520, 16)),
    ((8, 40), (40, 8)),
]


def test_the_bits_of_the_cpu(cases: Cases, rng: np.random.Generator) -> None:
    for (left, right), dtype, first, second in cases.some(5, list(product(SHAPES, DTYPES, LAYOUTS, LAYOUTS))):
        assert multiplies(rng, left, right, dtype, (first, second)), (left, right, dtype, first, second)


def test_sums_in_full_precision(rng: np.random.Generator) -> None:
    """Both operands, or one of them, are converted from half precision; sums are in float32."""
    a, b = numbers(rng, (1, 96), mx.bfloat16), numbers(rng, (96, 16), mx.bfloat16)
    assert same_bits(lambda a, b: a.astype(mx.float32) @ b.astype(mx.float32), a, b)
    assert same_bits(lambda a, b: a.astype(mx.float32) @ b, a, b.astype(mx.float32))


def test_warps_take_turns(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "MOST_WARPS", 2)
    evaluate.forget_plans()
    assert multiplies(rng, (1, 9 * 256 + 8), (9 * 256 + 8, 9))
    assert multiplies(rng, (2, 5 * 256 + 3), (5 * 256 + 3, 17), mx.float32, ("by rows", "by rows"))
    evaluate.forget_plans()


def test_no_order_of_threads_changes_results(engine: BlocksEngine, rng: np.random.Generator) -> None:
    with engine.in_order(in_stretches(rng)):
        assert multiplies(rng, (1, 520), (520, 20))
        assert multiplies(rng, (2, 520), (520, 20), layouts=("by rows", "by rows"))


def test_kernels_wait_for_those_before_them() -> None:
    """A kernel waits for the kernel before it, on cards with instructions for that. It reads a matrix that is already
    in memory before it waits."""
    strips = [few_rows.strip_of((mx.bfloat16,) * 3, 1, 768, True, early) for early in (False, True)]
    late, early = (nvptx.ptx(few_rows.code(strip).text(), "sm_90") for strip in strips)
    assert late.index("griddepcontrol.wait") < late.index("ld.global.v4")
    assert early.index("griddepcontrol.wait") > early.index("ld.global.v4")
    assert "griddepcontrol" not in nvptx.ptx(few_rows.code(strips[1]).text(), "sm_89")


def test_ptx_is_made() -> None:
    """Also for many rows, which take too long thread by thread. Blocks fit into shared memory."""
    for rows, dtype, along in product(range(1, few_rows.MOST_ROWS + 1), DTYPES, (False, True)):
        strip = few_rows.strip_of((dtype, dtype, dtype), rows, 4096, along)
        assert strip.shared <= few_rows.SHARED_BYTES
        if (rows, dtype, along) in ((few_rows.MOST_ROWS, mx.float16, True), (2, mx.float32, False)):
            assert ".entry kernel(" in nvptx.ptx(few_rows.code(strip).text(), "sm_75")
