"""Conversions between dtypes, also behind views; the dtype in which functions compute."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import Array

__all__ = ["before_conversion"]


def wide_dtype(dtype: Dtype) -> Dtype:
    """The dtype in which many functions of several operations compute: float64 for float64, float32 for all others."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def to_dtype(x: Array, dtype: Dtype) -> Array:
    """``x`` converted to ``dtype``; ``x`` itself if it has that dtype."""
    return x if x.node.dtype is dtype else p.cast(x, dtype=dtype)


def before_conversion(x: Node) -> Node:
    """The half-precision array from which ``x``, or the array of which it is a view, was converted; else ``x``."""
    views = []
    source = x
    while p.is_view(source):
        views.append(source)
        source = source.inputs[0]
    if source.primitive is not p.cast or source.inputs[0].dtype not in (dtypes.float16, dtypes.bfloat16):
        return x
    found = source.inputs[0]
    for view in reversed(views):
        found = Node(view.primitive, (found, *view.inputs[1:]), view.params, view.shape, found.dtype, None)
    return found
