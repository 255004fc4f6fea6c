"""Shared by generated functions that are not kernels of fused groups: vectors of 16 lanes and numbers in memory."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.integers import Integers as Integers
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype

WIDTH = 16
"""How many lanes a vector has."""

STEP = "ptr %numbers, ptr %table, i64 %begin, i64 %end"

EmittedFunction = tuple[Emitter, str]


def module_of(functions: Sequence[EmittedFunction], declared: Sequence[str] = ()) -> str:
    """A module of functions, with ``declared``, declarations that no emitter knows."""
    return module([emitter for emitter, _ in functions], [*declared, *[text for _, text in functions]])


class Code(Integers):
    """Writes the body of a function that works on vectors of 16 lanes and on numbers in memory."""

    def __init__(self) -> None:
        super().__init__(Emitter())
        self.lanes, self.scalar = Lanes(self.e, WIDTH), Lanes(self.e, 1)

    def integer(self, pointer: str, type_: str = "i64") -> str:
        """An unsigned integer from memory, as ``i64``."""
        raw = self.e.assign(f"load {type_}, ptr {pointer}")
        return raw if type_ == "i64" else self.e.assign(f"zext {type_} {raw} to i64")

    def keep(self, value: str, pointer: str, type_: str = "i64") -> None:
        """Write an ``i64`` to memory as another integer type."""
        raw = value if type_ == "i64" else self.e.assign(f"trunc i64 {value} to {type_}")
        self.e.store(type_, raw, pointer)

    def cleared(self, pointer: str, count: int) -> None:
        """Write zeros to a multiple of 16 numbers of 32 bits."""
        with self.e.loop("0", str(count), WIDTH) as start:
            self.e.emit(f"store <{WIDTH} x i32> zeroinitializer, ptr {self.moved(pointer, start, 'i32')}, align 4")

    def copied(self, source: str, target: str, size: str, unit: int = 1) -> None:
        """Copy bytes, a multiple of ``unit``."""
        whole = self.e.assign(f"and i64 {size}, -64")
        for start, stop, step, type_ in (("0", whole, 64, "<16 x i32>"), (whole, size, unit, f"i{8 * unit}")):
            with self.e.loop(start, stop, step) as index:
                value = self.e.assign(f"load {type_}, ptr {self.moved(source, index)}, align 1")
                self.e.emit(f"store {type_} {value}, ptr {self.moved(target, index)}, align 1")

    def counting(self, L: Lanes, start: str) -> Value:
        """The numbers from ``start`` on, one in each lane."""
        first = Value(self.scalar, start, dtypes.int64)
        if L.width == 1:
            return Value(L, start, dtypes.int64)
        steps = Value(L, f"<{', '.join(f'i64 {lane}' for lane in range(L.width))}>", dtypes.int64)
        value: Value = L.splat(first) + steps
        return value

    def below(self, L: Lanes, count: str) -> Value:
        """The mask of the first ``count`` lanes, or of all."""
        ones = self.subtract(self.e.assign(f"shl i64 1, {self.smaller(self.larger(count, '0'), L.width)}"), 1)
        bits = self.e.assign(f"trunc i64 {ones} to i{L.width}")
        return Value(L, self.e.assign(f"bitcast i{L.width} {bits} to {L.type_of(dtypes.bool_)}"), dtypes.bool_)

    def finished(self, name: str, parameters: str, linkage: str = "internal ") -> EmittedFunction:
        return self.e, self.e.function(name, parameters, linkage)


def read(L: Lanes, dtype: Dtype, pointer: str, index: str | int = 0, mask: str | None = None) -> Value:
    """Read neighbouring elements, one into each lane."""
    value: Value = load(L, dtype, Location(pointer, str(index), False), mask)
    return value


def write(L: Lanes, value: Value, pointer: str, index: str | int = 0, mask: str | None = None) -> None:
    """Write neighbouring elements, one from each lane."""
    store(L, value, value.dtype, Location(pointer, str(index), False), mask)
