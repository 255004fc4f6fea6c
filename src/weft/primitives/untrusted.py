"""Checks of nodes that come from a file.

Shape rules are called for each node that a program makes, and assume that the functions in ``ops`` passed valid
parameters. Code that reads a node from a file calls `Primitive.check` first. Extents may be symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from weft.dtypes import Dtype
from weft.graph.extents import value_of, values_of
from weft.graph.node import Node, Shape
from weft.graph.symbolic import SymbolicExtent

LARGEST = 1 << 62
"""A bound that no extent, index or step reaches."""
MOST_DIMENSIONS = 64

Check = Callable[[Sequence[Node], Any], None]


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_inputs(inputs: Sequence[Node], count: int) -> None:
    require(len(inputs) == count, f"it has {len(inputs)} inputs, not {count}")


def check_axis(value: Any, rank: int) -> None:
    require(type(value) is int and 0 <= value < rank, f"{value!r} is no axis of {rank}")


def check_axes(value: Any, rank: int) -> None:
    """Raise unless ``value`` consists of different axes in ascending order."""
    require(type(value) is tuple, "axes are a tuple")
    for axis in value:
        check_axis(axis, rank)
    require(all(a < b for a, b in pairwise(value)), f"{value} are no ascending axes")


def check_numbers(value: Any, count: int | None = None, lowest: int = 0) -> None:
    """Raise unless ``value`` is a tuple of ``count`` extents, or of other numbers from ``lowest`` on."""
    require(type(value) is tuple and count in (None, len(value)), f"{value!r} are not {count} numbers")
    for number in value:
        check_number(number, lowest)


def check_number(value: Any, lowest: int = 0) -> None:
    require(type(value) in (int, SymbolicExtent), f"{value!r} is no number")
    require(lowest <= value_of(value) <= LARGEST, f"{value!r} is out of range")


def check_word(value: Any, words: Sequence[str] | Mapping[str, Any]) -> None:
    require(type(value) is str and value in words, f"{value!r} is not one of {', '.join(words)}")


def _is_dtype(inputs: Sequence[Node], value: Any) -> None:
    require(isinstance(value, Dtype), f"{value!r} is no dtype")


_BY_NAME: dict[str, Check] = {
    "axis": lambda inputs, value: check_axis(value, inputs[0].ndim),
    "axes": lambda inputs, value: check_axes(value, inputs[0].ndim),
    "shape": lambda inputs, value: check_numbers(value),
    "dtype": _is_dtype,
}
"""Parameters that have the same meaning in most primitives; axes are those of the first input."""


def is_checked(name: str, value: Any) -> bool:
    """Whether `check_parameter` can check a parameter; others are checked by the primitive."""
    return name in _BY_NAME or type(value) in (bool, str)


def check_parameter(primitive: str, name: str, value: Any, inputs: Sequence[Node]) -> None:
    """Raise unless a parameter is valid; strings and booleans are left to the shape rule."""
    check = _BY_NAME.get(name)
    if check is not None:
        check(inputs, value)
    elif not is_checked(name, value):
        raise NotImplementedError(f"{primitive} has no check of its parameter {name}")


def inferred(primitive: Any, inputs: Sequence[Node], params: dict[str, Any]) -> tuple[Shape, Dtype]:
    """Shape and dtype of a node that comes from a file.

    Raises:
        Exception: of any class, if inputs or parameters are not valid.
    """
    primitive.check(*inputs, **params)
    shape, dtype = primitive.infer(*inputs, **params)
    check_shape(shape, dtype)
    return shape, dtype


def check_shape(shape: Shape, dtype: Dtype) -> None:
    """Raise unless an array can have this shape."""
    check_numbers(shape)
    require(len(shape) <= MOST_DIMENSIONS, f"it has {len(shape)} dimensions; {MOST_DIMENSIONS} are possible")
    size = math.prod([max(extent, 1) for extent in values_of(shape)]) * dtype.size
    require(size < 1 << 63, f"it has {size} bytes")
