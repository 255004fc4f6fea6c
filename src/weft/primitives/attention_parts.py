"""Attention that no library computes, of so many scores that they do not fit memory well: for some examples and heads
after the others. So its cotangents need no sums of what blocks of queries give for keys, which would be in memory at
the same time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import weft.primitives as p
from weft.graph.extents import product
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array

MANY_SCORES = 1 << 26
PART_SCORES, MOST_PARTS = 1 << 24, 128
"""Scores of the examples and heads that are computed together, in at most so many parts."""

_BATCH, _HEADS = 0, 1


def in_parts(node: Node) -> list[Node] | None:
    """Nodes for all results of attention, or of its cotangents; None if there are few scores."""
    scores = _scores(node)
    return None if scores <= MANY_SCORES else _parts(node, max(PART_SCORES, scores // MOST_PARTS))


def _scores(node: Node) -> int:
    queries, keys = node.inputs[:2]
    return product(queries.shape[:-1]) * keys.shape[2]


def _parts(node: Node, most: int) -> list[Node]:
    """The results, from parts that have at most so many scores; one head of keys is done in blocks."""
    shape, scores = node.inputs[0].shape, _scores(node)
    axis = _BATCH if shape[_BATCH] > 1 else _HEADS
    extent = shape[axis]
    if extent == 1 or scores <= most:
        primitive: Any = node.primitive
        found: list[Node] = primitive.in_blocks(node, most * node.inputs[0].dtype.size)
        return found
    size = max(1, extent * most // scores)
    limits = [(start, min(start + size, extent)) for start in range(0, extent, size)]
    parts = [_parts(_part(node, axis, *limit), most) for limit in limits]
    joined = []
    for shape, *found in zip(_shapes(node), *parts, strict=True):
        arrays = [wrap(one) for one in found]
        joined.append(p.concatenate(*arrays, axis=axis) if shape[axis] == extent else reduce(p.add, arrays))
    return [array.node for array in joined]


def _shapes(node: Node) -> Sequence[Shape]:
    """Those of all results."""
    if not node.primitive.several:
        return [node.shape]
    return [shape for shape, _ in node.primitive.infer_results(*node.inputs, **node.keywords)]


def _part(node: Node, axis: int, start: int, stop: int) -> Node:
    """The same of some examples, or heads."""
    extent = node.inputs[0].shape[axis]
    inputs = [wrap(x) for x in node.inputs]
    sliced = [_slice(x, axis, start, stop) if _has(x.node, axis, extent) else x for x in inputs]
    made = node.primitive(*sliced, **node.keywords)
    part: Node = made[0].node.inputs[0] if node.primitive.several else made.node
    return part


def _has(x: Node, axis: int, extent: int) -> bool:
    """Whether something is different for each example, or head."""
    return x.ndim > axis and x.shape[axis] == extent


def _slice(x: Array, axis: int, start: int, stop: int) -> Array:
    starts, sizes = [0] * x.node.ndim, [*x.node.shape]
    starts[axis], sizes[axis] = start, stop - start
    return p.slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * x.node.ndim)
