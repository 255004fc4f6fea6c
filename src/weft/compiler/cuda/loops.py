"""Blocks and threads of a GPU around the scalar code of a kernel.

The generated entry is ``kernel(ptr numbers, ptr table)``: `number_layout` says what the 64-bit ``numbers`` are;
``table`` holds buffer addresses and constants of the run. Blocks take units in turn, so any number of them is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location
from weft.compiler.codegen.nest import NestWriter, Reductions
from weft.compiler.codegen.prefix import OrderedFold
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.schedule import CudaSchedule, Walk, saved_bytes, saved_row
from weft.compiler.cuda.threads import RowGroup, special
from weft.compiler.kernel import Instruction, Kernel, LaneStride
from weft.compiler.passes import Pass

ENTRY = "ptr noalias readonly %numbers, ptr noalias readonly %table"

TOGETHER = 8
"""Elements of a row or turns of a sweep that a thread does together: it waits for memory once, not for each."""

WIDEST_ACCESS = 16
"""Bytes that a thread reads or writes at once."""

SHARED = "@weft.saved"


def generate(kernel: Kernel, schedule: CudaSchedule, name: str) -> str:
    """The LLVM IR of a kernel as a module with one entry."""
    if schedule.walk is Walk.ELEMENTS:
        return _Elements(kernel, schedule).function(name)
    return _Rows(kernel, schedule).function(name)


def shared_bytes(kernel: Kernel, schedule: CudaSchedule) -> int:
    """Bytes of shared memory that a block needs."""
    return sum(_saved_places(kernel, schedule).values())


def _saved_places(kernel: Kernel, schedule: CudaSchedule) -> dict[int, int]:
    """How many bytes of shared memory there are for each value that is saved."""
    if not schedule.saved_lanes:
        return {}
    elements = (schedule.threads >> schedule.bits) * saved_row(schedule.saved_lanes)
    return {number: size * elements for number, size in saved_bytes(kernel, schedule.passes(kernel)).items()}


class _Writer(NestWriter):
    """What all walks have in common: units, rows, and turns of a sweep done together."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule, width: int) -> None:
        super().__init__(kernel, schedule.numbers, width, schedule.passes(kernel))
        self.schedule = schedule

    def _address(self, pointer: str) -> str:
        """What is in the table is in the memory of the device: told so, LLVM uses faster instructions."""
        cast = self.e.assign(f"addrspacecast ptr {pointer} to ptr addrspace(1)")
        return self.e.assign(f"addrspacecast ptr addrspace(1) {cast} to ptr")

    def function(self, name: str) -> str:
        """The text of the module."""
        self.thread = special(self.e, "tid.x")
        self._begin_threads()
        self._begin()
        first, step = special(self.e, "ctaid.x"), special(self.e, "nctaid.x")
        with self.e.loop(first, self.number("units"), step) as unit, self._scope():
            self._unit(unit)
        attributes = f'nounwind "nvvm.maxntid"="{self.schedule.threads}"'
        return module([self.e], [self.e.function(name, ENTRY, "ptx_kernel ", attributes)])

    def _begin_threads(self) -> None:
        """What a thread has to know of its block before it does anything."""

    def _unit(self, unit: str) -> None:
        """What a block does at a time."""
        raise NotImplementedError

    def _row_of_thread(self, block: str) -> str:
        """The row of this thread in a block of rows; threads that are neighbours in a row have the same."""
        bits = self.number("bits")
        together = self.e.assign(f"lshr i64 {self.schedule.threads}, {bits}")
        first = self.e.assign(f"mul i64 {block}, {together}")
        return self.e.assign(f"add i64 {first}, {self.e.assign(f'lshr i64 {self.thread}, {bits}')}")

    def _together(self, places: Sequence[Callable[[], None]], current: Pass, reductions: Reductions) -> None:
        """All that a pass does at several ``places``, each instruction at all of them before the next one."""
        states: list[tuple[dict[int, Any], dict[int, str], str]] = []
        values, offsets = self.values, self.offsets
        for place in places:
            self.values, self.offsets = dict(values), dict(offsets)
            place()
            states.append((self.values, self.offsets, self.lane_index))
        for position in current.needed:
            for state in states:
                self.values, self.offsets, self.lane_index = state
                self._accumulate_one(position, current, reductions)
        self.values, self.offsets = values, offsets

    def _by_turns(
        self, start: str, stop: str, step: int, place: Callable[[str], None], current: Pass, reductions: Reductions
    ) -> None:
        """A pass over ``range(start, stop, step)``: `TOGETHER` turns at a time, then the others one by one."""
        e, several = self.e, step * TOGETHER
        length = e.assign(f"sub i64 {stop}, {start}")
        whole = e.assign(f"mul i64 {e.assign(f'sdiv i64 {length}, {several}')}, {several}")
        middle = self._larger(e.assign(f"add i64 {start}, {whole}"), start)

        def turns(indices: Sequence[str]) -> None:
            self._together([partial(place, index) for index in indices], current, reductions)

        with e.loop(start, middle, several) as index, self._scope():
            turns([index, *[e.assign(f"add i64 {index}, {step * turn}") for turn in range(1, TOGETHER)]])
        with e.loop(middle, stop, step) as index, self._scope():
            turns([index])

    def _open_sweep(self, depth: int, current: Pass, reductions: Reductions) -> None:
        """The last sweep is done some turns at a time, if they need not be one after the other."""
        last = depth == self.kernel.sweeps and not self._lanes_inside
        if not last or self._one_by_one(current, reductions):
            super()._open_sweep(depth, current, reductions)
            return
        self._by_turns(
            "0", self._sweep_extent(depth), 1, lambda index: self._at(depth, index, current), current, reductions
        )

    def _at(self, depth: int, index: str, current: Pass) -> None:
        """Set the index of a sweep axis."""
        self._advance("sweep", depth - 1, index, current.needed)

    def _one_by_one(self, current: Pass, reductions: Reductions) -> bool:
        """Whether each element of a pass needs what was done with the one before: where something is scanned or folded
        in order, and where stores may meet."""
        ordered = any(isinstance(state, OrderedFold) for state in reductions.values())
        instructions = [self.kernel.instructions[number] for number in current.needed]
        meets = [i.operation == "scan" or (i.operation == "store" and _may_meet(i)) for i in instructions]
        return ordered or any(meets) or current.backwards

    def _save(self, position: int, instruction: Instruction) -> None:
        raise AssertionError("nothing is saved")

    def _recall(self, position: int, instruction: Instruction) -> Any:
        raise AssertionError("nothing is saved")

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        raise AssertionError("no lanes are swept")


