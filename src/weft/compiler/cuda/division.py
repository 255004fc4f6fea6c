"""Division by a number that is the same for a whole row.

A division takes about fifteen instructions on a card, and a branch that keeps the processor from doing other work
meanwhile. If the divisor stays the same, it takes four instructions: with ``1 / y`` to about 104 bits, as
``high + low``, the float64 ``fma(x, high, x * low)`` is the quotient of two float32 numbers exactly if that has few
bits. Otherwise its error is much smaller than the distance of the quotient from a number halfway between two float32
numbers, so it rounds as the quotient does. (Brisebarre, Muller, Raina: Accelerating correctly rounded floating-point
division when the divisor is known in advance, 2004.)

Conversions between float32 and float64 are slow. If neither the divisor nor a number is very large or very small, the
quotient is computed in float32. With ``1 / y`` rounded as ``high``, and the rest ``low``, ``fma(x, high, x * low)`` is
one of the two float32 numbers next to the quotient. Then its remainder is exact, and one more step rounds correctly.
(Markstein: Computation of elementary functions on the IBM RISC System/6000 processor, 1990.) Whether numbers are in
range is a condition, which the caller tests for several numbers at once.
"""

from __future__ import annotations

from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.values import Value

BELOW_ONE = "0x3FEFFFFFFFFFFFFE"
"""``1 - 2^-52``: a rounded number times this is below the number before it was rounded."""


SMALLEST, LARGEST = "0x3AF0000000000000", "0x44F0000000000000"
"""``2^-80`` and ``2^80``: the range of numbers that are divided in float32."""

SMALLEST_DIVISOR, LARGEST_DIVISOR = "0x3E70000000000000", "0x4270000000000000"
"""``2^-24`` and ``2^40``: that of divisors."""

NEVER = "0x7FF0000000000000"


class Repeated(Value):
    """A value that is the same for all lanes of a row."""

    __slots__ = ()


class RowLanes(MathLanes):
    """One lane of a row. While ``conditions`` is a list, quotients are right only if all conditions hold that are added
    to it."""

    conditions: list[str] | None = None

    def _two(self, instruction: str, left: Value, right: Value) -> Value:
        if instruction == "fdiv" and isinstance(right, Repeated) and REGISTER_TYPES[right.dtype] == "float":
            return self._quotient(left, right) if self.conditions is None else self._quick_quotient(left, right)
        return super()._two(instruction, left, right)

    def _quotient(self, left: Value, right: Value) -> Value:
        """The quotient. Infinities, zeros and NaN are right too: ``low`` has the sign of ``high``, and is zero only if
        ``high`` is."""
        e = self.emitter
        high, low = self._reciprocal(right)
        wide = e.assign(f"fpext float {left.name} to double")
        rest = e.assign(f"fmul double {wide}, {low}")
        quotient = self._fma(wide, high, rest)
        return Value(self, e.assign(f"fptrunc double {quotient} to float"), left.dtype)

    def _reciprocal(self, divisor: Value) -> tuple[str, str]:
        """``1 / divisor`` in two parts. LLVM moves this out of the loop over a row."""
        e, one = self.emitter, "1.0"
        wide = e.assign(f"fpext float {divisor.name} to double")
        nearest = e.assign(f"fdiv double {one}, {wide}")
        high = e.assign(f"fmul double {nearest}, {BELOW_ONE}")
        missing = self._fma(e.assign(f"fneg double {wide}"), high, one)
        low = e.assign(f"fmul double {missing}, {nearest}")
        is_number = e.assign(f"fcmp oeq double {missing}, {missing}")
        return high, e.assign(f"select i1 {is_number}, double {low}, double {high}")

    def _quick_quotient(self, left: Value, right: Value) -> Value:
        """The quotient, if the condition holds that is added to the list."""
        e, x, y = self.emitter, left.name, right.name
        assert self.conditions is not None
        high = e.assign(f"fdiv float 1.0, {y}")
        missing = self._float_fma(e.assign(f"fneg float {y}"), high, "1.0")
        low = e.assign(f"fmul float {missing}, {high}")
        near = self._float_fma(x, high, e.assign(f"fmul float {x}, {low}"))
        remainder = self._float_fma(e.assign(f"fneg float {near}"), y, x)
        quotient = self._float_fma(remainder, high, near)
        may_divide = self._is_between(self._size(y), SMALLEST_DIVISOR, LARGEST_DIVISOR)
        smallest = e.assign(f"select i1 {may_divide}, float {SMALLEST}, float {NEVER}")
        self.conditions.append(self._is_between(self._size(x), smallest, LARGEST))
        return Value(self, quotient, left.dtype)

    def _size(self, name: str) -> str:
        return self.emitter.call("llvm.fabs.f32", "float", [("float", name)])

    def _is_between(self, name: str, low: str, high: str) -> str:
        e = self.emitter
        above = e.assign(f"fcmp oge float {name}, {low}")
        return e.assign(f"and i1 {above}, {e.assign(f'fcmp ole float {name}, {high}')}")

    def _float_fma(self, x: str, y: str, z: str) -> str:
        return self.emitter.call("llvm.fma.f32", "float", [("float", x), ("float", y), ("float", z)])

    def _fma(self, x: str, y: str, z: str) -> str:
        return self.emitter.call("llvm.fma.f64", "double", [("double", x), ("double", y), ("double", z)])
