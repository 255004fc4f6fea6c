"""Products of stacks of matrices so small that a vector holds elements of several rows, or of several matrices.

Results are computed in the order in which they are in memory, in whole vectors. Extents and strides are constants of
the code, so for each term of a vector of results, the elements of an operand are a shuffle of one or two vectors that
are read from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, prod
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.product_step import SLOTS, multiply_add
from weft.dtypes import Dtype
from weft.runtime.steps import Place

MOST_EXTENT, MOST_WORK = 6, 125
"""The most rows, columns or terms of a matrix, and the most multiplications of two of them: with more, shuffles take
longer than reading each row by itself."""

DTYPES = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)

FEWEST_VECTORS = 4
"""How many vectors of results the body of the loop computes at least."""

SHORTEST_LOAD = 16
"""Bytes that are read at least. If all elements for a term are in so few, one instruction reads and repeats them."""

MOST_HALVES = 3
"""The most rows, columns or terms of matrices of bfloat16 whose shuffles move bytes. Larger ones are converted before,
as then a row of the right operand is a whole short load."""

# The position of the step's number after the places of both operands and the result: for how many matrices after the
# last one there is memory, which may be read and written.
_BEHIND = 6

_GROUP = "ptr %a, ptr %b, ptr %c"


class Tiny(NamedTuple):
    """A kind of stack: the dtypes of both operands and of the result; rows, columns and terms; strides of the left
    operand from row to row and from term to term, and of the right one from term to term and from column to column."""

    source: Dtype
    result: Dtype
    extents: tuple[int, int, int]
    strides: tuple[int, int, int, int]

    @property
    def dtype(self) -> Dtype:
        """The dtype of sums."""
        return dtypes.float32 if self.source in HALVES else self.source

    @property
    def sizes(self) -> dict[str, int]:
        """How many elements a matrix of each operand, and of the result, has."""
        rows, columns, inner = self.extents
        return {"a": rows * inner, "b": inner * columns, "c": rows * columns}

    @property
    def bytes(self) -> dict[str, int]:
        return {name: n * (self.result if name == "c" else self.source).size for name, n in self.sizes.items()}

    @property
    def lanes(self) -> int:
        return _vector_bytes() // self.dtype.size

    @property
    def group(self) -> int:
        """How many matrices have whole vectors of results, and not too few vectors."""
        matrices = self.lanes // gcd(self.lanes, self.sizes["c"])
        while matrices * self.sizes["c"] < FEWEST_VECTORS * self.lanes:
            matrices *= 2
        return matrices

    def elements(self, operand: str, results: range, term: int) -> list[int]:
        """The elements of an operand that are factors of a term of some results."""
        _, columns, _ = self.extents
        a_row, a_inner, b_inner, b_column = self.strides
        found = []
        for number in results:
            matrix, place = divmod(number, self.sizes["c"])
            row, column = divmod(place, columns)
            inside = row * a_row + term * a_inner if operand == "a" else term * b_inner + column * b_column
            found.append(matrix * self.sizes[operand] + inside)
        return found


class _Window(NamedTuple):
    """Neighbouring elements that are read at once."""

    start: int
    width: int

    def has(self, element: int) -> bool:
        return self.start <= element < self.start + self.width


def takes(extents: tuple[int, int, int]) -> bool:
    """Whether matrices are computed here; ``extents`` are rows, columns and terms. Processors without AVX2 lack
    shuffles that move elements to any place."""
    few = min(extents) > 0 and max(extents) <= MOST_EXTENT and prod(extents) <= MOST_WORK
    return few and "+avx2" in host.current().features


def reads(source: Dtype, extents: tuple[int, int, int]) -> bool:
    """Whether operands of a dtype need not be converted before. A bfloat16 is the upper half of a float32, and if the
    processor has shuffles of single bytes, they can move it there."""
    if source is dtypes.bfloat16:
        return max(extents) <= MOST_HALVES and "+avx512vbmi" in host.current().features.split(",")
    return source in DTYPES


def step_numbers(places: Sequence[Place], behind: int = 0) -> list[int]:
    """The numbers of a step: places of both operands and the result, and for how many matrices after the last one there
    is memory."""
    return [*[number for place in places for number in place], behind]


@cache
def address(tiny: Tiny) -> int:
    """The address of the step for a kind of stack."""
    name = "tiny_stacks"
    return loading.load(f"{name} {tiny}", lambda: generate(tiny, name), (name,))[name]


def generate(tiny: Tiny, name: str) -> str:
    """The LLVM IR of the step."""
    return module_of(functions(tiny, name))


def functions(tiny: Tiny, name: str, linkage: str = "") -> list[EmittedFunction]:
    """The function of the step, and the one that it calls."""
    group = _GroupWriter(tiny)
    return [group.function("group"), _StepWriter(tiny, group.ends).function(name, linkage)]


def ends_of(tiny: Tiny) -> dict[str, int]:
    """How many elements of each operand may be read for a group, counted from its first one."""
    group = _GroupWriter(tiny)
    group.function("group")
    return group.ends


def _vector_bytes() -> int:
    return 64 if "+avx512f" in host.current().features else 32


class _GroupWriter(Integers):
    """Writes a function that multiplies a group of matrices. It may read elements after those of these matrices, up to
    ``ends`` elements of each operand."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(Emitter())
        self.tiny = tiny
        self.L = Lanes(self.e, tiny.lanes)
        self.ends = {operand: tiny.group * tiny.sizes[operand] for operand in "ab"}
        self._read: dict[tuple[str, _Window], str] = {}
        self._moves_bytes = tiny.source in HALVES
        self._upper_halves = self._mask_of_upper_halves() if self._moves_bytes else ""

    def function(self, name: str) -> EmittedFunction:
        L, tiny = self.L, self.tiny
        for first in range(0, tiny.group * tiny.sizes["c"], L.width):
            results = range(first, first + L.width)
            self._read = {}
            total = L.constant(0, tiny.dtype)
            for left, right in zip(self._factors("a", results), self._factors("b", results), strict=True):
                total = multiply_add(L, left, right, total)
            store(L, Value(L, total.name, tiny.result), tiny.result, Location("%c", str(first), False), None)
        return self.e, self.e.function(name, _GROUP, "internal ")

    def _factors(self, operand: str, results: range) -> list[Value]:
        """For each term, a vector of the elements of an operand. They are read once for all terms if one window has all
        of them; but a shuffle costs more than a short load that repeats what it reads."""
        terms = [self.tiny.elements(operand, results, term) for term in range(self.tiny.extents[2])]
        of_all = self._windows([element for elements in terms for element in elements])
        of_each = [self._windows(elements) for elements in terms]
        short = SHORTEST_LOAD // self.tiny.source.size
        repeats = not self._moves_bytes and all(len(own) == 1 and own[0].width == short for own in of_each)
        at_once = len(of_all) == 1 and not repeats
        return [
            self._chosen(operand, of_all if at_once else own, elements)
            for own, elements in zip(of_each, terms, strict=True)
        ]

    def _windows(self, elements: Sequence[int]) -> list[_Window]:
        """Windows that have all elements."""
        size = self.tiny.source.size
        most, left, found = _vector_bytes() // size, sorted(set(elements)), []
        while left:
            start = left[0]
            span = max([element for element in left if element < start + most]) - start + 1
            width = SHORTEST_LOAD // size
            while width < span:
                width *= 2
            found.append(_Window(start, width))
            left = [element for element in left if not found[-1].has(element)]
        return found

    def _chosen(self, operand: str, windows: Sequence[_Window], elements: Sequence[int]) -> Value:
        """A vector of elements of an operand, from windows that have them."""
        at_once = 1 if self._moves_bytes else 2
        found = ""
        for number in range(0, len(windows), at_once):
            part = self._shuffled(operand, windows[number : number + at_once], elements)
            found = self._merged(found, part, windows[:number], elements) if found else part
        return Value(self.L, found, self.tiny.dtype)

    def _merged(self, found: str, part: str, windows: Sequence[_Window], elements: Sequence[int]) -> str:
        """The elements that are in ``windows`` from ``found``, the others from ``part``."""
        width = self.L.width
        before = [any(window.has(element) for window in windows) for element in elements]
        order = [lane if is_before else width + lane for lane, is_before in enumerate(before)]
        return self._shuffle(self.L.type_of(self.tiny.dtype), [found, part], order)

    def _shuffled(self, operand: str, windows: Sequence[_Window], elements: Sequence[int]) -> str:
        """The elements that are in one or two windows, in their lanes. The other lanes have any value."""
        widest = max([window.width for window in windows])
        vectors = [self._window(operand, window, widest) for window in windows]
        places: list[int | None] = []
        for element in elements:
            inside = [n * widest + element - window.start for n, window in enumerate(windows) if window.has(element)]
            places.append(inside[0] if inside else None)
        if self._moves_bytes:
            return self._upper_halves_of(vectors[0], widest, [place or 0 for place in places])
        return self._shuffle(f"<{widest} x {MEMORY_TYPES[self.tiny.source]}>", vectors, places)

    def _window(self, operand: str, window: _Window, widest: int) -> str:
        """The elements of a window. After them there are any values, up to ``widest`` elements."""
        source, (start, width) = self.tiny.source, window
        element = MEMORY_TYPES[source]
        read = self._read.get((operand, window))
        if read is None:
            pointer = self.moved(f"%{operand}", start, element)
            read = self.e.assign(f"load <{width} x {element}>, ptr {pointer}, align {source.size}")
            self._read[operand, window] = read
            self.ends[operand] = max(self.ends[operand], start + width)
        return self._widened(f"<{width} x {element}>", read, width, widest)

    def _widened(self, type_: str, vector: str, width: int, widest: int) -> str:
        return (
            vector if width == widest else self._shuffle(type_, [vector], [*range(width), *[None] * (widest - width)])
        )

    def _shuffle(self, type_: str, vectors: Sequence[str], order: Sequence[int | None]) -> str:
        """Elements of one or two vectors; where ``order`` is None, any value."""
        numbers = ", ".join([f"i32 {'poison' if number is None else number}" for number in order])
        first, second = [*vectors, "poison"][:2]
        return self.e.assign(f"shufflevector {type_} {first}, {type_} {second}, <{len(order)} x i32> <{numbers}>")

    def _mask_of_upper_halves(self) -> str:
        """The mask of the bytes of the upper halves of lanes. LLVM must not know it: it would combine a shuffle of one
        vector and the mask, which are one instruction, to a shuffle of two, which is three on some processors."""
        lanes = 4 * self.L.width
        bits = self.e.assign(f'call i{lanes} asm "", "=r,0"(i{lanes} {sum(0b1100 << n for n in range(0, lanes, 4))})')
        return self.e.assign(f"bitcast i{lanes} {bits} to <{lanes} x i1>")

    def _upper_halves_of(self, vector: str, width: int, places: Sequence[int]) -> str:
        """Elements of 16 bits as the upper halves of lanes, whose lower halves are zero."""
        e, lanes = self.e, 4 * self.L.width
        halves, type_ = f"<{lanes // 2} x i16>", f"<{lanes} x i8>"
        wide = self._widened(f"<{width} x i16>", vector, width, lanes // 2)
        numbers = ", ".join([f"i8 {byte}" for place in places for byte in (0, 0, 2 * place, 2 * place + 1)])
        arguments = [(type_, e.assign(f"bitcast {halves} {wide} to {type_}")), (type_, f"<{numbers}>")]
        moved = e.call("llvm.x86.avx512.permvar.qi.512", type_, arguments)
        upper = e.assign(f"select <{lanes} x i1> {self._upper_halves}, {type_} {moved}, {type_} zeroinitializer")
        return e.assign(f"bitcast {type_} {upper} to {self.L.type_of(self.tiny.dtype)}")


class _StepWriter(Integers):
    """Writes the step: a loop over groups. If there is no memory after the last matrices, they are copied to the stack
    first, and their results from there."""

    def __init__(self, tiny: Tiny, ends: dict[str, int]) -> None:
        super().__init__(Emitter())
        self.bytes, self.group = tiny.bytes, tiny.group
        self.needed = max([-(-end // tiny.sizes[operand]) for operand, end in ends.items()])
        """From how many matrices on a group needs no copies."""
        rooms = {
            **{operand: end * tiny.source.size for operand, end in ends.items()},
            "c": tiny.group * self.bytes["c"],
        }
        self.copies = {name: self.e.slot(f"[{room} x i8], align 64") for name, room in rooms.items()}

    def function(self, name: str, linkage: str) -> EmittedFunction:
        e = self.e
        bases = {name: self.memory(slot) for name, slot in SLOTS.items()}
        room = self.add("%end", self.number(_BEHIND))
        with e.loop("%begin", "%end", self.group) as first:
            here = {name: self.moved(base, self.multiply(first, self.bytes[name])) for name, base in bases.items()}
            count = self.smaller(self.subtract("%end", first), self.group)
            few = self.compare("slt", self.subtract(room, first), self.needed)
            with e.when(few):
                for operand in "ab":
                    self._copy(here[operand], self.copies[operand], self.multiply(count, self.bytes[operand]))
            places = [e.assign(f"select i1 {few}, ptr {self.copies[name]}, ptr {here[name]}") for name in SLOTS]
            e.emit(f"call void @group({', '.join([f'ptr {place}' for place in places])})")
            with e.when(few):
                self._copy(self.copies["c"], here["c"], self.multiply(count, self.bytes["c"]))
        return e, e.function(name, STEP, linkage)

    def _copy(self, source: str, target: str, size: str) -> None:
        self.e.declarations["memcpy"] = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        self.e.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")
