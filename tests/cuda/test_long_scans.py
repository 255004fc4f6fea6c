"""Scans of long rows in one pass, run thread by thread: they have the bits of the CPU, in every order of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.cuda.device import BlocksEngine
from tests.cuda.test_kernels import in_stretches, same_bits
from weft.compiler.codegen import nvptx
from weft.compiler.cuda import long_scans as steps
from weft.compiler.kernel import CHUNK
from weft.compiler.running import evaluate
from weft.primitives import long_scans, scans
from weft.primitives.replacing import replacement


@pytest.fixture(params=[1, 2])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many parts of a chunk are folded separately. Chunks have few elements here, and blocks have several
    chunks."""
    for module in (scans, long_scans, steps):
        monkeypatch.setattr(module, "ROW_CHUNK", request.param * CHUNK)
    monkeypatch.setattr(scans, "CHUNKED_SIZE", CHUNK)
    monkeypatch.setattr(steps, "THREADS", 64)
    monkeypatch.setattr(steps, "PARTS", request.param)
    forget()
    yield request.param
    forget()


def forget() -> None:
    """Forget plans and code, which depend on the patched values."""
    evaluate.forget_plans()
    steps.scan_code.cache_clear()


def numbers(rng: np.random.Generator, *shape: int) -> mx.array:
    """Numbers whose sums are rounded differently if they are added in another order."""
    return mx.array((rng.normal(size=shape) * 10.0 ** rng.integers(-9, 9, size=shape)).astype(np.float32))


@pytest.mark.some_rows(2)
@pytest.mark.parametrize(("reverse", "inclusive"), [(False, True), (True, False)])
def test_the_order_is_that_of_the_cpu(
    reverse: bool, inclusive: bool, parts: int, engine: BlocksEngine, rng: np.random.Generator
) -> None:
    """With more chunks than a vector has elements, of which the last one is not full."""
    x = numbers(rng, (18 if parts == 1 else 3) * parts * CHUNK + 77)
    with engine.in_order(in_stretches(rng)):
        assert same_bits(lambda x: mx.cumsum(x, reverse=reverse, inclusive=inclusive), x)


@pytest.mark.some_rows(1)
@pytest.mark.usefixtures("parts")
def test_rows_are_scanned_by_themselves(rng: np.random.Generator) -> None:
    x = numbers(rng, 3, 2050)
    assert same_bits(lambda x: mx.cumsum(x, axis=1), x)
    assert same_bits(lambda x: mx.cumprod(1 + x * 1e-12, axis=1), x)
    assert same_bits(lambda x: mx.cumsum(x.astype(mx.float16), axis=1), x * 1e-9)


@pytest.mark.usefixtures("parts")
def test_infinities_and_nan_reach_what_is_behind_them(rng: np.random.Generator) -> None:
    x = numbers(rng, 5000)
    x[1500], x[4000] = mx.inf, mx.nan
    with mx.stream(mx.gpu):
        found = np.array(mx.cumsum(x))
    assert np.isfinite(found[:1500]).all()
    assert np.isinf(found[1500:4000]).all()
    assert np.isnan(found[4000:]).all()


@pytest.mark.parametrize(
    ("scan", "dtype", "is_one_pass"),
    [
        *((mx.cumsum, mx.float32, True), (mx.cumprod, mx.float16, True), (mx.cumsum, mx.int32, False)),
        *((mx.cummax, mx.float32, False), (mx.logcumsumexp, mx.float32, False), (mx.cumsum, mx.float64, False)),
    ],
)
def test_which_scans_are_done_so(scan: Callable[..., mx.array], dtype: mx.Dtype, is_one_pass: bool) -> None:
    """Sums and products of floating-point numbers whose totals fit in one word together with a flag, in long rows."""
    node = scan(mx.zeros((1 << 20,), dtype=dtype)).node
    assert (replacement(node, "cuda", None) is not None) == is_one_pass
    assert replacement(scan(mx.zeros((1 << 16,), dtype=dtype)).node, "cuda", None) is None


def test_ptx() -> None:
    for dtype in (mx.float32, mx.bfloat16):
        for way in (False, True):
            text = steps.LongScansWriter(p.long_cumsum, dtype, way, not way).text("kernel")
            assert ".entry kernel(" in nvptx.ptx(text, "sm_90")
