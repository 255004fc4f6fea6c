"""Checks of the numbers that optimizers and schedules get; errors name the optimizer or schedule."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import weft.core as mx
from weft.checks import shortened, shown
from weft.errors import ArgumentTypeError


def check_number(owner: str, name: str, value: Any, least: float = -math.inf) -> None:
    """Raise unless ``value`` is a number of at least ``least``, or an array, whose value may not be known.

    >>> check_number("SGD", "momentum", 0.9, least=0)
    """
    if not isinstance(value, Real):
        if hasattr(value, "__array__"):
            return
        raise ArgumentTypeError(f"[{owner}] {name} must be a number; got {shown(value)}.")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(
            f"[{owner}] {name}: the integer {shortened(value)} is beyond all floating numbers; use mx.inf."
        ) from None
    if not number >= least:
        bound = "a number" if least == -math.inf else f"at least {least}"
        raise ValueError(f"[{owner}] {name} must be {bound}; got {value}.")


def check_betas(owner: str, betas: Any) -> None:
    """Raise unless ``betas`` are two numbers, at least 0 and below 1.

    >>> check_betas("Adam", (0.9, 0.999))
    """
    if not isinstance(betas, (list, tuple)):
        raise ArgumentTypeError(f"[{owner}] betas must be two numbers; got {shown(betas)}.")
    for beta in betas:
        check_number(owner, "each of betas", beta)
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"[{owner}] betas must be two numbers, at least 0 and below 1; got {betas}.")


def listed(owner: str, name: str, value: Any) -> list[Any]:
    """The elements of a list or a tuple; raises if ``value`` is something else.

    >>> listed("join_schedules", "boundaries", (4, 8))
    [4, 8]
    """
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"[{owner}] {name} must be a list; got {shown(value)}.")
    return list(value)


def check_single(owner: str, name: str, value: Any) -> None:
    """Raise if ``value`` is an array with axes."""
    shape = getattr(value, "shape", ())
    if shape:
        raise ValueError(f"[{owner}] {name} must be one number; got an array of shape {shape}.")


def check_learning_rate(owner: str, learning_rate: Any) -> None:
    """Raise unless it is a function, an array or a number; a negative number would increase the loss."""
    if not callable(learning_rate):
        check_number(owner, "learning_rate", learning_rate)


def scalar_setting(owner: str, name: str, value: Any) -> mx.array:
    """A setting as an array without axes; numbers become float32.

    >>> scalar_setting("SGD", "learning_rate", 0.5)
    array(0.5, dtype=float32)
    """
    if isinstance(value, Real):
        return mx.array(float(value))
    if not isinstance(value, mx.array):
        if not hasattr(value, "__array__"):
            raise ArgumentTypeError(f"[{owner}] {name} must be a number or an array without axes; got {shown(value)}.")
        value = mx.array(value)
    check_single(owner, name, value)
    return value
