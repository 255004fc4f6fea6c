"""Fourier transforms of every kind of length, in every layout, and their errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops.row import bits
from tests.sampling import Cases

SHORT = range(1, 71)
COMPOSITE = (72, 96, 100, 121, 126, 128, 169, 243, 252, 256, 360, 500, 512, 625, 1000, 1024, 1331, 2048, 4096, 5040)
PRIME_FACTORS = (73, 127, 202, 257, 509, 1021, 2038, 4099)
LONG = (8192, 10007, 16384, 19683, 46189, 65536, 65537, 131072, 151875, 262144)

LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "one row": ((0,), 0),
    "rows": ((21, 0), 1),
    "few rows": ((2, 3, 0), 2),
    "columns": ((0, 21), 0),
    "middle": ((3, 0, 5), 1),
}
"""Shapes, and the axis of the transform, whose extent is 0 here."""


def complex_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def transforms(x: np.ndarray, axis: int) -> dict[str, tuple[mx.array, np.ndarray]]:
    """The result of each transform, with NumPy's in double precision."""
    length = x.shape[axis]
    wide, half = x.astype(np.complex128), np.take(x, range(length // 2 + 1), axis)
    real = np.ascontiguousarray(x.real)
    return {
        "fft": (mx.fft.fft(mx.array(x), axis=axis), np.fft.fft(wide, axis=axis)),
        "ifft": (mx.fft.ifft(mx.array(x), axis=axis), np.fft.ifft(wide, axis=axis)),
        "rfft": (mx.fft.rfft(mx.array(real), axis=axis), np.fft.rfft(wide.real, axis=axis)),
        "irfft": (
            mx.fft.irfft(mx.array(half), n=length, axis=axis),
            np.fft.irfft(half.astype(np.complex128), n=length, axis=axis),
        ),
    }


def check(rng: np.random.Generator, layout: str, length: int, most: float) -> None:
    shape, axis = LAYOUTS[layout]
    x = complex_numbers(rng, tuple(extent or length for extent in shape))
    for name, (got, want) in transforms(x, axis).items():
        assert got.shape == want.shape
        error = np.linalg.norm(np.array(got) - want) / np.linalg.norm(want)
        assert error < most, f"{name} of {length}, {layout}: {error}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("lengths", "most"), [(SHORT, 3e-7), (COMPOSITE, 3e-7), (PRIME_FACTORS, 6e-7)])
def test_lengths(lengths: Any, most: float, layout: str, cases: Cases, rng: np.random.Generator) -> None:
    for length in cases.some(2, list(lengths)):
        check(rng, layout, length, most)


def test_long_rows(cases: Cases, rng: np.random.Generator) -> None:
    for length, layout in cases.some(1, list(itertools.product(LONG, ["one row", "few rows", "middle"]))):
        check(rng, layout, length, 6e-7)


def test_a_transform_has_the_same_bits_in_every_layout(cases: Cases, rng: np.random.Generator) -> None:
    for length in cases.one_of_each(64, [SHORT, COMPOSITE, PRIME_FACTORS, (32, 64, 128, 256), (8192, 20000)]):
        rows = complex_numbers(rng, (19, length))
        alone = {name: np.array(got) for name, (got, _) in transforms(rows[7], 0).items()}
        columns = {name: np.array(got)[:, 7] for name, (got, _) in transforms(rows.T.copy(), 0).items()}
        together = {name: np.array(got)[7] for name, (got, _) in transforms(rows, 1).items()}
        turned = np.array(mx.fft.fft(mx.array(rows.T.copy()).T, axis=1))[7]
        assert bits(turned) == bits(alone["fft"]), length
        for name, result in alone.items():
            assert bits(columns[name]) == bits(together[name]) == bits(result), (name, length)


@pytest.mark.parametrize("shape", [(19, 60), (19, 64), (19, 512), (19, 34)], ids=str)
def test_what_is_no_number_stays_in_its_row(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = complex_numbers(rng, shape)
    spoilt = x.copy()
    spoilt[3, 5], spoilt[18, 0] = np.nan, np.inf
    for axis in (0, 1):
        here, there = (np.moveaxis(one, 1, axis).copy() for one in (x, spoilt))
        for (name, (got, _)), (_, (other, _)) in zip(
            transforms(here, axis).items(), transforms(there, axis).items(), strict=True
        ):
            clean, found = (np.moveaxis(np.array(one), axis, 1) for one in (got, other))
            rows = [row for row in range(19) if row not in (3, 18)]
            assert bits(clean[rows]) == bits(found[rows]), name
            assert np.isnan(found[3]).all(), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_around_a_result_is_written(layout: str, rng: np.random.Generator) -> None:
    """Results of calls in one plan may be neighbours in memory."""
    shape, axis = LAYOUTS[layout]
    for length in (1, 2, 7, 24, 34, 300):
        x = mx.array(complex_numbers(rng, tuple(extent or length for extent in shape)))
        first, second = mx.fft.fft(x, axis=axis), mx.fft.ifft(x, axis=axis)
        mx.eval(first * second)
        together = [first + 1, second + 1]
        mx.eval(together)
        for got, one in zip(together, [mx.fft.fft(x, axis=axis) + 1, mx.fft.ifft(x, axis=axis) + 1], strict=True):
            assert bits(np.array(got)) == bits(np.array(one))


def test_half_a_transform_ignores_imaginary_parts_of_what_stands_for_itself(rng: np.random.Generator) -> None:
    for length, rows in itertools.product((6, 7, 64, 2048), (1, 20)):
        x = complex_numbers(rng, (rows, length // 2 + 1))
        real = x.copy()
        real[:, 0] = real[:, 0].real
        if length % 2 == 0:
            real[:, -1] = real[:, -1].real
        got, want = (np.array(mx.fft.irfft(mx.array(one), n=length)) for one in (x, real))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_rows_in_one_plan_may_have_gaps(rng: np.random.Generator) -> None:
    whole = complex_numbers(rng, (6, 40, 9))
    x = mx.array(whole)
    for view, same in (
        (x[::2, 3:35, 1:8], whole[::2, 3:35, 1:8]),
        (x[:, ::-1], whole[:, ::-1]),
        (mx.broadcast_to(x[:1], (4, 40, 9)), np.broadcast_to(whole[:1], (4, 40, 9))),
        (mx.transpose(x, (2, 0, 1)), whole.transpose(2, 0, 1)),
        (x[:, :, :1], whole[:, :, :1]),
    ):
        for axis in range(3):
            got, want = np.array(mx.fft.fft(view, axis=axis)), np.fft.fft(same.astype(np.complex128), axis=axis)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_no_transforms_at_all(name: str) -> None:
    assert getattr(mx.fft, name)(mx.zeros((0, 4))).shape[0] == 0
    assert (
        getattr(mx.fft, name)(mx.zeros((2, 0)), n=3).tolist() == getattr(mx.fft, name)(mx.zeros((2, 3)), n=3).tolist()
    )


def test_transforms_along_no_axes() -> None:
    x = mx.array([1, 2])
    for name in ("fftn", "ifftn", "rfftn", "irfftn"):
        assert getattr(mx.fft, name)(x, axes=[]).tolist() == [1, 2]


def test_a_convolution_and_its_gradient(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(2, 50)).astype(np.float32)

    def convolved(x: mx.array, w: mx.array) -> mx.array:
        return mx.fft.irfft(mx.fft.rfft(x, 99) * mx.fft.rfft(w, 99), 99)

    np.testing.assert_allclose(np.array(convolved(mx.array(x), mx.array(w))), np.convolve(x, w), atol=1e-5)
    gradient = mx.grad(lambda w: mx.sum(mx.square(convolved(mx.array(x), w))))(mx.array(w))
    want = np.correlate(2 * np.convolve(x, w), x, "valid")
    np.testing.assert_allclose(np.array(gradient), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [16, 17])
@pytest.mark.parametrize("center", [True, False])
def test_the_inverse_of_frames(size: int, center: bool, rng: np.random.Generator) -> None:
    x, window = rng.normal(size=(3, 100)).astype(np.float32), mx.hamming(size)
    keywords: dict[str, Any] = {"hop_length": 3, "window": window, "center": center}
    frames = mx.fft.stft(mx.array(x), size, **keywords)
    got = np.array(mx.fft.istft(frames, size, length=100, **keywords))
    covered = 100 if center else (frames.shape[-1] - 1) * 3 + size
    np.testing.assert_allclose(got[:, :covered], x[:, :covered], atol=1e-5)


def test_frames_without_a_window_are_not_copied() -> None:
    x = mx.zeros((1 << 16,))
    mx.eval(x)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    result = mx.fft.stft(x, 256, 16, center=False)
    mx.eval(result)
    assert mx.get_peak_memory() - before < 1.5 * result.nbytes


X = mx.ones((3, 4))
Z = X.astype(mx.complex64)
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no length": (lambda: mx.fft.fft(X, n=0), ValueError, "must be positive; got 0"),
    "negative length": (lambda: mx.fft.irfft(Z, n=-1), ValueError, "must be positive; got -1"),
    "no elements": (lambda: mx.fft.rfft(mx.zeros((3, 0))), ValueError, "must be positive; got 0"),
    "length of one number": (lambda: mx.fft.irfft(Z[:, :1]), ValueError, "must be positive; got 0"),
    "axis": (lambda: mx.fft.fft(X, axis=2), IndexError, "Axis 2 is out of range"),
    "no axes": (lambda: mx.fft.fft(mx.array(1.0)), IndexError, "0 dimensions"),
    "too few axes": (lambda: mx.fft.rfft2(X[0]), IndexError, "Axis -2 is out of range"),
    "0-d": (lambda: mx.fft.fftn(mx.array(1.0)), ValueError, "0-d array"),
    "norm": (lambda: mx.fft.ifft(X, norm="none"), ValueError, "norm must be one of 'backward', 'ortho', 'forward'"),
    "no norm": (lambda: mx.fft.fftn(X, norm=None), ValueError, "got None"),  # type: ignore[arg-type]
    "same axis": (lambda: mx.fft.fftn(X, axes=(1, -1)), ValueError, "An axis is named twice"),
    "lengths alone": (lambda: mx.fft.fftn(X, s=(2, 2)), ValueError, "axes must be given too"),
    "fewer lengths": (lambda: mx.fft.irfft2(X, s=(2,)), ValueError, "1 lengths are given for 2 axes"),
    "complex": (lambda: mx.fft.rfft(Z), TypeError, "transforms real numbers"),
    "list": (lambda: mx.fft.fft([1, 2]), TypeError, "mx.array"),
    "float length": (lambda: mx.fft.fft(X, 2.0), TypeError, "n must be an int"),  # type: ignore[arg-type]
    "no samples": (lambda: mx.fft.fftfreq(0), ValueError, "n must be positive"),
    "no distance": (lambda: mx.fft.rfftfreq(3, 0.0), ValueError, "d cannot be zero"),
    "shift": (lambda: mx.fft.fftshift(X, axes=2), IndexError, "Axis 2"),
    "stft of 0-d": (lambda: mx.fft.stft(mx.array(1.0)), ValueError, "no samples"),
    "hop": (lambda: mx.fft.stft(X, 3), ValueError, "hop_length must be positive; got 0"),
    "frame": (lambda: mx.fft.stft(X, 0), ValueError, "n_fft must be positive"),
    "short": (lambda: mx.fft.stft(X, 6, center=False), ValueError, "shorter than a frame"),
    "window": (lambda: mx.fft.stft(X, 4, window=mx.ones((5,))), ValueError, "does not fit"),
    "matrix": (lambda: mx.fft.stft(X, 4, window=X), ValueError, "one dimension"),
    "pad mode": (lambda: mx.fft.stft(X, 4, pad_mode="wrap"), ValueError, "mode must be one of"),
    "one-sided": (lambda: mx.fft.stft(Z, 4, onesided=True), ValueError, "no conjugate halves"),
    "no frames": (lambda: mx.fft.istft(Z[:, :0], 4), ValueError, "no frames"),
    "no matrix": (lambda: mx.fft.istft(Z[0]), ValueError, "less than two dimensions"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    call, error, message = WRONG[name]
    with pytest.raises(error, match=r"^\[") as raised:
        call()
    assert message in str(raised.value)
