"""Functions of extents whose results are bounded, for programs from files."""

from __future__ import annotations

from collections.abc import Callable

from weft.graph.symbolic import SymbolicExtent, function_named, named

_BITS = 64


@named
def bounded_product(left: int, right: int) -> int:
    return _fitting(left * right)


@named
def bounded_power(base: int, exponent: int) -> int:
    if exponent < 0 or (abs(base) > 1 and exponent > _BITS):
        raise OverflowError(f"{base} to the power of {exponent} is no number of {_BITS} bits")
    return _fitting(int(base**exponent))


@named
def bounded_shift(number: int, distance: int) -> int:
    if distance > _BITS:
        raise OverflowError(f"{number} << {distance} is no number of {_BITS} bits")
    return _fitting(number << distance)


_BOUNDED: dict[str, Callable[..., int]] = {"mul": bounded_product, "pow": bounded_power, "lshift": bounded_shift}


def bounded_function(name: object) -> Callable[..., int] | None:
    """The function of extents with a name from a file. If repeated use of a function could make numbers of any length,
    a bounded form of it; other functions make numbers longer by at most one bit."""
    if not isinstance(name, str):
        return None
    return _BOUNDED.get(name) or function_named(name)


def fitting(extent: int | SymbolicExtent) -> int | SymbolicExtent:
    """``extent``, if its value for the present shapes fits 64 bits.

    Raises:
        OverflowError: it does not.
    """
    _fitting(extent.value if type(extent) is SymbolicExtent else extent)
    return extent


def _fitting(number: int) -> int:
    if not isinstance(number, float) and abs(number) >> _BITS:
        raise OverflowError(f"a number made of extents has more than {_BITS} bits")
    return number
