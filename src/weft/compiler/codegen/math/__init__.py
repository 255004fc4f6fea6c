"""The mathematical functions of the generated code, written once against lanes.

`MathLanes` is what operations see: the arithmetic of `Lanes` and a method per function. The formulas are free functions
in the modules beside this one, one module per family.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.codegen.lanes import Lanes, Value
from weft.compiler.codegen.math import (
    error,
    exponential,
    hyperbolic,
    integer,
    inverse_trigonometric,
    logarithm,
    power,
    trigonometric,
)
from weft.compiler.codegen.math.parts import working

__all__ = ["MathLanes"]


class MathLanes(Lanes):
    """Lanes with the functions of mathematics.

    Arguments are float32 or float64 values, or half-precision ones, which are held as float32; the result then is a
    float32 value that the caller rounds.
    """

    def exp(self, x: Any) -> Any:
        return exponential.exp(self, working(x))

    def expm1(self, x: Value) -> Value:
        return exponential.expm1(self, working(x))

    def sigmoid(self, x: Value) -> Value:
        return exponential.sigmoid(self, working(x))

    def log(self, x: Any) -> Any:
        return logarithm.log(self, working(x))

    def log2(self, x: Any) -> Any:
        return logarithm.log2(self, working(x))

    def log10(self, x: Any) -> Any:
        return logarithm.log10(self, working(x))

    def log1p(self, x: Any) -> Any:
        return logarithm.log1p(self, working(x))

    def logaddexp(self, x: Any, y: Any) -> Any:
        return logarithm.logaddexp(self, working(x), working(y))

    def sin(self, x: Any) -> Any:
        return trigonometric.sin(self, working(x))

    def cos(self, x: Any) -> Any:
        return trigonometric.cos(self, working(x))

    def tan(self, x: Any) -> Any:
        return trigonometric.tan(self, working(x))

    def arcsin(self, x: Any) -> Any:
        return inverse_trigonometric.arcsin(self, working(x))

    def arccos(self, x: Any) -> Any:
        return inverse_trigonometric.arccos(self, working(x))

    def arctan(self, x: Any) -> Any:
        return inverse_trigonometric.arctan(self, working(x))

    def sinh(self, x: Any) -> Any:
        return hyperbolic.sinh(self, working(x))

    def cosh(self, x: Any) -> Any:
        return hyperbolic.cosh(self, working(x))

    def tanh(self, x: Any) -> Any:
        return hyperbolic.tanh(self, working(x))

    def arcsinh(self, x: Any) -> Any:
        return hyperbolic.arcsinh(self, working(x))

    def arccosh(self, x: Any) -> Any:
        return hyperbolic.arccosh(self, working(x))

    def arctanh(self, x: Any) -> Any:
        return hyperbolic.arctanh(self, working(x))

    def arctan2(self, y: Value, x: Value) -> Value:
        return inverse_trigonometric.arctan2(self, working(y), working(x))

    def erf(self, x: Value) -> Value:
        return error.erf(self, working(x))

    def rsqrt(self, x: Any) -> Any:
        return power.rsqrt(self, working(x))

    def power(self, x: Any, y: Any) -> Any:
        if x.dtype.is_floating:
            return power.power(self, working(x), working(y))
        return integer.power(self, x, y)

    def remainder(self, x: Value, y: Value) -> Value:
        if x.dtype.is_floating:
            return power.remainder(self, working(x), working(y))
        return integer.remainder(self, x, y)

    def floor_divide(self, x: Value, y: Value) -> Value:
        if x.dtype.is_floating:
            return power.floor_divide(self, working(x), working(y))
        return integer.floor_divide(self, x, y)
