"""Checks of arguments that are not arrays. Messages name the function, what it takes and what it got.

Every message about an argument begins with the name of the function that the user called: ``[zeros] ...``.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

from weft.errors import ArgumentTypeError

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


def outermost() -> FrameType:
    """The frame of the function of Weft that the user called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def called() -> str:
    """The name of the function that the user called, for checks that do not get it as an argument."""
    owner, _, name = outermost().f_code.co_qualname.partition(".")
    return owner if not name or name.startswith(("__", "<locals>")) else name


def shortened(value: object) -> str:
    """The ``repr`` of ``value``, shortened if it is long.

    >>> shortened("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    try:
        text = repr(value)
    except ValueError:  # an int with thousands of digits, or a traced array, which has no value
        text = f"<{value.bit_length()} bits>" if isinstance(value, int) else "a value"
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(value: object) -> str:
    """``value``, shortened, and its type.

    >>> shown("x")
    "'x' of type str"
    """
    return f"{shortened(value)} of type {type(value).__name__}"


def wrong_type(name: str, word: str, expected: str, value: object) -> TypeError:
    """The error for an argument, called ``word`` in the message, that is not what the function expects.

    >>> wrong_type("sum", "axis", "an int", "x")
    ArgumentTypeError("[sum] axis must be an int; got 'x' of type str.")
    """
    return ArgumentTypeError(f"[{name}] {word} must be {expected}; got {shown(value)}.")


def integer_of(name: str, word: str, value: Any) -> int:
    """``value`` as an int.

    Raises:
        TypeError: it is something else.
        ValueError: it is larger than any possible extent, index or seed.
    """
    try:
        number = plain_int(value)
    except TypeError:
        raise wrong_type(name, word, "an int", value) from None
    if not _LOWEST <= number <= _HIGHEST:
        raise ValueError(f"[{name}] {word} must be from -2**63 to 2**64 - 1; got {shortened(number)}.")
    return number


def plain_int(value: Any) -> int:
    """``value`` as an int of no subclass: True becomes 1, because NumPy does not take True as an extent.

    Raises:
        TypeError: it is no integer.
    """
    return int.__int__(operator.index(value))


def function_of(name: str, word: str, value: Any) -> Any:
    """``value``, if it is callable."""
    if not callable(value):
        raise wrong_type(name, word, "a function", value)
    return value


def one_of(name: str, word: str, value: Any, choices: Collection[str]) -> str:
    """``value``, if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"[{name}] {word} must be one of {', '.join(map(repr, choices))}; got {shown(value)}.")
    return value
