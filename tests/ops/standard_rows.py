"""Rows of what the Python array API standard has and MLX does not: functions, and parameters of MLX's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.elementwise_rows import binary, unary
from tests.ops.linalg_rows import TALL, row
from tests.ops.row import ANY, APART, BOOLEAN, EVERY, FLOATS, INTEGERS, NONZERO, NUMBERS, REAL, Domain, Row

NOT_MLX = {"mlx": "MLX does not have this function or parameter."}
OF_CONSTANT_RANK = dict.fromkeys(
    ("jvp", "second order"), "Here singular values are dropped, and the derivative is that of matrices of one rank."
)

ELEMENTWISE_ROWS = [
    binary("copysign", np.copysign, NONZERO, NONZERO, without=NOT_MLX),
    binary("hypot", np.hypot, NONZERO, NONZERO, without=NOT_MLX),
    binary(
        "nextafter",
        lambda x, y: x,
        NONZERO,
        Domain(3, 4),
        without={**NOT_MLX, "special": "the oracle takes steps in float64: see test_array_standard.py"},
    ),
    unary(
        "signbit",
        lambda x: x < 0,
        NONZERO,
        REAL,
        without={**NOT_MLX, "special": "the signs of zeros and NaN: see test_array_standard.py"},
    ),
    Row(
        "clip",
        lambda mx, x, low: mx.clip(x, min=low, max=1),
        lambda x, low: np.minimum(np.maximum(x, low), np.array(1, x.dtype)),
        (APART, Domain(-1.1, -1.0, shape=(3, 1))),
        (*FLOATS, "int32", "int8"),
        variant="min and max",
        elementwise=True,
        without=NOT_MLX,
    ),
]


def plain(name: str, function: Callable[..., Any], oracle: Callable[..., Any], *domains: Domain, **more: Any) -> Row:
    return Row(name, function, oracle, domains or (ANY,), **{"variant": "standard", "without": NOT_MLX, **more})


OTHER_ROWS = [
    plain(
        "isin",
        lambda mx, x, y: [mx.isin(x, y), mx.isin(x, y, invert=True)],
        lambda x, y: [np.isin(x, y), np.isin(x, y, invert=True)],
        ANY,
        Domain(shape=(2, 3)),
        dtypes=EVERY,
    ),
    plain(
        "sort",
        lambda mx, x: mx.sort(x, axis=1, descending=True),
        lambda x: np.flip(np.sort(x, axis=1), 1),
        APART,
        dtypes=EVERY,
    ),
    plain(
        "argsort",
        lambda mx, x: mx.argsort(x, axis=1, descending=True),
        lambda x: np.argsort(-x.astype(np.float64), axis=1, kind="stable").astype(np.uint32),
        dtypes=FLOATS + INTEGERS + BOOLEAN,
        without={**NOT_MLX, "special": "NumPy has no descending order, in which NaN would come first."},
    ),
    plain(
        "searchsorted",
        lambda mx, rows, x: mx.searchsorted(rows, x, sorter=mx.argsort(rows)),
        lambda rows, x: np.searchsorted(rows, x, sorter=np.argsort(rows)).astype(np.uint32),
        Domain(shape=(13,)),
        ANY,
        dtypes=NUMBERS,
    ),
    *[
        plain(
            name,
            lambda mx, x, name=name: getattr(mx, name)(x, axis=1, include_initial=True),
            lambda x, name=name: getattr(np, name.replace("cum", "cumulative_"))(x, axis=1, include_initial=True),
            dtypes=(*FLOATS, "int32", "complex64"),
        )
        for name in ("cumsum", "cumprod")
    ],
    plain(
        "cumsum",
        lambda mx, x: mx.cumsum(x, reverse=True, include_initial=True),
        lambda x: np.append(np.cumsum(x.reshape(-1)[::-1])[::-1], np.zeros(1, x.dtype)),
        dtypes=("float32", "int32"),
        variant="initial at the end",
    ),
    plain(
        "diff",
        lambda mx, x, before, behind: mx.diff(x, axis=1, prepend=before, append=behind),
        lambda x, before, behind: np.diff(x, axis=1, prepend=before, append=behind),
        ANY,
        Domain(shape=(2, 1, 4)),
        Domain(shape=(2, 2, 4)),
        dtypes=("float32", "int32", "complex64"),
        without=NOT_MLX,
        grows=((1, 1, 1), (1, 0, 1), (1, 0, 1)),
    ),
    *[
        plain(
            name,
            lambda mx, x, name=name: getattr(mx, name)(x, axis=1, dtype=mx.float32),
            lambda x, name=name: getattr(np, name)(x, axis=1, dtype=np.float64),
            dtypes=("float32", "int8"),
        )
        for name in ("sum", "prod")
    ],
    plain("reshape", lambda mx, x: mx.reshape(x, -1, copy=True), lambda x: x.reshape(-1)),
    plain("full_like", lambda mx, x: mx.full_like(x, fill_value=2.0), lambda x: np.full_like(x, 2.0)),
]

FFT_ROWS = [
    plain(
        f"fft.{name}",
        lambda mx, x, name=name: getattr(mx.fft, name)(x, axis=1, norm="forward"),
        lambda x, name=name: getattr(np.fft, name)(x, axis=1, norm="forward"),
        dtypes=("float32",),
        ulp=4,
        shape=(2, 5, 3),
    )
    for name in ("hfft", "ihfft")
]


LINALG_ROWS = [
    row(
        "diagonal",
        lambda linalg, a: linalg.diagonal(a, offset=1),
        lambda a: np.diagonal(a, 1, -2, -1),
        shape=TALL,
        without=NOT_MLX,
    ),
    row(
        "trace",
        lambda linalg, a: linalg.trace(a, offset=-1),
        lambda a: np.trace(a, -1, -2, -1),
        shape=TALL,
        without=NOT_MLX,
    ),
    row(
        "matrix_norm",
        lambda linalg, a: [linalg.matrix_norm(a), linalg.matrix_norm(a, ord=2, keepdims=True)],
        lambda a: [np.linalg.matrix_norm(a), np.linalg.matrix_norm(a, ord=2, keepdims=True)],
        without=NOT_MLX,
    ),
    row(
        "vector_norm",
        lambda linalg, a: [linalg.vector_norm(a), linalg.vector_norm(a, axis=(0, 2), ord=3, keepdims=True)],
        lambda a: [np.linalg.vector_norm(a), np.linalg.vector_norm(a, axis=(0, 2), ord=3, keepdims=True)],
        without=NOT_MLX,
    ),
    row(
        "matrix_power",
        lambda linalg, a: [linalg.matrix_power(a, n) for n in (0, 1, 5, -2)],
        lambda a: [np.linalg.matrix_power(a, n) for n in (0, 1, 5, -2)],
        ulp=256,
        without=NOT_MLX,
    ),
    row(
        "matrix_rank",
        lambda linalg, a: [linalg.matrix_rank(a), linalg.matrix_rank(a, rtol=0.5)],
        lambda a: [np.linalg.matrix_rank(a).astype(np.int32), np.linalg.matrix_rank(a, rtol=0.5).astype(np.int32)],
        shape=TALL,
        without=NOT_MLX,
    ),
    row("svdvals", lambda linalg, a: linalg.svdvals(a), np.linalg.svdvals, shape=TALL, without=NOT_MLX),
    row(
        "svd",
        lambda linalg, a: linalg.svd(a, full_matrices=False)[1],
        np.linalg.svdvals,
        shape=TALL,
        variant="thin",
        without=NOT_MLX,
    ),
    row(
        "pinv",
        lambda linalg, a: linalg.pinv(a, rtol=0.4),
        lambda a: np.linalg.pinv(a, rcond=0.4),
        shape=TALL,
        variant="rtol",
        without={**NOT_MLX, **OF_CONSTANT_RANK, "shapeless": "More singular values are dropped from a larger matrix."},
    ),
    row(
        "qr",
        lambda linalg, a: _without_signs(linalg.qr(a, mode="complete")),
        lambda a: _without_signs(np.linalg.qr(a, mode="complete")),
        shape=TALL,
        variant="complete",
        without=NOT_MLX,
    ),
]


def _without_signs(found: Any) -> Any:
    """The projection on the columns of Q that the reduced decomposition lacks, whose signs are not determined, and R^H
    R."""
    q, r = found
    columns = r.shape[-1]
    rest = q[..., columns:]
    return rest @ rest.swapaxes(-1, -2).conj(), r.swapaxes(-1, -2).conj() @ r


ROWS = [*ELEMENTWISE_ROWS, *OTHER_ROWS, *FFT_ROWS, *LINALG_ROWS]
