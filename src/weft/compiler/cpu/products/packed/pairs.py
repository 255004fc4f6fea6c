"""Matrix products of bfloat16 by an instruction that adds the products of two terms (AVX512-BF16, VDPBF16PS).

The instruction adds the product of the upper halves, then that of the lower ones, and rounds each time as a fused
multiply-add does (Intel Software Developer's Manual, volume 2; AMD's Zen 4 and 5 give the same bits). So with the first
of two terms in the upper half, sums are those of `blocks`, unless there is a subnormal number: the instruction takes
subnormal operands and sums as zero. Whether there can be any is found while panels are packed. The elements of a panel
are multiples of the last bit of the smallest one that is not zero. If the products of such last bits of the left and
the right panel are multiples of 2^-126, the smallest normal number, all sums are too, also after rounding, so none is
subnormal. Otherwise, another kernel converts both halves of the numbers to float32, and uses fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product as combinations
from math import gcd

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, image
from weft.compiler.cpu.code import EmittedFunction, Integers, module_of
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, prefetch, transposed
from weft.compiler.cpu.products.step import SQUARE, Block, PairsBlock, Sources, below
from weft.compiler.cpu.products.tiles import GROUP, MOST_TERMS
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

from .blocks import FEEDER, Panels, Side, Terms, TileWriter, step_function
from .kernel import edges_of, kernel_of_pairs, kernels
from .packing import PARAMETERS, each_part

# The step's number after those of every product in blocks: the least sum of the exponents of two panels.
LEAST_EXPONENTS = FEEDER + 1
BATCH_AXES = FEEDER + 2

_BIAS, _FRACTION = 127, 7
"""The bias of a stored exponent, and how many bits a fraction has."""
EXACT = 2 * (_BIAS + _FRACTION) - 126
"""The least sum of the exponents of two panels with which products are exact; see above."""
_SUBNORMAL = -1024
"""Used as the exponent of panels with subnormal numbers."""
ALWAYS = 4 * _SUBNORMAL
"""Used as the least sum if subnormal numbers may be taken as zero."""

MOST_ROWS, MOST_ROWS_ACROSS = 12, 4
"""With more rows, packing pairs takes less time than reading the matrix in place does; see `few_rows`."""
HALF_AS_WIDE, MOST_ROWS_HALF_AS_WIDE = "znver4", 6
"""LLVM's name of the processor whose units are half as wide as its vectors, so that all multiplications take twice as
long and packing does not; and the limit there for a matrix of at most `MOST_PACKED` bytes."""
MOST_PACKED = 8 << 20
"""Panels of a larger matrix do not stay in a cache."""

SMALLEST_WORK = 5000
"""With fewer multiplications, comparing exponents does not pay."""

WORK_OF_ELEMENT = 7
"""How many multiplications each element of the operands and the result must share, so that packing small matrices takes
less time than converting their elements where they are read."""

_ROWS_AHEAD = 16
"""How many rows ahead memory is prefetched, where rows are copied."""

_LINES_AHEAD = 4
"""How many cache lines ahead an element's terms are prefetched, where there are many elements."""

PROCESSORS = ("znver4", "znver5")
"""LLVM's names of processors on which bits were compared, and on which this instruction does twice as many
multiplications in a time as float32 does. On an Intel Xeon it does half as many."""

_SOURCES = Sources(dtypes.bfloat16, dtypes.bfloat16)


@cache
def is_available() -> bool:
    """Whether this processor has the instruction, and it was found to give the same bits in less time."""
    processor = host.current()
    return processor.name in PROCESSORS and "+avx512bf16" in processor.features.split(",")


def takes(dtype: Dtype, sources: Sources, extents: tuple[int, int, int]) -> bool:
    """Whether products of these dtypes are computed with pairs; ``extents`` are rows, columns and terms."""
    if dtype is not dtypes.float32 or sources[:2] != _SOURCES[:2] or not is_available():
        return False
    rows, columns, inner = extents
    return rows * columns * inner >= SMALLEST_WORK


