"""Products of a few complex rows with a matrix, which is read once, where it lies.

As in `product_complex`, they are products of real numbers, of which there are twice as many terms: the real part of a
number of a row meets the parts x, y of a number of the matrix, its imaginary part then -y, x.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, image
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.few_rows import Kernel, Strip, generate
from weft.compiler.cpu.memory import transposed
from weft.compiler.cpu.product_step import Sources

_PARTS = Sources(dtypes.float32, dtypes.float32)


@cache
def address(strip: Strip) -> int:
    """The address of the step for products with a kind of strip, whose columns are parts of numbers."""
    name = "few_complex_rows"
    return loading.load(f"{name} {strip}", lambda: generate(strip, _PARTS, name, _Kernel), (name,))[name]


class _Kernel(Kernel):
    parts = 2

    def _add(self, starts: Sequence[str], term: str, right: dict[int, str]) -> None:
        place = self._place_of(term)
        self._add_at(starts, place, right)
        behind = self.e.assign(f"add i64 {place}, 1")
        self._add_at(starts, behind, {vector: self._times_i(name) for vector, name in right.items()})

    def _times_i(self, parts: str) -> str:
        lanes = self.strip.lanes
        negative = self.e.assign(f"fneg {self.type} {parts}")
        order = [lanes + lane + 1 if lane % 2 == 0 else lane - 1 for lane in range(lanes)]
        chosen = ", ".join(f"i32 {lane}" for lane in order)
        return self.e.assign(f"shufflevector {self.type} {parts}, {self.type} {negative}, <{lanes} x i32> <{chosen}>")

    def _terms_of_square(self) -> int:
        return self.strip.lanes

    def _turned(self, lines: Sequence[str], term: str, mask: str | None) -> list[Value]:
        count = self.strip.lanes // self.parts
        L = Lanes(self.e, count)
        places = [Location(self._further(line, term), "0", False) for line in lines]
        numbers = transposed(L, dtypes.complex64, [image(L, dtypes.complex64, place, mask) for place in places])
        bits = f"<{count} x i64>"
        parts = [self.e.assign(f"bitcast {bits} {number} to {self.type}") for number in numbers]
        return [Value(self.L, name, self.strip.dtype) for name in parts]
