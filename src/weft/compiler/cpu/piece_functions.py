"""A kernel whose body is cut: a function for each piece, and one that calls all pieces for each strip of lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.instructions import InstructionWriter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, from_memory, to_memory
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers
from weft.compiler.cpu.schedule import CpuSchedule
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, NumberKey, instruction_keys, number_layout
from weft.compiler.parameters import ExactParameters
from weft.compiler.passes import Pass
from weft.dtypes import Dtype

ALIGNMENT = 64
"""The alignment of saved values in bytes: that of the longest register."""

_BOUNDS = ("%first_row", "%last_row", "%first_lane", "%last_lane")


def pieces_in_order(kernel: Kernel, schedule: CpuSchedule, name: str) -> str:
    """The LLVM IR of a kernel whose body is cut, as a module. Pieces that differ only in the numbers they read and in
    where they save values, such as the steps of a loop in the user's program, share a function."""
    cut = schedule.cut
    assert cut is not None
    layout = number_layout(kernel, schedule.numbers)
    known: dict[tuple[Any, ...], int] = {}
    kinds = [
        known.setdefault(_work(*one, schedule, kernel), len(known)) for one in zip(cut.pieces, cut.at_once, strict=True)
    ]
    offsets = [[cut.offsets[number] for number in _crossing(piece)] for piece in cut.pieces]
    common = _common(kinds, offsets)
    emitters: list[Emitter] = []
    functions: list[str] = []
    calls: list[_PieceCall] = []
    for piece, at_once, kind, own in zip(cut.pieces, cut.at_once, kinds, offsets, strict=True):
        if kind == len(functions):
            writer = _PieceWriter(kernel, schedule, layout, piece, at_once, common[kind])
            functions.append(writer.function(f"piece{kind}"))
            emitters.append(writer.e)
        places = [layout[key] for position in piece.computed for key in instruction_keys(position, kernel)]
        places += [offset for offset, same in zip(own, common[kind], strict=True) if same is None]
        calls.append(_PieceCall(kind, places))
    main, step = _strips(kernel, schedule, layout, calls, name)
    return module([*emitters, main], [*functions, step])


def _work(piece: Pass, at_once: int, schedule: CpuSchedule, kernel: Kernel) -> tuple[Any, ...]:
    """All that the code of a piece depends on, except for where it saves and recalls values."""
    position_in = {number: position for position, number in enumerate(piece.needed)}
    parts: list[tuple[Any, ...]] = []
    near, computed = dict(schedule.near), set(piece.computed)
    columns = [together for together in schedule.columns if together.members[0][0] in computed]
    for number in piece.needed:
        i = kernel.instructions[number]
        parts.append((i.dtype, i.varying, number in piece.saved, number in piece.recalled))
        if number not in piece.recalled:
            access: tuple[Any, ...] | None = None
            if i.access is not None:
                by_one = tuple([i.access.is_one("computed", number) for number in range(len(i.access.computed))])
                access = i.access.dtype, i.access.pattern, by_one
            sources = tuple([position_in[source] for source in i.sources])
            how = (i.operation, i.primitive, ExactParameters(i.params.items()), i.where is None, i.combine)
            parts.append((*how, sources, access, number in schedule.streamed, near.get(number)))
    beside = [(one.stride, *[(position_in[number], column) for number, column in one.members]) for one in columns]
    return at_once, *beside, *parts


def _crossing(piece: Pass) -> list[int]:
    """The instructions whose values a piece saves or recalls, in order."""
    return sorted(piece.saved | piece.recalled)


def _common(kinds: Sequence[int], offsets: Sequence[Sequence[int]]) -> dict[int, Sequence[int | None]]:
    """For each kind of piece, the offsets that all its pieces have; None for those in which they differ."""
    common: dict[int, Sequence[int | None]] = {}
    for kind, own in zip(kinds, offsets, strict=True):
        known = common.setdefault(kind, own)
        common[kind] = [offset if offset == other else None for offset, other in zip(own, known, strict=True)]
    return common


class _PieceCall(NamedTuple):
    """A call of a function, by its number. ``places`` are the positions, in the argument block, of the numbers that it
    reads, and then the offsets of saved values that differ between calls of the function."""

    function: int
    places: list[int]


def _outer_rows(kernel: Kernel) -> list[str]:
    """The parameters of a piece that are indices of row axes: all but the last axis."""
    return [f"%row{axis}" for axis in range(kernel.rows - 1)]


