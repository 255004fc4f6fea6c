"""Transposes squares of elements: parts of as many rows as a vector has lanes become vectors with an element of each.

These are shared functions, a pair for each size of elements, because LLVM takes long to compile their shuffles.
"""

from __future__ import annotations

from functools import cache

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import WIDTH, Code, EmittedFunction, module_of, read, write
from weft.compiler.cpu.memory import transposed
from weft.dtypes import Dtype

_PARAMETERS = "ptr %rows, i64 %stride, i64 %present, i64 %inside, ptr %tile"


def names(size: int) -> tuple[str, str]:
    """The names of the functions that read and write squares of elements of ``size`` bytes."""
    return f"read_square_{size}", f"write_square_{size}"


def declarations(*sizes: int) -> list[str]:
    found = [f"declare void @{name}(ptr, i64, i64, i64, ptr)" for size in sizes for name in names(size)]
    return list(dict.fromkeys(found))


def provided(*sizes: int) -> dict[str, int]:
    """The addresses of both functions for some sizes."""
    return {name: address for size in sizes for name, address in _loaded(size).items()}


@cache
def _loaded(size: int) -> dict[str, int]:
    return loading.load(f"squares_{size}", lambda: generate(size), names(size))


def generate(size: int) -> str:
    """The LLVM IR of both functions."""
    functions = [_read(size), _write(size)]
    return module_of(functions)


class _Square:
    """A square in blocks of vectors that fit a register. Small elements are transposed as 32-bit numbers."""

    def __init__(self, size: int) -> None:
        self.code = Code()
        self.dtype: Dtype = dtypes.UNSIGNED[size]
        self.wide: Dtype = dtypes.uint64 if size == 8 else dtypes.uint32
        self.L = Lanes(self.code.e, 8 if size == 8 else WIDTH)
        self.starts = range(0, WIDTH, self.L.width)

    def row(self, lane: int) -> str:
        """The address of the row of a lane. Lanes without a row repeat the last one."""
        code = self.code
        nearest = code.smaller(str(lane), code.subtract("%present", 1))
        return code.moved("%rows", code.multiply(nearest, "%stride"))

    def inside(self, start: int) -> Value:
        """The mask of the lanes, from ``start`` on, that are elements of the rows."""
        numbers = self.code.counting(self.L, str(start))
        return numbers < self.L.splat(Value(self.code.scalar, "%inside", dtypes.int64))

    def transposed(self, values: list[Value]) -> list[Value]:
        names = transposed(self.L, self.wide, [self.L.convert(value, self.wide).name for value in values])
        return [self.L.convert(Value(self.L, name, self.wide), self.dtype) for name in names]

    def index(self, column: int, lane: int) -> int:
        return column * WIDTH + lane


def _read(size: int) -> EmittedFunction:
    """Read up to ``%inside`` elements of each of the ``%present`` rows."""
    square = _Square(size)
    L, width = square.L, square.L.width
    rows = [square.row(lane) for lane in range(WIDTH)]
    for start in square.starts:
        mask = str(square.inside(start).name)
        for lane in square.starts:
            values = [read(L, square.dtype, row, start, mask) for row in rows[lane : lane + width]]
            for number, column in enumerate(square.transposed(values)):
                write(L, column, "%tile", square.index(start + number, lane))
    return square.code.finished(names(size)[0], _PARAMETERS, "")


def _write(size: int) -> EmittedFunction:
    """Write up to ``%inside`` elements of each of the ``%present`` rows."""
    square = _Square(size)
    code, L, width = square.code, square.L, square.L.width
    rows = [square.row(lane) for lane in range(WIDTH)]
    there = [code.compare("slt", str(lane), "%present") for lane in range(WIDTH)]
    for start in square.starts:
        inside = square.inside(start)
        for lane in square.starts:
            values = [read(L, square.dtype, "%tile", square.index(start + number, lane)) for number in range(width)]
            for number, value in enumerate(square.transposed(values), lane):
                mask = inside & L.splat(Value(code.scalar, there[number], dtypes.bool_))
                write(L, value, rows[number], start, str(mask.name))
    return code.finished(names(size)[1], _PARAMETERS, "")
