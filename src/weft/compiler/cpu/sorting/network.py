"""Sorts short rows: as many at once as a vector has lanes, one in each lane.

A unit of work is ``WIDTH`` rows. Their keys are transposed into a tile, whose columns (one key of each row) are sorted
by a network of comparators: that of K. E. Batcher for any number of elements (D. E. Knuth, The Art of Computer
Programming, volume 3, section 5.2.2, algorithm M). Words that contain an index all differ, so equal keys keep their
order.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen import keys
from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu import squares
from weft.compiler.cpu.code import STEP, WIDTH, Code, EmittedFunction, module_of, read, write
from weft.compiler.cpu.sorting import rows

LONGEST = 256
"""The most elements of a row."""

# The positions of the numbers of a step: slot and offset of input and result, and those below.
SOURCE, TARGET = 0, 2
ROWS, EXTENT, START, STOP, LARGEST_STEP, STAGES = 4, 5, 6, 7, 8, 9


def is_unrolled(form: WordForm, extent: int) -> bool:
    """Whether rows are sorted by code without loops, for the next power of two; that code is long for slow
    comparisons."""
    return extent <= (8 if form.is_wide else 16 if form.size == 8 else 32)


def generate(form: WordForm, size: int, unrolled: bool, name: str) -> str:
    """The LLVM IR of the step for rows of up to ``size`` elements."""
    functions = [_NetworkWriter(form, size, unrolled).function(name)]
    if form.mends:
        functions.append(rows.mend(form))
    declared = squares.declarations(form.key.size, form.result.size)
    return module_of(functions, declared)


def comparators(count: int) -> list[tuple[int, int]]:
    """Pairs of positions that the network puts in order, one pair after the other."""
    found = []
    largest = 1 << max((count - 1).bit_length() - 1, 0)
    step = largest
    while step:
        reach, distance, offset = largest, step, 0
        while True:
            found += [(i, i + distance) for i in range(count - distance) if i & step == offset]
            if reach == step:
                break
            distance, reach, offset = reach - step, reach // 2, step
        step //= 2
    return found


class _NetworkWriter:
    def __init__(self, form: WordForm, size: int, unrolled: bool) -> None:
        self.form, self.size, self.unrolled = form, size, unrolled
        self.code = Code()
        self.e, self.L = self.code.e, self.code.lanes
        self.words = [form.key, dtypes.uint64] if form.is_wide else [dtypes.uint64 if form.carries else form.key]
        padded = -(-size // WIDTH) * WIDTH
        self.tiles = [self.e.slot(f"[{padded} x {self.L.type_of(dtype)}], align 64") for dtype in self.words]
        self.elements = self.e.slot(f"[{padded * WIDTH * max(form.key.size, form.result.size)} x i8], align 64")

    def function(self, name: str) -> EmittedFunction:
        code, e = self.code, self.e
        count, extent = code.number(ROWS), code.number(EXTENT)
        start, stop = code.number(START), code.number(STOP)
        source, target = code.memory(SOURCE), code.memory(TARGET)
        width = code.subtract(stop, start)
        row_bytes = code.multiply(extent, self.form.key.size), code.multiply(width, self.form.result.size)
        with e.loop("%begin", "%end") as unit:
            first = code.multiply(unit, WIDTH)
            present = code.smaller(code.subtract(count, first), WIDTH)
            inputs = code.moved(source, code.multiply(first, row_bytes[0]))
            outputs = code.moved(target, code.multiply(first, row_bytes[1]))
            self.squares("read", inputs, row_bytes[0], present, extent, self.form.key.size)
            odd = self.make_words(extent)
            if self.unrolled:
                self.sort_in_registers()
            else:
                self.sort_in_memory(extent)
            self.make_results(inputs, present, extent, start, stop)
            self.squares("write", outputs, row_bytes[1], present, width, self.form.result.size)
            if self.form.mends:
                with e.when(e.load("i1", odd)), e.loop("0", present) as row:
                    from_, to = (
                        code.moved(base, code.multiply(row, distance))
                        for base, distance in zip((inputs, outputs), row_bytes, strict=True)
                    )
                    e.emit(f"call void @mend(ptr {from_}, i64 {extent}, ptr {to}, i64 {start}, i64 {stop})")
        return code.finished(name, STEP, "")

    def squares(self, action: str, rows: str, stride: str, present: str, extent: str, size: int) -> None:
        """Read rows into columns of elements, or write columns to rows."""
        code = self.code
        with self.e.loop("0", extent, WIDTH) as start:
            columns = code.moved(self.elements, code.multiply(start, WIDTH * size))
            self.e.emit(
                f"call void @{action}_square_{size}(ptr {code.moved(rows, code.multiply(start, size))}, i64 {stride}, "
                f"i64 {present}, i64 {code.subtract(extent, start)}, ptr {columns})"
            )

    def make_words(self, extent: str) -> str:
        """Fill the tiles; positions after the end of a row get the largest word. Returns the slot of a flag: whether
        some elements are out of order."""
        code, e, L, form = self.code, self.e, self.L, self.form
        odd = e.slot("i1")
        e.store("i1", "false", odd)
        with e.loop("0", extent) as position:
            raw = read(L, form.key, self.elements, code.multiply(position, WIDTH))
            if form.mends:
                found = L.any_lane(keys.out_of_order(L, raw, form.dtype))
                e.store("i1", e.assign(f"or i1 {e.load('i1', odd)}, {found}"), odd)
            index = L.splat(Value(code.scalar, position, dtypes.int64))
            self.put(position, rows.word(L, form, rows.element_key(L, form, raw), index))
        if self.unrolled:
            with e.loop(extent, str(self.size)) as position:
                self.put(position, [L.constant(-1, dtype) for dtype in self.words])
        return odd

    def put(self, position: str, words: list[Value]) -> None:
        for tile, value in zip(self.tiles, words, strict=True):
            type_ = self.L.type_of(value.dtype)
            self.e.store(type_, value.name, self.code.moved(tile, position, type_))

    def get(self, position: str) -> list[Value]:
        found = []
        for tile, dtype in zip(self.tiles, self.words, strict=True):
            type_ = self.L.type_of(dtype)
            found.append(Value(self.L, self.e.load(type_, self.code.moved(tile, position, type_)), dtype))
        return found

    def in_order(self, left: list[Value], right: list[Value]) -> tuple[list[Value], list[Value]]:
        """The smaller and the larger word in each lane."""
        L = self.L
        if len(left) == 1:
            return [L.intrinsic("umin", left[0], right[0])], [L.intrinsic("umax", left[0], right[0])]
        (a, i), (b, j) = left, right
        swap = (b < a) | (L.equal(a, b) & (j < i))
        low = [L.select(swap, b, a), L.select(swap, j, i)]
        return low, [L.select(swap, a, b), L.select(swap, i, j)]

    def sort_in_registers(self) -> None:
        values = [self.get(str(position)) for position in range(self.size)]
        for low, high in comparators(self.size):
            values[low], values[high] = self.in_order(values[low], values[high])
        for position, words in enumerate(values):
            self.put(str(position), words)

    def sort_in_memory(self, extent: str) -> None:
        """Sort with the same network, written as loops."""
        code, e = self.code, self.e
        largest = code.number(LARGEST_STEP)
        with e.loop("0", code.number(STAGES)) as stage:
            step = e.assign(f"lshr i64 {largest}, {stage}")
            twice = code.add(step, step)
            with e.loop("0", code.add(stage, 1)) as turn:
                is_first = code.compare("eq", turn, 0)
                reach = e.assign(f"lshr i64 {code.add(largest, largest)}, {turn}")
                distance = code.either(is_first, step, code.subtract(reach, step))
                stop = code.subtract(extent, distance)
                with (
                    e.loop(code.either(is_first, 0, step), stop, twice) as base,
                    e.loop(base, code.smaller(code.add(base, step), stop)) as low,
                ):
                    high = code.add(low, distance)
                    smaller, larger = self.in_order(self.get(low), self.get(high))
                    self.put(low, smaller)
                    self.put(high, larger)

    def make_results(self, inputs: str, present: str, extent: str, start: str, stop: str) -> None:
        """Make columns of results from the wanted words."""
        code, L, form = self.code, self.L, self.form
        last = code.subtract(present, 1)
        lanes = [code.multiply(code.smaller(str(lane), last), extent) for lane in range(WIDTH)] if form.gathers else []
        before = L.constant(0, dtypes.int64)
        for lane, distance in enumerate(lanes):
            text = f"insertelement <{WIDTH} x i64> {before.name}, i64 {distance}, i64 {lane}"
            before = Value(L, self.e.assign(text), dtypes.int64)
        with self.e.loop(start, stop) as position:
            words = self.get(position)
            if form.gathers:
                index = before + Value(L, L.convert(words[-1], dtypes.int64).name, dtypes.int64)
                value: Value = load(L, form.key, Location(inputs, str(index.name), True), None)
            elif form.indices:
                value = L.convert(words[-1], dtypes.uint32)
            else:
                value = keys.restored(L, words[0], form.dtype)
            write(L, value, self.elements, code.multiply(code.subtract(position, start), WIDTH))
