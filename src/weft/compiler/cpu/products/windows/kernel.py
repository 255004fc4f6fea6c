"""The kernels of products of windows: windows are rows of the left operand, or terms. Its elements are read where they
are in the array, by tables of addresses."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, prefetch
from weft.compiler.cpu.products.packed.kernel import OTHERS, TERMS_AHEAD, TERMS_AT_ONCE, PanelKernel
from weft.compiler.cpu.products.step import Block

ROWS_AHEAD = 8
"""How many windows after those of a group have addresses, because they are prefetched: as many as a block has rows."""


def kernel_of_windows(block: Block, name: str, edge: bool, between: int) -> EmittedFunction:
    """The kernel for a left operand whose rows are windows. The elements of a window are ``%channels`` neighbouring
    numbers each, which are terms; the first one here is number ``%offset`` of its element. ``%addresses`` has for each
    window the address for an element, and then, ``between`` addresses after these, those for the next element: see
    `in_memory.write_addresses`. Columns are in whole vectors. If the kernel ``%asks``, windows after these are
    prefetched. Elements whose address is ``%skipped`` for all windows are zeros, and columns are finite then."""
    written = _PanelKernelOfWindows(block, edge, between)
    return written.e, written.function(name)


def kernel_of_elements(block: Block, name: str, edge: bool, of_one: bool) -> EmittedFunction:
    """The kernel for a left operand whose terms are windows, and whose rows are the numbers of which their elements
    consist. ``%tables`` has for each row a table of addresses, one for each window: those of number 0 of a group of
    rows, of which the first row here is number ``%row``. If all rows are ``of_one`` element, they have one table.
    Columns are in whole vectors."""
    written = _PanelKernelOfElements(block, edge, of_one)
    return written.e, written.function(name)


class _PanelKernelOfWindows(PanelKernel):
    parameters = f"ptr %addresses, i64 %channels, i64 %offset, i1 %asks, ptr %skipped, {OTHERS}"
    masks_columns = False

    def __init__(self, block: Block, edge: bool, between: int) -> None:
        super().__init__(block, edge)
        self.between = between
        self.changes = self.e.slot("i1")

    def _sum(self, targets: Sequence[str]) -> None:
        for target in targets:
            self._ask_for(target)
        e, end = self.e, self.add("%offset", "%inner")
        following = e.slot("ptr")
        e.store("ptr", "%addresses", following)
        # Terms are counted from number 0 of the first element of a window.
        with e.loop("0", end, "%channels") as before:
            addresses = e.load("ptr", following)
            e.store("ptr", self.moved(addresses, self.between, "ptr"), following)
            rows = [e.load("ptr", self.moved(addresses, row, "ptr")) for row in range(self.block.rows)]
            behind = self.moved(addresses, self.block.rows, "ptr")
            start = self.subtract(before, "%offset")
            begin, stop = self.larger(start, "0"), self.smaller(self.add(start, "%channels"), "%inner")
            self._ask_for_element(behind, begin, stop)
            # The loop over terms has no other instructions than it needs: then another program on the same core, which
            # shares its instruction decoders, delays the multiplications less.
            with e.when(self._changes_sums(addresses)):
                self._add_several(rows, begin, stop)

    def _changes_sums(self, addresses: str) -> str:
        """Whether the terms of an element change any sum. Zeros times finite columns are zeros, which change only sums
        that are -0."""
        e, rows = self.e, Lanes(self.e, self.block.rows)
        type_ = rows.type_of(dtypes.int64)
        skipped = rows.splat(Value(Lanes(e, 1), e.assign("ptrtoint ptr %skipped to i64"), dtypes.int64)).name
        there = e.assign(f"load {type_}, ptr {addresses}, align 8")
        outside = e.assign(f"icmp eq {type_} {there}, {skipped}")
        lanes = f"<{rows.width} x i1>"
        every = e.call(f"llvm.vector.reduce.and.v{rows.width}i1", "i1", [(lanes, outside)])
        e.store("i1", self.negated(every), self.changes)
        with e.when(every):
            e.store("i1", self._has_negative_zero(), self.changes)
        return e.load("i1", self.changes)

    def _has_negative_zero(self) -> str:
        """Whether any sum is -0: as an integer, this is the smallest number."""
        e, bits, width = self.e, 8 * self.block.dtype.size, self.block.lanes
        type_, name = f"<{width} x i{bits}>", f"v{width}i{bits}"
        found = ""
        for slot in self.sums.values():
            sums = e.load(type_, slot)
            found = e.call(f"llvm.smin.{name}", type_, [(type_, found), (type_, sums)]) if found else sums
        least = e.call(f"llvm.vector.reduce.smin.{name}", f"i{bits}", [(type_, found)])
        return e.assign(f"icmp eq i{bits} {least}, {-(1 << (bits - 1))}")

    def _ask_for_element(self, behind: str, begin: str, stop: str) -> None:
        """Prefetch the terms of an element of the next windows; ``behind`` has their addresses."""
        with self.e.when("%asks"), self.e.loop(begin, stop, CACHE_LINE // self.block.dtype.size) as first:
            for row in range(self.block.rows):
                following = self.e.load("ptr", self.moved(behind, row, "ptr"))
                prefetch(self.e, self._further(following, first), READ_SOON)

    def _term(self, number: str) -> str:
        return number


class _PanelKernelOfElements(PanelKernel):
    parameters = f"ptr %tables, i64 %row, {OTHERS}"
    masks_columns = False

    def __init__(self, block: Block, edge: bool, of_one: bool) -> None:
        super().__init__(block, edge)
        self.of_one = of_one

    def _sum(self, targets: Sequence[str]) -> None:
        for target in targets:
            self._ask_for(target)
        rows = range(1 if self.of_one else self.block.rows)
        tables = [self.e.load("ptr", self.moved("%tables", row, "ptr")) for row in rows]
        several = self.subtract("%inner", self.remainder("%inner", TERMS_AT_ONCE))
        with self.e.loop("0", several, TERMS_AT_ONCE) as first:
            for number in range(TERMS_AT_ONCE):
                self._add_window(tables, self.add(first, number))
        with self.e.loop(several, "%inner") as term:
            self._add_window(tables, term)

    def _add_window(self, tables: Sequence[str], term: str) -> None:
        prefetch(self.e, self._further(self._address(tables[0], self.add(term, TERMS_AHEAD)), "%row"), READ_SOON)
        self._add_term([self._address(tables[0], term)] * self.block.rows if self.of_one else tables, term)

    def _address(self, table: str, term: str) -> str:
        return self.e.load("ptr", self.moved(table, term, "ptr"))

    def _left(self, number: int, row: str, term: str) -> Value:
        address = row if self.of_one else self._address(row, term)
        location = Location(self._further(address, "%row"), str(number), False)
        value: Value = self.L.splat(load(Lanes(self.e, 1), self.block.dtype, location, None))
        return value
