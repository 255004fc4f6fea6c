"""What the steps of a chain access in each turn."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from weft.compiler.conditions import ranges_of
from weft.compiler.fusion.groups import Layout
from weft.compiler.kernel import Launch
from weft.graph.node import Node, Shape


class NodeAccess(NamedTuple):
    """Where a step accesses a node, in elements: extents and strides of the ``outer`` axes, over which the work of the
    step is divided, and of the ``inner`` ones.

    ``computed``: the locations are known only at run time. ``ranges`` are the indices, from the first to before the
    last one, that are accessed of axes, by their numbers, outer ones first; of others all are."""

    node: Node
    reads: bool
    outer: Sequence[tuple[int, int]]
    inner: Sequence[tuple[int, int]]
    offset: int
    computed: bool = False
    ranges: Mapping[int, tuple[int, int]] = MappingProxyType({})

    def stays_in(self, turns: int) -> bool:
        """Whether each turn accesses a part of the node of its own, and these parts follow each other in memory in the
        order of the turns."""
        part, rest = divmod(self.node.size, turns)
        if rest or self.computed:
            return False
        left, first, reach = turns, self.offset, self.offset
        for number, (extent, stride) in enumerate([*self.outer, *self.inner]):
            here = min(extent, left) if number < len(self.outer) else 1
            if left % here or extent % here or stride < 0:
                return False
            left //= here
            low, high = 0, extent // here
            if here > 1:
                if stride * high != left * part:
                    return False
            elif number in self.ranges:
                low, high = self.ranges[number]
            first += low * stride
            reach += (high - 1) * stride
        return left == 1 and first >= 0 and reach < part


class TurnAccesses(NamedTuple):
    """The nodes that a step accesses, those that it reads, and those of which a turn accesses another turn's part; and
    how many constants it uses."""

    nodes: frozenset[Node]
    read: frozenset[Node]
    leaving: frozenset[Node]
    constants: int

    @staticmethod
    def of(accesses: Collection[NodeAccess], turns: int, launch: Launch | None) -> TurnAccesses:
        return TurnAccesses(
            frozenset([access.node for access in accesses]),
            frozenset([access.node for access in accesses if access.reads]),
            frozenset([access.node for access in accesses if not access.stays_in(turns)]),
            0 if launch is None else sum([i.operation == "scalar" for i in launch.kernel.instructions]),
        )


def accesses_of_launch(launch: Launch) -> Iterator[NodeAccess]:
    """All accesses of a kernel."""
    by_lanes = not launch.row_extents and launch.kernel.lane == "parallel"
    for instruction in launch.kernel.instructions:
        access = instruction.access
        if access is not None and access.operand is not None:
            rows = list(zip(launch.row_extents, access.rows, strict=True))
            sweeps = list(zip(launch.sweep_extents, access.sweeps, strict=True))
            lanes = launch.lane_extent, access.lane
            outer, inner = ([lanes], sweeps) if by_lanes else (rows, [*sweeps, lanes])
            reads = instruction.operation != "store" or instruction.combine is not None
            ranges = {} if by_lanes or instruction.where is None else ranges_of(launch, instruction.where)
            yield NodeAccess(access.operand, reads, outer, inner, access.offset, bool(access.computed), ranges)


def access_of_stack(layout: Layout, shape: Shape, reads: bool) -> NodeAccess:
    """The access of a call to a stack of matrices."""
    factors = layout.factors or [[axis] for axis in zip(shape, layout.strides, strict=True)]
    outer, inner = ([axis for one in part for axis in one] for part in (factors[:-2], factors[-2:]))
    return NodeAccess(layout.base, reads, outer, inner, layout.offset)
