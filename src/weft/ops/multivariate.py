"""Random vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import agree
from weft.ops.arguments import (
    Array,
    array_argument,
    broadcast,
    broadcasted_shape,
    checked_extents,
    shape_of,
    shape_text,
    to_dtype,
)
from weft.ops.generator import drawing, symmetric_interval
from weft.primitives.conversions import wide_dtype
from weft.runtime.devices import StreamOrDevice

__all__ = ["multivariate_normal"]


@drawing
def multivariate_normal(
    mean: Array,
    cov: Array,
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.float32,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Vectors of the normal distribution with a given mean and covariance matrix.

    They are ``mean + R z``, where ``R`` is the symmetric square root of ``cov``, and ``z`` has independent elements.
    Derivatives with respect to ``cov`` exist where its eigenvalues differ from each other and from zero.

    Args:
        mean: ``(..., N)``.
        cov: ``(..., N, N)``, symmetric, without negative eigenvalues; the lower triangle is read.
        shape: the shape of the result without its last axis; it is broadcast with the axes in front of ``mean`` and
            ``cov``.
        dtype: a real floating dtype.
        key: see `key`; None for the next one of the global generator.

    Raises:
        ValueError: the shapes do not fit, or the dtype is not floating.

    >>> x = mx.random.multivariate_normal(mx.zeros(2), mx.array([[2.0, 0.5], [0.5, 1.0]]), (1000,))
    >>> x.shape
    (1000, 2)
    """
    target = dtypes.float32 if dtype is None else as_dtype(dtype)
    if not target.is_floating:
        raise ValueError(f"[multivariate_normal] The dtype must be a real floating one, not {target.name}.")
    wide = wide_dtype(target)
    centre, matrix = (
        to_dtype(array_argument("multivariate_normal", one, word), wide) for one, word in ((mean, "mean"), (cov, "cov"))
    )
    inner, outer = centre.node.shape, matrix.node.shape
    if len(inner) < 1 or len(outer) < 2 or not agree(outer[-2:], (inner[-1], inner[-1])):
        raise ValueError(
            f"[multivariate_normal] mean of shape {shape_text(inner)} and cov of shape {shape_text(outer)} do not fit: "
            "they have the shapes (..., N) and (..., N, N)."
        )
    rows = checked_extents("multivariate_normal", shape_of("multivariate_normal", shape))
    joint = broadcasted_shape("multivariate_normal", [rows, inner[:-1], outer[:-2]])
    uniform = symmetric_interval("multivariate_normal", (*joint, inner[-1]), key)
    z = p.multiply(to_dtype(p.random_erfinv(uniform), wide), math.sqrt(2))
    result = p.add(_rows_times(z, _root(matrix)), broadcast(centre, z.node.shape))
    return to_dtype(result, target)


def _root(matrix: Array) -> Array:
    """The symmetric matrix whose square is ``matrix``."""
    values, vectors = p.eigh(matrix, upper=False, vectors=True)
    columns = p.adjoint_of(vectors)
    roots = p.expand(p.sqrt(p.maximum(values, 0)), axes=(values.node.ndim - 1,))
    return p.matmul(p.multiply(columns, p.broadcast(roots, shape=columns.node.shape)), vectors)


def _rows_times(z: Array, root: Array) -> Array:
    """Vectors times a matrix, which may be a different one for each vector."""
    *rows, size = z.node.shape
    if root.node.ndim == 2:
        count = z.node.size // size if not agree(size, 0) else 0
        return p.reshape(p.matmul(p.reshape(z, shape=(count, size)), root), shape=z.node.shape)
    vectors = p.expand(z, axes=(len(rows),))
    product = p.matmul(vectors, broadcast(root, (*rows, size, size)))
    return p.squeeze(product, axes=(len(rows),))
