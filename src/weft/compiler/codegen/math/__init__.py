"""The mathematical functions of the generated code, written once for any number of lanes.

`MathLanes` is the interface for operations: the arithmetic of `Lanes` and a method for each function. The formulas are
functions in the modules beside this one, one module for each family.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.math import (
    complex,
    error,
    exponential,
    hyperbolic,
    integer,
    inverse_trigonometric,
    logarithm,
    neighbours,
    power,
    shared_divisors,
    shared_shifts,
    trigonometric,
)
from weft.compiler.codegen.math.parts import working
from weft.compiler.codegen.values import Complex, Value

__all__ = ["MathLanes"]


class MathLanes(Lanes):
    """Lanes with the functions of mathematics.

    Arguments are float32 or float64 values, or half-precision ones, which are held as float32; then the result is a
    float32 value that the caller rounds. Arguments annotated ``Any`` may be `Complex`; powers and divisions also take
    integers.
    """

    def exp(self, x: Any) -> Any:
        return complex.exp(self, x) if isinstance(x, Complex) else exponential.exp(self, working(x))

    def exp_of_nonpositive(self, x: Any) -> Any:
        return complex.exp(self, x) if isinstance(x, Complex) else exponential.exp_of_nonpositive(self, working(x))

    def exp2(self, x: Value) -> Value:
        return exponential.exp2(self, working(x))

    def expm1(self, x: Any) -> Any:
        return complex.expm1(self, x) if isinstance(x, Complex) else exponential.expm1(self, working(x))

    def sigmoid(self, x: Value) -> Value:
        return exponential.sigmoid(self, working(x))

    def log(self, x: Any) -> Any:
        return complex.log(self, x) if isinstance(x, Complex) else logarithm.log(self, working(x))

    def log2(self, x: Any) -> Any:
        return complex.log2(self, x) if isinstance(x, Complex) else logarithm.log2(self, working(x))

    def log10(self, x: Any) -> Any:
        return complex.log10(self, x) if isinstance(x, Complex) else logarithm.log10(self, working(x))

    def log1p(self, x: Any) -> Any:
        return complex.log1p(self, x) if isinstance(x, Complex) else logarithm.log1p(self, working(x))

    def sin(self, x: Any) -> Any:
        return complex.sin(self, x) if isinstance(x, Complex) else trigonometric.sin(self, working(x))

    def cos(self, x: Any) -> Any:
        return complex.cos(self, x) if isinstance(x, Complex) else trigonometric.cos(self, working(x))

    def tan(self, x: Any) -> Any:
        return complex.tan(self, x) if isinstance(x, Complex) else trigonometric.tan(self, working(x))

    def arcsin(self, x: Any) -> Any:
        return complex.arcsin(self, x) if isinstance(x, Complex) else inverse_trigonometric.arcsin(self, working(x))

    def arccos(self, x: Any) -> Any:
        return complex.arccos(self, x) if isinstance(x, Complex) else inverse_trigonometric.arccos(self, working(x))

    def arctan(self, x: Any) -> Any:
        return complex.arctan(self, x) if isinstance(x, Complex) else inverse_trigonometric.arctan(self, working(x))

    def sinh(self, x: Any) -> Any:
        return complex.sinh(self, x) if isinstance(x, Complex) else hyperbolic.sinh(self, working(x))

    def cosh(self, x: Any) -> Any:
        return complex.cosh(self, x) if isinstance(x, Complex) else hyperbolic.cosh(self, working(x))

    def tanh(self, x: Any) -> Any:
        return complex.tanh(self, x) if isinstance(x, Complex) else hyperbolic.tanh(self, working(x))

    def arcsinh(self, x: Any) -> Any:
        return complex.arcsinh(self, x) if isinstance(x, Complex) else hyperbolic.arcsinh(self, working(x))

    def arccosh(self, x: Any) -> Any:
        return complex.arccosh(self, x) if isinstance(x, Complex) else hyperbolic.arccosh(self, working(x))

    def arctanh(self, x: Any) -> Any:
        return complex.arctanh(self, x) if isinstance(x, Complex) else hyperbolic.arctanh(self, working(x))

    def erf(self, x: Value) -> Value:
        return error.erf(self, working(x))

    def erfinv(self, x: Value) -> Value:
        return error.erfinv(self, working(x))

    def rsqrt(self, x: Any) -> Any:
        return complex.rsqrt(self, x) if isinstance(x, Complex) else power.rsqrt(self, working(x))

    def sqrt(self, x: Any) -> Any:
        return complex.sqrt(self, x) if isinstance(x, Complex) else super().sqrt(x)

    def absolute(self, x: Any) -> Any:
        return complex.absolute(self, x) if isinstance(x, Complex) else super().absolute(x)

    def square(self, x: Any) -> Any:
        return x * x

    def reciprocal(self, x: Any) -> Any:
        return complex.reciprocal(self, x) if isinstance(x, Complex) else 1.0 / x

    def complex_divide(self, x: Complex, y: Any) -> Complex:
        return complex.divide(self, x, y)

    def sign(self, x: Any) -> Any:
        return complex.sign(self, x) if isinstance(x, Complex) else super().sign(x)

    def arctan2(self, y: Value, x: Value) -> Value:
        return inverse_trigonometric.arctan2(self, working(y), working(x))

    def hypot(self, x: Value, y: Value) -> Value:
        return power.hypot(self, x, y)

    def nextafter(self, x: Value, y: Value) -> Value:
        return neighbours.nextafter(self, x, y)

    def logaddexp(self, x: Any, y: Any) -> Any:
        if isinstance(x, Complex):
            return complex.logaddexp(self, x, y)
        return logarithm.logaddexp(self, working(x), working(y))

    def power(self, x: Any, y: Any) -> Any:
        if isinstance(x, Complex):
            return complex.power(self, x, y)
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

    def shared_divisor(self, y: Value) -> Any:
        """What is prepared for the division of many numbers by ``y``; None for numbers that are divided as fast without
        it."""
        return shared_divisors.divisor(self, y) if y.dtype.is_integer else None

    def floor_divide_by(self, x: Value, divisor: Any) -> Value:
        return shared_divisors.floor_divide(self, x, divisor)

    def remainder_by(self, x: Value, divisor: Any) -> Value:
        return shared_divisors.remainder(self, x, divisor)

    def shared_count(self, y: Value) -> Any:
        """What is prepared for shifts of many numbers by ``y``."""
        return shared_shifts.count(self, y)

    def shift_left_by(self, x: Value, count: Any) -> Value:
        return shared_shifts.left(self, x, count)

    def shift_right_by(self, x: Value, count: Any) -> Value:
        return shared_shifts.right(self, x, count)

    def shared_exponent(self, y: Any) -> Any:
        """What is prepared for powers of many numbers with the exponent ``y``; None if that would save no time."""
        return power.exponent(self, working(y)) if y.dtype in HALVES else None

    def power_by(self, x: Value, exponent: Any) -> Value:
        return power.power_by(self, working(x), exponent)
