"""Kernels of rows that fold columns, too: in parts of so many rows, each done by a block.

A block does some rows at a time, each by a team of sixteen threads that keep what they load of it in registers. The
next rows are copied to shared memory meanwhile. What is folded along columns is written to shared memory, where each
thread reads some columns, row by row, and adds them to what it has in registers. What all rows share is in shared
memory, too: a load from memory would wait for the copies that were begun before it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, element_pointer
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.row_values import column_folds, common_loads, loaded_ahead, saved_row
from weft.compiler.cuda.rows import RowsWriter
from weft.compiler.cuda.saving import SHARED
from weft.compiler.cuda.schedule import (
    COLUMN_FOLD_THREADS,
    COPIED_BYTES,
    ROWS_AT_ONCE,
    TURNS_AT_ONCE,
    CudaSchedule,
)
from weft.compiler.cuda.threads import WIDEST_COPY, Team, copy_to_shared, synchronize_block
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel
from weft.compiler.passes import Pass
from weft.dtypes import Dtype


class _Column:
    """What the elements of some columns come to, in stack slots that LLVM turns into registers: of each thread, the
    columns ``thread``, ``thread + threads`` and so on."""

    def __init__(self, e: Emitter, L: Lanes, instruction: Instruction, dtype: Dtype, count: int) -> None:
        self.e, self.L, self.dtype, self.inputs = e, L, dtype, instruction.inputs
        self.reducer = instruction.primitive.reducer
        self.identity = self.reducer.identity(dtype)
        self.slots = [[e.slot(REGISTER_TYPES[part]) for part, _ in self.identity] for _ in range(count)]

    def begin(self) -> None:
        for number in range(len(self.slots)):
            self.write(number, self.reducer.start(self.L, self.dtype))

    def read(self, number: int) -> tuple[Value, ...]:
        pairs = zip(self.slots[number], self.identity, strict=True)
        return tuple([Value(self.L, self.e.load(REGISTER_TYPES[dtype], slot), dtype) for slot, (dtype, _) in pairs])

    def write(self, number: int, values: tuple[Value, ...]) -> None:
        for slot, value in zip(self.slots[number], values, strict=True):
            self.e.store(REGISTER_TYPES[value.dtype], value.name, slot)

    def add(self, number: int, name: str) -> None:
        """Join an element with those before it."""
        lifted = self.reducer.lift(self.L, Value(self.L, name, self.dtype), None)
        self.write(number, self.reducer.merge(self.L, self.read(number), lifted))


class ColumnFoldsWriter(RowsWriter):
    """Writes such a kernel. A unit is a part: all rows of the last row axis."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        self.ahead = loaded_ahead(kernel, self.passes)
        for current in self.passes:
            current.saved.difference_update(self.ahead)
            current.recalled.update(set(self.ahead) & set(current.needed))
        self.fetched, self.copied = set(), set()
        self.common = common_loads(kernel)
        """The loads whose elements all rows share, which are in shared memory."""
        self.columns: list[_Column] = []
        self.first_turn = 0

    def _begin_threads(self) -> None:
        e = self.e
        self.team = self.crossing = Team(self.vector, self.scalar, self.thread, together=True)
        self.row_of_block = e.assign(f"lshr i64 {self.thread}, {self.schedule.bits}")
        e.declarations[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align 16"
        self.shared = e.assign(f"addrspacecast ptr addrspace(3) {SHARED} to ptr")
        for number in column_folds(self.kernel).values():
            instruction = self.kernel.instructions[number]
            dtype = self.kernel.instructions[instruction.inputs[0]].dtype
            count = self.schedule.turns * VIRTUAL_LANES // COLUMN_FOLD_THREADS
            self.columns.append(_Column(e, self.vector, instruction, dtype, count))

    def _begin(self) -> None:
        super()._begin()
        self._copy_common()

    def _unit(self, unit: str) -> None:
        e, rows = self.e, self.number("row", 1)
        for column in self.columns:
            column.begin()
        # Rows are counted from the first one of the first part: an offset of the part would need registers in the loop.
        begin = e.assign(f"mul i64 {unit}, {rows}")
        end = e.assign(f"add i64 {begin}, {rows}")
        self._begin_copies(e.assign(f"add i64 {begin}, {self.row_of_block}"))
        with e.loop(begin, end, ROWS_AT_ONCE) as first, self._scope():
            row = e.assign(f"add i64 {first}, {self.row_of_block}")
            following = e.assign(f"add i64 {row}, {ROWS_AT_ONCE}")
            self._take_copies()
            with e.when(e.assign(f"icmp slt i64 {following}, {end}")):
                self._begin_copies(following)
            self._advance("row", 1, row, range(len(self.kernel.instructions)))
            self._emit_row_values()
            self._body()
        self._advance("row", 0, unit, range(len(self.kernel.instructions)))
        self._store_columns()

    def _copy_common(self) -> None:
        """Copy what all rows share to shared memory."""
        if not self.common:
            return
        for number in self.common:
            instruction = self.kernel.instructions[number]
            for own in range(self.schedule.saved_lanes // COLUMN_FOLD_THREADS):
                self.lane_index = self.e.assign(f"add i64 {self.thread}, {own * COLUMN_FOLD_THREADS}")
                location = self._location(number, instruction, self.vector)
                value = self._load(number, instruction, location, self.vector)
                self.e.store(REGISTER_TYPES[instruction.dtype], value.name, self._common_at(number))
        synchronize_block(self.e)

    def _common_at(self, number: int) -> str:
        """Where in shared memory the current lane is of what all rows share."""
        staged = len(self.columns) * ROWS_AT_ONCE * saved_row(TURNS_AT_ONCE * VIRTUAL_LANES)
        before = self._words_of_copies + staged + self.common.index(number) * self.schedule.saved_lanes
        return self._at(self.e.assign(f"add i64 {self.lane_index}, {before}"))

    def _begin_copies(self, row: str) -> None:
        """Begin to copy what a team needs of a row to shared memory."""
        e = self.e
        with self._scope():
            self._advance("row", 1, row, self.ahead)
            for array, number in enumerate(self.ahead):
                self.lane_index = "0"
                address = e.assign(f"ptrtoint ptr {self._source(number)} to i64")
                aligned = e.assign(f"icmp eq i64 {e.assign(f'and i64 {address}, {WIDEST_COPY - 1}')}, 0")
                with e.when(aligned):
                    self._copy_row(array, number, WIDEST_COPY)
                with e.when(e.assign(f"xor i1 {aligned}, true")):
                    self._copy_row(array, number, COPIED_BYTES)

    def _copy_row(self, array: int, number: int, size: int) -> None:
        """Begin to copy a row, so many bytes at once."""
        lanes, e = size // COPIED_BYTES, self.e
        first = e.assign(f"mul i64 {self._first_lane}, {lanes}")
        for turn in range(self.schedule.turns // lanes):
            self.lane_index = e.assign(f"add i64 {first}, {VIRTUAL_LANES * lanes * turn}")
            copy_to_shared(e, self._copy_of(array), self._source(number), size)

    def _source(self, number: int) -> str:
        """Where a load reads the current lane."""
        instruction = self.kernel.instructions[number]
        location = self._location(number, instruction, self.vector)
        return element_pointer(self.vector, location, MEMORY_TYPES[instruction.dtype])

    def _take_copies(self) -> None:
        """Wait for what was copied, and take it into registers. Then the next row may be copied there."""
        assert self.team is not None
        self.e.call("llvm.nvvm.cp.async.wait.all", "void", [])
        self.team.synchronize()
        for array, number in enumerate(self.ahead):
            self._at_all_turns(self._first_lane, partial(self._take_copy, array, number))
        self.team.synchronize()

    def _take_copy(self, array: int, number: int) -> None:
        type_ = REGISTER_TYPES[self.kernel.instructions[number].dtype]
        self.registers[self.slots[number], self.turn_of[self.lane_index]] = self.e.load(type_, self._copy_of(array))

    def _copy_of(self, array: int) -> str:
        """Where the copy of the current lane of an array is."""
        row = self.e.assign(f"add i64 {self.row_of_block}, {array * ROWS_AT_ONCE}")
        before = self.e.assign(f"mul i64 {row}, {saved_row(self.schedule.saved_lanes)}")
        return self._at(self.e.assign(f"add i64 {before}, {self.lane_index}"))

    def _at(self, index: str) -> str:
        """The address of a word in shared memory."""
        return self.e.assign(f"getelementptr i32, ptr {self.shared}, i64 {index}")

    @property
    def _first_lane(self) -> str:
        assert self.team is not None
        return self.team.number

    def _is_between(self, instruction: Instruction, stage: int) -> bool:
        if any(self.kernel.instructions[number].operation == "fold" for number in instruction.inputs):
            return False
        return super()._is_between(instruction, stage)

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        if not any(self.kernel.instructions[root].operation == "fold" for root in current.roots):
            self._unrolled(self._first_lane, current, reductions)
            return
        count = self._turns_together(current)
        for first in range(0, self.schedule.turns, TURNS_AT_ONCE):
            self.first_turn = first
            turns = range(first, min(first + TURNS_AT_ONCE, self.schedule.turns))
            at_turns = [partial(self._at_turn, self._first_lane, turn) for turn in turns]
            self._together(at_turns, current, reductions, count)
            self._fold_columns(len(turns))

    def _instruction(self, position: int, instruction: Instruction) -> Any:
        if position in self.common:
            type_ = REGISTER_TYPES[instruction.dtype]
            return Value(self.vector, self.e.load(type_, self._common_at(position)), instruction.dtype)
        if instruction.operation != "fold":
            return super()._instruction(position, instruction)
        number = [column.inputs for column in self.columns].index(instruction.inputs)
        value = self.fitted(self.values[instruction.inputs[0]], self.vector)
        turn = self.turn_of[self.lane_index] - self.first_turn
        lane = self.e.assign(f"add i64 {self._first_lane}, {VIRTUAL_LANES * turn}")
        self.e.store(REGISTER_TYPES[value.dtype], value.name, self._staged(number, self.row_of_block, lane))
        return None

    def _staged(self, number: int, row: str, lane: str) -> str:
        """Where what is folded is left, for a row of those that are done at once and a lane of those."""
        e, width = self.e, saved_row(TURNS_AT_ONCE * VIRTUAL_LANES)
        before = self._words_of_copies + number * ROWS_AT_ONCE * width
        at_row = e.assign(f"mul i64 {row}, {width}")
        return self._at(e.assign(f"add i64 {e.assign(f'add i64 {at_row}, {lane}')}, {before}"))

    @property
    def _words_of_copies(self) -> int:
        return len(self.ahead) * ROWS_AT_ONCE * saved_row(self.schedule.saved_lanes)

    def _fold_columns(self, turns: int) -> None:
        """Fold what the rows that are done at once have left."""
        synchronize_block(self.e)
        first = self.first_turn * VIRTUAL_LANES // COLUMN_FOLD_THREADS
        for number, column in enumerate(self.columns):
            for own in range(turns * VIRTUAL_LANES // COLUMN_FOLD_THREADS):
                lane = self.e.assign(f"add i64 {self.thread}, {own * COLUMN_FOLD_THREADS}")
                for row in range(ROWS_AT_ONCE):
                    type_ = REGISTER_TYPES[column.dtype]
                    column.add(first + own, self.e.load(type_, self._staged(number, str(row), lane)))
        synchronize_block(self.e)

    def _store_columns(self) -> None:
        """Store what the columns of a part come to."""
        inputs = [column.inputs for column in self.columns]
        for position, instruction in enumerate(self.kernel.instructions):
            folds = [number for number in instruction.inputs if self.kernel.instructions[number].operation == "fold"]
            for fold in folds:
                folded = self.kernel.instructions[fold]
                column = self.columns[inputs.index(folded.inputs)]
                for own in range(len(column.slots)):
                    self.lane_index = self.e.assign(f"add i64 {self.thread}, {own * COLUMN_FOLD_THREADS}")
                    self.values[fold] = column.read(own)[folded.params["part"]]
                    self._store(position, instruction)
