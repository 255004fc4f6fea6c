"""Loops and vectors of a CPU around the scalar code of a kernel.

The generated function is ``void kernel(ptr numbers, ptr table, i64 begin, i64 end)``: `number_layout` says what the
64-bit ``numbers`` are; ``table`` holds buffer addresses and scalars of the call; units ``begin`` to ``end`` are done,
where a unit is a row (a block of rows of a tiled kernel) or, if the lanes are parallel, a block of lanes of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft import dtypes
from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import (
    MEMORY_TYPES,
    Location,
    from_memory,
    load,
    load_tile_row,
    load_transposed,
    prefetch,
    store,
)
from weft.compiler.cpu.passes import SHORT_ROW, Pass
from weft.compiler.cpu.schedule import SWEEP_OUTER_BLOCK, TILE_ROWS, CpuSchedule, Walk
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride, Level, number_layout
from weft.dtypes import Dtype


def generate(kernel: Kernel, schedule: CpuSchedule, name: str) -> str:
    """The LLVM IR of a kernel as a module with one function."""
    return _Generator(kernel, schedule).function(name)


class _Generator:
    def __init__(self, kernel: Kernel, schedule: CpuSchedule) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.sweep_outer = schedule.walk is Walk.SWEEP_OUTER
        self.e = Emitter()
        self.scalar = MathLanes(self.e, 1)
        self.vector = self.scalar if kernel.lane == "none" else MathLanes(self.e, VIRTUAL_LANES)
        self.width = self.vector.width
        self.layout = number_layout(kernel, schedule.numbers)
        self.passes = schedule.passes(kernel)
        self.values: dict[int, Any] = {}
        self.offsets: dict[int, str] = {}
        self.bases: dict[int, str] = {}
        self.saved: dict[int, str] = {}
        self.ahead: dict[int, str] = {}
        self.lane_index = self.first_lane = self.last_lane = "0"
        self.mask: str | None = None
        self.numbers: dict[int, str] = {}

    def number(self, *key: object) -> str:
        """A run-time number of the launch; it was read at the start of the function."""
        return self.numbers[self.layout[key]]

    def function(self, name: str) -> str:
        for position in self.layout.values():
            pointer = self.e.assign(f"getelementptr i64, ptr %numbers, i64 {position}")
            self.numbers[position] = self.e.load("i64", pointer)
        for position, instruction in enumerate(self.kernel.instructions):
            self._prepare(position, instruction)
        self._emit_where(lambda i: i.level is Level.KERNEL and not i.varying)
        with self.e.loop("%begin", "%end") as unit:
            self._unit(unit)
        if self.schedule.streamed:
            self.e.emit("fence seq_cst")  # what was streamed becomes visible before this thread says that it is done
        return module([self.e], [self.e.function(name, "ptr %numbers, ptr %table, i64 %begin, i64 %end")])

    def _prepare(self, position: int, instruction: Instruction) -> None:
        access = instruction.access
        if access is None:
            return
        self.offsets[position] = "0"
        if access.operand is not None:
            pointer = self.e.assign(f"getelementptr ptr, ptr %table, i64 {self.number(position, 'slot')}")
            address = self.e.load("ptr", pointer)
            self.bases[position] = self.e.assign(
                f"getelementptr i8, ptr {address}, i64 {self.number(position, 'offset')}"
            )
        else:
            self.offsets[position] = self.number(position, "offset")
        below = (position, "sweep", self.kernel.sweeps - 1)
        if instruction.operation == "load" and self.sweep_outer and below in self.layout:
            self.ahead[position] = self.number(*below)

    def _unit(self, unit: str) -> None:
        parallel = self.kernel.lane == "parallel"
        row, block = unit, "0"
        if parallel:
            blocks = self.number("blocks")
            row = self.e.assign(f"udiv i64 {unit}, {blocks}")
            block = self.e.assign(f"urem i64 {unit}, {blocks}")
        with self._scope():
            if self.schedule.walk is Walk.TILED:
                self._tile(row, block)
                return
            self._enter_rows(row, self.kernel.rows)
            self._emit_row_values()
            if parallel:
                self._lane_block(block, self._body)
            else:
                self._body()

    def _tile(self, row: str, block: str) -> None:
        """A block of rows: for each vector of lanes all its rows, while what they share is in the cache."""
        last = self.kernel.rows - 1
        extent = self.number("row", last)
        blocks = self.e.assign(f"sdiv i64 {self.e.assign(f'add i64 {extent}, {TILE_ROWS - 1}')}, {TILE_ROWS}")
        self._enter_rows(self.e.assign(f"udiv i64 {row}, {blocks}"), last)
        start = self.e.assign(f"mul i64 {self.e.assign(f'urem i64 {row}, {blocks}')}, {TILE_ROWS}")
        stop = self._smaller(self.e.assign(f"add i64 {start}, {TILE_ROWS}"), extent)

        def rows() -> None:
            tiles = self._transposed_tiles(start, extent)
            with self.e.loop(start, stop) as index, self._scope():
                for position, tile in tiles.items():
                    row = self.e.assign(f"sub i64 {index}, {start}")
                    instruction = self.kernel.instructions[position]
                    self.values[position] = load_tile_row(self.vector, instruction.dtype, tile, row)
                self._advance("row", last, index, range(len(self.kernel.instructions)))
                self._emit_row_values()
                self._body()

        self._lane_block(block, rows)

    def _transposed_tiles(self, start: str, rows: str) -> dict[int, str]:
        """Tiles with what transposed loads read for the current lanes and the rows from ``start`` on."""
        L = self.vector
        last = self.e.assign(f"sub i64 {self.number('lane')}, 1")
        here = [self._smaller(self.e.assign(f"add i64 {self.lane_index}, {lane}"), last) for lane in range(self.width)]
        row_numbers = self._numbered(start)
        mask = (row_numbers < L.splat(Value(self.scalar, rows, dtypes.int64))).name
        tiles: dict[int, str] = {}
        for position in self.schedule.transposed:
            dtype = self.kernel.instructions[position].dtype
            element = MEMORY_TYPES[dtype]
            tiles[position] = self.e.slot(f"[{self.width} x <{self.width} x {element}>]")
            first = self.e.assign(f"add i64 {self.offsets[position]}, {start}")
            pointers = []
            for lane in here:
                step = self.e.assign(f"mul i64 {lane}, {self.number(position, 'lane')}")
                index = self.e.assign(f"add i64 {first}, {step}")
                pointers.append(self.e.assign(f"getelementptr {element}, ptr {self.bases[position]}, i64 {index}"))
            load_transposed(L, dtype, pointers, mask, tiles[position])
        return tiles

    def _emit_row_values(self) -> None:
        self._emit_where(
            lambda i: i.level is Level.ROW and not i.varying and i.stage == 0 and i.operation not in ("reduce", "store")
        )

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Values and offsets made inside are forgotten at the end: their registers do not dominate what follows."""
        values, offsets = dict(self.values), dict(self.offsets)
        yield
        self.values, self.offsets = values, offsets

    def _enter_rows(self, row: str, axes: int) -> None:
        """Set the indices of the first ``axes`` row axes from a row-major number."""
        remaining = row
        indices: list[str] = []
        for axis in reversed(range(axes)):
            if axis == 0:
                indices.append(remaining)
                break
            extent = self.number("row", axis)
            indices.append(self.e.assign(f"urem i64 {remaining}, {extent}"))
            remaining = self.e.assign(f"udiv i64 {remaining}, {extent}")
        indices.reverse()
        for axis, index in enumerate(indices):
            self._advance("row", axis, index, range(len(self.kernel.instructions)))

    def _advance(self, kind: str, axis: int, index: str, positions: Sequence[int]) -> None:
        """Add ``index`` times its stride to the offset of every access that has one."""
        for position in positions:
            key = (position, kind, axis)
            if key in self.layout:
                step = self.e.assign(f"mul i64 {index}, {self.number(*key)}")
                self.offsets[position] = self.e.assign(f"add i64 {self.offsets[position]}, {step}")

    def _lane_block(self, block: str, body: Any) -> None:
        size, extent = self.number("block"), self.number("lane")
        start = self.e.assign(f"mul i64 {block}, {size}")
        stop = self._smaller(self.e.assign(f"add i64 {start}, {size}"), extent)
        if self.sweep_outer:
            self._sweep_outer(start, stop)
        else:
            self._lanes(start, stop, body)

    def _smaller(self, left: str, right: str) -> str:
        less = self.e.assign(f"icmp slt i64 {left}, {right}")
        return self.e.assign(f"select i1 {less}, i64 {left}, i64 {right}")

    def _lanes(self, start: str, stop: str, body: Any) -> None:
        """Run ``body`` over lanes ``start`` to ``stop``: whole vectors first, then a masked rest."""
        length = self.e.assign(f"sub i64 {stop}, {start}")
        whole = self.e.assign(f"and i64 {length}, {-self.width}")
        full = self.e.assign(f"add i64 {start}, {whole}")
        with self.e.loop(start, full, self.width) as index, self._scope():
            self.lane_index, self.mask = index, None
            body()
        with self.e.when(self.e.assign(f"icmp slt i64 {full}, {stop}")), self._scope():
            self.lane_index = full
            indices = self._lane_indices()
            last = self.vector.splat(Value(self.scalar, stop, dtypes.int64))
            self.mask = (indices < last).name
            body()
        self.mask = None

    def _lane_indices(self) -> Value:
        """The position of each lane along the lane axis."""
        return self._numbered(self.lane_index)

    def _numbered(self, start: str) -> Value:
        """``start``, ``start + 1``, ... in the lanes."""
        first: Value = self.vector.splat(Value(self.scalar, start, dtypes.int64))
        if self.width == 1:
            return first
        iota = ", ".join(f"i64 {lane}" for lane in range(self.width))
        return first + Value(self.vector, f"<{iota}>", dtypes.int64)

    def _body(self) -> None:
        """All stages of a row (or of some lanes of a row)."""
        for stage, current in enumerate(self.passes):
            self._emit_where(lambda i, stage=stage: self._is_between(i, stage))
            self._sweep(current)

    def _is_between(self, instruction: Instruction, stage: int) -> bool:
        """Whether a value or store belongs before the sweep of a stage."""
        if instruction.stage != stage or instruction.operation == "reduce" or instruction.level is Level.SWEEP:
            return False
        return instruction.varying or instruction.stage > 0 or instruction.operation == "store"

    def _emit_where(self, chosen: Any) -> None:
        for position, instruction in enumerate(self.kernel.instructions):
            if position not in self.values and chosen(instruction):
                self.values[position] = self._instruction(position, instruction)

    def _sweep(self, current: Pass) -> None:
        """One pass over the swept axes."""
        if not current.roots:
            return
        reductions = {
            position: Accumulator(self, self.kernel.instructions[position])
            for position in current.roots
            if self.kernel.instructions[position].operation == "reduce"
        }
        for position in current.saved:
            lanes = self.vector.type_of(self.kernel.instructions[position].dtype)
            self.saved[position] = self.e.slot(f"[{SHORT_ROW // self.width} x {lanes}]")
        with self._scope():
            self._open_sweep(1, current, reductions)
        for position, accumulator in reductions.items():
            self.values[position] = accumulator.result()

    def _saved_location(self, position: int) -> tuple[str, str]:
        """Type and address of what is saved of a value for the current lanes."""
        lanes = self.vector.type_of(self.kernel.instructions[position].dtype)
        number = self.e.assign(f"udiv i64 {self.lane_index}, {self.width}")
        return lanes, self.e.assign(f"getelementptr {lanes}, ptr {self.saved[position]}, i64 {number}")

    def _sweep_outer(self, start: str, stop: str) -> None:
        """Lanes ``start`` to ``stop`` inside of the sweeps: their accumulators are in memory meanwhile."""
        current = self.passes[0]
        vectors = SWEEP_OUTER_BLOCK // self.width
        reductions = {
            position: Accumulator(self, self.kernel.instructions[position], vectors)
            for position in current.roots
            if self.kernel.instructions[position].operation == "reduce"
        }
        self.first_lane, self.last_lane = start, stop

        def begin() -> None:
            for accumulator in reductions.values():
                accumulator.begin()

        def finish() -> None:
            self.values |= {position: accumulator.result() for position, accumulator in reductions.items()}
            for stage in range(len(self.passes)):
                self._emit_where(lambda i, stage=stage: self._is_between(i, stage))

        self._lanes(start, stop, begin)
        with self._scope():
            self._open_sweep(1, current, reductions)
        self._lanes(start, stop, finish)

    @property
    def _lanes_inside(self) -> bool:
        """Whether there is a loop over lanes inside the sweeps."""
        return self.kernel.lane == "reduced" or self.sweep_outer

    def _open_sweep(self, depth: int, current: Pass, reductions: dict[int, Accumulator]) -> None:
        """Loops over the sweep axes from ``depth`` on, and inside them the lanes if these come last."""
        if depth > self.kernel.sweeps:
            if self._lanes_inside:
                bounds = (self.first_lane, self.last_lane) if self.sweep_outer else ("0", self.number("lane"))
                self._lanes(*bounds, lambda: self._accumulate(current, reductions))
            return
        last = depth == self.kernel.sweeps and not self._lanes_inside
        with self.e.loop("0", self.number("sweep", depth - 1)) as index, self._scope():
            self._advance("sweep", depth - 1, index, current.needed)
            self._emit_needed(current.needed, depth)
            self._open_sweep(depth + 1, current, reductions)
            if last:
                self._accumulate(current, reductions)

    def _emit_needed(self, needed: list[int], depth: int) -> None:
        """Values that are known once ``depth`` sweep loops are open."""
        last = depth == self.kernel.sweeps and not self._lanes_inside
        for position in needed:
            instruction = self.kernel.instructions[position]
            uniform = not (instruction.varying and self._lanes_inside)
            if position in self.values or instruction.operation in ("reduce", "store"):
                continue
            if uniform and (instruction.sweep <= depth or last) and self._ready(instruction):
                self.values[position] = self._instruction(position, instruction)

    def _ready(self, instruction: Instruction) -> bool:
        return all(value in self.values for value in instruction.inputs)

    def _accumulate(self, current: Pass, reductions: dict[int, Accumulator]) -> None:
        for position in current.needed:
            instruction = self.kernel.instructions[position]
            if position in reductions:
                reductions[position].step()
            elif position in current.recalled:
                type_, pointer = self._saved_location(position)
                self.values[position] = Value(self.vector, self.e.load(type_, pointer), instruction.dtype)
            elif position not in self.values:
                self.values[position] = self._instruction(position, instruction)
            if position in current.saved:
                type_, pointer = self._saved_location(position)
                self.e.store(type_, self.values[position].name, pointer)

    def lanes_of(self, instruction: Instruction) -> Lanes:
        return self.vector if instruction.varying else self.scalar

    def _instruction(self, position: int, instruction: Instruction) -> Any:
        operation = instruction.operation
        if operation == "apply":
            return self._apply(instruction)
        if operation == "load":
            L = self.lanes_of(instruction)
            location = self._location(position, instruction, L)
            if position in self.ahead and not location.scattered:
                self._prefetch(location, instruction.dtype, self.ahead[position])
            return load(L, instruction.dtype, location, self._mask(instruction, L))
        if operation == "store":
            return self._store(position, instruction)
        if operation == "scalar":
            return self._scalar(position, instruction)
        if operation == "index":
            return self._index(position, instruction)
        raise AssertionError(f"{operation} has no code")

    def _prefetch(self, location: Location, dtype: Dtype, stride: str) -> None:
        """Ask for the same lanes of the next row.

        Where the sweep takes a part of each row, the next one begins where the processor does not expect it. Else it
        does, and asking would cost: then it is for what is near anyway.
        """
        in_parts = self.e.assign(f"icmp sgt i64 {self.number('lane')}, {self.number('block')}")
        index = self.e.assign(f"add i64 {location.index}, {stride}")
        pointer = self.e.assign(f"getelementptr {MEMORY_TYPES[dtype]}, ptr {location.base}, i64 {index}")
        prefetch(self.e, self.e.assign(f"select i1 {in_parts}, ptr {pointer}, ptr %numbers"))

    def _apply(self, instruction: Instruction) -> Any:
        L = self.lanes_of(instruction)
        inputs = [self.fitted(self.values[value], L) for value in instruction.inputs]
        result = instruction.primitive.lanes(L, *inputs, **instruction.params)
        if instruction.dtype in HALVES and not instruction.primitive.exact:
            return L.round_to(result, instruction.dtype)
        if isinstance(result, Value) and result.dtype is not instruction.dtype:
            return Value(L, result.name, instruction.dtype)
        return result

    def fitted(self, value: Any, L: Lanes) -> Any:
        """A value in the lanes of ``L``: repeated in all of them if it is the same for all."""
        return L.splat(value) if value.lanes.width != L.width else value

    def _mask(self, instruction: Instruction, L: Lanes) -> str | None:
        """The lanes in which an access happens; None for all."""
        tail = Value(L, self.mask, dtypes.bool_) if self.mask is not None and L is self.vector else None
        if instruction.where is None:
            return None if tail is None else tail.name
        where = self.fitted(self.values[instruction.where], L)
        return str((where & tail).name if tail is not None else where.name)

    def _location(self, position: int, instruction: Instruction, L: Lanes) -> Location:
        access = instruction.access
        assert access is not None
        index = Value(self.scalar, self.offsets[position], dtypes.int64)
        spread: Value | None = None
        for number, (value, _) in enumerate(access.computed):
            found = self.values[value]
            part = found * self.fitted(
                Value(self.scalar, self.number(position, "computed", number), dtypes.int64), found.lanes
            )
            if found.lanes.width > 1:
                spread = part if spread is None else spread + part
            else:
                index = index + part
        lane = access.lane_stride
        if L.width > 1 and (spread is not None or lane is not LaneStride.ONE):
            indices = L.splat(index)
            if spread is not None:
                indices = indices + spread
            if lane is not LaneStride.NONE:
                indices = indices + self._lane_steps(position, lane)
            return Location(self.bases[position], indices.name, True)
        if lane is not LaneStride.NONE:
            step = Value(self.scalar, self.lane_index, dtypes.int64)
            if lane is LaneStride.ANY:
                step = step * Value(self.scalar, self.number(position, "lane"), dtypes.int64)
            index = index + step
        return Location(self.bases[position], index.name, False)

    def _lane_steps(self, position: int, lane: LaneStride) -> Value:
        indices = self._lane_indices()
        if lane is LaneStride.ONE:
            return indices
        return indices * self.vector.splat(Value(self.scalar, self.number(position, "lane"), dtypes.int64))

    def _store(self, position: int, instruction: Instruction) -> None:
        access = instruction.access
        assert access is not None
        varying = instruction.varying
        L = self.vector if varying else self.scalar
        location, mask = self._location(position, instruction, L), self._mask(instruction, L)
        value = self.fitted(self.values[instruction.inputs[0]], L)
        if instruction.combine is not None:
            old = load(L, access.dtype, location, mask)
            value = instruction.combine.lanes(L, old, value)
            if access.dtype in HALVES:
                value = L.round_to(value, access.dtype)
        store(L, value, access.dtype, location, mask, position in self.schedule.streamed)

    def _scalar(self, position: int, instruction: Instruction) -> Any:
        pointer = self.e.assign(f"getelementptr i64, ptr %table, i64 {self.number(position, 'slot')}")
        raw = self.e.load(MEMORY_TYPES[instruction.dtype], pointer)
        return from_memory(self.scalar, raw, instruction.dtype)

    def _index(self, position: int, instruction: Instruction) -> Value:
        access = instruction.access
        assert access is not None
        index = Value(self.scalar, self.offsets[position], dtypes.int64)
        for number, (value, _) in enumerate(access.computed):
            found = self.values[value]
            index = self.fitted(index, found.lanes) + found * self.fitted(
                Value(self.scalar, self.number(position, "computed", number), dtypes.int64), found.lanes
            )
        if access.lane_stride is LaneStride.NONE:
            return index
        if self.width == 1:
            return index + self._lane_steps(position, access.lane_stride)
        return self.fitted(index, self.vector) + self._lane_steps(position, access.lane_stride)
