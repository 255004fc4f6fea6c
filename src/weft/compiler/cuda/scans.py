"""Kernels that scan a few long rows: each block does a row.

The row is done tile by tile. Each team of sixteen threads scans its vectors separately, and stores their totals to
shared memory. There one thread joins these totals one by one, in the order that is the same on every target. Then each
vector is joined with the total before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.compiler.codegen.instructions import InstructionWriter
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import Prefix
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.nests import BODY_TOGETHER
from weft.compiler.cuda.row_values import register_bytes
from weft.compiler.cuda.rows import RowsWriter
from weft.compiler.cuda.schedule import CudaSchedule, weight_of
from weft.compiler.cuda.threads import synchronize_block
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.passes import Pass

JOINED_TOGETHER = 16
"""How many totals a thread reads from shared memory before it joins them."""

MOST_VECTORS = 8
"""How many vectors of a tile a team has."""


class ScansWriter(RowsWriter):
    """Writes such a kernel. Neighbouring teams have neighbouring vectors."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        self.tile_begin = "0"

    def _begin_threads(self) -> None:
        super()._begin_threads()
        assert self.team is not None
        self.number_of_team = self.e.assign(f"udiv i64 {self.thread}, {self.team.count}")
        self.before_team = self.e.assign(f"mul i64 {self.number_of_team}, {self.team.count}")
        self.leads = self.e.assign(f"icmp eq i64 {self.thread}, 0")

    def _unit(self, unit: str) -> None:
        self._enter_rows(unit, self.kernel.rows)
        self._emit_row_values()
        self._body()

    def _sweep(self, current: Pass) -> None:
        super()._sweep(current)
        synchronize_block(self.e)  # in the next pass, a thread has other lanes of the row

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        assert self.team is not None
        if self.backwards:
            self.last_vector = self.e.assign(f"sub i64 {self._lane_extent}, {self.team.count}")
        self._by_turns("0", self._lane_extent, self.schedule.threads, self._at_vector_of_team, current, reductions)
        self.mask = None

    def _turns_loaded(self, current: Pass, count: int) -> int:
        return count

    def _turns_together(self, current: Pass) -> int:
        weight = sum([weight_of(self.kernel.instructions[number]) for number in current.computed])
        return max(1, min(MOST_VECTORS, 2 * BODY_TOGETHER // max(1, weight)))

    def _in_turns(
        self, start: str, stop: str, step: int, count: int, body: Callable[[Sequence[str], bool], None]
    ) -> None:
        """All tiles have ``count`` turns; some lanes of the last tile may not exist."""
        e = self.e
        with e.loop(start, stop, step * count) as index, self._scope():
            self.tile_begin = index
            body([index, *[e.assign(f"add i64 {index}, {step * turn}") for turn in range(1, count)]], False)

    def _at_vector_of_team(self, index: str, whole: bool) -> None:
        self._at_vector(self.e.assign(f"add i64 {index}, {self.before_team}"), whole)

    def _accumulate_at(self, states: Sequence[Any], position: int, current: Pass, reductions: Reductions) -> None:
        if position in self.scans:
            self._scan(position, states)
        else:
            super()._accumulate_at(states, position, current, reductions)

    def _scan(self, position: int, turns: Sequence[Any]) -> None:
        """Compute the result of a scan for the vectors of all turns."""
        e, prefix, team = self.e, self.scans[position], self.team
        assert team is not None
        teams = self.schedule.threads // team.count
        memory = self._room_for(prefix, len(turns) * teams)
        indices = [e.assign(f"add i64 {self.number_of_team}, {turn * teams}") for turn in range(len(turns))]
        last = e.assign(f"icmp eq i64 {team.number}, {0 if self.backwards else team.count - 1}")
        alone = []
        for index, state in zip(indices, turns, strict=True):
            self._go_to(state)
            alone.append(prefix.alone())
            with e.when(last):
                self._put(alone[-1], memory, index)
        synchronize_block(e)
        with e.when(self.leads):
            self._join(prefix, memory, len(turns) * teams)
        synchronize_block(e)
        for index, state, here in zip(indices, turns, alone, strict=True):
            self._go_to(state)
            self.values[position] = prefix.behind(self._taken(prefix, memory, index), here)
        synchronize_block(e)

    def _room_for(self, prefix: Prefix, count: int) -> list[str]:
        """Pointers to shared memory for ``count`` totals, one pointer for each part of a total."""
        pointers = []
        for number, (dtype, _) in enumerate(prefix.identity):
            name = f"@weft.{self.e.fresh('totals')}.{number}"
            size = count * register_bytes(dtype)
            self.e.declarations[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
            pointers.append(self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr"))
        return pointers

    def _join(self, prefix: Prefix, memory: Sequence[str], count: int) -> None:
        """Replace the totals of all vectors of a tile by the totals before them."""
        e, is_first_tile = self.e, self.e.assign(f"icmp eq i64 {self.tile_begin}, 0")
        with e.loop("0", str(count), JOINED_TOGETHER) as first:
            indices = [e.assign(f"add i64 {first}, {number}") for number in range(JOINED_TOGETHER)]
            totals = [self._taken(prefix, memory, index) for index in indices]
            begins = e.assign(f"and i1 {is_first_tile}, {e.assign(f'icmp eq i64 {first}, 0')}")
            for number, (index, total) in enumerate(zip(indices, totals, strict=True)):
                before = prefix.read()
                self._put(before, memory, index)
                joined = prefix.reducer.merge(prefix.L, before, total)
                if number == 0:
                    joined = prefix.chosen(f"i1 {begins}", total, joined)
                prefix.write(joined)

    def _put(self, parts: Sequence[Value], pointers: Sequence[str], index: str) -> None:
        for part, pointer in zip(parts, pointers, strict=True):
            type_ = REGISTER_TYPES[part.dtype]
            self.e.store(type_, part.name, self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}"))

    def _taken(self, prefix: Prefix, pointers: Sequence[str], index: str) -> tuple[Value, ...]:
        parts = []
        for (dtype, _), pointer in zip(prefix.identity, pointers, strict=True):
            type_ = REGISTER_TYPES[dtype]
            address = self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}")
            parts.append(Value(prefix.L, self.e.load(type_, address), dtype))
        return tuple(parts)

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that a row has only one of is stored by the first thread, after all threads have read."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        synchronize_block(self.e)
        with self.e.when(self.leads):
            InstructionWriter._store(self, position, instruction)
