"""Kernels that only fold long rows: four threads do a chunk, and each reads four lanes at once.

Each of the four threads has four of the sixteen lanes of a chunk. The totals of chunks are written to shared memory,
where teams of sixteen threads fold them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.accumulator import Accumulator, Running
from weft.compiler.codegen.crossing import Merge
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import Location
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.nests import ThreadWriter
from weft.compiler.cuda.row_values import is_ahead, register_bytes
from weft.compiler.cuda.schedule import FOLDS_TOGETHER, WIDEST_ACCESS, CudaSchedule
from weft.compiler.cuda.threads import Team, Threads, synchronize_block
from weft.compiler.kernel import CHUNK, VIRTUAL_LANES, Instruction, Kernel
from weft.compiler.passes import Pass

TOTALS_TOGETHER = 8
"""How many totals a thread reads from shared memory before it joins them."""


class FoldsWriter(ThreadWriter):
    """Writes a kernel in which each block does a row."""

    most_together = FOLDS_TOGETHER

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, schedule.lanes)
        self.aligned = False
        self.totals: dict[Accumulator | OrderedFold, Running] = {}
        """For each state, the total of the chunks that were joined so far."""

    def folds_chunks(self, instruction: Instruction) -> bool:
        """Always false, because totals are joined here, not one after the other."""
        return False

    def _begin_threads(self) -> None:
        self.few = Threads(self.e, self.thread, VIRTUAL_LANES // self.width)
        self.team = Team(self.scalar, self.scalar, self.thread)
        self.first_chunk = self.e.assign(f"udiv i64 {self.thread}, {self.few.count}")
        self.leads = self.e.assign(f"icmp eq i64 {self.thread}, 0")

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        e, extent = self.e, self._lane_extent
        states = [state for state in dict.fromkeys(reductions.values()) if isinstance(state, Accumulator)]
        chunks = e.assign(f"udiv i64 {e.assign(f'add i64 {extent}, {CHUNK - 1}')}, {CHUNK}")
        memory = {state: self._memory(state) for state in states}
        self.totals = {state: Running(self, state.instruction, self.scalar) for state in states}
        aligned = self._all_aligned()
        with e.loop(self.first_chunk, chunks, self.schedule.threads // self.few.count) as chunk, self._scope():
            self._fold_chunk(chunk, aligned, current, reductions)
            for state in states:
                total = self._folded(state.read(), state.reducer.merge)
                with e.when(self.few.leads):
                    for part, pointer in zip(total, memory[state], strict=True):
                        e.store(REGISTER_TYPES[part.dtype], part.name, self._element(pointer, chunk, part))
                state.begin()
        synchronize_block(e)
        self._join_totals(chunks, memory)
        synchronize_block(e)  # before totals are overwritten

    def _fold_chunk(self, chunk: str, aligned: str, current: Pass, reductions: Reductions) -> None:
        e = self.e
        first = e.assign(f"mul i64 {chunk}, {CHUNK}")
        stop = self._smaller(e.assign(f"add i64 {first}, {CHUNK}"), self._lane_extent)
        length = e.assign(f"sub i64 {stop}, {first}")
        whole = e.assign(f"add i64 {first}, {e.assign(f'and i64 {length}, {-VIRTUAL_LANES}')}")
        own = e.assign(f"mul i64 {self.few.number}, {self.width}")
        start = e.assign(f"add i64 {first}, {own}")
        for self.aligned, condition in ((True, aligned), (False, e.assign(f"xor i1 {aligned}, true"))):
            with e.when(condition), self._scope():
                self._by_turns(start, whole, VIRTUAL_LANES, self._at_lanes, current, reductions)
        self.aligned = False
        with e.when(e.assign(f"icmp slt i64 {whole}, {stop}")), self._scope():
            self.lane_index = e.assign(f"add i64 {whole}, {own}")
            self.mask = self._lanes_before(stop)
            self._accumulate(current, reductions)
        self.mask = None

    def _at_lanes(self, index: str, whole: bool) -> None:
        """Select the lanes of this thread, all of which exist."""
        self.lane_index = index

    def _all_aligned(self) -> str:
        """Whether the lanes of this thread are aligned in memory, in all loads."""
        e, holds = self.e, "true"
        for position, instruction in enumerate(self.kernel.instructions):
            if is_ahead(instruction):
                begin = e.assign(f"mul i64 {self.offsets[position]}, {instruction.dtype.size}")
                address = e.assign(f"add i64 {e.assign(f'ptrtoint ptr {self.bases[position]} to i64')}, {begin}")
                rest = e.assign(f"and i64 {address}, {self._access_bytes(instruction) - 1}")
                holds = e.assign(f"and i1 {holds}, {e.assign(f'icmp eq i64 {rest}, 0')}")
        return holds

    def _access_bytes(self, instruction: Instruction) -> int:
        return min(instruction.dtype.size * self.width, WIDEST_ACCESS)

    def _location(self, position: int, instruction: Instruction, L: Lanes) -> Location:
        location = super()._location(position, instruction, L)
        if self.aligned and is_ahead(instruction):
            location.alignment = self._access_bytes(instruction)
        return location

    def _memory(self, state: Accumulator) -> list[str]:
        """Pointers to shared memory for the totals of all chunks, one pointer for each part of a state."""
        pointers = []
        for dtype, _ in state.identity:
            name, size = f"@weft.{self.e.fresh('totals')}", self.schedule.chunks * register_bytes(dtype)
            self.e.declarations[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
            pointers.append(self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr"))
        return pointers

    def _element(self, pointer: str, index: str, like: Value) -> str:
        return self.e.assign(f"getelementptr {REGISTER_TYPES[like.dtype]}, ptr {pointer}, i64 {index}")

    def _folded(self, values: tuple[Value, ...], merge: Merge) -> tuple[Value, ...]:
        """The fold of all lanes of a chunk, in its first thread: the upper half is merged with the lower until one is
        left."""
        distance = self.few.count // 2
        number = self.e.assign(f"trunc i64 {self.few.number} to i32")
        while distance:
            source = self.e.assign(f"and i32 {self.e.assign(f'add i32 {number}, {distance}')}, {self.few.count - 1}")
            values = merge(self.vector, values, tuple([self._of_thread(value, source) for value in values]))
            distance //= 2
        distance = self.width // 2
        while distance:
            values = merge(self.vector, values, tuple([self._turned(value, distance) for value in values]))
            distance //= 2
        return tuple([Value(self.scalar, self._lane(value, 0), value.dtype) for value in values])

    def _lane(self, value: Value, number: int) -> str:
        return self.e.assign(f"extractelement {self.vector.type_of(value.dtype)} {value.name}, i32 {number}")

    def _of_lanes(self, lanes: Sequence[str], like: Value) -> Value:
        """A value of several lanes from their registers."""
        name, type_ = "poison", self.vector.type_of(like.dtype)
        for number, lane in enumerate(lanes):
            name = self.e.assign(f"insertelement {type_} {name}, {REGISTER_TYPES[like.dtype]} {lane}, i32 {number}")
        return Value(self.vector, name, like.dtype)

    def _of_thread(self, value: Value, source: str) -> Value:
        """The lanes that another thread has."""
        type_ = REGISTER_TYPES[value.dtype]
        lanes = [self.few.taken(self._lane(value, number), type_, source) for number in range(self.width)]
        return self._of_lanes(lanes, value)

    def _turned(self, value: Value, distance: int) -> Value:
        """Lanes rotated by ``distance`` towards the front."""
        return self._of_lanes([self._lane(value, (n + distance) % self.width) for n in range(self.width)], value)

    def _join_totals(self, chunks: str, memory: dict[Accumulator, list[str]]) -> None:
        """Each thread of a team joins every sixteenth total, in order."""

        def join(indices: Sequence[str], whole: bool) -> None:
            for state, pointers in memory.items():
                totals, taken = self.totals[state], []
                for index in indices:
                    parts = list(zip(pointers, totals.read(), strict=True))
                    names = [
                        self.e.load(REGISTER_TYPES[x.dtype], self._element(pointer, index, x)) for pointer, x in parts
                    ]
                    taken.append(
                        tuple([Value(self.scalar, n, x.dtype) for n, (_, x) in zip(names, parts, strict=True)])
                    )
                for one in taken:
                    totals.write(state.reducer.merge(self.scalar, totals.read(), one))

        self._in_turns(self.team.number, chunks, self.team.count, TOTALS_TOGETHER, join)

    def _result(self, state: Accumulator | OrderedFold, instruction: Instruction) -> object:
        values = self.team.folded(self.totals[state].read(), state.reducer.merge)
        return state.finished(self.scalar, values, instruction)

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that a row has only one of is stored by the first thread, after all threads have read what it
        overwrites."""
        synchronize_block(self.e)
        with self.e.when(self.leads):
            super()._store(position, instruction)
