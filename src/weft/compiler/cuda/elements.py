"""Kernels whose threads have lanes of their own: all sweeps are done by the same thread."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location
from weft.compiler.cuda.nests import ThreadWriter
from weft.compiler.cuda.schedule import WIDEST_ACCESS, CudaSchedule, is_ahead, is_wide
from weft.compiler.kernel import Instruction, Kernel


class ElementsWriter(ThreadWriter):
    """Threads have lanes of their own: all sweeps are done by the same thread."""

    most_together = 16

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.one_lane = self.vector = MathLanes(self.e, 1)
        self.several_lanes = MathLanes(self.e, schedule.lanes)
        self.aligned = False

    def _unit(self, unit: str) -> None:
        e, bits = self.e, self.number("bits")
        row_block, lane_block = self._blocks_of(unit)
        row = self._row_of_thread(row_block)
        place = self._place_in_row()
        first = e.assign(f"shl i64 {e.assign(f'mul i64 {lane_block}, {self.schedule.pieces}')}, {bits}")
        lane = e.assign(f"mul i64 {e.assign(f'add i64 {first}, {place}')}, {self.schedule.lanes}")
        with e.when(self._exists(row, lane)), self._scope():
            self._enter_rows(row, self.kernel.rows)
            self._emit_row_values()
            if self.schedule.lanes == 1:
                self.lane_index = lane
                self._body()
            else:
                self._several_lanes(lane)

    def _blocks_of(self, unit: str) -> tuple[str, str]:
        """Which of the blocks of rows a unit has, and which of those of lanes."""
        if not self.kernel.rows:
            return "0", unit
        blocks = self.number("blocks")
        return self.e.assign(f"udiv i64 {unit}, {blocks}"), self.e.assign(f"urem i64 {unit}, {blocks}")

    def _place_in_row(self) -> str:
        """Which of the neighbours in a row this thread is."""
        neighbours = self.e.assign(f"shl i64 1, {self.number('bits')}")
        return self.e.assign(f"and i64 {self.thread}, {self.e.assign(f'sub i64 {neighbours}, 1')}")

    def _exists(self, row: str, lane: str) -> str:
        row_exists = self.e.assign(f"icmp slt i64 {row}, {self.number('rows')}")
        lane_exists = self.e.assign(f"icmp slt i64 {lane}, {self.number('lane')}")
        return self.e.assign(f"and i1 {row_exists}, {lane_exists}")

    def _several_lanes(self, lane: str) -> None:
        """The lanes of this thread together, if all are there and aligned in memory; else one after the other."""
        e, count = self.e, self.schedule.lanes
        distance = e.assign(f"shl i64 {count}, {self.number('bits')}")
        starts = [lane]
        for _ in range(1, self.schedule.pieces):
            starts.append(e.assign(f"add i64 {starts[-1]}, {distance}"))
        ends = [e.assign(f"add i64 {start}, {count}") for start in starts]
        together = e.assign(f"icmp sle i64 {ends[-1]}, {self.number('lane')}")
        together = self._all_aligned(lane, together)
        with e.when(together), self._scope():
            self.vector, self.aligned = self.several_lanes, True
            self._pieces(starts)
        self.vector, self.aligned = self.one_lane, False
        apart = e.assign(f"xor i1 {together}, true")
        with e.when(apart), self._scope():
            for start, end in zip(starts, ends, strict=True):
                with e.loop(start, self._smaller(end, self.number("lane"))) as self.lane_index, self._scope():
                    self._body()

    def _pieces(self, starts: Sequence[str]) -> None:
        """The lanes from each of ``starts`` on: first what is loaded of all of them, then all else."""
        begun, states = self._state(), []
        for start in starts:
            self._go_to(begun.copied()._replace(lane_index=start))
            if len(starts) > 1:
                self._emit_where(is_ahead)
            states.append(self._state())
        for state in states:
            self._go_to(state)
            self._body()

    def _all_aligned(self, lane: str, condition: str) -> str:
        """Whether a condition holds, and all accesses of all lanes together are aligned."""
        for position, instruction in enumerate(self.kernel.instructions):
            if self._is_wide(instruction):
                aligned = self._is_aligned(position, instruction, lane)
                condition = self.e.assign(f"and i1 {condition}, {aligned}")
        return condition

    def _is_aligned(self, position: int, instruction: Instruction, lane: str) -> str:
        """Whether an access of all lanes together is aligned, wherever this thread does it."""
        e, access = self.e, instruction.access
        assert access is not None
        index = e.assign(f"add i64 {self.offsets[position]}, {self._first_element(instruction, lane)}")
        for stride in self._strides_between(position, instruction):
            index = e.assign(f"or i64 {index}, {stride}")
        address = e.assign(f"ptrtoint ptr {self.bases[position]} to i64")
        bits = e.assign(f"or i64 {address}, {e.assign(f'mul i64 {index}, {access.dtype.size}')}")
        rest = e.assign(f"and i64 {bits}, {self._access_bytes(instruction) - 1}")
        return e.assign(f"icmp eq i64 {rest}, 0")

    def _is_wide(self, instruction: Instruction) -> bool:
        """Whether all lanes are accessed together."""
        return is_wide(instruction)

    def _first_element(self, instruction: Instruction, lane: str) -> str:
        """Where in a row an access begins."""
        return lane

    def _strides_between(self, position: int, instruction: Instruction) -> list[str]:
        """How far the accesses that this thread does by one instruction are apart: those of all turns of the sweeps."""
        access = instruction.access
        assert access is not None
        return [self.number(position, "sweep", axis) for axis, stride in enumerate(access.sweeps) if stride]

    def _access_bytes(self, instruction: Instruction) -> int:
        """Bytes of an access of all lanes together, or of its parts if they are more than a thread reads at once."""
        assert instruction.access is not None
        return min(instruction.access.dtype.size * self.schedule.lanes, WIDEST_ACCESS)

    def _location(self, position: int, instruction: Instruction, L: Lanes) -> Location:
        location = super()._location(position, instruction, L)
        if self.aligned and is_wide(instruction):
            location.alignment = self._access_bytes(instruction)
        return location

    def _store(self, position: int, instruction: Instruction) -> None:
        """What all lanes of a row share is stored by the thread of the first one."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        with self.e.when(self.e.assign(f"icmp eq i64 {self.lane_index}, 0")):
            super()._store(position, instruction)
