"""The kernel of matrix products: it holds a block of the result in registers while it adds up the terms of the sums."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WRITE_SOON, prefetch
from weft.compiler.cpu.product_step import Block, below, multiply_add
from weft.dtypes import Dtype

_LEFT = "ptr %a, i64 %a_row, i64 %a_inner, ptr %later, i64 %later_row"
_OTHERS = "ptr %b, i64 %b_inner, ptr %c, i64 %c_row, i64 %inner, i64 %rows, i64 %columns, i1 %again"
PARAMETERS = f"{_LEFT}, {_OTHERS}"
PARAMETERS_OVER_AXES = f"ptr %a, ptr %a_rows, ptr %a_terms, {_OTHERS}"


def kernel(block: Block, name: str, edge: bool, result: Dtype | None = None) -> EmittedFunction:
    """Multiply ``%inner`` terms of rows and columns. The sums are stored, or added to the result if ``%again``. If the
    ``result`` has another dtype than the sums, these must be complete; they are rounded when they are stored.

    The columns of a term are neighbours in ``%b``. At an ``edge``, only ``%columns`` exist, which end in the last
    vector. Unless it is null, rows at ``%later``, which are ``%later_row`` bytes apart, are prefetched.
    """
    written = _PanelKernel(block, edge, result)
    return written.e, written.function(name)


def kernel_over_axes(block: Block, name: str, edge: bool) -> EmittedFunction:
    """The kernel for a left operand whose rows and terms go over several axes in memory: ``%a_rows`` and ``%a_terms``
    have the distances at which each begins."""
    written = _PanelKernelOverAxes(block, edge)
    return written.e, written.function(name)


def kernel_of_pairs(block: Block, name: str, edge: bool, fused: bool, result: Dtype) -> EmittedFunction:
    """The kernel for panels of pairs of terms of bfloat16; ``%inner`` counts pairs. The first term of a pair is in the
    upper half of a 32-bit number, the second one in the lower half. An instruction for pairs adds both products or, if
    ``fused``, two fused multiply-adds of float32 do."""
    written = (_Halves if fused else _PairsKernel)(block, edge, result)
    return written.e, written.function(name)


class _PanelKernel(Integers):
    parameters = PARAMETERS

    rounds_bfloat16 = False
    """Whether sums are rounded by an instruction that takes subnormal numbers as zero."""

    def __init__(self, block: Block, edge: bool, result: Dtype | None = None) -> None:
        super().__init__(Emitter(self.rounds_bfloat16))
        self.block, self.edge, self.result = block, edge, result or block.dtype
        self.L = Lanes(self.e, block.lanes)
        self.type = self.L.type_of(block.dtype)
        self.sums = {(row, v): self.e.slot(self.type) for row in range(block.rows) for v in range(block.vectors)}
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

    def _ask_for(self, target: str) -> None:
        """Prefetch the memory of a row of the result, which is accessed when the sums are ready."""
        for distance in range(0, self.block.columns * self.result.size, CACHE_LINE):
            prefetch(self.e, self.moved(target, distance), WRITE_SOON)

    def _sum(self, targets: Sequence[str]) -> None:
        """Add up the terms. After each cache line of these, memory that is needed later is prefetched: more at once
        would delay the panels, which are read from the second cache."""
        e, last = self.e, self.subtract("%rows", 1)
        # For a row that does not exist the last one is read; its sums are not stored.
        rows = [self._further("%a", self._row(self.smaller(str(r), last))) for r in range(self.block.rows)]
        line = CACHE_LINE // self.block.dtype.size
        lines = self.divide(self.add("%inner", line - 1), line)
        with e.loop(lines, "%rows") as row:
            self._ask_for(self._target(row))
        with e.loop("0", "%inner", line) as first:
            row = self.divide(first, line)
            with e.when(self.compare("slt", row, "%rows")):
                self._ask_for(self._target(row))
            self._prefetch_left(first)
            with e.loop(first, self.smaller(self.add(first, line), "%inner")) as term:
                self._add_term(rows, term)

    def _target(self, row: str | int) -> str:
        """The address of a row of the result."""
        return self.moved("%c", self.multiply("%c_row", row), MEMORY_TYPES[self.result])

    def _prefetch_left(self, first: str) -> None:
        """Prefetch a cache line of each row of the left operand that is multiplied later."""
        with self.e.when(self.e.assign("icmp ne ptr %later, null")):
            start = self.moved("%later", self.multiply(first, self.block.dtype.size))
            for row in range(self.block.rows):
                prefetch(self.e, self.moved(start, self.multiply("%later_row", row)), READ_SOON)

    def _row(self, number: str) -> str:
        """The distance at which a row of the left operand begins."""
        return self.multiply("%a_row", number)

    def _term(self, number: str) -> str:
        """The distance of a term from the beginning of its row."""
        return self.multiply(number, "%a_inner")

    def _add_term(self, rows: Sequence[str], term: str) -> None:
        """Add the products of a term. Each number of the left operand is read when it is needed, because registers do
        not hold all of them."""
        e, L, dtype = self.e, self.L, self.block.dtype
        scalar = Lanes(e, 1)
        left_index = self._term(term)
        start = self._further("%b", self.multiply(term, "%b_inner"))
        locations = [Location(start, str(v * L.width), False) for v in range(self.block.vectors)]
        right = [load(L, dtype, location, mask) for location, mask in zip(locations, self.masks, strict=True)]
        for number, row in enumerate(rows):
            left = L.splat(load(scalar, dtype, Location(row, left_index, False), None))
            for v, vector in enumerate(right):
                slot = self.sums[number, v]
                total = multiply_add(L, left, vector, Value(L, e.load(self.type, slot), dtype))
                e.store(self.type, total.name, slot)

    def _store(self, row: int, target: str) -> None:
        """Store a row of sums; finished sums are rounded here."""
        e, L, dtype = self.e, self.L, self.block.dtype
        locations = [
            (Location(target, str(v * L.width), False), self.sums[row, v], mask) for v, mask in enumerate(self.masks)
        ]
        if self.result is dtype:
            with e.when("%again"):
                for location, slot, mask in locations:
                    total = load(L, dtype, location, mask) + Value(L, e.load(self.type, slot), dtype)
                    e.store(self.type, total.name, slot)
        for location, slot, mask in locations:
            store(L, Value(L, e.load(self.type, slot), self.result), self.result, location, mask)


class _PanelKernelOverAxes(_PanelKernel):
    parameters = PARAMETERS_OVER_AXES

    def _prefetch_left(self, first: str) -> None:
        # The rows after these are needed next.
        start = self._further("%a", self._term(first))
        for row in range(self.block.rows, 2 * self.block.rows):
            prefetch(self.e, self._further(start, self._row(str(row))), READ_SOON)

    def _row(self, number: str) -> str:
        return self.e.load("i64", self.moved("%a_rows", number, "i64"))

    def _term(self, number: str) -> str:
        return self.e.load("i64", self.moved("%a_terms", number, "i64"))


class _PairsKernel(_PanelKernel):
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
