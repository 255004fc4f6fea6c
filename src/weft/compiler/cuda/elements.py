"""Kernels in which each thread has lanes of its own, and does all sweeps for them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location
from weft.compiler.cuda.nests import ThreadWriter
from weft.compiler.cuda.row_values import is_ahead
from weft.compiler.cuda.schedule import WIDEST_ACCESS, CudaSchedule
from weft.compiler.kernel import Instruction, Kernel, LaneStride


class ElementsWriter(ThreadWriter):
    """Writes a kernel in which each thread has lanes of its own, and does all sweeps for them."""

    most_together = 16

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.one_lane = self.vector = MathLanes(self.e, 1)
        self.several_lanes = MathLanes(self.e, schedule.lanes)
        if schedule.few_threads:
            self.most_together, self.body_together = 2 * self.most_together, 2 * self.body_together
        self.aligned = False

    def _unit(self, unit: str) -> None:
        e, blocks, bits = self.e, self.number("blocks"), self.number("bits")
        row_block, lane_block = "0", unit
        if self.kernel.rows:
            row_block, lane_block = e.assign(f"udiv i64 {unit}, {blocks}"), e.assign(f"urem i64 {unit}, {blocks}")
        row = self._row_of_thread(row_block)
        mask = e.assign(f"sub i64 {e.assign(f'shl i64 1, {bits}')}, 1")
        index = e.assign(f"and i64 {self.thread}, {mask}")
        first = e.assign(f"shl i64 {e.assign(f'mul i64 {lane_block}, {self.schedule.pieces}')}, {bits}")
        lane = e.assign(f"mul i64 {e.assign(f'add i64 {first}, {index}')}, {self.schedule.lanes}")
        row_exists = e.assign(f"icmp slt i64 {row}, {self.number('rows')}")
        lane_exists = e.assign(f"icmp slt i64 {lane}, {self.number('lane')}")
        with e.when(e.assign(f"and i1 {row_exists}, {lane_exists}")), self._scope():
            self._enter_rows(row, self.kernel.rows)
            self._emit_row_values()
            if self.schedule.lanes == 1:
                self.lane_index = lane
                self._body()
            else:
                self._several_lanes(lane)

    def _several_lanes(self, lane: str) -> None:
        """The lanes of this thread: together if all exist and are aligned in memory, else one by one."""
        e, count = self.e, self.schedule.lanes
        distance = e.assign(f"shl i64 {count}, {self.number('bits')}")
        starts = [lane]
        for _ in range(1, self.schedule.pieces):
            starts.append(e.assign(f"add i64 {starts[-1]}, {distance}"))
        ends = [e.assign(f"add i64 {start}, {count}") for start in starts]
        together = e.assign(f"icmp sle i64 {ends[-1]}, {self.number('lane')}")
        together = self._and_aligned(together, lane)
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
        """The lanes from each of ``starts`` on: the loads of all pieces come first, then the rest of each."""
        begun, states = self._state(), []
        for start in starts:
            self._go_to(begun.copied()._replace(lane_index=start))
            if len(starts) > 1:
                self._emit_where(is_ahead)
            states.append(self._state())
        for state in states:
            self._go_to(state)
            self._body()

    def _and_aligned(self, condition: str, lane: str) -> str:
        """Whether a condition holds, and all accesses to the lanes from ``lane`` on are aligned."""
        for position, instruction in enumerate(self.kernel.instructions):
            if _is_wide(instruction):
                aligned = self._is_aligned(position, instruction, lane)
                condition = self.e.assign(f"and i1 {condition}, {aligned}")
        return condition

    def _is_aligned(self, position: int, instruction: Instruction, lane: str) -> str:
        """Whether an access to all lanes together is aligned, in all turns of the sweeps."""
        e, access = self.e, instruction.access
        assert access is not None
        index = e.assign(f"add i64 {self.offsets[position]}, {lane}")
        for axis, stride in enumerate(access.sweeps):
            if stride:
                index = e.assign(f"or i64 {index}, {self.number(position, 'sweep', axis)}")
        address = e.assign(f"ptrtoint ptr {self.bases[position]} to i64")
        bits = e.assign(f"or i64 {address}, {e.assign(f'mul i64 {index}, {access.dtype.size}')}")
        rest = e.assign(f"and i64 {bits}, {_access_bytes(access.dtype.size, self.schedule.lanes) - 1}")
        return e.assign(f"icmp eq i64 {rest}, 0")

    def _location(self, position: int, instruction: Instruction, L: Lanes) -> Location:
        location = super()._location(position, instruction, L)
        if self.aligned and _is_wide(instruction):
            assert instruction.access is not None
            location.alignment = _access_bytes(instruction.access.dtype.size, self.schedule.lanes)
        return location

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that all lanes of a row share is stored by the thread of the first lane."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        with self.e.when(self.e.assign(f"icmp eq i64 {self.lane_index}, 0")):
            super()._store(position, instruction)


def _is_wide(instruction: Instruction) -> bool:
    """Whether neighbouring lanes of an access are neighbours in memory, not necessarily aligned."""
    access = instruction.access
    if access is None or access.operand is None or access.computed or instruction.where is not None:
        return False
    return access.lane_stride is LaneStride.ONE


def _access_bytes(size: int, lanes: int) -> int:
    return min(size * lanes, WIDEST_ACCESS)
