"""The plans that Weft makes with cuFFT, without a card: NumPy computes their transforms here."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.primitives as p
from tests.gpu.fake_cufft import FakeCufft
from tests.gpu.fake_driver import FakeDriver
from weft.compiler.cuda import fourier
from weft.compiler.running import evaluate
from weft.runtime.cuda import cufft
from weft.runtime.engine import engine_of


def on_the_card(operations: set[Any]) -> None:
    engine: Any = engine_of(mx.Device(mx.gpu))
    engine.target.machine = engine
    engine.target.routines = operations
    mx.set_default_device(mx.gpu)


@pytest.fixture
def library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCufft]:
    library = FakeCufft(driver)
    monkeypatch.setattr(cufft, "missing", lambda: "")
    monkeypatch.setattr(cufft, "_functions", lambda: library.functions)
    on_the_card({fourier.OPERATION})
    yield library
    mx.set_default_device(mx.cpu)


def drawn(*shape: int, real: bool = False) -> mx.array:
    rng = np.random.default_rng(sum(shape))
    numbers = rng.normal(size=shape)
    if real:
        return mx.array(numbers.astype(np.float32))
    return mx.array((numbers + 1j * rng.normal(size=shape)).astype(np.complex64))


def assert_near(found: Any, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.allclose(np.array(found), wanted, rtol=1e-4, atol=1e-4 * max(float(abs(wanted).max(initial=0)), 1))


SHAPES = [(6,), (1,), (2,), (3, 5), (4, 1), (2, 3, 4), (9, 3, 5), (0, 4), (10, 4, 2, 3)]


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_values(library: FakeCufft, norm: Any) -> None:
    for shape in SHAPES:
        for axis in [number for number, extent in enumerate(shape) if extent]:
            x, real = drawn(*shape), drawn(*shape, real=True)
            assert_near(mx.fft.fft(x, axis=axis, norm=norm), np.fft.fft(np.array(x), axis=axis, norm=norm))
            assert_near(mx.fft.ifft(x, axis=axis, norm=norm), np.fft.ifft(np.array(x), axis=axis, norm=norm))
            assert_near(mx.fft.rfft(real, axis=axis, norm=norm), np.fft.rfft(np.array(real), axis=axis, norm=norm))
            for length in (2 * shape[axis] - 2, 2 * shape[axis] - 1):
                if length:
                    wanted = np.fft.irfft(np.array(x), length, axis=axis, norm=norm)
                    assert_near(mx.fft.irfft(x, length, axis=axis, norm=norm), wanted)
    assert library.executed


def test_an_axis_is_transformed_where_it_lies(library: FakeCufft) -> None:
    """The first or last axis takes one call; an axis between others takes a few, or is moved after them if those were
    many."""
    for shape, axis, calls, distances in [
        ((4, 6), 1, 1, {(1, 6)}),
        ((4, 6), 0, 1, {(6, 1)}),
        ((3, 4, 6), 1, 3, {(6, 1)}),
        ((30, 4, 6), 1, 1, {(1, 4)}),
        ((3, 4, 1, 1), 1, 1, {(1, 4)}),
    ]:
        x = drawn(*shape)
        mx.eval(x)
        library.executed.clear()
        mx.eval(mx.fft.fft(x, axis=axis))
        assert len(library.executed) == calls, shape
        assert {plan.taken for plan in library.executed} == distances


def test_axes_are_exchanged_once_for_several_transforms(library: FakeCufft) -> None:
    """The factors of several transforms are multiplied into one."""
    x = drawn(10, 9, 8)
    assert_near(mx.fft.ifftn(x), np.fft.ifftn(np.array(x)))
    explained = mx.compile(mx.fft.ifftn).explain(x)
    assert len(explained.steps) == 5
    x = drawn(5, 6)
    explained = mx.compile(lambda x: mx.fft.fft(mx.swapaxes(x, 0, 1), norm="ortho")).explain(x)
    assert len(explained.steps) == 2


def test_factors_are_fused_with_what_follows(library: FakeCufft) -> None:
    x = drawn(4, 6)
    explained = mx.compile(lambda x: mx.abs(mx.fft.ifft(x)) + 1).explain(x)
    assert len(explained.steps) == 2
    assert "cuFFT" in str(explained)


def test_halves_are_made_real_at_their_ends_with_what_is_before(library: FakeCufft) -> None:
    x = drawn(6)
    explained = mx.compile(lambda x: mx.fft.irfft(x * 2)).explain(x)
    assert len(explained.steps) == 3  # one of them for the factor


def test_an_operand_that_is_not_aligned(library: FakeCufft) -> None:
    x = drawn(7, real=True)
    compiled = mx.compile(lambda x: mx.fft.rfft(x[1:]))
    for _ in range(4):
        assert_near(compiled(x), np.fft.rfft(np.array(x)[1:]))


@pytest.mark.parametrize("compiled", [False, True])
def test_runs_are_captured(library: FakeCufft, driver: FakeDriver, compiled: bool) -> None:
    def function(x: mx.array) -> mx.array:
        return mx.fft.fft2(x) * 2 + 1

    call = mx.compile(function) if compiled else function
    x = drawn(4, 6)
    for _ in range(4):
        assert_near(call(x), np.fft.fft2(np.array(x)) * 2 + 1)
    assert driver.calls["launch_graph"] >= 2


def test_several_streams_share_plans(library: FakeCufft) -> None:
    x, streams = drawn(4, 6), [mx.new_stream(mx.gpu) for _ in range(3)]
    y, wanted = x, np.array(x)
    for number in range(9):
        with mx.stream(streams[number % 3]):
            y = mx.fft.fft(y, norm="ortho")
        wanted = np.fft.fft(wanted, norm="ortho")
    assert_near(y, wanted)
    assert len(library.plans) == 1


def test_few_plans_are_cached(library: FakeCufft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plans are destroyed together with the steps that use them."""
    monkeypatch.setattr(cufft, "_CACHED", 3)
    kept = mx.compile(mx.fft.fft)
    x = drawn(3)
    assert_near(kept(x), np.fft.fft(np.array(x)))
    for length in range(4, 14):
        mx.eval(mx.fft.fft(drawn(length)))
        assert_near(kept(x), np.fft.fft(np.array(x)))
    evaluate.forget_plans()
    gc.collect()
    for length in range(14, 20):
        mx.eval(mx.fft.fft(drawn(length)))
        evaluate.forget_plans()
        gc.collect()
    assert len(library.plans) <= 6


