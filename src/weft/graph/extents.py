"""Shapes in the hands of a user whose function is traced for all shapes.

What the function computes from an extent stays open (``x.shape[0] * x.shape[1]``), also as a number among arrays. A
comparison notes what it decided, and where a plain integer is needed (the argument of an operation, a loop) the extent
is fixed; a call for which that would be otherwise is refused.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.graph.dims import Dim, decided, equal
from weft.graph.location import user_location


def _arithmetic(operation: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Extent, Any], Any]:
    """Arithmetic that stays open among integers and extents, and fixes the extent beside any other number."""

    def method(self: Extent, other: Any) -> Any:
        value = other.dim if isinstance(other, Extent) else other
        if not isinstance(value, (int, float, complex)):
            return NotImplemented
        own = self.dim if isinstance(value, int) else int(self)
        result = operation(value, own) if reflected else operation(own, value)
        return tuple(map(shown_extent, result)) if isinstance(result, tuple) else shown_extent(result)

    return method


def _comparison(operation: Callable[[Any, Any], Any]) -> Callable[[Extent, Any], Any]:
    """A comparison, whose result is noted as a decision."""

    def method(self: Extent, other: Any) -> Any:
        value = other.dim if isinstance(other, Extent) else other
        return decided(operation, self.dim, value) if isinstance(value, (int, float)) else NotImplemented

    return method


class Extent:
    """An extent, or a number made of extents, that may be another one in another call."""

    __slots__ = ("dim",)

    def __init__(self, dim: Dim) -> None:
        self.dim = dim

    def __index__(self) -> int:
        return self.dim.observe(user_location())

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __bool__(self) -> bool:
        return bool(self.dim)

    def __hash__(self) -> int:
        return hash(int(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(int(self), dtype)

    def __repr__(self) -> str:
        return int.__repr__(self.dim)

    def __format__(self, specification: str) -> str:
        return int.__format__(self.dim, specification)

    def __eq__(self, other: object) -> Any:
        value = other.dim if isinstance(other, Extent) else other
        if isinstance(value, int):
            return equal(self.dim, value)
        return decided(operator.eq, self.dim, value) if isinstance(value, float) else NotImplemented

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
    __divmod__ = _arithmetic(divmod)
    __rdivmod__ = _arithmetic(divmod, reflected=True)
    __truediv__ = _arithmetic(operator.truediv)
    __rtruediv__ = _arithmetic(operator.truediv, reflected=True)
    __pow__ = _arithmetic(operator.pow)
    __rpow__ = _arithmetic(operator.pow, reflected=True)
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
        return shown_extent(-self.dim)

    def __abs__(self) -> Any:
        return shown_extent(abs(self.dim))

    def __invert__(self) -> Any:
        return shown_extent(~self.dim)

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


class ShownShape(tuple[Any, ...]):
    """A shape of extents. Comparing it as a whole notes what that decided."""

    __slots__ = ()

    # What `tree` builds of the leaves of such a tuple is a plain one.
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


def shown_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A node's shape as its user sees it."""
    for extent in shape:
        if type(extent) is Dim:
            return ShownShape([shown_extent(extent) for extent in shape])
    return shape


def shown_extent(extent: int) -> Any:
    """A node's extent as its user sees it."""
    return Extent(extent) if type(extent) is Dim else extent
