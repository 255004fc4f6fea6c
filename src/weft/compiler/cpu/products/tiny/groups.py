"""Groups of small matrices of a stack, which are multiplied together."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.dtypes import Dtype

FEWEST_VECTORS = 4
"""How many vectors of results the body of the loop computes at least."""

GROUPS = "ptr %a, ptr %b, ptr %c, i64 %count"
"""The parameters of a function that multiplies groups of matrices."""

FEWEST_TERMS_TO_TRANSPOSE = 7
"""From this many terms on, right operands of half precision with short columns are transposed eight terms at a time."""

LONG_VECTORS = 64
"""The bytes of long vectors."""


def vector_bytes() -> int:
    """How long vectors are. Long ones need shuffles of 16 bits."""
    return 64 if "+avx512bw" in host.current().features else 32


class Tiny(NamedTuple):
    """A kind of stack: the dtypes of both operands and of the result; rows, columns and terms; strides of the left
    operand from row to row and from term to term, and of the right one from term to term and from column to column."""

    source: Dtype
    result: Dtype
    extents: tuple[int, int, int]
    strides: tuple[int, int, int, int]

    @property
    def dtype(self) -> Dtype:
        """The dtype of sums."""
        return dtypes.float32 if self.source in HALVES else self.source

    @property
    def sizes(self) -> dict[str, int]:
        """How many elements a matrix of each operand, and of the result, has."""
        rows, columns, inner = self.extents
        return {"a": rows * inner, "b": inner * columns, "c": rows * columns}

    @property
    def bytes(self) -> dict[str, int]:
        return {name: n * (self.result if name == "c" else self.source).size for name, n in self.sizes.items()}

    @property
    def lanes(self) -> int:
        return vector_bytes() // self.dtype.size

    @property
    def at_once(self) -> int:
        """How many results are computed at once: those of bfloat16 in two vectors."""
        return 2 * self.lanes if self.source is dtypes.bfloat16 else self.lanes

    @property
    def group(self) -> int:
        """How many matrices have whole vectors of results, and not too few vectors."""
        at_once = self.at_once
        matrices = at_once // gcd(at_once, self.sizes["c"])
        while matrices * self.sizes["c"] < FEWEST_VECTORS * at_once:
            matrices *= 2
        return matrices

    def elements(self, operand: str, results: range, term: int) -> list[int]:
        """The elements of an operand that are factors of a term of some results."""
        _, columns, _ = self.extents
        a_row, a_inner, b_inner, b_column = self.strides
        found = []
        for number in results:
            matrix, place = divmod(number, self.sizes["c"])
            row, column = divmod(place, columns)
            inside = row * a_row + term * a_inner if operand == "a" else term * b_inner + column * b_column
            found.append(matrix * self.sizes[operand] + inside)
        return found


def shuffled(e: Emitter, vectors: Sequence[str], places: Sequence[int | None], width: int, element: str = "i16") -> str:
    """Elements of one or two vectors of a ``width``; any value where the place is None."""
    type_ = f"<{width} x {element}>"
    numbers = ", ".join([f"i32 {'poison' if place is None else place}" for place in places])
    first, second = [*vectors, "poison"][:2]
    return e.assign(f"shufflevector {type_} {first}, {type_} {second}, <{len(places)} x i32> <{numbers}>")


class GroupWriter(Integers):
    """Writes a function that multiplies groups of some ``matrices``. For a group it may read and write elements after
    those of its matrices, up to ``ends`` elements of each operand and of the result; what it writes after its results
    is garbage, which the next group overwrites."""

    def __init__(self, tiny: Tiny, matrices: int) -> None:
        super().__init__(Emitter())
        self.tiny, self.matrices = tiny, matrices
        self.L = Lanes(self.e, tiny.lanes)
        self.places = {name: f"%{name}" for name in tiny.sizes}
        """Where the operands and the result of the current group are."""
        self.ends = {name: matrices * size for name, size in tiny.sizes.items()}

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("0", "%count") as number:
            for operand, size in self.tiny.bytes.items():
                distance = self.multiply(number, self.matrices * size)
                self.places[operand] = self.moved(f"%{operand}", distance)
            self.write()
        return self.e, self.e.function(name, GROUPS, "internal ")

    def write(self) -> None:
        """Write the code for the current group."""
        raise NotImplementedError
