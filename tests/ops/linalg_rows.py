"""Rows of linear algebra.

Matrices are made from random ones so that they are far from being singular, and have eigenvalues and singular values
that are far apart. Factors whose signs or phases are not determined are compared by functions that do not depend on
these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from tests.ops.row import ANY, Domain, Row

DOUBLE = ("float32", "float64")
COMPLEX = (*DOUBLE, "complex64")
SQUARE, TALL, WIDE = (2, 3, 3), (2, 4, 3), (2, 3, 4)


def transposed(mx: Any, x: Any) -> Any:
    return mx.swapaxes(x, -1, -2)


def adjoint(mx: Any, x: Any) -> Any:
    return mx.conj(transposed(mx, x))


def identity_like(mx: Any, x: Any) -> Any:
    """Matrices with ones on the diagonal, in the shape of ``x``."""
    return mx.tril(mx.triu(mx.ones_like(x)))


def definite(mx: Any, x: Any) -> Any:
    """Hermitian and positive definite matrices."""
    product = mx.matmul(x, adjoint(mx, x))
    return product + 2 * identity_like(mx, product)


def spread(mx: Any, x: Any) -> Any:
    """Nearly diagonal matrices, with 2, 4, 6 ... on the diagonal."""
    numbers = mx.sum(mx.tril(mx.ones_like(x)), axis=-1, keepdims=True)
    return x * 0.3 + identity_like(mx, x) * (2 * numbers)


def hermitian(mx: Any, x: Any) -> Any:
    y = spread(mx, x)
    return y + adjoint(mx, y)


def upside_down(mx: Any, x: Any) -> Any:
    """A matrix whose rows pivoting has to exchange."""
    return spread(mx, x)[..., ::-1, :]


def row(
    name: str,
    call: Callable[..., Any],
    oracle: Callable[..., Any],
    prepare: Callable[[Any, Any], Any] = spread,
    *more: tuple[int, ...],
    shape: tuple[int, ...] = SQUARE,
    **keywords: Any,
) -> Row:
    """A row that compares ``call(mx.linalg, a, *others)`` with ``oracle(a, *others)`` for a prepared matrix."""
    return Row(
        f"linalg.{name}",
        lambda mx, x, *others: call(mx.linalg, prepare(mx, x), *others),
        lambda x, *others: oracle(prepare(np, x), *others),
        [ANY, *[Domain(shape=one) for one in more]],
        shape=shape,
        **{"ulp": 64, "dtypes": COMPLEX, "mlx_dtypes": DOUBLE, **keywords},
    )


def tall_and_wide(name: str, call: Callable[..., Any], oracle: Callable[..., Any], *more: Any, **keywords: Any) -> Any:
    """Rows for matrices with more rows than columns, and with more columns than rows."""
    return [
        row(name, call, oracle, *more, shape=shape, variant=f"{shape[1]}x{shape[2]}", **keywords)
        for shape in (TALL, WIDE)
    ]


def _solve_vector(a: Any, b: Any) -> Any:
    return np.linalg.solve(a, np.broadcast_to(b, a.shape[:-1])[..., None])[..., 0]


SOLVE_ROWS = [
    row("inv", lambda linalg, a: linalg.inv(a), np.linalg.inv),
    row(
        "tri_inv",
        lambda linalg, a: [linalg.tri_inv(a), linalg.tri_inv(a, True)],
        lambda a: [np.linalg.inv(np.tril(a)), np.linalg.inv(np.triu(a))],
    ),
    row(
        "cholesky",
        lambda linalg, a: [linalg.cholesky(a), linalg.cholesky(a, upper=True)],
        lambda a: [np.linalg.cholesky(a), adjoint(np, np.linalg.cholesky(a))],
        definite,
    ),
    row(
        "cholesky_inv",
        lambda linalg, a: [linalg.cholesky_inv(a), linalg.cholesky_inv(a, upper=True)],
        lambda a: [
            np.linalg.inv(np.tril(a) @ adjoint(np, np.tril(a))),
            np.linalg.inv(adjoint(np, np.triu(a)) @ np.triu(a)),
        ],
    ),
    row("solve", lambda linalg, a, b: linalg.solve(a, b), np.linalg.solve, upside_down, (2, 3, 2)),
    row(
        "solve",
        lambda linalg, a, b: linalg.solve(a, b),
        _solve_vector,
        spread,
        (3,),
        variant="stack and vector",
        without={"mlx": "MLX does not broadcast a vector here."},
    ),
    row(
        "solve",
        lambda linalg, a, b: linalg.solve(a, b),
        np.linalg.solve,
        spread,
        (2, 4, 3, 2),
        shape=(3, 3),
        variant="matrix and stack",
        without={"mlx": "MLX does not broadcast the matrix here."},
    ),
    row(
        "solve_triangular",
        lambda linalg, a, b, c: [linalg.solve_triangular(a, b), linalg.solve_triangular(a, c, upper=True)],
        lambda a, b, c: [np.linalg.solve(np.tril(a), b), np.linalg.solve(np.triu(a), c[:, None])[:, 0]],
        spread,
        (3, 2),
        (3,),
        shape=(3, 3),
    ),
    *tall_and_wide("pinv", lambda linalg, a: linalg.pinv(a), np.linalg.pinv),
    row("det", lambda linalg, a: linalg.det(a), np.linalg.det, upside_down),
    row(
        "slogdet",
        lambda linalg, a: linalg.slogdet(a),
        lambda a: [np.asarray(x) for x in np.linalg.slogdet(a)],
        upside_down,
    ),
]


def _lu_oracle(a: np.ndarray) -> Any:
    order, lower, upper = scipy.linalg.lu(a, p_indices=True)
    return [np.asarray(order), lower, upper]


def _from_svd(u: Any, s: Any, vt: Any) -> Any:
    """Singular values, and functions of singular vectors that do not depend on their signs or phases: the polar factor,
    and the projections on the spaces of the last columns of both sides."""
    k = s.shape[-1]
    rest, more = u[..., :, k:], vt[..., k:, :]
    return [s, u[..., :, :k] @ vt[..., :k, :], rest @ _turned(rest), _turned(more) @ more]


def _turned(x: Any) -> Any:
    return x.conj().swapaxes(-1, -2)


def _from_eigh(w: Any, v: Any) -> Any:
    """Eigenvalues, and a function of the matrix that does not depend on the signs or phases of eigenvectors."""
    return [w, (v * (1 / (1 + w * w))[..., None, :]) @ _turned(v)]


def _from_eig(w: Any, v: Any, inverse: Any) -> Any:
    """A sum over eigenvalues, and a function of the matrix, neither of which depends on their order."""
    return [(w * w * w).sum(-1), (v * (1 / w)[..., None, :]) @ inverse]


def _eig(linalg: Any, a: Any) -> Any:
    w, v = linalg.eig(a)
    return _from_eig(w, v, linalg.inv(v))


DECOMPOSITION_ROWS = [
    *tall_and_wide("lu", lambda linalg, a: linalg.lu(a), _lu_oracle, upside_down),
    row("lu_factor", lambda linalg, a: linalg.lu_factor(a), lambda a: list(scipy.linalg.lu_factor(a)), upside_down),
    *tall_and_wide("qr", lambda linalg, a: linalg.qr(a), lambda a: list(np.linalg.qr(a))),
    *tall_and_wide(
        "svd", lambda linalg, a: _from_svd(*linalg.svd(a)), lambda a: _from_svd(*np.linalg.svd(a)), mlx_dtypes=COMPLEX
    ),
    row(
        "eigh",
        lambda linalg, a: _from_eigh(*linalg.eigh(a)),
        lambda a: _from_eigh(*np.linalg.eigh(a)),
        hermitian,
        mlx_dtypes=COMPLEX,
    ),
    row("eigvalsh", lambda linalg, a: linalg.eigvalsh(a, "U"), np.linalg.eigvalsh, hermitian, mlx_dtypes=COMPLEX),
    row(
        "eig",
        _eig,
        lambda a: _from_eig(*np.linalg.eig(a), np.linalg.inv(np.linalg.eig(a)[1])),
        ulp=256,
        dtypes=("float32", "complex64"),
        without={"mlx": "MLX does not invert complex matrices, which this row does."},
    ),
    row(
        "eigvals",
        lambda linalg, a: (linalg.eigvals(a) ** 3).sum(-1),
        lambda a: (np.linalg.eigvals(a).astype(np.complex128) ** 3).sum(-1),
        ulp=256,
        dtypes=("float32", "complex64"),
        mlx_dtypes=("float32", "complex64"),
    ),
]


def _norms(*variants: tuple[Any, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions that compute several norms, by ``norm`` with several arguments, and the same by NumPy."""

    def all_of(linalg: Any, a: Any) -> Any:
        return [linalg.norm(a, *variant) for variant in variants]

    return all_of, lambda a: all_of(np.linalg, a)


