"""How the threads of a block divide a product of a few rows with a transposed quantised matrix among them.

A unit of work is a strip of columns, which are rows of the matrix. Sums are made in the same order as in
`weft.compiler.cpu.products.packed.blocks`: in blocks of 256 terms, each summed in order. So each block of each column
is a *chain* of additions, and a thread does one chain at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

from weft.compiler.codegen.quantized import Coding
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.compiler.cuda.threads import WARP
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

SHARED_BYTES = 96 << 10
"""The most shared memory of a block: most cards provide as much."""
MOST_WARPS = 16
NARROW, WIDE = 8, 32
"""Columns of a strip. For one row, strips are narrow, so that each multiprocessor has work; for more rows they are
wide, so that the rows are read less often."""
QUAD = 4
"""How many words are read at once."""
DIGITS = 3
"""How many bytes a term has that is an integer."""
UNIT_BYTES = 16
"""Bytes of the unit and the sum of a group of integers."""


@dataclass(frozen=True)
class QuantizedWarpStrip:
    """A strip of ``rows`` times ``columns`` of the result, which ``warps`` compute together. The threads of a warp do
    the chains of all columns for some neighbouring blocks. The left operand has the dtype ``x``, the result ``result``.
    ``early``: no kernel that runs before writes the matrix, so it is read without waiting for them."""

    coding: Coding
    x: Dtype
    result: Dtype
    group_size: int
    rows: int
    columns: int
    warps: int
    early: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks a warp does side by side."""
        return WARP // self.columns

    @property
    def lines(self) -> int:
        """How many blocks of rows of the left operand a warp needs."""
        return self.rows * self.blocks

    @property
    def words(self) -> int:
        """How many words a chain has."""
        return DEPTH * self.coding.bits // WORD

    @property
    def words_together(self) -> int:
        """How many words a thread reads from shared memory at once."""
        return gcd(self.coding.words, QUAD)

    @property
    def chain_words(self) -> int:
        """The distance from one chain to the next in shared memory. It is chosen so that threads use different
        banks."""
        return self.words + self.words_together

    @property
    def groups(self) -> int:
        """How many groups a chain has."""
        return DEPTH // self.group_size

    @property
    def units_at(self) -> int:
        """Where the units and sums of groups are in a line of integers, in bytes. The digits of terms are before
        them."""
        return DEPTH * DIGITS

    @property
    def line_bytes(self) -> int:
        """The distance from one line to the next in shared memory, chosen so that threads use different banks: an odd
        multiple of the widest access."""
        if not self.coding.adds_integers:
            return DEPTH * self.coding.dtype.size + WIDEST_ACCESS
        size = self.units_at + self.groups * UNIT_BYTES
        return (size // WIDEST_ACCESS | 1) * WIDEST_ACCESS

    @property
    def areas(self) -> tuple[int, int, int]:
        """Bytes of shared memory for each warp: for words, for scales and what comes with them, for terms of the left
        operand."""
        factors = 3 if self.coding.adds_integers else 1 + self.coding.affine
        scales = WARP * self.groups * factors * self.coding.dtype.size
        return WARP * self.chain_words * WORD // 8, scales, self.lines * self.line_bytes

    @property
    def results(self) -> int:
        return self.rows * self.columns

    @property
    def sums_bytes(self) -> int:
        """Bytes of shared memory for the results so far, and for the sums of all blocks that are done at a time."""
        return (1 + self.warps * self.blocks) * self.results * self.coding.dtype.size

    @property
    def shared(self) -> int:
        return self.warps * sum(self.areas) + self.sums_bytes


def strip_of(whole: QuantizedWarpStrip, inner: int) -> QuantizedWarpStrip:
    """The strip for sums of ``inner`` terms. It has as many warps as blocks need, or an equal part of them."""
    single = replace(whole, warps=1)
    needed = -(-inner // (DEPTH * single.blocks))
    most = min(MOST_WARPS, SHARED_BYTES // single.shared)
    turns = -(-needed // most)
    return replace(whole, warps=-(-needed // turns))
