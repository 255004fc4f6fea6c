"""Rows of ``mx.fft``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.row import ANY, EVERY, Domain, Row

SINGLE = ("float32", "complex64", "float16", "bfloat16", "int32", "uint8", "bool_")
REAL = tuple(dtype for dtype in SINGLE if dtype != "complex64")
DOUBLE = dict.fromkeys(
    ("jvp", "vjp", "second order"), "Computed in single precision, which differences of the oracle in double show."
)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _row(name: str, variant: str, dtypes: Any, shape: tuple[int, ...], *args: Any, **keywords: Any) -> Row:
    """A transform whose arguments are the same in MLX and NumPy."""
    return Row(
        f"fft.{name}",
        lambda mx, x: getattr(mx.fft, name)(x, *args, **keywords),
        lambda x: getattr(np.fft, name)(wide(x), *args, **keywords),
        (Domain(shape=shape),),
        dtypes,
        variant=variant,
        ulp=4,
    )


ONE_AXIS = [
    row
    for name, dtypes in (("fft", SINGLE), ("ifft", SINGLE), ("rfft", REAL), ("irfft", SINGLE))
    for row in (
        _row(name, "last", dtypes, (3, 10)),
        _row(name, "first", dtypes, (9, 2, 3), axis=0),
        _row(name, "cut off", dtypes, (2, 12, 3), n=5, axis=1, norm="ortho"),
        _row(name, "continued", dtypes, (4, 5), n=12, norm="forward"),
        _row(name, "large prime factor", dtypes, (2, 17), n=46),
    )
]

SEVERAL_AXES = [
    row
    for suffix in ("fft2", "ifft2", "fftn", "ifftn", "rfft2", "irfft2", "rfftn", "irfftn")
    for dtypes in [REAL if suffix.startswith("r") else SINGLE]
    for row in (
        _row(suffix, "default", dtypes, (2, 4, 6)),
        _row(suffix, "axes", dtypes, (4, 3, 6), s=(8, 5), axes=(2, 0), norm="ortho"),
    )
]


def shifts(name: str) -> list[Row]:
    return [
        Row(
            f"fft.{name}",
            lambda mx, x, k=keywords: getattr(mx.fft, name)(x, **k),
            lambda x, k=keywords: getattr(np.fft, name)(x, **k),
            (ANY,),
            EVERY,
            variant=variant,
            ulp=0,
        )
        for variant, keywords in (("all", {}), ("one", {"axes": 1}), ("two", {"axes": (0, -1)}))
    ]


def frequencies(name: str) -> list[Row]:
    return [
        Row(
            f"fft.{name}",
            lambda mx, n=n, d=d: getattr(mx.fft, name)(n, d),
            lambda n=n, d=d: getattr(np.fft, name)(n, d).astype(np.float32),
            (),
            variant=f"{n}, {d}",
            dtypes=("float32",),
            ulp=1,
            elementwise=True,
        )
        for n, d in ((1, 1.0), (6, 0.3), (7, -2))
    ]


def framed(x: np.ndarray, size: int, hop: int, window: np.ndarray) -> np.ndarray:
    """The frames of a signal, each times a window in its middle."""
    before = (size - window.size) // 2
    whole = np.pad(window.astype(np.float64), (before, size - window.size - before))
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)[..., ::hop, :] * whole


def stft(
    x: np.ndarray, size: int, hop: int, window: np.ndarray, mode: Any = None, norm: Any = None, onesided: bool = True
) -> np.ndarray:
    x = wide(x)
    if mode is not None:
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(size // 2,) * 2], mode=mode)
    transform = np.fft.rfft if onesided and x.dtype.kind != "c" else np.fft.fft
    return np.swapaxes(transform(framed(x, size, hop, window), norm=norm), -1, -2)


def istft(x: np.ndarray, size: int, hop: int, window: np.ndarray, inverse: Callable[..., Any]) -> np.ndarray:
    """The signal of frames, with the padding of `stft` at both ends."""
    frames = inverse(np.swapaxes(wide(x), -1, -2), size).real
    count = frames.shape[-2]
    total = np.zeros((*frames.shape[:-2], (count - 1) * hop + size))
    envelope = np.zeros(total.shape[-1])
    for number in range(count):
        here = slice(number * hop, number * hop + size)
        total[..., here] += frames[..., number, :] * window
        envelope[here] += window.astype(np.float64) ** 2
    return total / np.maximum(envelope, 1e-8)


SIGNAL = Domain(shape=(2, 30))
WINDOW = Domain(0.5, 1.5, shape=(6,), dtype="float32")
SHORT_WINDOW = Domain(0.5, 1.5, shape=(4,), dtype="float32")
FULL_WINDOW = Domain(0.5, 1.5, shape=(8,), dtype="float32")

SHORT_TIME = [
    Row(
        "fft.stft",
        lambda mx, x: mx.fft.stft(x, 8),
        lambda x: stft(x, 8, 2, np.ones(8), "reflect"),
        (SIGNAL,),
        SINGLE,
        variant="default",
        ulp=4,
    ),
    Row(
        "fft.stft",
        lambda mx, x, w: mx.fft.stft(x, 9, 4, window=w, pad_mode="constant", norm="ortho", onesided=False),
        lambda x, w: stft(x, 9, 4, w, "constant", norm="ortho", onesided=False),
        (SIGNAL, SHORT_WINDOW),
        SINGLE,
        variant="window",
        ulp=4,
        grows=((1, 1), (0,)),
    ),
    Row(
        "fft.stft",
        lambda mx, x: mx.fft.stft(x, 8, 5, 3, center=False, norm="forward"),
        lambda x: stft(x, 8, 5, np.ones(3), norm="forward"),
        (SIGNAL,),
        SINGLE,
        variant="not centered",
        ulp=4,
    ),
    Row(
        "fft.istft",
        lambda mx, x: mx.fft.istft(x),
        lambda x: istft(x, 8, 2, np.ones(8), np.fft.irfft)[..., 4:-4],
        (Domain(shape=(2, 5, 6)),),
        SINGLE,
        variant="default",
        ulp=4,
        grows=((1, 0, 1),),
    ),
    Row(
        "fft.istft",
        lambda mx, x, w: mx.fft.istft(x, 8, 3, window=w, center=False, onesided=False, length=30),
        lambda x, w: np.pad(istft(x, 8, 3, w, np.fft.ifft), [(0, 0), (0, 7)]),
        (Domain(shape=(2, 8, 6)), FULL_WINDOW),
        SINGLE,
        variant="window",
        ulp=4,
        grows=((1, 0, 1), (0,)),
    ),
]

IN_DOUBLE = [
    Row(
        f"fft.{name}",
        lambda mx, x, name=name: getattr(mx.fft, name)(x),
        lambda x, name=name: getattr(np.fft, name)(x),
        (Domain(shape=(3, 8)),),
        ("float64",),
        variant="float64",
        ulp=4,
        without=DOUBLE,
    )
    for name in ("fft", "rfft")
]

ROWS = [
    *ONE_AXIS,
    *SEVERAL_AXES,
    *shifts("fftshift"),
    *shifts("ifftshift"),
    *frequencies("fftfreq"),
    *frequencies("rfftfreq"),
    *SHORT_TIME,
    *IN_DOUBLE,
]
