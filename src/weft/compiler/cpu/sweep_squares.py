"""Sweeps over operands that are contiguous along the sweep, not along the lanes: squares of them are transposed."""

from __future__ import annotations

from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.codegen.nest import Reductions
from weft.compiler.cpu.cell_loops import CellLoops
from weft.compiler.cpu.memory import CACHE_LINE, load_tile_row, load_transposed, prefetch
from weft.compiler.passes import Pass

BYTES_AHEAD = 512
"""How far ahead lanes are prefetched: processors do not foresee all of so many."""


class SweepLoops(CellLoops):
    """A writer of the loop nest of a kernel, whose last sweep may read squares: as many neighbours of each lane as a
    vector has lanes. The order in which elements are folded is the same."""

    def _last_turns(self, start: str, stop: str, extent: str, current: Pass, reductions: Reductions) -> None:
        depth, width = self.kernel.sweeps, self.width
        loads = [position for position in self.schedule.swept if position in current.needed]
        if self.backwards or self.mask is not None or not loads:
            super()._last_turns(start, stop, extent, current, reductions)
            return
        whole = self.e.assign(f"and i64 {self.e.assign(f'sub i64 {stop}, {start}')}, {-width}")
        end = self.e.assign(f"add i64 {start}, {whole}")
        with self.e.loop(start, end, width) as first, self._scope():
            squares = {position: self._square(position, first) for position in loads}
            with self.e.loop("0", str(width)) as row, self._scope():
                for position, square in squares.items():
                    dtype = self.kernel.instructions[position].dtype
                    self.values[position] = load_tile_row(self.vector, dtype, square, row)
                count = self.e.assign(f"add i64 {first}, {row}")
                self._enter_sweep(depth, count, extent, current)
                self._accumulate(current, reductions)
        super()._last_turns(end, stop, extent, current, reductions)

    def _square(self, position: int, first: str) -> str:
        """The elements from ``first`` on, in the order of the sweep, of all current lanes of a load: a vector of lanes
        for each of them, in memory."""
        dtype = self.kernel.instructions[position].dtype
        element, step = MEMORY_TYPES[dtype], self.number(position, "lane")
        square = self.e.slot(f"[{self.width} x <{self.width} x {element}>]")
        before = self.e.assign(f"mul i64 {self.lane_index}, {step}")
        index = self.e.assign(f"add i64 {self.e.assign(f'add i64 {self.offsets[position]}, {before}')}, {first}")
        pointers = [self.e.assign(f"getelementptr {element}, ptr {self.bases[position]}, i64 {index}")]
        while len(pointers) < self.width:
            pointers.append(self.e.assign(f"getelementptr {element}, ptr {pointers[-1]}, i64 {step}"))
        for pointer in pointers:
            for line in range(BYTES_AHEAD, BYTES_AHEAD + self.width * dtype.size, CACHE_LINE):
                prefetch(self.e, self.e.assign(f"getelementptr i8, ptr {pointer}, i64 {line}"))
        load_transposed(self.vector, dtype, pointers, None, square)
        return square
