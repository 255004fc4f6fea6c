"""``stream=``: a public function resolves it once, and what it calls reads the stream that is current."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from weft.runtime.devices import StreamOrDevice, as_stream, with_stream

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["call_on", "in_the_name_of", "on_stream"]


def call_on(stream: StreamOrDevice, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` with the stream that ``stream`` names as the current one."""
    return with_stream(as_stream(stream), function, *args, **kwargs)


def on_stream(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, whose parameter ``stream`` says which stream is the current one while it runs.

    So does ``device``, if it has this parameter of the Python array API standard. The body of ``function`` mentions
    neither.
    """
    position = _position_of_stream(function)
    accepted = _count_of_positions(function)
    few = min(position, accepted)
    refuse = too_many
    # Local names, because `entrance` gets the globals of another module. A call without keywords is cheaper.
    plain: Callable[..., R] = function
    elsewhere = call_on

    def entrance(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs and len(args) <= few:
            return plain(*args)
        if len(args) > accepted:
            refuse(function, args)
        stream: Any = args[position] if len(args) > position else kwargs.get("stream")
        if stream is None:
            stream = kwargs.get("device")
        if stream is None:
            return function(*args, **kwargs)
        return elsewhere(stream, function, *args, **kwargs)

    return functools.wraps(function)(in_the_name_of(function, entrance))


def _position_of_stream(function: Callable[..., Any]) -> int:
    """How many arguments come before ``stream``; more than any call has if it can only be given by name."""
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.name == "stream" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            return position
    return sys.maxsize


def _count_of_positions(function: Callable[..., Any]) -> int:
    """How many arguments a call may give by position."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return sys.maxsize
    return len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY)


def too_many(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Say what to write to who gave the ints of a shape one by one. Of other calls Python itself says what is wrong."""
    for position, word in enumerate(inspect.signature(function).parameters):
        given = tuple(args[position:])
        # Python refuses to print integers of thousands of digits, so the message is for those that could be extents.
        if word in ("shape", "axes", "reps") and all(isinstance(one, int) and abs(one) < 2**63 for one in given):
            raise TypeError(f"[{function.__name__}] {word} is one argument: write {given}.")


def in_the_name_of(function: Callable[..., Any], entrance: Callable[P, R]) -> Callable[P, R]:
    """``entrance`` as a function of the module of ``function``, where tools look for it, and with its name in frames,
    where messages about ``stream`` take it from (`weft.checks.called`)."""
    assert isinstance(entrance, FunctionType)
    assert isinstance(function, FunctionType)
    code = entrance.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)
    return FunctionType(code, function.__globals__, closure=entrance.__closure__)
