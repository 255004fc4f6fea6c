"""Many results that are asked for together, each of a few operations.

One plan of all of them takes the planner a tenth of a millisecond and more for each operation. Results that are
evaluated one after the other are mostly alike, such as the weights of a model, so they have a plan in common. What
several of them are made of is held when the first one is evaluated, and so gets a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.graph.node import Node, serial_of

MOST_TOGETHER = 512
"""A plan of more results is not quicker than plans of their own, and takes a second to make."""
_FEWEST = 32
"""Fewer results are planned together: plans of their own could need more code than they save time."""
_MOST_OPERATIONS = 32
_LARGE = 1 << 12
"""Arrays with more elements are read once by a plan of all results that are made of them."""


def separate_among(nodes: Sequence[Node]) -> list[Node]:
    """Those of different nodes that may well be evaluated one after the other, in this order. None of them if there are
    few, if one needs many operations besides those that the earlier ones need, or if several need the same large array.

    Results that are made of numbers alone are not among them: many are equal, and a plan computes these once.
    """
    if len(nodes) < _FEWEST:
        return []
    known: set[Node] = set()
    found = []
    for node in sorted(nodes, key=serial_of):
        sources = _needed(node, known)
        if sources is None:
            return []
        if sources:
            found.append(node)
    return found


def _needed(node: Node, known: set[Node]) -> int | None:
    """How many values, and operations that are ``known``, a node is made of; None if it needs many other operations, or
    if a large one of these arrays is known. What it needs is known from then on."""
    known.add(node)
    operations = [node]
    sources = 0
    for operation in operations:  # the list grows meanwhile
        for source in operation.inputs:
            if source in known:
                if prod(source.shape) > _LARGE:
                    return None
                sources += 1
            elif source.value is not None:
                known.add(source)
                sources += 1
            elif source.inputs:  # else it is a number
                known.add(source)
                operations.append(source)
    return sources if len(operations) <= _MOST_OPERATIONS else None
