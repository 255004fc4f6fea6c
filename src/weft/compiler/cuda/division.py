"""Division by a number that is the same for a whole row.

A division takes about fifteen instructions on a card, and a branch that keeps the processor from doing other work
meanwhile. If the divisor stays the same, it takes four instructions: with ``1 / y`` to about 104 bits, as
``high + low``, the float64 ``fma(x, high, x * low)`` is the quotient of two float32 numbers exactly if that has few
bits. Otherwise its error is much smaller than the distance of the quotient from a number halfway between two float32
numbers, so it rounds as the quotient does. (Brisebarre, Muller, Raina: Accelerating correctly rounded floating-point
division when the divisor is known in advance, 2004.)
"""

from __future__ import annotations

from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.values import Value

BELOW_ONE = "0x3FEFFFFFFFFFFFFE"
"""``1 - 2^-52``: a rounded number times this is below the number before it was rounded."""


class Repeated(Value):
    """A value that is the same for all lanes of a row."""

    __slots__ = ()


class RowLanes(MathLanes):
    """One lane of a row."""

    def _two(self, instruction: str, left: Value, right: Value) -> Value:
        if instruction == "fdiv" and isinstance(right, Repeated) and REGISTER_TYPES[right.dtype] == "float":
            return self._quotient(left, right)
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

    def _fma(self, x: str, y: str, z: str) -> str:
        return self.emitter.call("llvm.fma.f64", "double", [("double", x), ("double", y), ("double", z)])