def takes_of_stack(dtype: Dtype, sources: Sources, extents: tuple[int, int, int]) -> bool:
    """Whether this holds even for matrices so small that their elements may be converted where they are read."""
    rows, columns, inner = extents
    elements = rows * inner + inner * columns + rows * columns
    return rows * columns * inner >= WORK_OF_ELEMENT * elements and takes(dtype, sources, extents)


def most_rows(extents: tuple[int, int, int], across: bool) -> int:
    """For how many rows a matrix is read in place; ``across``: the terms of its columns are neighbours."""
    _, columns, inner = extents
    if across:
        return MOST_ROWS_ACROSS
    is_cached = inner * columns * dtypes.bfloat16.size <= MOST_PACKED
    return MOST_ROWS_HALF_AS_WIDE if host.current().name == HALF_AS_WIDE and is_cached else MOST_ROWS


def block_of(columns: int) -> PairsBlock:
    """The block for a product with ``columns`` columns, chosen so that no single vector is left over."""
    widest = PairsBlock(dtypes.float32, 8, 3, 64)
    vectors = -(-columns // widest.lanes)
    return PairsBlock(dtypes.float32, 8, 2, 64) if vectors % 3 == 1 else widest


@cache
def address(block: PairsBlock, sources: Sources) -> int:
    """The address of the step for products in a kind of block."""
    name = f"product_pairs_{sources.name}"
    return loading.load(f"{name} {block}", lambda: generate(block, sources, name), (name,))[name]


def generate(block: Block, sources: Sources, name: str) -> str:
    """The LLVM IR of the step."""
    result = sources.result(block.dtype)
    functions = [_pack_along(block, block.rows, GROUP * block.rows), _pack_along(block, block.columns)]
    functions += [_pack_lines(block), _pack_across(block, block.columns)]
    for kind, fused in _KINDS.items():
        make = partial(kernel_of_pairs, fused=fused, result=result)
        functions += kernels(block, edges_of(range(1, block.vectors + 1)), make, kind)
    functions.append(step_function(_TilesOfPairs(block, sources), name))
    return module_of(functions)


_KINDS = {"pairs_": False, "halves_": True}
"""The prefixes of the kernels' names, and whether they use fused multiply-adds instead of the instruction for pairs."""


class _PairsPacking(Integers):
    """Writes how panels of ``width`` pairs are packed, and finds the smallest number that is not zero."""

    def __init__(self, block: Block, width: int, lanes: int = 0) -> None:
        super().__init__(Emitter())
        self.width = width
        self.L = Lanes(self.e, lanes or gcd(width, block.lanes))
        self.halves = Lanes(self.e, 2 * self.L.width)
        self.pairs_type, self.halves_type = (f"<{L.width} x {t}>" for L, t in ((self.L, "i32"), (self.halves, "i16")))
        # For a term that does not exist, the product of -0 and 0 is added, which changes no sum.
        self.missing = "splat (i16 -32768)" if width == block.rows else "zeroinitializer"
        self.least = self.e.slot(self.halves_type)
        self.e.store(self.halves_type, "splat (i16 -1)", self.least)

    def source(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, "i16")

    def target(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, "i32")

    def read(self, L: Lanes, pointer: str, index: str, mask: str | None) -> str:
        return image(L, dtypes.bfloat16, Location(pointer, index, False), mask)

    def read_pairs(self, line: str, term: str, mask: str | None) -> str:
        """Pairs of terms that are neighbours in memory; outside of ``mask``, the number for missing terms."""
        halves = self.read(self.halves, line, term, mask)
        if mask is not None:
            lanes = f"<{self.halves.width} x i1>"
            chosen = f"select {lanes} {mask}, {self.halves_type} {halves}, {self.halves_type} {self.missing}"
            halves = self.e.assign(chosen)
        self.note(halves)
        return self.as_pairs(halves)

    def exchanged(self, pairs: str) -> str:
        """Pairs with the first term in the upper half."""
        operands = [(self.pairs_type, x) for x in (pairs, pairs, "splat (i32 16)")]
        return self.e.call(f"llvm.fshl.v{self.L.width}i32", self.pairs_type, operands)

    def write(self, pairs: str, pointer: str) -> None:
        self.e.emit(f"store {self.pairs_type} {pairs}, ptr {pointer}, align 4")

    def note(self, halves: str) -> None:
        """Record the smallest magnitude. The sign bit is shifted out and 1 is subtracted, so that zero becomes the
        largest."""
        e, type_ = self.e, self.halves_type
        doubled = e.assign(f"add {type_} {halves}, {halves}")
        less = e.assign(f"add {type_} {doubled}, splat (i16 -1)")
        before = e.load(type_, self.least)
        operands = [(type_, before), (type_, less)]
        e.store(type_, e.call(f"llvm.umin.v{self.halves.width}i16", type_, operands), self.least)

    def as_pairs(self, halves: str) -> str:
        return self.e.assign(f"bitcast {self.halves_type} {halves} to {self.pairs_type}")

    def function(self, name: str) -> EmittedFunction:
        """The finished function. It also writes the smallest exponent, with its bias, to ``%exponent``."""
        e, type_ = self.e, self.halves_type
        least = e.call(f"llvm.vector.reduce.umin.v{self.halves.width}i16", "i16", [(type_, e.load(type_, self.least))])
        doubled = self.add(e.assign(f"zext i16 {least} to i64"), 1)
        exponent = e.assign(f"lshr i64 {doubled}, 8")
        e.store("i64", self.either(self.compare("eq", exponent, 0), _SUBNORMAL, exponent), "%exponent")
        return e, e.function(name, f"{PARAMETERS}, ptr %exponent", "internal ")


def _pack_along(block: Block, width: int, ahead: int = 0) -> EmittedFunction:
    """Pack panels of an operand in which the elements of a term are neighbours: two terms become a line of pairs. The
    next elements of each term, ``ahead`` of them, are prefetched, as by `packing.pack_along`."""
    w = _PairsPacking(block, width)
    rest = w.remainder("%present", width)
    whole, terms = w.subtract("%present", rest), _pairs_of(w, "%inner")
    unmasked: dict[int, str | None] = dict.fromkeys(range(0, width, w.L.width))
    masks = {start: below(w.L, str(start), rest) for start in unmasked}

    def copy(lines: Sequence[str], target: str, present: Mapping[int, str | None]) -> None:
        for start, mask in present.items():
            halves = [w.read(w.L, line, str(start), mask) for line in lines]
            order = ", ".join(f"i32 {lane + half}" for lane in range(w.L.width) for half in (w.L.width, 0))
            operands = ", ".join(f"<{w.L.width} x i16> {x}" for x in (*halves, w.missing)[:2])
            both = w.e.assign(f"shufflevector {operands}, <{w.halves.width} x i32> <{order}>")
            w.note(both)
            w.write(w.as_pairs(both), w.target(target, str(start)))

    def copy_terms(term: str, count: int) -> None:
        lines = [w.source("%from", w.multiply(w.add(term, step), "%stride")) for step in range(count)]
        first = w.target("%to", w.multiply(w.divide(term, 2), width))
        for line, distance in combinations(lines, range(0, ahead * dtypes.bfloat16.size, CACHE_LINE)):
            prefetch(w.e, w.moved(w.source(line, "%present"), distance))
        with w.e.loop("0", whole, width) as start:
            here = w.target(first, w.multiply(start, terms))
            copy([w.source(line, start) for line in lines], here, unmasked)
        with w.e.when(w.compare("ne", rest, 0)):
            here = w.target(first, w.multiply(whole, terms))
            copy([w.source(line, whole) for line in lines], here, masks)

    even = w.subtract("%inner", w.remainder("%inner", 2))
    with w.e.loop("0", even, 2) as term:
        copy_terms(term, 2)
    with w.e.when(w.compare("ne", even, "%inner")):
        copy_terms(even, 1)
    return w.function(f"pack_along_{width}")


def _pack_across(block: Block, width: int) -> EmittedFunction:
    """Pack panels of an operand in which the terms of an element are neighbours: squares of pairs are transposed.

    For elements that do not exist the last one is copied; the results are not stored.
    """
    w = _PairsPacking(block, width)
    side, terms = w.L.width, w.halves.width
    last, rest = w.subtract("%present", 1), w.remainder("%inner", terms)
    whole = w.subtract("%inner", rest)

    def copy(lines: Sequence[str], panel: str, term: str, mask: str | None) -> None:
        vectors = []
        for line in lines:
            prefetch(w.e, w.moved(w.source(line, term), _LINES_AHEAD * CACHE_LINE), READ_SOON)
            vectors.append(w.exchanged(w.read_pairs(line, term, mask)))
        target = w.target(panel, w.multiply(w.divide(term, 2), width))
        for step, vector in enumerate(transposed(w.L, dtypes.uint32, vectors)):
            w.write(vector, w.target(target, str(step * width)))

    with w.e.loop("0", "%present", side) as index:
        wanted = [w.smaller(w.add(index, step), last) for step in range(side)]
        lines = [w.source("%from", w.multiply(element, "%stride")) for element in wanted]
        inside = w.remainder(index, width)
        panel = w.target("%to", w.add(w.multiply(w.subtract(index, inside), _pairs_of(w, "%inner")), inside))
        with w.e.loop("0", whole, terms) as term:
            copy(lines, panel, term, None)
        with w.e.when(w.compare("ne", rest, 0)):
            copy(lines, panel, whole, below(w.halves, "0", rest))
    return w.function(f"pack_across_{width}")


def _pack_lines(block: Block) -> EmittedFunction:
    """Copy rows of a left operand in which the terms of an element are neighbours, each to a line, with the two terms
    of each pair exchanged: see `each_part`."""
    w = _PairsPacking(block, block.rows, block.lanes)
    distance = _pairs_of(w, "%inner")

    def copy(row: str, source: str, term: str, mask: str | None) -> None:
        if mask is None:
            later = w.source(source, w.multiply("%stride", _ROWS_AHEAD))
            prefetch(w.e, w.source(later, term), READ_SOON)
        line = w.target("%to", w.multiply(row, distance))
        w.write(w.exchanged(w.read_pairs(source, term, mask)), w.target(line, w.divide(term, 2)))

    each_part(w, "i16", w.halves, copy)
    return w.function("pack_lines")


def _pairs_of(w: Integers, terms: str) -> str:
    """How many pairs a line of a panel has room for: whole squares."""
    return w.divide(w.rounded_up(terms, 2 * SQUARE), 2)


class _TilesOfPairs(TileWriter):
    """The loops over a unit. The kernel is chosen by the exponents of panels."""

    copies_lines = False

    def __init__(self, block: Block, sources: Sources) -> None:
        super().__init__(block, sources, BATCH_AXES)
        self.edges = edges_of(range(1, block.vectors + 1))
        self.right_exponents = self.e.slot(f"[{MOST_TERMS // DEPTH} x i64]")
        self.exponents = {"a": self.e.slot("i64"), "b": self.right_exponents}

    def memory_of_panels(self, size: int) -> str:
        """Memory with room below it, which kernels read and ignore."""
        return self.moved(super().memory_of_panels(CACHE_LINE + size), CACHE_LINE)

    def pack_right(self, operand: str, first: str, part: Terms, columns: str, wide: str) -> None:
        self._choose(part)
        super().pack_right(operand, first, part, columns, wide)

    def right_panels(self, operand: str, first: str, part: Terms, wide: str) -> Panels:
        self._choose(part)
        return super().right_panels(operand, first, part, wide)

    def _choose(self, part: Terms) -> None:
        """Select the exponent of a block of terms: each block that is packed has its own."""
        self.exponents["b"] = self.moved(self.right_exponents, self.divide(part.before, DEPTH), "i64")

    def behind(self, side: Side) -> str:
        return f", ptr {self.exponents[side.name]}"

    def room(self, depth: str) -> str:
        return _pairs_of(self, depth)

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
        depth, again = counts
        pairs = self.divide(self.add(depth, 1), 2), again
        exponents = [self.e.load("i64", slot) for slot in self.exponents.values()]
        exact = self.compare("sge", self.add(*exponents), self.number(LEAST_EXPONENTS))
        for condition, name in zip((exact, self.negated(exact)), _KINDS, strict=True):
            with self.e.when(condition):
                super().blocks(left, right, target, row, rows, columns, pairs, name)
