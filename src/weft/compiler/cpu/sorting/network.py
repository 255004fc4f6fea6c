"""Short rows: as many at once as a vector has lanes, one in each lane.

A unit of work is ``WIDTH`` rows. Their keys are transposed into a tile, whose columns (one key of each row) a network
of comparators sorts: that of K. E. Batcher for any number of elements (D. E. Knuth, The Art of Computer Programming,
volume 3, section 5.2.2, algorithm M). Words with an index all differ, so the order of equal keys is that of the rows.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import Location, load, transposed
from weft.compiler.cpu.sorting import keys, rows
from weft.compiler.cpu.sorting.code import STEP, WIDTH, Code, Function, read, write
from weft.compiler.cpu.sorting.keys import Form

UNROLLED, LONGEST = 32, 256
"""Rows of at most `UNROLLED` have straight code, for the next power of two; those of at most `LONGEST`, loops."""

# The numbers of a step: slot and offset of input and result, and these.
SOURCE, TARGET = 0, 2
ROWS, EXTENT, START, STOP, LARGEST_STEP, STAGES = 4, 5, 6, 7, 8, 9


def generate(form: Form, size: int, unrolled: bool, name: str) -> str:
    """The LLVM IR of the step for rows of up to ``size`` elements."""
    functions = [_Writer(form, size, unrolled).function(name)]
    if form.mends:
        functions.append(rows.mend(form))
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


def comparators(count: int) -> list[tuple[int, int]]:
    """Pairs of positions that the network puts in order, one after the other."""
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


class _Writer:
    def __init__(self, form: Form, size: int, unrolled: bool) -> None:
        self.form, self.size, self.unrolled = form, size, unrolled
        self.code = Code()
        self.e, self.L = self.code.e, self.code.lanes
        self.words = [form.key, dtypes.uint64] if form.size == 16 else [dtypes.uint64 if form.carries else form.key]
        padded = -(-size // WIDTH) * WIDTH
        self.tiles = [self.e.slot(f"[{padded} x {self.L.type_of(dtype)}], align 64") for dtype in self.words]

    def function(self, name: str) -> Function:
        code, e = self.code, self.e
        count, extent = code.number(ROWS), code.number(EXTENT)
        start, stop = code.number(START), code.number(STOP)
        source, target = code.memory(SOURCE), code.memory(TARGET)
        width = code.subtract(stop, start)
        with e.loop("%begin", "%end") as unit:
            first = code.multiply(unit, WIDTH)
            present = code.smaller(code.subtract(count, first), WIDTH)
            inputs = [self.row(source, first, lane, present, extent, self.form.key.size) for lane in range(WIDTH)]
            odd = self.read_rows(inputs, extent)
            if self.unrolled:
                self.sort_in_registers()
            else:
                self.sort_in_memory(extent)
            outputs = [self.row(target, first, lane, present, width, self.form.result.size) for lane in range(WIDTH)]
            self.write_rows(inputs, outputs, present, start, stop)
            if self.form.mends:
                with e.when(e.load("i1", odd)):
                    self.mend(source, target, first, present, extent, width)
        return code.finished(name, STEP, "")

    def row(self, base: str, first: str, lane: int, present: str, extent: str, size: int) -> str:
        """Where the row of a lane begins. Lanes without a row read the last one once more."""
        code = self.code
        nearest = code.add(first, code.smaller(str(lane), code.subtract(present, 1)))
        return code.moved(base, code.multiply(nearest, code.multiply(extent, size)))

    def read_rows(self, inputs: list[str], extent: str) -> str:
        """Fill the tiles; what is behind the end of a row has the largest words. Gives the slot of a flag: whether some
        elements are out of order."""
        code, e, L, form = self.code, self.e, self.L, self.form
        odd = e.slot("i1")
        e.store("i1", "false", odd)
        largest = L.constant(-1, form.key)
        with e.loop("0", str(self.size) if self.unrolled else extent, WIDTH) as start:
            inside = code.counting(L, start) < L.splat(Value(code.scalar, extent, dtypes.int64))
            made = []
            for pointer in inputs:
                raw = read(L, form.key, pointer, start, str(inside.name))
                if form.mends:
                    found = L.any_lane(keys.out_of_order(L, raw, form.dtype) & inside)
                    e.store("i1", e.assign(f"or i1 {e.load('i1', odd)}, {found}"), odd)
                made.append(L.select(inside, rows.element_key(L, form, raw), largest).name)
            for number, name in enumerate(transposed(L, form.key, made)):
                position = code.add(start, number)
                index = L.splat(Value(code.scalar, position, dtypes.int64))
                self.put(position, rows.word(L, form, Value(L, name, form.key), index))
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
        """The smaller and the larger word of each lane."""
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
        """The same network in loops."""
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

    def write_rows(self, inputs: list[str], outputs: list[str], present: str, start: str, stop: str) -> None:
        code, e, L, form = self.code, self.e, self.L, self.form
        first = e.assign(f"and i64 {start}, {-WIDTH}")
        with e.loop(first, stop, WIDTH) as position:
            columns = [self.results(code.add(position, number)) for number in range(WIDTH)]
            numbers = code.counting(L, position)
            bounds = [L.splat(Value(code.scalar, bound, dtypes.int64)) for bound in (start, stop)]
            inside = (numbers >= bounds[0]) & (numbers < bounds[1])
            dtype = columns[0].dtype
            for lane, name in enumerate(transposed(L, dtype, [column.name for column in columns])):
                there = Value(code.scalar, code.compare("slt", str(lane), present), dtypes.bool_)
                mask = inside & L.splat(there)
                value = Value(L, name, dtype)
                if form.gathers:
                    index = L.convert(value, dtypes.uint64)
                    value = load(L, form.key, Location(inputs[lane], index.name, True), mask.name)
                write(L, value, outputs[lane], code.subtract(position, start), mask.name)

    def results(self, position: str) -> Value:
        """A column of results, or of indices of results."""
        words = self.get(position)
        if self.form.carries:
            return self.L.convert(words[-1], dtypes.uint32)
        return keys.restored(self.L, words[0], self.form.dtype)

    def mend(self, source: str, target: str, first: str, present: str, extent: str, width: str) -> None:
        code, size = self.code, self.form.key.size
        start, stop = code.number(START), code.number(STOP)
        with self.e.loop(first, code.add(first, present)) as row:
            input_ = code.moved(source, code.multiply(row, code.multiply(extent, size)))
            output = code.moved(target, code.multiply(row, code.multiply(width, size)))
            self.e.emit(f"call void @mend(ptr {input_}, i64 {extent}, ptr {output}, i64 {start}, i64 {stop})")
