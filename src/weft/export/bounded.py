"""Functions of extents whose results cannot grow without bounds, for programs that come from a file."""

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
    """The function of extents that a file calls so. It is a bounded one where repeated use could give numbers of any
    length; those of others grow by a bit at most."""
    if not isinstance(name, str):
        return None
    return _BOUNDED.get(name) or function_named(name)


def fitting(extent: int | SymbolicExtent) -> int | SymbolicExtent:
    """``extent``, if its number for these shapes is one of 64 bits.

    Raises:
        OverflowError: it is larger.
    """
    _fitting(extent.value if type(extent) is SymbolicExtent else extent)
    return extent


def _fitting(number: int) -> int:
    if not isinstance(number, float) and abs(number) >> _BITS:
        raise OverflowError(f"a number made of extents has more than {_BITS} bits")
    return number
