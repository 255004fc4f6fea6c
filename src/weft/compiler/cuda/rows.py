"""Kernels in which each row is done by sixteen threads, or by one thread if rows have a single lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.compiler.codegen.nest import Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.cuda.row_values import saved_row
from weft.compiler.cuda.saving import LOADED_TOGETHER, SavingWriter
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.cuda.threads import Team
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.passes import Pass


class RowsWriter(SavingWriter):
    """Writes such a kernel. If lanes are reduced, each of the sixteen threads of a row has every sixteenth lane."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        self.team: Team | None = None
        self.row_of_block = self.last_vector = "0"

    def _begin_threads(self) -> None:
        if self.kernel.lane == "reduced":
            self.team = self.crossing = Team(self.vector, self.scalar, self.thread)

    def _unit(self, unit: str) -> None:
        row = self._row_of_thread(unit)
        with self.e.when(self.e.assign(f"icmp slt i64 {row}, {self.number('rows')}")), self._scope():
            self.row_of_block = self.e.assign(f"lshr i64 {self.thread}, {self.number('bits')}")
            self._enter_rows(row, self.kernel.rows)
            self._emit_row_values()
            self._body()

    def _sweep(self, current: Pass) -> None:
        super()._sweep(current)
        if self.team is not None and self.kernel.backwards:
            self.team.synchronize()  # in a pass in the other direction, a thread has other lanes of the row

    def is_first(self) -> str:
        if self.team is None:
            return super().is_first()
        first = self.last_vector if self.backwards else "0"
        return self.e.assign(f"icmp eq i64 {self.first_of_vector}, {first}")

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        assert self.team is not None
        extent, team = self._lane_extent, self.team
        scans = [number for number in current.computed if self.kernel.instructions[number].operation == "scan"]
        if self.backwards:
            self.last_vector = self.e.assign(f"sub i64 {extent}, {team.count}")
        self._fetch(current)
        if self.schedule.turns:
            self._unrolled(team.number, current, reductions)
            return
        by_vectors = scans or self.backwards or any(isinstance(state, OrderedFold) for state in reductions.values())

        def do(first: str, stop: str) -> None:
            if by_vectors:
                self._by_turns(first, stop, team.count, self._at_vector, current, reductions)
            else:
                start = self.e.assign(f"add i64 {first}, {team.number}")
                self._by_turns(start, stop, team.count, self._at_lane, current, reductions)

        self._by_chunks(reductions, do)
        self.mask = None

    def _walk(self, do: Callable[[], None]) -> None:
        assert self.team is not None

        def body(indices: Sequence[str], whole: bool) -> None:
            for index in indices:
                self.lane_index = index
                do()

        if self.schedule.turns:
            self._at_all_turns(self.team.number, do)
            return
        self._in_turns(self.team.number, self._lane_extent, self.team.count, LOADED_TOGETHER, body)

    def _at_lane(self, index: str, whole: bool) -> None:
        """Select the lane of this thread, which exists."""
        self.lane_index = index

    def _at_vector(self, index: str, whole: bool) -> None:
        """Select the sixteen lanes from ``index`` on, counted in the direction of the pass. The team does all of them
        together, even if the row has fewer, because threads exchange values."""
        assert self.team is not None
        self.first_of_vector = index
        if self.backwards:
            self.first_of_vector = self.e.assign(f"sub i64 {self.last_vector}, {index}")
        self.lane_index = self.e.assign(f"add i64 {self.first_of_vector}, {self.team.number}")
        inside = (
            f"sge i64 {self.lane_index}, 0" if self.backwards else f"slt i64 {self.lane_index}, {self._lane_extent}"
        )
        self.mask = None if whole else self.e.assign(f"icmp {inside}")

    def _store(self, position: int, instruction: Instruction) -> None:
        """A value that a row has only one of is stored by the first thread of its team, after all threads have read."""
        if instruction.varying or self.team is None:
            super()._store(position, instruction)
            return
        self.team.synchronize()
        with self.e.when(self.team.leads):
            super()._store(position, instruction)

    def _saved_index(self) -> str:
        row = self.e.assign(f"mul i64 {self.row_of_block}, {saved_row(self.schedule.saved_lanes)}")
        return self.e.assign(f"add i64 {row}, {self.lane_index}")
