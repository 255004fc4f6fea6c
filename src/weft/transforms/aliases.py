"""Arrays from outside of a compiled function that are its arguments, or in its state, as well.

Without `compile` such an array is one array: what is assigned to it in place, by one name, is read by the other. In a
compiled function arrays from outside are constants, so this is an error.
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
    """The arrays from outside that may not be given to a function as well: it assigns in place to them, or reads them
    and assigns in place to what it is given."""

    def __init__(self, fun: Callable[..., Any], assigned: Iterable[Handle], given: Mapping[int, Handle]) -> None:
        """To be asked where the function has just been traced. ``assigned`` are the arrays to which it assigned in
        place, ``given`` what stood for those that it was given."""
        stand_ins = {id(handle) for handle in given.values()}
        handles = list(assigned)
        outside = [handle for handle in handles if id(handle) not in stand_ins]
        self._assigned = [weakref.ref(handle) for handle in outside]
        read = _captured(fun) if len(outside) < len(handles) else ()
        self._read = [handle for handle in read if id(handle) not in stand_ins]

    def arrays(self, read: Sequence[Node]) -> list[weakref.ref[Handle]]:
        """Those that are still there. The function ``read`` these nodes, which do not depend on what it is given."""
        nodes = set(read)
        found = [*self._assigned, *[weakref.ref(handle) for handle in self._read if handle.node in nodes]]
        self._read.clear()
        return [reference for reference in found if reference() is not None]


def refuse_aliases(fun: Callable[..., Any], apart: Sequence[weakref.ref[Handle]], given: Sequence[Handle]) -> None:
    """Raise if arrays from outside that are to be apart are given to a function."""
    outside = {id(reference()) for reference in apart}
    if any(id(handle) in outside for handle in given):
        raise ValueError(
            f"[compile] {name_of(fun)} gets an array as an argument, or in its inputs, that it also uses from outside, "
            "and assigns to it in place. Without compile both are one array; in a compiled function what comes from "
            "outside is a constant. Use only the argument, or give the function a copy (mx.array(x))."
        )


def _captured(fun: Any) -> Iterator[Handle]:
    """The arrays that a function finds in its closure and in global variables, also through other functions."""
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
        except ValueError:  # nothing has been assigned to the variable
            continue
    return [*found, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
