"""Attention that no library computes and whose scores would take much memory: it is computed for some examples and
heads at a time. Its cotangents then need no sums over blocks of queries, whose terms would be in memory together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import weft.primitives as p
from weft.graph.extents import product
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array

MANY_SCORES = 1 << 26
PART_SCORES, MOST_PARTS = 1 << 26, 128
"""How many scores are computed together, and into how many parts attention is cut at most. With fewer scores, products
have too few rows for a whole card: with a quarter of them it takes 1.5 times as long on an H100."""

_BATCH, _HEADS = 0, 1


def in_parts(node: Node) -> list[Node] | None:
    """Nodes for all results of attention, or of its cotangents; None if there are few scores."""
    scores = _scores(node)
    if scores <= MANY_SCORES:
        return None
    shapes, heads = _shapes(node), node.inputs[0].shape[:2]
    has_all = [shape[:2] == heads for shape in shapes]
    parts = _parts(node, max(PART_SCORES, scores // MOST_PARTS), has_all)
    return [_joined(found, shape).node for found, shape in zip(parts, shapes, strict=True)]


def _scores(node: Node) -> int:
    queries, keys = node.inputs[:2]
    return product(queries.shape[:-1]) * keys.shape[2]


def _parts(node: Node, most: int, has_all: Sequence[bool]) -> list[list[Array]]:
    """The results, computed in parts of at most ``most`` scores; one example with one head is done in blocks. A result
    that ``has_all`` examples and heads is a list with an array for each part, any other one has a single array."""
    shape, scores = node.inputs[0].shape, _scores(node)
    axis = _BATCH if shape[_BATCH] > 1 else _HEADS
    extent = shape[axis]
    if extent == 1 or scores <= most:
        primitive: Any = node.primitive
        found = [wrap(one) for one in primitive.in_blocks(node, most * node.inputs[0].dtype.size)]
        return [[_flat(x) if all_ else x] for x, all_ in zip(found, has_all, strict=True)]
    size = max(1, extent * most // scores)
    limits = [(start, min(start + size, extent)) for start in range(0, extent, size)]
    parts = [_parts(_part(node, axis, *limit), most, has_all) for limit in limits]
    results = []
    for all_, shape, *found in zip(has_all, _shapes(node), *parts, strict=True):
        arrays = [array for one in found for array in one]
        if not all_:
            whole = p.concatenate(*arrays, axis=axis) if shape[axis] == extent else reduce(p.add, arrays)
            arrays = [whole]
        results.append(arrays)
    return results


def _joined(parts: Sequence[Array], shape: Shape) -> Array:
    """The results of parts, concatenated; each is written directly to its place in the whole."""
    whole = p.concatenate(*parts, axis=0) if len(parts) > 1 else parts[0]
    return p.reshape(whole, shape=shape)


def _flat(x: Array) -> Array:
    """An array with examples and heads merged into one axis."""
    batch, heads, *rest = x.node.shape
    return p.reshape(x, shape=(batch * heads, *rest))


def _shapes(node: Node) -> Sequence[Shape]:
    """The shapes of all results."""
    if not node.primitive.several:
        return [node.shape]
    return [shape for shape, _ in node.primitive.infer_results(*node.inputs, **node.keywords)]


def _part(node: Node, axis: int, start: int, stop: int) -> Node:
    """The same operation for some examples or heads."""
    extent = node.inputs[0].shape[axis]
    inputs = [wrap(x) for x in node.inputs]
    sliced = [_slice(x, axis, start, stop) if _has(x.node, axis, extent) else x for x in inputs]
    made = node.primitive(*sliced, **node.keywords)
    part: Node = made[0].node.inputs[0] if node.primitive.several else made.node
    return part


def _has(x: Node, axis: int, extent: int) -> bool:
    """Whether an input has an element for each example (or head)."""
    return x.ndim > axis and x.shape[axis] == extent


def _slice(x: Array, axis: int, start: int, stop: int) -> Array:
    starts, sizes = [0] * x.node.ndim, [*x.node.shape]
    starts[axis], sizes[axis] = start, stop - start
    return p.slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * x.node.ndim)