@pytest.mark.parametrize(
    "function", [mx.fft.fft, mx.fft.ifft2, lambda x: mx.fft.irfft(x, axis=0), lambda x: mx.fft.rfft(mx.real(x), axis=0)]
)
def test_transformations(library: FakeCufft, function: Callable[[mx.array], mx.array]) -> None:
    x, t = drawn(4, 6), drawn(4, 6)[::-1]
    found = []
    for device in (mx.gpu, mx.cpu):
        with mx.stream(device):
            results = [
                mx.jvp(function, [x], [t])[1][0],
                mx.vjp(function, [x], [function(x)])[1][0],
                mx.vmap(function, in_axes=1)(mx.stack([x, t], axis=1)),
            ]
            mx.eval(results)
            found.append([np.array(one) for one in results])
    for one, wanted in zip(*found, strict=True):
        assert_near(one, wanted)


def test_a_failure_is_named(library: FakeCufft, monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(6)
    monkeypatch.setitem(library.functions, "cufftExecC2C", lambda *arguments: 6)
    with pytest.raises(weft.errors.EvaluationError, match=r"CUFFT_EXEC_FAILED.* Fourier transform of 6"):
        mx.eval(mx.fft.fft(x))
    monkeypatch.setitem(library.functions, "cufftMakePlanMany64", lambda *arguments: 2)
    with pytest.raises(weft.errors.EvaluationError, match=r"CUFFT_ALLOC_FAILED.*cufftMakePlanMany64"):
        mx.eval(mx.fft.fft(drawn(5)))


def test_without_the_library_the_cpu_transforms(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cufft, "missing", lambda: "libcufft.so.12 is missing: pip install nvidia-cufft")
    on_the_card({fourier.OPERATION, p.fft, p.rfft, p.irfft})
    x = drawn(4, 5)
    assert_near(mx.fft.fft(x), np.fft.fft(np.array(x)))
    explained = str(mx.compile(mx.fft.fft).explain(x))
    assert "(on the CPU: libcufft.so.12 is missing: pip install nvidia-cufft)" in explained
