"""Kernels that read transposed operands: a block does a square of rows and lanes.

Transposed operands are read along rows, because there their elements are neighbours in memory, and stored to shared
memory. From there they are read along lanes, as all other operands are.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.codegen.memory import MEMORY_TYPES, dtype_alignment, from_memory, load_if
from weft.compiler.cuda.elements import ElementsWriter
from weft.compiler.cuda.row_values import is_ahead
from weft.compiler.cuda.schedule import THREADS, TILE, TILE_BITS, CudaSchedule, is_transposed
from weft.compiler.cuda.threads import synchronize_block
from weft.compiler.kernel import Instruction, Kernel

DOWN = THREADS // TILE
"""How many rows of a tile a block does at a time."""

SHARED_ROW = TILE + 1
"""The distance of rows of a tile in shared memory, in elements. With it, threads that read a column use different
banks."""


class TilesWriter(ElementsWriter):
    """Writes such a kernel. A tile covers parts of the last row axis and of the lanes. A thread has every fourth row of
    one lane, and of a transposed operand every fourth lane of one row. Neighbouring blocks access neighbouring memory
    of the transposed operands."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule)
        self.turned = {number: i for number, i in enumerate(kernel.instructions) if is_transposed(i)}
        self.shared: dict[int, str] = {}
        self.across, self.downs = "0", [""]
        """The position of this thread in a tile."""

    def _begin_threads(self) -> None:
        e = self.e
        self.across, down = (
            e.assign(f"and i64 {self.thread}, {TILE - 1}"),
            e.assign(f"lshr i64 {self.thread}, {TILE_BITS}"),
        )
        self.downs = [down, *[e.assign(f"add i64 {down}, {step}") for step in range(DOWN, TILE, DOWN)]]
        self.shared = {number: self._shared(number, instruction) for number, instruction in self.turned.items()}

    def _shared(self, number: int, instruction: Instruction) -> str:
        """A pointer to shared memory for a tile of an operand."""
        name, size = f"@weft.tile.{number}", TILE * SHARED_ROW * instruction.dtype.size
        self.e.declarations[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
        return self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def _unit(self, unit: str) -> None:
        e, last = self.e, self.kernel.rows - 1
        extent, blocks = self.number("row", last), self.number("blocks")
        tiles = e.assign(f"lshr i64 {e.assign(f'add i64 {extent}, {TILE - 1}')}, {TILE_BITS}")
        rest = e.assign(f"udiv i64 {unit}, {tiles}")
        row = e.assign(f"shl i64 {e.assign(f'urem i64 {unit}, {tiles}')}, {TILE_BITS}")
        lane = e.assign(f"shl i64 {e.assign(f'urem i64 {rest}, {blocks}')}, {TILE_BITS}")
        self._enter_rows(e.assign(f"udiv i64 {rest}, {blocks}"), last)
        rows, lanes = e.assign(f"sub i64 {extent}, {row}"), e.assign(f"sub i64 {self.number('lane')}, {lane}")
        smallest = self._smaller(rows, lanes)
        whole = e.assign(f"icmp sge i64 {smallest}, {TILE}")
        in_part = e.assign(f"xor i1 {whole}, true")
        with e.when(whole):
            self._read_turned(row, lane, None)
        with e.when(in_part):
            self._read_turned(row, lane, (rows, lanes))
        synchronize_block(e)
        with e.when(whole), self._scope():
            self._whole_tile(row, lane)
        with e.when(in_part), self._scope():
            self._part_of_tile(row, lane, rows, lanes)
        synchronize_block(e)  # before shared memory is overwritten

    def _read_turned(self, row: str, lane: str, left: tuple[str, str] | None) -> None:
        """Store the tile of each transposed operand to shared memory: all of it, or only the ``left`` rows and
        lanes."""
        e, found = self.e, []
        for number, instruction in self.turned.items():
            element, stride = MEMORY_TYPES[instruction.dtype], self.number(number, "lane")
            index = e.assign(f"mul i64 {e.assign(f'add i64 {lane}, {self.downs[0]}')}, {stride}")
            index = e.assign(f"add i64 {index}, {e.assign(f'add i64 {row}, {self.across}')}")
            index = e.assign(f"add i64 {index}, {self.offsets[number]}")
            pointer = e.assign(f"getelementptr {element}, ptr {self.bases[number]}, i64 {index}")
            step = e.assign(f"mul i64 {stride}, {DOWN}")
            for down in self.downs:
                inside = None if left is None else self._inside(self.across, left[0], down, left[1])
                raw = load_if(e, element, pointer, dtype_alignment(instruction.dtype), inside)
                found.append((element, raw, self._pointer_to(number, element, down, self.across)))
                pointer = e.assign(f"getelementptr {element}, ptr {pointer}, i64 {step}")
        for element, raw, in_shared in found:
            e.store(element, raw, in_shared)

    def _inside(self, first: str, first_stop: str, second: str, second_stop: str) -> str:
        below = self.e.assign(f"icmp slt i64 {first}, {first_stop}")
        return self.e.assign(f"and i1 {below}, {self.e.assign(f'icmp slt i64 {second}, {second_stop}')}")

    def _pointer_to(self, number: int, element: str, down: str, across: str) -> str:
        """A pointer to an element of a tile in shared memory."""
        index = self.e.assign(f"add i64 {self.e.assign(f'mul i64 {down}, {SHARED_ROW}')}, {across}")
        return self.e.assign(f"getelementptr {element}, ptr {self.shared[number]}, i64 {index}")

    def _whole_tile(self, row: str, lane: str) -> None:
        """All rows of this thread. The loads of all rows come first."""
        self._enter(row, lane)
        begun, states = self._state(), []
        for down in self.downs:
            if down is not self.downs[0]:
                self._go_down()
            here = self._state().copied()
            self._emit_at(down)
            self._emit_where(is_ahead)
            states.append(self._state())
            self._go_to(here._replace(values=dict(begun.values)))
        for state in states:
            self._go_to(state)
            self._body()

    def _part_of_tile(self, row: str, lane: str, rows: str, lanes: str) -> None:
        self._enter(row, lane)
        for down in self.downs:
            if down is not self.downs[0]:
                self._go_down()
            with self.e.when(self._inside(down, rows, self.across, lanes)), self._scope():
                self._emit_at(down)
                self._body()

    def _enter(self, row: str, lane: str) -> None:
        """Select the first row and the lane of this thread."""
        self.lane_index = self.e.assign(f"add i64 {lane}, {self.across}")
        first = self.e.assign(f"add i64 {row}, {self.downs[0]}")
        self._advance("row", self.kernel.rows - 1, first, range(len(self.kernel.instructions)))

    def _go_down(self) -> None:
        """Select the next row of this thread."""
        self._advance("row", self.kernel.rows - 1, str(DOWN), range(len(self.kernel.instructions)))

    def _emit_at(self, down: str) -> None:
        """Compute the values of a row, and read the transposed operands there."""
        self._emit_row_values()
        self.values.update({number: self._turned(number, i, down) for number, i in self.turned.items()})

    def _turned(self, number: int, instruction: Instruction, down: str) -> Any:
        """An element of a transposed operand."""
        element = MEMORY_TYPES[instruction.dtype]
        raw = self.e.load(element, self._pointer_to(number, element, self.across, down))
        return from_memory(self.one_lane, raw, instruction.dtype)
