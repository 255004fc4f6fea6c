"""What kinds of kernels and accesses there are: questions that schedules ask."""

from __future__ import annotations

from weft.compiler.codegen import host
from weft.compiler.kernel import VIRTUAL_LANES, Access, Instruction, Kernel, LaneStride, Level
from weft.compiler.passes import passes_of

STREAM_BYTES = 1 << 24
"""Outputs of fewer bytes may still be in the last cache when they are read."""
FAR_BYTES = 1 << 21
"""Operands of at least this many bytes are often not in a near cache."""
READS_SHORT_AHEAD = ("sapphirerapids", "emeraldrapids")
"""Processors that read from memory one and a half times as fast if it is prefetched. Others were not measured, or gain
nothing."""
MOST_FOR_INDEX = 12
"""A store at a computed location is prefetched if at most so many instructions compute it."""


def folds_rows_of_memory(kernel: Kernel) -> bool:
    """Whether a kernel is a single pass that folds or scans contiguous rows element by element."""
    operations = {instruction.operation for instruction in kernel.instructions}
    scans = "scan" in operations
    if sum(bool(found.roots) for found in passes_of(kernel)) > 1:
        return False
    for instruction in kernel.instructions:
        if instruction.stage > 1 or (instruction.operation == "reduce" and not instruction.varying):
            return False
        stored = instruction.operation == "store" and instruction.level is Level.SWEEP
        if stored and (instruction.stage or not scans):
            return False
    reads = [i.access for i in kernel.instructions if i.operation == "load" and i.level is Level.SWEEP]
    return any(access is not None and access.lane_stride is LaneStride.ONE for access in reads)


def scatters_rows(kernel: Kernel) -> bool:
    """Whether a kernel only writes rows, one after the other, at computed locations."""
    for instruction in kernel.instructions:
        access = instruction.access
        if instruction.operation in ("reduce", "scan"):
            return False
        if instruction.operation == "store":
            assert access is not None
            by_lane = any(kernel.instructions[value].varying for value, _ in access.computed)
            if by_lane or access.lane_stride is not LaneStride.ONE:
                return False
    return bool(kernel.sweeps)


def folds_lanes_apart(kernel: Kernel) -> bool:
    """Whether rows can be folded in blocks of lanes by different threads at no cost. None computes what others compute
    too, and what is stored in sweeps begins at a vector in each row: then few threads write to the same cache line."""
    for instruction in kernel.instructions:
        in_sweep = instruction.level is Level.SWEEP
        computed = instruction.operation == "reduce" or (instruction.operation == "apply" and in_sweep)
        if computed and not instruction.varying:
            return False
        access = instruction.access
        if instruction.operation == "store" and in_sweep and (access is None or not _is_aligned(access)):
            return False
    return bool(kernel.sweeps)


def reads_from_memory(instruction: Instruction, kernel: Kernel, row_by_row: bool) -> bool:
    """Whether an instruction loads the lanes of rows that are folded from an operand that no cache holds, on a
    processor that reads these too late by itself. Rows are folded lane by lane, or added to each other
    ``row_by_row``."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or instruction.where is not None:
        return False
    if host.current().name not in READS_SHORT_AHEAD:
        return False
    folds = kernel.lane == "reduced" or (row_by_row and instruction.level is Level.SWEEP)
    by_lane = folds and instruction.varying and access.lane_stride is LaneStride.ONE
    return by_lane and not kernel.backwards and bool(access.operand.size * access.dtype.size >= STREAM_BYTES)


def reads_far_rows(instruction: Instruction, kernel: Kernel) -> bool:
    """Whether an instruction loads contiguous lanes at a location that is computed for each row, from an operand that
    near caches cannot hold."""
    access = instruction.access
    if instruction.operation != "load" or access is None or not access.computed or kernel.sweeps:
        return False
    by_row = not any(kernel.instructions[value].varying for value, _ in access.computed)
    large = access.operand.size * access.dtype.size >= FAR_BYTES
    return by_row and large and access.lane_stride is LaneStride.ONE and instruction.stage == 0


def writes_far(number: int, kernel: Kernel) -> bool:
    """Whether a store is at a location that is computed for each turn of a sweep, in memory that near caches cannot
    hold. A store that adds is not meant: the processor executes its load early, but a plain store has none."""
    instruction = kernel.instructions[number]
    access = instruction.access
    if instruction.operation != "store" or access is None or not access.computed or kernel.lane == "reduced":
        return False
    needed = [kernel.instructions[value] for value in needed_for_index(kernel, number)]
    simple = all(one.operation in ("load", "apply", "index", "scalar") and not one.varying for one in needed)
    large = access.operand.size * access.dtype.size >= FAR_BYTES
    return simple and len(needed) <= MOST_FOR_INDEX and large and instruction.combine is None


def needed_for_index(kernel: Kernel, number: int) -> list[int]:
    """The instructions from which the location of an access is computed, in order."""
    access = kernel.instructions[number].access
    assert access is not None
    found: set[int] = set()
    pending = [value for value, _ in access.computed]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(kernel.instructions[value].sources)
    return sorted(found)


def passes_caches(instruction: Instruction, kernel: Kernel) -> bool:
    """Whether a store goes past the caches, because they could not hold the array. Then memory need not be read before
    it is written.

    A backward walk over a row is excluded: its vectors begin at the end of the row, so they are not aligned.
    """
    access = instruction.access
    if instruction.operation != "store" or access is None or access.computed:
        return False
    if instruction.where is not None or instruction.combine is not None or not instruction.varying:
        return False
    if not _is_large_and_aligned(access) or access.lane_stride is not LaneStride.ONE:
        return False
    return kernel.lane != "reduced" or not kernel.backwards


def _is_large_and_aligned(access: Access) -> bool:
    return access.operand.size * access.dtype.size >= STREAM_BYTES and _is_aligned(access)


def _is_aligned(access: Access) -> bool:
    """Whether each row of an access begins at a whole vector."""
    return all(stride % VIRTUAL_LANES == 0 for stride in (access.offset, *access.rows, *access.sweeps))
