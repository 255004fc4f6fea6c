"""Products of groups of small matrices of bfloat16, with pairs of results in a lane.

A bfloat16 is the upper half of the float32 of the same value. A vector of results in the order of memory is a vector of
pairs, and it is computed as two vectors of sums in float32: of the first results of pairs, and of the second ones. So
elements of operands are shuffled as what they are in memory, for two vectors at once: a shift then makes a vector of
float32 of the lower halves of lanes, and a mask one of the upper halves.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu import pairs_of_bfloat16
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.product_step import multiply_add
from weft.compiler.cpu.tiny_groups import GROUP, Tiny

_PART = 8
"""How many elements are in 16 bytes. Within these, processors without AVX-512 move elements to any place."""


class TinyPairsWriter(Integers):
    """Writes a function that multiplies a group of matrices. It may read elements after those of these matrices, up to
    ``ends`` elements of each operand."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(Emitter())
        self.tiny = tiny
        self.L, self.both = Lanes(self.e, tiny.lanes), Lanes(self.e, 2 * tiny.lanes)
        self.type = self.both.type_of(dtypes.uint16)
        self.ends = {operand: tiny.group * tiny.sizes[operand] for operand in "ab"}
        of_all = self.L.width == pairs_of_bfloat16.MOST_LANES
        self.part = self.both.width if of_all else _PART
        """Within how many elements a shuffle moves them to any place."""
        self.moves_bytes = not of_all or "+avx512vbmi" in host.current().features.split(",")
        """Whether one shuffle moves elements to upper halves, and makes the lower ones zero."""
        self._upper_bytes = ""
        self._read: dict[tuple[str, tuple[int, ...]], str] = {}

    def function(self, name: str) -> EmittedFunction:
        L, tiny = self.L, self.tiny
        for first in range(0, tiny.group * tiny.sizes["c"], self.both.width):
            self._read = {}
            results = range(first, first + self.both.width)
            totals = [L.constant(0, tiny.dtype)] * 2
            for left, right in zip(self._factors("a", results), self._factors("b", results), strict=True):
                totals = [multiply_add(L, *one) for one in zip(left, right, totals, strict=True)]
            self._store(totals, first)
        return self.e, self.e.function(name, GROUP, "internal ")

    def _factors(self, operand: str, results: range) -> list[tuple[Value, Value]]:
        """For each term, the elements of an operand for the first results of pairs, and for the second ones. If these
        are the same, the elements for two terms are a pair."""
        terms = [self.tiny.elements(operand, results, term) for term in range(self.tiny.extents[2])]
        if any(elements[::2] != elements[1::2] for elements in terms):
            return self._halves(operand, terms)
        both = zip(terms[::2], [*terms[1::2], terms[-1]][: -(-len(terms) // 2)], strict=True)
        halves = self._halves(operand, [_alternating(one[::2], other[::2]) for one, other in both])
        return [(half, half) for pair in halves for half in pair][: len(terms)]

    def _halves(self, operand: str, orders: Sequence[Sequence[int]]) -> list[tuple[Value, Value]]:
        """For each of ``orders``, the elements of an operand for the lower halves of lanes, and for the upper ones.
        They are shuffled from the same elements in memory if these are in no more vectors than those of one order."""
        of_each = [self._windows(operand, [order]) for order in orders]
        of_all = self._windows(operand, orders)
        if len(of_all) == max(map(len, of_each)):
            of_each = [of_all] * len(orders)
        return [self._halves_of(operand, windows, order) for windows, order in zip(of_each, orders, strict=True)]

    def _parts(self, order: Sequence[int]) -> list[Sequence[int]]:
        return [order[start : start + self.part] for start in range(0, len(order), self.part)]

    def _windows(self, operand: str, orders: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """For each vector that is read for some orders: from which element on each of its parts is read."""
        parts = [[n for part in same for n in part] for same in zip(*map(self._parts, orders), strict=True)]
        end = self.tiny.group * self.tiny.sizes[operand]
        return _beside([_starts(part, self.part, end) for part in parts], self.part)

    def _halves_of(self, operand: str, windows: Sequence[tuple[int, ...]], order: Sequence[int]) -> tuple[Value, Value]:
        """Elements for the lower halves of lanes and for the upper ones, from windows that have them."""
        vectors = [self._window(operand, starts) for starts in windows]
        places = [self._place(windows, lane, element) for lane, element in enumerate(order)]
        if len(vectors) == 1 and self.moves_bytes:
            low, high = [self._upper_halves(vectors[0], [place for _, place in places[half::2]]) for half in (0, 1)]
            return low, high
        L, type_ = self.L, self.L.type_of(dtypes.uint32)
        name = self._shuffled(vectors, places)
        pairs = Value(L, self.e.assign(f"bitcast {self.type} {name} to {type_}"), dtypes.uint32)
        return pairs_of_bfloat16.apart(L, pairs)

    def _place(self, windows: Sequence[tuple[int, ...]], lane: int, element: int) -> tuple[int, int]:
        """In which window an element is that moves to a lane, and where there."""
        starts = [window[lane // self.part] for window in windows]
        number = next(n for n, start in enumerate(starts) if start <= element < start + self.part)
        return number, lane - lane % self.part + element - starts[number]

    def _shuffled(self, vectors: Sequence[str], places: Sequence[tuple[int, int]]) -> str:
        """Elements of several vectors."""
        width = len(places)
        if len(vectors) <= 2:
            return self._shuffle(vectors, [number * width + place for number, place in places])
        found = ""
        for vector, name in enumerate(vectors):
            # The elements of other vectors are zero here.
            mine = [place if number == vector else width for number, place in places]
            moved = self._shuffle([name, "zeroinitializer"], mine)
            found = self.e.assign(f"or {self.type} {found}, {moved}") if found else moved
        return found

    def _upper_halves(self, vector: str, places: Sequence[int]) -> Value:
        """Elements as the upper halves of lanes, whose lower halves are zero."""
        type_ = self.L.type_of(dtypes.float32)
        if self.L.width < pairs_of_bfloat16.MOST_LANES:
            zero = self.both.width
            moved = self._shuffle([vector, "zeroinitializer"], _alternating([zero] * len(places), places))
            return Value(self.L, self.e.assign(f"bitcast {self.type} {moved} to {type_}"), dtypes.float32)
        lanes = 4 * self.L.width
        of_bytes = f"<{lanes} x i8>"
        numbers = ", ".join([f"i8 {byte}" for place in places for byte in (0, 0, 2 * place, 2 * place + 1)])
        operand = self.e.assign(f"bitcast {self.type} {vector} to {of_bytes}")
        permuted = self.e.call(
            "llvm.x86.avx512.permvar.qi.512", of_bytes, [(of_bytes, operand), (of_bytes, f"<{numbers}>")]
        )
        chosen = f"select <{lanes} x i1> {self._mask()}, {of_bytes} {permuted}, {of_bytes} zeroinitializer"
        return Value(self.L, self.e.assign(f"bitcast {of_bytes} {self.e.assign(chosen)} to {type_}"), dtypes.float32)

    def _mask(self) -> str:
        """The mask of the bytes of the upper halves of lanes. LLVM must not know it: it would combine a shuffle of one
        vector and the mask, which are one instruction, to a shuffle of two, which is three on some processors."""
        if not self._upper_bytes:
            lanes = 4 * self.L.width
            number = sum(0b1100 << n for n in range(0, lanes, 4))
            bits = self.e.assign(f'call i{lanes} asm "", "=r,0"(i{lanes} {number})')
            self._upper_bytes = self.e.assign(f"bitcast i{lanes} {bits} to <{lanes} x i1>")
        return self._upper_bytes

    def _window(self, operand: str, starts: tuple[int, ...]) -> str:
        """Neighbouring elements for each part of a vector."""
        read = self._read.get((operand, starts))
        if read is None:
            read = self._read[operand, starts] = self._load(operand, starts)
        return read

    def _load(self, operand: str, starts: tuple[int, ...]) -> str:
        width = self.both.width
        if starts == tuple(range(starts[0], starts[0] + width, self.part)):
            return self._load_part(operand, starts[0], width)
        low, high = [self._load_part(operand, start, self.part) for start in starts]
        return self._shuffle([low, high], range(width), self.part)

    def _load_part(self, operand: str, start: int, width: int) -> str:
        self.ends[operand] = max(self.ends[operand], start + width)
        pointer = self.moved(f"%{operand}", start, "i16")
        return self.e.assign(f"load <{width} x i16>, ptr {pointer}, align 2")

    def _shuffle(self, vectors: Sequence[str], places: Sequence[int], width: int = 0, element: str = "i16") -> str:
        type_ = f"<{width or self.both.width} x {element}>"
        numbers = ", ".join([f"i32 {place}" for place in places])
        first, second = [*vectors, "poison"][:2]
        return self.e.assign(f"shufflevector {type_} {first}, {type_} {second}, <{len(places)} x i32> <{numbers}>")

    def _store(self, totals: Sequence[Value], first: int) -> None:
        """Store sums in the order of results."""
        L, both, tiny = self.L, self.both, self.tiny
        if tiny.result is tiny.dtype:
            order = _alternating(range(L.width), range(L.width, both.width))
            name = self._shuffle([total.name for total in totals], order, L.width, "float")
            store(both, Value(both, name, tiny.dtype), tiny.dtype, Location("%c", str(first), False), None)
        else:
            pointer = self.moved("%c", first, "i16")
            self.e.emit(f"store {self.type} {pairs_of_bfloat16.rounded(L, *totals).name}, ptr {pointer}, align 2")


def _alternating(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [number for pair in zip(first, second, strict=True) for number in pair]


def _starts(elements: Sequence[int], width: int, end: int) -> list[range]:
    """As few windows of ``width`` elements as have all ``elements``: for each, where it may start. If possible, it ends
    before ``end``."""
    left, found = sorted(set(elements)), []
    while left:
        inside = [element for element in left if element < left[0] + width]
        least = max(0, inside[-1] - width + 1)
        found.append(range(least, max(least, min(left[0], end - width)) + 1))
        left = left[len(inside) :]
    return found


def _beside(parts: Sequence[Sequence[range]], width: int) -> list[tuple[int, ...]]:
    """Windows of one or two parts of a vector, which start in ranges. If possible, those of two parts are the same, or
    the second one begins where the first one ends."""
    found = []
    for number in range(max(map(len, parts))):
        ranges = [part[min(number, len(part) - 1)] for part in parts]
        starts = tuple([one[-1] for one in ranges])
        for distance in (0, width):
            first = min(one[-1] - n * distance for n, one in enumerate(ranges))
            if all(first + n * distance in one for n, one in enumerate(ranges)):
                starts = tuple([first + n * distance for n in range(len(ranges))])
                break
        found.append(starts)
    return found