def _strips(
    kernel: Kernel, schedule: CpuSchedule, layout: dict[NumberKey, int], calls: Sequence[_PieceCall], name: str
) -> EmittedFunction:
    """The function of the step: it calls all pieces for each strip."""
    code = Integers(Emitter())
    e, cut = code.e, schedule.cut
    assert cut is not None
    saved = e.slot(f"[{max(cut.size, 1)} x i8], align {ALIGNMENT}")
    table = _CallTable(e, calls)

    def number(*key: object) -> str:
        return code.number(layout[key])

    lanes, block, blocks = number("lane"), number("block"), number("blocks")
    with e.loop("%begin", "%end") as unit:
        row, part = code.divide(unit, blocks), code.remainder(unit, blocks)
        indices: list[str] = []
        first_row, last_row = "0", "1"
        if kernel.rows:
            extent, together = number("row", kernel.rows - 1), number("rows")
            tiles = code.divide(code.subtract(code.add(extent, together), 1), together)
            first_row = code.multiply(code.remainder(row, tiles), together)
            last_row = code.smaller(code.add(first_row, together), extent)
            row = code.divide(row, tiles)
        for axis in reversed(range(kernel.rows - 1)):
            extent = number("row", axis)
            indices.insert(0, code.remainder(row, extent))
            row = code.divide(row, extent)
        first_lane = code.multiply(part, block)
        last_lane = code.smaller(code.add(first_lane, block), lanes)
        width = cut.vectors * _width(kernel)
        with e.loop(first_lane, last_lane, width) as lane:
            stop = code.smaller(code.add(lane, width), last_lane)
            integers = ", ".join(f"i64 {value}" for value in (*indices, first_row, last_row, lane, stop))
            table.call_all(f"ptr %table, ptr {saved}, {integers}")
    if schedule.streamed:
        e.emit("fence seq_cst")  # streamed stores become visible before this thread reports that it is done
    return e, e.function(name, STEP)


class _CallTable:
    """The calls of all pieces as a loop over a constant table: the time that LLVM takes for calls that are written one
    by one grows faster than their number. The table has numbers of functions, not addresses, because machine code has
    no relocations in its data; the addresses are on the stack."""

    def __init__(self, e: Emitter, calls: Sequence[_PieceCall]) -> None:
        self.e = e
        rows: list[int] = []
        places: list[int] = []
        for call in calls:
            rows += call.function, len(places)
            places += call.places
        self.length = len(rows)
        self.rows, self.places = _constant(e, "calls", rows), _constant(e, "places", places)
        count = max(call.function for call in calls) + 1
        self.functions = e.slot(f"[{count} x ptr]")
        for function in range(count):
            e.store("ptr", f"@piece{function}", self._at("ptr", self.functions, function))

    def call_all(self, arguments: str) -> None:
        """Call all pieces in order. ``arguments`` are those behind the places."""
        e = self.e
        with e.loop("0", str(self.length), 2) as row:
            number = e.load("i64", self._at("i64", self.rows, row))
            start = e.load("i64", self._at("i64", self.rows, e.assign(f"add i64 {row}, 1")))
            function = e.load("ptr", self._at("ptr", self.functions, number))
            e.emit(f"call void {function}(ptr %numbers, ptr {self._at('i64', self.places, start)}, {arguments})")

    def _at(self, type_: str, pointer: str, index: str | int) -> str:
        return self.e.assign(f"getelementptr {type_}, ptr {pointer}, i64 {index}")


def _constant(e: Emitter, name: str, values: Sequence[int]) -> str:
    """A constant array of integers."""
    numbers = ", ".join([f"i64 {value}" for value in values])
    e.declarations[name] = f"@{name} = internal unnamed_addr constant [{len(values)} x i64] [{numbers}]"
    return f"@{name}"


def _width(kernel: Kernel) -> int:
    """How many lanes a vector has."""
    return 1 if kernel.lane == "none" else VIRTUAL_LANES


