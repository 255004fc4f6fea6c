"""Products of stacks of matrices so small that a vector holds elements of several rows, or of several matrices.

Results are computed in the order in which they are in memory, in whole vectors, if they are not computed row by row
(`rows`, `blocks`). Extents and strides are constants of the code, so for each term of a vector of results,
the elements of an operand are a shuffle of one or two vectors that are read from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, prod

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.products.step import SLOTS
from weft.compiler.cpu.products.tiny import blocks as tiny_blocks
from weft.compiler.cpu.products.tiny import rows as tiny_rows
from weft.compiler.cpu.products.tiny import rows_ahead, short_rows, single_columns
from weft.compiler.cpu.products.tiny import strips as tiny_strips
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

from .elements import TinyElementsWriter
from .groups import LONG_VECTORS, GroupWriter, Tiny, vector_bytes
from .pairs import TinyPairsWriter

MOST_EXTENT, MOST_WORK = 6, 125
"""The most rows, columns or terms of a matrix, and the most multiplications of two of them: with more, shuffles take
longer than reading each row by itself."""

DTYPES = (dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)

NARROW_COLUMNS, MOST_WORK_OF_NARROW, MOST_ODD = 12, 1024, 5
"""The most columns and multiplications of larger matrices, if their columns are few. An odd number of columns has at
most the third number, if there are no more rows."""
MOST_READ = 5, 8
"""From how many vectors elements may come for a term of a vector of results; the second number is for pairs."""
MOST_READ_APART = {64: 3, 32: 2}
"""From how many of the right operand if columns are no neighbours, by the bytes of a vector."""
MOST_STEPS = 128
"""How many terms of vectors of results the code for a group has at most: it takes time to generate."""

MOST_COLUMNS, MOST_TERMS = 3, 4
"""With long vectors, the most columns and terms of matrices of float16 that are converted where they are shuffled. Both
take the same unit of the processor there, which has one for each shorter vector."""

# The position of the step's number after the places of both operands and the result: for how many matrices after the
# last one there is memory of operands, which may be read.
_BEHIND = 6
_GROUPS = "groups"
"""The name of the function that multiplies groups."""


def may_take(extents: tuple[int, int, int], source: Dtype) -> bool:
    """Whether matrices of these rows, columns and terms, with left operands of the dtype ``source``, are so small that
    they may be computed here, where an element is a single sum. Processors without AVX2 lack shuffles that move
    elements to any place."""
    rows, columns, inner = extents
    largest = max(rows * inner, inner * columns, rows * columns)
    blocks = tiny_strips if vector_bytes() < LONG_VECTORS else tiny_blocks
    few = columns <= blocks.MOST_COLUMNS and largest <= blocks.MOST_ELEMENTS
    return min(extents) > 0 and inner <= DEPTH and few and "+avx2" in host.current().features


def takes(tiny: Tiny) -> bool:
    """Whether matrices are computed here."""
    return _by_rows(tiny) is not None or takes_in_order(tiny)


def takes_in_order(tiny: Tiny) -> bool:
    """Whether the results of matrices are computed in the order in which they are in memory, if it is not row by
    row."""
    return _are_few(tiny.extents) or (_is_narrow(tiny) and _are_near(tiny))


def _by_rows(tiny: Tiny) -> Callable[[Tiny], GroupWriter] | None:
    """What multiplies matrices row by row; None if results are computed in the order in which they are in memory."""
    if single_columns.takes(tiny):
        return single_columns.TinySingleColumnsWriter
    if short_rows.takes(tiny):
        return short_rows.TinyShortRowsWriter
    in_strips = vector_bytes() < LONG_VECTORS and tiny_strips.takes(tiny)
    in_many_strips = in_strips and tiny_strips.has_many(tiny) and not rows_ahead.transposes(tiny)
    if tiny_rows.takes(tiny) and not in_many_strips:
        return rows_ahead.TinyRowsAheadWriter if rows_ahead.takes(tiny) else tiny_rows.TinyRowsWriter
    if tiny.source not in HALVES and tiny.extents[2] <= tiny_rows.FEW_TERMS and takes_in_order(tiny):
        return None
    if in_strips:
        return tiny_strips.TinyStripsWriter
    return tiny_blocks.TinyBlocksWriter if tiny_blocks.takes(tiny) else None


def _are_few(extents: tuple[int, int, int]) -> bool:
    return max(extents) <= MOST_EXTENT and prod(extents) <= MOST_WORK


def _is_narrow(tiny: Tiny) -> bool:
    """Whether rows are so short that they would fill vectors badly if each were read by itself, or stored as columns of
    a transposed result; and the code is not too long."""
    (rows, columns, inner), lanes = tiny.extents, tiny.at_once
    if columns > NARROW_COLUMNS or rows * columns * inner > MOST_WORK_OF_NARROW:
        return False
    if tiny.group * rows * columns * inner > MOST_STEPS * lanes:
        return False
    return columns < rows or (2 * columns <= lanes and (columns % 2 == 0 or columns <= MOST_ODD))


def _are_near(tiny: Tiny) -> bool:
    """Whether the elements for a term of a vector of results come from few vectors in memory."""
    (rows, columns, inner), lanes = tiny.extents, tiny.at_once
    a_row, _, _, b_column = tiny.strides
    matrices, lines = max(1, lanes / (rows * columns)), lanes / columns
    left = min(matrices if a_row == 1 else lines, lines * inner / lanes)
    right = min(matrices if b_column == 1 else matrices * columns, matrices * inner * columns / lanes)
    near = b_column == 1 or right <= MOST_READ_APART[vector_bytes()]
    return near and ceil(left) + ceil(right) <= MOST_READ[tiny.source is dtypes.bfloat16]


def reads(tiny: Tiny) -> bool:
    """Whether operands are not converted before."""
    if tiny.source is dtypes.float16 and _by_rows(tiny) is None:
        _, columns, inner = tiny.extents
        return vector_bytes() < LONG_VECTORS or (columns <= MOST_COLUMNS and inner <= MOST_TERMS)
    return tiny.source in DTYPES


def step_numbers(places: Sequence[Place], behind: int = 0) -> list[int]:
    """The numbers of a step: places of both operands and the result, and for how many matrices after the last one there
    is memory of operands."""
    return [*[number for place in places for number in place], behind]


@cache
def address(tiny: Tiny) -> int:
    """The address of the step for a kind of stack."""
    name = "tiny_stacks"
    return loading.load(f"{name} {tiny}", lambda: generate(tiny, name), (name,))[name]


def generate(tiny: Tiny, name: str) -> str:
    """The LLVM IR of the step."""
    by_rows = _by_rows(tiny)
    return module_of(functions(in_order(tiny) if by_rows is None else by_rows(tiny), name))


def functions(groups: GroupWriter, name: str, linkage: str = "") -> list[EmittedFunction]:
    """The function of the step, and the one that it calls."""
    return [groups.function(_GROUPS), _StepWriter(groups).function(name, linkage)]


def in_order(tiny: Tiny) -> GroupWriter:
    """What multiplies groups of matrices in the order in which results are in memory."""
    return TinyPairsWriter(tiny) if tiny.source is dtypes.bfloat16 else TinyElementsWriter(tiny)


class _StepWriter(Integers):
    """Writes the step. Matrices after which there is not enough memory are copied to the stack first, and their results
    from there."""

    def __init__(self, groups: GroupWriter) -> None:
        super().__init__(Emitter())
        tiny, ends = groups.tiny, groups.ends
        self.bytes, self.matrices = tiny.bytes, groups.matrices
        self.needed = {name: -(-end // tiny.sizes[name]) for name, end in ends.items()}
        """How many matrices there must be in memory for a group that is not copied."""
        self.rooms = {name: end * (tiny.result if name == "c" else tiny.source).size for name, end in ends.items()}
        self.copies = {name: self.e.slot(f"[{room} x i8], align 64") for name, room in self.rooms.items()}

    def function(self, name: str, linkage: str) -> EmittedFunction:
        e, bases = self.e, {name: self.memory(slot) for name, slot in SLOTS.items()}
        count = self.subtract("%end", "%begin")
        whole = self._groups_in(count, self.needed["c"])
        needed = max(self.needed["a"], self.needed["b"])
        if needed > self.needed["c"]:
            whole = self.smaller(whole, self._groups_in(self.add(count, self.number(_BEHIND)), needed))
        self._multiply(self._places(bases, "%begin"), whole)
        with e.loop(self.add("%begin", self.multiply(whole, self.matrices)), "%end", self.matrices) as first:
            left = self.smaller(self.subtract("%end", first), self.matrices)
            places = self._places(bases, first)
            for operand in "ab":
                self._clear(operand)
                self._copy(places[operand], self.copies[operand], self.multiply(left, self.bytes[operand]))
            self._multiply(self.copies, "1")
            self._copy(self.copies["c"], places["c"], self.multiply(left, self.bytes["c"]))
        return e, e.function(name, STEP, linkage)

    def _groups_in(self, matrices: str, needed: int) -> str:
        """How many groups there are in so many matrices, the last of which needs memory for some."""
        after = self.add(matrices, self.matrices - needed)
        return self.divide(self.larger(after, "0"), self.matrices)

    def _places(self, bases: dict[str, str], first: str) -> dict[str, str]:
        return {name: self.moved(base, self.multiply(first, self.bytes[name])) for name, base in bases.items()}

    def _multiply(self, places: dict[str, str], count: str) -> None:
        pointers = ", ".join([f"ptr {places[name]}" for name in SLOTS])
        self.e.emit(f"call void @{_GROUPS}({pointers}, i64 {count})")

    def _clear(self, operand: str) -> None:
        """Set a copy to zero: numbers after those of the last matrix are multiplied, too, and subnormal ones take a
        hundred times as long."""
        self.e.declarations["memset"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
        self.e.emit(
            f"call void @llvm.memset.p0.i64(ptr {self.copies[operand]}, i8 0, i64 {self.rooms[operand]}, i1 false)"
        )

    def _copy(self, source: str, target: str, size: str) -> None:
        self.e.declarations["memcpy"] = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        self.e.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")
