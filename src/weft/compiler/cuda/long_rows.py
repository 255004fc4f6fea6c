"""Kernels whose rows are done by a block each.

Its threads compute what a row is folded of, a tile of it at a time, and put it into shared memory. From there sixteen
threads of a warp that does nothing else fold it in the order that every target has, while the others compute the next
tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from weft import dtypes
from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location, load_if
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.codegen.values import Complex, Value
from weft.compiler.cuda.saving import SavingWriter
from weft.compiler.cuda.schedule import TILE_TURNS, CudaSchedule, register_bytes
from weft.compiler.cuda.threads import WARP, Team, synchronize_block
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.passes import Pass
from weft.dtypes import Dtype

STAGED, RESULTS = "@weft.staged", "@weft.results"

RESULT_BYTES = 16
"""In shared memory, for a result of any dtype."""

FOLDED_TOGETHER = 32
"""Elements that a thread reads from shared memory before it joins them."""


_Places = dict[Accumulator | OrderedFold, list[str]]
"""Pointers to where the parts of states are, one for each part."""


class LongRowsWriter(SavingWriter):
    """Neighbouring threads have neighbouring lanes."""

    team: Team

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.vector = MathLanes(self.e, 1)
        self.places = {}
        self.shared: dict[str, int] = {}
        self.results = 0

    def _begin_threads(self) -> None:
        self.team = self.crossing = Team(self.vector, self.scalar, self.thread)
        self.computes = self.e.assign(f"icmp sge i64 {self.thread}, {WARP}")
        self.place = self.e.assign(f"sub i64 {self.thread}, {WARP}")
        self.computing = self.schedule.threads - WARP
        self.folds = self.e.assign(f"icmp slt i64 {self.thread}, {self.team.count}")
        self.leads = self.e.assign(f"icmp eq i64 {self.thread}, 0")

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    @property
    def _tile(self) -> int:
        return self.computing * TILE_TURNS

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        if not reductions:
            with self.e.when(self.computes), self._scope():
                self._by_turns(self.place, self._lane_extent, self.computing, self._at_lane, current, reductions)
        elif all(self._regroups(state.instruction) for state in reductions.values()):
            self._do_segments(current, reductions)
        else:
            with self.e.loop("0", self._lane_extent, self._tile) as first, self._scope():
                self._do_tile(first, current, reductions)
        # What comes next may write to shared memory, where other threads still read.
        synchronize_block(self.e)

    def _regroups(self, instruction: Instruction) -> bool:
        elements = self.kernel.instructions[instruction.inputs[0]].dtype
        return bool(instruction.primitive.reducer.regroups(instruction.params.get("of", elements)))

    def _do_segments(self, current: Pass, reductions: Reductions) -> None:
        """Where it does not matter which neighbours are joined first: of the elements of each of the sixteen lanes, a
        thread joins those that are in one segment of the row, and then the folding threads join the segments."""
        e, team, segments = self.e, self.team, self.computing // self.team.count
        vectors = e.assign(f"udiv i64 {e.assign(f'add i64 {self._lane_extent}, {team.count - 1}')}, {team.count}")
        length = e.assign(f"udiv i64 {e.assign(f'add i64 {vectors}, {segments - 1}')}, {segments}")
        lanes = e.assign(f"mul i64 {length}, {team.count}")
        places = self._staging(reductions, self.computing)
        with e.when(self.computes), self._scope():
            for state in places:
                state.begin()
            first = e.assign(f"mul i64 {e.assign(f'udiv i64 {self.place}, {team.count}')}, {lanes}")
            stop = self._smaller(e.assign(f"add i64 {first}, {lanes}"), self._lane_extent)
            start = e.assign(f"add i64 {first}, {team.number}")
            self._by_turns(start, stop, team.count, self._at_lane, current, reductions)
            for state, pointers in places.items():
                self._put(state.read(), pointers, self.place)
        synchronize_block(e)
        with e.when(self.folds), self._scope():
            self._fold(str(self.computing), places)

    def _staging(self, reductions: Reductions, count: int, half: str = "0") -> _Places:
        """Where in shared memory ``count`` elements of each part of each state are; of two such places the first one or
        the second one."""
        states = list(dict.fromkeys(reductions.values()))
        parts = [
            (register_bytes(dtype), state, part) for state in states for part, (dtype, _) in enumerate(state.identity)
        ]
        size = count * sum([bytes_ for bytes_, *_ in parts])
        start = self.e.assign(f"mul i64 {half}, {size}")
        memory = self._shared(STAGED, size if half == "0" else 2 * size)
        memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {start}")
        places: _Places = {state: [""] * len(state.identity) for state in states}
        for bytes_, state, part in sorted(parts, key=itemgetter(0), reverse=True):  # so that all are aligned
            places[state][part] = memory
            memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {bytes_ * count}")
        return places

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
        """Compute the tile from lane ``first`` on, and fold it."""
        e = self.e
        half = e.assign(f"and i64 {e.assign(f'udiv i64 {first}, {self._tile}')}, 1")
        places = self._staging(reductions, self._tile, half)
        with e.when(self.computes), self._scope():
            self._compute_tile(first, current, reductions, places)
        synchronize_block(e)
        rest = e.assign(f"sub i64 {self._lane_extent}, {first}")
        with e.when(self.folds), self._scope():
            self._fold(self._smaller(rest, str(self._tile)), places)

    def _compute_tile(self, first: str, current: Pass, reductions: Reductions, places: _Places) -> None:
        """Compute the elements of a tile, each instruction for all that this thread has, and put them at ``places``."""
        e, before = self.e, self._state()
        within = [e.assign(f"add i64 {self.place}, {turn * self.computing}") for turn in range(TILE_TURNS)]
        turns = []
        for index in within:
            self._at_lane_or_last(e.assign(f"add i64 {first}, {index}"))
            turns.append(self._state())
        for number in current.needed:
            for turn in turns:
                self._go_to(turn)
                if number not in reductions:
                    self._accumulate_one(number, current, {})
        for index, turn in zip(within, turns, strict=True):
            self._go_to(turn)
            for state, pointers in places.items():
                assert isinstance(state, Accumulator)
                self._put(state.lifted(), pointers, index)
        self._go_to(before)

    def _fold(self, stop: str, places: _Places) -> None:
        """Join what is in shared memory: each of the sixteen lanes its own elements, in order."""

        def join(indices: Sequence[str], whole: bool) -> None:
            for state, pointers in places.items():
                dtypes_ = [dtype for dtype, _ in state.identity]
                taken = [self._taken(pointers, index, dtypes_, self.vector) for index in indices]
                for elements in taken:
                    state.write(state.reducer.merge(self.vector, state.read(), elements))

        self._in_turns(self.team.number, stop, self.team.count, FOLDED_TOGETHER, join)

    def _result(self, state: Accumulator | OrderedFold, instruction: Instruction) -> Any:
        """The result of a reduction, which the threads that folded give to all others."""
        e, before = self.e, RESULT_BYTES * self.results
        self.results += 1
        memory = self._shared(RESULTS, RESULT_BYTES * self.results)
        pointers = [e.assign(f"getelementptr i8, ptr {memory}, i64 {before + part}") for part in (0, RESULT_BYTES // 2)]
        with e.when(self.folds), self._scope():
            value = state.result(instruction)
            with e.when(self.leads):
                self._put([value.real, value.imag] if instruction.dtype.is_complex else [value], pointers, "0")
        synchronize_block(e)
        if instruction.dtype.is_complex:
            return Complex(*self._taken(pointers, "0", [dtypes.float32, dtypes.float32], self.scalar))
        return self._taken(pointers, "0", [instruction.dtype], self.scalar)[0]

    def _put(self, parts: Sequence[Value], pointers: Sequence[str], index: str) -> None:
        for part, pointer in zip(parts, pointers, strict=False):
            type_ = REGISTER_TYPES[part.dtype]
            self.e.store(type_, part.name, self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}"))

    def _taken(self, pointers: Sequence[str], index: str, kinds: Sequence[Dtype], L: Lanes) -> tuple[Value, ...]:
        parts = []
        for pointer, dtype in zip(pointers, kinds, strict=False):
            type_ = REGISTER_TYPES[dtype]
            place = self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}")
            parts.append(Value(L, self.e.load(type_, place), dtype))
        return tuple(parts)

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

    def _recall(self, position: int, instruction: Instruction) -> Any:
        type_, pointer = self._saved_at(position, instruction)
        value = load_if(self.e, type_, pointer, register_bytes(instruction.dtype), self.mask)
        return Value(self.vector, value, instruction.dtype)

    def _saved_index(self) -> str:
        return self.lane_index
