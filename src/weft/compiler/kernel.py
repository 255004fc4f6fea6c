"""A kernel: a target-neutral description of a loop nest, and the numbers of one use of it.

A kernel goes over rows; within a row over sweeps (reduced axes) and lanes (the one vectorised axis). Its text is its
identity: it contains dtypes, operations and kinds of strides, but no sizes. So another shape runs the same machine code
with other `numbers`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.compiler.parameters import ExactParameters
from weft.dtypes import Dtype
from weft.primitives.reductions import LANES_PART, PARTED_SWEEP
from weft.runtime.steps import Placement

VIRTUAL_LANES = 16
"""Reductions over the lane axis fold every 16th element, and at the end the 16 results: so the order does not depend on
the length of the processor's vectors."""

CHUNK = 1024
"""Reductions over more lanes than this fold each chunk of this many lanes by itself, and then the results of the chunks
in the same way, so that chunks can be folded in parallel."""

SWEEP_PART = LANES_PART
"""If a single axis of at least `PARTED_SWEEP` elements is folded, and it is not the axis of the lanes, each part of
this many elements is folded by itself, and then the results of the parts, so that parts can be folded in parallel."""


class LaneStride(enum.Enum):
    """How an access moves from lane to lane."""

    NONE = "uniform"
    ONE = "contiguous"
    ANY = "strided"


class Level(enum.IntEnum):
    """The loop level at which a value that is the same for all lanes is computed."""

    KERNEL = 0
    ROW = 1
    SWEEP = 2


_LEVELS = {level: f"@{level.name.lower()}" for level in Level}


@dataclass(eq=False, repr=False, slots=True)
class Access:
    """Strided locations in an operand. Strides are in elements: one for each row axis, each sweep axis, and the lane.

    ``offset`` is the first location, in elements. ``computed`` are values that are added, as pairs of value id and
    stride. ``operand`` is what is in memory, or None if only the index is wanted. That a stride is 1 is a part of the
    kernel for computed values, and for the innermost loop if lanes do not move: it saves a multiplication for each
    element.
    """

    dtype: Dtype
    rows: tuple[int, ...]
    sweeps: tuple[int, ...]
    lane: int
    offset: int
    computed: tuple[tuple[int, int], ...]
    operand: Any

    @property
    def lane_stride(self) -> LaneStride:
        if self.lane == 0:
            return LaneStride.NONE
        return LaneStride.ONE if self.lane == 1 else LaneStride.ANY

    @property
    def sweeps_by_one(self) -> bool:
        """Whether the last sweep moves by one element, and lanes do not move."""
        return bool(self.sweeps) and self.lane == 0 and self.sweeps[-1] == 1

    def is_one(self, kind: str, number: int) -> bool:
        """Whether a stride, of a "row" or "sweep" axis or a "computed" value, is one in all launches of the kernel."""
        if kind == "computed":
            return self.computed[number][1] == 1
        return kind == "sweep" and number == len(self.sweeps) - 1 and self.sweeps_by_one

    @property
    def pattern(self) -> str:
        """Along which loops the access moves, and how."""
        rows = "".join(["*" if stride else "." for stride in self.rows])
        sweeps = ["*" if stride else "." for stride in self.sweeps]
        if self.sweeps_by_one:
            sweeps[-1] = "1"
        return f"{rows}|{''.join(sweeps)}|{self.lane_stride.value}"

    def text(self) -> str:
        computed = "".join([f" +%{value}{'' if stride == 1 else '*'}" for value, stride in self.computed])
        return f"{self.dtype.name}[{self.pattern}{computed}]"


