"""Products of a few complex rows, or of one column, with a matrix that is read once and not packed.

As in `packed.complex_blocks`, they are products of real numbers with twice as many terms: the real part of a number of
a row is multiplied with the parts x, y of a number of the matrix, its imaginary part with -y, x. A column is a row that
is multiplied with the transposed matrix. Then the matrix is the left factor, whose real part comes first: x is
multiplied with both parts of a number of the column, then -y, y with these parts exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, image
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import transposed
from weft.compiler.cpu.products.step import Sources

from .kernel import FewRowsKernel
from .step import generate
from .strip import Strip

_PARTS = Sources(dtypes.float32, dtypes.float32)


@cache
def address(strip: Strip, of_column: bool) -> int:
    """The address of the step for a kind of strip, whose columns are real and imaginary parts; if ``of_column``, for
    products of a matrix with a column."""
    name = "complex_column" if of_column else "few_complex_rows"
    kind = _ColumnKernel if of_column else _ComplexRowsKernel
    return loading.load(f"{name} {strip}", lambda: generate(strip, _PARTS, name, kind), (name,))[name]


class _ComplexRowsKernel(FewRowsKernel):
    parts = 2

    def _add(self, starts: Sequence[str], term: str, right: dict[tuple[int, int], str]) -> None:
        index = self._index_of(term)
        self._add_at(starts, index, right)
        behind = self.e.assign(f"add i64 {index}, 1")
        self._add_at(starts, behind, {key: self._times_i(name) for key, name in right.items()})

    def _times_i(self, parts: str) -> str:
        lanes = self.strip.lanes
        return self._chosen(parts, [lanes + lane + 1 if lane % 2 == 0 else lane - 1 for lane in range(lanes)])

    def _chosen(self, parts: str, lanes: Sequence[int]) -> str:
        """Lanes of a vector; numbers after its last lane are lanes of its negative."""
        negative = self.e.assign(f"fneg {self.type} {parts}")
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        operands = f"{self.type} {parts}, {self.type} {negative}"
        return self.e.assign(f"shufflevector {operands}, <{len(lanes)} x i32> <{order}>")

    def _terms_of_square(self) -> int:
        return self.strip.lanes

    def _takes_turns(self) -> bool:
        return False

    def _read_square(self, lines: Sequence[str], term: str, mask: str | None) -> list[Value]:
        count = self.strip.lanes // self.parts
        L = Lanes(self.e, count)
        locations = [Location(self._further(line, term), "0", False) for line in lines]
        numbers = transposed(
            L, dtypes.complex64, [image(L, dtypes.complex64, location, mask) for location in locations]
        )
        bits = f"<{count} x i64>"
        parts = [self.e.assign(f"bitcast {bits} {number} to {self.type}") for number in numbers]
        return [Value(self.L, name, self.strip.dtype) for name in parts]


class _ColumnKernel(_ComplexRowsKernel):
    def _add(self, starts: Sequence[str], term: str, right: dict[tuple[int, int], str]) -> None:
        L, lanes, dtype = self.L, self.strip.lanes, self.strip.dtype
        (start,), numbers = starts, Lanes(self.e, lanes // self.parts)
        location = Location(self._further(start, self._index_of(term)), "0", False)
        number = Value(Lanes(self.e, 1), image(Lanes(self.e, 1), dtypes.complex64, location, None), dtypes.uint64)
        both = self.e.assign(f"bitcast <{numbers.width} x i64> {numbers.splat(number).name} to {self.type}")
        exchanged = self._chosen(both, [lane ^ 1 for lane in range(lanes)])
        first = [lane & ~1 for lane in range(lanes)]
        second = [lane | 1 if lane % 2 else lanes + lane + 1 for lane in range(lanes)]
        for key, parts in right.items():
            slot = self.sums[0, *key]
            for left, order in ((both, first), (exchanged, second)):
                total = Value(L, self.e.load(self.type, slot), dtype)
                product = L.fma(Value(L, left, dtype), Value(L, self._chosen(parts, order), dtype), total)
                self.e.store(self.type, product.name, slot)
