"""Which values of the elements of a row are saved from one pass to the next on a GPU, and in which arrays."""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.codegen.lanes import HALVES
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride
from weft.compiler.passes import Pass, is_expensive
from weft.dtypes import Dtype

COPIED_SIZES = 4, 8
"""Sizes in bytes of elements for which a card has instructions that copy from memory to shared memory."""


def is_ahead(instruction: Instruction) -> bool:
    """Whether a load may come before all else that a thread does: it reads neighbouring elements, at locations and
    under conditions that are not computed."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or instruction.where is not None:
        return False
    return instruction.varying and access.lane_stride is LaneStride.ONE


def arranged(kernel: Kernel, passes: list[Pass]) -> tuple[dict[int, int], list[int]]:
    """The array of each saved value, and the bytes of an element of each array. A value may take the place of one that
    is not needed any more: whose last recall was in an earlier pass, or in the same pass by an earlier instruction."""
    last = {number: (index, number) for index, current in enumerate(passes) for number in current.saved}
    last.update({number: (index, number) for index, current in enumerate(passes) for number in current.recalled})
    arrays: list[tuple[int, tuple[int, int]]] = []  # bytes of an element, and the last recall of the current value
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
    """Loads that later passes save unchanged. They are copied to shared memory from the beginning of a row on, while
    threads do other work."""
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
    """Whether recalling a value takes less time than computing it again: true for loads and for expensive operations.
    What all rows load is in caches, and is not saved."""
    if instruction.dtype.is_bool or instruction.dtype.is_complex or not instruction.varying:
        return False
    access = instruction.access
    if instruction.operation == "load" and access is not None:
        return not access.rows or any(access.rows)
    return is_expensive(instruction)


def saved_row(lanes: int) -> int:
    """The distance in elements of rows in shared memory. It is chosen so that neighbouring rows use different banks."""
    return lanes + VIRTUAL_LANES


def register_bytes(dtype: Dtype) -> int:
    """Bytes of a real number in a register."""
    return 4 if dtype in HALVES else dtype.size


def message_bytes(dtype: Dtype) -> int:
    """How many bytes a real number has in a message."""
    return max(4, register_bytes(dtype))


def bytes_of_totals(kernel: Kernel, current: Pass, bytes_of: Callable[[Dtype], int] = register_bytes) -> int:
    """Bytes of the totals of a pass's reductions, in registers or in messages."""
    size = 0
    for instruction in [kernel.instructions[root] for root in current.roots]:
        if instruction.operation == "reduce":
            elements = kernel.instructions[instruction.inputs[0]].dtype
            identity = instruction.primitive.reducer.identity(instruction.params.get("of", elements))
            size += sum([bytes_of(dtype) for dtype, _ in identity])
    return size


def folding_passes(kernel: Kernel, passes: list[Pass]) -> list[Pass]:
    """The passes in which something is folded."""
    return [one for one in passes if any(kernel.instructions[root].operation == "reduce" for root in one.roots)]


def loaded_ahead(kernel: Kernel, passes: list[Pass]) -> list[int]:
    """The loads whose elements are saved from the first pass on."""
    found = passes[0].saved | fetched(kernel, passes)
    return sorted([number for number in found if is_ahead(kernel.instructions[number])])


def common_loads(kernel: Kernel) -> list[int]:
    """The loads of four bytes whose elements all rows share, such as those of the scale of a norm."""
    return [
        number
        for number, one in enumerate(kernel.instructions)
        if is_ahead(one)
        and one.dtype.size == register_bytes(one.dtype) == 4
        and one.access
        and not any(one.access.rows)
    ]


def column_folds(kernel: Kernel) -> dict[tuple[int, ...], int]:
    """By what is folded along columns, an instruction that folds it: several may give parts of one total."""
    return {one.inputs: number for number, one in enumerate(kernel.instructions) if one.operation == "fold"}
