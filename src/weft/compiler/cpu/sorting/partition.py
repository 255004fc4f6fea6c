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
MOST_VECTORS = 16
"""As many vectors at most are sorted by a network."""


def is_fast(size: int) -> bool:
    """Whether this processor has the instruction for words of ``size`` bytes."""
    return size in (4, 8) and "+avx512f" in host.current().features


class _Vectors:
    """Vectors of words in one register."""

    def __init__(self, code: Code, size: int) -> None:
        self.code, self.e = code, code.e
        self.dtype: Dtype = {4: dtypes.uint32, 8: dtypes.uint64}[size]
        self.L = Lanes(code.e, VECTOR_BYTES // size)
        self.type = self.L.type_of(self.dtype)
        self.element = f"i{8 * size}"

    @property
    def width(self) -> int:
        return self.L.width

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
        upper = ", ".join(f"i1 {'true' if partner < lane else 'false'}" for lane, partner in enumerate(partners))
        return self.L.select(Value(self.L, f"<{upper}>", dtypes.bool_), high, low)

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


def functions(size: int) -> list[Function]:
    """``sort_words``, which needs ``by_digits``, and what it calls."""
    return [_few(size), _part(size), _start(size)]


def _start(size: int) -> Function:
    code = Code()
    zeros = code.e.call("llvm.ctlz.i64", "i64", [("i64", "%count"), ("i1", "false")])
    depth = code.multiply(code.subtract(64, zeros), 2)
    code.e.emit(f"call void @part(ptr %a, i64 %count, ptr %b, i64 {depth})")
    return code.finished("sort_words", "ptr %a, i64 %count, ptr %b")


def _few(size: int) -> Function:
    """Sort at most ``MOST_VECTORS`` vectors of words."""
    code = Code()
    e = code.e
    v = _Vectors(code, size)
    tile = e.slot(f"[{MOST_VECTORS} x {v.type}], align {VECTOR_BYTES}")
    vectors = code.divide(code.add("%count", v.width - 1), v.width)
    zeros = e.call("llvm.ctlz.i64", "i64", [("i64", code.subtract(vectors, 1)), ("i1", "false")])
    padded = e.assign(f"shl i64 1, {code.subtract(64, zeros)}")
    largest = v.L.constant(-1, v.dtype)
    with e.loop("0", padded) as number:
        start = code.multiply(number, v.width)
        inside = v.below(code.subtract("%count", start))
        found = v.load("%a", start, str(inside.name))
        v.store(v.sorted(v.L.select(inside, found, largest)), tile, start)
    levels = code.subtract(64, zeros)
    with e.loop("0", levels) as level:
        half = e.assign(f"shl i64 1, {level}")
        whole = code.add(half, half)
        with e.loop("0", padded, whole) as base:
            _merge(code, v, tile, base, half, whole, level)
    with e.loop("0", vectors) as number:
        start = code.multiply(number, v.width)
        inside = v.below(code.subtract("%count", start))
        v.store(v.load(tile, start), "%a", start, str(inside.name))
    return code.finished("few", "ptr %a, i64 %count")


def _merge(code: Code, v: _Vectors, tile: str, base: str, half: str, whole: str, level: str) -> None:
    """Merge two sorted runs of ``half`` vectors: the second one is read backwards, which makes both a bitonic run."""
    e = code.e
    last = code.add(base, code.subtract(whole, 1))
    with e.loop("0", half) as number:
        _compare(code, v, tile, code.add(base, number), code.subtract(last, number), backwards=True)
    with e.loop("0", level) as turn:
        distance = e.assign(f"lshr i64 {half}, {code.add(turn, 1)}")
        stop = code.add(base, whole)
        with e.loop(base, stop, code.add(distance, distance)) as first, e.loop("0", distance) as number:
            low = code.add(first, number)
            _compare(code, v, tile, low, code.add(low, distance), backwards=False)
    with e.loop("0", whole) as number:
        place = code.multiply(code.add(base, number), v.width)
        v.store(v.merged(v.load(tile, place)), tile, place)


def _compare(code: Code, v: _Vectors, tile: str, low: str, high: str, backwards: bool) -> None:
    places = [code.multiply(number, v.width) for number in (low, high)]
    left, right = (v.load(tile, place) for place in places)
    smaller, larger = v.in_order(left, v.reversed(right) if backwards else right)
    v.store(smaller, tile, places[0])
    v.store(larger, tile, places[1])


def _part(size: int) -> Function:
    """Sort ``%count`` words with as many words of other memory, parting them at most ``%depth`` times."""
    code = Code()
    e = code.e
    v = _Vectors(code, size)
    few = code.compare("ule", "%count", MOST_VECTORS * v.width)
    with e.when(few):
        with e.when(code.compare("ugt", "%count", 1)):
            e.emit("call void @few(ptr %a, i64 %count)")
        e.leave()
    with e.when(code.compare("eq", "%depth", 0)):
        e.emit("call void @by_digits(ptr %a, i64 %count, ptr %b)")
        e.leave()
    pivot = _pivot(code, v)
    left = _moved_apart(code, v, "%a", lambda value: value < pivot, keeps=True)
    depth = code.subtract("%depth", 1)
    with e.when(code.compare("ne", left, 0)):
        right = code.subtract("%count", left)
        _copied(code, v, right, code.moved("%a", left, v.element))
        e.emit(f"call void @part(ptr %a, i64 {left}, ptr %b, i64 {depth})")
        e.emit(f"call void @part(ptr {code.moved('%a', left, v.element)}, i64 {right}, ptr %b, i64 {depth})")
        e.leave()
    # No word is below the pivot, and all are at %b. Those that equal it come first, and are in order.
    equal = _moved_apart(code, v, "%b", lambda value: value <= pivot, keeps=False)
    rest = code.subtract("%count", equal)
    with e.loop("0", equal, v.width) as start:
        v.store(pivot, "%a", start, str(v.below(code.subtract(equal, start)).name))
    others = code.moved("%a", equal, v.element)
    _copied(code, v, rest, others)
    e.emit(f"call void @part(ptr {others}, i64 {rest}, ptr %b, i64 {depth})")
    return code.finished("part", "ptr %a, i64 %count, ptr %b, i64 %depth")


def _pivot(code: Code, v: _Vectors) -> Value:
    """The median of some words, in every lane."""
    distance = code.divide("%count", v.width)
    sample = v.value("poison")
    for lane in range(v.width):
        pointer = code.moved("%a", code.multiply(distance, lane), v.element)
        word = code.e.load(v.element, pointer)
        sample = v.value(code.e.assign(f"insertelement {v.type} {sample.name}, {v.element} {word}, i64 {lane}"))
    return v.shuffled(v.sorted(sample), [v.width // 2] * v.width)


def _moved_apart(code: Code, v: _Vectors, source: str, goes_left: Test, keeps: bool) -> str:
    """Move those words at ``source`` that go left together at ``%a`` (if they are kept), and all others at ``%b``; gives
    the number of the former."""
    e = code.e
    lefts, rights = e.slot("i64"), e.slot("i64")
    code.keep("0", lefts)
    code.keep("0", rights)
    whole = e.assign(f"and i64 %count, {-v.width}")

    def vector(start: str, inside: Value | None) -> None:
        value = v.load(source, start, None if inside is None else str(inside.name))
        left = goes_left(value)
        right = ~left
        if inside is not None:
            left, right = left & inside, right & inside
        for mask, pointer, slot in ((left, "%a", lefts), (right, "%b", rights)):
            before, found = e.load("i64", slot), lane_count(code, v.L, mask)
            after = code.add(before, found)
            code.keep(after, slot)
            if pointer == "%b" or keeps:
                only = None if inside is None else str(v.below(found).name)
                v.store(v.together(value, mask), pointer, before, only)

    with e.loop("0", whole, v.width) as start:
        vector(start, None)
    rest = code.subtract("%count", whole)
    with e.when(code.compare("ne", rest, 0)):
        vector(whole, v.below(rest))
    return e.load("i64", lefts)


def _copied(code: Code, v: _Vectors, count: str, target: str) -> None:
    with code.e.loop("0", code.e.assign(f"and i64 {count}, {-v.width}"), v.width) as start:
        v.store(v.load("%b", start), target, start)
    whole = code.e.assign(f"and i64 {count}, {-v.width}")
    inside = str(v.below(code.subtract(count, whole)).name)
    v.store(v.load("%b", whole, inside), target, whole, inside)
