"""Lanes whose values are NumPy arrays: the formulas of operations, computed instead of written as code.

A `Value` holds an array in place of a register. The value's dtype, not the array's, says whether integers are signed:
registers of LLVM have no sign.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.shared_functions import TURNS_PER_RADIAN
from weft.compiler.codegen.values import Complex, Number, Value
from weft.dtypes import Dtype

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.argtypes, _libm.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
_libm.fmaf.argtypes, _libm.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float
_FMA = {np.dtype(np.float32): np.frompyfunc(_libm.fmaf, 3, 1), np.dtype(np.float64): np.frompyfunc(_libm.fma, 3, 1)}


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` rounded once."""
    return np.asarray(_FMA[x.dtype](x, y, z)).astype(x.dtype)


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Integer quotients are rounded towards zero."""
    return (x - np.fmod(x, y)) // y


_TWO: dict[str, Callable[..., Any]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "sdiv": quotient, "udiv": quotient},
    **{"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
    **{"shl": np.left_shift, "ashr": np.right_shift, "lshr": np.right_shift},
}
_RELATIONS: dict[str, Callable[..., Any]] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
}
_INTRINSICS: dict[str, Callable[..., Any]] = {
    **{"fma": fused, "fabs": np.abs, "sqrt": np.sqrt, "copysign": np.copysign, "arithmetic.fence": np.positive},
    **{"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint},
}


def register_dtype(dtype: Dtype) -> np.dtype:
    """The dtype in which the elements of a value are stored."""
    return np.dtype(np.float32) if dtype in HALVES else dtype.numpy


def array_of(x: Value | Complex) -> np.ndarray:
    """The elements of a value, signed or unsigned as its dtype says."""
    if isinstance(x, Complex):
        return joined(*np.broadcast_arrays(array_of(x.real), array_of(x.imag)))
    elements: Any = x.name
    return np.asarray(elements).view(register_dtype(x.dtype))


def joined(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    """Complex numbers from their parts."""
    result = np.empty(real.shape, np.complex64)
    result.real, result.imag = real, imag
    return result


def value_of(elements: np.ndarray, dtype: Dtype) -> Any:
    """Elements in the form that formulas take."""
    if not dtype.is_complex:
        return L.value(elements, dtype)
    return Complex(L.value(elements.real.copy(), dtypes.float32), L.value(elements.imag.copy(), dtypes.float32))


def from_memory(elements: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Elements of an array, converted to the dtype that values are stored in."""
    return elements.astype(register_dtype(dtype))


def rounded(result: Any, dtype: Dtype, exact: bool) -> np.ndarray:
    """The result of an operation, as elements of its dtype."""
    return array_of(L.round_to(result, dtype) if dtype in HALVES and not exact else result).view(register_dtype(dtype))


