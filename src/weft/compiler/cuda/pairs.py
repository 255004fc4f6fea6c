"""Kernels of values that are computed in pairs, such as random words: a thread has some lanes of the first half, and
those of the second half that are paired with them."""

from __future__ import annotations

from typing import Any

from weft.compiler.cuda.elements import ElementsWriter
from weft.compiler.cuda.row_values import is_ahead
from weft.compiler.cuda.schedule import CudaSchedule, pair_distance
from weft.compiler.kernel import Instruction, Kernel


class PairsWriter(ElementsWriter):
    """There is one row. A pair is computed at its first lane; the second value is stored until it is needed."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        distance = pair_distance(kernel)
        assert distance is not None
        self.distance = distance
        """The number of the instruction for the distance between the lanes of a pair."""
        self.seconds: dict[int, Any] | None = None
        """The second values of pairs, while both halves are done together; None if lanes are done one by one."""
        self.is_second = False

    def _unit(self, unit: str) -> None:
        e, count = self.e, self.schedule.lanes
        half, total = self.number(self.distance, "offset"), self.number("lane")
        first = e.assign(f"shl i64 {unit}, {self.number('bits')}")
        lane = e.assign(f"mul i64 {e.assign(f'add i64 {first}, {self.thread}')}, {count}")
        with e.when(e.assign(f"icmp slt i64 {lane}, {half}")), self._scope():
            self._emit_row_values()
            starts = [lane, e.assign(f"add i64 {lane}, {half}")]
            stops = [
                self._smaller(e.assign(f"add i64 {start}, {count}"), stop)
                for start, stop in zip(starts, (half, total), strict=True)
            ]
            together = self._all_there(starts, stops)
            with e.when(together), self._scope():
                self.vector, self.aligned, self.seconds = self.several_lanes, count > 1, {}
                self._both(starts)
            self.vector, self.aligned, self.seconds = self.one_lane, False, None
            with e.when(e.assign(f"xor i1 {together}, true")), self._scope():
                for start, stop in zip(starts, stops, strict=True):
                    with e.loop(start, stop) as self.lane_index, self._scope():
                        self._body()

    def _all_there(self, starts: list[str], stops: list[str]) -> str:
        """Whether all lanes exist and are aligned in memory."""
        e, holds = self.e, "true"
        for start, stop in zip(starts, stops, strict=True):
            whole = e.assign(f"icmp eq i64 {e.assign(f'sub i64 {stop}, {start}')}, {self.schedule.lanes}")
            holds = e.assign(f"and i1 {holds}, {whole}")
            if self.schedule.lanes > 1:
                holds = self._and_aligned(holds, start)
        return holds

    def _both(self, starts: list[str]) -> None:
        begun, states = self._state(), []
        for start in starts:
            self._go_to(begun.copied()._replace(lane_index=start))
            self._emit_where(is_ahead)
            states.append(self._state())
        for self.is_second, state in zip((False, True), states, strict=True):
            self._go_to(state)
            self._body()

    def _apply(self, instruction: Instruction) -> Any:
        pair = instruction.primitive.pair
        if pair is None or self.seconds is None:
            return super()._apply(instruction)
        if self.is_second:
            return self.seconds[id(instruction)]
        L = self.lanes_of(instruction)
        values = [self.fitted(self.values[value], L) for value in instruction.inputs]
        found, self.seconds[id(instruction)] = pair(L, *values)
        return found
