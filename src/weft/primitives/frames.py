"""Overlapping frames of a signal, and their sum."""

from __future__ import annotations

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import fixed, smallest, value_of
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, View
from weft.primitives.index import AxisTerm
from weft.primitives.untrusted import check_number, require

__all__ = ["frames", "overlap_added"]


def _check_frames(x: Node, *, size: int, hop: int) -> None:
    require(x.ndim > 0, "its input has no axis")
    check_number(size, lowest=1)
    check_number(hop, lowest=1)


def _infer_frames(x: Node, *, size: int, hop: int) -> tuple[Shape, Dtype]:
    extent = x.shape[-1]
    if not 0 < value_of(size) <= value_of(extent) or value_of(hop) < 1:
        raise ValueError(f"[frames] An axis of {extent} has no frames of {size} every {hop}.")
    return (*x.shape[:-1], (extent - size) // hop + 1, size), x.dtype


def _terms_of_frames(source: Shape, size: int, hop: int) -> list[AxisTerm]:
    last = len(source) - 1
    return [*[AxisTerm(axis) for axis in range(last)], AxisTerm(last, hop, inner=last + 1)]


def overlap_added(x: Array, hop: int, length: int) -> Array:
    """The sum of overlapping frames, which are the last axis and begin every ``hop`` elements along an axis of
    ``length``.

    The terms of an element are added in the order from the last frame that contains it to the first one.
    """
    shape = x.node.shape
    rank, (count, size) = len(shape), shape[-2:]
    hop, pieces = fixed(hop), -(-fixed(size) // fixed(hop))
    zero = p.zeros((), x.node.dtype)
    ones, starts = (1,) * rank, (0,) * (rank - 1)
    low = (0,) * rank
    x = p.pad(x, zero, low=low, high=(*low[1:], pieces * hop - size))
    total: Array | None = None
    for piece in range(pieces):
        cut = p.slice_(x, starts=(*starts, piece * hop), sizes=(*shape[:-1], hop), steps=ones)
        before, behind = (*low[2:], piece, 0), (*low[2:], pieces - 1 - piece, 0)
        moved = p.pad(cut, zero, low=before, high=behind)
        total = moved if total is None else total + moved
    whole = (count + pieces - 1) * hop
    flat = p.reshape(total, shape=(*shape[:-2], whole))
    kept = smallest(whole, length)
    cut = p.slice_(flat, starts=starts, sizes=(*shape[:-2], kept), steps=ones[1:])
    return p.pad(cut, zero, low=low[1:], high=(*low[2:], length - kept))


frames: View = View(
    "frames",
    ("size", "hop"),
    _infer_frames,
    lambda ct, x, size, hop: overlap_added(ct, hop, x.node.shape[-1]),
    lambda x, axis, size, hop: (frames(p.move_axis(x, axis, 0), size=size, hop=hop), 0),
    axis_terms=_terms_of_frames,
    check=_check_frames,
)
"""``(..., samples)`` as ``(..., count, size)``: a view, in which frame ``i`` begins at ``i * hop``."""
