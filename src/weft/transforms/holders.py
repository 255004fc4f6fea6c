"""Who else holds an array: memory that nobody else can see may be used again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weft.dtypes import float32
from weft.graph.node import Handle, leaf, wrap
from weft.runtime.memory import Buffer, View

References = tuple[int, int, int, int]


def references(arrays: Sequence[Handle], number: int) -> References:
    """How many references there are to one of the arrays of a call, its node, its view and its buffer."""
    node = arrays[number].node
    view = node.value
    assert view is not None
    counts = sys.getrefcount(node), sys.getrefcount(view), sys.getrefcount(view.buffer)
    return sys.getrefcount(arrays[number]), *counts


def unused_references(lists: int) -> References:
    """The same for an array that one container refers to, so many lists, and a list of nodes."""
    holders = [[wrap(leaf(View(Buffer(4), 0, ()), (), float32))]]
    while len(holders) <= lists:
        holders.append(list(holders[0]))
    nodes = [array.node for array in holders[0]]
    found = references(holders[-1], 0)
    del nodes
    return found
