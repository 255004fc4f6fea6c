"""Kernels that are attached to calls of routines: they process each rectangle of the result as soon as it is made.

The step of the call runs the kernel on a rectangle while that is still in a cache. It runs the code that the kernel
would have as a step of its own, so it gives the same bits; only some numbers are changed for each rectangle. If nothing
else needs the result of the call, it is never stored as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.compiler.fusion.groups import FusedGroup
from weft.compiler.kernel import VIRTUAL_LANES, Access, Kernel, Launch, number_layout
from weft.compiler.target import Schedule
from weft.graph.node import Node
from weft.primitives.routine import Attached
from weft.runtime.memory import contiguous_strides


@dataclass(eq=False, repr=False, slots=True)
class Attachment:
    """A group that runs as a part of the step of a call, and its loops.

    ``result`` is what the call makes. If it is ``stored``, because something else needs it too or it fits nowhere else,
    it has memory of its own. If not, the call makes it in the memory of ``target``, where the kernel then overwrites it
    with what it stores, or, if ``target`` is None, a rectangle at a time in scratch memory.
    """

    group: FusedGroup
    launch: Launch
    schedule: Schedule
    result: Node
    stored: bool = True
    target: Node | None = None

    @property
    def whole(self) -> bool:
        """Whether the kernel needs whole rows of the result, because it folds or scans them."""
        return is_whole(self.launch)

    def numbered(self, code: Any, numbers: Sequence[int]) -> Attached:
        """The kernel for use in the step: its numbers, and which of them change from rectangle to rectangle."""
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
    """Whether a launch needs whole rows, because it folds or scans them."""
    return launch.kernel.lane == "reduced"


def fits(launch: Launch, alone: Launch, result: Node) -> bool:
    """Whether a launch can process the result of a call a rectangle at a time. ``alone`` is the same work as a step of
    its own, whose loops may be merged further."""
    kernel = launch.kernel
    if not may_fit(launch, result) or launch.lane_extent != _lanes(result):
        return False
    if launch.lane_extent < min(VIRTUAL_LANES, alone.lane_extent):
        return False
    return all(_walks_over(access, launch) for access in _accesses_to(kernel, result)) and _writes_apart(kernel)


def may_fit(launch: Launch, result: Node) -> bool:
    """The conditions of `fits` that do not depend on how far loops are merged."""
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
    """Whether an access visits all elements in row-major order of the loops, as the call stores its result."""
    *rows, lane = contiguous_strides((*launch.row_extents, launch.lane_extent))
    expected = [stride if extent != 1 else 0 for stride, extent in zip(rows, launch.row_extents, strict=True)]
    found = [stride if extent != 1 else 0 for stride, extent in zip(access.rows, launch.row_extents, strict=True)]
    return found == expected and access.lane == lane and not (access.offset or access.computed)


def _writes_apart(kernel: Kernel) -> bool:
    """Whether no element is written for two different rectangles."""
    for instruction in kernel.instructions:
        if instruction.operation == "store":
            assert instruction.access is not None
            along = instruction.varying or kernel.lane == "reduced"
            if instruction.access.computed or instruction.combine is not None or not along:
                return False
    return True
