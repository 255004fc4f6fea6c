"""The kernel of products of a few rows: it multiplies some terms of the rows with a strip of the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WRITE_SOON, keep_order, opaque, prefetch
from weft.compiler.cpu.overlapping import Instructions, TurnInstructions, overlapped, run
from weft.compiler.cpu.products import float16_squares, pairs_of_bfloat16
from weft.compiler.cpu.products.half_squares import HalfSquare, shifts_pairs
from weft.compiler.cpu.products.step import below, further, multiply_add, read
from weft.compiler.cpu.products.term_squares import both, square, terms_of_square
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

from .ahead import ColumnsAhead
from .strip import LONG_VECTOR, Strip, adds_halves, has_pairs, is_cut, lacks_masks

AHEAD = 16
"""How many rows ahead the matrix is prefetched where the processor would not do it."""

ADDRESSED_TOGETHER = 4
"""How many columns are addressed by one pointer and multiples of the distance between columns."""

SUMS_AT_ONCE = 8
"""How many sums get a term of float16 before any gets the next one."""

MOST_STORES = 8
"""If more rows of sums are stored at once, their memory is prefetched."""

_KERNEL = (
    "ptr %first_a, ptr %first_b, ptr %first_c, i64 %inner, i64 %rows, i64 %columns, i1 %again, i64 %a_row, "
    "i64 %a_inner, i64 %b_step, i64 %c_row, i64 %c_column, i64 %count, i64 %next_a, i64 %next_b, i64 %next_c, "
    "ptr %kept, i1 %are_kept"
)


_Key = tuple[int, int]
"""Numbers of a block of terms and of a vector of columns."""
_Vectors = dict[_Key, str]


class FewRowsKernel:
    """Multiplies some terms of the rows with a strip of the matrix, and stores the sums or adds them to the result. If
    the ``result`` has another dtype than the sums, these must be complete; they are rounded when they are stored. It
    does so ``%count`` times, for operands and results that are ``%next_a``, ``%next_b`` and ``%next_c`` elements apart.

    A strip is as wide as some ``vectors``. Only ``%columns`` exist, which end in the last vector. At the ``edge`` of
    the matrix this has masks, else it is whole or overlaps the vector before (see `is_cut`). If it ``keeps`` columns,
    those of a strip are written to ``%kept``, or read there if they ``%are_kept``. For complex matrices, rows, columns
    and terms count real numbers; a complex one has two ``parts``.
    """

    parts = 1

    def __init__(self, strip: Strip, source: Dtype, vectors: int, edge: bool, result: Dtype, blocks: int = 1) -> None:
        self.strip, self.source, self.edge, self.result = strip, source, edge, result
        self.e = Emitter()
        self.L = Lanes(self.e, strip.lanes)
        self.type = self.L.type_of(strip.dtype)
        self.vectors = vectors
        self.overlaps = vectors > 1 and not edge and is_cut(strip, source)
        self.paired = (vectors - edge) // 2 * 2 if has_pairs(strip, source) else 0
        """For so many vectors of columns, one of two has the first columns of pairs, the other one the second ones."""
        self.sums_of_row = list(product(range(blocks), range(vectors)))
        self.sums = {(row, *key): self.e.slot(self.type) for row in range(strip.rows) for key in self.sums_of_row}

    def function(self, name: str) -> str:
        elements = {"a": self.strip.element, "b": MEMORY_TYPES[self.source], "c": MEMORY_TYPES[self.result]}
        with self.e.loop("0", "%count") as number:
            for operand, element in elements.items():
                distance = self._times(number, f"%next_{operand}")
                self.e.emit(f"%{operand} = getelementptr {element}, ptr %first_{operand}, i64 {distance}")
            self._multiply()
        return self.e.function(name, _KERNEL, "internal ")

    def _multiply(self) -> None:
        lanes = self.strip.lanes
        self.columns = [str(vector * lanes) for vector in range(self.vectors)]
        """The first columns of the vectors."""
        if self.overlaps:
            self.columns[-1] = self.e.assign(f"sub i64 %columns, {lanes}")
        for slot in self.sums.values():
            self.e.store(self.type, self.L.constant(0.0, self.strip.dtype).name, slot)
        if self.strip.rows > MOST_STORES:
            for row in range(self.strip.rows):
                line = further(self.e, MEMORY_TYPES[self.result], "%c", self._times(row, "%c_row"))
                prefetch(self.e, line, WRITE_SOON)
        starts = self._rows("%a", "%a_row")
        if self.strip.across:
            self._sum_across(starts)
        elif self.strip.keeps and self.vectors == self.strip.vectors:
            with self.e.when("%are_kept"):
                self._sum_kept(starts)
            with self.e.when(self.e.assign("xor i1 %are_kept, true")):
                self._sum_along(starts, keeps=True)
        else:
            self._sum_along(starts)
        self._store()

    def _further(self, pointer: str, distance: str) -> str:
        """``pointer`` moved by a number of elements of an operand."""
        return further(self.e, MEMORY_TYPES[self.source], pointer, distance)

    def _read(self, L: Lanes, pointer: str, index: str, mask: str | None) -> Value:
        return read(L, self.source, pointer, index, mask, self.strip.dtype)

    def _times(self, left: str | int, right: str) -> str:
        return self.e.assign(f"mul i64 {right}, {left}")

    def _rows(self, pointer: str, stride: str) -> list[str]:
        """Pointers to the rows. For one that does not exist it is that of the last row; its sums are not stored."""
        last = self.e.assign("sub i64 %rows, 1")
        starts = [pointer]
        for row in range(1, self.strip.rows):
            distance = self._times(self._nearest(row, last), stride)
            starts.append(further(self.e, self.strip.element, pointer, distance))
        return starts

    def _nearest(self, wanted: int, last: str) -> str:
        less = self.e.assign(f"icmp slt i64 {wanted}, {last}")
        return self.e.assign(f"select i1 {less}, i64 {wanted}, i64 {last}")

    def _index_of(self, term: str) -> str:
        """The distance, in elements, of a term from the beginning of its row."""
        return term if self.strip.beside else self._times(term, "%a_inner")

    def _at(self, starts: Sequence[str], term: str) -> list[str]:
        """Where a term of each row is; LLVM cannot see how that was computed."""
        index = self._index_of(term)
        return [opaque(self.e, further(self.e, self.strip.element, start, index)) for start in starts]

    def _add(self, starts: Sequence[str], term: str, right: _Vectors) -> None:
        """Add the products of a term: ``right`` are vectors of the matrix, by the numbers of block and vector."""
        self._add_at(starts, self._index_of(term), right)

    def _add_at(self, starts: Sequence[str], index: str, right: _Vectors) -> None:
        L, dtype = self.L, self.strip.dtype
        scalar = Lanes(self.e, 1)
        for row, start in enumerate(starts):
            left = L.splat(load(scalar, dtype, Location(start, index, False), None))
            for key, name in right.items():
                slot = self.sums[row, *key]
                total = multiply_add(L, left, Value(L, name, dtype), Value(L, self.e.load(self.type, slot), dtype))
                self.e.store(self.type, total.name, slot)

    def _masks(self) -> list[str | None]:
        """For each vector a mask of the columns that exist; None if all do."""
        masks: list[str | None] = [None] * self.vectors
        if self.edge:
            masks[-1] = below(self.L, str((self.vectors - 1) * self.strip.lanes), "%columns")
        return masks

    def _sum_along(self, starts: Sequence[str], keeps: bool = False) -> None:
        masks = self._masks()
        # The next row is a sum in a loop: LLVM would compute it by a multiplication, for which some processors need a
        # unit that multiplies vectors.
        place, distance = self.e.slot("ptr"), self._times(self.parts, "%b_step")
        self.e.store("ptr", "%b", place)
        with self.e.loop("0", "%inner", self.parts) as term:
            row = self.e.load("ptr", place)
            self.e.store("ptr", self._further(row, distance), place)
            later = self._further(row, self._times(AHEAD, "%b_step"))
            for column in self.columns:
                prefetch(self.e, self._further(later, column), READ_SOON)
            right = self._read_pairs(row)
            for vector in range(self.paired, self.vectors):
                right[0, vector] = self._read(self.L, row, self.columns[vector], masks[vector]).name
            if keeps:
                for (_, vector), name in right.items():
                    self.e.store(self.type, name, self._kept(term, vector))
            self._add(starts, term, right)

    def _sum_kept(self, starts: Sequence[str]) -> None:
        with self.e.loop("0", "%inner") as term:
            self._add(starts, term, {(0, v): self.e.load(self.type, self._kept(term, v)) for v in range(self.vectors)})

    def _kept(self, term: str, vector: int) -> str:
        """The place of a converted vector of columns."""
        number = self.e.assign(f"add i64 {self._times(self.vectors, term)}, {vector}")
        return self.e.assign(f"getelementptr {self.type}, ptr %kept, i64 {number}")

    def _read_pairs(self, row: str) -> _Vectors:
        """Columns of a term: for each two vectors, the first columns of pairs and the second ones."""
        found = {}
        for vector in range(0, self.paired, 2):
            place = self._further(row, str(vector * self.strip.lanes))
            name = self.e.assign(f"load {self.L.type_of(dtypes.uint32)}, ptr {place}, align 2")
            for half, value in enumerate(pairs_of_bfloat16.apart(self.L, Value(self.L, name, dtypes.uint32))):
                found[0, vector + half] = value.name
        return found

    def _sum_across(self, starts: Sequence[str]) -> None:
        e, parts = self.e, self.parts
        last = e.assign(f"sub i64 %columns, {parts}")
        numbers = range(0, self.strip.lanes, parts)
        if self.edge:
            columns = [self._nearest(int(first) + number, last) for first, number in product(self.columns, numbers)]
        else:
            columns = [e.assign(f"add i64 {first}, {number}") for first, number in product(self.columns, numbers)]
        pointers = [self._further("%b", self._times(column, "%b_step")) for column in columns]
        rest = e.assign(f"and i64 %inner, {self._terms_of_square() - 1}")
        whole = e.assign(f"sub i64 %inner, {rest}")
        copies = [self._square() for _ in self.columns] if self.strip.is_short else []
        with e.when(e.assign(f"icmp ne i64 {rest}, 0")) if copies else nullcontext():
            # Calls come before the sums, because no vector register keeps its value over one.
            for vector, copy in enumerate(copies):
                self._copy_rest(vector, self._begin_of_rest(), copy)
        self._sum_squares(starts, pointers, whole)
        with e.when(e.assign(f"icmp ne i64 {rest}, 0")):
            self._sum_rest(starts, whole, copies)

    def _sum_squares(self, starts: Sequence[str], pointers: Sequence[str], count: str) -> None:
        """Add ``count`` terms, all in whole squares."""
        if self._takes_turns():
            self._sum_in_turns(starts, pointers, count)
            return
        e, terms = self.e, self._terms_of_square()
        ahead = self._ahead()
        with e.loop("0", count, terms) as term:
            if ahead is not None and self._reads_half_lines():
                for columns in self._in_vectors(pointers):
                    run(ahead.in_turns(columns, term, terms))
            elif ahead is not None:
                ahead.read(pointers, term)
            if self._has_float16_squares():
                self._add_float16(starts, pointers, dict.fromkeys(self.sums_of_row, term))
            else:
                self._add_squares(starts, pointers, term)

    def _add_squares(self, starts: Sequence[str], pointers: Sequence[str], term: str) -> None:
        """Add the terms of a square for each sum."""
        for block, vector in self.sums_of_row:
            if block + vector > 0:
                keep_order(self.e)
            lines = self._lines(self._of_vector(pointers, vector), term)
            lines = [self._further(line, str(block * DEPTH)) for line in lines]
            for step, value in enumerate(self._read_square(lines, "0", None)):
                distance = block * DEPTH + step * self.parts
                self._add(starts, self.e.assign(f"add i64 {term}, {distance}"), {(block, vector): value.name})

    def _has_float16_squares(self) -> bool:
        return self.strip.in_pairs and float16_squares.fits(self.L, self.source)

    def _add_float16(self, starts: Sequence[str], pointers: Sequence[str], first_terms: Mapping[_Key, str]) -> None:
        """The same for squares that are converted from memory, which begin at the ``first_terms``. As many sums as
        registers hold get a term before any gets the next one, so that additions do not wait for each other."""
        e, at_once = self.e, max(1, SUMS_AT_ONCE // self.strip.rows)
        places = [
            (key, e.assign(f"add i64 {term}, {key[0] * DEPTH}") if key[0] else term)
            for key, term in first_terms.items()
        ]
        for first in range(0, len(places), at_once):
            squares: dict[str, _Vectors] = {}
            for key, term in places[first : first + at_once]:
                lines = self._lines(self._of_vector(pointers, key[1]), term)
                squares.setdefault(term, {})[key] = float16_squares.write_square(self.L, lines)
                keep_order(e)
            for number in range(float16_squares.TERMS):
                for term, here in squares.items():
                    right = {key: float16_squares.term(self.L, x, number).name for key, x in here.items()}
                    self._add(starts, e.assign(f"add i64 {term}, {number}"), right)
                if len(places[first : first + at_once]) > 1:
                    keep_order(e)

    def _takes_turns(self) -> bool:
        """Whether squares of elements that are in a cache are read, transposed and added half a square at a time, while
        neighbouring halves are in other stages of this."""
        by_element = self.source is self.strip.dtype or (self.source in HALVES and self.strip.in_pairs)
        if self.strip.is_short:
            return by_element and adds_halves(self.strip.dtype, self.source)
        return by_element and not self.strip.far and self.strip.vector_bytes == LONG_VECTOR

    def _sum_in_turns(self, starts: Sequence[str], pointers: Sequence[str], count: str) -> None:
        """Add ``count`` terms in turns, two squares of each vector of columns at a time, or one at the edge."""
        e, terms = self.e, self._terms_of_square()
        if self.strip.is_short:
            self._sum_by_halves(starts, pointers, count)
            return
        if self.edge:
            with e.loop("0", count, terms) as term:
                self._add_in_turns(starts, pointers, term, 1)
            return
        rest = e.assign(f"and i64 {count}, {2 * terms - 1}")
        whole = e.assign(f"sub i64 {count}, {rest}")
        with e.loop("0", whole, 2 * terms) as term:
            self._add_in_turns(starts, pointers, term, 2)
        with e.when(e.assign(f"icmp ne i64 {rest}, 0")):
            self._add_in_turns(starts, pointers, whole, 1)

    def _add_in_turns(self, starts: Sequence[str], pointers: Sequence[str], term: str, squares: int) -> None:
        """Add the terms of some squares. Turns of different sums alternate, so that the processor sees at the same time
        additions that do not wait for each other."""
        terms = self._terms_of_square()
        here = self._at(starts, term)
        vectors = [self._lines(columns, term) for columns in self._in_vectors(pointers)]
        numbers = product(range(0, squares * terms, terms // 2), self.sums_of_row)
        turns = [self._turn(here, vectors[vector], first, (block, vector)) for first, (block, vector) in numbers]
        for instructions in overlapped(turns):
            run(instructions)
            keep_order(self.e)

    def _sum_by_halves(self, starts: Sequence[str], pointers: Sequence[str], count: str) -> None:
        """Add ``count`` terms half a square at a time: short registers hold no more than that and the sums."""
        ahead, terms = self._ahead(), self._terms_of_square()
        with self.e.loop("0", count, terms) as term:
            turns = [ahead.in_turns(columns, term, terms) for columns in self._in_vectors(pointers)] if ahead else []
            self._add_halves(starts, pointers, dict.fromkeys(self.sums_of_row, term), turns)

    def _reads_half_lines(self) -> bool:
        return self.strip.is_short and (self._takes_turns() or self._has_float16_squares())

    def _ahead(self) -> ColumnsAhead | None:
        return ColumnsAhead(self.e, self.strip, self.source, self.vectors) if self.strip.far else None

    def _add_halves(
        self, starts: Sequence[str], pointers: Sequence[str], terms: Mapping[_Key, str], ahead: Sequence[Instructions]
    ) -> None:
        """Add both halves of a square for each sum, which begins at one of ``terms``; prefetch what is ``ahead``."""
        rows, lines = {}, {}
        for sums, term in terms.items():
            if term not in rows:
                rows[term] = self._at(starts, term)
            lines[sums] = self._lines(self._of_vector(pointers, sums[1]), term)
        for first in (0, self._terms_of_square() // 2):
            # Before terms of rows are read: LLVM would read them again after a prefetch.
            for prefetching in ahead:
                run(prefetching[1 if first else 0 :: 2])
            for sums, term in terms.items():
                turn = self._turn(rows[term], lines[sums], first, sums)
                run([*turn.reading, *turn.transposing, *turn.adding])
                if self.strip.rows > 1:
                    keep_order(self.e)
            # Terms of a single row are read once for all vectors.
            keep_order(self.e)

    def _turn(self, starts: Sequence[str], lines: Sequence[str], first: int, sums: _Key) -> TurnInstructions:
        """A turn with half a square: terms from the ``first`` one on of the columns at ``lines``."""
        terms, size = self._terms_of_square(), self.source.size
        start = sums[0] * DEPTH + first
        in_lane = terms // self.L.width
        kind = self.source if in_lane == 1 else dtypes.uint32
        shifts = self.strip.rows == 1 and self.source is dtypes.float32 and shifts_pairs()
        columns = HalfSquare(self.L, kind, lines, start // in_lane, size, shifts)
        adding: Instructions = [
            partial(self._add_column, starts, start + number * in_lane, columns, number, sums)
            for number in range(self.L.width // 2)
        ]
        # The next lines: those of half of the columns now, of the others in the next turn.
        half = self.L.width // 2
        now = lines[:half] if first % terms == 0 else lines[half:]
        ahead = str(start + CACHE_LINE // size)
        prefetching: Instructions = [partial(self._prefetch, line, ahead) for line in now]
        return TurnInstructions(columns.reading, columns.transposing, adding, prefetching)

    def _add_column(self, starts: Sequence[str], term: int, columns: HalfSquare, number: int, sums: _Key) -> None:
        """Add the terms of a transposed vector: one, or two of half precision."""
        name = columns.columns[number]
        if self.source is self.strip.dtype:
            self._add(starts, str(term), {sums: name})
            return
        for step, value in enumerate(both(Value(self.L, name, dtypes.uint32), self.source, self.strip.dtype)):
            self._add(starts, str(term + step), {sums: value.name})

    def _prefetch(self, line: str, distance: str) -> None:
        prefetch(self.e, self._further(line, distance), READ_SOON)

    def _in_vectors(self, pointers: Sequence[str]) -> list[Sequence[str]]:
        return [self._of_vector(pointers, vector) for vector in range(self.vectors)]

    def _of_vector(self, pointers: Sequence[str], vector: int) -> Sequence[str]:
        count = self.strip.lanes // self.parts
        return pointers[vector * count : (vector + 1) * count]

    def _lines(self, pointers: Sequence[str], term: str) -> list[str]:
        """Addresses of the columns at ``pointers`` from a term on. If columns are evenly apart, most of these are the
        address of another column and a multiple of the distance between columns, which instructions add themselves;
        LLVM would compute them all."""
        if self.edge or (self.strip.far and not (self._takes_turns() or self._reads_half_lines())):
            return [self._further(pointer, term) for pointer in pointers]
        near = [opaque(self.e, self._further(pointer, term)) for pointer in pointers[::ADDRESSED_TOGETHER]]
        apart = [self._times(number * self.parts, "%b_step") for number in range(ADDRESSED_TOGETHER)]
        lines = [self._further(first, step) for first in near for step in apart]
        return lines[: len(pointers)]

    def _terms_of_square(self) -> int:
        return terms_of_square(self.L, self.source, self.strip.in_pairs)

    def _read_square(self, lines: Sequence[str], term: str, mask: str | None) -> list[Value]:
        return square(self.L, self.source, self.strip.dtype, lines, term, mask, self.strip.in_pairs)

    def _square(self) -> str:
        """Memory for a square."""
        return self.e.slot(f"[{self._terms_of_square() // self.parts} x {self.type}]")

    def _begin_of_rest(self) -> str:
        """The first term of a square that ends with the last term."""
        least = self.e.assign(f"sub i64 %inner, {self._terms_of_square()}")
        return self.e.call("llvm.smax.i64", "i64", [("i64", least), ("i64", "0")])

    def _sum_rest(self, starts: Sequence[str], whole: str, copies: Sequence[str]) -> None:
        """Add the terms after the last whole square. If there are no ``copies`` of them yet, they are copied here."""
        e, parts = self.e, self.parts
        copy, begin = "" if copies else self._square(), self._begin_of_rest()
        origin, first, end = [e.assign(f"udiv i64 {number}, {parts}") for number in (begin, whole, "%inner")]
        for vector in range(self.vectors):
            if copies:
                copy = copies[vector]
            else:
                self._copy_rest(vector, begin, copy)
            with e.loop(first, end) as number:
                index = e.assign(f"sub i64 {number}, {origin}")
                name = e.load(self.type, e.assign(f"getelementptr {self.type}, ptr {copy}, i64 {index}"))
                self._add(starts, self._times(parts, number), {(0, vector): name})

    def _copy_rest(self, vector: int, begin: str, copy: str) -> None:
        """Copy the terms from ``begin`` on of a vector of columns."""
        column, last = self.columns[vector], str(self.strip.lanes - self.parts)
        if self.edge and vector == self.vectors - 1:
            last = self.e.assign(f"sub i64 %columns, {int(column) + self.parts}")
        there = self._further("%b", self._times(column, "%b_step"))
        self.e.emit(f"call void @read_rest(ptr {there}, i64 %b_step, i64 {last}, i64 {begin}, i64 %inner, ptr {copy})")

    def read_rest(self) -> str:
        """The function that transposes the terms from ``%begin`` on of a vector of columns, of which ``%last`` is the
        last one. Kernels share it, because LLVM takes long to compile its shuffles."""
        e, parts, terms = self.e, self.parts, self._terms_of_square() // self.parts
        columns = [self._nearest(number, "%last") for number in range(0, self.strip.lanes, parts)]
        pointers = [self._further("%b", self._times(column, "%b_step")) for column in columns]
        if lacks_masks(self.source):
            is_whole = e.assign(f"icmp sge i64 %inner, {self._terms_of_square()}")
            with e.when(is_whole):
                self._copy(self._read_square(pointers, "%begin", None))
            with e.when(e.assign(f"xor i1 {is_whole}, true")):
                self._copy(self._read_square(pointers, "%begin", self._mask_of_rest(terms)))
        else:
            self._copy(self._read_square(pointers, "%begin", self._mask_of_rest(terms)))
        parameters = "ptr %b, i64 %b_step, i64 %last, i64 %begin, i64 %inner, ptr %copy"
        return e.function("read_rest", parameters, "internal ")

    def _mask_of_rest(self, terms: int) -> str:
        first, end = [self.e.assign(f"udiv i64 {number}, {self.parts}") for number in ("%begin", "%inner")]
        return below(Lanes(self.e, terms), first, end)

    def _copy(self, terms: Sequence[Value]) -> None:
        for number, value in enumerate(terms):
            place = self.e.assign(f"getelementptr {self.type}, ptr %copy, i64 {number}")
            self.e.store(self.type, value.name, place)

    def _store(self) -> None:
        e, L, dtype = self.e, self.L, self.strip.dtype
        masks = self._masks()
        for row in range(self.strip.rows):
            with e.when(e.assign(f"icmp slt i64 {row}, %rows")):
                start = further(e, MEMORY_TYPES[self.result], "%c", self._times(row, "%c_row"))
                self._store_pairs(row, start)
                single = list(enumerate(masks))[self.paired :]
                locations = [(self._location(start, v), self.sums[row, 0, v], mask) for v, mask in single]
                if self.result is dtype:
                    with e.when("%again"):
                        for location, slot, mask in locations:
                            total = load(L, dtype, location, mask) + Value(L, e.load(self.type, slot), dtype)
                            e.store(self.type, total.name, slot)
                for location, slot, mask in locations:
                    store(L, SumOfProducts(L, e.load(self.type, slot), self.result), self.result, location, mask)

    def _store_pairs(self, row: int, start: str) -> None:
        e, L, dtype = self.e, self.L, self.strip.dtype
        both = Lanes(e, 2 * L.width)
        for vector in range(0, self.paired, 2):
            location = Location(start, str(vector * L.width), False)
            sums = [Value(L, e.load(self.type, self.sums[row, 0, vector + half]), dtype) for half in (0, 1)]
            if self.result is dtypes.bfloat16:
                store(both, pairs_of_bfloat16.rounded(L, *sums), dtypes.uint16, location, None)
                continue
            total = e.slot(both.type_of(dtype))
            e.store(both.type_of(dtype), pairs_of_bfloat16.together(L, *sums).name, total)
            with e.when("%again"):
                before = load(both, dtype, location, None) + Value(both, e.load(both.type_of(dtype), total), dtype)
                e.store(both.type_of(dtype), before.name, total)
            store(both, Value(both, e.load(both.type_of(dtype), total), dtype), dtype, location, None)

    def _location(self, start: str, vector: int) -> Location:
        if not self.strip.apart:
            return Location(start, self.columns[vector], False)
        scalar = Lanes(self.e, 1)
        numbers = ", ".join(f"i64 {lane}" for lane in range(self.strip.lanes))
        first = self.L.splat(Value(scalar, self.columns[vector], dtypes.int64))
        step = self.L.splat(Value(scalar, "%c_column", dtypes.int64))
        return Location(start, ((first + Value(self.L, f"<{numbers}>", dtypes.int64)) * step).name, True)
