"""Kernels that feed calls of routines: an operand is made rectangle by rectangle, when the step of the call needs it.

It is the counterpart of an attached kernel (`attaching.py`). The step runs the code of the kernel for a rectangle of
the operand, which it then reads from scratch memory that stays in a cache. So an operand that only one call needs is
never stored as a whole. The step must read every element only once: otherwise they would be computed repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from weft.compiler.fusion.fusion import Fusion
from weft.compiler.fusion.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.fusion.launches import Launches
from weft.compiler.kernel import Launch
from weft.compiler.target import Schedule, Target
from weft.graph.node import Node, Shape
from weft.primitives.routine import Routine, RoutineCall

from .attaching import Attachment, fits


class Feeder(NamedTuple):
    """A kernel, and the position of the operand that it makes."""

    position: int
    kernel: Attachment


def is_whole_matrix(layout: Layout, shape: Shape) -> bool:
    """Whether an operand is a whole array in memory, whose rows are the operand's rows or columns."""
    if len(shape) != 2 or min(shape) < 2 or layout.offset or layout.factors is not None:
        return False
    rows, columns = shape
    by_rows = layout.strides == (columns, 1) and layout.base.shape[-1] == columns
    by_columns = layout.strides == (1, rows) and layout.base.shape[-1] == rows
    return layout.base.size == rows * columns and (by_rows or by_columns)


def makes_only(group: FusedGroup, node: Node) -> bool:
    """Whether a group stores a whole node, and nothing else."""
    return len(group.roots) == 1 and group.roots[0].target is node and group.roots[0].write is None


class FeederFinder:
    """Finds the kernels that feed calls. ``routine_call`` gives the call of a group, before slots and offsets are
    known."""

    def __init__(
        self,
        target: Target,
        fusion: Fusion,
        launches: Launches,
        routine_call: Callable[[RoutineGroup], RoutineCall],
    ) -> None:
        self.target, self.fusion, self.launches, self.routine_call = target, fusion, launches, routine_call

    def found(
        self,
        planned: dict[Group, tuple[Launch | None, Schedule | None]],
        readers: Mapping[Node, Sequence[Group]],
        wanted: Container[Node],
        apart: Container[Group],
    ) -> dict[Group, Feeder]:
        """All feeders, by the groups of their calls. They make nodes that only that call reads, and that are not
        ``wanted``, for calls that are not ``apart``. They are removed from ``planned``, as they are no steps of their
        own, and from the groups that store nodes."""
        fed: dict[Group, Feeder] = {}
        for group in self.fusion.groups:
            if not isinstance(group, RoutineGroup) or group in apart:
                continue
            for position, node, maker in self._candidates(group):
                alone, _ = planned.get(maker, (None, None))
                if alone is None or node in wanted or len(readers[node]) > 2 or set(readers[node]) != {maker, group}:
                    continue
                kernel = self._kernel(group, position, maker, alone, node)
                if kernel is not None:
                    fed[group] = Feeder(position, kernel)
                    del planned[maker]
                    self.fusion.attach(maker, group)
                    del self.fusion.stored[node]
                    break
        return fed

    def _candidates(self, group: RoutineGroup) -> Iterator[tuple[int, Node, FusedGroup]]:
        """The operands of a call that a single kernel makes: positions, nodes and groups."""
        layouts = [self.fusion.operand(group, position) for position in range(len(group.node.inputs))]
        bases = [layout.base for layout in layouts if layout is not None]
        for position, layout in enumerate(layouts):
            if layout is None or not is_whole_matrix(layout, group.node.inputs[position].shape):
                continue
            writers = self.fusion.stored.get(layout.base, ())
            if bases.count(layout.base) == len(writers) == 1:
                (maker,) = writers
                if isinstance(maker, FusedGroup) and makes_only(maker, layout.base):
                    yield position, layout.base, maker

    def _kernel(
        self, group: RoutineGroup, position: int, maker: FusedGroup, alone: Launch, node: Node
    ) -> Attachment | None:
        """The kernel that makes rectangles of an operand; None if it cannot make single rectangles, or if the call
        needs elements more than once. ``alone`` is its launch as a step of its own."""
        routine: Routine = group.node.primitive.routine
        if not routine.feeds(self.routine_call(group), position, self.target.kind):
            return None
        launch = self.launches.of(maker, lanes_apart=True)
        if launch is None or launch.kernel.lane != "parallel" or not fits(launch, alone, node):
            return None
        schedule = self.target.attached_schedule(launch)
        return None if schedule is None else Attachment(maker, launch, schedule, node, stored=False)
