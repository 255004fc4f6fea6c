"""Shared by the kernels of products with quantised matrices: their numbers, and the addresses of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load
from weft.compiler.codegen.quantized import Coding, scale, scale_image
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.numbered import NumberedCode
from weft.dtypes import Dtype
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall

# The positions of the numbers of every step: units; slots and byte offsets of operands, result and scratch memory;
# rows, columns and terms; how many matrices the stack has (0 if there is no index); how many rows a quantised matrix
# has, and words and groups a row; how many strips or tiles a product has from left to right and from top to bottom.
X, WORDS, SCALES, BIASES, INDEX, RESULT, SCRATCH = range(1, 15, 2)
ROWS, COLUMNS, INNER, COUNT, HIGH, PER_ROW, GROUPS, ACROSS, DOWN = range(15, 24)
NUMBERS = DOWN + 1


def numbers_of(call: RoutineCall, kind: QuantizedFormat, units: int, across: int, down: int = 1) -> list[int]:
    """The numbers of a step. In place of operands that do not exist the first one is given."""
    x, words, scales, *others = call.operands
    biases = others[0] if kind.affine else x
    index = others[-1] if len(others) > kind.affine else x
    places = [n for one in (x, words, scales, biases, index, call.results[0]) for n in (one.slot, one.offset)]
    count = words.shape[0] if len(words.shape) == 3 else 0
    matrix = [count, words.shape[-2], words.shape[-1], scales.shape[-1]]
    extents = [*call.results[0].shape[-2:], x.shape[-1]]
    return [units, *places, *call.scratch, *extents, *matrix, across, down]


class QuantizedProduct(NamedTuple):
    """Pointers to the matrices of a product."""

    x: str
    words: str
    scales: str
    biases: str
    result: str


class ProductWriter(NumberedCode):
    """Writes a kernel for products whose left operand has the dtype ``x``, and whose result has the dtype
    ``result``."""

    def __init__(self, coding: Coding, threads: int, x: Dtype, result: Dtype, blocks: int = 1) -> None:
        super().__init__(threads, NUMBERS, blocks)
        self.coding, self.x, self.result = coding, x, result
        self.L = Lanes(self.e, 1)
        self.element = MEMORY_TYPES[coding.dtype]

    def divided(self, number: str, by: str) -> tuple[str, str]:
        """Quotient and remainder of numbers below ``2**31``: in 32 bits the division takes a fraction of the time."""
        left, right = self.narrow(number), self.narrow(by)
        return self.wide(self.word("udiv", left, right)), self.wide(self.word("urem", left, right))

    def product(self, number: str) -> QuantizedProduct:
        """The matrices of product ``number``."""
        x, words, scales, biases, result = (
            self.global_memory(position) for position in (X, WORDS, SCALES, BIASES, RESULT)
        )
        left = self.multiply(number, self.multiply(self.number(ROWS), self.number(INNER)))
        made = self.multiply(number, self.multiply(self.number(ROWS), self.number(COLUMNS)))
        above = self.multiply(self._chosen(number), self.number(HIGH))
        groups, element = self.multiply(above, self.number(GROUPS)), MEMORY_TYPES[self.coding.scales]
        return QuantizedProduct(
            self.moved(x, left, MEMORY_TYPES[self.x]),
            self.moved(words, self.multiply(above, self.number(PER_ROW)), "i32"),
            self.moved(scales, groups, element),
            self.moved(biases, groups, element),
            self.moved(result, made, MEMORY_TYPES[self.result]),
        )

    def _chosen(self, number: str) -> str:
        """The matrix of the stack that a product uses; an index out of range is replaced by the nearest one."""
        count, chosen = self.number(COUNT), self.e.slot("i64")
        self.e.store("i64", "0", chosen)
        with self.e.when(self.compare("ne", count, 0)):
            index = self.e.assign(f"load i64, ptr {self.moved(self.global_memory(INDEX), number, 'i64')}, align 8")
            inside = self.larger(self.smaller(index, self.subtract(count, 1)), "0")
            self.e.store("i64", inside, chosen)
        return self.e.load("i64", chosen)

    def terms_of_x(self, x: str, index: str, count: int = 1, alignment: int = 0) -> Value:
        """Neighbouring elements of the left operand, in the dtype of the products."""
        found = load(Lanes(self.e, count), self.x, Location(x, index, False, alignment), None)
        return Value(found.lanes, found.name, self.coding.dtype)

    def scale_values(self, scales: str, group: str, count: int = 1, alignment: int = 0) -> list[Value]:
        """Neighbouring scales, or biases, as numbers."""
        L, coding = Lanes(self.e, count), self.coding
        image = load(L, coding.scales, Location(scales, group, False, alignment), None)
        if coding.scales.is_floating:
            image = Value(L, image.name, coding.scales)
        value = scale(coding, L.convert(image, scale_image(coding)))
        return [Value(self.L, self.part(L, value, number), coding.dtype) for number in range(count)]

    def part(self, L: Lanes, value: Value, number: int) -> str:
        """A lane of a vector."""
        if L.width == 1:
            return value.name
        return self.e.assign(f"extractelement {L.type_of(value.dtype)} {value.name}, i64 {number}")

    def joined(self, L: Lanes, parts: Sequence[Value]) -> Value:
        """A vector of numbers, one for each lane; the inverse of `part`."""
        dtype, name = parts[0].dtype, "poison"
        for number, one in enumerate(parts):
            inserted = f"{L.type_of(dtype)} {name}, {self.L.type_of(dtype)} {one.name}, i64 {number}"
            name = self.e.assign(f"insertelement {inserted}")
        return Value(L, name, dtype)

    def remainder_of_address(self, pointer: str, multiple: int) -> str:
        """The remainder of an address modulo ``multiple``, a power of two."""
        return self.e.assign(f"and i64 {self.e.assign(f'ptrtoint ptr {pointer} to i64')}, {multiple - 1}")