class _PieceWriter(InstructionWriter):
    """Writes the function of one piece: for some rows, and a strip of their lanes."""

    def __init__(
        self,
        kernel: Kernel,
        schedule: CpuSchedule,
        layout: dict[NumberKey, int],
        piece: Pass,
        at_once: int,
        saved_offsets: Sequence[int | None],
    ) -> None:
        """``saved_offsets`` are those of the values that the piece saves or recalls; None: an argument."""
        super().__init__(kernel, schedule.numbers, at_once * _width(kernel), layout)
        self.schedule = schedule
        self.together = {number: together for together in schedule.columns for number, _ in together.members}
        self.piece = piece
        self.row_number = self.first_vector = "0"
        self.saved_offsets = saved_offsets
        self.saved_pointers: dict[int, str] = {}
        """Where the values that the piece saves or recalls are in memory, by instruction."""

    def streams(self, position: int) -> bool:
        return position in self.schedule.streamed

    def near(self, position: int) -> int:
        return dict(self.schedule.near).get(position, 0)

    def function(self, name: str) -> str:
        """The text of the function."""
        outer = _outer_rows(self.kernel)
        places = self._places()
        for position in self.piece.computed:
            for key in instruction_keys(position, self.kernel):
                pointer = self.e.assign(f"getelementptr i64, ptr %numbers, i64 {next(places)}")
                self.numbers[self.layout[key]] = self.e.load("i64", pointer)
            self._prepare(position)
        for position, offset in zip(_crossing(self.piece), self.saved_offsets, strict=True):
            distance = next(places) if offset is None else offset
            self.saved_pointers[position] = self.e.assign(f"getelementptr i8, ptr %saved, i64 {distance}")
        for axis, index in enumerate(outer):
            self._advance("row", axis, index, self.piece.computed)
        self._compute([n for n in self.piece.computed if self.kernel.instructions[n].operation == "scalar"])
        if self.kernel.rows:
            with self.e.loop("%first_row", "%last_row") as row, self._scope():
                self._advance("row", self.kernel.rows - 1, row, self.piece.computed)
                self.row_number = self.e.assign(f"sub i64 {row}, %first_row")
                self._row()
        else:
            self._row()
        integers = ", ".join(f"i64 {name}" for name in (*outer, *_BOUNDS))
        return self.e.function(name, f"ptr %numbers, ptr %places, ptr %table, ptr %saved, {integers}", "internal ")

    def _places(self) -> Iterator[str]:
        """The integers of the argument ``places``, which are read one after the other."""
        for index in count():
            yield self.e.load("i64", self.e.assign(f"getelementptr i64, ptr %places, i64 {index}"))

    def _row(self) -> None:
        """The strip of one row."""
        instructions = self.kernel.instructions
        self._compute([number for number in self.piece.needed if not instructions[number].varying])
        lanes = [number for number in self.piece.needed if instructions[number].varying]
        length = self.e.assign("sub i64 %last_lane, %first_lane")
        vectors = self.e.assign(f"udiv i64 {self.e.assign(f'add i64 {length}, {self.width - 1}')}, {self.width}")
        self.first_vector = self.e.assign(f"mul i64 {self.row_number}, {vectors}")
        whole = "%last_lane"
        if any(self._touches_memory(number) for number in lanes):
            whole = self.e.assign(f"add i64 %first_lane, {self.e.assign(f'and i64 {length}, {-self.width}')}")
        with self.e.loop("%first_lane", whole, self.width) as self.lane_index, self._scope():
            self._compute(lanes)
        if whole != "%last_lane":
            with self.e.when(self.e.assign(f"icmp slt i64 {whole}, %last_lane")), self._scope():
                self.lane_index = whole
                self.mask = self._lanes_before("%last_lane")
                self._compute(lanes)
            self.mask = None

    def _touches_memory(self, number: int) -> bool:
        """Whether an instruction must be masked in lanes that do not exist."""
        return number not in self.piece.recalled and self.kernel.instructions[number].operation in ("load", "store")

    def _compute(self, numbers: Sequence[int]) -> None:
        """Compute instructions in order; recall those of other pieces, and save those that others recall."""
        for number in numbers:
            instruction = self.kernel.instructions[number]
            if number in self.values:
                continue
            if number in self.piece.recalled:
                self.values[number] = self._recalled(number, instruction)
                continue
            self.values[number] = self._instruction(number, instruction)
            if number in self.piece.saved:
                self._save(number, instruction)

    def _recalled(self, number: int, instruction: Instruction) -> Any:
        L, type_, pointer = self._saved_at(number, instruction)
        raw = self.e.assign(f"load {type_}, ptr {pointer}, align {_alignment(L, instruction.dtype)}")
        if _as_in_memory(instruction.dtype):
            return from_memory(L, raw, instruction.dtype)
        return Value(L, raw, instruction.dtype)

    def _save(self, number: int, instruction: Instruction) -> None:
        L, type_, pointer = self._saved_at(number, instruction)
        value = self.fitted(self.values[number], L)
        raw = to_memory(L, value, instruction.dtype) if _as_in_memory(instruction.dtype) else value.name
        self.e.emit(f"store {type_} {raw}, ptr {pointer}, align {_alignment(L, instruction.dtype)}")

    def _saved_at(self, number: int, instruction: Instruction) -> tuple[Lanes, str, str]:
        """The lanes, the type and the address of a saved value. There is one for each vector of the strip, or for each
        row."""
        L = self.lanes_of(instruction)
        element = (MEMORY_TYPES if _as_in_memory(instruction.dtype) else REGISTER_TYPES)[instruction.dtype]
        index = self.row_number
        if instruction.varying:
            behind = self.e.assign(f"sub i64 {self.lane_index}, %first_lane")
            vector = self.e.assign(f"udiv i64 {behind}, {self.width}")
            index = self.e.assign(f"add i64 {self.first_vector}, {vector}")
        type_ = f"<{L.width} x {element}>" if L.width > 1 else element
        return L, type_, self.e.assign(f"getelementptr {type_}, ptr {self.saved_pointers[number]}, i64 {index}")


def _alignment(L: Lanes, dtype: Dtype) -> int:
    return min(L.width * dtype.size, ALIGNMENT)


def _as_in_memory(dtype: Dtype) -> bool:
    """Whether a value is saved in the format of arrays. In registers, truth values are single bits, and complex numbers
    are two values."""
    return dtype.is_bool or dtype.is_complex
