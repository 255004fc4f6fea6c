"""Sums of arrays that are padded with zeros, without the zeros: the cotangent of an array of which a loop reads one
part after the other is such a sum. Added up one by one, they take time in proportion to their number times the size of
the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft.graph.extents import identical
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Elementwise, Tangent, plus

__all__ = ["Padded", "padded", "plus_padded", "plus_zero"]

FEWEST_JOINED = 4
"""Fewer arrays are added up: one kernel does this, together with what is computed from the sum, while each part of a
concatenation has a kernel that writes it. But that one computes what all arrays have inside for each element of the
sum."""


class PlusZero(Elementwise):
    """``x + 0``, which is 0 for -0. It is linear, like the sum in place of which it stands: 0 is added to tangents, and
    cotangents are left as they are."""

    def __init__(self) -> None:
        super().__init__("plus_zero", lambda L, x: x + 0, (lambda t, out, x: self(t),), exact=True)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [cotangent]


plus_zero = PlusZero()


class Padded(NamedTuple):
    """An array, which is ``inner`` with zeros around it, and the index there of the first element of ``inner``. The
    array does not refer to ``inner`` when it is evaluated."""

    array: Array
    inner: Node
    starts: Shape


def padded(array: Array) -> Padded | None:
    """What an array that is padded with zeros consists of; None for others."""
    node = array.node
    primitive = node.primitive
    found = primitive.padded(node) if primitive is not None and primitive.has_padded else None
    return None if found is None else Padded(array, *found)


def plus_padded(total: Tangent, arrays: Sequence[Padded]) -> Tangent:
    """The sum of ``total`` and of padded arrays, with the bits of adding one after the other.

    An element is a sum of zeros and of what the arrays have there. Where the zeros are added makes no difference, but
    at least one has to be: it makes 0 of -0. Arrays with elements at the same indices are added in their order.
    """
    first, *others = _rounds(arrays)
    joined = _joined(first) if len(first) >= FEWEST_JOINED else None
    if joined is None:
        return _added(total, arrays)
    total = plus(total, joined)
    for found in others:
        total = _added(total, found) if len(found) < FEWEST_JOINED else plus(total, _joined(found))
    return total


def _added(total: Tangent, arrays: Sequence[Padded]) -> Tangent:
    for one in arrays:
        total = plus(total, one.array)
    return total


def _rounds(arrays: Sequence[Padded]) -> list[list[Padded]]:
    """The first arrays that have their elements at certain indices; the second ones at the same indices; and so on."""
    rounds: list[list[Padded]] = []
    seen: dict[tuple[Shape, Shape], int] = defaultdict(int)
    for one in arrays:
        box = (one.starts, one.inner.shape)
        if seen[box] == len(rounds):
            rounds.append([])
        rounds[seen[box]].append(one)
        seen[box] += 1
    return rounds


def _joined(arrays: Sequence[Padded]) -> Array | None:
    """The sum of padded arrays as a concatenation of what they have inside, with 0 added to it. None if there is no
    such concatenation: they overlap, or where they have their elements depends on shapes of inputs."""
    return _concatenated(arrays, arrays[0].array.node.shape, 0)


def _concatenated(arrays: Sequence[Padded], shape: Shape, axis: int) -> Array | None:
    """The concatenation along ``axis`` and those after it, if all arrays have the same indices on axes before it."""
    inner = arrays[0].inner
    if len(arrays) == 1 and identical(inner.shape[axis:], shape[axis:]):
        return plus_zero(wrap(inner))
    if axis == len(shape):
        return None
    if all(identical(one.inner.shape[axis], shape[axis]) for one in arrays):
        return _concatenated(arrays, shape, axis + 1)
    spans: dict[tuple[int, int], list[Padded]] = defaultdict(list)
    for one in arrays:
        start, size = one.starts[axis], one.inner.shape[axis]
        if type(start) is not int or type(size) is not int:
            return None
        spans[start, size].append(one)
    pieces: list[Array] = []
    end = 0
    for start, size in sorted(spans):
        piece = _concatenated(spans[start, size], shape, axis + 1) if start >= end else None
        if piece is None:
            return None
        pieces += [*_zeros_like(piece, axis, start - end), piece]
        end = start + size
    pieces += _zeros_like(pieces[-1], axis, shape[axis] - end)
    return p.concatenate(*pieces, axis=axis)


def _zeros_like(piece: Array, axis: int, size: int) -> list[Array]:
    """Zeros of the shape of a piece, but with ``size`` elements along an axis; nothing if there are none."""
    if identical(size, 0):
        return []
    shape = piece.node.shape
    return [p.zeros((*shape[:axis], size, *shape[axis + 1 :]), piece.node.dtype)]
