"""Which calls of compiled functions wait until their results are asked for, instead of starting at once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

from weft.graph.node import Node, Placeholder

MUCH_MEMORY = 1 << 28
"""Bytes; a call whose arguments need less that is made of little starts at once."""
LITTLE = 64
"""A result of so many times the bytes of what it is made of is made of little."""
MOST_OPERATIONS = 1 << 10
"""That are looked at to find out."""
MOST_CALLS = 1 << 10
"""That wait at the same time: a loop that never asks for a value must not collect operations without end."""

_waiting: deque[weakref.ref[Node]] = deque()
"""A result of each call that has waited."""


def is_postponed(pending: Sequence[Node]) -> bool:
    """Whether a call with these arguments, which have no values yet, becomes part of their graph.

    That is so if values for them need `MUCH_MEMORY` that is made of little, as the random weights of a large model are
    that nobody has asked for yet. To slice or to multiply what is there is no reason to wait.
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
    """Count a call that waits."""
    _waiting.extend(map(weakref.ref, results[:1]))


def _may_another_wait() -> bool:
    if len(_waiting) >= MOST_CALLS:
        found = [(reference, reference()) for reference in tuple(_waiting)]
        _waiting.clear()  # another thread's call may be lost: it is a bound, not a count
        _waiting.extend([reference for reference, node in found if node is not None and node.value is None])
    return len(_waiting) < MOST_CALLS


def _made_of_little(node: Node) -> int:
    """The bytes of the result of an operation if its inputs have few in comparison, else 0."""
    if node.primitive is None or node.primitive.is_view:
        return 0
    own = _bytes(node)
    return own if sum(map(_bytes, node.inputs)) * LITTLE <= own else 0


def _bytes(node: Node) -> int:
    size = node.size
    return size * node.dtype.size if isinstance(size, int) else 0
