"""Division and powers of integers, with a defined result for every pair of operands: they never trap."""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value


def _quotient(L: Lanes, x: Value, y: Value) -> Value:
    """``x / y`` towards zero, for a divisor that is not zero and a quotient that does not overflow.

    Up to 32 bits, this is the truncated quotient of floats that hold both operands exactly. It is right because the
    exact quotient differs from an integer by more than the rounding error, unless it is an integer. It is several times
    as fast, because processors have no vector instruction that divides integers.
    """
    if x.dtype.size == 8:
        return L.integer_divide(x, y)
    wide = dtypes.float64 if x.dtype.size == 4 else dtypes.float32
    return L.truncate_to_integer(L.convert(x, wide) / L.convert(y, wide), x.dtype)


def floor_divide(L: Lanes, x: Value, y: Value) -> Value:
    """The quotient rounded down; 0 where the divisor is 0; the smallest integer divided by -1 is itself."""
    quotient, _ = _divide(L, x, y)
    return quotient


def remainder(L: Lanes, x: Value, y: Value) -> Value:
    """The remainder with the sign of the divisor; ``x`` where the divisor is 0."""
    _, rest = _divide(L, x, y)
    return rest


def _divide(L: Lanes, x: Value, y: Value) -> tuple[Value, Value]:
    zero = L.equal(y, 0)
    if not x.dtype.is_signed:
        quotient = _quotient(L, x, L.select(zero, 1, y))
        return L.select(zero, 0, quotient), x - quotient * L.select(zero, 0, y)
    inverted = L.equal(y, -1)
    divisor = L.select(zero | inverted, 1, y)
    quotient = _quotient(L, x, divisor)
    rest = x - quotient * divisor
    apart = L.select((rest ^ divisor) < 0, L.not_equal(rest, 0), False)
    quotient = L.select(apart, quotient - 1, quotient)
    rest = L.select(apart, rest + divisor, rest)
    quotient = L.select(inverted, -x, quotient)
    return L.select(zero, 0, quotient), L.select(zero, x, rest)


def power(L: Lanes, x: Value, y: Value) -> Value:
    """``x^y`` modulo ``2^bits`` by repeated squaring, with ``0^0 == 1``; 0 for a negative exponent, whatever x is."""
    emitter, type_ = L.emitter, L.type_of(x.dtype)
    negative = L.constant(False, dtypes.bool_) if not y.dtype.is_signed else y < 0
    exponent = L.select(negative, 0, y)
    base_slot, exponent_slot, result_slot = (emitter.slot(type_) for _ in range(3))
    emitter.store(type_, x.name, base_slot)
    emitter.store(type_, exponent.name, exponent_slot)
    emitter.store(type_, L.select(negative, 0, L.constant(1, x.dtype)).name, result_slot)
    with emitter.loop("0", L.highest_bit(exponent)):
        base = Value(L, emitter.load(type_, base_slot), x.dtype)
        exponent = Value(L, emitter.load(type_, exponent_slot), y.dtype)
        result = Value(L, emitter.load(type_, result_slot), x.dtype)
        odd = L.not_equal(exponent & 1, 0)
        emitter.store(type_, L.select(odd, result * base, result).name, result_slot)
        emitter.store(type_, (base * base).name, base_slot)
        emitter.store(type_, (exponent >> 1).name, exponent_slot)
    return Value(L, emitter.load(type_, result_slot), x.dtype)
