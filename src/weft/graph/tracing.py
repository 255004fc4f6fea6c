"""Which transformations are tracing on this thread, and the errors for reading the value of a traced array."""

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

    While any trace is active on a thread, nodes evaluated there keep their inputs, because the transformation still has
    to walk over them. They drop them when the outermost trace ends. The same holds for nodes that other threads
    evaluate if they depend on arrays with respect to which something is differentiated; see `follow`.

    ``if_open`` and ``if_ended`` are texts for the error that reading an array's value raises in the function and after
    it: advice for this transformation, in addition to the advice for all.
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
"""The nodes with respect to which any thread differentiates."""
_late: list[Node] = []
"""Evaluated nodes that keep their inputs as long as `followed` is not empty."""


def follow(node: Node) -> None:
    """Keep the inputs of nodes that depend on ``node``, whichever thread evaluates them, until this thread's traces
    end."""
    if _local.open:
        _local.followed.append(node)
        followed.add(node)


def is_followed(nodes: Sequence[Node]) -> bool:
    """Whether nodes depend on a node with respect to which any thread differentiates."""
    if not followed:
        return False
    known = list(followed)
    return not followed.isdisjoint(reachable(nodes, min([node.serial for node in known], default=0) - 1))


def _end() -> None:
    """Release what was kept for the traces of this thread, after the outermost one has ended."""
    followed.difference_update(_local.followed)
    _local.followed.clear()
    evaluated, _local.evaluated = _local.evaluated, []
    release(evaluated)
    if not followed:
        late = _late[:]
        del _late[: len(late)]
        _forget(late)


def _after_fork() -> None:
    """Forget the nodes that other threads follow: these threads do not exist in the child."""
    followed.intersection_update(_local.followed)
    del open_traces[len(_local.open) :]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Not empty while some thread is inside `assignments_undone`. Otherwise assignments in place need not be noted.
watching: list[None] = []


@contextmanager
def assignments_undone() -> Iterator[Callable[[], list[Handle]]]:
    """Undo, at the end of the block, the assignments in place that this thread makes in it: handles name their former
    nodes again. The block gets a function that returns the handles that were assigned to.

    A function that is traced with placeholders assigns nodes that have no value once the trace has ended.
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
    """Note which node a handle names. To be called before it names another one, unless ``watching`` is empty."""
    if _local.assigned:
        _local.assigned[-1].setdefault(id(handle), (point, handle, handle.node))


def assign(handle: Handle, node: Node) -> None:
    """Point a handle at another node."""
    note_assignment(handle)
    handle.node = node


def is_tracing() -> bool:
    return bool(_local.open)


def open_on_this_thread() -> int:
    """How many transformations are tracing on this thread, one inside the other."""
    return len(_local.open)


def release(nodes: Sequence[Node]) -> None:
    """Drop the inputs of evaluated nodes, now or as soon as no trace needs them."""
    if open_traces and _local.open:
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
    """The trace that keeps ``node`` from having a value, because it depends on its input, or on an extent it leaves
    open."""
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
        # Programs written for MLX search errors for the words from "Attempting" to "transformations".
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
