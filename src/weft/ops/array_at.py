"""Updates of a part of an array that combine new values with old ones."""

from __future__ import annotations

from typing import Any, final

import weft.primitives as p
from weft.ops.arguments import Array
from weft.ops.subscripts import divided, new_value, update

__all__ = ["ArrayAt"]


@final
class ArrayAt:
    """Elements of an array, selected by an index, that updates combine with values: ``a.at[index].add(value)``.

    >>> mx.array([1, 2, 3]).at[mx.array([0, 0])].add(10)
    array([21, 2, 3], dtype=int32)
    """

    __slots__ = ("_array", "_index", "_is_indexed")
    __module__ = "weft.core"

    def __init__(self, array: Array) -> None:
        self._array, self._index, self._is_indexed = array, None, False

    def __getitem__(self, index: Any) -> ArrayAt:
        selected = ArrayAt(self._array)
        selected._index, selected._is_indexed = index, True
        return selected

    def _checked(self, name: str) -> str:
        """The name of one of the methods for messages; raises if no index was given."""
        if not self._is_indexed:
            raise ValueError(f"Say where: a.at[index].{name}(value).")
        return f"at.{name}"

    def _combined(self, value: Any, mode: str) -> Array:
        name = self._checked(mode)
        return update(self._array, self._index, value, mode, name)

    def add(self, value: Any) -> Array:
        """A copy of the array with ``value`` added at the index.

        >>> mx.array([1, 2, 3]).at[:2].add(10)
        array([11, 12, 3], dtype=int32)
        """
        return self._combined(value, "add")

    def subtract(self, value: Any) -> Array:
        """A copy of the array with ``value`` subtracted at the index.

        >>> mx.array([1, 2, 3]).at[0].subtract(1)
        array([0, 2, 3], dtype=int32)
        """
        name = self._checked("subtract")
        negated = p.negative(new_value(self._array, value, name))
        return update(self._array, self._index, negated, "add", name)

    def multiply(self, value: Any) -> Array:
        """A copy of the array with the elements at the index multiplied by ``value``.

        >>> mx.array([1, 2, 3]).at[::2].multiply(10)
        array([10, 2, 30], dtype=int32)
        """
        return self._combined(value, "multiply")

    def divide(self, value: Any) -> Array:
        """A copy of the array with the elements at the index divided by ``value``; quotients of integers are rounded
        down.

        >>> mx.array([1.0, 2.0, 3.0]).at[0].divide(2)
        array([0.5, 2, 3], dtype=float32)
        """
        self._checked("divide")
        return divided(self._array, self._index, value)

    def maximum(self, value: Any) -> Array:
        """A copy of the array in which each element at the index is the larger of itself and ``value``.

        >>> mx.array([1, 2, 3]).at[:].maximum(2)
        array([2, 2, 3], dtype=int32)
        """
        return self._combined(value, "maximum")

    def minimum(self, value: Any) -> Array:
        """A copy of the array in which each element at the index is the smaller of itself and ``value``.

        >>> mx.array([1, 2, 3]).at[:].minimum(2)
        array([1, 2, 2], dtype=int32)
        """
        return self._combined(value, "minimum")
