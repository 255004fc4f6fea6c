"""The loops over the lanes of a kernel on a CPU: blocks of lanes of a row, and tiles of rows whose loads are
transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import (
    MEMORY_TYPES,
    Location,
    element_pointer,
    from_memory,
    load,
    masks_stores_slowly,
    store,
    to_memory,
)
from weft.compiler.codegen.nest import NestWriter
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.interiors import Interior, interior_of
from weft.compiler.cpu.memory import load_first_bytes, load_tile_row, load_transposed, store_first_bytes
from weft.compiler.cpu.schedule import TILE_ROWS, CpuSchedule, Walk
from weft.compiler.cpu.side_by_side import lanes_in_turn
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel
from weft.dtypes import Dtype

SCATTERED_LANES = 256
"""How many lanes of a scatter are computed before they are stored. Vectors that have just been written are not read
fast element by element."""

MOST_TRANSPOSITIONS = 8
"""How many squares are transposed by code of their own; more are transposed in a loop."""


class LaneLoops(NestWriter):
    """A writer of the loop nest of a kernel, with its loops over lanes."""

    def __init__(self, kernel: Kernel, schedule: CpuSchedule) -> None:
        width = 1 if kernel.lane == "none" else VIRTUAL_LANES
        super().__init__(
            kernel, schedule.numbers, width, schedule.passes(kernel), schedule.in_chunks, schedule.in_parts
        )
        self.schedule = schedule
        self.interior = interior_of(kernel) if schedule.has_interior else None
        self.compares_narrowly = self.interior is None or masks_stores_slowly()
        self.scattered: list[tuple[str, str]] = []
        """Where on the stack the indices and values of a scatter are, and whether they exist, with their types."""
        self.scattered_base = self.first_scattered = "0"
        self.left: str | None = None
        """How many lanes of the vector are left at the end of a row, the first ones; None if others may be masked."""
        self.first_lanes: str | None = None

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        if self.left is None or not self._is_of_bytes(instruction, location, L):
            return super()._load(position, instruction, location, L)
        pointer = element_pointer(L, location, "i8")
        return from_memory(L, load_first_bytes(L, pointer, self.left), instruction.dtype)

    def _write(self, position: int, instruction: Instruction, value: Any, location: Location, mask: str | None) -> None:
        L = self.lanes_of(instruction)
        if self.scattered:
            self._note_scattered(value, location, mask, instruction.dtype)
            return
        if self.left is None or instruction.combine is not None or not self._is_of_bytes(instruction, location, L):
            super()._write(position, instruction, value, location, mask)
            return
        raw, pointer = to_memory(L, value, instruction.dtype), element_pointer(L, location, "i8")
        store_first_bytes(L, raw, pointer, self.left)

    @property
    def _scatters_lanes(self) -> bool:
        """Whether lanes are combined with elements in memory one after the other, as some may be the same element."""
        stores = [i for i in self.kernel.instructions if i.operation == "store"]
        return self.kernel.lane == "reduced" and bool(stores) and all(i.combine is not None for i in stores)

    def _scatter(self, start: str, stop: str, body: Any) -> None:
        """Run ``body``, which scatters, over lanes ``start`` to ``stop``: what it computes for many lanes is on the
        stack before the first of these is stored."""
        e, scalar = self.e, self.scalar
        (store_of_lanes,) = [i for i in self.kernel.instructions if i.operation == "store"]
        dtype, combine, conditional = store_of_lanes.dtype, store_of_lanes.combine, store_of_lanes.where is not None
        elements = ["i64", MEMORY_TYPES[dtype], *["i8"] * conditional]
        self.scattered = [(e.slot(f"[{SCATTERED_LANES} x {element}], align 64"), element) for element in elements]

        def of_lane(number: int, lane: str) -> str:
            slot, element = self.scattered[number]
            return e.load(element, e.assign(f"getelementptr {element}, ptr {slot}, i64 {lane}"))

        def write(lane: str) -> None:
            place = Location(self.scattered_base, of_lane(0, lane), False)
            value = from_memory(scalar, of_lane(1, lane), dtype)
            value = combine.lanes(scalar, load(scalar, dtype, place, None), value)
            store(scalar, scalar.round_to(value, dtype) if dtype in HALVES else value, dtype, place, None)

        with e.loop(start, stop, SCATTERED_LANES) as first, self._scope():
            end = self._smaller(e.assign(f"add i64 {first}, {SCATTERED_LANES}"), stop)
            self.first_scattered = first
            self._lanes(first, end, body)
            with e.loop("0", e.assign(f"sub i64 {end}, {first}")) as lane:
                if conditional:
                    with e.when(e.assign(f"trunc i8 {of_lane(2, lane)} to i1")):
                        write(lane)
                else:
                    write(lane)

    def _note_scattered(self, value: Any, location: Location, mask: str | None, dtype: Dtype) -> None:
        """Put what a scatter writes in the lanes of a vector, and where, on the stack."""
        width, self.scattered_base = self.vector.width, location.base
        vectors = [location.index, to_memory(self.vector, value, dtype)]
        if len(self.scattered) > len(vectors):
            vectors.append(self.e.assign(f"zext <{width} x i1> {mask} to <{width} x i8>"))
        lane = self.e.assign(f"sub i64 {self.lane_index}, {self.first_scattered}")
        for vector, (slot, element) in zip(vectors, self.scattered, strict=True):
            place = self.e.assign(f"getelementptr {element}, ptr {slot}, i64 {lane}")
            self.e.emit(f"store <{width} x {element}> {vector}, ptr {place}, align 16")

    def _is_of_bytes(self, instruction: Instruction, location: Location, L: Lanes) -> bool:
        """Whether an access is one of neighbouring bytes, all that are left, which the processor cannot mask."""
        whole = L is self.vector and L.width == VIRTUAL_LANES and not location.scattered and instruction.where is None
        return whole and instruction.dtype.size == 1 and "+avx512bw" not in host.current().features

    def _lanes_of(self, block: str) -> tuple[str, str]:
        """The range of the lanes of a block."""
        size, extent = self.number("block"), self.number("lane")
        start = self.e.assign(f"mul i64 {block}, {size}")
        return start, self._smaller(self.e.assign(f"add i64 {start}, {size}"), extent)

    def _count_lanes(self) -> None:
        """Before the loop over rows that are all as long: which lanes of a last vector that is not whole exist."""
        extent = self.number("lane")
        if not self.schedule.single:
            extent = self.e.assign(f"and i64 {extent}, {self.width - 1}")
        self.first_lanes = self._first_lanes(extent)

    def _single_vector(self, body: Any) -> None:
        """Run ``body`` over all lanes of a row."""
        self.lane_index, self.mask, self.left = "0", self.first_lanes, self.number("lane")
        with self._scope():
            body()
        self.mask = self.left = None

    def _lanes(self, start: str, stop: str, body: Any) -> None:
        """Run ``body`` over lanes ``start`` to ``stop``: whole vectors first, then the rest with a mask."""
        if self.schedule.single:
            self._single_vector(body)
            return
        length = self.e.assign(f"sub i64 {stop}, {start}")
        whole = self.e.assign(f"and i64 {length}, {-self.width}")
        if self.backwards and self.kernel.lane == "reduced":
            self._lanes_from_the_end(length, whole, body)
            return
        full = self.e.assign(f"add i64 {start}, {whole}")
        if self.schedule.vectors > 1:
            start = self._wide_turns(start, length, self.schedule.vectors * self.width, body)
            if not masks_stores_slowly():
                self._masked_vectors(start, stop, body)
                return
        elif self.schedule.walk is Walk.PLAIN and (wide := lanes_in_turn(self.kernel)) > self.width:
            start = self._wide_turns(start, length, wide, body)
        self._whole_vectors(start, full, body)
        with self.e.when(self.e.assign(f"icmp slt i64 {full}, {stop}")), self._scope():
            self.lane_index = full
            known = self.first_lanes if stop == self.number("lane") else None
            self.mask = known or self._lanes_before(stop)
            self.left = self.e.assign(f"sub i64 {stop}, {full}")
            body()
        self.mask = self.left = None

    def _whole_vectors(self, start: str, stop: str, body: Any) -> None:
        """Run ``body`` over whole vectors of lanes. The interior of a row has a loop of its own, between those over the
        lanes before and behind it, which share their code."""
        if self.interior is None:
            self._vectors(start, stop, body)
            return
        first, last = self._bounds_of_interior(self.interior, start, stop)
        with self.e.loop("0", "2") as part:
            behind = self.e.assign(f"icmp ne i64 {part}, 0")
            begin = self.e.assign(f"select i1 {behind}, i64 {last}, i64 {start}")
            end = self.e.assign(f"select i1 {behind}, i64 {stop}, i64 {first}")
            self._vectors(begin, end, body)
            with self.e.when(self.e.assign(f"xor i1 {behind}, true")), self._scope():
                everywhere = Value(self.vector, f"<{', '.join(['i1 true'] * self.width)}>", dtypes.bool_)
                self.certain = self.interior.certain
                self.values |= dict.fromkeys(self.certain, everywhere)
                self._vectors(first, last, body)
                self.certain = frozenset()

    def _vectors(self, start: str, stop: str, body: Any) -> None:
        with self.e.loop(start, stop, self.width) as index, self._scope():
            self.lane_index, self.mask = index, None
            body()

    def _masked_vectors(self, start: str, stop: str, body: Any) -> None:
        """Run ``body`` over the few lanes that are left of a long row, all with a mask: one more copy of a long body
        would take LLVM long."""
        with self.e.loop(start, stop, self.width) as index, self._scope():
            self.lane_index = index
            self.mask = self._lanes_before(stop)
            body()
        self.mask = None

    def _bounds_of_interior(self, interior: Interior, start: str, stop: str) -> tuple[str, str]:
        """Where the whole vectors of the interior begin and end, among those from ``start`` to ``stop``."""
        e, first, last = self.e, start, stop
        for index, bound in interior.lower:
            first = self._larger(first, self._lane_at(index, bound))
        for index, bound in interior.upper:
            last = self._smaller(last, self._lane_at(index, bound))
        for number in interior.shared:
            last = e.assign(f"select i1 {self.values[number].name}, i64 {last}, i64 {start}")
        up = e.assign(f"add i64 {e.assign(f'sub i64 {first}, {start}')}, {self.width - 1}")
        first = self._smaller(e.assign(f"add i64 {start}, {e.assign(f'and i64 {up}, {-self.width}')}"), stop)
        down = e.assign(f"and i64 {e.assign(f'sub i64 {last}, {start}')}, {-self.width}")
        return first, self._larger(e.assign(f"add i64 {start}, {down}"), first)

    def _lane_at(self, index: int, bound: int) -> str:
        """The lane at which an index is equal to a bound."""
        return self.e.assign(f"sub i64 {self.values[bound].name}, {self.offsets[index]}")

    def _wide_turns(self, start: str, length: str, wide: int, body: Any) -> str:
        """Run ``body`` over lanes from ``start`` on, ``wide`` at a time as long as so many are left of ``length``.
        Returns the first lane that is left."""
        stop = self.e.assign(f"add i64 {start}, {self.e.assign(f'and i64 {length}, {-wide}')}")
        vector, self.vector = self.vector, MathLanes(self.e, wide)
        for which in self.prepared:
            self._repeat_prepared(which)
        with self.e.loop(start, stop, wide) as index, self._scope():
            self.lane_index, self.mask = index, None
            body()
        self.vector = vector
        return stop

    def _lanes_from_the_end(self, length: str, whole: str, body: Any) -> None:
        """Run ``body`` over the lanes of a row from the last to the first: the rest, at the beginning, is in the upper
        lanes."""
        last = self.e.assign(f"sub i64 {length}, {self.width}")
        with self.e.loop("0", whole, self.width) as index, self._scope():
            self.lane_index, self.mask = self.e.assign(f"sub i64 {last}, {index}"), None
            body()
        with self.e.when(self.e.assign(f"icmp slt i64 {whole}, {length}")), self._scope():
            self.lane_index = self.e.assign(f"sub i64 {last}, {whole}")
            self.mask = (self._lane_indices() >= 0).name
            body()
        self.mask = None

    def _tile(self, row: str, block: str) -> None:
        """A block of rows: for each vector of lanes all rows, while what they share is in the cache."""
        last = self.kernel.rows - 1
        extent = self.number("row", last)
        blocks = self.e.assign(f"sdiv i64 {self.e.assign(f'add i64 {extent}, {TILE_ROWS - 1}')}, {TILE_ROWS}")
        self._enter_rows(self.e.assign(f"udiv i64 {row}, {blocks}"), last)
        start = self.e.assign(f"mul i64 {self.e.assign(f'urem i64 {row}, {blocks}')}, {TILE_ROWS}")
        stop = self._smaller(self.e.assign(f"add i64 {start}, {TILE_ROWS}"), extent)

        def rows(tiles: dict[int, str]) -> None:
            with self.e.loop(start, stop) as index, self._scope():
                for position, tile in tiles.items():
                    row = self.e.assign(f"sub i64 {index}, {start}")
                    instruction = self.kernel.instructions[position]
                    self.values[position] = load_tile_row(self.vector, instruction.dtype, tile, row)
                self._advance("row", last, index, range(len(self.kernel.instructions)))
                self._emit_row_values()
                self._body()

        first_lane, last_lane = self._lanes_of(block)
        with self.e.loop(first_lane, last_lane, self.width) as index, self._scope():
            self.lane_index, self.mask = index, None
            # Compiling transposed loads takes LLVM long: whole vectors and the masked rest share one copy of them.
            tiles = self._transposed_tiles(start, extent)
            end = self.e.assign(f"add i64 {index}, {self.width}")
            with self.e.when(self.e.assign(f"icmp sle i64 {end}, {last_lane}")), self._scope():
                rows(tiles)
            with self.e.when(self.e.assign(f"icmp sgt i64 {end}, {last_lane}")), self._scope():
                self.mask = self._lanes_before(last_lane)
                rows(tiles)
        self.mask = None

    def _transposed_tiles(self, start: str, rows: str) -> dict[int, str]:
        """For transposed loads, tiles with the current lanes of the rows from ``start`` on."""
        L = self.vector
        last = self.e.assign(f"sub i64 {self.number('lane')}, 1")
        here = [self._smaller(self.e.assign(f"add i64 {self.lane_index}, {lane}"), last) for lane in range(self.width)]
        row_numbers = self._numbered(start)
        mask = (row_numbers < L.splat(Value(self.scalar, rows, dtypes.int64))).name
        positions: dict[Dtype, list[int]] = {}
        for position in self.schedule.transposed:
            positions.setdefault(self.kernel.instructions[position].dtype, []).append(position)
        tiles: dict[int, str] = {}
        for dtype, alike in positions.items():
            tiles |= self._tiles_of(dtype, alike, start, here, mask)
        return tiles

    def _tiles_of(
        self, dtype: Dtype, positions: Sequence[int], start: str, lanes: Sequence[str], mask: str
    ) -> dict[int, str]:
        """Tiles for transposed loads of one dtype. If there are many, a loop goes over them, because LLVM would take
        seconds for a sum of many transposed arrays."""
        e, element, count = self.e, MEMORY_TYPES[dtype], len(positions)
        tile_type = f"[{self.width} x <{self.width} x {element}>]"
        tiles = e.slot(f"[{count} x {tile_type}]")

        def at(pointer: str, type_: str, index: str | int) -> str:
            return e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}")

        def source(position: int) -> tuple[str, str]:
            """The element in lane 0 of the row, and the distance from lane to lane."""
            first = e.assign(f"add i64 {self.offsets[position]}, {start}")
            return at(self.bases[position], element, first), self.number(position, "lane")

        def read(base: str, step: str, tile: str) -> None:
            pointers = [at(base, element, e.assign(f"mul i64 {lane}, {step}")) for lane in lanes]
            load_transposed(self.vector, dtype, pointers, mask, tile)

        found = {position: at(tiles, tile_type, index) for index, position in enumerate(positions)}
        if count <= MOST_TRANSPOSITIONS:
            for position, tile in found.items():
                read(*source(position), tile)
            return found
        bases, steps = e.slot(f"[{count} x ptr]"), e.slot(f"[{count} x i64]")
        for index, position in enumerate(positions):
            base, step = source(position)
            e.store("ptr", base, at(bases, "ptr", index))
            e.store("i64", step, at(steps, "i64", index))
        with e.loop("0", str(count)) as number:
            base, step = e.load("ptr", at(bases, "ptr", number)), e.load("i64", at(steps, "i64", number))
            read(base, step, at(tiles, tile_type, number))
        return found
