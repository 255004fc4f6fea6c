"""Conversions between dtypes, also behind views."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.graph.node import Node

__all__ = ["before_conversion"]


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
