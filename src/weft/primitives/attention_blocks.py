"""Blocks of queries in which attention is computed, and how the results of blocks are joined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import weft.primitives as p
from weft.graph.node import Shape
from weft.primitives.attention_formulas import QUERIES, sliced
from weft.primitives.base import Array

BLOCK_BYTES = 1 << 20
"""Scores of a head are computed in blocks of queries of about this many bytes."""
MOST_BLOCKS = 16
LARGEST_BLOCK = 16
"""A block that has more than this many times `BLOCK_BYTES` is divided into parts, which all see the keys of the block:
their sums for keys have one shape, and are added up in place."""
CAUSAL_BLOCKS = 4
"""Causal attention is cut into at least this many blocks, if these have `FEWEST_ROWS` queries or more. Each leaves out
the keys that none of its queries sees."""
FEWEST_ROWS = 64
"""The fewest queries of a block."""
WHOLE_ROWS = 16
"""The number of queries in a block is a multiple of this."""


def joined(parts: Sequence[Array]) -> Array:
    """Results for blocks of queries, concatenated."""
    return parts[0] if len(parts) == 1 else p.concatenate(*parts, axis=QUERIES)


def added(parts: Sequence[Array]) -> Array:
    """The sum over blocks, in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = p.add(total, part)
    return total


def added_by_keys(found: Sequence[Array]) -> Array:
    """The sum over blocks for keys, of which each block has only those that it sees."""
    parts = [added(list(same)) for _, same in groupby(found, key=lambda part: part.node.shape[2])]
    ends: list[int] = []
    for part in sorted(parts, key=lambda part: part.node.shape[2]):
        if not ends or part.node.shape[2] != ends[-1]:
            ends.append(part.node.shape[2])
    sums = []
    for start, end in pairwise([0, *ends]):
        seen = [sliced(part, {2: (start, end)}) for part in parts if part.node.shape[2] >= end]
        sums.append(added(seen))
    return sums[0] if len(sums) == 1 else p.concatenate(*sums, axis=2)


def blocks_of(shape: Shape, size: int, causal: bool, most: int) -> list[tuple[int, int, int]]:
    """Blocks of queries, each as (first, end, how many keys they can see). The scores of a block have about ``most``
    bytes for each head."""
    _, _, groups, queries, keys = shape
    wanted = -(-groups * queries * keys * size // most)
    wanted = min(max(wanted, CAUSAL_BLOCKS if causal else 1), MOST_BLOCKS, max(1, queries // FEWEST_ROWS))
    rows = -(-queries // (wanted * WHOLE_ROWS)) * WHOLE_ROWS
    limit = LARGEST_BLOCK * most // (groups * size)
    found: list[tuple[int, int, int]] = []
    start = 0
    while start < queries or not found:
        stop = min(start + rows, queries)
        # A query that sees no key gives all keys the same weight.
        seen = stop + keys - queries if causal and start + keys >= queries else keys
        few = rows if rows * seen <= limit else max(limit // seen // WHOLE_ROWS * WHOLE_ROWS, FEWEST_ROWS)
        while start < stop - few:
            found.append((start, start + few, seen))
            start = start + few
        found.append((start, stop, seen))
        start = stop
    return found
