"""What layers ask of their sizes and inputs, in errors that name the layer."""

from __future__ import annotations

import operator
from typing import Any

import weft.core as mx


def size_of(layer: str, name: str, value: Any, least: int) -> int:
    """`value` as an int, if it is a whole number that is not below `least`.

    >>> size_of("Linear", "input_dims", 3, least=1)
    3
    """
    try:
        size = operator.index(value)
    except TypeError:
        raise TypeError(f"[{layer}] {name} has to be an int, got {value!r} of type {type(value).__name__}.") from None
    if size < least:
        raise ValueError(f"[{layer}] {name} has to be at least {least}, got {size}.")
    return size


def array_input(layer: Any, x: Any) -> mx.array:
    """The input of a layer, or an array of it if it is a number or NumPy data.

    >>> array_input(None, 2.5)
    array(2.5, dtype=float32)
    """
    if isinstance(x, mx.array):
        return x
    if isinstance(x, (bool, int, float, complex)) or hasattr(x, "__array__"):
        return mx.array(x)
    remedy = " Make one of it with mx.array." if isinstance(x, (list, tuple)) else ""
    raise TypeError(f"[{layer!r}] the input has to be an array, got a value of type {type(x).__name__}.{remedy}")
