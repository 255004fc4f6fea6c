"""Eigenvalues and eigenvectors of stacks of matrices; see `weft.ops.linalg`."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import shortened
from weft.ops.arguments import (
    Array,
    to_dtype,
)
from weft.ops.decompositions import EighResult, EigResult
from weft.ops.entrance import on_stream
from weft.ops.linalg import matrices
from weft.primitives.products import matrix_transpose
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
]


def _reads_upper(name: str, triangle: Any) -> bool:
    if not isinstance(triangle, str) or triangle.upper() not in ("L", "U"):
        raise ValueError(f"[linalg.{name}] UPLO must be 'L' or 'U', the triangle to read; got {shortened(triangle)}.")
    return triangle.upper() == "U"


@on_stream
def eigh(a: Array, UPLO: str = "L", *, stream: StreamOrDevice = None) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric or hermitian matrices.

    Args:
        a: ``(..., N, N)``, float32, float64 or complex64. One triangle is read.
        UPLO: which triangle is read, the lower ("L") or the upper ("U").

    Returns:
        The eigenvalues ``(..., N)`` in ascending order, real, and a matrix ``(..., N, N)`` whose columns are the
        eigenvectors. NaN for matrices with infinite or NaN elements. Derivatives assume symmetric or hermitian
        matrices, and are symmetric or hermitian; those of eigenvectors do not exist where eigenvalues are equal.

    Raises:
        ValueError: another dtype, or matrices that are not square.

    >>> w, v = mx.linalg.eigh(mx.array([[2.0, 0.0], [0.0, 1.0]]))
    >>> w
    array([1, 2], dtype=float32)
    """
    values, adjoint = p.eigh(matrices("eigh", a), upper=_reads_upper("eigh", UPLO), vectors=True)
    return EighResult(values, p.adjoint_of(adjoint))


@on_stream
def eigvalsh(a: Array, UPLO: str = "L", *, stream: StreamOrDevice = None) -> Array:
    """The eigenvalues of symmetric or hermitian matrices, in ascending order; the arguments are those of `eigh`.

    >>> mx.linalg.eigvalsh(mx.array([[2.0, 0.0], [0.0, 1.0]]))
    array([1, 2], dtype=float32)
    """
    return p.eigh(matrices("eigvalsh", a), upper=_reads_upper("eigvalsh", UPLO), vectors=False)[0]


def _single(x: Array) -> Array:
    """float64 as float32, because there is no complex dtype of double precision."""
    return to_dtype(x, dtypes.float32) if x.node.dtype is dtypes.float64 else x


@on_stream
def eig(a: Array, *, stream: StreamOrDevice = None) -> EigResult:
    """Eigenvalues and eigenvectors of square matrices.

    Args:
        a: ``(..., N, N)``, float32, float64 (computed in float32) or complex64.

    Returns:
        The eigenvalues ``(..., N)`` in no particular order, and a matrix ``(..., N, N)`` whose columns are the
        eigenvectors, of length 1; both complex64. NaN for matrices with infinite or NaN elements. Derivatives do not
        exist where eigenvalues are equal.

    Raises:
        ValueError: another dtype, or matrices that are not square.

    >>> w, v = mx.linalg.eig(mx.array([[0.0, 1.0], [-1.0, 0.0]]))
    >>> w
    array([0+1j, 0-1j], dtype=complex64)
    """
    values, rows = p.eig(matrix_transpose(_single(matrices("eig", a))), vectors=True)
    return EigResult(values, matrix_transpose(rows))


@on_stream
def eigvals(a: Array, *, stream: StreamOrDevice = None) -> Array:
    """The eigenvalues of square matrices, in no particular order; see `eig`.

    >>> mx.linalg.eigvals(mx.array([[0.0, 1.0], [-1.0, 0.0]]))
    array([0+1j, 0-1j], dtype=complex64)
    """
    return p.eig(matrix_transpose(_single(matrices("eigvals", a))), vectors=False)[0]
