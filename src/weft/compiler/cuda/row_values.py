"""What of the elements of a row is saved from one pass to the next on a GPU, and in which array."""

from __future__ import annotations

from weft.compiler.codegen.lanes import HALVES
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride
from weft.compiler.passes import Pass, is_expensive
from weft.dtypes import Dtype

COPIED_SIZES = 4, 8
"""Bytes of elements that a card copies from memory to shared memory by itself."""


def is_ahead(instruction: Instruction) -> bool:
    """Whether a load may come before all else that a thread does: it is of neighbours, wherever and whatever they
    are."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or instruction.where is not None:
        return False
    return instruction.varying and access.lane_stride is LaneStride.ONE


def arranged(kernel: Kernel, passes: list[Pass]) -> tuple[dict[int, int], list[int]]:
    """In which array each value is that is saved, and the bytes of an element of each array. A value takes the place of
    one that was recalled for the last time before: in an earlier pass, or in the same one by an instruction before
    it."""
    last = {number: (index, number) for index, current in enumerate(passes) for number in current.recalled}
    arrays: list[tuple[int, tuple[int, int]]] = []  # bytes of an element, and when what is there is recalled last
    found: dict[int, int] = {}
    early = fetched(kernel, passes)
    saved = [(index, number) for index, current in enumerate(passes) for number in sorted(current.saved - early)]
    first = [entry for entry in saved if entry[0] == 0]
    for index, number in [*first, *[(0, number) for number in sorted(early)], *saved[len(first) :]]:
        size = register_bytes(kernel.instructions[number].dtype)
        free = [
            position for position, (bytes_, until) in enumerate(arrays) if bytes_ == size and until < (index, number)
        ]
        position = free[0] if free and number not in early else len(arrays)
        arrays[position : position + 1] = [(size, last[number])]
        found[number] = position
    return found, [size for size, _ in arrays]


def fetched(kernel: Kernel, passes: list[Pass]) -> set[int]:
    """What later passes load and save, as it is in memory: it is copied to where it is saved when a row begins, while
    other things are done."""
    found: set[int] = set()
    if not passes[0].roots:
        return found
    for number in set[int]().union(*[current.saved for current in passes[1:]]):
        instruction = kernel.instructions[number]
        size = instruction.dtype.size
        if is_ahead(instruction) and size in COPIED_SIZES and size == register_bytes(instruction.dtype):
            found.add(number)
    return found


def is_worth_saving(instruction: Instruction) -> bool:
    """Whether shared memory is nearer than what a value is made of: what is loaded, and what takes many operations.
    What all rows load is in caches."""
    if instruction.dtype.is_bool or instruction.dtype.is_complex or not instruction.varying:
        return False
    access = instruction.access
    if instruction.operation == "load" and access is not None:
        return not access.rows or any(access.rows)
    return is_expensive(instruction)


def saved_row(lanes: int) -> int:
    """Elements from one row to the next in shared memory: neighbours have other banks."""
    return lanes + VIRTUAL_LANES


def register_bytes(dtype: Dtype) -> int:
    """Bytes of a real number as it is held in registers."""
    return 4 if dtype in HALVES else dtype.size


def bytes_of_totals(kernel: Kernel, current: Pass) -> int:
    """Bytes of what the reductions of a pass come to, in registers."""
    size = 0
    for instruction in [kernel.instructions[root] for root in current.roots]:
        if instruction.operation == "reduce":
            elements = kernel.instructions[instruction.inputs[0]].dtype
            identity = instruction.primitive.reducer.identity(instruction.params.get("of", elements))
            size += sum([register_bytes(dtype) for dtype, _ in identity])
    return size
