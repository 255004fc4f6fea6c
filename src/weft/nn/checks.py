"""What layers and losses ask of sizes, numbers and inputs, in errors that name who asks."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

import weft.core as mx
from weft.checks import integer_of, shortened, shown


def size_of(layer: str, name: str, value: Any, least: int) -> int:
    """`value` as an int, if it is a whole number that is not below `least`.

    >>> size_of("Linear", "input_dims", 3, least=1)
    3
    """
    try:
        size = operator.index(value)
    except TypeError:
        raise TypeError(f"[{layer}] {name} has to be an int, got {shown(value)}.") from None
    if size < least:
        raise ValueError(f"[{layer}] {name} has to be at least {least}, got {shortened(size)}.")
    if size >= 1 << 63:
        raise ValueError(f"[{layer}] {name} has to be below 2**63, got {shortened(size)}.")
    return size


def share_of(function: str, name: str, value: Any) -> float:
    """`value`, if it is a number that is at least 0 and below 1.

    >>> share_of("Dropout", "p", 0.5)
    0.5
    """
    is_number = isinstance(value, Real)
    if not is_number:
        raise TypeError(f"[{function}] {name} has to be a number, got {shown(value)}.")
    if not 0 <= value < 1:
        raise ValueError(f"[{function}] {name} has to be at least 0 and below 1, got {shortened(value)}.")
    return float(value)


def array_input(layer: Any, x: Any) -> mx.array:
    """The input of a layer, or an array of it if it is a number or NumPy data.

    >>> array_input(None, 2.5)
    array(2.5, dtype=float32)
    """
    return x if isinstance(x, mx.array) else array_of(repr(layer), "the input", x)


def array_of(function: str, name: str, x: Any) -> mx.array:
    """`x`, or an array of it if it is a number or NumPy data.

    >>> array_of("mse_loss", "targets", 2.5)
    array(2.5, dtype=float32)
    """
    if isinstance(x, mx.array):
        return x
    if isinstance(x, (bool, int, float, complex)) or hasattr(x, "__array__"):
        return mx.array(x)
    remedy = " Make one of it with mx.array." if isinstance(x, (list, tuple)) else ""
    raise TypeError(f"[{function}] {name} has to be an array, got a value of type {type(x).__name__}.{remedy}")


def axis_of(function: str, name: str, x: mx.array, axis: Any) -> int:
    """`axis` counted from the front, if `x` has it.

    >>> axis_of("softmax", "x", mx.zeros((2, 3)), -1)
    1
    """
    axis = integer_of(function, "axis", axis)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"[{function}] axis {axis} is out of range for {name} of shape {x.shape}.")
    return axis + x.ndim if axis < 0 else axis