@dataclass(eq=False, repr=False, slots=True)
class Instruction:
    """One value of a kernel, or a store.

    ``operation`` is load, scalar, index, apply, reduce, fold, scan or store. A fold joins the elements of a lane in all
    rows of the last row axis, one after the other. ``inputs`` are value ids. ``sweep``: how many sweep loops enclose
    it. ``varying``: it differs between lanes. ``stage``: the number of the pass in which its inputs are known.
    """

    operation: str
    dtype: Dtype
    inputs: tuple[int, ...]
    primitive: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    access: Access | None = None
    where: int | None = None
    combine: Any = None
    scalar: int = 0
    level: Level = Level.KERNEL
    sweep: int = 0
    varying: bool = False
    stage: int = 0

    @property
    def sources(self) -> list[int]:
        """All values that the instruction needs: inputs, condition, computed indices."""
        values = list(self.inputs)
        if self.where is not None:
            values.append(self.where)
        if self.access is not None:
            values.extend(value for value, _ in self.access.computed)
        return values

    @property
    def from_the_end(self) -> bool:
        """Whether it joins elements beginning at the end of a row."""
        return self.operation in ("scan", "reduce") and bool(self.params.get("reverse"))

    def text(self) -> str:
        parts = [self.operation]
        if self.primitive is not None:
            parts.append(self.primitive.name)
            parts += [f"{name}={value}" for name, value in self.params.items()]
        parts += [f"%{value}" for value in self.inputs]
        if self.access is not None:
            parts.append(self.access.text())
        if self.where is not None:
            parts.append(f"where %{self.where}")
        if self.combine is not None:
            parts.append(f"combine {self.combine.name}")
        parts.append(f": {self.dtype.name}")
        parts.append(f"{_LEVELS[self.level]}{self.sweep or ''}{' lanes' if self.varying else ''}")
        if self.stage:
            parts.append(f"stage {self.stage}")
        return " ".join(parts)


@dataclass(eq=False, repr=False, slots=True)
class Kernel:
    """The structure of a loop nest: ``rows`` and ``sweeps`` count loop axes, ``lane`` says where the vectorised axis
    is.

    ``lane`` is "parallel" (each lane has its own result), "reduced" (lanes are folded together) or "none" (one lane).
    If ``ragged``, the last row axis counts chunks of the reduced axis, and the last chunk may be shorter than the
    others.
    """

    rows: int
    sweeps: int
    lane: str
    instructions: list[Instruction]
    ragged: bool = False

    def __str__(self) -> str:
        return self.described("")

    def described(self, schedule: str) -> str:
        """The text of the kernel, with the text of a schedule in its first line."""
        heading = f"kernel rows={self.rows} sweeps={self.sweeps} lane={self.lane}{' ragged' * self.ragged}"
        lines = [f"{heading} ({schedule})" if schedule else heading]
        lines += [f"  %{number} = {i.text()}" for number, i in enumerate(self.instructions)]
        return "\n".join(lines)

    @property
    def backwards(self) -> bool:
        """Whether some elements are joined beginning at the end of a row."""
        return any(instruction.from_the_end for instruction in self.instructions)

    @property
    def primitives(self) -> tuple[Any, ...]:
        """The primitives whose scalar code it applies, in order. They are compared by identity, because different
        primitives can have the same name."""
        return tuple([found for i in self.instructions for found in (i.primitive, i.combine) if found is not None])

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the text does not contain: the primitives, and the exact parameters of those that users define."""
        told_apart = [i for i in self.instructions if i.params and not i.primitive.equal_is_same]
        return self.primitives, tuple([ExactParameters(i.params.values()) for i in told_apart])

    def is_nonpositive(self, number: int) -> bool:
        """Whether a value is known not to be above 0, because something that is at least as large is subtracted."""
        instruction = self.instructions[number]
        if instruction.operation != "apply" or not instruction.primitive.is_difference or instruction.dtype.is_complex:
            return False
        value, subtracted = instruction.inputs
        return self._is_bound(subtracted, value)

    def _is_bound(self, number: int, of: int) -> bool:
        """Whether a value is known to be at least as large as another one, unless it is NaN."""
        instruction = self.instructions[number]
        if instruction.operation not in ("apply", "reduce") or not instruction.primitive.is_bound:
            return False
        return any(source == of or self._is_bound(source, of) for source in instruction.inputs)

    def check(self) -> None:
        """Raise if the kernel contradicts itself."""
        for position, instruction in enumerate(self.instructions):
            for value in instruction.sources:
                if not 0 <= value < position:
                    raise AssertionError(f"%{position} uses %{value} before it exists in\n{self}")
                source = self.instructions[value]
                late = source.stage + (source.operation == "reduce") > instruction.stage
                if source.operation == "store" or late:
                    raise AssertionError(f"%{position} uses %{value} too early in\n{self}")


def folds_in_chunks(kernel: Kernel, instruction: Instruction) -> bool:
    """Whether the bits of an instruction's result depend on whether chunks of its row are folded separately."""
    if instruction.operation != "reduce" or kernel.lane != "reduced":
        return False
    return depends_on_order(kernel, instruction)


