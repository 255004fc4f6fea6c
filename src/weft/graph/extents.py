"""Shapes in the hands of a user whose function is traced for all shapes.

What the function computes from an extent stays open (``x.shape[0] * x.shape[1]``) until it decides something: an
argument of an operation, a comparison, a loop. Then it is fixed, and a call for which it would be another number is
refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from weft.graph.dims import Dim
from weft.graph.location import user_location


def _arithmetic(operation: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Extent, Any], Any]:
    """Arithmetic that stays open among integers and extents, and fixes the extent beside any other number."""

    def method(self: Extent, other: Any) -> Any:
        value = other.dim if isinstance(other, Extent) else other
        if type(value) in (int, Dim):
            result = operation(value, self.dim) if reflected else operation(self.dim, value)
            return shown_extent(result)
        if not isinstance(value, (float, complex)):
            return NotImplemented
        return operation(value, int(self)) if reflected else operation(int(self), value)

    return method


def _decided(operation: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[[Extent, Any], Any]:
    """An operation whose result is a plain value, so that the extent is fixed."""

    def method(self: Extent, other: Any) -> Any:
        value = int(other) if isinstance(other, Extent) else other
        return operation(value, int(self)) if reflected else operation(int(self), value)

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

    def __bool__(self) -> bool:
        return bool(int(self))

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return int.__repr__(self.dim)

    def __format__(self, specification: str) -> str:
        return int.__format__(self.dim, specification)

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
    __truediv__ = _decided(operator.truediv)
    __rtruediv__ = _decided(operator.truediv, reflected=True)
    __pow__ = _decided(operator.pow)
    __rpow__ = _decided(operator.pow, reflected=True)
    __eq__ = _decided(operator.eq)
    __ne__ = _decided(operator.ne)
    __lt__ = _decided(operator.lt)
    __le__ = _decided(operator.le)
    __gt__ = _decided(operator.gt)
    __ge__ = _decided(operator.ge)

    def __neg__(self) -> Any:
        return shown_extent(-self.dim)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an extent of a traced array has no value of its own: use int(extent) to fix it")


class ShownShape(tuple[Any, ...]):
    """A shape of extents: comparing it as a whole fixes them."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return ShownShape(found) if isinstance(index, slice) else found

    def __eq__(self, other: object) -> bool:
        return tuple(map(int, self)) == other

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
