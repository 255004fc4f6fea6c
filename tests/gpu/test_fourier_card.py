"""Fourier transforms on a card: their values, and that every run gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card
from weft.runtime.cuda import cufft

require_card()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(cufft.missing()), reason=f"no cuFFT: {cufft.missing()}"),
]

ERROR = 2.0**-20
"""The bound of errors, relative to the root mean square of the result, for lengths up to some millions."""


@pytest.fixture(autouse=True)
def _on_the_card() -> Any:
    with mx.stream(mx.gpu):
        yield


def drawn(*shape: int, real: bool = False) -> mx.array:
    rng = np.random.default_rng(sum(shape))
    numbers = rng.normal(size=shape)
    if real:
        return mx.array(numbers.astype(np.float32))
    return mx.array((numbers + 1j * rng.normal(size=shape)).astype(np.complex64))


def wide(x: mx.array) -> np.ndarray:
    return np.array(x).astype(np.complex128 if x.dtype == mx.complex64 else np.float64)


def assert_near(found: mx.array, wanted: np.ndarray, error: float = ERROR) -> None:
    assert found.shape == wanted.shape
    if wanted.size:
        distance = np.sqrt(np.mean(abs(wide(found) - wanted) ** 2))
        assert distance <= error * np.sqrt(np.mean(abs(wanted) ** 2)), distance


LENGTHS = [1, 2, 3, 4, 5, 7, 8, 16, 30, 97, 128, 1000, 1021, 1024, 2187, 4096, 10_007, 65_536, 100_003, 1 << 20]


def assert_transforms(x: mx.array, real: mx.array, axis: int, norm: Any = "backward") -> None:
    """All kinds of transforms along an axis: of complex and of real numbers, and from half transforms of both
    lengths."""
    options: dict[str, Any] = {"axis": axis, "norm": norm}
    assert_near(mx.fft.fft(x, **options), np.fft.fft(wide(x), **options))
    assert_near(mx.fft.ifft(x, **options), np.fft.ifft(wide(x), **options))
    assert_near(mx.fft.rfft(real, **options), np.fft.rfft(wide(real), **options))
    for length in (2 * x.shape[axis] - 2, 2 * x.shape[axis] - 1):
        if length:
            assert_near(mx.fft.irfft(x, length, **options), np.fft.irfft(wide(x), length, **options))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_lengths(norm: str) -> None:
    for length in LENGTHS:
        assert_transforms(drawn(length), drawn(length, real=True), 0, norm)
        if length <= 4096:
            assert_transforms(drawn(7, length), drawn(7, length, real=True), 1, norm)


def test_axes() -> None:
    for shape in ((64, 33), (3, 20, 17), (30, 20, 17), (2, 3, 10, 4, 5), (1, 5, 1), (0, 4)):
        for axis in [number for number, extent in enumerate(shape) if extent]:
            assert_transforms(drawn(*shape), drawn(*shape, real=True), axis)


def test_several_axes() -> None:
    x, real = drawn(6, 40, 60), drawn(6, 40, 60, real=True)
    assert_near(mx.fft.fft2(x), np.fft.fft2(wide(x)))
    assert_near(mx.fft.ifftn(x), np.fft.ifftn(wide(x)))
    assert_near(mx.fft.rfftn(real), np.fft.rfftn(wide(real)))
    assert_near(mx.fft.irfft2(x), np.fft.irfft2(wide(x)))


LAYOUTS: dict[str, Callable[[mx.array], mx.array]] = {
    "transposed": lambda x: mx.swapaxes(x, 0, 1),
    "a part": lambda x: x[1:, 2:-1],
    "some rows": lambda x: x[3:7],
    "every other number": lambda x: x[:, ::2],
    "backwards": lambda x: x[::-1, ::-1],
    "one row everywhere": lambda x: mx.broadcast_to(x[:1], x.shape),
    "one number behind": lambda x: x.reshape(-1)[1:],
    "computed": lambda x: mx.sin(mx.real(x)) + x,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    for real in (False, True):
        x = LAYOUTS[name](drawn(15, 21, real=real))
        y = mx.array(np.array(x))
        call = mx.fft.rfft if x.dtype == mx.float32 else mx.fft.fft
        mx.eval(x)
        assert_near(call(x, axis=-1), np.array((np.fft.rfft if call is mx.fft.rfft else np.fft.fft)(wide(y))))
        assert_near(call(x, axis=0), np.array((np.fft.rfft if call is mx.fft.rfft else np.fft.fft)(wide(y), axis=0)))


def test_what_stands_for_a_real_number_counts_as_one() -> None:
    """Its imaginary part is ignored: of the first number of half a transform, and of the last one if the length is
    even."""
    for length in (2, 5, 8, 97, 1000, 1024, 4096, 30_030, 1 << 18):
        x = wide(drawn(3, length // 2 + 1))
        plain = x.copy()
        plain[:, 0] = plain[:, 0].real
        if length % 2 == 0:
            plain[:, -1] = plain[:, -1].real
        found = mx.fft.irfft(mx.array(x.astype(np.complex64)), length)
        assert_near(found, np.fft.irfft(plain, length))


def test_an_operand_is_not_written_to() -> None:
    for length in (8, 97, 1000, 4096, 1 << 16, 1 << 20):
        x = drawn(2, length)
        before = np.array(x)
        mx.eval(mx.fft.irfft(x, 2 * length - 2), mx.fft.irfft(x, 2 * length - 1), mx.fft.fft(x))
        mx.eval(x + 0)
        assert np.array_equal(np.array(x * 1), before)


def test_each_run_has_the_same_bits() -> None:
    x, real = drawn(50, 1000), drawn(50, 1001, real=True)
    compiled = mx.compile(lambda x, real: (mx.fft.fft2(x), mx.fft.irfft(x), mx.fft.rfft(real), mx.fft.ifft(x) * x))
    wanted = compiled(x, real)
    mx.eval(wanted)
    for _ in range(4):
        assert_same_bits(compiled(x, real), wanted)
    with mx.stream(mx.new_stream(mx.gpu)):
        assert_same_bits(compiled(x, real), wanted)


@pytest.mark.parametrize(
    "function",
    [
        mx.fft.fft,
        mx.fft.ifft2,
        lambda x: mx.fft.irfft(x, axis=0),
        lambda x: mx.fft.rfft(mx.real(x), axis=0),
        lambda x: mx.fft.irfft(mx.fft.rfft(mx.real(x), axis=-1), 31),
    ],
)
def test_transformations(function: Callable[[mx.array], mx.array]) -> None:
    x, t = drawn(24, 30), drawn(24, 30)[::-1]
    found = []
    for device in (mx.gpu, mx.cpu):
        with mx.stream(device):
            results = [
                mx.jvp(function, [x], [t])[1][0],
                mx.vjp(function, [x], [function(x)])[1][0],
                mx.vmap(function, in_axes=1)(mx.stack([x, t], axis=1)),
            ]
            mx.eval(results)
            found.append(results)
    for one, wanted in zip(*found, strict=True):
        assert_near(one, wide(wanted), 2 * ERROR)
