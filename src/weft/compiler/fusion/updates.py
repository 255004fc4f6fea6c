"""Which parts of an update each of its writes has to do."""

from __future__ import annotations

import weft.primitives as p
from weft.compiler.regions import Box, around
from weft.graph.node import Node
from weft.primitives import Write

STEP_ELEMENTS = 4096
"""Copying this many elements takes as long as one more step in a plan."""

WORTH_CUTTING = 8
"""A slice is left out of a copy if it is at least one part in this many of the array. Otherwise copying parts of rows
takes longer than copying whole rows."""


FEWEST_ROWS = 16
"""With fewer rows, not even one vector would be full."""


def writes_columns(node: Node, most: int) -> bool:
    """Whether an update joins the elements of at most ``most`` arrays to many short rows."""
    first = node.inputs[0].shape
    if not node.primitive.disjoint or node.ndim == 0 or not 1 < node.shape[-1] <= most:
        return False
    columns = all(source.shape == first for source in node.inputs) and first == (*node.shape[:-1], 1)
    return columns and node.size >= FEWEST_ROWS * node.shape[-1]


def parts_of(node: Node) -> list[tuple[Write, Box]]:
    """The writes of an update, in order, each with a box of its operand that it has to write."""
    writes: list[Write] = node.primitive.writes(node)
    parts: list[tuple[Write, Box]] = []
    for number, write in enumerate(writes):
        parts += [(write, box) for box in _boxes(node, write, writes[number + 1 :])]
    return parts


def _boxes(node: Node, write: Write, later: list[Write]) -> list[Box]:
    """The boxes of its operand that a write has to write. It leaves out a slice that the next write assigns anyway."""
    shape = node.inputs[write.position].shape
    whole = [Box((0,) * len(shape), shape)]
    if not later or node.primitive.disjoint or shape != node.shape:
        return whole
    following = later[0]
    update = node.inputs[following.position]
    if not isinstance(following, p.RegionWrite) or any(step != 1 for step in following.steps):
        return whole
    boxes = around(shape, Box(following.starts, update.shape))
    pays = update.size >= STEP_ELEMENTS * (len(boxes) - 1) and update.size * WORTH_CUTTING >= node.size
    return boxes if pays else whole
