"""The loops over tiles of rows whose loads are transposed in cells (see `transposed_tiles`)."""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.memory import MEMORY_TYPES, Location, from_memory, image
from weft.compiler.cpu import transposed_tiles
from weft.compiler.cpu.code import EmittedFunction
from weft.compiler.cpu.lane_loops import LaneLoops
from weft.compiler.kernel import VIRTUAL_LANES


class _Source(NamedTuple):
    """Where tiles of a transposed load are read: ``rows`` rows from ``row`` on, whose first lane begins at ``pointer``,
    and lanes ``step`` bytes apart."""

    pointer: str
    step: str
    row: str
    rows: str
    tile: str
    size: int


class _Tile(NamedTuple):
    """A tile in memory, which begins with a row and a lane."""

    pointer: str
    row: str
    lane: str


class CellLoops(LaneLoops):
    """A writer of the loop nest of a kernel, whose tiles may be read in cells."""

    def _tile(self, row: str, block: str) -> None:
        if not self.schedule.in_cells:
            super()._tile(row, block)
            return
        last, side = self.kernel.rows - 1, self.schedule.rows
        extent = self.number("row", last)
        blocks = self.e.assign(f"sdiv i64 {self.e.assign(f'add i64 {extent}, {side - 1}')}, {side}")
        self._enter_rows(self.e.assign(f"udiv i64 {row}, {blocks}"), last)
        start = self.e.assign(f"mul i64 {self.e.assign(f'urem i64 {row}, {blocks}')}, {side}")
        stop = self._smaller(self.e.assign(f"add i64 {start}, {side}"), extent)
        first_lane, last_lane = self._lanes_of(block)
        sources = self._sources(start, stop)
        with self.e.loop(first_lane, last_lane, side) as first, self._scope():
            end = self._smaller(self.e.assign(f"add i64 {first}, {side}"), last_lane)
            tiles = {position: self._read_tile(position, source, first, end) for position, source in sources.items()}
            with self.e.loop(start, stop) as index, self._scope():
                self._advance("row", last, index, range(len(self.kernel.instructions)))
                self._emit_row_values()
                self._lanes(first, end, lambda: self._row_of_tiles(tiles, index))
        self.mask = None

    def _row_of_tiles(self, tiles: dict[int, _Tile], row: str) -> None:
        """Some lanes of a row, with those of transposed loads from their tiles."""
        for position, tile in tiles.items():
            rows = self.e.assign(f"sub i64 {row}, {tile.row}")
            before = self.e.assign(f"mul i64 {rows}, {self.schedule.rows}")
            lane = self.e.assign(f"sub i64 {self.lane_index}, {tile.lane}")
            index = self.e.assign(f"add i64 {before}, {lane}")
            dtype = self.kernel.instructions[position].dtype
            raw = image(self.vector, dtype, Location(tile.pointer, index, False), None)
            self.values[position] = from_memory(self.vector, raw, dtype)
        self._body()

    def _sources(self, start: str, stop: str) -> dict[int, _Source]:
        """Where the tiles of transposed loads for rows ``start`` to ``stop`` are read.

        Rows and lanes are read in groups. A tile begins with earlier ones if there would be less than a group at its
        end."""
        found = {}
        for position in self.schedule.transposed:
            dtype = self.kernel.instructions[position].dtype
            size, element = dtype.size, MEMORY_TYPES[dtype]
            row = self._earlier(start, stop, transposed_tiles.rows_at_once(size))
            index = self.e.assign(f"add i64 {self.offsets[position]}, {row}")
            first = self.e.assign(f"getelementptr {element}, ptr {self.bases[position]}, i64 {index}")
            step = self.e.assign(f"mul i64 {self.number(position, 'lane')}, {size}")
            rows = self.e.assign(f"sub i64 {stop}, {row}")
            bytes_ = transposed_tiles.bytes_of(size, self.schedule.rows)
            tile = self.e.slot(f"[{bytes_ // (VIRTUAL_LANES * size)} x <{VIRTUAL_LANES} x {element}>]")
            found[position] = _Source(first, step, row, rows, tile, size)
        return found

    def _read_tile(self, position: int, source: _Source, start: str, stop: str) -> _Tile:
        """Read the lanes from ``start`` to ``stop`` of a transposed load."""
        lane = self._earlier(start, stop, transposed_tiles.lanes_at_once(source.size))
        distance = self.e.assign(f"mul i64 {lane}, {source.step}")
        first = self.e.assign(f"getelementptr i8, ptr {source.pointer}, i64 {distance}")
        lanes = self.e.assign(f"sub i64 {stop}, {lane}")
        arguments = f"ptr {first}, i64 {source.step}, i64 {source.rows}, i64 {lanes}, ptr {source.tile}"
        self.e.emit(f"call void @{transposed_tiles.name_of(source.size)}({arguments})")
        return _Tile(source.tile, source.row, lane)

    def _earlier(self, start: str, stop: str, multiple: int) -> str:
        """``start``, or an index before it so that whole groups of ``multiple`` end at ``stop``, if there is one."""
        length = self.e.assign(f"sub i64 {stop}, {start}")
        whole = self.e.assign(f"and i64 {self.e.assign(f'add i64 {length}, {multiple - 1}')}, {-multiple}")
        return self._larger(self.e.assign(f"sub i64 {stop}, {whole}"), "0")

    def _tile_functions(self) -> list[EmittedFunction]:
        """The functions that read the tiles of this kernel in cells."""
        if not self.schedule.in_cells:
            return []
        sizes = {self.kernel.instructions[position].dtype.size for position in self.schedule.transposed}
        return [transposed_tiles.reading(size, self.schedule.rows) for size in sorted(sizes)]
