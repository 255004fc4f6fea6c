"""Who else holds an array: memory that nobody else can see may be used again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from weft.dtypes import float32
from weft.graph.node import Handle, Node, leaf, wrap
from weft.runtime.host import host
from weft.runtime.memory import Buffer, View

References = tuple[int, int, int, int]


def references(arrays: Sequence[Handle], inputs: Sequence[Node], number: int) -> References:
    """How many references there are to one of the arrays of a call, the node that it named, its view and its buffer;
    none to the array if it names another node by now."""
    node = inputs[number]
    view = node.value
    assert view is not None
    handle = sys.getrefcount(arrays[number]) if arrays[number].node is node else 0
    return handle, sys.getrefcount(node) - bool(handle), sys.getrefcount(view), sys.getrefcount(view.buffer)


def unused_references(lists: int) -> References:
    """The same for an array that so many lists refer to, its node in a list, and its view in another one."""
    holders = [[wrap(leaf(View(Buffer(host, 4), 0, ()), (), float32))]]
    while len(holders) < lists:
        holders.append(list(holders[0]))
    nodes = [array.node for array in holders[0]]
    views = [node.value for node in nodes]
    found = references(holders[-1], nodes, 0)
    del views
    return found
