"""Checks of sizes, numbers and inputs for layers and losses; errors name the layer or function."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import weft.core as mx
from weft.checks import integer_of, shortened, shown, wrong_type
from weft.errors import ArgumentTypeError, AxisError
from weft.ops.arguments import array_argument, real_number

Group = mx.distributed.Group


def group_of(name: str, group: Group | None) -> Group:
    """``group`` if it is a group; for None the group of all processes.

    >>> group_of("average_gradients", None).size()
    1
    """
    if group is None:
        return mx.distributed.init()
    if not isinstance(group, Group):
        raise wrong_type(name, "group", "a Group, as mx.distributed.init() gives it", group)
    return group


CHANNELS_LAST = {1: "NLC", 2: "NHWC", 3: "NDHWC"}
"""The names of the axes of sequences, images and volumes in messages."""


def size_of(layer: str, name: str, value: Any, least: int) -> int:
    """``value`` as an int, if it is a whole number that is not below ``least``.

    >>> size_of("Linear", "input_dims", 3, least=1)
    3
    """
    try:
        size = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"[{layer}] {name} must be an int; got {shown(value)}.") from None
    if size < least:
        raise ValueError(f"[{layer}] {name} must be at least {least}; got {shortened(size)}.")
    if size >= 1 << 63:
        raise ValueError(f"[{layer}] {name} must be below 2**63; got {shortened(size)}.")
    return size


def axis_numbers_of(layer: str, name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """``value`` as one int for each of ``rank`` axes, if it is an int or ``rank`` ints, none of them below ``least``.

    >>> axis_numbers_of("MaxPool2d", "kernel_size", 3, rank=2, least=1)
    (3, 3)
    """
    several = value if isinstance(value, (list, tuple)) else (value,) * rank
    if len(several) != rank:
        axes = "one" if rank == 1 else f"{rank}, one for each axis"
        raise ValueError(f"[{layer}] {name} must be an int or a tuple of {axes}; got {shortened(value)}.")
    return tuple([size_of(layer, name, number, least) for number in several])


def share_of(function: str, name: str, value: Any) -> float:
    """``value``, if it is a number that is at least 0 and below 1.

    >>> share_of("Dropout", "p", 0.5)
    0.5
    """
    is_number = isinstance(value, Real)
    if not is_number:
        raise ArgumentTypeError(f"[{function}] {name} must be a number; got {shown(value)}.")
    if not 0 <= value < 1:
        raise ValueError(f"[{function}] {name} must be at least 0 and below 1; got {shortened(value)}.")
    return float(value)


def array_input(layer: Any, x: Any) -> mx.array:
    """The input of a layer, or an array of it if it is a number or NumPy data.

    >>> array_input(None, 2.5)
    array(2.5, dtype=float32)
    """
    return x if isinstance(x, mx.array) else array_of(repr(layer), "the input", x)


def check_last_size(layer: Any, x: mx.array, size: int) -> None:
    """Raise unless the last axis of the input of a layer has this size.

    >>> check_last_size("Linear", mx.zeros((2, 3)), 3)
    """
    if x.ndim == 0 or x.shape[-1] != size:
        raise ValueError(f"[{layer}] the last size of the input must be {size}; got shape {x.shape}.")


def array_of(function: str, name: str, x: Any) -> mx.array:
    """``x``, or an array of it if it is a number or NumPy data.

    >>> array_of("mse_loss", "targets", 2.5)
    array(2.5, dtype=float32)
    """
    return array_argument(function, x, name)


def real_array_of(function: str, name: str, x: Any) -> mx.array:
    """`array_of`, but for complex numbers.

    >>> real_array_of("gelu", "x", 2)
    array(2, dtype=int32)
    """
    array = array_of(function, name, x)
    if array.dtype == mx.complex64:
        raise ArgumentTypeError(f"[{function}] does not support complex64.")
    return array


def number_of(function: str, name: str, value: Any) -> Any:
    """``value``, if it is a real number or an array of one.

    >>> number_of("elu", "alpha", 2)
    2
    """
    is_one = isinstance(value, mx.array) and value.ndim == 0
    return value if is_one else real_number(function, name, value)


def positive_number_of(function: str, name: str, value: Any) -> Any:
    """``value``, if it is a real number above 0.

    >>> positive_number_of("triplet_loss", "p", 2)
    2
    """
    number = real_number(function, name, value)
    if not number > 0:
        raise ValueError(f"[{function}] {name} must be above 0; got {number}.")
    return number


def axis_of(function: str, name: str, x: mx.array, axis: Any) -> int:
    """``axis`` counted from the front, if ``x`` has it.

    >>> axis_of("softmax", "x", mx.zeros((2, 3)), -1)
    1
    """
    axis = integer_of(function, "axis", axis)
    if not -x.ndim <= axis < x.ndim:
        raise AxisError(f"[{function}] axis {axis} is out of range for {name} of shape {x.shape}.")
    return axis + x.ndim if axis < 0 else axis


def check_broadcast(function: str, first_name: str, first: mx.array, second_name: str, second: mx.array) -> None:
    """Raise unless two arrays broadcast to one shape.

    >>> check_broadcast("prelu", "x", mx.ones((2, 3)), "alpha", mx.ones(3))
    """
    try:
        mx.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        shapes = f"{first_name} of shape {first.shape} and {second_name} of shape {second.shape}"
        raise ValueError(f"[{function}] {shapes} do not broadcast.") from None


def entry_names(
    method: str, keys: str | Iterable[str] | None, modules: Sequence[dict[str, Any]], strict: bool
) -> list[str] | None:
    """The names of entries that ``method`` of the first of ``modules`` was given, None for all of them. If it is
    ``strict``, each has to be an entry of some module."""
    if keys is None:
        return None
    names = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"[{method}] keys must be a name of an entry or several; got {keys!r}.")
    known = {key for module in modules for key in module}
    for name in names:
        if strict and name not in known:
            raise KeyError(
                f"[{method}] {type(modules[0]).__name__} has no member {name!r}; its members: {sorted(known)}"
            )
    return names
