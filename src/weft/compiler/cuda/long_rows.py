"""Kernels in which each row is done by a block.

Teams of sixteen threads take the chunks of a row in turn, and fold each one. The totals of chunks are written to shared
memory. There each team folds all of them, so that all threads have the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, element_pointer
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.row_values import folding_passes, register_bytes, saved_row
from weft.compiler.cuda.saving import LOADED_TOGETHER, SavingWriter
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.cuda.threads import WIDEST_COPY, Team, synchronize_block
from weft.compiler.kernel import CHUNK, Instruction, Kernel
from weft.compiler.passes import Pass
from weft.dtypes import Dtype

TOTALS = "@weft.totals"

TOTALS_TOGETHER = 8
"""How many totals a thread reads from shared memory before it joins them."""

_Pointers = dict[Accumulator, list[str]]
"""Pointers to the totals of states, one for each part."""


class LongRowsWriter(SavingWriter):
    """Writes such a kernel. A thread has the same lanes in each pass."""

    team: Team
    divides_quickly = True

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        self.totals_bytes = 0
        self.read_since = False
        """Whether threads have read memory since they last waited for each other."""
        self.folds_once = len(folding_passes(kernel, self.passes)) == 1
        self.copies_later = False
        """Whether copies to shared memory are still to begin."""
        self.saved_before = "0"
        """The number that is added to a lane to get its index among the saved ones."""

    def folds_chunks(self, instruction: Instruction) -> bool:
        """Always true, so that the threads of a row need nothing from each other before its end."""
        return True

    def _begin_threads(self) -> None:
        e = self.e
        self.team = self.crossing = Team(self.vector, self.scalar, self.thread, self.schedule.turns > 0)
        self.first_chunk = e.assign(f"udiv i64 {self.thread}, {self.team.count}")
        self.leads = e.assign(f"icmp eq i64 {self.thread}, 0")

    def _synchronize(self) -> None:
        """Wait for all threads of the row, and see what they wrote to memory."""
        synchronize_block(self.e)
        self.read_since = False

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        self.read_since = True
        return super()._load(position, instruction, location, L)

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        states = [state for state in dict.fromkeys(reductions.values()) if isinstance(state, Accumulator)]
        count = self.team.count
        chunks = self._chunk_count()
        pointers = self._pointers_of_totals(states)
        self._fetch(current)
        if states and not self.schedule.turns:
            self._begin_totals(chunks, states)
        with self._chunks(chunks) as chunk:
            start, stop = self._enter_chunk(chunk)
            if self.schedule.turns:
                self._unrolled(start, current, reductions)
                if states:
                    self._begin_totals(chunks, states)
            else:
                self._by_turns(start, stop, count, self._at_lane, current, reductions)
            for state in states:
                self._put(self.team.folded(state.read(), state.reducer.merge), pointers[state], chunk)
                state.begin()
        if states:
            self._wait_for_totals()
            self._join_totals(chunks, pointers)
            self._end_totals()

    def _begin_totals(self, chunks: str, states: Sequence[Accumulator]) -> None:
        """Prepare for the totals of a pass, before any of them is stored."""

    def _wait_for_totals(self) -> None:
        """Wait until the totals of all chunks are in shared memory."""
        self._synchronize()

    def _end_totals(self) -> None:
        """Release the memory of the totals, after this thread has read them. Each pass has its own memory for
        totals."""
        if self.folds_once:
            self._synchronize()  # before totals of the next row are written

    @contextmanager
    def _chunks(self, count: str) -> Iterator[str]:
        """The chunks of this team, one by one; a single one if a thread has all its elements at once."""
        if self.schedule.turns:
            yield self.first_chunk
            return
        step = self.schedule.cluster * (self.schedule.threads // self.team.count)
        with self.e.loop(self.first_chunk, count, step) as chunk, self._scope():
            yield chunk

    def _enter_chunk(self, chunk: str) -> tuple[str, str]:
        """The first lane of this thread in a chunk, and the end of the chunk."""
        e = self.e
        first = e.assign(f"mul i64 {chunk}, {CHUNK}")
        saved = e.assign(f"mul i64 {e.assign(f'udiv i64 {chunk}, {self.schedule.cluster}')}, {saved_row(CHUNK)}")
        self.saved_before = e.assign(f"sub i64 {saved}, {first}")
        stop = self._smaller(e.assign(f"add i64 {first}, {CHUNK}"), self._lane_extent)
        return e.assign(f"add i64 {first}, {self.team.number}"), stop

    def _chunk_count(self) -> str:
        """How many chunks the row has."""
        e = self.e
        return e.assign(f"udiv i64 {e.assign(f'add i64 {self._lane_extent}, {CHUNK - 1}')}, {CHUNK}")

    def _walk(self, do: Callable[[], None]) -> None:
        def body(indices: Sequence[str], whole: bool) -> None:
            for index in indices:
                self.lane_index = index
                do()

        with self._chunks(self._chunk_count()) as chunk:
            start, stop = self._enter_chunk(chunk)
            if self.schedule.turns:
                self._at_all_turns(start, do)
                return
            self._in_turns(start, stop, self.team.count, LOADED_TOGETHER, body)

    def _fetch(self, current: Pass) -> None:
        """If threads have all their elements at once, copies begin after the loads of the first pass, which needs
        these soon: memory answers in order."""
        self.copies_later = self.schedule.turns > 0 and current is self.passes[0]
        if not self.copies_later:
            super()._fetch(current)

    def _after_loads(self) -> None:
        if self.copies_later:
            self.copies_later = False
            self._begin_copies_of_row()

    def _copy_array(self, number: int) -> None:
        """Begin to copy what an instruction loads: the chunk of each team 16 bytes at once, if its threads have all
        their elements at once and the chunk is aligned. So they copy elements that others of the team read."""
        if not self.schedule.turns:
            super()._copy_array(number)
            return
        e, instruction = self.e, self.kernel.instructions[number]
        self.team.synchronize()  # others may still read what was copied for another row
        start, _ = self._enter_chunk(self.first_chunk)
        first = self.lane_index = e.assign(f"sub i64 {start}, {self.team.number}")
        location = self._location(number, instruction, self.vector)
        source = element_pointer(self.vector, location, MEMORY_TYPES[instruction.dtype])
        rest = e.assign(f"and i64 {e.assign(f'ptrtoint ptr {source} to i64')}, {WIDEST_COPY - 1}")
        aligned = e.assign(f"icmp eq i64 {rest}, 0")
        for size, condition in ((WIDEST_COPY, aligned), (instruction.dtype.size, e.assign(f"xor i1 {aligned}, true"))):
            lanes = size // instruction.dtype.size
            with e.when(condition):
                own = e.assign(f"add i64 {first}, {e.assign(f'mul i64 {self.team.number}, {lanes}')}")
                for turn in range(self.schedule.turns // lanes):
                    self.lane_index = e.assign(f"add i64 {own}, {self.team.count * lanes * turn}")
                    self._copy(number, size)

    def _meet_after_copies(self) -> None:
        if self.schedule.turns:
            self.team.synchronize()

    def _at_lane(self, index: str, whole: bool) -> None:
        """Select the lane of this thread, which exists."""
        self.lane_index = index

    def _pointers_of_totals(self, states: Sequence[Accumulator]) -> _Pointers:
        """Pointers to the totals of all chunks in shared memory."""
        count, before = self.schedule.chunks, self.totals_bytes
        parts = [
            (self._bytes_of_total(dtype), state, part)
            for state in states
            for part, (dtype, _) in enumerate(state.identity)
        ]
        self.totals_bytes += -(-count * sum([bytes_ for bytes_, *_ in parts]) // 16) * 16
        self.e.declarations[TOTALS] = (
            f"{TOTALS} = internal addrspace(3) global [{self.totals_bytes} x i8] undef, align 16"
        )
        memory = self.e.assign(f"addrspacecast ptr addrspace(3) {TOTALS} to ptr")
        memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {before}")
        pointers: _Pointers = {state: [""] * len(state.identity) for state in states}
        for bytes_, state, part in sorted(parts, key=itemgetter(0), reverse=True):  # large ones first: all are aligned
            pointers[state][part] = memory
            memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {bytes_ * count}")
        return pointers

    def _bytes_of_total(self, dtype: Dtype) -> int:
        return register_bytes(dtype)

    def _put(self, parts: Sequence[Value], pointers: Sequence[str], chunk: str) -> None:
        """Write the total of a chunk to shared memory."""
        e = self.e
        with e.when(self.team.leads):
            for part, pointer in zip(parts, pointers, strict=True):
                type_ = REGISTER_TYPES[part.dtype]
                e.store(type_, part.name, e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {chunk}"))

    def _total(self, pointer: str, chunk: str, dtype: Dtype) -> str:
        """A part of the total of a chunk."""
        type_ = REGISTER_TYPES[dtype]
        return self.e.load(type_, self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {chunk}"))

    def _join_totals(self, chunks: str, pointers: _Pointers) -> None:
        """Each thread of a team joins every sixteenth total, in order."""

        def join(indices: Sequence[str], whole: bool) -> None:
            for state, parts_of_state in pointers.items():
                taken = []
                for index in indices:
                    parts = zip(parts_of_state, state.totals.read(), strict=True)
                    loaded = [(self._total(pointer, index, part.dtype), part.dtype) for pointer, part in parts]
                    taken.append(tuple([Value(self.vector, name, dtype) for name, dtype in loaded]))
                for one in taken:
                    state.totals.write(state.reducer.merge(self.vector, state.totals.read(), one))

        # If a thread has all its elements at once, the row has exactly as many chunks as the schedule says.
        own, number = self.schedule.chunks // self.team.count, self.team.number
        if self.schedule.turns and 0 < own <= TOTALS_TOGETHER:
            join([self.e.assign(f"add i64 {number}, {turn * self.team.count}") for turn in range(own)], True)
            return
        self._in_turns(number, chunks, self.team.count, TOTALS_TOGETHER, join)

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that a row has only one of is stored by the first thread, after all threads have read: it may
        overwrite memory that was loaded."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        self._wait_for_reads()
        with self.e.when(self.leads):
            super()._store(position, instruction)

    def _wait_for_reads(self) -> None:
        """Wait until all threads of the row have executed the loads before this place."""
        if self.read_since:
            self._synchronize()

    def _saved_index(self) -> str:
        return self.e.assign(f"add i64 {self.saved_before}, {self.lane_index}")