def folds_in_parts(kernel: Kernel, instruction: Instruction) -> bool:
    """Whether the bits of an instruction's result depend on whether parts of its sweep are folded separately."""
    if instruction.operation != "reduce" or kernel.lane != "parallel" or kernel.sweeps != 1 or kernel.ragged:
        return False
    return depends_on_order(kernel, instruction)


def depends_on_order(kernel: Kernel, instruction: Instruction) -> bool:
    """Whether the bits of a reduction's result depend on how elements are grouped."""
    reducer, elements = instruction.primitive.reducer, kernel.instructions[instruction.inputs[0]].dtype
    return not reducer.ordered and not reducer.regroups(instruction.params.get("of", elements))


@dataclass(eq=False, repr=False, slots=True)
class Launch:
    """A use of a kernel: the extents of its loops and, in the accesses of its instructions, locations in memory.

    ``whole`` is the extent of all chunks together, if the kernel is ragged.
    """

    kernel: Kernel
    row_extents: tuple[int, ...]
    sweep_extents: tuple[int, ...]
    lane_extent: int
    whole: int = 0

    def check(self) -> None:
        """Raise if the kernel contradicts itself, if there is nothing to do, or if it writes outside an array."""
        self.kernel.check()
        if 0 in self.row_extents:
            raise AssertionError(f"nothing to do for\n{self.kernel}\nwith extents {self.extents_text}")
        for instruction in self.kernel.instructions:
            if instruction.operation == "store" and instruction.access is not None:
                self._check_written(instruction.access)

    def _check_written(self, access: Access) -> None:
        """Raise if an access writes outside its array; a computed index may have any value that is inside."""
        rows = list(zip(access.rows, self.row_extents, strict=True))
        inner = [*zip(access.sweeps, self.sweep_extents, strict=True), (access.lane, self.lane_extent)]
        if self.kernel.ragged:
            cut = len(inner) - 1 if self.kernel.lane == "reduced" else len(inner) - 2
            if inner[cut][0]:
                rows, inner[cut] = rows[:-1], (inner[cut][0], self.whole)  # the last chunk may be shorter
        loops = [*rows, *inner]
        ends = [stride * (extent - 1) for stride, extent in loops]
        low, high = (access.offset + sum([bound(0, end) for end in ends]) for bound in (min, max))
        if all(extent for _, extent in loops) and not 0 <= low <= high < access.operand.size:
            raise AssertionError(
                f"elements {low} to {high} of {access.operand} are written, which has {access.operand.size}, by\n"
                f"{self.kernel}\nwith extents {self.extents_text}"
            )

    @property
    def row_count(self) -> int:
        count = 1
        for extent in self.row_extents:
            count *= extent
        return count

    @property
    def in_chunks(self) -> bool:
        """Whether rows are so long that they are folded chunk by chunk."""
        folds = any(folds_in_chunks(self.kernel, i) for i in self.kernel.instructions)
        return folds and self.lane_extent > CHUNK

    @property
    def in_parts(self) -> bool:
        """Whether a sweep is so long that it is folded part by part."""
        folds = any(folds_in_parts(self.kernel, i) for i in self.kernel.instructions)
        return folds and self.sweep_extents[0] >= PARTED_SWEEP

    @property
    def operands(self) -> list[Any]:
        """The nodes in memory that it reads or writes, one for each access."""
        accesses = [i.access for i in self.kernel.instructions if i.access is not None]
        return [access.operand for access in accesses if access.operand is not None]

    @property
    def has_results(self) -> bool:
        """Whether something is stored: a store is in loops that all have at least one turn."""
        return any(
            all(self.sweep_extents[: i.sweep]) and bool(self.lane_extent or not i.varying) and self.row_count > 0
            for i in self.kernel.instructions
            if i.operation == "store"
        )

    @property
    def extents_text(self) -> str:
        text = f"{self.row_extents} {self.sweep_extents} {self.lane_extent}"
        return f"{text} of {self.whole}" if self.kernel.ragged else text

    @property
    def work(self) -> int:
        """How many times the innermost body runs, in elements."""
        total = self.row_count * self.lane_extent
        for extent in self.sweep_extents:
            total *= extent
        return total


