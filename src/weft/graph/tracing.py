"""Which transformations are tracing on this thread, and what to say when a traced array is asked for its value."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from weft.errors import TraceError
from weft.graph.location import user_location
from weft.graph.node import Handle, Node, Placeholder, describe, point, reachable
from weft.graph.symbolic import open_trace
from weft.runtime.atomic import Action, done_at_end


class Trace:
    """One run of a user's function by a transformation.

    While any trace is open on a thread, nodes evaluated there keep their inputs: the transformation still has to
    walk over them. They let go of them when the outermost trace ends. Nodes that other threads evaluate do so as well
    if they depend on what is differentiated; see `follow`.

    ``if_open`` and ``if_ended`` are what this transformation offers, besides what all do, to whoever asks an array for
    its value in the function or after it.
    """

    __slots__ = ("active", "function", "if_ended", "if_open", "transformation")

    def __init__(self, transformation: str, function: object, if_open: str = "", if_ended: str = "") -> None:
        self.transformation = transformation
        self.function = name_of(function)
        self.if_open = if_open
        self.if_ended = if_ended
        self.active = True

    def __str__(self) -> str:
        return f"{self.transformation}({self.function})"


class _TracesOfThread(threading.local):
    def __init__(self) -> None:
        self.open: list[Trace] = []
        self.evaluated: list[Node] = []
        self.followed: list[Node] = []
        self.assigned: list[dict[int, Action]] = []


_local = _TracesOfThread()
open_traces: list[None] = []
"""Not empty while some thread is tracing."""


def name_of(function: object) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


@contextmanager
def trace(transformation: str, function: object, if_open: str = "", if_ended: str = "") -> Iterator[Trace]:
    """Mark this thread as tracing ``function``."""
    record = Trace(transformation, function, if_open, if_ended)
    depth = len(_local.open)
    counted = False
    try:
        open_traces.append(None)
        counted = True
        _local.open.append(record)
        yield record
    finally:
        record.active = False
        del _local.open[depth:]
        if counted:
            open_traces.pop()
        if not _local.open:
            _end()


followed: set[Node] = set()
"""What is differentiated with respect to, on any thread."""
_late: list[Node] = []
"""Evaluated nodes that keep their inputs as long as anything is followed."""


def follow(node: Node) -> None:
    """Keep the history of what is made of a node, whichever thread evaluates it, until this thread's traces end."""
    if _local.open:
        _local.followed.append(node)
        followed.add(node)


def is_followed(nodes: Sequence[Node]) -> bool:
    """Whether nodes are made of what is differentiated with respect to, on any thread."""
    if not followed:
        return False
    known = list(followed)
    return not followed.isdisjoint(reachable(nodes, min([node.serial for node in known], default=0) - 1))


def _end() -> None:
    """The outermost trace of this thread has ended."""
    followed.difference_update(_local.followed)
    _local.followed.clear()
    evaluated, _local.evaluated = _local.evaluated, []
    release(evaluated)
    if not followed:
        late = _late[:]
        del _late[: len(late)]
        _forget(late)


def _after_fork() -> None:
    """The other threads, and what they followed, do not exist in the child."""
    followed.intersection_update(_local.followed)
    del open_traces[len(_local.open) :]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Not empty while some thread is inside `assignments_undone`: all that an assignment in place looks at otherwise.
watching: list[None] = []


@contextmanager
def assignments_undone() -> Iterator[Callable[[], list[Handle]]]:
    """Handles that this thread assigns to in place in this block name the nodes from before at its end; what the block
    gets tells which ones these are.

    A function that is traced with placeholders assigns nodes that have no value once the trace is over.
    """
    undoing: dict[int, Action] = {}
    depth = len(_local.assigned)
    watched = False
    try:
        _local.assigned.append(undoing)
        watching.append(None)
        watched = True
        with done_at_end(undoing.values()):
            yield lambda: [handle for _, handle, _ in undoing.values()]
    finally:
        del _local.assigned[depth:]
        if watched:
            watching.pop()


def note_assignment(handle: Handle) -> None:
    """To be called before a handle names another node, if anybody is ``watching``."""
    if _local.assigned:
        _local.assigned[-1].setdefault(id(handle), (point, handle, handle.node))


def assign(handle: Handle, node: Node) -> None:
    """Point a handle at another node."""
    note_assignment(handle)
    handle.node = node


def is_tracing() -> bool:
    return bool(_local.open)


def release(nodes: Sequence[Node]) -> None:
    """Let evaluated nodes forget how they were made, now or when no trace needs it any more."""
    if _local.open:
        _local.evaluated.extend(nodes)
    elif followed and is_followed(nodes):
        _late.extend(nodes)
    else:
        _forget(nodes)


def _forget(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.inputs = ()
        node.primitive = None
        node.params = ()


def traced_placeholder(node: Node) -> Placeholder | None:
    """The first placeholder that ``node`` depends on, if any."""
    if node.value is not None:
        return None
    for candidate in reachable([node]):
        if isinstance(candidate, Placeholder):
            return candidate
    return None


def trace_of(node: Node) -> Trace | None:
    """The trace without which ``node`` has no value: it depends on an input, or on an extent that is left open."""
    if node.value is not None:
        return None
    for candidate in reachable([node]):
        found: Trace | None
        if isinstance(candidate, Placeholder):
            found = candidate.trace
        else:
            found = open_trace((candidate.shape, candidate.params))
        if found is not None:
            return found
    return None


def no_value(node: Node, trace_: Trace, action: str) -> TraceError:
    """The error for asking a traced array for its value."""
    what = describe(node.shape, node.dtype)
    if trace_.active:
        # Programs written for MLX look for the words from "Attempting" to "transformations" in errors.
        return TraceError(
            f"{user_location()}: cannot {action} an array ({what}) while {trace_} is tracing: it stands for all "
            "the values that the function may be called with and has none of its own.\n"
            "Attempting to eval an array during function transformations cannot succeed: use mx.where instead of a "
            f"Python branch, or return the array and look at it outside.{trace_.if_open}"
        )
    return TraceError(
        f"{user_location()}: cannot {action} this array ({what}): it was made inside {trace_} while the function was "
        "traced, and left it by another way than the return value. It never had a value.\n"
        f"Return it from the function.{trace_.if_ended}"
    )
