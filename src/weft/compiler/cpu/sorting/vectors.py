"""Vectors of words that fill a register, for processors that can move chosen lanes together: those with AVX-512."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.sorting.code import Code, read, write
from weft.dtypes import Dtype

VECTOR_BYTES = 64
_FEATURES = {2: "+avx512vbmi2", 4: "+avx512f", 8: "+avx512f"}
"""What has the instruction, for each size of words."""


def is_fast(size: int) -> bool:
    """Whether this processor has the instruction for words of ``size`` bytes."""
    return size in _FEATURES and _FEATURES[size] in host.current().features.split(",")


class Vectors:
    """Vectors of words in one register."""

    def __init__(self, code: Code, size: int) -> None:
        self.code, self.e = code, code.e
        self.dtype: Dtype = {2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}[size]
        self.L = Lanes(code.e, VECTOR_BYTES // size)
        self.type = self.L.type_of(self.dtype)
        self.element = f"i{8 * size}"

    @property
    def width(self) -> int:
        return self.L.width

    def value(self, name: str) -> Value:
        return Value(self.L, name, self.dtype)

    def load(self, pointer: str, index: str | int, mask: str | None = None) -> Value:
        return read(self.L, self.dtype, pointer, index, mask)

    def store(self, value: Value, pointer: str, index: str | int, mask: str | None = None) -> None:
        write(self.L, value, pointer, index, mask)

    def below(self, count: str) -> Value:
        """The first lanes, as many as ``count``, or all."""
        return self.code.below(self.L, count)

    def shuffled(self, first: Value, second: Value, lanes: Sequence[int]) -> Value:
        """Some lanes of two vectors; those of the second one are numbered from ``width`` on."""
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {self.type} {first.name}, {self.type} {second.name}, <{self.width} x i32> <{chosen}>"
        return self.value(self.e.assign(text))

    def together(self, value: Value, mask: Value) -> Value:
        """The lanes of ``mask``, moved to the front."""
        function = f"llvm.experimental.vector.compress.v{self.width}{self.element}"
        masks = self.L.type_of(dtypes.bool_)
        arguments = [(self.type, value.name), (masks, mask.name), (self.type, "poison")]
        return self.value(self.e.call(function, self.type, arguments))

    def in_order(self, left: Value, right: Value) -> tuple[Value, Value]:
        return self.L.intrinsic("umin", left, right), self.L.intrinsic("umax", left, right)
