"""Sums over the windows of an array of products of their elements with rows of a matrix: the cotangents of the weights
of convolutions.

They are computed in blocks, as other products, and have the same bits. Windows are the terms. The kernel reads elements
where they are in the array, by tables of addresses, so the array is not copied to pad it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.cpu.code import EmittedFunction, Integers, module_of
from weft.compiler.cpu.products.packed.blocks import ALL_TERMS, Panels, Terms, step_function
from weft.compiler.cpu.products.packed.kernel import TERMS_AHEAD, edges_of, kernels
from weft.compiler.cpu.products.step import Block
from weft.compiler.cpu.products.tiles import GROUP, MOST_TERMS
from weft.primitives.products import DEPTH

from .axes import BATCH_AXES as WINDOWS
from .axes import TilesOverAxes, packing
from .in_memory import CHANNELS, FEWEST_CHANNELS, room_for, write_addresses, write_windows
from .kernel import kernel_of_elements
from .products import BATCH_AXES

_OF_ONE, _OF_SEVERAL = "one_element_", "several_elements_"
"""The kinds of kernels: all rows of a panel are of one element of windows, or not."""


@cache
def address(block: Block, edge: int, whole: bool) -> int:
    """The address of the step for products in a kind of block, if ``edge`` vectors of columns are left over. It is for
    a ``whole`` number of panels of rows for each element of a window, or for any."""
    name = f"product_of_elements_{block.dtype.name}"
    key = f"{name} {block} {edge} {whole}"
    return loading.load(key, lambda: generate(block, edge, whole, name), (name,))[name]


def generate(block: Block, edge: int, whole: bool, name: str) -> str:
    """The LLVM IR of the step."""
    functions = [*packing(block), write_windows(block, MOST_TERMS), write_addresses(block, DEPTH, MOST_TERMS)]
    functions.append(_write_tables())
    kinds = (_OF_ONE,) if whole else (_OF_ONE, _OF_SEVERAL)
    for kind in kinds:
        make = partial(kernel_of_elements, of_one=kind is _OF_ONE)
        functions += kernels(block, edges_of([edge] if edge else []), make, kind)
    functions.append(step_function(_TilesOfElements(block, edge, kinds), name))
    return module_of(functions)


def _write_tables() -> EmittedFunction:
    """A function that writes for each of ``%present`` rows which table of addresses is that of its element, if
    ``%first`` is the first row and elements have ``%channels`` numbers."""
    w = Integers(Emitter())
    offset = w.remainder("%first", "%channels")
    following = w.e.slot("ptr")
    w.e.store("ptr", "%addresses", following)
    with w.e.loop("0", w.add(offset, "%present"), "%channels") as before:
        addresses = w.e.load("ptr", following)
        w.e.store("ptr", w.moved(addresses, DEPTH, "ptr"), following)
        start = w.subtract(before, offset)
        stop = w.smaller(w.add(start, "%channels"), "%present")
        with w.e.loop(w.larger(start, "0"), stop) as row:
            w.e.store("ptr", addresses, w.moved("%tables", row, "ptr"))
    return w.e, w.e.function(
        "write_tables", "ptr %addresses, i64 %channels, i64 %first, i64 %present, ptr %tables", "internal "
    )


class _TilesOfElements(TilesOverAxes):
    """The loops over a unit, with tables of the addresses of elements of windows."""

    def __init__(self, block: Block, edge: int, kinds: Sequence[str]) -> None:
        super().__init__(block, BATCH_AXES)
        self.edges, self.kinds = edges_of([edge] if edge else []), kinds
        rows = GROUP * block.rows
        elements = -(-rows // FEWEST_CHANNELS) + 1
        self.windows = self.e.slot(f"{room_for(MOST_TERMS)}, align 64")
        self.addresses = self.e.slot(f"[{elements * DEPTH + TERMS_AHEAD} x ptr], align 64")
        self.tables = self.e.slot(f"[{rows + block.rows} x ptr], align 64")
        zeros = f"[{rows + block.rows} x {block.element}]"
        self.zeros = self.e.slot(f"{zeros}, align 64")
        self.e.emit(f"store {zeros} zeroinitializer, ptr {self.zeros}")
        # What is read in place of rows that do not exist.
        self.nothing = self.e.slot(f"[{DEPTH + TERMS_AHEAD} x ptr], align 64")
        with self.e.loop("0", str(DEPTH + TERMS_AHEAD)) as term:
            self.e.store("ptr", self.zeros, self.moved(self.nothing, term, "ptr"))

    def note_terms(self, part: Terms) -> None:
        count = f"i64 {self.number(ALL_TERMS)}, i64 {part.depth}"
        windows = self.moved(self.windows, part.before, "i64")
        self.e.emit(
            f"call void @write_windows(ptr {self.numbers_from(WINDOWS)}, i64 {part.first}, {count}, ptr {windows})"
        )

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        windows = self.moved(self.windows, part.before, "i64")
        rows = f"i64 {first}, i64 {present}"
        tables = f"ptr {windows}, ptr {operand}, {rows}, i64 {part.depth}, ptr {self.zeros}, ptr {self.addresses}"
        self.e.emit(f"call void @write_addresses(ptr {self.numbers_from(WINDOWS)}, {tables})")
        channels = self.number(WINDOWS + CHANNELS)
        self.e.emit(f"call void @write_tables(ptr {self.addresses}, i64 {channels}, {rows}, ptr {self.tables})")
        with self.e.loop(present, self.add(present, self.block.rows)) as row:
            self.e.store("ptr", self.nothing, self.moved(self.tables, row, "ptr"))
        return Panels(self.tables, "", "", "")

    def rows_of(self, left: Panels, row: str, column: str) -> str:
        return f"ptr {self.moved(left.start, row, 'ptr')}, i64 {row}"

    def blocks(
        self,
        left: Panels,
        right: Panels,
        target: str,
        row: str,
        rows: str,
        columns: str,
        counts: tuple[str, str],
        kind: str = "",
    ) -> None:
        if len(self.kinds) == 1:
            super().blocks(left, right, target, row, rows, columns, counts, *self.kinds)
            return
        first = self.moved(left.start, row, "ptr")
        last = self.moved(first, self.block.rows - 1, "ptr")
        alike = self.compare("eq", self.e.load("i64", first), self.e.load("i64", last))
        for condition, name in ((alike, _OF_ONE), (self.negated(alike), _OF_SEVERAL)):
            with self.e.when(condition):
                super().blocks(left, right, target, row, rows, columns, counts, name)