NumberKey = tuple[object, ...]


def number_layout(kernel: Kernel, scheduled: Iterable[str]) -> dict[NumberKey, int]:
    """The position of each number of a kernel in its argument block of 64-bit integers.

    ``scheduled`` are the names of the numbers of its schedule.
    """
    keys: list[NumberKey] = [("row", axis) for axis in range(kernel.rows)]
    keys.extend(("sweep", axis) for axis in range(kernel.sweeps))
    keys.append(("lane",))
    if kernel.ragged:
        keys.append(("whole",))
    keys.extend((name,) for name in scheduled)
    for position in range(len(kernel.instructions)):
        keys.extend(instruction_keys(position, kernel))
    return {key: position for position, key in enumerate(keys)}


def instruction_keys(position: int, kernel: Kernel) -> list[NumberKey]:
    """The keys in `number_layout` of an instruction's numbers."""
    instruction = kernel.instructions[position]
    access = instruction.access
    if instruction.operation == "scalar":
        return [(position, "slot")]
    if access is None:
        return []
    keys: list[NumberKey] = [(position, "slot")] if access.operand is not None else []
    keys.append((position, "offset"))
    keys.extend((position, "row", axis) for axis, stride in enumerate(access.rows) if stride)
    keys.extend((position, "sweep", axis) for axis, stride in enumerate(access.sweeps) if stride)
    if access.lane_stride is LaneStride.ANY:
        keys.append((position, "lane"))
    keys.extend((position, "computed", number) for number in range(len(access.computed)))
    return keys


class CopiedNumbers(NamedTuple):
    """The numbers of a kernel that copies elements unchanged: slot and offset of source and target, and pairs of their
    strides. If source and target have the same address, and each pair is equal, the kernel has nothing to do."""

    source: tuple[NumberKey, NumberKey]
    target: tuple[NumberKey, NumberKey]
    strides: list[tuple[NumberKey, NumberKey]]


def copied_numbers(kernel: Kernel) -> CopiedNumbers | None:
    """The numbers of a kernel that only copies; None for any other kernel."""
    if [i.operation for i in kernel.instructions] != ["load", "store"]:
        return None
    load, store = kernel.instructions
    assert load.access is not None
    assert store.access is not None
    if load.access.text() != store.access.text() or store.where is not None or store.combine is not None:
        return None
    (slot, offset, *rest), (to_slot, to_offset, *to_rest) = [instruction_keys(number, kernel) for number in (0, 1)]
    return CopiedNumbers((slot, offset), (to_slot, to_offset), list(zip(rest, to_rest, strict=True)))


def numbers_of(
    launch: Launch,
    scheduled: Iterable[int],
    slot_of: Placement,
    scalar_slot: Callable[[int], int],
) -> list[int]:
    """The argument block of a launch.

    ``scheduled`` are the numbers of its schedule. ``slot_of`` gives the slot in the table and the byte offset of each
    operand, ``scalar_slot`` the slot of a constant by its number.
    """
    numbers = [*launch.row_extents, *launch.sweep_extents, launch.lane_extent]
    if launch.kernel.ragged:
        numbers.append(launch.whole)
    numbers.extend(scheduled)
    for instruction in launch.kernel.instructions:
        access = instruction.access
        if instruction.operation == "scalar":
            numbers.append(scalar_slot(instruction.scalar))
        elif access is not None:
            numbers.extend(_access_numbers(access, slot_of))
    return numbers


def _access_numbers(access: Access, slot_of: Placement) -> list[int]:
    numbers = [access.offset]
    if access.operand is not None:
        slot, base = slot_of[access.operand]
        numbers = [slot, base + access.offset * access.dtype.size]
    numbers.extend(stride for stride in access.rows if stride)
    numbers.extend(stride for stride in access.sweeps if stride)
    if access.lane_stride is LaneStride.ANY:
        numbers.append(access.lane)
    numbers.extend(step for _, step in access.computed)
    return numbers
