"""Products of single rows with transposed matrices that an index chooses. Neighbouring rows with the same matrix are
multiplied together, so that a matrix is read only once if indices are sorted.

A unit of work is a strip of columns of some products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.cpu.code import STEP, EmittedFunction, module_of
from weft.compiler.cpu.quantized.across import keeping
from weft.compiler.cpu.quantized.few_rows import StripStep, kernel
from weft.compiler.cpu.quantized.step import ACROSS, COLUMNS, PRODUCTS, TILE_WIDE
from weft.compiler.cpu.quantized.strips import QuantizedStrip


@cache
def address(strip: QuantizedStrip) -> int:
    """The address of the step; as many products as the strip has rows are a unit."""
    name = f"quantized_runs_{strip.coding.mode}"
    return loading.load(f"{name} {strip}", lambda: generate(strip, name), (name,))[name]


def generate(strip: QuantizedStrip, name: str) -> str:
    """The LLVM IR of the step."""
    single = replace(strip, rows=1)
    functions = [
        *keeping(strip.coding, strip.vectors, words=not strip.ahead, ahead=strip.digits is None),
        kernel(strip),
        kernel(single),
        _RunsStep(strip, single).function(name),
    ]
    return module_of(functions)


class _RunsStep(StripStep):
    """The loops over units, and over runs of products with the same matrix."""

    def __init__(self, strip: QuantizedStrip, single: QuantizedStrip) -> None:
        super().__init__(strip)
        self.single = single

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as number:
            self._unit(number)
        return self.e, self.e.function(name, STEP)

    def _unit(self, number: str) -> None:
        across, wide, most = self.number(ACROSS), self.number(TILE_WIDE), self.strip.rows
        left = self.multiply(self.remainder(number, across), wide)
        columns = left, self.rest(self.number(COLUMNS), left, wide)
        first = self.multiply(self.divide(number, across), most)
        stop = self.smaller(self.add(first, most), self.number(PRODUCTS))
        with self.e.loop(first, stop) as product:
            before = self.index(self.larger(self.subtract(product, 1), first))
            other, begins = self.compare("ne", before, self.index(product)), self.compare("eq", product, first)
            with self.e.when(self.e.assign(f"or i1 {other}, {begins}")):
                count = self._run(product, stop)
                unit = self.placed(product, ("0", count), columns)
                is_single = self.compare("eq", count, 1)
                for condition, strip in ((is_single, self.single), (self.negated(is_single), self.strip)):
                    with self.e.when(condition):
                        self.multiplied(unit, strip)

    def _run(self, product: str, stop: str) -> str:
        """How many products, from ``product`` on, have the same matrix."""
        index, last, same, count = self.index(product), self.subtract(stop, 1), "true", "1"
        for step in range(1, self.strip.rows):
            position = self.add(product, step)
            equal = self.compare("eq", self.index(self.smaller(position, last)), index)
            both = self.both_hold(self.compare("slt", position, stop), equal)
            same = self.both_hold(same, both)
            count = self.add(count, self.e.assign(f"zext i1 {same} to i64"))
        return count
