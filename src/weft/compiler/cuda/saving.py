"""Values that one pass over a row saves for later ones: in registers, if a thread has all its elements at once, or in
the shared memory of a block.

Loads that later passes save unchanged are copied to shared memory from the beginning of the row on. Threads do other
work meanwhile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, SUFFIXES, element_pointer
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.division import Repeated, RowLanes
from weft.compiler.cuda.nests import ThreadWriter
from weft.compiler.cuda.quick_folds import fold_quickly, quick_of
from weft.compiler.cuda.row_values import arranged, fetched
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.cuda.threads import copy_to_shared
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel
from weft.compiler.passes import Pass, is_expensive
from weft.primitives.reducers import Quick

SHARED = "@weft_saved"

LOADED_TOGETHER = 16
"""How many elements of a row a thread loads before it computes, because memory takes long to answer."""

UNROLLED_TOGETHER = 128
"""`BODY_TOGETHER` for a thread that has all its elements at once."""


class SavingWriter(ThreadWriter):
    """A value is recalled by the thread that saved it, so threads need not wait for each other."""

    most_together = 16
    divides_quickly = False
    """Whether to divide in float32 where that is right, which takes more code and registers."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.vector = self.row_lanes = RowLanes(self.e, 1)
        self.slots, self.sizes = arranged(kernel, self.passes)
        self.fetched = fetched(kernel, self.passes)
        if schedule.turns:
            self.loads_first, self.body_together = True, UNROLLED_TOGETHER
        self.copied = {number for number in self.fetched if self.slots[number] >= schedule.in_registers}
        self.saved_pointers: dict[int, str] = {}
        self.registers: dict[tuple[int, int], str] = {}
        """The registers of saved values, by array and turn."""
        self.turn_of: dict[str, int] = {}
        """The turn of each lane of the thread, if all turns are done at once."""

    def fitted(self, value: Any, L: Lanes) -> Any:
        found = super().fitted(value, L)
        if L is self.vector and isinstance(found, Value) and found.lanes is self.scalar:
            return Repeated(L, found.name, found.dtype)
        return found

    def _turns_loaded(self, current: Pass, count: int) -> int:
        loads = len(self._loads_ahead(current))
        return count * max(1, LOADED_TOGETHER // (loads * count)) if loads else count

    def _unrolled(self, start: str, current: Pass, reductions: Reductions) -> None:
        """Do all elements of a row that a thread has, from lane ``start`` on, without a loop."""
        turns, count = self.schedule.turns, self._turns_together(current)
        loads = set(self._loads_ahead(current))
        stays = {
            number
            for number in loads & (current.saved | self.fetched)
            if self.slots[number] < self.schedule.in_registers
        }
        loaded = turns if stays and stays == loads else self._turns_loaded(current, count)
        for first in range(0, turns, loaded):
            at_turns = [partial(self._at_turn, start, turn) for turn in range(first, min(first + loaded, turns))]
            self._together(at_turns, current, reductions, count)

    def _at_turn(self, start: str, turn: int) -> None:
        self.lane_index = self.e.assign(f"add i64 {start}, {VIRTUAL_LANES * turn}")
        self.turn_of[self.lane_index] = turn

    def _at_all_turns(self, start: str, do: Callable[[], None]) -> None:
        """Call ``do`` at each of the elements of `_unrolled`."""
        for turn in range(self.schedule.turns):
            self._at_turn(start, turn)
            do()

    def _fetch(self, current: Pass) -> None:
        """Before the first pass, begin to copy what later passes need. Before a pass that needs copies, wait for
        them."""
        if current is self.passes[0]:
            self._begin_copies_of_row()
        elif self.copied & current.saved:
            self.e.call("llvm.nvvm.cp.async.wait.all", "void", [])
            self._meet_after_copies()

    @abstractmethod
    def _walk(self, do: Callable[[], None]) -> None:
        """Call ``do`` at each lane of this thread."""

    def _begin_copies_of_row(self) -> None:
        for number in sorted(self.copied):
            self._find_pointer(number)
            self._copy_array(number)

    def _copy_array(self, number: int) -> None:
        """Begin to copy what an instruction loads."""
        self._walk(partial(self._copy, number, self.kernel.instructions[number].dtype.size))

    def _meet_after_copies(self) -> None:
        """Wait for the threads that copied what this one needs: by itself it copies only that."""

    def _copy(self, number: int, size: int) -> None:
        """Begin to copy what an instruction loads from the current lane on, so many bytes, to the memory where it is
        saved."""
        instruction = self.kernel.instructions[number]
        _, target = self._saved_at(number, instruction)
        location = self._location(number, instruction, self.vector)
        source = element_pointer(self.vector, location, MEMORY_TYPES[instruction.dtype])
        copy_to_shared(self.e, target, source, size)

    def _accumulate_one(self, position: int, current: Pass, reductions: Reductions) -> None:
        instruction = self.kernel.instructions[position]
        if position not in self.fetched:
            super()._accumulate_one(position, current, reductions)
        elif position in current.needed:
            self.values[position] = self._recall(position, instruction)
        else:
            self.values[position] = self._instruction(position, instruction)
            self._save(position, instruction)

    def _accumulate_at(self, states: Sequence[Any], position: int, current: Pass, reductions: Reductions) -> None:
        fold, instruction = reductions.get(position), self.kernel.instructions[position]
        quick = None if fold is None else quick_of(instruction, self.kernel)
        if len(states) == 1 or any(state.mask is not None for state in states):
            super()._accumulate_at(states, position, current, reductions)
        elif self._may_divide(position, current):
            self._divide_quickly(states, position, current)
        elif quick is None:
            super()._accumulate_at(states, position, current, reductions)
        elif isinstance(fold, Accumulator):
            self._fold_quickly(states, fold, quick)

    def _may_divide(self, position: int, current: Pass) -> bool:
        """Whether an instruction is computed in this pass and may divide by a number that a row has only one of."""
        instruction = self.kernel.instructions[position]
        if not self.divides_quickly or position in current.recalled or not is_expensive(instruction):
            return False
        if REGISTER_TYPES[instruction.dtype] != "float":
            return False
        return not all(self.kernel.instructions[number].varying for number in instruction.inputs)

    def _divide_quickly(self, states: Sequence[Any], position: int, current: Pass) -> None:
        """Do an instruction in several turns with quick divisions. If they are not right, do it again."""
        instruction, names = self.kernel.instructions[position], []
        conditions: list[str] = []
        self.row_lanes.conditions = conditions
        for state in states:
            self._go_to(state)
            names.append(self._apply(instruction).name)
        self.row_lanes.conditions = None
        if conditions:
            names = self._corrected(states, instruction, names, conditions)
        for state, name in zip(states, names, strict=True):
            self._go_to(state)
            self.values[position] = Value(self.vector, name, instruction.dtype)
            if position in current.saved:
                self._save(position, instruction)

    def _corrected(
        self, states: Sequence[Any], instruction: Instruction, names: Sequence[str], conditions: Sequence[str]
    ) -> list[str]:
        """The results of an instruction in several turns, which are computed again unless all conditions hold."""
        e, holds = self.e, "true"
        for condition in conditions:
            holds = e.assign(f"and i1 {holds}, {condition}")
        slots = [e.slot("float") for _ in states]
        for name, slot in zip(names, slots, strict=True):
            e.store("float", name, slot)
        with e.when(e.assign(f"xor i1 {holds}, true")):
            for state, slot in zip(states, slots, strict=True):
                self._go_to(state)
                e.store("float", self._apply(instruction).name, slot)
        return [e.load("float", slot) for slot in slots]

    def _fold_quickly(self, states: Sequence[Any], fold: Accumulator, quick: Quick) -> None:
        """Fold the elements of several turns in the quick way."""
        lifted = []
        for state in states:
            self._go_to(state)
            lifted.append(fold.lifted())
        fold_quickly(self.e, fold, quick, lifted)

    def _loads_ahead(self, current: Pass) -> list[int]:
        found = [number for number in super()._loads_ahead(current) if number not in self.fetched]
        return found + sorted(self.fetched - self.copied) if current is self.passes[0] else found

    def _make_room(self, current: Pass) -> None:
        for number in current.saved - self.copied:
            if self.slots[number] >= self.schedule.in_registers:
                self._find_pointer(number)

    def _find_pointer(self, number: int) -> None:
        """Compute the address in shared memory of a saved value's array."""
        slot, first = self.slots[number], self.schedule.in_registers
        self.e.declarations[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align 16"
        pointer = self.e.assign(f"addrspacecast ptr addrspace(3) {SHARED} to ptr")
        before = sum(self.sizes[first:slot]) * self.schedule.lanes_in_shared
        self.saved_pointers[number] = self.e.assign(f"getelementptr i8, ptr {pointer}, i64 {before}")

    def _fenced(self, name: str, type_: str) -> str:
        """A copy of a register whose origin LLVM cannot see. Otherwise LLVM would reuse, and so keep in registers,
        values computed from it in an earlier pass."""
        if type_ not in ("float", "double"):
            return name
        return self.e.call(f"llvm.arithmetic.fence.{SUFFIXES[type_]}", type_, [(type_, name)])

    @abstractmethod
    def _saved_index(self) -> str:
        """The index of the current lane among all lanes of the block."""

    def _saved_at(self, position: int, instruction: Instruction) -> tuple[str, str]:
        """Type and address of a saved value for the current lane."""
        type_ = REGISTER_TYPES[instruction.dtype]
        return type_, self.e.assign(
            f"getelementptr {type_}, ptr {self.saved_pointers[position]}, i64 {self._saved_index()}"
        )

    def _save(self, position: int, instruction: Instruction) -> None:
        slot, name = self.slots[position], self.values[position].name
        if slot < self.schedule.in_registers:
            self.registers[slot, self.turn_of[self.lane_index]] = name
            return
        type_, pointer = self._saved_at(position, instruction)
        self.e.store(type_, name, pointer)

    def _recall(self, position: int, instruction: Instruction) -> Any:
        slot = self.slots[position]
        if slot < self.schedule.in_registers:
            key = slot, self.turn_of[self.lane_index]
            name = self._fenced(self.registers[key], REGISTER_TYPES[instruction.dtype])
            self.registers[key] = name
            return Value(self.vector, name, instruction.dtype)
        type_, pointer = self._saved_at(position, instruction)
        return Value(self.vector, self.e.load(type_, pointer), instruction.dtype)
