"""Linear algebra: ``mx.linalg``."""

from weft.ops.eigenvalues import eig, eigh, eigvals, eigvalsh
from weft.ops.linalg import (
    cholesky,
    cholesky_inv,
    det,
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
from weft.ops.matrices import diagonal, matrix_norm, matrix_power, matrix_rank, svdvals, trace, vector_norm
from weft.ops.norms import cross, norm
from weft.ops.products import matmul, outer, tensordot, vecdot
from weft.ops.shaping import matrix_transpose

__all__ = [
    "cholesky",
    "cholesky_inv",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lu",
    "lu_factor",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "tri_inv",
    "vecdot",
    "vector_norm",
]