def _may_meet(store: Instruction) -> bool:
    """Whether a store may write where another turn of the sweep does."""
    assert store.access is not None
    return bool(store.access.computed) or store.combine is not None or 0 in store.access.sweeps


class _Elements(_Writer):
    """Threads have lanes of their own: all sweeps are done by the same thread."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.one_lane = self.vector = MathLanes(self.e, 1)
        self.several_lanes = MathLanes(self.e, schedule.lanes)
        self.aligned = False

    def _unit(self, unit: str) -> None:
        e, blocks, bits = self.e, self.number("blocks"), self.number("bits")
        row_block, lane_block = "0", unit
        if self.kernel.rows:
            row_block, lane_block = e.assign(f"udiv i64 {unit}, {blocks}"), e.assign(f"urem i64 {unit}, {blocks}")
        row = self._row_of_thread(row_block)
        mask = e.assign(f"sub i64 {e.assign(f'shl i64 1, {bits}')}, 1")
        place = e.assign(f"and i64 {self.thread}, {mask}")
        number = e.assign(f"add i64 {e.assign(f'shl i64 {lane_block}, {bits}')}, {place}")
        lane = e.assign(f"mul i64 {number}, {self.schedule.lanes}")
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
        """The lanes of this thread together, if all are there and aligned in memory; else one after the other."""
        e, count = self.e, self.schedule.lanes
        end = e.assign(f"add i64 {lane}, {count}")
        together = e.assign(f"icmp sle i64 {end}, {self.number('lane')}")
        for position, instruction in enumerate(self.kernel.instructions):
            if _is_wide(instruction):
                together = e.assign(f"and i1 {together}, {self._is_aligned(position, instruction, lane)}")
        with e.when(together), self._scope():
            self.vector, self.lane_index, self.aligned = self.several_lanes, lane, True
            self._body()
        self.vector, self.aligned = self.one_lane, False
        apart, stop = e.assign(f"xor i1 {together}, true"), self._smaller(end, self.number("lane"))
        with e.when(apart), e.loop(lane, stop) as self.lane_index, self._scope():
            self._body()

    def _is_aligned(self, position: int, instruction: Instruction, lane: str) -> str:
        """Whether an access of all lanes together is aligned, in all turns of the sweeps."""
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
        """What all lanes of a row share is stored by the thread of the first one."""
        if instruction.varying:
            super()._store(position, instruction)
            return
        with self.e.when(self.e.assign(f"icmp eq i64 {self.lane_index}, 0")):
            super()._store(position, instruction)


def _is_wide(instruction: Instruction) -> bool:
    """Whether neighbouring lanes of an access are neighbours in memory, wherever it begins."""
    access = instruction.access
    if access is None or access.operand is None or access.computed or instruction.where is not None:
        return False
    return access.lane_stride is LaneStride.ONE


def _access_bytes(size: int, lanes: int) -> int:
    return min(size * lanes, WIDEST_ACCESS)


class _Rows(_Writer):
    """Sixteen threads do a row with reduced lanes; a row of one lane is done by one thread."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule) -> None:
        super().__init__(kernel, schedule, 1)
        self.vector = MathLanes(self.e, 1)
        self.group: RowGroup | None = None
        self.first_of_vector = "0"
        self.places: dict[int, str] = {}
        self.row_of_block = "0"

    def _begin_threads(self) -> None:
        if self.kernel.lane == "reduced":
            self.group = self.crossing = RowGroup(self.vector, self.scalar, self.thread)

    def _unit(self, unit: str) -> None:
        row = self._row_of_thread(unit)
        with self.e.when(self.e.assign(f"icmp slt i64 {row}, {self.number('rows')}")), self._scope():
            self.row_of_block = self.e.assign(f"lshr i64 {self.thread}, {self.number('bits')}")
            self._enter_rows(row, self.kernel.rows)
            self._emit_row_values()
            self._body()

    def _sweep(self, current: Pass) -> None:
        super()._sweep(current)
        if self.group is not None and self.kernel.backwards:
            self.group.synchronize()  # passes in the other direction have other lanes of the row in this thread

    def is_first(self) -> str:
        if self.group is None:
            return super().is_first()
        first = "0" if not self.backwards else self.last_vector
        return self.e.assign(f"icmp eq i64 {self.first_of_vector}, {first}")

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        assert self.group is not None
        extent = self._lane_extent
        if not self._one_by_one(current, reductions):
            self._by_turns(self.group.number, extent, self.group.count, self._at_lane, current, reductions)
        elif self.backwards:
            self._vectors_from_the_end(extent, current, reductions)
        else:
            with self.e.loop("0", extent, self.group.count) as self.first_of_vector, self._scope():
                self.lane_index = self.e.assign(f"add i64 {self.first_of_vector}, {self.group.number}")
                self.mask = self.e.assign(f"icmp slt i64 {self.lane_index}, {extent}")
                self._accumulate(current, reductions)
        self.mask = None

    def _at_lane(self, index: str) -> None:
        self.lane_index = index

    def _vectors_from_the_end(self, extent: str, current: Pass, reductions: Reductions) -> None:
        """Sixteen lanes after the other, from the last to the first: those that are not there are the lower ones."""
        assert self.group is not None
        self.last_vector = self.e.assign(f"sub i64 {extent}, {self.group.count}")
        with self.e.loop("0", extent, self.group.count) as index, self._scope():
            self.first_of_vector = self.e.assign(f"sub i64 {self.last_vector}, {index}")
            self.lane_index = self.e.assign(f"add i64 {self.first_of_vector}, {self.group.number}")
            self.mask = self.e.assign(f"icmp sge i64 {self.lane_index}, 0")
            self._accumulate(current, reductions)

    def _store(self, position: int, instruction: Instruction) -> None:
        """What a row has one of is stored by the first thread of its group, when all have read what was there."""
        if instruction.varying or self.group is None:
            super()._store(position, instruction)
            return
        self.group.synchronize()
        with self.e.when(self.group.leads):
            super()._store(position, instruction)

    def _make_room(self, current: Pass) -> None:
        sizes = _saved_places(self.kernel, self.schedule)
        whole = max(sum(sizes.values()), 1)
        before = 0
        for number, size in sizes.items():
            if number in current.saved:
                self.e.declarations[SHARED] = f"{SHARED} = internal addrspace(3) global [{whole} x i8] undef, align 16"
                pointer = self.e.assign(f"addrspacecast ptr addrspace(3) {SHARED} to ptr")
                self.places[number] = self.e.assign(f"getelementptr i8, ptr {pointer}, i64 {before}")
            before += size

    def _saved_at(self, position: int, instruction: Instruction) -> tuple[str, str]:
        """Type and address of what is saved of a value for the current lane."""
        type_ = REGISTER_TYPES[instruction.dtype]
        row = self.e.assign(f"mul i64 {self.row_of_block}, {saved_row(self.schedule.saved_lanes)}")
        index = self.e.assign(f"add i64 {row}, {self.lane_index}")
        return type_, self.e.assign(f"getelementptr {type_}, ptr {self.places[position]}, i64 {index}")

    def _save(self, position: int, instruction: Instruction) -> None:
        type_, pointer = self._saved_at(position, instruction)
        self.e.store(type_, self.values[position].name, pointer)

    def _recall(self, position: int, instruction: Instruction) -> Any:
        type_, pointer = self._saved_at(position, instruction)
        return Value(self.vector, self.e.load(type_, pointer), instruction.dtype)