class ArrayLanes(MathLanes):
    """The arithmetic of lanes on arrays of any shapes that NumPy broadcasts."""

    def __init__(self) -> None:
        super().__init__(_Cells(), 1)  # type: ignore[arg-type]  # what formulas ask of an emitter, and no more

    def value(self, elements: Any, dtype: Dtype) -> Value:
        return Value(self, elements, dtype)

    def constant(self, value: Number, dtype: Dtype) -> Value:
        if dtype.is_floating or dtype.is_bool:
            return self.value(np.asarray(value).astype(register_dtype(dtype)), dtype)
        wrapped = int(value) & ((1 << 8 * dtype.size) - 1)
        return self.value(np.asarray(wrapped, f"u{dtype.size}"), dtype)

    def _two(self, instruction: str, left: Value, right: Value) -> Value:
        x = array_of(left)
        return self.value(_TWO[instruction](x, array_of(right).view(x.dtype)), left.dtype)

    def negative(self, x: Value) -> Value:
        return self.value(np.negative(array_of(x)), x.dtype)

    def compare(self, relation: str, left: Value | Number, right: Value | Number) -> Value:
        left, right = self._pair(left, right)
        x = array_of(left)
        return self.value(_RELATIONS[relation](x, array_of(right).view(x.dtype)), dtypes.bool_)

    def select(self, condition: Value, yes: Any, no: Any) -> Any:
        if isinstance(yes, Complex) or isinstance(no, Complex):
            return super().select(condition, yes, no)
        yes, no = self._pair(yes, no)
        x = array_of(yes)
        return self.value(np.where(array_of(condition), x, array_of(no).view(x.dtype)), yes.dtype)

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        return self.value(_INTRINSICS[name](*[array_of(x) for x in arguments]), arguments[0].dtype)

    def table(self, index: Value, numbers: Sequence[float]) -> Value:
        return self.value(np.asarray(numbers)[array_of(index)], dtypes.float64)

    def bitcast(self, x: Value, dtype: Dtype) -> Value:
        return self.value(x.name, dtype)

    def _cast(self, instruction: str, x: Value, dtype: Dtype) -> Value:
        return self.value(array_of(x).astype(register_dtype(dtype)), dtype)

    def _convert_float(self, x: Value, dtype: Dtype) -> Value:
        if dtype.is_floating:
            return super()._convert_float(x, dtype)
        elements = array_of(x)
        result = np.where(np.isnan(elements), 0, elements.astype(dtype.numpy))
        result = np.where(elements >= float(dtype.highest) + 0.5, dtype.highest, result)
        result = np.where(elements <= float(dtype.lowest), dtype.lowest, result)
        return self.value(result.astype(dtype.numpy), dtype)

    def half_to_bits(self, x: Value) -> Value:
        if x.dtype is not dtypes.float16:
            return super().half_to_bits(x)
        return self.value(array_of(x).astype(np.float16).view(np.uint16), dtypes.uint16)

    def half_from_bits(self, bits: Value, dtype: Dtype) -> Value:
        if dtype is not dtypes.float16:
            return super().half_from_bits(bits, dtype)
        return self.value(array_of(bits).view(np.float16).astype(np.float32), dtype)

    def any_lane(self, condition: Value) -> str:
        return condition.name

    def power(self, x: Any, y: Any) -> Any:
        if isinstance(x, Complex) or x.dtype.is_floating:
            return super().power(x, y)
        base, exponent = array_of(x), array_of(y)
        return self.value(
            np.where(exponent < 0, 0, np.power(base, np.maximum(exponent, 0))).astype(base.dtype), x.dtype
        )


class _Cells:
    """Used in the place of an emitter: stack slots are lists, and rare branches are always computed."""

    rounds_bfloat16 = for_gpu = False

    def __init__(self) -> None:
        self.declarations: dict[str, str] = {}

    def slot(self, type_: str) -> list[Any]:
        return [None]

    def store(self, type_: str, value: Any, slot: list[Any]) -> None:
        slot[0] = value

    def load(self, type_: str, slot: list[Any]) -> Any:
        return slot[0]

    @contextmanager
    def when(self, condition: Any) -> Iterator[None]:
        yield

    def call(self, function: str, result: str, arguments: list[tuple[str, Any]]) -> Any:
        return np.asarray(_FUNCTIONS[function](*[value for _, value in arguments])).astype(np.float64)


@cache
def wrap_angle(x: float, quarters: float, rest: float) -> float:
    """The angle in ``[-pi/2, pi/2]`` with the sine of ``x`` plus quarter turns; with ``rest``, its rounding error."""
    turns = Fraction(x) * TURNS_PER_RADIAN / (1 << 1168) + Fraction(quarters) / 4
    turns -= round(turns)
    if abs(turns) > Fraction(1, 4):
        turns = Fraction(1 if turns > 0 else -1, 2) - turns
    angle = turns * (1 << 1168) / TURNS_PER_RADIAN
    return float(angle - Fraction(float(angle))) if rest else float(angle)


L = ArrayLanes()

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "weft.wrap_angle": np.frompyfunc(wrap_angle, 3, 1),
    "weft.remainder": np.fmod,
}
