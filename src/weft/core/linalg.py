"""Linear algebra: ``mx.linalg``."""

from __future__ import annotations

from weft.ops.linalg import (
    cholesky,
    cholesky_inv,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    lu,
    lu_factor,
    pinv,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
    tri_inv,
)
from weft.ops.norms import cross, norm

__all__ = [
    "cholesky",
    "cholesky_inv",
    "cross",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lu",
    "lu_factor",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "tri_inv",
]
