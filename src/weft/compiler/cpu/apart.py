"""Loads whose lanes are apart in memory, but of which some elements that are wanted soon are neighbours."""

from __future__ import annotations

from weft.compiler.codegen.memory import masks_stores_slowly
from weft.compiler.kernel import VIRTUAL_LANES, Access, Instruction, LaneStride, Launch

NEAR = (2, 3, 4, -1, -2, -3, -4)
"""Strides of lanes so near in memory that it is faster to read all elements between them than one by one. They are
written as vectors, too, where masks are fast."""
MOST_SWEPT = 3
"""Of so many loads squares are transposed; more would be much code."""


def near_stride(instruction: Instruction) -> int:
    """How far the lanes of an access are apart, if they are near, else 0."""
    access = instruction.access
    if access is None or access.computed:
        return 0
    if instruction.operation == "store":
        plain = instruction.varying and instruction.where is None and instruction.combine is None
        near = (-1,) if masks_stores_slowly() else NEAR
        return next((stride for stride in near if plain and access.lane == stride), 0)
    if instruction.operation != "load":
        return 0
    return next((stride for stride in NEAR if access.lane == stride), 0)


def reads_along_rows(instruction: Instruction) -> bool:
    """Whether neighbours in memory are in neighbouring rows, not lanes."""
    access = _plainly_apart(instruction)
    return access is not None and bool(access.rows) and access.rows[-1] == 1


def swept_loads(launch: Launch) -> tuple[int, ...]:
    """The loads of parallel lanes that are contiguous along the last sweep, if squares of them are to be transposed."""
    kernel = launch.kernel
    if kernel.lane != "parallel" or not kernel.sweeps:
        return ()
    if min(launch.lane_extent, launch.sweep_extents[-1]) < VIRTUAL_LANES:
        return ()
    found = [number for number, instruction in enumerate(kernel.instructions) if _reads_along_sweep(instruction)]
    return tuple(found) if len(found) <= MOST_SWEPT else ()


def _reads_along_sweep(instruction: Instruction) -> bool:
    access = _plainly_apart(instruction)
    return access is not None and bool(access.sweeps) and access.sweeps[-1] == 1


def _plainly_apart(instruction: Instruction) -> Access | None:
    """Where an instruction reads, if it loads lanes that are apart, without a condition or computed indices."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or instruction.where is not None:
        return None
    return access if access.lane_stride is LaneStride.ANY else None
