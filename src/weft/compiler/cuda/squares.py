"""Kernels that read transposed operands: each thread has a square of rows and lanes.

What is transposed is read row after row of memory, several numbers at once, and turned in registers. Neighbouring
threads of a warp have neighbouring squares, in both directions, so that whole sectors of memory are read and written.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.codegen.memory import MEMORY_TYPES, from_memory
from weft.compiler.cuda.elements import ElementsWriter
from weft.compiler.cuda.schedule import is_ahead, is_transposed
from weft.compiler.kernel import Instruction


class SquaresWriter(ElementsWriter):
    """A square has as many rows as lanes. It lies in one turn of all row axes but the last."""

    def _unit(self, unit: str) -> None:
        e, side = self.e, self.schedule.lanes
        row_block, lane_block = self._blocks_of(unit)
        row = e.assign(f"mul i64 {self._row_of_thread(row_block)}, {side}")
        first = e.assign(f"shl i64 {lane_block}, {self.number('bits')}")
        lane = e.assign(f"mul i64 {e.assign(f'add i64 {first}, {self._place_in_row()}')}, {side}")
        with e.when(self._exists(row, lane)), self._scope():
            self._enter_rows(row, self.kernel.rows)
            end = e.assign(f"add i64 {lane}, {side}")
            together = self._all_aligned(lane, e.assign(f"icmp sle i64 {end}, {self.number('lane')}"))
            with e.when(together), self._scope():
                self._square(lane)
            with e.when(e.assign(f"xor i1 {together}, true")), self._scope():
                self._one_by_one(lane, self._smaller(end, self.number("lane")))

    def _one_by_one(self, lane: str, stop: str) -> None:
        self.vector, self.aligned = self.one_lane, False
        with self.e.loop("0", str(self.schedule.lanes)) as down, self._scope():
            self._enter_row(down)
            with self.e.loop(lane, stop) as self.lane_index, self._scope():
                self._body()

    def _enter_row(self, down: str) -> None:
        """Go down so many rows from the first one of the square."""
        self._advance("row", self.kernel.rows - 1, down, range(len(self.kernel.instructions)))
        self._emit_row_values()

    def _square(self, lane: str) -> None:
        """All lanes of all rows, of which everything is loaded first."""
        self.vector, self.aligned = self.several_lanes, True
        turned = {
            position: self._turned(position, instruction, lane)
            for position, instruction in enumerate(self.kernel.instructions)
            if is_transposed(instruction)
        }
        begun, states = self._state(), []
        for down in range(self.schedule.lanes):
            self._go_to(begun.copied()._replace(lane_index=lane))
            self.values.update({position: rows[down] for position, rows in turned.items()})
            self._enter_row(str(down))
            self._emit_where(is_ahead)
            states.append(self._state())
        for state in states:
            self._go_to(state)
            self._body()

    def _turned(self, position: int, instruction: Instruction, lane: str) -> list[Any]:
        """The values of a transposed load in each row of the square."""
        e, side = self.e, self.schedule.lanes
        element = MEMORY_TYPES[instruction.dtype]
        type_, alignment = f"<{side} x {element}>", self._access_bytes(instruction)
        stride, columns = self.number(position, "lane"), []
        for right in range(side):
            index = e.assign(f"mul i64 {e.assign(f'add i64 {lane}, {right}')}, {stride}")
            index = e.assign(f"add i64 {index}, {self.offsets[position]}")
            pointer = e.assign(f"getelementptr {element}, ptr {self.bases[position]}, i64 {index}")
            columns.append(e.assign(f"load {type_}, ptr {pointer}, align {alignment}"))
        rows = []
        for down in range(side):
            row = "poison"
            for right, column in enumerate(columns):
                one = e.assign(f"extractelement {type_} {column}, i32 {down}")
                row = e.assign(f"insertelement {type_} {row}, {element} {one}, i32 {right}")
            rows.append(from_memory(self.several_lanes, row, instruction.dtype))
        return rows

    def _is_wide(self, instruction: Instruction) -> bool:
        return super()._is_wide(instruction) or is_transposed(instruction)

    def _first_element(self, instruction: Instruction, lane: str) -> str:
        return "0" if is_transposed(instruction) else lane  # the rows of a square are counted in the offset

    def _strides_between(self, position: int, instruction: Instruction) -> list[str]:
        if is_transposed(instruction):
            return [self.number(position, "lane")]
        key = (position, "row", self.kernel.rows - 1)
        return [self.number(*key)] if key in self.layout else []
