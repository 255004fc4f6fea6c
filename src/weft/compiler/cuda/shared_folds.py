"""Kernels with few results, each of which is folded from many elements: the threads of a block share a fold.

A block has some lanes of a row and a long sweep, or a row whose lanes are folded. Tile by tile, each of its threads
computes an element and stores it to shared memory. From there a few threads fold the elements in order, one thread for
each lane, or for each of the sixteen lanes of a row. Meanwhile the other threads compute the next tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import Location
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.nests import BODY_TOGETHER, ThreadWriter
from weft.compiler.cuda.quick_folds import fold_quickly, quick_of
from weft.compiler.cuda.row_values import bytes_of_totals, register_bytes
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.cuda.threads import Team, synchronize_block
from weft.compiler.kernel import Instruction, Kernel, Level
from weft.compiler.passes import Pass

FOLDED_TOGETHER = 16
"""How many elements a thread reads from shared memory before it joins them."""


class SharedFoldsWriter(ThreadWriter):
    """All threads of a block run the same code, even those without a lane, because they wait for each other. The
    element of a ``turn`` and a ``lane`` is at index ``turn * lanes + lane`` of a tile; threads are numbered in the same
    way."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.most_together, self.body_together = schedule.turns, 2 * BODY_TOGETHER
        self.lanes, self.sharing = 1 << schedule.bits, schedule.threads >> schedule.bits
        self.tile = schedule.threads * schedule.turns
        """How many elements a tile has. There are two tiles: one is written while the other one is folded."""
        self.tiles: dict[Accumulator, list[str]] = {}
        """Pointers to the current tile of each part of a state."""
        self.first = self.exists = "0"
        self.read_since = False
        """Whether threads have read memory since they last waited for each other."""

    def _begin_threads(self) -> None:
        e = self.e
        self.lane_of_block = e.assign(f"and i64 {self.thread}, {self.lanes - 1}")
        self.own = e.assign(f"lshr i64 {self.thread}, {self.schedule.bits}")
        self.folds = e.assign(f"icmp eq i64 {self.own}, 0")
        self.leads = e.assign(f"icmp eq i64 {self.thread}, 0")
        self.team = Team(self.vector, self.scalar, self.thread)
        bytes_ = max([bytes_of_totals(self.kernel, current) for current in self.passes])
        self.tile_memory = self._shared("tiles", 2 * self.tile * bytes_)
        self.result_memory = self._shared("results", self.lanes * bytes_)

    def _shared(self, what: str, size: int) -> str:
        """A pointer to new shared memory of ``size`` bytes."""
        name = f"@weft.{what}"
        self.e.declarations[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
        return self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit if self._lanes_inside else self._enter_lanes(unit), self.kernel.rows)
        self._emit_row_values()
        self._body()

    def _enter_lanes(self, unit: str) -> str:
        """Select the lane of this thread, or the last one if it has none. Returns the row."""
        e, blocks, extent = self.e, self.number("blocks"), self.number("lane")
        block = e.assign(f"urem i64 {unit}, {blocks}")
        lane = e.assign(f"add i64 {e.assign(f'mul i64 {block}, {self.lanes}')}, {self.lane_of_block}")
        self.exists = e.assign(f"icmp slt i64 {lane}, {extent}")
        self.leads = e.assign(f"and i1 {self.exists}, {self.folds}")
        last = e.assign(f"sub i64 {extent}, 1")
        self.lane_index = e.assign(f"select i1 {self.exists}, i64 {lane}, i64 {last}")
        return e.assign(f"udiv i64 {unit}, {blocks}")

    def _open_sweep(self, depth: int, current: Pass, reductions: Reductions) -> None:
        if self._lanes_inside:
            super()._open_sweep(depth, current, reductions)
            return
        extent = self._sweep_extent(depth)

        def turn(count: str, whole: bool) -> None:
            self._set_sweep(depth, count, extent, current)

        def compute(first: str, stop: str) -> None:
            with self.e.when(self.exists), self._scope():
                start = self.e.assign(f"add i64 {first}, {self.own}")
                self._by_turns(start, stop, self.sharing, turn, current, reductions)

        self._by_tiles(extent, self.sharing * self.schedule.turns, compute, reductions)

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        def lane(index: str, whole: bool) -> None:
            self.lane_index = index

        def compute(first: str, stop: str) -> None:
            with self._scope():
                start = self.e.assign(f"add i64 {first}, {self.thread}")
                self._by_turns(start, stop, self.schedule.threads, lane, current, reductions)

        self._by_tiles(self._lane_extent, self.tile, compute, reductions)

    def _by_tiles(self, extent: str, step: int, compute: Callable[[str, str], None], reductions: Reductions) -> None:
        """Call ``compute`` for ``step`` turns or lanes at a time, and fold what it stores in a tile."""
        e = self.e
        states = [state for state in dict.fromkeys(reductions.values()) if isinstance(state, Accumulator)]
        memory = self._places(states, self.tile_memory, 2 * self.tile)
        with e.loop("0", extent, step) as first, self._scope():
            stop = self._smaller(e.assign(f"add i64 {first}, {step}"), extent)
            second = e.assign(f"and i64 {e.assign(f'udiv i64 {first}, {step}')}, 1")
            begin = e.assign(f"mul i64 {second}, {self.tile}")
            self.tiles = {state: self._at(state, places, begin) for state, places in memory.items()}
            self.first = first
            compute(first, stop)
            if states:
                self._synchronize()
                with e.when(self.folds if self._lanes_inside else self.leads):
                    self._fold(e.assign(f"sub i64 {stop}, {first}"))
        if states:
            self._exchange(states)

    def _accumulate_one(self, position: int, current: Pass, reductions: Reductions) -> None:
        """Elements of a reduction are stored in the tile instead of being joined."""
        state = reductions.get(position)
        if not isinstance(state, Accumulator):
            super()._accumulate_one(position, current, reductions)
        elif state.instruction is self.kernel.instructions[position]:
            self._put(state.lifted(), self._at(state, self.tiles[state], self._place()))

    def _place(self) -> str:
        """The index of the current element in a tile."""
        if self._lanes_inside:
            return self.e.assign(f"sub i64 {self.lane_index}, {self.first}")
        return self._of_lane(self.e.assign(f"sub i64 {self.sweep_count}, {self.first}"))

    def _of_lane(self, turn: str) -> str:
        return self.e.assign(f"add i64 {self.e.assign(f'mul i64 {turn}, {self.lanes}')}, {self.lane_of_block}")

    def _fold(self, count: str) -> None:
        """Join the elements of a tile that this thread folds with its state, in order: that of its lane for each turn,
        or, in a row, every sixteenth lane."""

        def join(indices: Sequence[str], whole: bool) -> None:
            for state, tile in self.tiles.items():
                places = indices if self._lanes_inside else [self._of_lane(index) for index in indices]
                taken = [self._taken(state, self._at(state, tile, place)) for place in places]
                quick = quick_of(state.instruction, self.kernel)
                if quick is not None and len(taken) > 1:
                    fold_quickly(self.e, state, quick, taken)
                    continue
                for one in taken:
                    state.write(state.reducer.merge(state.L, state.read(), one))

        if self._lanes_inside:
            self._in_turns(self.thread, count, self.lanes, FOLDED_TOGETHER, join)
        else:
            self._in_turns("0", count, 1, FOLDED_TOGETHER, join)

    def _exchange(self, states: Sequence[Accumulator]) -> None:
        """Give the total of a lane, or of the row, to all its threads."""
        results = self._places(states, self.result_memory, self.lanes)
        place = "0" if self._lanes_inside else self.lane_of_block
        own = {state: self._at(state, places, place) for state, places in results.items()}
        with self.e.when(self.folds):
            for state, places in own.items():
                total = state.read()
                if not self._lanes_inside:
                    self._put(total, places)
                    continue
                total = self.team.folded(total, state.reducer.merge)
                with self.e.when(self.leads):
                    self._put(total, places)
        self._synchronize()
        for state, places in own.items():
            state.write(self._taken(state, places))

    def _result(self, state: Accumulator | OrderedFold, instruction: Instruction) -> Any:
        assert isinstance(state, Accumulator)
        return state.finished(state.L, state.read(), instruction)

    def _places(self, states: Sequence[Accumulator], memory: str, count: int) -> dict[Accumulator, list[str]]:
        """For each state, pointers to room for ``count`` totals, one pointer for each part. The largest parts come
        first, so that all are aligned."""
        parts = [
            (register_bytes(dtype), state, part) for state in states for part, (dtype, _) in enumerate(state.identity)
        ]
        places = {state: [""] * len(state.identity) for state in states}
        for bytes_, state, part in sorted(parts, key=itemgetter(0), reverse=True):
            places[state][part] = memory
            memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {bytes_ * count}")
        return places

    def _at(self, state: Accumulator, places: Sequence[str], index: str) -> list[str]:
        """Pointers to element ``index`` of each part."""
        types = [REGISTER_TYPES[dtype] for dtype, _ in state.identity]
        return [
            self.e.assign(f"getelementptr {type_}, ptr {place}, i64 {index}")
            for type_, place in zip(types, places, strict=True)
        ]

    def _put(self, parts: Sequence[Value], places: Sequence[str]) -> None:
        for part, place in zip(parts, places, strict=True):
            self.e.store(REGISTER_TYPES[part.dtype], part.name, place)

    def _taken(self, state: Accumulator, places: Sequence[str]) -> tuple[Value, ...]:
        dtypes = [dtype for dtype, _ in state.identity]
        loaded = [self.e.load(REGISTER_TYPES[dtype], place) for dtype, place in zip(dtypes, places, strict=True)]
        return tuple([Value(state.L, name, dtype) for name, dtype in zip(loaded, dtypes, strict=True)])

    def _synchronize(self) -> None:
        synchronize_block(self.e)
        self.read_since = False

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        self.read_since = True
        return super()._load(position, instruction, location, L)

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that is not of a single element is stored by the thread that leads its lane or row, after all threads
        have read."""
        if instruction.level is Level.SWEEP and (instruction.varying or self._lanes_inside):
            super()._store(position, instruction)
            return
        condition = "true" if instruction.varying else self.e.assign(f"icmp eq i64 {self.lane_index}, 0")
        if self._lanes_inside:
            condition = "true"
        if instruction.level is not Level.SWEEP:
            if self.read_since:
                self._synchronize()
            condition = self.e.assign(f"and i1 {condition}, {self.leads}")
        with self.e.when(condition):
            super()._store(position, instruction)
