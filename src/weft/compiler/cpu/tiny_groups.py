"""Products of groups of small matrices whose elements are shuffled from vector to vector."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.product_step import multiply_add
from weft.dtypes import Dtype

FEWEST_VECTORS = 4
"""How many vectors of results the body of the loop computes at least."""

SHORTEST_LOAD = 16
"""Bytes that are read at least. If all elements for a term are in so few, one instruction reads and repeats them."""

GROUP = "ptr %a, ptr %b, ptr %c"
"""The parameters of a function that multiplies a group of matrices."""


def vector_bytes() -> int:
    """How long vectors are. Long ones need shuffles of 16 bits."""
    return 64 if "+avx512bw" in host.current().features else 32


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
        return vector_bytes() // self.dtype.size

    @property
    def at_once(self) -> int:
        """How many results are computed at once: those of bfloat16 in two vectors."""
        return 2 * self.lanes if self.source is dtypes.bfloat16 else self.lanes

    @property
    def group(self) -> int:
        """How many matrices have whole vectors of results, and not too few vectors."""
        at_once = self.at_once
        matrices = at_once // gcd(at_once, self.sizes["c"])
        while matrices * self.sizes["c"] < FEWEST_VECTORS * at_once:
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


class GroupWriter(Integers):
    """Writes a function that multiplies a group of matrices. It may read elements after those of these matrices, up to
    ``ends`` elements of each operand."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(Emitter())
        self.tiny = tiny
        self.L = Lanes(self.e, tiny.lanes)
        self.ends = {operand: tiny.group * tiny.sizes[operand] for operand in "ab"}
        self._read: dict[tuple[str, _Window], str] = {}

    def function(self, name: str) -> EmittedFunction:
        L, tiny = self.L, self.tiny
        for first in range(0, tiny.group * tiny.sizes["c"], L.width):
            results = range(first, first + L.width)
            self._read = {}
            total = L.constant(0, tiny.dtype)
            for left, right in zip(self._factors("a", results), self._factors("b", results), strict=True):
                total = multiply_add(L, left, right, total)
            store(L, SumOfProducts(L, total.name, tiny.result), tiny.result, Location("%c", str(first), False), None)
        return self.e, self.e.function(name, GROUP, "internal ")

    def _factors(self, operand: str, results: range) -> list[Value]:
        """For each term, a vector of the elements of an operand. They are read once for all terms if one window has all
        of them; but a shuffle costs more than a short load that repeats what it reads."""
        terms = [self.tiny.elements(operand, results, term) for term in range(self.tiny.extents[2])]
        of_all = self._windows([element for elements in terms for element in elements])
        of_each = [self._windows(elements) for elements in terms]
        if self.tiny.source in HALVES:
            at_once = len(of_all) <= max(2, *map(len, of_each))
        else:
            short = SHORTEST_LOAD // self.tiny.source.size
            repeats = all(len(own) == 1 and own[0].width == short for own in of_each)
            at_once = len(of_all) == 1 and not repeats
        return [
            self._chosen(operand, of_all if at_once else own, elements)
            for own, elements in zip(of_each, terms, strict=True)
        ]

    def _windows(self, elements: Sequence[int]) -> list[_Window]:
        """Windows that have all elements."""
        size = self.tiny.dtype.size
        most, left, found = vector_bytes() // size, sorted(set(elements)), []
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
        found = ""
        for number in range(0, len(windows), 2):
            part = self._shuffled(operand, windows[number : number + 2], elements)
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
        return self._shuffle(f"<{widest} x {MEMORY_TYPES[self.tiny.dtype]}>", vectors, places)

    def _window(self, operand: str, window: _Window, widest: int) -> str:
        """The elements of a window. After them there are any values, up to ``widest`` elements."""
        (start, width), read = window, self._read.get((operand, window))
        if read is None:
            location = Location(f"%{operand}", str(start), False)
            loaded = load(Lanes(self.e, width), self.tiny.source, location, None)
            read = self._read[operand, window] = loaded.name
            self.ends[operand] = max(self.ends[operand], start + width)
        return self._widened(f"<{width} x {MEMORY_TYPES[self.tiny.dtype]}>", read, width, widest)

    def _widened(self, type_: str, vector: str, width: int, widest: int) -> str:
        return (
            vector if width == widest else self._shuffle(type_, [vector], [*range(width), *[None] * (widest - width)])
        )

    def _shuffle(self, type_: str, vectors: Sequence[str], order: Sequence[int | None]) -> str:
        """Elements of one or two vectors; where ``order`` is None, any value."""
        numbers = ", ".join([f"i32 {'poison' if number is None else number}" for number in order])
        first, second = [*vectors, "poison"][:2]
        return self.e.assign(f"shufflevector {type_} {first}, {type_} {second}, <{len(order)} x i32> <{numbers}>")
