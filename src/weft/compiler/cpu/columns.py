"""Which loads and stores of a kernel go over columns of the same short rows in memory: they are done together, by
whole vectors (see `codegen.columns`), or row by row if rows are at computed places (see `codegen.taken_rows`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import index

from weft.compiler.codegen.columns import ColumnAccesses
from weft.compiler.codegen.taken_rows import LONGEST
from weft.compiler.kernel import Access, Instruction, Kernel, Level

WIDEST_RARE, WIDEST = 8, 16
"""The longest rows whose columns are read together, if more than one is wanted, or if all are wanted."""


def columns_of(kernel: Kernel, bodies: Sequence[Collection[int]], apart: Collection[int]) -> tuple[ColumnAccesses, ...]:
    """The loads and stores that are done together. ``bodies`` are instructions that are done for the same lanes without
    others between them; those in ``apart`` are done in another way."""
    found: list[ColumnAccesses] = []
    for body in bodies:
        for operation in ("load", "store"):
            chosen = [n for n in sorted(body) if n not in apart and _is_candidate(kernel, n, operation)]
            while len(chosen) > 1:
                columns, chosen = _beside_first(kernel, chosen)
                if columns is not None and _pays(columns, operation):
                    found.append(columns)
        chosen = [n for n in sorted(body) if n not in apart and _is_taken(kernel, n)]
        while len(chosen) > 1:
            columns, chosen = _beside_first(kernel, chosen)
            if columns is not None:
                found.append(columns)
    return tuple(found)


def _is_taken(kernel: Kernel, number: int) -> bool:
    """Whether an instruction loads elements at places that are computed for each lane, and that exist in all lanes."""
    instruction = kernel.instructions[number]
    access = instruction.access
    if instruction.operation != "load" or access is None or instruction.where is not None or access.lane:
        return False
    return any(kernel.instructions[value].varying for value, _ in access.computed)


def _is_candidate(kernel: Kernel, number: int, operation: str) -> bool:
    instruction = kernel.instructions[number]
    access = instruction.access
    if instruction.operation != operation or access is None or access.computed or not instruction.varying:
        return False
    if instruction.where is not None or instruction.combine is not None:
        return False
    # Of stores in a sweep, some may belong to another pass.
    after = operation == "load" or (kernel.lane == "parallel" and instruction.level is not Level.SWEEP)
    return after and 1 < access.lane <= WIDEST


def _beside_first(kernel: Kernel, chosen: Sequence[int]) -> tuple[ColumnAccesses | None, list[int]]:
    """The accesses of columns of the same rows as the first one, if there are any, and those that are left."""
    first = kernel.instructions[chosen[0]]
    assert first.access is not None
    stride = index(first.access.lane)
    longest = stride or LONGEST
    alike, left = {0: chosen[0]}, []
    low, high = 0, 0
    for number in chosen[1:]:
        other = kernel.instructions[number]
        distance = _distance(first, other, longest)
        if distance is None or distance in alike or max(high, distance) - min(low, distance) >= longest:
            left.append(number)
        else:
            alike[distance] = number
            low, high = min(low, distance), max(high, distance)
    members = sorted([(number, distance - low) for distance, number in alike.items()])
    return ColumnAccesses(stride, tuple(members)) if len(members) > 1 else None, left


def _distance(first: Instruction, other: Instruction, longest: int) -> int | None:
    """How many elements an access is behind the first one, if both go over columns of the same rows."""
    one, two = first.access, other.access
    assert one is not None
    assert two is not None
    if one.operand is not two.operand or _place(first) != _place(other) or one.lane != two.lane:
        return None
    if not _same(one, two):
        return None
    distance = two.offset - one.offset
    return index(distance) if -longest < distance < longest else None


def _place(instruction: Instruction) -> tuple[object, ...]:
    return instruction.dtype, instruction.level, instruction.sweep, instruction.stage


def _same(one: Access, two: Access) -> bool:
    """Whether two accesses move with the same loops and computed values."""
    mine, theirs = _steps(one), _steps(two)
    return len(mine) == len(theirs) and all(left == right for left, right in zip(mine, theirs, strict=True))


def _steps(access: Access) -> list[int]:
    return [*access.rows, *access.sweeps, *[number for pair in access.computed for number in pair]]


def _pays(columns: ColumnAccesses, operation: str) -> bool:
    return columns.are_all or (operation == "load" and columns.stride <= WIDEST_RARE)
