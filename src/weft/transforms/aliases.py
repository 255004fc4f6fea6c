"""Errors for arrays that a compiled function uses from outside and also gets as an argument or in its state.

Without `compile` both are one array: an assignment in place to one is seen by readers of the other. In a compiled
function arrays from outside are constants, so this is an error.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft import tree
from weft.graph.node import Handle, Node
from weft.graph.tracing import name_of


class Apart:
    """The arrays from outside that may not also be given to a function: those that it assigns to in place, and, if it
    assigns in place to what it is given, those that it reads."""

    def __init__(self, fun: Callable[..., Any], assigned: Iterable[Handle], given: Mapping[int, Handle]) -> None:
        """To be created just after the function was traced. ``assigned`` are the arrays to which it assigned in place,
        ``given`` the arrays that it got instead of those of the caller."""
        stand_ins = {id(handle) for handle in given.values()}
        handles = list(assigned)
        outside = [handle for handle in handles if id(handle) not in stand_ins]
        self._assigned = [weakref.ref(handle) for handle in outside]
        read = _captured(fun) if len(outside) < len(handles) else ()
        self._read = [handle for handle in read if id(handle) not in stand_ins]

    def arrays(self, read: Sequence[Node]) -> list[weakref.ref[Handle]]:
        """The arrays that still exist. ``read`` are the nodes that the function reads and that do not depend on its
        inputs."""
        nodes = set(read)
        found = [*self._assigned, *[weakref.ref(handle) for handle in self._read if handle.node in nodes]]
        self._read.clear()
        return [reference for reference in found if reference() is not None]


def refuse_aliases(fun: Callable[..., Any], apart: Sequence[weakref.ref[Handle]], given: Sequence[Handle]) -> None:
    """Raise if one of the arrays ``apart`` is given to a function."""
    outside = {id(reference()) for reference in apart}
    if any(id(handle) in outside for handle in given):
        raise ValueError(
            f"[compile] {name_of(fun)} gets an array as an argument, or in its inputs, that it also uses from outside, "
            "and assigns to it in place. Without compile both are one array; in a compiled function what comes from "
            "outside is a constant. Use only the argument, or give the function a copy (mx.array(x))."
        )


def _captured(fun: Any) -> Iterator[Handle]:
    """The arrays that a function refers to in its closure and in global variables, also through other functions."""
    pending, seen = [fun], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Handle):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            pending += tree.flatten(value)[0]
        elif isinstance(value, types.MethodType):
            pending += [value.__self__, value.__func__]
        elif isinstance(value, types.FunctionType) and not value.__module__.startswith("weft."):
            pending += _variables(value)
        elif hasattr(value, "__wrapped__"):
            pending.append(value.__wrapped__)


def _variables(function: types.FunctionType) -> list[Any]:
    found = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # the variable has no value yet
            continue
    return [*found, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
