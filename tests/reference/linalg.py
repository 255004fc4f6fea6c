"""Linear algebra on the reference device, by NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

import weft.primitives as p
from tests.reference.routines import by


def turned(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def triangle(x: np.ndarray, upper: bool) -> np.ndarray:
    return np.triu(x) if upper else np.tril(x)


def from_triangle(x: np.ndarray, upper: bool) -> np.ndarray:
    """The hermitian matrix with the given triangle."""
    strict = np.triu(x, 1) if upper else np.tril(x, -1)
    return triangle(x, upper) + turned(strict).conj()


@by(p.cholesky.routine)
def cholesky(a: np.ndarray, upper: bool) -> Any:
    factor = np.linalg.cholesky(from_triangle(a, upper))
    return turned(factor).conj() if upper else factor


@by(p.inverse_matrix.routine)
def inverse(a: np.ndarray) -> Any:
    return np.linalg.inv(a)


@by(p.triangular_inverse.routine)
def triangular_inverse(a: np.ndarray, upper: bool) -> Any:
    return triangle(np.linalg.inv(triangle(a, upper)), upper)


@by(p.solve_factored.routine)
def solve(a: np.ndarray, factors: np.ndarray, pivots: np.ndarray, b: np.ndarray, adjoint: bool) -> Any:
    return np.linalg.solve(turned(a).conj() if adjoint else a, b)


@by(p.solve_triangular.routine)
def solve_triangular(a: np.ndarray, b: np.ndarray, upper: bool, adjoint: bool, unit: bool) -> Any:
    a = triangle(a, upper)
    if unit:
        a = a - a * np.eye(a.shape[-1], dtype=a.dtype) + np.eye(a.shape[-1], dtype=a.dtype)
    return np.linalg.solve(turned(a).conj() if adjoint else a, b)


@by(p.lu_factors.routine)
def lu(x: np.ndarray) -> Any:
    batch, (columns, rows) = x.shape[:-2], x.shape[-2:]
    found = [scipy.linalg.lu_factor(matrix.T) for matrix in x.reshape(-1, columns, rows)]
    orders = [scipy.linalg.lu(matrix.T, p_indices=True)[0] for matrix in x.reshape(-1, columns, rows)]
    factors = np.array([one.T for one, _ in found]).reshape(x.shape)
    pivots = np.array([one for _, one in found]).reshape(*batch, min(rows, columns))
    return factors, pivots, np.array(orders).reshape(*batch, rows)


@by(p.qr.routine)
def qr(a: np.ndarray) -> Any:
    return list(np.linalg.qr(a))


@by(p.svd.routine)
def svd(a: np.ndarray, vectors: bool, full: bool) -> Any:
    return list(np.linalg.svd(a, full_matrices=full)) if vectors else np.linalg.svd(a, compute_uv=False)


@by(p.eigh.routine)
def eigh(a: np.ndarray, upper: bool, vectors: bool) -> Any:
    values, columns = np.linalg.eigh(a, "U" if upper else "L")
    return [values, turned(columns).conj()] if vectors else values


@by(p.eig.routine)
def eig(x: np.ndarray, vectors: bool) -> Any:
    values, columns = np.linalg.eig(turned(x))
    return [values, turned(columns)] if vectors else values
