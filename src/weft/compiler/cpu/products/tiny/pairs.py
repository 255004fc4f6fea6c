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
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.products import pairs_of_bfloat16
from weft.compiler.cpu.products.step import multiply_add

from .groups import GroupWriter, Tiny, shuffled

_PART = 8
"""How many elements are in 16 bytes. Within these, processors without AVX-512 move elements to any place."""
_STRETCH = 8
"""How many neighbouring elements are read at least, if they are put together with others."""


class TinyPairs(Integers):
    """Reads elements of the operands of the current group of a ``writer``."""

    def __init__(self, writer: GroupWriter) -> None:
        super().__init__(writer.e)
        self.tiny, self.L, self.both = writer.tiny, writer.L, Lanes(writer.e, 2 * writer.L.width)
        self.places, self.ends, self.matrices = writer.places, writer.ends, writer.matrices
        self.type = self.both.type_of(dtypes.uint16)
        of_all = self.L.width == pairs_of_bfloat16.MOST_LANES
        self.part = self.both.width if of_all else _PART
        """Within how many elements a shuffle moves them to any place."""
        self.moves_bytes = not of_all or "+avx512vbmi" in host.current().features.split(",")
        """Whether one shuffle moves elements to upper halves, and makes the lower ones zero."""
        self._upper_bytes = self._mask() if of_all and self.moves_bytes else ""
        self._read: dict[tuple[str, tuple[int, ...]], str] = {}

    def forget(self) -> None:
        """Read elements again from now on, because registers do not hold so many."""
        self._read = {}

    def vectors(self, operand: str, orders: Sequence[Sequence[int]]) -> list[Value]:
        """For each of ``orders``, a vector of the elements of an operand. Two of them are made together, unless one
        shuffle makes each."""
        found: list[Value] = []
        for start in range(0, len(orders), 2):
            one, other = [*orders[start : start + 2], orders[-1]][:2]
            both = _alternating(one, other)
            made = None if _is_in_order(both) or not self.moves_bytes else self._moved(operand, one, other)
            found += made or self.halves(operand, [both])[0]
        return found[: len(orders)]

    def _moved(self, operand: str, one: Sequence[int], other: Sequence[int]) -> list[Value] | None:
        """Elements in two orders, if one vector in memory has all of them, or one for each order if only elements of
        its parts can be shuffled."""
        if self.part == self.both.width:
            stretches = self._stretches(operand, [*one, *other])
            if not stretches:
                return None
            places = [[self._places_in(stretches, element)[0] for element in order] for order in (one, other)]
            return [self._upper_halves(self._window(operand, stretches), x) for x in places]
        orders = [_alternating(order, order) for order in (one, other)]
        windows = [self._windows(operand, [order]) for order in orders]
        if max(map(len, windows)) > 1:
            return None
        return [self._halves_of(operand, *each)[1] for each in zip(windows, orders, strict=True)]

    def _stretches(self, operand: str, elements: Sequence[int]) -> tuple[int, ...]:
        """Where up to four stretches of neighbouring elements start that have all ``elements`` and fill a vector; none
        if that is not possible."""
        width, end = self.both.width, self.matrices * self.tiny.sizes[operand]
        for count in (1, 2, 4) if self.part == width else ():
            starts = [places[-1] for places in _starts(elements, width // count, end)]
            if len(starts) <= count:
                return *starts, *starts[-1:] * (count - len(starts))
        return ()

    def _places_in(self, window: tuple[int, ...], element: int) -> list[int]:
        """Where an element is in a window made of stretches; there may be several places."""
        width = self.both.width // len(window)
        return [n * width + element - start for n, start in enumerate(window) if start <= element < start + width]

    def words(self, operand: str, one: Sequence[int], other: Sequence[int]) -> str:
        """A vector of elements of 16 bits, as they are in memory: those of one order, then those of another one."""
        both = _alternating(one, other)
        stretches = self._stretches(operand, both)
        if stretches:
            places = [self._places_in(stretches, element)[0] for element in (*one, *other)]
            return self._shuffle([self._window(operand, stretches)], places)
        windows = self._windows(operand, [both])
        of_all = [self._place(windows, lane, element) for lane, element in enumerate(both)]
        pairs = self._shuffled([self._window(operand, starts) for starts in windows], of_all)
        return self._shuffle([pairs], [*range(0, len(both), 2), *range(1, len(both), 2)])

    def factors(self, operand: str, results: range) -> list[tuple[Value, Value]]:
        """For each term, the elements of an operand for the first results of pairs, and for the second ones. If these
        are the same, the elements for two terms are a pair."""
        terms = [self.tiny.elements(operand, results, term) for term in range(self.tiny.extents[2])]
        if any(elements[::2] != elements[1::2] for elements in terms):
            return self.halves(operand, terms)
        both = zip(terms[::2], [*terms[1::2], terms[-1]][: -(-len(terms) // 2)], strict=True)
        halves = self.halves(operand, [_alternating(one[::2], other[::2]) for one, other in both])
        return [(half, half) for pair in halves for half in pair][: len(terms)]

    def halves(self, operand: str, orders: Sequence[Sequence[int]]) -> list[tuple[Value, Value]]:
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
        end = self.matrices * self.tiny.sizes[operand]
        found = _beside([_starts(part, self.part, end) for part in parts], self.part)
        if self.part == _PART or len(found) <= 2:
            return found
        starts = sorted({element // _STRETCH * _STRETCH for element in parts[0]})
        count = self.both.width // _STRETCH
        starts += starts[-1:] * (-len(starts) % count)
        return min(found, [tuple(starts[n : n + count]) for n in range(0, len(starts), count)], key=len)

    def _halves_of(self, operand: str, windows: Sequence[tuple[int, ...]], order: Sequence[int]) -> tuple[Value, Value]:
        """Elements for the lower halves of lanes and for the upper ones, from windows that have them."""
        vectors = [self._window(operand, starts) for starts in windows]
        places = [self._place(windows, lane, element) for lane, element in enumerate(order)]
        if len(vectors) == 1 and self.moves_bytes and not _is_in_order(order):
            low, high = [self._upper_halves(vectors[0], [place for _, place in places[half::2]]) for half in (0, 1)]
            return low, high
        L, type_ = self.L, self.L.type_of(dtypes.uint32)
        name = self._shuffled(vectors, places)
        pairs = Value(L, self.e.assign(f"bitcast {self.type} {name} to {type_}"), dtypes.uint32)
        return pairs_of_bfloat16.apart(L, pairs)

    def _place(self, windows: Sequence[tuple[int, ...]], lane: int, element: int) -> tuple[int, int]:
        """In which window an element is that moves to a lane, and where there."""
        if self.part == self.both.width:
            return next((n, place) for n, window in enumerate(windows) for place in self._places_in(window, element))
        starts = [window[lane // self.part] for window in windows]
        number = next(n for n, start in enumerate(starts) if start <= element < start + self.part)
        return number, lane - lane % self.part + element - starts[number]

    def _shuffled(self, vectors: Sequence[str], places: Sequence[tuple[int, int]]) -> str:
        """Elements of several vectors."""
        width = len(places)
        if len(vectors) <= 2:
            return self._shuffle(vectors, [number * width + place for number, place in places])
        found = ""
        for first in range(0, len(vectors), 2):
            here = [first <= number < first + 2 for number, _ in places]
            inside = [(number - first) * width + place for number, place in places]
            order = [place if is_here else None for is_here, place in zip(here, inside, strict=True)]
            moved = self._shuffle(vectors[first : first + 2], order)
            order = [width * is_here + lane for lane, is_here in enumerate(here)]
            found = self._shuffle([found, moved], order) if found else moved
        return found

    def _upper_halves(self, vector: str, places: Sequence[int]) -> Value:
        """Elements as the upper halves of lanes, whose lower halves are zero."""
        if self.L.width < pairs_of_bfloat16.MOST_LANES:
            return pairs_of_bfloat16.moved_up(self.L, vector, places)
        type_ = self.L.type_of(dtypes.float32)
        lanes = 4 * self.L.width
        of_bytes = f"<{lanes} x i8>"
        numbers = ", ".join([f"i8 {byte}" for place in places for byte in (0, 0, 2 * place, 2 * place + 1)])
        operand = self.e.assign(f"bitcast {self.type} {vector} to {of_bytes}")
        permuted = self.e.call(
            "llvm.x86.avx512.permvar.qi.512", of_bytes, [(of_bytes, operand), (of_bytes, f"<{numbers}>")]
        )
        chosen = f"select <{lanes} x i1> {self._upper_bytes}, {of_bytes} {permuted}, {of_bytes} zeroinitializer"
        return Value(self.L, self.e.assign(f"bitcast {of_bytes} {self.e.assign(chosen)} to {type_}"), dtypes.float32)

    def _mask(self) -> str:
        """The mask of the bytes of the upper halves of lanes. LLVM must not know it: it would combine a shuffle of one
        vector and the mask, which are one instruction, to a shuffle of two, which is three on some processors."""
        lanes = 4 * self.L.width
        number = sum(0b1100 << n for n in range(0, lanes, 4))
        bits = self.e.assign(f'call i{lanes} asm "", "=r,0"(i{lanes} {number})')
        return self.e.assign(f"bitcast i{lanes} {bits} to <{lanes} x i1>")

    def _window(self, operand: str, starts: tuple[int, ...]) -> str:
        """Neighbouring elements for each of several equal parts of a vector."""
        read = self._read.get((operand, starts))
        if read is None:
            read = self._read[operand, starts] = self._load(operand, starts)
        return read

    def _load(self, operand: str, starts: tuple[int, ...]) -> str:
        width, part = self.both.width, self.both.width // len(starts)
        if starts == tuple(range(starts[0], starts[0] + width, part)):
            return self._load_part(operand, starts[0], width)
        parts = [self._load_part(operand, start, part) for start in starts]
        while part < width:
            twos = zip(parts[::2], parts[1::2], strict=True)
            parts = [shuffled(self.e, two, range(2 * part), part) for two in twos]
            part *= 2
        return parts[0]

    def _load_part(self, operand: str, start: int, width: int) -> str:
        self.ends[operand] = max(self.ends[operand], start + width)
        pointer = self.moved(self.places[operand], start, "i16")
        return self.e.assign(f"load <{width} x i16>, ptr {pointer}, align 2")

    def _shuffle(self, vectors: Sequence[str], places: Sequence[int | None]) -> str:
        return shuffled(self.e, vectors, places, self.both.width)


class TinyPairsWriter(GroupWriter):
    """Multiplies a group of matrices, with vectors of results in the order in which they are in memory."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(tiny, tiny.group)
        self.elements = TinyPairs(self)

    def write(self) -> None:
        L, tiny, pairs = self.L, self.tiny, self.elements
        for first in range(0, tiny.group * tiny.sizes["c"], pairs.both.width):
            pairs.forget()
            results = range(first, first + pairs.both.width)
            totals = [L.constant(0, tiny.dtype)] * 2
            for left, right in zip(pairs.factors("a", results), pairs.factors("b", results), strict=True):
                totals = [multiply_add(L, *one) for one in zip(left, right, totals, strict=True)]
            place = self.moved(self.places["c"], first * tiny.result.size)
            self._store(totals, place)

    def _store(self, totals: Sequence[Value], place: str) -> None:
        """Store sums in the order of results."""
        L, both, tiny = self.L, Lanes(self.e, 2 * self.L.width), self.tiny
        if tiny.result is tiny.dtype:
            store(both, pairs_of_bfloat16.together(L, *totals), tiny.dtype, Location(place, "0", False), None)
        else:
            store(both, pairs_of_bfloat16.rounded(L, *totals), dtypes.uint16, Location(place, "0", False), None)


def _alternating(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [number for pair in zip(first, second, strict=True) for number in pair]


def _is_in_order(elements: Sequence[int]) -> bool:
    return list(elements) == list(range(elements[0], elements[0] + len(elements)))


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