def norm_row(variant: str, *variants: tuple[Any, ...], **more: Any) -> Row:
    return row("norm", *_norms(*variants), shape=(2, 3, 4), variant=variant, **{"ulp": 32, "dtypes": DOUBLE, **more})


NORM_ROWS = [
    Row(
        "linalg.norm",
        lambda mx, x: mx.linalg.norm(x),
        lambda x: np.linalg.norm(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64).ravel()),
        dtypes=("float32", "float64", "float16", "bfloat16", "int32", "complex64"),
        ulp=8,
    ),
    norm_row("vectors", (None, 1), (1, -1), (3, -1, True), (math.inf, 2), (-math.inf, 1, True), (0, 2)),
    norm_row("matrices", ("fro", (-2, -1)), (-1, (1, 2), True), (-math.inf, (-1, 0)), (-2, (2, 1))),
    norm_row(
        "complex matrices",
        *[(1, (2, 0)), (math.inf, (0, 1)), (2, (-2, -1)), ("nuc", (1, 2), True)],
        dtypes=COMPLEX,
        mlx_dtypes=DOUBLE,
    ),
]


def _cross_oracle(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    left, right = [np.moveaxis(x, axis, -1) for x in (a, b)]
    left, right = [np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3 - x.shape[-1])]) for x in (left, right)]
    return np.moveaxis(np.cross(left, right), -1, axis)


CROSS_ROWS = [
    Row(
        "linalg.cross",
        lambda mx, a, b: mx.linalg.cross(a, b, axis=-2),
        lambda a, b: _cross_oracle(a, b, -2),
        (Domain(shape=(5, 3, 1)), Domain(shape=(2, 4))),
        ("float32", "float64", "float16", "int32", "complex64"),
        ulp=8,
        grows=((1, 0, 0), (0, 1)),
    )
]

ROWS = [*SOLVE_ROWS, *DECOMPOSITION_ROWS, *NORM_ROWS, *CROSS_ROWS]
