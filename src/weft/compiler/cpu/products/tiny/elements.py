"""Products of groups of small matrices whose elements are shuffled from vector to vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.products.step import multiply_add

from .groups import GroupWriter, Tiny, shuffled, vector_bytes

SHORTEST_LOAD = 16
"""Bytes that are read at least. If all elements for a term are in so few, one instruction reads and repeats them."""


class _Window(NamedTuple):
    """Neighbouring elements that are read at once."""

    start: int
    width: int

    def has(self, element: int) -> bool:
        return self.start <= element < self.start + self.width


class TinyElements:
    """Reads elements of the operands of the current group of a ``writer``."""

    def __init__(self, writer: GroupWriter) -> None:
        self.tiny, self.e, self.L = writer.tiny, writer.e, writer.L
        self.places, self.ends = writer.places, writer.ends
        self._read: dict[tuple[str, _Window], str] = {}

    def forget(self) -> None:
        """Read elements again from now on, because registers do not hold so many."""
        self._read = {}

    def are_near(self, orders: Sequence[Sequence[int]]) -> bool:
        """Whether the elements of each of ``orders`` are in one window."""
        return all(len(windows) == 1 for windows in self._windows_of(orders))

    def vectors(self, operand: str, orders: Sequence[Sequence[int]]) -> list[Value]:
        """For each of ``orders``, a vector of the elements of an operand."""
        windows = self._windows_of(orders)
        return [self._chosen(operand, mine, order) for mine, order in zip(windows, orders, strict=True)]

    def _windows_of(self, orders: Sequence[Sequence[int]]) -> list[list[_Window]]:
        """For each of ``orders``, windows that have all elements: one for all, if that is possible."""
        of_all = self._windows([element for order in orders for element in order])
        return [of_all if len(of_all) == 1 else self._windows(order) for order in orders]

    def factors(self, operand: str, results: range) -> list[Value]:
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
        return self._shuffle(width, [found, part], order)

    def _shuffled(self, operand: str, windows: Sequence[_Window], elements: Sequence[int]) -> str:
        """The elements that are in one or two windows, in their lanes. The other lanes have any value."""
        widest = max([window.width for window in windows])
        vectors = [self._window(operand, window, widest) for window in windows]
        places: list[int | None] = []
        for element in elements:
            inside = [n * widest + element - window.start for n, window in enumerate(windows) if window.has(element)]
            places.append(inside[0] if inside else None)
        return self._shuffle(widest, vectors, places)

    def _window(self, operand: str, window: _Window, widest: int) -> str:
        """The elements of a window. After them there are any values, up to ``widest`` elements."""
        (start, width), read = window, self._read.get((operand, window))
        if read is None:
            location = Location(self.places[operand], str(start), False)
            loaded = load(Lanes(self.e, width), self.tiny.source, location, None)
            read = self._read[operand, window] = loaded.name
            self.ends[operand] = max(self.ends[operand], start + width)
        return read if width == widest else self._shuffle(width, [read], [*range(width), *[None] * (widest - width)])

    def _shuffle(self, width: int, vectors: Sequence[str], order: Sequence[int | None]) -> str:
        return shuffled(self.e, vectors, order, width, MEMORY_TYPES[self.tiny.dtype])


class TinyElementsWriter(GroupWriter):
    """Multiplies a group of matrices, with vectors of results in the order in which they are in memory."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(tiny, tiny.group)

    def write(self) -> None:
        L, tiny, elements = self.L, self.tiny, TinyElements(self)
        for first in range(0, tiny.group * tiny.sizes["c"], L.width):
            results = range(first, first + L.width)
            elements.forget()
            total = L.constant(0, tiny.dtype)
            for left, right in zip(elements.factors("a", results), elements.factors("b", results), strict=True):
                total = multiply_add(L, left, right, total)
            place = Location(self.places["c"], str(first), False)
            store(L, SumOfProducts(L, total.name, tiny.result), tiny.result, place, None)
