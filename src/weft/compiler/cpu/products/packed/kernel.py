"""The kernel of matrix products: it holds a block of the result in registers while it adds up the terms of the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WRITE_SOON, prefetch
from weft.compiler.cpu.products.step import Block, below, multiply_add
from weft.compiler.cpu.products.tiles import keeps_columns
from weft.dtypes import Dtype

_LEFT = "ptr %a, i64 %a_row, i64 %a_inner, ptr %later, i64 %later_row"
OTHERS = "ptr %b, i64 %b_inner, ptr %c, i64 %c_row, i64 %inner, i64 %rows, i64 %columns, i1 %again"
PARAMETERS = f"{_LEFT}, {OTHERS}"
PARAMETERS_OVER_AXES = f"ptr %a, ptr %a_rows, ptr %a_terms, {OTHERS}"

PARAMETERS_OF_SUMS = f"ptr %a, i64 %a_next, i64 %b_next, i64 %count, {OTHERS}"

TERMS_AHEAD = 8
"""How many terms ahead columns are prefetched, and elements of windows where windows are terms."""

TERMS_AT_ONCE = 4
"""How many terms are added between two branches, if both operands are in panels, and of windows: so the processor has
fewer instructions besides the multiplications."""

WHOLE = "block"
"""The name of the kernel of whole blocks."""

MakeKernel = Callable[[Block, str, bool], EmittedFunction]
"""Makes a kernel of a block, its name, and whether the block is at an edge."""


Edges = dict[int, str]
"""The names of the kernels of blocks at an edge, by the number of their vectors."""


def kernels(block: Block, edges: Edges, made: MakeKernel, kind: str = "") -> list[EmittedFunction]:
    """The kernel of whole blocks, and those of blocks at an edge; ``made`` makes each, and ``kind`` is where their
    names begin."""
    narrow = [(replace(block, vectors=vectors), name) for vectors, name in edges.items() if name != WHOLE]
    return [made(block, kind + WHOLE, False), *[made(part, kind + name, True) for part, name in narrow]]


def edges_of(vectors: Iterable[int]) -> Edges:
    """The kernels for blocks of so many vectors at an edge."""
    return {number: f"edge_{number}" for number in vectors}


def all_edges(block: Block) -> Edges:
    """The kernels for any number of vectors at an edge, of those that `kernel` or `kernel_over_axes` makes: if only the
    last vector is cut, it may overlap the one before, and the kernel of whole blocks is used."""
    return edges_of(range(1, block.vectors + 1)) | ({block.vectors: WHOLE} if block.vectors > 1 else {})


def kernel(block: Block, name: str, edge: bool, result: Dtype | None = None) -> EmittedFunction:
    """Multiply ``%inner`` terms of rows and columns. The sums are stored, or added to the result if ``%again``. If the
    ``result`` has another dtype than the sums, these must be complete; they are rounded when they are stored.

    The columns of a term are neighbours in ``%b``. Only ``%columns`` exist, which end in the last vector. At an
    ``edge`` this has a mask if it is the only one, which takes longer; else it overlaps the one before. Unless it is
    null, rows at ``%later``, which are ``%later_row`` bytes apart, are prefetched.
    """
    overlaps = block.vectors > 1
    written = PanelKernel(block, edge and not overlaps, result, overlaps)
    return written.e, written.function(name)


def kernel_in_panels(block: Block, name: str, result: Dtype) -> EmittedFunction:
    """The kernel of whole blocks for operands that are in panels: the terms of a row are neighbours, and the right
    operand has nothing between the columns of one term and those of the next one. Distances are constants here, so
    several terms are added between two branches, and the processor has half as many instructions besides the
    multiplications: another program on the same core then delays these less."""
    written = _KernelInPanels(block, False, result)
    return written.e, written.function(name)


def kernel_that_packs(block: Block, name: str, result: Dtype) -> EmittedFunction:
    """The kernel of whole blocks that reads columns where they are in the right operand, and copies them to a panel
    ``%to``: stores are done beside multiplications in no more time."""
    written = _KernelThatPacks(block, False, result)
    return written.e, written.function(name)


def kernel_of_sums(block: Block, name: str, edge: bool) -> EmittedFunction:
    """The kernel for the sum of ``%count`` products of ``%inner`` terms each, which is added to the result if
    ``%again``. Operands are in panels; those of a product are ``%a_next`` and ``%b_next`` elements after those of the
    one before."""
    written = _PanelKernelOfSums(block, edge, overlaps=not edge and block.vectors > 1)
    return written.e, written.function(name)


def kernel_over_axes(block: Block, name: str, edge: bool) -> EmittedFunction:
    """The kernel for a left operand whose rows and terms go over several axes in memory: ``%a_rows`` and ``%a_terms``
    have the distances at which each begins. Columns are in whole vectors."""
    written = _PanelKernelOverAxes(block, edge, overlaps=not edge and block.vectors > 1)
    return written.e, written.function(name)


def kernel_of_lines(block: Block, name: str, edge: bool) -> EmittedFunction:
    """The kernel for operands whose rows and terms go over several axes in memory: beside the tables of
    `kernel_over_axes` there is ``%b_terms``, with the distances at which the columns of each term begin."""
    written = _PanelKernelOfLines(block, edge)
    return written.e, written.function(name)


def kernel_of_pairs(block: Block, name: str, edge: bool, fused: bool, result: Dtype) -> EmittedFunction:
    """The kernel for panels of pairs of terms of bfloat16; ``%inner`` counts pairs. The first term of a pair is in the
    upper half of a 32-bit number, the second one in the lower half. An instruction for pairs adds both products or, if
    ``fused``, two fused multiply-adds of float32 do."""
    written = (_Halves if fused else _PairsKernel)(block, edge, result)
    return written.e, written.function(name)


class PanelKernel(Integers):
    parameters = PARAMETERS

    masks_columns = True
    """Whether a vector of columns at an edge is read with a mask, because the others may not be in memory. That takes
    an instruction of the kind that adds up products."""

    again = "%again"
    """Whether sums are added to the result."""

    rounds_bfloat16 = False
    """Whether sums are rounded by an instruction that takes subnormal numbers as zero."""

    terms_ahead = TERMS_AHEAD
    """How many terms ahead columns are prefetched."""

    def __init__(self, block: Block, edge: bool, result: Dtype | None = None, overlaps: bool = False) -> None:
        super().__init__(Emitter(self.rounds_bfloat16))
        self.block, self.edge, self.result = block, edge, result or block.dtype
        self.L = Lanes(self.e, block.lanes)
        self.type = self.L.type_of(block.dtype)
        self.sums = {(row, v): self.e.slot(self.type) for row in range(block.rows) for v in range(block.vectors)}
        self.columns = [str(v * block.lanes) for v in range(block.vectors)]
        """The first column of each vector."""
        if overlaps:
            self.columns[-1] = self.subtract("%columns", block.lanes)
        self.masks: list[str | None] = [None] * block.vectors
        if edge:
            self.masks[-1] = below(self.L, str((block.vectors - 1) * block.lanes), "%columns")

    def function(self, name: str) -> str:
        for slot in self.sums.values():
            self.e.store(self.type, self.L.constant(0.0, self.block.dtype).name, slot)
        targets = [self._target(row) for row in range(self.block.rows)]
        self._sum(targets)
        for row, target in enumerate(targets):
            with self.e.when(self.compare("slt", str(row), "%rows")):
                self._store(row, target)
        return self.e.function(name, self.parameters, "internal ")

    def _further(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, self.block.element)

    def _ask_for(self, target: str, ends: bool = False) -> None:
        """Prefetch the memory of a row of the result, which is accessed when the sums are ready. Where rows begin
        inside of cache lines, vectors are in one line more, in which a row ``ends``."""
        size = self.block.columns * self.result.size
        for distance in [*range(0, size, CACHE_LINE), *([size - 1] if ends else [])]:
            prefetch(self.e, self.moved(target, distance), WRITE_SOON)

    def _sum(self, targets: Sequence[str]) -> None:
        """Add up the terms. After each cache line of these, memory that is needed later is prefetched: more at once
        would delay the panels, which are read from the second cache."""
        e, rows = self.e, self._rows()
        line = CACHE_LINE // self.block.dtype.size
        lines = self.divide(self.add("%inner", line - 1), line)
        ends = keeps_columns(self.block)
        with e.loop(lines, "%rows") as row:
            self._ask_for(self._target(row), ends)
        with e.loop("0", "%inner", line) as first:
            row = self.divide(first, line)
            with e.when(self.compare("slt", row, "%rows")):
                self._ask_for(self._target(row), ends)
            self._prefetch_left(first)
            self._add_terms(rows, first, self.smaller(self.add(first, line), "%inner"))

    def _rows(self) -> list[str]:
        """Where rows of the left operand begin. For a row that does not exist the last one is read; its sums are not
        stored."""
        last = self.subtract("%rows", 1)
        return [self._further("%a", self._row(self.smaller(str(r), last))) for r in range(self.block.rows)]

    def _add_terms(self, rows: Sequence[str], first: str, end: str) -> None:
        with self.e.loop(first, end) as term:
            self._prefetch_columns(self.add(term, self.terms_ahead))
            self._add_term(rows, term)

    def _add_several(self, rows: Sequence[str], first: str, end: str) -> None:
        """Add terms, several of them between two branches."""
        several = self.subtract(end, self.remainder(self.subtract(end, first), TERMS_AT_ONCE))
        with self.e.loop(first, several, TERMS_AT_ONCE) as term:
            for number in range(TERMS_AT_ONCE):
                self._add_term(rows, self.add(term, number))
        with self.e.loop(several, end) as term:
            self._add_term(rows, term)

    def _target(self, row: str | int) -> str:
        """The address of a row of the result."""
        return self.moved("%c", self.multiply("%c_row", row), MEMORY_TYPES[self.result])

    def _prefetch_left(self, first: str) -> None:
        """Prefetch a cache line of each row of the left operand that is multiplied later."""
        with self.e.when(self._asks()):
            self._prefetch_rows(first)

    def _asks(self) -> str:
        """Whether rows are multiplied later that are not prefetched yet."""
        return self.e.assign("icmp ne ptr %later, null")

    def _prefetch_rows(self, first: str) -> None:
        start = self.moved("%later", self.multiply(first, self.block.dtype.size))
        for row in range(self.block.rows):
            prefetch(self.e, self.moved(start, self.multiply("%later_row", row)), READ_SOON)

    def _prefetch_columns(self, term: str) -> None:
        """Prefetch the columns of a term. In place, terms may be in a page each, and the processor looks ahead only
        inside of pages. In panels, blocks with short vectors need columns sooner than the processor reads them from
        the second cache by itself."""
        start = self._columns_of(term)
        for distance in range(0, self.block.columns * self.block.dtype.size, CACHE_LINE):
            prefetch(self.e, self.moved(start, distance), READ_SOON)

    def _row(self, number: str) -> str:
        """The distance at which a row of the left operand begins."""
        return self.multiply("%a_row", number)

    def _term(self, number: str) -> str:
        """The distance of a term from the beginning of its row."""
        return self.multiply(number, "%a_inner")

    def _columns_of(self, term: str) -> str:
        """Where the columns of a term begin."""
        return self._further("%b", self.multiply(term, "%b_inner"))

    def _add_term(self, rows: Sequence[str], term: str) -> None:
        """Add the products of a term. Each number of the left operand is read when it is needed, because registers do
        not hold all of them."""
        e, L, dtype = self.e, self.L, self.block.dtype
        right = self._right(term)
        for number, row in enumerate(rows):
            left = self._left(number, row, term)
            for v, vector in enumerate(right):
                slot = self.sums[number, v]
                total = multiply_add(L, left, vector, Value(L, e.load(self.type, slot), dtype))
                e.store(self.type, total.name, slot)

    def _right(self, term: str) -> list[Value]:
        """The columns of a term."""
        start = self._columns_of(term)
        locations = [Location(start, column, False) for column in self.columns]
        masks = self.masks if self.masks_columns else [None] * len(locations)
        return [load(self.L, self.block.dtype, at, mask) for at, mask in zip(locations, masks, strict=True)]

    def _left(self, number: int, row: str, term: str) -> Value:
        """A term of a row of the left operand, in all lanes."""
        location = Location(row, self._term(term), False)
        value: Value = self.L.splat(load(Lanes(self.e, 1), self.block.dtype, location, None))
        return value

    def _store(self, row: int, target: str) -> None:
        """Store a row of sums; finished sums are rounded here."""
        e, L, dtype = self.e, self.L, self.block.dtype
        locations = [
            (Location(target, column, False), self.sums[row, v], mask)
            for v, (column, mask) in enumerate(zip(self.columns, self.masks, strict=True))
        ]
        if self.result is dtype:
            with e.when(self.again):
                for location, slot, mask in locations:
                    total = load(L, dtype, location, mask) + Value(L, e.load(self.type, slot), dtype)
                    e.store(self.type, total.name, slot)
        for location, slot, mask in locations:
            store(L, SumOfProducts(L, e.load(self.type, slot), self.result), self.result, location, mask)


class _KernelInPanels(PanelKernel):
    def _sum(self, targets: Sequence[str]) -> None:
        if not keeps_columns(self.block):
            super()._sum(targets)
            return
        # Columns are in the first cache, so prefetches delay nothing. Most calls have no rows to prefetch: these add
        # terms without a branch after each cache line, of which float64 would have one for eight terms.
        rows, asks = self._rows(), self._asks()
        with self.e.loop("0", "%rows") as row:
            self._ask_for(self._target(row), ends=True)
        line = CACHE_LINE // self.block.dtype.size
        with self.e.when(asks), self.e.loop("0", "%inner", line) as first:
            self._prefetch_rows(first)
            self._add_several(rows, first, self.smaller(self.add(first, line), "%inner"))
        with self.e.when(self.negated(asks)):
            self._add_several(rows, "0", "%inner")

    def _add_terms(self, rows: Sequence[str], first: str, end: str) -> None:
        self._add_several(rows, first, end)

    def _term(self, number: str) -> str:
        return number

    def _columns_of(self, term: str) -> str:
        return self._further("%b", self.multiply(term, self.block.columns))


class _KernelThatPacks(PanelKernel):
    parameters = f"{PARAMETERS}, ptr %to"
    terms_ahead = 48
    """Most columns are in caches further away than those that are read a second time."""

    def _right(self, term: str) -> list[Value]:
        right = super()._right(term)
        panel = self._further("%to", self.multiply(term, self.block.columns))
        for column, vector in zip(self.columns, right, strict=True):
            store(self.L, vector, self.block.dtype, Location(panel, column, False), None)
        return right


class _PanelKernelOfSums(PanelKernel):
    parameters = PARAMETERS_OF_SUMS
    masks_columns = False

    def function(self, name: str) -> str:
        targets = [self._target(row) for row in range(self.block.rows)]
        for target in targets:
            self._ask_for(target)
        with self.e.loop("0", "%count") as product:
            self.again = self.e.assign(f"or i1 %again, {self.compare('ne', product, 0)}")
            self.right = self._further("%b", self.multiply("%b_next", product))
            self._sum_of_product(self._further("%a", self.multiply("%a_next", product)))
            for row, target in enumerate(targets):
                with self.e.when(self.compare("slt", str(row), "%rows")):
                    self._store(row, target)
        return self.e.function(name, self.parameters, "internal ")

    def _sum_of_product(self, left: str) -> None:
        zero = self.L.constant(0.0, self.block.dtype).name
        for slot in self.sums.values():
            self.e.store(self.type, zero, slot)
        self._add_terms([self._further(left, str(row)) for row in range(self.block.rows)], "0", "%inner")

    def _term(self, number: str) -> str:
        return self.multiply(number, self.block.rows)

    def _columns_of(self, term: str) -> str:
        return self._further(self.right, self.multiply(term, "%b_inner" if self.edge else self.block.columns))


class _PanelKernelOverAxes(PanelKernel):
    parameters = PARAMETERS_OVER_AXES
    masks_columns = False

    def _prefetch_left(self, first: str) -> None:
        # The rows after these are needed next.
        start = self._further("%a", self._term(first))
        for row in range(self.block.rows, 2 * self.block.rows):
            prefetch(self.e, self._further(start, self._row(str(row))), READ_SOON)

    def _row(self, number: str) -> str:
        return self.e.load("i64", self.moved("%a_rows", number, "i64"))

    def _term(self, number: str) -> str:
        return self.e.load("i64", self.moved("%a_terms", number, "i64"))


class _PanelKernelOfLines(_PanelKernelOverAxes):
    parameters = PARAMETERS_OVER_AXES.replace("i64 %b_inner", "ptr %b_terms")
    masks_columns = True

    def _sum(self, targets: Sequence[str]) -> None:
        for target in targets:
            self._ask_for(target)
        rows = [self._further("%a", self._row(str(row))) for row in range(self.block.rows)]
        with self.e.loop("0", "%inner") as term:
            self._add_term(rows, term)

    def _columns_of(self, term: str) -> str:
        return self._further("%b", self.e.load("i64", self.moved("%b_terms", term, "i64")))


class _PairsKernel(PanelKernel):
    """AVX512-BF16's VDPBF16PS adds the product of the upper halves first, then that of the lower ones. Each addition
    rounds as a fused multiply-add does, except that subnormal numbers are taken as zero."""

    rounds_bfloat16 = True

    def _sum(self, targets: Sequence[str]) -> None:
        for target in targets:
            self._ask_for(target)
        rows = [self._further("%a", self._row(str(row))) for row in range(self.block.rows)]
        with self.e.loop("0", "%inner") as pair:
            self._add_term(rows, pair)

    def _add_term(self, rows: Sequence[str], term: str) -> None:
        right = self._read_right(self._further("%b", self.multiply(term, "%b_inner")))
        self._add_numbers([self._further(row, self._term(term)) for row in rows], right)

    def _add_numbers(self, rows: Sequence[str], right: Sequence[str]) -> None:
        """Add the products of numbers of the right panel with those of the left one at ``rows``."""
        for number, row in enumerate(rows):
            left = self._read_left(row)
            for v, vector in enumerate(right):
                slot = self.sums[number, v]
                self.e.store(self.type, self._added(left, vector, self.e.load(self.type, slot)), slot)

    def _read_right(self, start: str) -> list[str]:
        pointers = [self.moved(start, v * self.block.vector_bytes) for v in range(self.block.vectors)]
        return [self._image(f"<{self.L.width} x i32>", pointer) for pointer in pointers]

    def _read_left(self, pointer: str) -> str:
        number = Value(Lanes(self.e, 1), self._image("i32", pointer), dtypes.uint32)
        return str(self.L.splat(number).name)

    def _image(self, type_: str, pointer: str) -> str:
        return self.e.assign(f"load {type_}, ptr {pointer}, align 2")

    def _added(self, left: str, right: str, total: str) -> str:
        halves = f"<{2 * self.L.width} x bfloat>"
        operands = [(halves, self._as(halves, pairs)) for pairs in (left, right)]
        function = f"llvm.x86.avx512bf16.dpbf16ps.{8 * self.block.vector_bytes}"
        return self.e.call(function, self.type, [(self.type, total), *operands])

    def _as(self, type_: str, numbers: str) -> str:
        return self.e.assign(f"bitcast <{self.L.width} x i32> {numbers} to {type_}")


class _Halves(_PairsKernel):
    """Treats both halves of a number as terms, one after the other. The lower half is read from an address two bytes
    below, where it is the upper half of a number. (There is room for that read below panels.)"""

    rounds_bfloat16 = False

    def _add_term(self, rows: Sequence[str], term: str) -> None:
        start, left = self._further("%b", self.multiply(term, "%b_inner")), self._term(term)
        with self.e.loop("0", "4", 2) as bytes_:
            back = self.subtract("0", bytes_)
            pointers = [self.moved(self._further(row, left), back) for row in rows]
            self._add_numbers(pointers, self._read_right(self.moved(start, back)))

    def _image(self, type_: str, pointer: str) -> str:
        mask = "-65536" if type_ == "i32" else "splat (i32 -65536)"
        return self.e.assign(f"and {type_} {super()._image(type_, pointer)}, {mask}")

    def _added(self, left: str, right: str, total: str) -> str:
        L, dtype = self.L, self.block.dtype
        a, b, c = [Value(L, name, dtype) for name in (self._as(self.type, left), self._as(self.type, right), total)]
        return str(L.fma(a, b, c).name)
