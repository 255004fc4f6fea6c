"""Joins a kernel of rows with one that folds the columns of what it reads or writes, which then is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.cuda.row_values import arranged, loaded_ahead
from weft.compiler.cuda.schedule import (
    COLUMN_FOLD_THREADS,
    COPIED_BYTES,
    ENOUGH_PARTS,
    ROWS_AT_ONCE,
    CudaSchedule,
    Walk,
)
from weft.compiler.kernel import SWEEP_PART, Access, Instruction, Kernel, LaneStride, Launch, Level
from weft.compiler.target import Schedule


def joined(rows: Launch, schedule: Schedule, columns: Launch) -> tuple[Launch, CudaSchedule] | None:
    """The launch that does both, and how; None if there is none, or if two are faster."""
    if not isinstance(schedule, CudaSchedule) or not _may_fit(rows, schedule, columns):
        return None
    kernel = _Joining(rows, columns).kernel()
    if kernel is None:
        return None
    launch = Launch(kernel, (columns.row_extents[0], SWEEP_PART), (), rows.lane_extent)
    found = replace(
        schedule,
        walk=Walk.COLUMN_FOLDS,
        threads=COLUMN_FOLD_THREADS,
        units=columns.row_extents[0],
        grain=1,
    )
    passes = found.passes(kernel)
    ahead = loaded_ahead(kernel, passes)
    places, sizes = arranged(kernel, passes)
    narrow = all(kernel.instructions[number].dtype.size == COPIED_BYTES for number in ahead)
    if not ahead or not narrow or len(sizes) > found.in_registers or any(size != COPIED_BYTES for size in sizes):
        return None
    return (launch, found) if all(number in places for number in ahead) else None


def _may_fit(rows: Launch, schedule: CudaSchedule, columns: Launch) -> bool:
    kernel = columns.kernel
    if schedule.walk is not Walk.ROWS or not schedule.in_registers or rows.kernel.rows != 1:
        return False
    if rows.lane_extent % COLUMN_FOLD_THREADS or rows.lane_extent != columns.lane_extent:
        return False
    if not kernel.ragged or kernel.lane != "parallel" or (kernel.rows, kernel.sweeps) != (1, 1):
        return False
    parts = columns.row_extents[0]
    return (
        columns.sweep_extents == (SWEEP_PART,)
        and columns.whole == rows.row_count == parts * SWEEP_PART
        and parts >= ENOUGH_PARTS
        and SWEEP_PART % ROWS_AT_ONCE == 0
    )


class _Joining:
    """The instructions of both kernels, those of the second one in terms of those of the first one."""

    def __init__(self, rows: Launch, columns: Launch) -> None:
        self.columns = columns.kernel.instructions
        self.before = rows.kernel.instructions
        self.made = [_in_parts(instruction) for instruction in self.before]

    def kernel(self) -> Kernel | None:
        numbers: dict[int, int] = {}
        for position, instruction in enumerate(self.columns):
            inputs = tuple([numbers[number] for number in instruction.inputs])
            found = self._number_of(instruction, inputs)
            if found is None:
                return None
            numbers[position] = found
        return Kernel(2, 0, "reduced", self._folded_together())

    def _folded_together(self) -> list[Instruction]:
        """The instructions, in which all columns are folded in one pass: the first one that knows the numbers."""
        folds = {number for number, one in enumerate(self.made) if one.operation == "fold"}
        stage = max([self.made[number].stage for number in folds], default=0)
        return [
            replace(one, stage=stage) if number in folds or not folds.isdisjoint(one.inputs) else one
            for number, one in enumerate(self.made)
        ]

    def _number_of(self, instruction: Instruction, inputs: tuple[int, ...]) -> int | None:
        if instruction.operation == "load":
            return self._loaded(instruction)
        if instruction.operation == "scalar":
            return self._scalar(instruction)
        if instruction.operation == "apply":
            return self._applied(instruction, inputs)
        if instruction.operation == "reduce":
            return self._folded(instruction, inputs)
        if instruction.operation == "store":
            return self._stored(instruction, inputs)
        return None

    def _added(self, instruction: Instruction) -> int:
        self.made.append(instruction)
        return len(self.made) - 1

    def _loaded(self, wanted: Instruction) -> int | None:
        """What the kernel of rows has of an element: it was loaded, or is stored."""
        if wanted.access is None or wanted.access.computed or wanted.where is not None:
            return None
        for number, instruction in enumerate(self.before):
            if instruction.operation not in ("load", "store") or instruction.access is None:
                continue
            if instruction.where is not None or instruction.combine is not None or instruction.access.computed:
                continue
            if instruction.varying == wanted.varying and _same_elements(instruction.access, wanted.access):
                return number if instruction.operation == "load" else instruction.inputs[0]
        return None

    def _scalar(self, instruction: Instruction) -> int:
        for number, other in enumerate(self.made):
            if (other.operation, other.scalar, other.dtype) == ("scalar", instruction.scalar, instruction.dtype):
                return number
        return self._added(replace(instruction))

    def _applied(self, instruction: Instruction, inputs: tuple[int, ...]) -> int:
        sources = [self.made[number] for number in inputs]
        for number, other in enumerate(self.made):
            same = other.operation == "apply" and other.primitive is instruction.primitive and other.inputs == inputs
            if same and other.params == instruction.params and other.dtype is instruction.dtype:
                return number
        stage = max([one.stage + (one.operation == "reduce") for one in sources], default=0)
        level = max([one.level for one in sources], default=Level.KERNEL)
        varying = any(one.varying for one in sources)
        return self._added(
            replace(instruction, inputs=inputs, stage=stage, level=level, sweep=0, varying=varying, access=None)
        )

    def _folded(self, instruction: Instruction, inputs: tuple[int, ...]) -> int | None:
        reducer, source = instruction.primitive.reducer, self.made[inputs[0]]
        if instruction.params.get("reverse", True) or "part" not in instruction.params or "of" in instruction.params:
            return None
        if reducer.ordered or reducer.needs_index or not source.varying or source.dtype.size != COPIED_BYTES:
            return None
        return self._added(
            replace(instruction, operation="fold", inputs=inputs, level=Level.SWEEP, sweep=0, stage=source.stage)
        )

    def _stored(self, instruction: Instruction, inputs: tuple[int, ...]) -> int | None:
        access = instruction.access
        if access is None or access.computed or instruction.where is not None or instruction.combine is not None:
            return None
        if self.made[inputs[0]].operation != "fold" or any(access.sweeps) or access.lane_stride is not LaneStride.ONE:
            return None
        there = replace(access, rows=(access.rows[0], 0), sweeps=())
        return self._added(replace(instruction, inputs=inputs, access=there, level=Level.ROW))


def _in_parts(instruction: Instruction) -> Instruction:
    """An instruction of a kernel whose row axis was cut into parts."""
    access = instruction.access
    if access is None:
        return instruction
    (stride,) = access.rows
    return replace(instruction, access=replace(access, rows=(SWEEP_PART * stride, stride)))


def _same_elements(one: Access, other: Access) -> bool:
    """Whether an access of a row is that of a part's sweep."""
    if one.operand is not other.operand or one.dtype is not other.dtype:
        return False
    return _strides_of_part(one.rows) == (*other.rows, *other.sweeps) and (one.lane, one.offset) == (
        other.lane,
        other.offset,
    )


def _strides_of_part(rows: Sequence[int]) -> tuple[int, int]:
    (stride,) = rows
    return SWEEP_PART * stride, stride
