"""Kernels whose rows are done by a block each.

Its threads compute what a row is folded of, a tile of it at a time, and put it into shared memory. From there sixteen
threads of a warp that does nothing else fold it in the order that every target has, while the others compute the next
tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes
from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.codegen.values import Complex, Value
from weft.compiler.cuda.saving import SavingWriter
from weft.compiler.cuda.schedule import TILE_TURNS, CudaSchedule, staged_of
from weft.compiler.cuda.threads import WARP, RowGroup, synchronize_block
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.passes import Pass
from weft.dtypes import Dtype

STAGED, RESULTS = "@weft.staged", "@weft.results"

RESULT_BYTES = 16
"""In shared memory, for a result of any dtype."""

FOLDED_TOGETHER = 8
"""Elements that a thread reads from shared memory before it joins them."""


class LongRowsWriter(SavingWriter):
    """Neighbouring threads have neighbouring lanes."""

    group: RowGroup

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.vector = MathLanes(self.e, 1)
        self.places = {}
        self.shared: dict[str, int] = {}
        self.results = 0

    def _begin_threads(self) -> None:
        self.group = self.crossing = RowGroup(self.vector, self.scalar, self.thread)
        self.computes = self.e.assign(f"icmp sge i64 {self.thread}, {WARP}")
        self.place = self.e.assign(f"sub i64 {self.thread}, {WARP}")
        self.computing = self.schedule.threads - WARP
        self.folds = self.e.assign(f"icmp slt i64 {self.thread}, {self.group.count}")
        self.leads = self.e.assign(f"icmp eq i64 {self.thread}, 0")

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    @property
    def _tile(self) -> int:
        return self.computing * TILE_TURNS

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        if reductions:
            with self.e.loop("0", self._lane_extent, self._tile) as first, self._scope():
                self._do_tile(first, current, reductions)
        else:
            with self.e.when(self.computes), self._scope():
                self._by_turns(self.place, self._lane_extent, self.computing, self._at_lane, current, reductions)

    def _at_lane(self, index: str, whole: bool) -> None:
        """The lane of this thread, which is there."""
        self.lane_index = index

    def _at_lane_or_last(self, index: str) -> None:
        """The lane of this thread; where there is none, the last one is computed again, but not stored."""
        self.mask = self.e.assign(f"icmp slt i64 {index}, {self._lane_extent}")
        last = self.e.assign(f"sub i64 {self._lane_extent}, 1")
        self.lane_index = self.e.assign(f"select i1 {self.mask}, i64 {index}, i64 {last}")

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        mask, self.mask = self.mask, None
        value = super()._load(position, instruction, location, L)
        self.mask = mask
        return value

    def _do_tile(self, first: str, current: Pass, reductions: Reductions) -> None:
        """Compute what the tile from lane ``first`` on is folded of, and fold it."""
        e = self.e
        staged = staged_of(self.kernel, current)
        half = e.assign(f"and i64 {e.assign(f'udiv i64 {first}, {self._tile}')}, 1")
        memory = self._shared(STAGED, 2 * self._tile * sum(sum(sizes) for sizes in staged.values()))
        places: dict[int, list[str]] = {}
        for number, sizes in staged.items():
            places[number] = []
            for size in sizes:
                distance = e.assign(f"mul i64 {half}, {size * self._tile}")
                places[number].append(e.assign(f"getelementptr i8, ptr {memory}, i64 {distance}"))
                memory = e.assign(f"getelementptr i8, ptr {memory}, i64 {2 * size * self._tile}")
        with e.when(self.computes), self._scope():
            self._compute_tile(first, current, reductions, places)
        synchronize_block(e)
        rest = e.assign(f"sub i64 {self._lane_extent}, {first}")
        with e.when(self.folds), self._scope():
            self._fold(self._smaller(rest, str(self._tile)), reductions, places)

    def _compute_tile(self, first: str, current: Pass, reductions: Reductions, places: dict[int, list[str]]) -> None:
        """Compute the elements of a tile, each instruction for all that this thread has, and put them at ``places``."""
        e, before = self.e, self._state()
        within = [e.assign(f"add i64 {self.place}, {turn * self.computing}") for turn in range(TILE_TURNS)]
        states = []
        for index in within:
            self._at_lane_or_last(e.assign(f"add i64 {first}, {index}"))
            states.append(self._state())
        for number in current.needed:
            for state in states:
                self._go_to(state)
                if number not in reductions:
                    self._accumulate_one(number, current, {})
        for index, state in zip(within, states, strict=True):
            self._go_to(state)
            for number, pointers in places.items():
                self._put(self.values[number], pointers, index)
        self._go_to(before)

    def _fold(self, stop: str, reductions: Reductions, places: dict[int, list[str]]) -> None:
        """Join what is in shared memory, each of the sixteen lanes its own elements in order."""

        def join(indices: Sequence[str], whole: bool) -> None:
            values = self.values
            taken = [
                {number: self._taken(number, pointers, index) for number, pointers in places.items()}
                for index in indices
            ]
            for number, state in reductions.items():
                if state.instruction is self.kernel.instructions[number]:
                    for elements in taken:
                        self.values = {**values, **elements}
                        state.step()
            self.values = values

        self._in_turns(self.group.number, stop, self.group.count, FOLDED_TOGETHER, join)

    def _result(self, state: Accumulator | OrderedFold, instruction: Instruction) -> Any:
        """The result of a reduction, which the threads that folded give to all others."""
        e, size = self.e, 16
        self.results += 1
        pointer = e.assign(
            f"getelementptr i8, ptr {self._shared(RESULTS, size * self.results)}, i64 {size * (self.results - 1)}"
        )
        with e.when(self.folds), self._scope():
            value = state.result(instruction)
            with e.when(self.leads):
                self._put(value, self._parts(pointer, instruction.dtype), "0")
        synchronize_block(e)
        return self._read(self._parts(pointer, instruction.dtype), "0", instruction.dtype, self.scalar)

    def _parts(self, pointer: str, dtype: Dtype) -> list[str]:
        """Where the parts of a number are."""
        if not dtype.is_complex:
            return [pointer]
        return [pointer, self.e.assign(f"getelementptr i8, ptr {pointer}, i64 8")]

    def _put(self, value: Any, pointers: Sequence[str], index: str) -> None:
        parts = [value.real, value.imag] if isinstance(value, Complex) else [value]
        for part, pointer in zip(parts, pointers, strict=True):
            type_ = REGISTER_TYPES[part.dtype]
            self.e.store(type_, part.name, self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}"))

    def _taken(self, number: int, pointers: Sequence[str], index: str) -> Any:
        return self._read(pointers, index, self.kernel.instructions[number].dtype, self.vector)

    def _read(self, pointers: Sequence[str], index: str, dtype: Dtype, L: Lanes) -> Any:
        part_dtype = dtypes.float32 if dtype.is_complex else dtype
        type_, parts = REGISTER_TYPES[part_dtype], []
        for pointer in pointers:
            place = self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}")
            parts.append(Value(L, self.e.load(type_, place), part_dtype))
        return Complex(*parts) if dtype.is_complex else parts[0]

    def _shared(self, name: str, size: int) -> str:
        """A pointer to shared memory of at least ``size`` bytes."""
        self.shared[name] = max(self.shared.get(name, 0), size)
        text = f"{name} = internal addrspace(3) global [{self.shared[name]} x i8] undef, align 16"
        self.e.declarations[name] = text
        return self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def _store(self, position: int, instruction: Instruction) -> None:
        """What a row has one of is stored by the first thread, when all have read what was there."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        synchronize_block(self.e)
        with self.e.when(self.leads):
            super()._store(position, instruction)

    def _save(self, position: int, instruction: Instruction) -> None:
        if self.mask is None:
            super()._save(position, instruction)
            return
        with self.e.when(self.mask):
            super()._save(position, instruction)

    def _saved_index(self) -> str:
        return self.lane_index
