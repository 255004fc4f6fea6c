"""Kernels that are attached to calls of routines: each rectangle of a result is followed by what is done with it.

The step of the call runs the kernel on a rectangle as soon as that is made, while it is in a cache. It is the code that
a step of its own would run, so it gives the same bits; only its numbers are changed for each rectangle. If nobody else
needs the result of the call, it is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.compiler.groups import FusedGroup
from weft.compiler.kernel import VIRTUAL_LANES, Access, Kernel, Launch, number_layout
from weft.compiler.target import Schedule
from weft.graph.node import Node
from weft.primitives.routine import Attached
from weft.runtime.memory import contiguous_strides


@dataclass(slots=True)
class Attachment:
    """A group that runs as a part of the step of a call, and its loops.

    ``result`` is what the call makes. If nobody else needs it (``stored`` is false), it is made in the memory of
    ``target``, where the kernel then stores what it makes of it, or somewhere else for a while (None).
    """

    group: FusedGroup
    launch: Launch
    schedule: Schedule
    result: Node
    stored: bool = True
    target: Node | None = None

    @property
    def whole(self) -> bool:
        """Whether a row is needed at once."""
        return is_whole(self.launch)

    def numbered(self, code: Any, numbers: Sequence[int]) -> Attached:
        """The kernel, with what changes in its numbers from rectangle to rectangle."""
        kernel = self.launch.kernel
        layout = number_layout(kernel, self.schedule.numbers)
        shifts = []
        reads = []
        for position, instruction in enumerate(kernel.instructions):
            access = instruction.access
            if access is None:
                continue
            if access.lane:
                step = access.lane if access.operand is None else access.lane * access.dtype.size
                shifts.append((layout[position, "offset"], step))
            if access.operand is self.result:
                rows = [layout[position, "row", axis] for axis, stride in enumerate(access.rows) if stride]
                reads.append((layout[position, "offset"], tuple(rows)))
        in_memory = self.stored or self.target is not None
        return Attached(code, tuple(numbers), layout["lane",], tuple(shifts), tuple(reads), self.whole, in_memory)


def is_whole(launch: Launch) -> bool:
    """Whether rows are needed as a whole."""
    return launch.kernel.lane == "reduced"


def fits(launch: Launch, alone: Launch, result: Node) -> bool:
    """Whether a launch can be done a rectangle of the result of a call at a time. ``alone`` is the same as a step of
    its own, whose loops may be merged further."""
    kernel = launch.kernel
    if not may_fit(launch, result) or launch.lane_extent != _lanes(result):
        return False
    if launch.lane_extent < min(VIRTUAL_LANES, alone.lane_extent):
        return False
    return all(_walks_over(access, launch) for access in _accesses_to(kernel, result)) and _writes_apart(kernel)


def may_fit(launch: Launch, result: Node) -> bool:
    """What of `fits` does not depend on how far loops are merged."""
    kernel = launch.kernel
    if kernel.sweeps or kernel.ragged or kernel.lane == "none" or result.ndim < 2:
        return False
    return launch.row_count * launch.lane_extent == result.size


def _lanes(result: Node) -> int:
    """How many lanes a launch must have: the columns, or the rows if there is one column."""
    return result.shape[-1] if result.shape[-1] != 1 else result.shape[-2]


def _accesses_to(kernel: Kernel, node: Node) -> list[Access]:
    return [i.access for i in kernel.instructions if i.access is not None and i.access.operand is node]


def _walks_over(access: Access, launch: Launch) -> bool:
    """Whether an access goes over all elements in the order of the loops, as a result in memory is made."""
    *rows, lane = contiguous_strides((*launch.row_extents, launch.lane_extent))
    expected = [stride if extent != 1 else 0 for stride, extent in zip(rows, launch.row_extents, strict=True)]
    found = [stride if extent != 1 else 0 for stride, extent in zip(access.rows, launch.row_extents, strict=True)]
    return found == expected and access.lane == lane and not (access.offset or access.computed)


def _writes_apart(kernel: Kernel) -> bool:
    """Whether no two rectangles write the same."""
    for instruction in kernel.instructions:
        if instruction.operation == "store":
            assert instruction.access is not None
            along = instruction.varying or kernel.lane == "reduced"
            if instruction.access.computed or instruction.combine is not None or not along:
                return False
    return True
