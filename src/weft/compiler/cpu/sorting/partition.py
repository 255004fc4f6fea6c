"""Words that fit a cache, sorted by parting them in two and each part again, a vector at a time.

It takes an instruction that moves chosen lanes of a vector together, which AVX-512 has. Few words are sorted by a
bitonic network. (C. A. R. Hoare, Quicksort, 1962; K. E. Batcher, Sorting networks and their applications, 1968; the
parting in vectors is that of B. Bramas, A novel hybrid quicksort algorithm vectorized using AVX-512, 2017.) What would
take too long, because it is parted badly again and again, is sorted by digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.sorting.code import Code, Function, read, write
from weft.compiler.cpu.sorting.rows import lane_count
from weft.dtypes import Dtype

Test = Callable[[Value], Value]

VECTOR_BYTES = 64
NETWORKS = (1, 2, 4, 8, 12, 16)
"""How many vectors there is a network for."""
MOST_VECTORS = NETWORKS[-1]


def is_fast(size: int) -> bool:
    """Whether this processor has the instruction for words of ``size`` bytes."""
    return size in (4, 8) and "+avx512f" in host.current().features


class Vectors:
    """Vectors of words in one register."""

    def __init__(self, code: Code, size: int) -> None:
        self.code, self.e = code, code.e
        self.dtype: Dtype = {4: dtypes.uint32, 8: dtypes.uint64}[size]
        self.L = Lanes(code.e, VECTOR_BYTES // size)
        self.type = self.L.type_of(self.dtype)
        self.element = f"i{8 * size}"
        self.upper: list[Value] = []

    @property
    def width(self) -> int:
        return self.L.width

    @property
    def bits(self) -> int:
        """How many bits the number of a lane has."""
        return self.width.bit_length() - 1

    def parameters(self) -> str:
        """Those of a function that calls `step`: for each bit, the lanes whose number has it.

        They are parameters because LLVM would merge the selections by a constant with shuffles, and these are slow.
        """
        masks = self.L.type_of(dtypes.bool_)
        self.upper = [
            Value(self.L, self.e.assign(f"bitcast i{self.width} %upper{bit} to {masks}"), dtypes.bool_)
            for bit in range(self.bits)
        ]
        return "".join([f", i{self.width} %upper{bit}" for bit in range(self.bits)])

    def arguments(self) -> str:
        """What stands for `parameters` in a call."""
        lanes = range(self.width)
        numbers = [sum(1 << lane for lane in lanes if lane >> bit & 1) for bit in range(self.bits)]
        return "".join([f", i{self.width} {number}" for number in numbers])

    def passed_on(self) -> str:
        return "".join([f", i{self.width} %upper{bit}" for bit in range(self.bits)])

    def value(self, name: str) -> Value:
        return Value(self.L, name, self.dtype)

    def load(self, pointer: str, index: str | int, mask: str | None = None) -> Value:
        return read(self.L, self.dtype, pointer, index, mask)

    def store(self, value: Value, pointer: str, index: str | int, mask: str | None = None) -> None:
        write(self.L, value, pointer, index, mask)

    def below(self, count: str) -> Value:
        """The first lanes, as many as ``count``."""
        lanes = self.code.counting(self.L, "0")
        return lanes < self.L.splat(Value(self.code.scalar, count, dtypes.int64))

    def shuffled(self, value: Value, lanes: Sequence[int]) -> Value:
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {self.type} {value.name}, {self.type} poison, <{self.width} x i32> <{chosen}>"
        return self.value(self.e.assign(text))

    def reversed(self, value: Value) -> Value:
        return self.shuffled(value, range(self.width - 1, -1, -1))

    def together(self, value: Value, mask: Value) -> Value:
        """The lanes of ``mask``, moved to the front."""
        function = f"llvm.experimental.vector.compress.v{self.width}{self.element}"
        masks = self.L.type_of(dtypes.bool_)
        arguments = [(self.type, value.name), (masks, mask.name), (self.type, "poison")]
        return self.value(self.e.call(function, self.type, arguments))

    def in_order(self, left: Value, right: Value) -> tuple[Value, Value]:
        return self.L.intrinsic("umin", left, right), self.L.intrinsic("umax", left, right)

    def step(self, value: Value, partners: Sequence[int]) -> Value:
        """Each lane compared with its partner; the lower one of both gets the smaller word."""
        low, high = self.in_order(value, self.shuffled(value, partners))
        return self.L.select(self.upper[partners[0].bit_length() - 1], high, low)

    def merged(self, value: Value) -> Value:
        """The words of a bitonic vector in order."""
        distance = self.width // 2
        while distance:
            value = self.step(value, [lane ^ distance for lane in range(self.width)])
            distance //= 2
        return value

    def sorted(self, value: Value) -> Value:
        size = 2
        while size <= self.width:
            value = self.step(value, [lane ^ (size - 1) for lane in range(self.width)])
            distance = size // 4
            while distance:
                value = self.step(value, [lane ^ distance for lane in range(self.width)])
                distance //= 2
            size *= 2
        return value


def functions(size: int, depth: int | None) -> list[Function]:
    """``sort_words``, which needs ``by_digits``, and what it calls."""
    networks = [_network(size, count) for count in NETWORKS]
    return [_sort_vectors(size), _merge_vectors(size), *networks, _few(size), _part(size), _start(size, depth)]


def _start(size: int, most: int | None) -> Function:
    code = Code()
    zeros = code.e.call("llvm.ctlz.i64", "i64", [("i64", "%count"), ("i1", "false")])
    depth = code.multiply(code.subtract(64, zeros), 2) if most is None else str(most)
    v = Vectors(code, size)
    code.e.emit(f"call void @part(ptr %a, i64 %count, ptr %a, ptr %b, i64 {depth}{v.arguments()})")
    return code.finished("sort_words", "ptr %a, i64 %count, ptr %b")


def _few(size: int) -> Function:
    """Sort at most `MOST_VECTORS` vectors of words."""
    code = Code()
    v = Vectors(code, size)
    parameters = v.parameters()
    for count in NETWORKS:
        with code.e.when(code.compare("ule", "%count", count * v.width)):
            code.e.emit(f"call void @network_{count}(ptr %from, i64 %count, ptr %to{v.passed_on()})")
            code.e.leave()
    return code.finished("few", f"ptr %from, i64 %count, ptr %to{parameters}")


def _network(size: int, count: int) -> Function:
    """Sort ``count`` vectors of words; what is missing has the largest words.

    How often loops run is the same in each call, so that the processor foresees when they end.
    """
    code = Code()
    v = Vectors(code, size)
    parameters = f"ptr %from, i64 %count, ptr %to{v.parameters()}"
    tile = code.e.slot(f"[{count} x {v.type}], align {VECTOR_BYTES}")
    code.e.emit(f"call void @sort_vectors(ptr %from, i64 %count, i64 {count}, ptr {tile}{v.passed_on()})")
    half = 1
    while half < count:
        for base in range(0, count, 2 * half):
            _merge(v, tile, base, half, min(base + 2 * half, count))
        code.e.emit(f"call void @merge_vectors(ptr {tile}, i64 {count}{v.passed_on()})")
        half *= 2
    with code.e.loop("0", str(count)) as number:
        start = code.multiply(number, v.width)
        v.store(v.load(tile, start), "%to", start, str(v.below(code.subtract("%count", start)).name))
    return code.finished(f"network_{count}", parameters)


def _sort_vectors(size: int) -> Function:
    """Sort the words of each vector."""
    code = Code()
    v = Vectors(code, size)
    parameters = v.parameters()
    largest = v.L.constant(-1, v.dtype)
    with code.e.loop("0", "%vectors") as number:
        start = code.multiply(number, v.width)
        inside = v.below(code.subtract("%count", start))
        found = v.L.select(inside, v.load("%from", start, str(inside.name)), largest)
        v.store(v.sorted(found), "%tile", start)
    return code.finished("sort_vectors", f"ptr %from, i64 %count, i64 %vectors, ptr %tile{parameters}")


def _merge_vectors(size: int) -> Function:
    """Sort the words of each vector, which are bitonic."""
    code = Code()
    v = Vectors(code, size)
    parameters = v.parameters()
    with code.e.loop("0", "%vectors") as number:
        start = code.multiply(number, v.width)
        v.store(v.merged(v.load("%tile", start)), "%tile", start)
    return code.finished("merge_vectors", f"ptr %tile, i64 %vectors{parameters}")


def _merge(v: Vectors, tile: str, base: int, half: int, stop: int) -> None:
    """Merge two sorted runs of ``half`` vectors but for the order within vectors: the second run is read backwards,
    which makes both a bitonic one.

    Vectors that are missing at the end of the second run stand for the largest words, which stay where they are.
    """
    values = {number: v.load(tile, number * v.width) for number in range(base, stop)}
    last = base + 2 * half - 1
    for low in range(base, base + half):
        high = base + last - low
        if high < stop:
            values[low], values[high] = v.in_order(values[low], v.reversed(values[high]))
    distance = half // 2
    while distance:
        for low in range(base, stop - distance):
            if not (low - base) & distance:
                values[low], values[low + distance] = v.in_order(values[low], values[low + distance])
        distance //= 2
    for number, value in values.items():
        v.store(value, tile, number * v.width)


def _part(size: int) -> Function:
    """Sort ``%count`` words, parting them at most ``%depth`` times.

    They are at ``%from``, which is ``%to`` or ``%rest``, and end at ``%to``. Words that are not below the pivot are
    moved to ``%rest``, and sorted from there to where they belong before the others need that memory.
    """
    code = Code()
    e = code.e
    v = Vectors(code, size)
    parameters = v.parameters()
    with e.when(code.compare("ule", "%count", MOST_VECTORS * v.width)):
        e.emit(f"call void @few(ptr %from, i64 %count, ptr %to{v.passed_on()})")
        e.leave()
    with e.when(code.compare("eq", "%depth", 0)):
        with e.when(e.assign("icmp ne ptr %from, %to")):
            code.copied("%from", "%to", code.multiply("%count", size))
        e.emit("call void @by_digits(ptr %to, i64 %count, ptr %rest)")
        e.leave()
    pivot = _pivot(code, v)
    below = moved_apart(code, v, "%from", lambda value: value < pivot, keeps=True)
    depth = code.subtract("%depth", 1)
    with e.when(code.compare("ne", below, 0)):
        _sort_rest(code, v, below, depth)
        e.emit(f"call void @part(ptr %to, i64 {below}, ptr %to, ptr %rest, i64 {depth}{v.passed_on()})")
        e.leave()
    # No word is below the pivot, and all are at %rest. Those that equal it come first, and are in order.
    equal = moved_apart(code, v, "%rest", lambda value: value <= pivot, keeps=False)
    with e.loop("0", equal, v.width) as start:
        v.store(pivot, "%to", start, str(v.below(code.subtract(equal, start)).name))
    _sort_rest(code, v, equal, depth)
    return code.finished("part", f"ptr %from, i64 %count, ptr %to, ptr %rest, i64 %depth{parameters}")


def _sort_rest(code: Code, v: Vectors, before: str, depth: str) -> None:
    """Sort the words at ``%rest`` to behind those that come ``before`` them."""
    target = code.moved("%to", before, v.element)
    count = code.subtract("%count", before)
    code.e.emit(f"call void @part(ptr %rest, i64 {count}, ptr {target}, ptr %rest, i64 {depth}{v.passed_on()})")


def _pivot(code: Code, v: Vectors) -> Value:
    """The median of medians of three words, which are from both ends and the middle; in every lane."""
    last = code.subtract("%count", v.width)
    middle = code.e.assign(f"lshr i64 {last}, 1")
    first, second, third = (v.load("%from", start) for start in ("0", middle, last))
    low, high = v.in_order(first, second)
    medians = v.in_order(low, v.in_order(high, third)[0])[1]
    return v.shuffled(v.sorted(medians), [v.width // 2] * v.width)


def moved_apart(code: Code, v: Vectors, source: str, is_first: Test, keeps: bool) -> str:
    """Move those words at ``source`` that come first to ``%to`` (if they are kept), and all others to ``%rest``; gives
    the number of the former."""
    e = code.e
    firsts = e.slot("i64")
    code.keep("0", firsts)
    whole = e.assign(f"and i64 %count, {-v.width}")
    with e.loop("0", whole, v.width) as start:
        value, before = v.load(source, start), e.load("i64", firsts)
        first = is_first(value)
        code.keep(code.add(before, lane_count(code, v.L, first)), firsts)
        if keeps:
            v.store(v.together(value, first), "%to", before)
        v.store(v.together(value, ~first), "%rest", code.subtract(start, before))
    rest = code.subtract("%count", whole)
    with e.when(code.compare("ne", rest, 0)):
        inside, before = v.below(rest), e.load("i64", firsts)
        value = v.load(source, whole, str(inside.name))
        first = is_first(value) & inside
        found = lane_count(code, v.L, first)
        code.keep(code.add(before, found), firsts)
        if keeps:
            v.store(v.together(value, first), "%to", before, str(v.below(found).name))
        others = v.below(code.subtract(rest, found))
        v.store(v.together(value, ~first & inside), "%rest", code.subtract(whole, before), str(others.name))
    return e.load("i64", firsts)
