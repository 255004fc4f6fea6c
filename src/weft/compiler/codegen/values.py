"""The numbers that scalar code computes with: one for each lane, real or complex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft import dtypes
from weft.dtypes import Dtype

if TYPE_CHECKING:
    from weft.compiler.codegen.lanes import Lanes

Number = bool | int | float


class Value:
    """One number per lane: a register, its dtype and the lanes that made it."""

    __slots__ = ("dtype", "lanes", "name")

    def __init__(self, lanes: Lanes, name: str, dtype: Dtype) -> None:
        self.lanes, self.name, self.dtype = lanes, name, dtype

    def __add__(self, other: Value | Number) -> Value:
        return self.lanes.arithmetic("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return self.lanes.arithmetic("add", other, self)

    def __sub__(self, other: Value | Number) -> Value:
        return self.lanes.arithmetic("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return self.lanes.arithmetic("sub", other, self)

    def __mul__(self, other: Value | Number) -> Value:
        return self.lanes.arithmetic("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return self.lanes.arithmetic("mul", other, self)

    def __truediv__(self, other: Value | Number) -> Value:
        """Division of floating-point lanes."""
        return self.lanes.arithmetic("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.lanes.arithmetic("div", other, self)

    def __neg__(self) -> Value:
        return self.lanes.negative(self)

    def __and__(self, other: Value | Number) -> Value:
        return self.lanes.bitwise("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return self.lanes.bitwise("or", self, other)

    def __xor__(self, other: Value | Number) -> Value:
        return self.lanes.bitwise("xor", self, other)

    def __invert__(self) -> Value:
        return self.lanes.bitwise("xor", self, True if self.dtype.is_bool else -1)

    def __lshift__(self, other: Value | int) -> Value:
        return self.lanes.bitwise("shl", self, other)

    def __rshift__(self, other: Value | int) -> Value:
        """Arithmetic shift for signed dtypes, logical for unsigned ones."""
        return self.lanes.bitwise("ashr" if self.dtype.is_signed else "lshr", self, other)

    def __lt__(self, other: Value | Number) -> Value:
        return self.lanes.compare("lt", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return self.lanes.compare("le", self, other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.lanes.compare("gt", self, other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.lanes.compare("ge", self, other)

    # `==` and `!=` are Python's own, so that values can be dictionary keys: use Lanes.equal and Lanes.not_equal.


class RoundedValue(Value):
    """Numbers that were rounded to half precision, with their ``bits``: as uint16, or as uint32 whose lower half is
    zero. To store them, they need not be rounded again."""

    __slots__ = ("bits",)

    def __init__(self, value: Value, bits: Value) -> None:
        super().__init__(value.lanes, value.name, value.dtype)
        self.bits = bits


class SumOfProducts(Value):
    """Sums of products in float32 that are numbers of half precision when they are stored. If those of bfloat16 are
    NaN, their lower halves are zero, as they are in the factors, and rounding leaves them as they are."""

    __slots__ = ()


class Complex:
    """A complex number per lane: two real values with the arithmetic of complex numbers."""

    __slots__ = ("imag", "real")
    dtype = dtypes.complex64

    def __init__(self, real: Value, imag: Value) -> None:
        self.real, self.imag = real, imag

    @property
    def lanes(self) -> Lanes:
        return self.real.lanes

    def _parts(self, other: Any) -> tuple[Any, Any]:
        if isinstance(other, Complex):
            return other.real, other.imag
        if isinstance(other, complex):
            return other.real, other.imag
        return other, 0.0

    def __add__(self, other: Any) -> Complex:
        real, imag = self._parts(other)
        return Complex(self.real + real, self.imag + imag)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Complex:
        real, imag = self._parts(other)
        return Complex(self.real - real, self.imag - imag)

    def __rsub__(self, other: Any) -> Complex:
        return (-self) + other

    def __mul__(self, other: Any) -> Complex:
        if isinstance(other, (Value, int, float)):
            return Complex(self.real * other, self.imag * other)
        real, imag = self._parts(other)
        return Complex(self.real * real - self.imag * imag, self.real * imag + self.imag * real)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Complex:
        if isinstance(other, (Value, int, float)):
            return Complex(self.real / other, self.imag / other)
        return self.lanes.complex_divide(self, other)

    def __rtruediv__(self, other: Any) -> Complex:
        real, imag = self._parts(other)
        lanes = self.lanes
        return lanes.complex_divide(
            Complex(lanes.coerce(real, self.real.dtype), lanes.coerce(imag, self.real.dtype)), self
        )

    def __neg__(self) -> Complex:
        return Complex(-self.real, -self.imag)
