"""The argument ``stream=``: a public function resolves it once, and the functions that it calls use the current
stream."""

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
    """Call ``function`` while the stream that ``stream`` names is the current one."""
    return with_stream(as_stream(stream), function, *args, **kwargs)


def on_stream(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: while ``function`` runs, the stream that its parameter ``stream`` names is the current one. The
    parameter ``device`` of the Python array API standard, if ``function`` has it, does the same. The body of
    ``function`` uses neither.
    """
    code = inspect.unwrap(function).__code__  # for each of some 200 functions; a signature takes ten times as long
    named = code.co_varnames[: code.co_argcount]
    position = named.index("stream") if "stream" in named else sys.maxsize
    accepted = sys.maxsize if code.co_flags & inspect.CO_VARARGS else len(named)
    few = min(position, accepted)
    refuse = too_many
    # Local names, because `entrance` gets the globals of another module. A call without keywords takes less time.
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


def too_many(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Raise an error that says what to write if the ints of a shape were given one by one; other errors are Python's
    own."""
    for position, word in enumerate(inspect.signature(function).parameters):
        given = tuple(args[position:])
        # Python refuses to print integers of thousands of digits, so the message is only for numbers that can be
        # extents.
        if word in ("shape", "axes", "reps") and all(isinstance(one, int) and abs(one) < 2**63 for one in given):
            raise TypeError(f"[{function.__name__}] {word} is one argument: write {given}.")


def in_the_name_of(function: Callable[..., Any], entrance: Callable[P, R]) -> Callable[P, R]:
    """``entrance`` with the module of ``function``, in which tools look for it, and with its name in frames, which
    messages about ``stream`` show (`weft.checks.called`)."""
    assert isinstance(entrance, FunctionType)
    assert isinstance(function, FunctionType)
    code = entrance.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)
    return FunctionType(code, function.__globals__, closure=entrance.__closure__)
