"""The result types of matrix decompositions, and the limit below which singular values count as zero."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import weft.primitives as p
from weft.dtypes import finfo
from weft.graph.extents import AnyExtent, agree, derived
from weft.ops.arguments import Array, array_of, broadcast, broadcasted_shape, shape_text, to_dtype

__all__ = ["EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult", "limit_of"]


class EigResult(NamedTuple):
    """The result of `mx.linalg.eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """The result of `mx.linalg.eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of `mx.linalg.qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """The result of `mx.linalg.svd`."""

    U: Array
    S: Array
    Vh: Array


class SlogdetResult(NamedTuple):
    """The result of `mx.linalg.slogdet`."""

    sign: Array
    logabsdet: Array


def limit_of(name: str, largest: Array, rows: AnyExtent, columns: AnyExtent, factor: float, rtol: Any) -> Array:
    """The limit up to which singular values count as zero: ``rtol``, by default ``factor * max(rows, columns) * eps``,
    times the largest one, which is the last axis of ``largest``. Messages name the function ``name``."""
    dtype = largest.node.dtype
    if rtol is None:
        tolerance = factor * float(finfo(dtype).eps)
        return largest * derived(operator.mul, derived(max, rows, columns), tolerance)
    share = to_dtype(array_of(name, "rtol", rtol), dtype)
    batch = largest.node.shape[:-1]
    if share.node.ndim > len(batch) or not agree(broadcasted_shape(name, [share.node.shape, batch]), batch):
        raise ValueError(
            f"[{name}] rtol of shape {shape_text(share.node.shape)} does not fit matrices in a stack of shape "
            f"{shape_text(batch)}."
        )
    return largest * p.expand(broadcast(share, batch), axes=(len(batch),))
