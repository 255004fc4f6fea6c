"""Which calls of compiled functions do not start at once, but wait until their results are needed."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

from weft.graph.node import Node, Placeholder

MUCH_MEMORY = 1 << 28
"""In bytes. A call starts at once if less of the memory that it needs for its arguments is *made of little*."""
LITTLE = 64
"""A result is made of little if it has at least this many times the bytes of the inputs of its operation."""
MOST_OPERATIONS = 1 << 10
"""The most operations that are examined to find out."""
MOST_CALLS = 1 << 10
"""The most calls that wait at the same time, so that a loop that never reads a value does not collect operations
without end."""

_waiting: deque[weakref.ref[Node]] = deque()
"""For each call that waits, one of its results. Some may have values by now."""


def is_postponed(pending: Sequence[Node]) -> bool:
    """Whether a call waits whose arguments ``pending`` have no values yet, so that it becomes part of their graph.

    It waits if their values need at least `MUCH_MEMORY` that is made of little, as random weights of a large model do.
    To slice or to multiply arrays that have values is no reason to wait.
    """
    needed = 0
    seen = set(pending)
    nearest_first = list(seen)
    for node in nearest_first:
        if isinstance(node, Placeholder) or len(seen) > MOST_OPERATIONS:
            return False
        needed += _made_of_little(node)
        if needed >= MUCH_MEMORY:
            return _may_another_wait()
        for source in node.inputs:
            if source.value is None and source not in seen:
                seen.add(source)
                nearest_first.append(source)
    return False


def note_postponed(results: Sequence[Node]) -> None:
    """Record a call that waits."""
    _waiting.extend(map(weakref.ref, results[:1]))


def _may_another_wait() -> bool:
    if len(_waiting) >= MOST_CALLS:
        found = [(reference, reference()) for reference in tuple(_waiting)]
        _waiting.clear()  # a call that another thread adds may be lost: the number only has to be about right
        _waiting.extend([reference for reference, node in found if node is not None and node.value is None])
    return len(_waiting) < MOST_CALLS


def _made_of_little(node: Node) -> int:
    """The bytes of the result of an operation if it is made of little, else 0."""
    if node.primitive is None or node.primitive.is_view:
        return 0
    own = _bytes(node)
    return own if sum(map(_bytes, node.inputs)) * LITTLE <= own else 0


def _bytes(node: Node) -> int:
    size = node.size
    return size * node.dtype.size if isinstance(size, int) else 0
