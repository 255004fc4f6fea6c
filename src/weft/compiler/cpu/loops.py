"""Loops and vectors of a CPU around the scalar code of a kernel.

The generated function is ``void kernel(ptr numbers, ptr table, i64 begin, i64 end)``. `number_layout` says what the
64-bit ``numbers`` are; ``table`` holds the addresses of buffers and the scalars of the call. The units from ``begin``
up to ``end`` are done. A unit is a row (a block of rows of a tiled kernel) or, if lanes are parallel, a block of its
lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.compiler.codegen.accumulator import Accumulator, Running
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, element_pointer
from weft.compiler.codegen.nest import Reductions, folded_in_parts
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, module_of
from weft.compiler.cpu.kinds import needed_for_index
from weft.compiler.cpu.memory import READ_LATER, READ_SOON, WRITE_SOON, prefetch
from weft.compiler.cpu.piece_functions import pieces_in_order
from weft.compiler.cpu.schedule import (
    SWEEP_OUTER_BLOCK,
    SWEEP_OUTER_ROWS,
    CpuSchedule,
    Walk,
)
from weft.compiler.cpu.sweep_squares import SweepLoops
from weft.compiler.kernel import SWEEP_PART, Instruction, Kernel
from weft.compiler.passes import SHORT_ROW, Pass
from weft.dtypes import Dtype

LINE = 64
"""Bytes of a cache line."""

BYTES_AHEAD = 4096
"""How far ahead memory is prefetched that rows are folded from."""

MOST_IN_PAIRS = 8
"""Parts of a sweep are folded two at a time if it has at most this many instructions, as these are written twice."""


def generate(kernel: Kernel, schedule: CpuSchedule, name: str) -> str:
    """The LLVM IR of a kernel as a module with one function for the step."""
    if schedule.walk is Walk.PIECES:
        return pieces_in_order(kernel, schedule, name)
    return _Generator(kernel, schedule).function(name)


VECTORS_AT_ONCE, MOST_AT_ONCE = 4, 8
"""How many vectors of a row are folded at once, if elements may be grouped in any way, and how many instructions may
compute the elements."""


MOST_REPEATED = 4
"""How many values of a row are repeated in all lanes of registers before a loop over its lanes, at most."""


class _Generator(SweepLoops):
    """``ahead`` are the loads whose next row is prefetched, with their distances from row to row."""

    def __init__(self, kernel: Kernel, schedule: CpuSchedule) -> None:
        super().__init__(kernel, schedule)
        self.together = {number: together for together in schedule.columns for number, _ in together.members}
        self.alike = dict(schedule.alike)
        self.sweep_outer = schedule.walk.sweeps_outside
        self.saved: dict[int, str] = {}
        self.ahead: dict[int, str] = {}
        self.repeated: dict[str, Value] = {}
        self.rows_at_once = SWEEP_OUTER_ROWS if schedule.walk is Walk.SWEEP_OUTER else 1
        self.states: list[Running] = []
        self.first_offsets: dict[int, str] = {}
        """The offsets of all accesses in the first row."""
        self.first_lane = self.last_lane = "0"

    def streams(self, position: int) -> bool:
        return position in self.schedule.streamed

    def near(self, position: int) -> int:
        return dict(self.schedule.near).get(position, 0)

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        if position in self.ahead and not location.scattered:
            short_ahead = position in self.schedule.from_memory
            self._prefetch(location, instruction.dtype, self.ahead[position], short_ahead)
        elif position in self.schedule.from_memory:
            index = self.e.assign(f"add i64 {location.index}, {BYTES_AHEAD // instruction.dtype.size}")
            pointer = f"getelementptr {MEMORY_TYPES[instruction.dtype]}, ptr {location.base}, i64 {index}"
            prefetch(self.e, self.e.assign(pointer), READ_SOON)
        return super()._load(position, instruction, location, L)

    def function(self, name: str) -> str:
        self._begin()
        if self.schedule.single or (self.kernel.lane == "reduced" and not self.kernel.ragged):
            self._count_lanes()
        if self.schedule.walk is Walk.TILED:
            with self.e.loop("%begin", "%end") as unit:
                self._unit_of_tiles(unit)
        elif self.sweep_outer:
            self._rows(self._sweep_parts)
        else:
            self._rows(self._row)
        if self.schedule.streamed:
            self.e.emit("fence seq_cst")  # streamed stores become visible before this thread reports that it is done
        functions = [*self._tile_functions(), (self.e, self.e.function(name, STEP))]
        return module_of(functions)

    def _prepare(self, position: int) -> None:
        super()._prepare(position)
        below = (position, "sweep", self.kernel.sweeps - 1)
        reads = self.kernel.instructions[position].operation == "load"
        if reads and self.sweep_outer and self.rows_at_once == 1 and below in self.layout:
            self.ahead[position] = self.number(*below)

    def _unit_of_tiles(self, unit: str) -> None:
        blocks = self.number("blocks")
        row, block = self.e.assign(f"udiv i64 {unit}, {blocks}"), self.e.assign(f"urem i64 {unit}, {blocks}")
        with self._scope():
            self._tile(row, block)

    def _rows(self, body: Callable[[str, str], None]) -> None:
        """Enter the rows of all units in order. The last axis has a loop of its own: divisions, which give the indices
        of the others, would take as long as short rows do. ``body`` is called with the range of the lanes to do."""
        e, axes = self.e, self.kernel.rows
        self.first_offsets = dict(self.offsets)
        first, last = "%begin", "%end"
        if self._has_blocks:
            blocks = self.number("blocks")
            behind = e.assign(f"add i64 {e.assign('sub i64 %end, 1')}, {blocks}")
            first, last = [e.assign(f"udiv i64 {unit}, {blocks}") for unit in ("%begin", behind)]
        if axes < 2:
            with e.loop(first, last) as row, self._scope():
                self._enter_row(row, row, last, body)
            return
        extent = self.number("row", axes - 1)
        behind = e.assign(f"add i64 {e.assign(f'sub i64 {last}, 1')}, {extent}")
        outer, end = [e.assign(f"udiv i64 {row}, {extent}") for row in (first, behind)]
        with e.loop(outer, end) as number, self._scope():
            self._enter_rows(number, axes - 1)
            before = e.assign(f"mul i64 {number}, {extent}")
            start = self._larger(e.assign(f"sub i64 {first}, {before}"), "0")
            stop = self._smaller(e.assign(f"sub i64 {last}, {before}"), extent)
            with e.loop(start, stop) as index, self._scope():
                self._enter_row(e.assign(f"add i64 {before}, {index}"), index, last, body)

    def _enter_row(self, row: str, index: str, end: str, body: Callable[[str, str], None]) -> None:
        """Enter a row by its ``index`` along the last axis, where the other axes are entered already."""
        if not self.kernel.sweeps:
            self._ask_ahead_of_row(row, end)
        if self.kernel.rows:
            self._enter_axis(self.kernel.rows - 1, index)
        self._emit_row_values()
        body(*self._lanes_of_row(row))

    @property
    def _has_blocks(self) -> bool:
        """Whether a unit may be a block of the lanes of a row."""
        return self.kernel.lane == "parallel" and not self.schedule.single

    def _lanes_of_row(self, row: str) -> tuple[str, str]:
        """The range of those lanes of a row that are in the units to do. Neighbouring units of a row are done together,
        so that long ranges of memory are read in order."""
        if not self._has_blocks:
            return "0", self._lane_extent
        before = self.e.assign(f"mul i64 {row}, {self.number('blocks')}")
        first = self._larger(self.e.assign(f"sub i64 %begin, {before}"), "0")
        start, end = [
            self.e.assign(f"mul i64 {block}, {self.number('block')}")
            for block in (first, self.e.assign(f"sub i64 %end, {before}"))
        ]
        return start, self._smaller(end, self.number("lane"))

    def _row(self, start: str, stop: str) -> None:
        if self.kernel.lane == "parallel":
            self._lanes(start, stop, self._body)
        else:
            self._body()

    def _sweep_parts(self, start: str, stop: str) -> None:
        with self.e.loop(start, stop, SWEEP_OUTER_BLOCK) as lane, self._scope():
            self._sweep_outer(lane, self._smaller(self.e.assign(f"add i64 {lane}, {SWEEP_OUTER_BLOCK}"), stop))

    def _ask_ahead_of_row(self, row: str, end: str) -> None:
        """Prefetch what loads at computed locations read in one of the next rows."""
        for position in self.schedule.awaited:
            access = self.kernel.instructions[position].access
            assert access is not None
            with self._scope():
                self.offsets = dict(self.first_offsets)
                self._enter_rows(self._later(row, end), self.kernel.rows)
                self._emit_index(position)
                with self.e.loop("0", self.number("lane"), LINE // access.dtype.size) as self.lane_index:
                    self._ask(position, READ_LATER)

    def _ask_ahead_of_sweep(self, count: str, extent: str) -> None:
        """Prefetch what stores at computed locations write in one of the next turns of the last sweep."""
        for position in self.schedule.awaited:
            with self._scope():
                every = range(len(self.kernel.instructions))
                self._advance("sweep", self.kernel.sweeps - 1, self._later(count, extent), every)
                self._emit_index(position)
                self._ask(position, WRITE_SOON)

    def _prefetch(self, location: Location, dtype: Dtype, stride: str, short_ahead: bool) -> None:
        """Prefetch the same lanes of the next row.

        If the sweep goes over a part of each row, the processor does not foresee where the next one begins. Otherwise
        it does, unless it reads ``short_ahead``, and a prefetch would only take time: then the address is that of the
        numbers, which are in the cache anyway. Parts of rows would not stay in the first cache until they are read.
        """
        in_parts = self.e.assign(f"icmp sgt i64 {self.number('lane')}, {self.number('block')}")
        index = self.e.assign(f"add i64 {location.index}, {stride}")
        pointer = self.e.assign(f"getelementptr {MEMORY_TYPES[dtype]}, ptr {location.base}, i64 {index}")
        prefetch(self.e, self.e.assign(f"select i1 {in_parts}, ptr {pointer}, ptr %numbers"))
        if short_ahead:
            prefetch(self.e, self.e.assign(f"select i1 {in_parts}, ptr %numbers, ptr {pointer}"), READ_SOON)

    def _emit_index(self, position: int) -> None:
        """Compute the values from which the location of an access is computed."""
        for number in needed_for_index(self.kernel, position):
            if number not in self.values:
                self.values[number] = self._instruction(number, self.kernel.instructions[number])

    def _ask(self, position: int, purpose: str) -> None:
        """Prefetch the location of an access."""
        instruction = self.kernel.instructions[position]
        assert instruction.access is not None
        location = self._location(position, instruction, self.scalar)
        element = MEMORY_TYPES[instruction.access.dtype]
        prefetch(self.e, element_pointer(self.scalar, location, element), purpose)

    def _later(self, index: str, end: str) -> str:
        """The index to prefetch for: as far ahead as the schedule says, at most the last one."""
        last = self.e.assign(f"sub i64 {end}, 1")
        return self._smaller(self.e.assign(f"add i64 {index}, {self.number('ahead')}"), last)

    def _make_room(self, current: Pass) -> None:
        for position in current.saved:
            lanes = self.vector.type_of(self.kernel.instructions[position].dtype)
            self.saved[position] = self.e.slot(f"[{SHORT_ROW // self.width} x {lanes}]")

    def _save(self, position: int, instruction: Instruction) -> None:
        type_, pointer = self._saved_location(position)
        self.e.store(type_, self.values[position].name, pointer)

    def _recall(self, position: int, instruction: Instruction) -> Any:
        type_, pointer = self._saved_location(position)
        return Value(self.vector, self.e.load(type_, pointer), instruction.dtype)

    def _saved_location(self, position: int) -> tuple[str, str]:
        """Type and address of the saved value of an instruction for the current lanes."""
        lanes = self.vector.type_of(self.kernel.instructions[position].dtype)
        number = self.e.assign(f"udiv i64 {self.lane_index}, {self.width}")
        return lanes, self.e.assign(f"getelementptr {lanes}, ptr {self.saved[position]}, i64 {number}")

    def _sweep_outer(self, start: str, stop: str) -> None:
        """Lanes ``start`` to ``stop``, with the loop over lanes inside the sweeps. The states of all these lanes are in
        memory."""
        current = self.passes[0]
        vectors = SWEEP_OUTER_BLOCK // self.width
        reductions = self._accumulators(current, vectors)
        self.scans = self._prefixes(current, vectors)
        self.states = list(dict.fromkeys((*reductions.values(), *self.scans.values())))
        totals = [state.totals for state in self.states if isinstance(state, Accumulator) and state.in_parts]
        self.first_lane, self.last_lane = start, stop

        def begin() -> None:
            for state in (*self.states, *totals):
                state.begin()
                state.save()

        def finish() -> None:
            for state in (*self.states, *totals):
                state.recall()
            for position, accumulator in reductions.items():
                self.values[position] = accumulator.result(self.kernel.instructions[position])
            for later in self.passes:
                self._emit_where(lambda i, stage=later.stage: self._is_between(i, stage))

        self._lanes(start, stop, begin)
        with self._scope():
            self._open_sweep(1, current, reductions)
        self._lanes(start, stop, finish)

    @property
    def _lanes_inside(self) -> bool:
        return super()._lanes_inside or self.sweep_outer

    def _open_sweep(self, depth: int, current: Pass, reductions: Reductions) -> None:
        if depth == self.kernel.sweeps and self.rows_at_once > 1:
            self._sweep_by_vector(self._sweep_extent(depth), current, reductions)
        elif self.in_parts and not self.schedule.swept and self._only_folds(current, reductions):
            self._parts_in_pairs(depth, current, reductions)
        else:
            super()._open_sweep(depth, current, reductions)

    def _only_folds(self, current: Pass, reductions: Reductions) -> bool:
        """Whether a pass does little but fold parts, with no loop over lanes inside."""
        if self._lanes_inside:
            return False
        by_parts = folded_in_parts(reductions)
        return all(reductions.get(root) in by_parts for root in current.roots) and len(current.needed) <= MOST_IN_PAIRS

    def _parts_in_pairs(self, depth: int, current: Pass, reductions: Reductions) -> None:
        """The only sweep, two parts at a time, because additions of the two do not wait for each other."""
        e, extent, others = self.e, self._sweep_extent(depth), self._accumulators(current)
        pairs = list(zip(folded_in_parts(reductions), folded_in_parts(others), strict=True))

        def turn(index: str, states: Reductions) -> None:
            with self._scope():
                self._enter_sweep(depth, index, extent, current)
                self._accumulate(current, states)

        def turns(start: str, stop: str) -> None:
            with e.loop(start, stop) as index:
                turn(index, reductions)

        whole = e.assign(f"mul i64 {e.assign(f'sdiv i64 {extent}, {2 * SWEEP_PART}')}, {2 * SWEEP_PART}")
        with e.loop("0", whole, 2 * SWEEP_PART) as first:
            with e.loop(first, e.assign(f"add i64 {first}, {SWEEP_PART}")) as index:
                turn(index, reductions)
                turn(e.assign(f"add i64 {index}, {SWEEP_PART}"), others)
            for state, other in pairs:
                state.end_part()
                other.end_part(state)
        self._by_parts(reductions, whole, extent, turns)

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        if self.sweep_outer:
            self._lanes(self.first_lane, self.last_lane, lambda: self._accumulate_saved(current, reductions))
        else:
            self._by_chunks(reductions, lambda start, stop: self._row_lanes(start, stop, current, reductions))

    def _sweep(self, current: Pass) -> None:
        if self.kernel.lane == "reduced":
            self._repeat_values(current)
        super()._sweep(current)

    def _repeat_values(self, current: Pass) -> None:
        """Repeat values of the row that a pass needs in all lanes. LLVM would do so again for each vector."""
        varying = [i for i in map(self.kernel.instructions.__getitem__, current.computed) if i.varying]
        inputs = dict.fromkeys([value for i in varying for value in i.inputs if value in self.values])
        found = [self.values[value] for value in inputs]
        scalars = [one for one in found if isinstance(one, Value) and one.lanes.width == 1 and one.name.startswith("%")]
        for one in scalars[:MOST_REPEATED]:
            if one.name not in self.repeated:
                self.repeated[one.name] = self.vector.splat(one)

    def fitted(self, value: Any, L: Lanes) -> Any:
        if L is self.vector and isinstance(value, Value) and value.name in self.repeated:
            return Value(L, self.repeated[value.name].name, value.dtype)  # float32 that holds a half has its register
        return super().fitted(value, L)

    def _row_lanes(self, start: str, stop: str, current: Pass, reductions: Reductions) -> None:
        """Fold and store the lanes ``start`` to ``stop`` of a row."""
        if self._scatters_lanes:
            self._scatter(start, stop, lambda: self._accumulate(current, reductions))
            return
        if not self.schedule.single and self._regroups(current, reductions):
            size = VECTORS_AT_ONCE * self.width
            whole = self.e.assign(f"and i64 {self.e.assign(f'sub i64 {stop}, {start}')}, {-size}")
            end = self.e.assign(f"add i64 {start}, {whole}")
            with self.e.loop(start, end, size) as index, self._scope():
                self._fold_at_once(index, current, reductions)
            start = end
        self._lanes(start, stop, lambda: self._accumulate(current, reductions))

    def _regroups(self, current: Pass, reductions: Reductions) -> bool:
        """Whether a pass only folds few instructions, in any grouping."""
        if self.kernel.lane != "reduced" or not all(root in reductions for root in current.roots):
            return False
        if current.saved or current.recalled or current.backwards or len(current.needed) > MOST_AT_ONCE:
            return False
        states = reductions.values()
        return all(isinstance(state, Accumulator) and not state.depends_on_order for state in states)

    def _fold_at_once(self, start: str, current: Pass, reductions: Reductions) -> None:
        """Fold several vectors with each other, then with the states: so a merge with a state, which waits for the one
        before, is needed only once."""
        states = [state for state in dict.fromkeys(reductions.values()) if isinstance(state, Accumulator)]
        lifted: list[list[Any]] = []
        for vector in range(VECTORS_AT_ONCE):
            with self._scope():
                self.lane_index = self.e.assign(f"add i64 {start}, {vector * self.width}")
                for position in current.needed:
                    if position not in reductions and position not in self.values:
                        self.values[position] = self._instruction(position, self.kernel.instructions[position])
                lifted.append([state.lifted() for state in states])
        for state, parts in zip(states, zip(*lifted, strict=True), strict=True):
            joined = list(parts)
            while len(joined) > 1:
                pairs = zip(joined[::2], joined[1::2], strict=True)
                joined = [state.reducer.later(self.vector, *pair) for pair in pairs]
            state.write(state.reducer.later(state.L, state.read(), joined[0]))

    def _sweep_by_vector(self, extent: str, current: Pass, reductions: Reductions) -> None:
        """The last sweep axis, some rows at a time: each vector of lanes goes through all of these rows, so that its
        state is in registers meanwhile."""

        def rows(start: str, stop: str) -> None:
            for state in self.states:
                state.recall()
            with self.e.loop(start, stop) as count, self._scope():
                self._enter_sweep(self.kernel.sweeps, count, extent, current)
                self._accumulate(current, reductions)
            for state in self.states:
                state.save()

        def turns(first: str, end: str) -> None:
            with self.e.loop(first, end, self.rows_at_once) as start:
                stop = self._smaller(self.e.assign(f"add i64 {start}, {self.rows_at_once}"), end)
                self._lanes(self.first_lane, self.last_lane, partial(rows, start, stop))

        self._by_parts(reductions, "0", extent, turns)

    def _end_part(self, states: Sequence[Accumulator]) -> None:
        if not self.sweep_outer:
            super()._end_part(states)
            return

        def end() -> None:
            for state in states:
                for one in (state, state.totals):
                    one.recall()
                state.end_part()
                for one in (state, state.totals):
                    one.save()

        self._lanes(self.first_lane, self.last_lane, end)

    def _accumulate_saved(self, current: Pass, reductions: Reductions) -> None:
        for state in self.states:
            state.recall()
        self._accumulate(current, reductions)
        for state in self.states:
            state.save()
