"""Kernels whose rows are done by a block each, or by a cluster of blocks that read each other's shared memory.

Teams of sixteen threads take the chunks of a row in turn and fold each by itself. What the chunks come to is put into
the shared memory of every block. From there each team folds it, so that all threads have the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.saving import SavingWriter
from weft.compiler.cuda.schedule import CudaSchedule, register_bytes, saved_row
from weft.compiler.cuda.threads import Team, special, synchronize_block, synchronize_cluster
from weft.compiler.kernel import CHUNK, Instruction, Kernel
from weft.compiler.passes import Pass

TOTALS = "@weft.totals"

TOTALS_TOGETHER = 8
"""Totals that a thread reads from shared memory before it joins them."""

_Places = dict[Accumulator, list[str]]
"""Pointers to where the totals of states are, one for each part."""


class LongRowsWriter(SavingWriter):
    """A thread has the same lanes in each pass."""

    most_together = 16
    team: Team

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.vector = MathLanes(self.e, 1)
        self.places = {}
        self.totals_bytes = 0
        self.saved_before = "0"
        """What has to be added to a lane to find its place among the saved ones."""

    def folds_chunks(self, instruction: Instruction) -> bool:
        """Also where it makes no difference: so the threads of a row need nothing of each other before its end."""
        return True

    def _begin_threads(self) -> None:
        e, cluster = self.e, self.schedule.cluster
        self.team = self.crossing = Team(self.vector, self.scalar, self.thread)
        self.first_chunk = e.assign(f"udiv i64 {self.thread}, {self.team.count}")
        self.leads = e.assign(f"icmp eq i64 {self.thread}, 0")
        if cluster > 1:
            rank = special(e, "cluster.ctarank")
            self.first_chunk = e.assign(f"add i64 {e.assign(f'mul i64 {self.first_chunk}, {cluster}')}, {rank}")
            self.leads = e.assign(f"icmp eq i64 {e.assign(f'or i64 {self.thread}, {rank}')}, 0")
            self._synchronize()  # the other blocks are there

    def _synchronize(self) -> None:
        """Wait for all threads of the row; what they wrote to memory is seen."""
        (synchronize_cluster if self.schedule.cluster > 1 else synchronize_block)(self.e)

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        states = [state for state in dict.fromkeys(reductions.values()) if isinstance(state, Accumulator)]
        e, extent, count = self.e, self._lane_extent, self.team.count
        chunks = e.assign(f"udiv i64 {e.assign(f'add i64 {extent}, {CHUNK - 1}')}, {CHUNK}")
        places = self._places_of_totals(states)
        cluster = self.schedule.cluster
        with e.loop(self.first_chunk, chunks, cluster * (self.schedule.threads // count)) as chunk, self._scope():
            first = e.assign(f"mul i64 {chunk}, {CHUNK}")
            saved = e.assign(f"mul i64 {e.assign(f'udiv i64 {chunk}, {cluster}')}, {saved_row(CHUNK)}")
            self.saved_before = e.assign(f"sub i64 {saved}, {first}")
            stop = self._smaller(e.assign(f"add i64 {first}, {CHUNK}"), extent)
            start = e.assign(f"add i64 {first}, {self.team.number}")
            self._by_turns(start, stop, count, self._at_lane, current, reductions)
            for state in states:
                self._put(self.team.folded(state.read(), state.reducer.merge), places[state], chunk)
                state.begin()
        if states:
            self._synchronize()
            self._join_totals(chunks, places)
            self._synchronize()  # before totals are written again

    def _at_lane(self, index: str, whole: bool) -> None:
        """The lane of this thread, which is there."""
        self.lane_index = index

    def _places_of_totals(self, states: Sequence[Accumulator]) -> _Places:
        """Where in shared memory the totals of all chunks are."""
        count = self.schedule.chunks
        parts = [
            (register_bytes(dtype), state, part) for state in states for part, (dtype, _) in enumerate(state.identity)
        ]
        size = count * sum([bytes_ for bytes_, *_ in parts])
        self.totals_bytes = max(self.totals_bytes, size)
        self.e.declarations[TOTALS] = (
            f"{TOTALS} = internal addrspace(3) global [{self.totals_bytes} x i8] undef, align 16"
        )
        memory = self.e.assign(f"addrspacecast ptr addrspace(3) {TOTALS} to ptr")
        places: _Places = {state: [""] * len(state.identity) for state in states}
        for bytes_, state, part in sorted(parts, key=itemgetter(0), reverse=True):  # so that all are aligned
            places[state][part] = memory
            memory = self.e.assign(f"getelementptr i8, ptr {memory}, i64 {bytes_ * count}")
        return places

    def _put(self, parts: Sequence[Value], pointers: Sequence[str], chunk: str) -> None:
        """Write the total of a chunk to the memory of each block of the cluster: each by another thread."""
        e, cluster = self.e, self.schedule.cluster
        with e.when(e.assign(f"icmp slt i64 {self.team.number}, {cluster}")):
            for part, pointer in zip(parts, pointers, strict=True):
                place = self._element(pointer, chunk, part)
                if cluster > 1:
                    block = e.assign(f"trunc i64 {self.team.number} to i32")
                    place = e.call("llvm.nvvm.mapa", "ptr", [("ptr", place), ("i32", block)])
                e.store(REGISTER_TYPES[part.dtype], part.name, place)

    def _element(self, pointer: str, index: str, like: Value) -> str:
        return self.e.assign(f"getelementptr {REGISTER_TYPES[like.dtype]}, ptr {pointer}, i64 {index}")

    def _join_totals(self, chunks: str, places: _Places) -> None:
        """Each thread of a team joins every sixteenth total, in order."""

        def join(indices: Sequence[str], whole: bool) -> None:
            for state, pointers in places.items():
                taken = []
                for index in indices:
                    parts = zip(pointers, state.totals.read(), strict=True)
                    found = [(self._element(pointer, index, part), part.dtype) for pointer, part in parts]
                    loaded = [(self.e.load(REGISTER_TYPES[dtype], place), dtype) for place, dtype in found]
                    taken.append(tuple([Value(self.vector, name, dtype) for name, dtype in loaded]))
                for one in taken:
                    state.totals.write(state.reducer.merge(self.vector, state.totals.read(), one))

        self._in_turns(self.team.number, chunks, self.team.count, TOTALS_TOGETHER, join)

    def _store(self, position: int, instruction: Instruction) -> None:
        """What a row has one of is stored by the first thread, when all have read what was there."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        self._synchronize()
        with self.e.when(self.leads):
            super()._store(position, instruction)

    def _saved_index(self) -> str:
        return self.e.assign(f"add i64 {self.saved_before}, {self.lane_index}")
