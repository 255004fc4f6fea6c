"""Conditions of kernels on the indices of their loops: what is true of all lanes or rows in some range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.compiler.kernel import Access, Instruction, Kernel, LaneStride, Launch


def is_conjunction(instruction: Instruction) -> bool:
    """Whether a condition is that two others hold."""
    return instruction.operation == "apply" and bool(instruction.primitive.is_conjunction)


def relation_of(instruction: Instruction) -> str:
    """How the first input of a comparison is related to the second if it holds; empty for other instructions."""
    return str(instruction.primitive.relation) if instruction.operation == "apply" else ""


def compares_lanes(instructions: Sequence[Instruction], condition: Instruction) -> bool:
    """Whether a condition compares the index of each lane with a number that all lanes share."""
    if relation_of(condition) not in ("ge", "lt"):
        return False
    index, bound = [instructions[source] for source in condition.inputs]
    if index.access is None or bound.access is None or index.access.computed or bound.access.computed:
        return False
    are_indices = index.operation == bound.operation == "index"
    return are_indices and index.access.lane_stride is LaneStride.ONE and not bound.varying


def parts_of(kernel: Kernel, number: int) -> Iterator[int]:
    """The conditions that all have to hold for the one with a number, none of which is a conjunction."""
    instruction = kernel.instructions[number]
    if not is_conjunction(instruction):
        yield number
        return
    for source in instruction.inputs:
        yield from parts_of(kernel, source)


def ranges_of(launch: Launch, condition: int) -> dict[int, tuple[int, int]]:
    """For loop axes, counted from the outermost row to the lanes, the indices for which a condition may hold: the first
    one, and one behind the last. Axes are left out of which nothing is known; both are indices of the axis, even if the
    condition never holds."""
    extents = (*launch.row_extents, *launch.sweep_extents, launch.lane_extent)
    found: dict[int, tuple[int, int]] = {}
    for part in parts_of(launch.kernel, condition):
        compared = _compared_axis(launch.kernel, launch.kernel.instructions[part])
        if compared is None:
            continue
        axis, bound = compared
        low, high = found.get(axis, (0, extents[axis]))
        is_lower = relation_of(launch.kernel.instructions[part]) == "ge"
        found[axis] = (max(low, bound), high) if is_lower else (low, min(high, bound))
    return {axis: (min(low, extents[axis] - 1), max(high, 1)) for axis, (low, high) in found.items()}


def _compared_axis(kernel: Kernel, comparison: Instruction) -> tuple[int, int] | None:
    """The only axis with which what is compared moves, and the index there at which both sides are equal."""
    if relation_of(comparison) not in ("ge", "lt"):
        return None
    index, bound = [kernel.instructions[source] for source in comparison.inputs]
    if index.operation != "index" or bound.operation != "index" or index.access is None or bound.access is None:
        return None
    moving = [(axis, stride) for axis, stride in enumerate(_strides(index.access)) if stride]
    if len(moving) != 1 or moving[0][1] != 1 or any(_strides(bound.access)):
        return None
    if index.access.computed or bound.access.computed:
        return None
    return moving[0][0], bound.access.offset - index.access.offset


def _strides(access: Access) -> tuple[int, ...]:
    return (*access.rows, *access.sweeps, access.lane)
