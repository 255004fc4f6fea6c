"""Shapes as a user's function sees them while it is traced for all shapes.

What the function computes from an extent stays open (``x.shape[0] * x.shape[1]``), also where it is used as a number in
operations on arrays. The result of a comparison is noted as a decision. Where a plain integer is needed (the argument
of an operation, a loop) the extent is fixed. A call for which a decision or a fixed extent would be different is
refused.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.graph.extents import AnyExtent, decide, decide_equal, derived
from weft.graph.location import user_location
from weft.graph.symbolic import SymbolicExtent

Binary = Callable[[Any, Any], Any]


def _own(value: Any) -> Any:
    """The symbolic extent of an `Extent`; any other number as it is."""
    return value.symbolic if isinstance(value, Extent) else value


def _arithmetic(operation: Binary, reflected: bool = False) -> Callable[[Extent, Any], Any]:
    """A method for arithmetic. The result stays open if the other operand is an integer or extent. Otherwise the extent
    is fixed."""

    def method(self: Extent, other: Any) -> Any:
        value = _own(other)
        if isinstance(value, (int, SymbolicExtent)):
            own = self.symbolic
            return shown_extent(derived(operation, value, own) if reflected else derived(operation, own, value))
        return _fixed(operation, other, self) if reflected else _fixed(operation, self, other)

    return method


def _fixed(operation: Binary, left: Any, right: Any) -> Any:
    """The result of arithmetic that does not give integers. It fixes the extents."""
    if not all(isinstance(one, _NUMBERS) for one in (left, right)):
        return NotImplemented
    return operation(*[int(one) if isinstance(one, Extent) else one for one in (left, right)])


def _power(base: Any, exponent: Any) -> Any:
    """A power. Among integers and extents the result stays open, unless the exponent is negative. Whether an extent as
    exponent is negative is noted as a decision."""
    if all(isinstance(one, (int, Extent)) for one in (base, exponent)) and exponent >= 0:
        return shown_extent(derived(operator.pow, _own(base), _own(exponent)))
    return _fixed(operator.pow, base, exponent)


def _comparison(operation: Binary) -> Callable[[Extent, Any], Any]:
    """A method for a comparison, whose result is noted as a decision."""

    def method(self: Extent, other: Any) -> Any:
        value = _own(other)
        comparable = isinstance(value, (int, float, SymbolicExtent))
        return decide(operation, self.symbolic, value) if comparable else NotImplemented

    return method


class Extent:
    """An extent, or a number made of extents, that may have another value in another call."""

    __slots__ = ("symbolic",)

    def __init__(self, symbolic: SymbolicExtent) -> None:
        self.symbolic = symbolic

    def __index__(self) -> int:
        return self.symbolic.fix(user_location())

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __bool__(self) -> bool:
        return not decide_equal(self.symbolic, 0)

    def __hash__(self) -> int:
        return hash(int(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(int(self), dtype)

    def __repr__(self) -> str:
        return repr(self.symbolic)

    def __format__(self, specification: str) -> str:
        return format(self.symbolic, specification)

    def __eq__(self, other: object) -> Any:
        value = _own(other)
        return decide_equal(self.symbolic, value) if isinstance(value, (int, float, SymbolicExtent)) else NotImplemented

    def __ne__(self, other: object) -> Any:
        found = self.__eq__(other)
        return found if found is NotImplemented else not found

    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __add__ = _arithmetic(operator.add)
    __radd__ = _arithmetic(operator.add, reflected=True)
    __sub__ = _arithmetic(operator.sub)
    __rsub__ = _arithmetic(operator.sub, reflected=True)
    __mul__ = _arithmetic(operator.mul)
    __rmul__ = _arithmetic(operator.mul, reflected=True)
    __floordiv__ = _arithmetic(operator.floordiv)
    __rfloordiv__ = _arithmetic(operator.floordiv, reflected=True)
    __mod__ = _arithmetic(operator.mod)
    __rmod__ = _arithmetic(operator.mod, reflected=True)
    __and__ = _arithmetic(operator.and_)
    __rand__ = _arithmetic(operator.and_, reflected=True)
    __or__ = _arithmetic(operator.or_)
    __ror__ = _arithmetic(operator.or_, reflected=True)
    __xor__ = _arithmetic(operator.xor)
    __rxor__ = _arithmetic(operator.xor, reflected=True)
    __lshift__ = _arithmetic(operator.lshift)
    __rlshift__ = _arithmetic(operator.lshift, reflected=True)
    __rshift__ = _arithmetic(operator.rshift)
    __rrshift__ = _arithmetic(operator.rshift, reflected=True)

    def __truediv__(self, other: Any) -> Any:
        return _fixed(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _fixed(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Any:
        return _power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _power(other, self)

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if isinstance(other, _NUMBERS) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return (other // self, other % self) if isinstance(other, _NUMBERS) else NotImplemented

    @property
    def real(self) -> Any:
        return self

    @property
    def imag(self) -> int:
        return 0

    def conjugate(self) -> Any:
        return self

    def bit_length(self) -> int:
        return int(self).bit_length()

    def __neg__(self) -> Any:
        return shown_extent(-self.symbolic)

    def __abs__(self) -> Any:
        return shown_extent(derived(abs, self.symbolic))

    def __invert__(self) -> Any:
        return shown_extent(derived(operator.invert, self.symbolic))

    def __pos__(self) -> Any:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None or digits >= 0 else round(int(self), digits)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return int, (int(self),)


numbers.Integral.register(Extent)
_NUMBERS = (int, float, complex, Extent)


class ShownShape(tuple[Any, ...]):
    """A shape of extents. The result of comparing it as a whole is noted as a decision."""

    __slots__ = ()

    # `tree` rebuilds such a tuple from its leaves as a plain tuple.
    _make = tuple

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return ShownShape(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        found = tuple.__add__(self, other)
        return found if found is NotImplemented else ShownShape(found)

    def __radd__(self, other: Any) -> Any:
        return ShownShape((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple):
            return False
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(map(int, self)))

    def __iter__(self) -> Iterator[Any]:
        return tuple.__iter__(self)


def shown_shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A node's shape as its user sees it."""
    for extent in shape:
        if type(extent) is SymbolicExtent:
            return ShownShape([shown_extent(extent) for extent in shape])
    return shape


def shown_extent(extent: AnyExtent | SymbolicExtent) -> Any:
    """A node's extent as its user sees it."""
    return Extent(extent) if type(extent) is SymbolicExtent else extent
