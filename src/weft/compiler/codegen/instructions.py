"""Writes single instructions of a kernel, scalar code and memory accesses, for every target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft import dtypes
from weft.compiler.codegen.columns import ColumnAccesses, Shuffles
from weft.compiler.codegen.crossing import Crossing, VectorCrossing
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import (
    MEMORY_TYPES,
    Location,
    dtype_alignment,
    element_pointer,
    from_memory,
    load,
    load_near,
    masks_stores_slowly,
    store,
    store_first,
    store_near,
    to_memory,
)
from weft.compiler.codegen.prefix import Prefix
from weft.compiler.codegen.taken_rows import taken_columns
from weft.compiler.codegen.values import Value
from weft.compiler.conditions import compares_lanes, relation_of
from weft.compiler.kernel import Access, Instruction, Kernel, LaneStride, Level, NumberKey, number_layout
from weft.dtypes import Dtype

_Prepare = Callable[..., tuple[Value, ...] | None]
_Preparation = tuple[int, _Prepare]


class InstructionWriter:
    """Writes instructions for the current lanes, which the loops around them set: ``lane_index`` is the first one,
    ``mask`` says which of the ``width`` lanes exist (None: all). ``values`` are those of the instructions written so
    far. ``scheduled`` are the names of the numbers of the schedule."""

    rounds_bfloat16 = for_gpu = False

    def __init__(
        self, kernel: Kernel, scheduled: Iterable[str], width: int, layout: dict[NumberKey, int] | None = None
    ) -> None:
        self.kernel = kernel
        self.e = Emitter(self.rounds_bfloat16, self.for_gpu)
        self.scalar = MathLanes(self.e, 1)
        self.vector = self.scalar if width == 1 else MathLanes(self.e, width)
        self.crossing: Crossing = VectorCrossing(self.vector, self.scalar)
        self.layout = number_layout(kernel, scheduled) if layout is None else layout
        self.values: dict[int, Any] = {}
        self.offsets: dict[int, str] = {}
        self.addresses: dict[int, str] = {}
        self.bases: dict[int, str] = {}
        self.scans: dict[int, Prefix] = {}
        self.alike: dict[int, int] = {}
        """For accesses that move with the loops as an earlier one does, the number of that one."""
        self.together: dict[int, ColumnAccesses] = {}
        """For the loads and stores that are done together with others, which these are."""
        self.beside: dict[int, Any] = {}
        """What was loaded together with another load."""
        self.lane_index = "0"
        self.mask: str | None = None
        self.certain: frozenset[int] = frozenset()
        """The conditions that are known to hold in all of the current lanes."""
        self.compares_narrowly = True
        """Whether indices of lanes are compared by 32 bits, which takes a few scalar instructions for each bound."""
        self.counts: dict[str, str] = {}
        """For each mask of the first lanes how many they are, where stores want to know it."""
        self.numbers: dict[int, str] = {}
        self.preparing: dict[int, dict[_Prepare, None]] = {} if width == 1 else _preparing(kernel)
        self.prepared: dict[_Preparation, tuple[Value, ...]] = {}
        """What was prepared of values that all lanes share, by the number of their instructions and how it is done."""
        self.repeated_prepared: dict[tuple[_Preparation, int], tuple[Value, ...]] = {}
        """The same, repeated in so many lanes before the loops."""

    @property
    def width(self) -> int:
        """How many lanes are written at a time."""
        return self.vector.width

    def number(self, *key: object) -> str:
        """A number of the launch. It was loaded at the start of the function."""
        return self.numbers[self.layout[key]]

    def stride(self, position: int, kind: str, number: int) -> str:
        """How far an access moves with the index of an axis, or with a computed value."""
        access = self.kernel.instructions[position].access
        assert access is not None
        return "1" if access.is_one(kind, number) else self.number(self.alike.get(position, position), kind, number)

    def _prepare(self, position: int) -> None:
        """Write the base address of the operand of an access."""
        access = self.kernel.instructions[position].access
        if access is None:
            return
        self.offsets[position] = "0"
        if access.operand is not None:
            pointer = self.e.assign(f"getelementptr ptr, ptr %table, i64 {self.number(position, 'slot')}")
            address = self.addresses[position] = self._address(self.e.load("ptr", pointer))
            offset = self.number(position, "offset")
            self.bases[position] = self.e.assign(f"getelementptr i8, ptr {address}, i64 {offset}")
        else:
            self.offsets[position] = self.number(position, "offset")

    def _address(self, pointer: str) -> str:
        """A pointer to memory from an address in the table."""
        return pointer

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Forget values and offsets that are made in this block: their registers do not dominate what follows it."""
        values, offsets, beside = dict(self.values), dict(self.offsets), dict(self.beside)
        yield
        self.values, self.offsets, self.beside = values, offsets, beside

    def _advance(self, kind: str, axis: int, index: str, positions: Sequence[int]) -> None:
        """Add ``index`` times its stride to the offset of every access that moves along the axis."""
        known: dict[tuple[str, str], str] = {}
        for position in positions:
            key = (position, kind, axis)
            if key in self.layout:
                before, stride = self.offsets[position], self.stride(*key)
                if (before, stride) not in known:
                    step = self.e.assign(f"mul i64 {index}, {stride}")
                    known[before, stride] = self.e.assign(f"add i64 {before}, {step}")
                self.offsets[position] = known[before, stride]

    def _lanes_before(self, stop: str) -> str:
        """The mask of the current lanes that are before ``stop``, which is not far away."""
        return self._first_lanes(self.e.assign(f"sub i64 {stop}, {self.lane_index}"))

    def _first_lanes(self, count: str) -> str:
        """The mask of the first lanes of a vector."""
        mask = str(self._compared_lanes("lt", Value(self.scalar, count, dtypes.int64)).name)
        if not self.for_gpu and masks_stores_slowly():
            self.counts[mask] = count
        return mask

    def _compared_lanes(self, relation: str, number: Value) -> Value:
        """How the number of each lane is related to another number, of which 32 bits are enough."""
        L = self.vector
        lanes = ", ".join([f"i32 {lane}" for lane in range(L.width)])
        first = Value(L, f"<{lanes}>" if L.width > 1 else "0", dtypes.int32)
        return L.compare(relation, first, L.splat(self.scalar.convert(number, dtypes.int32)))

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

    def lanes_of(self, instruction: Instruction) -> Lanes:
        return self.vector if instruction.varying else self.scalar

    def _instruction(self, position: int, instruction: Instruction) -> Any:
        """Write an instruction. Returns its value, if it has one."""
        value = self._written(position, instruction)
        for prepare in self.preparing.get(position, ()):
            prepared = prepare(self.scalar, value)
            if prepared is not None:
                self.prepared[position, prepare] = prepared
                self._repeat_prepared((position, prepare))
        return value

    def _repeat_prepared(self, which: _Preparation) -> None:
        """Repeat what was prepared in all lanes. LLVM shifts by a value that it sees to be the same in all lanes with
        two instructions, by others with one."""
        prepared = self.prepared[which]
        if all(value.dtype.size > 1 for value in prepared):
            repeated = type(prepared)(*[self.fitted(value, self.vector) for value in prepared])
            self.repeated_prepared[which, self.vector.width] = repeated

    def _written(self, position: int, instruction: Instruction) -> Any:
        operation = instruction.operation
        if operation == "apply":
            return self._apply(instruction)
        if operation == "load":
            L = self.lanes_of(instruction)
            return self._load(position, instruction, self._location(position, instruction, L), L)
        if operation == "store":
            return self._store(position, instruction)
        if operation == "scan":
            return self.scans[position].step()
        if operation == "scalar":
            return self._scalar(position, instruction)
        if operation == "index":
            return self._index(position, instruction)
        raise AssertionError(f"{operation} has no code")

    def _load(self, position: int, instruction: Instruction, location: Location, L: Lanes) -> Any:
        if position in self.beside:
            return self.beside.pop(position)
        if position in self.together and self.mask is None:
            self.beside |= self._load_together(self.together[position], instruction.dtype, L)
            return self.beside.pop(position)
        condition = self._condition(instruction)
        where = None if condition is None else self.values[condition]
        if where is not None and L.width > 1:
            if self._at_one_place(instruction):
                return self._load_once(position, instruction, L)
            if not location.scattered:
                location = self._within_memory(position, instruction, location)
        whole = L.width > 1 and self.mask is None and (where is None or where.lanes.width == 1)
        stride = self.near(position) if whole else 0
        if not stride:
            return load(L, instruction.dtype, location, self._mask(instruction, L))
        place = self._near_location(position, stride)
        return load_near(L, instruction.dtype, place, stride, None if where is None else where.name)

    def _load_together(self, columns: ColumnAccesses, dtype: Dtype, L: Lanes) -> dict[int, Any]:
        """The values of several loads, by their numbers. No element behind the last one is read."""
        if not columns.stride:
            return self._take_together(columns, dtype, L)
        shuffles = Shuffles(self.e, MEMORY_TYPES[dtype], L.width)
        places, stride = columns.in_memory, columns.stride
        behind = stride * (L.width - 1) + max([column for _, column in columns.members]) + 1
        starts = [min(start, behind - L.width) for start in range(0, behind, L.width)]
        first = self._first_of(columns, dtype)
        vectors = [shuffles.loaded(first, start, dtype_alignment(dtype)) for start in starts]
        if columns.are_all:
            found = dict(zip(places, shuffles.separated(vectors), strict=True))
        else:
            found = {number: shuffles.picked(vectors, starts, column, stride) for number, column in columns.members}
        return {number: from_memory(L, raw, dtype) for number, raw in found.items()}

    def _take_together(self, columns: ColumnAccesses, dtype: Dtype, L: Lanes) -> dict[int, Any]:
        """The values of several loads from rows at computed places."""
        first = columns.in_memory[0]
        location = self._location(first, self.kernel.instructions[first], L)
        found = taken_columns(self.e, dtype, location, L.width, columns.width)
        return {number: from_memory(L, found[column], dtype) for number, column in columns.members}

    def _store_together(self, columns: ColumnAccesses, dtype: Dtype, L: Lanes) -> None:
        """Write what several stores write, which are all columns of rows."""
        shuffles = Shuffles(self.e, MEMORY_TYPES[dtype], L.width)
        values = [self.values[self.kernel.instructions[number].inputs[0]] for number in columns.in_memory]
        vectors = shuffles.interleaved([to_memory(L, self.fitted(value, L), dtype) for value in values])
        first = self._first_of(columns, dtype)
        for number, vector in enumerate(vectors):
            shuffles.store(vector, first, number * L.width, dtype_alignment(dtype))

    def _first_of(self, columns: ColumnAccesses, dtype: Dtype) -> str:
        """The address of the first column in the first one of the current lanes."""
        number = columns.in_memory[0]
        moved = self.e.assign(f"mul i64 {self.lane_index}, {columns.stride}")
        index = self.e.assign(f"add i64 {self.offsets[number]}, {moved}")
        return self.e.assign(f"getelementptr {MEMORY_TYPES[dtype]}, ptr {self.bases[number]}, i64 {index}")

    def _near_location(self, position: int, stride: int) -> Location:
        """Where the first of the current lanes is, which are ``stride`` apart."""
        moved = self.e.assign(f"mul i64 {self.lane_index}, {stride}")
        return Location(self.bases[position], self.e.assign(f"add i64 {self.offsets[position]}, {moved}"), False)

    def _at_one_place(self, instruction: Instruction) -> bool:
        """Whether all lanes that read an element read the same one."""
        access = instruction.access
        assert access is not None
        computed = [self.values[value] for value, _ in access.computed]
        return access.lane_stride is LaneStride.NONE and all(value.lanes.width == 1 for value in computed)

    def _load_once(self, position: int, instruction: Instruction, L: Lanes) -> Any:
        """One element in the lanes that read it, and zero in the others. It is read if there is such a lane."""
        mask = Value(L, str(self._mask(instruction, L)), dtypes.bool_)
        bits = self.e.assign(f"bitcast <{L.width} x i1> {mask.name} to i{L.width}")
        some = self.e.assign(f"icmp ne i{L.width} {bits}, 0")
        location = self._location(position, instruction, self.scalar)
        element = L.splat(load(self.scalar, instruction.dtype, location, some))
        return L.select(mask, element, 0)

    def _within_memory(self, position: int, instruction: Instruction, location: Location) -> Location:
        """Some memory where it is known for all lanes that they read nothing. A masked load of no lanes takes a
        microsecond if there is no memory at its address, which may be far outside."""
        assert instruction.where is not None
        pointer = element_pointer(self.vector, location, MEMORY_TYPES[instruction.dtype])
        for condition in self._conditions_of_all_lanes(instruction.where):
            pointer = self.e.assign(f"select i1 {condition.name}, ptr {pointer}, ptr {self._some_memory(position)}")
        return Location(pointer, "0", False)

    def _some_memory(self, position: int) -> str:
        """Where there certainly is memory: not where an operand begins of which a turn of a chain has only a part."""
        return self.addresses[position] if self.for_gpu else "%numbers"

    def _conditions_of_all_lanes(self, number: int) -> list[Value]:
        """Conditions with one value for all lanes, without which that with a number is false; those that are known
        here: a pass or a piece may recall a condition without what it was made of."""
        value, instruction = self.values.get(number), self.kernel.instructions[number]
        if value is None:
            return []
        if value.lanes.width == 1:
            return [value]
        if instruction.operation == "apply" and instruction.primitive.is_conjunction:
            return [part for source in instruction.inputs for part in self._conditions_of_all_lanes(source)]
        return []

    def near(self, position: int) -> int:
        """The stride of an access whose lanes are so near in memory that whole vectors are read or written; else 0."""
        return 0

    def _apply(self, instruction: Instruction) -> Any:
        L = self.lanes_of(instruction)
        if L.width > 1 and self.compares_narrowly and compares_lanes(self.kernel.instructions, instruction):
            index, shared = instruction.inputs
            before = self.e.assign(f"add i64 {self.offsets[index]}, {self.lane_index}")
            distance = self.values[shared] - Value(self.scalar, before, dtypes.int64)
            near = self.scalar.minimum(self.scalar.maximum(distance, 0), L.width)
            return self._compared_lanes(relation_of(instruction), near)
        shared = instruction.primitive.shared
        if instruction.varying and shared is not None and (instruction.inputs[-1], shared.prepare) in self.prepared:
            return self._apply_prepared(instruction)
        inputs = [self.fitted(self.values[value], L) for value in instruction.inputs]
        lanes = instruction.primitive.lanes
        quicker = instruction.primitive.lanes_of_nonpositive
        if quicker is not None and self.kernel.is_nonpositive(instruction.inputs[0]):
            lanes = quicker
        return self._rounded(instruction, lanes(L, *inputs, **instruction.params))

    def _rounded(self, instruction: Instruction, result: Any) -> Any:
        """What scalar code computed as a value of the instruction's dtype."""
        L = self.lanes_of(instruction)
        if instruction.dtype in HALVES and not instruction.primitive.exact:
            return L.round_to(result, instruction.dtype)
        if isinstance(result, Value) and result.dtype is not instruction.dtype:
            return Value(L, result.name, instruction.dtype)
        return result

    def _apply_prepared(self, instruction: Instruction) -> Any:
        L, (*sources, last) = self.vector, instruction.inputs
        inputs = [self.fitted(self.values[value], L) for value in sources]
        shared = instruction.primitive.shared
        which = last, shared.prepare
        lanes = self.repeated_prepared.get((which, L.width))
        if lanes is None:
            prepared = self.prepared[which]
            lanes = type(prepared)(*[self.fitted(value, L) for value in prepared])
        return self._rounded(instruction, shared.lanes(L, *inputs, lanes))

    def fitted(self, value: Any, L: Lanes) -> Any:
        """A value in the lanes of ``L``; one that has a single lane is repeated in all."""
        return L.splat(value) if value.lanes.width != L.width else value

    def _mask(self, instruction: Instruction, L: Lanes) -> str | None:
        """The mask of the lanes in which an access happens; None for all."""
        tail = Value(L, self.mask, dtypes.bool_) if self.mask is not None and L is self.vector else None
        condition = self._condition(instruction)
        if condition is None:
            return None if tail is None else tail.name
        where = self.fitted(self.values[condition], L)
        return str((where & tail).name if tail is not None else where.name)

    def _condition(self, instruction: Instruction) -> int | None:
        """The condition of an access; None if it happens in all of the current lanes that exist."""
        return None if instruction.where in self.certain else instruction.where

    def _location(self, position: int, instruction: Instruction, L: Lanes) -> Location:
        access = instruction.access
        assert access is not None
        element = MEMORY_TYPES[access.dtype]
        index = Value(self.scalar, self.offsets[position], dtypes.int64)
        spread: Value | None = None
        narrow = access.lane_stride is LaneStride.NONE and self._is_narrow(access)
        for number in range(len(access.computed)):
            part = self._computed_part(position, number, dtypes.int32 if narrow else dtypes.int64)
            if part.lanes.width > 1:
                spread = part if spread is None else spread + part
            else:
                index = index + self.scalar.convert(part, dtypes.int64)
        if narrow and spread is not None:
            base = element_pointer(self.scalar, Location(self.bases[position], index.name, False), element)
            return Location(base, spread.name, True, number="i32")
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

    def _is_narrow(self, access: Access) -> bool:
        """Whether all computed values of an access have 32 bits. Then so have they times their strides."""
        return all(self.kernel.instructions[value].dtype is dtypes.int32 for value, _ in access.computed)

    def _computed_part(self, position: int, number: int, dtype: Dtype) -> Value:
        """How far a computed value moves an access."""
        access = self.kernel.instructions[position].access
        assert access is not None
        found: Value = self.values[access.computed[number][0]]
        found = found.lanes.convert(found, dtype)
        stride = Value(self.scalar, self.stride(position, "computed", number), dtypes.int64)
        return found * self.fitted(self.scalar.convert(stride, dtype), found.lanes)

    def _lane_steps(self, position: int, lane: LaneStride) -> Value:
        indices = self._lane_indices()
        if lane is LaneStride.ONE:
            return indices
        return indices * self.vector.splat(Value(self.scalar, self.number(position, "lane"), dtypes.int64))

    def _store(self, position: int, instruction: Instruction) -> None:
        L = self.lanes_of(instruction)
        if position in self.together and self.mask is None:
            if position == self.together[position].members[-1][0]:
                self._store_together(self.together[position], instruction.dtype, L)
            return
        location, mask = self._location(position, instruction, L), self._mask(instruction, L)
        value = self.fitted(self.values[instruction.inputs[0]], L)
        if mask is None and L.width > 1 and (stride := self.near(position)):
            store_near(L, value, instruction.dtype, self._near_location(position, stride), stride)
            return
        if L.width == 1 and mask is not None:
            with self.e.when(mask):
                self._write(position, instruction, value, location, None)
        else:
            self._write(position, instruction, value, location, mask)

    def _write(self, position: int, instruction: Instruction, value: Any, location: Location, mask: str | None) -> None:
        """Store a value, or the combination of it with the one in memory."""
        access, L = instruction.access, self.lanes_of(instruction)
        assert access is not None
        if instruction.combine is not None:
            old = load(L, access.dtype, location, mask)
            value = instruction.combine.lanes(L, old, value)
            if access.dtype in HALVES:
                value = L.round_to(value, access.dtype)
        if mask in self.counts and not location.scattered:
            store_first(L, value, access.dtype, location, self.counts[mask])
        else:
            store(L, value, access.dtype, location, mask, self.streams(position))

    def streams(self, position: int) -> bool:
        """Whether a store goes past the caches (non-temporal)."""
        return False

    def _scalar(self, position: int, instruction: Instruction) -> Any:
        pointer = self.e.assign(f"getelementptr i64, ptr %table, i64 {self.number(position, 'slot')}")
        raw = self.e.load(MEMORY_TYPES[instruction.dtype], pointer)
        return from_memory(self.scalar, raw, instruction.dtype)

    def _index(self, position: int, instruction: Instruction) -> Value:
        access = instruction.access
        assert access is not None
        index = Value(self.scalar, self.offsets[position], dtypes.int64)
        for number in range(len(access.computed)):
            part = self._computed_part(position, number, dtypes.int64)
            index = self.fitted(index, part.lanes) + part
        if access.lane_stride is LaneStride.NONE:
            return index
        if self.width == 1:
            return index + self._lane_steps(position, access.lane_stride)
        return self.fitted(index, self.vector) + self._lane_steps(position, access.lane_stride)


def _preparing(kernel: Kernel) -> dict[int, dict[_Prepare, None]]:
    """The values that are the same for all lanes of a kernel, and of which something can be prepared for operations on
    these lanes: how that is done, by the numbers of their instructions."""
    found: dict[int, dict[_Prepare, None]] = {}
    for instruction in kernel.instructions:
        if instruction.operation != "apply" or not instruction.varying or instruction.primitive.shared is None:
            continue
        last = kernel.instructions[instruction.inputs[-1]]
        if last.level is Level.KERNEL and not last.varying:
            found.setdefault(instruction.inputs[-1], {})[instruction.primitive.shared.prepare] = None
    return found
