"""Many arrays joined to one: their elements are copied, without a plan.

A plan has a step for each part, and depends on the extents of all parts and on which parts are the same array. Programs
choose parts anew each time, such as the samples of a batch, or sentences that are packed into a row. Then a plan would
be made each time, which takes five to fifty times as long as copying. So a graph is planned when it has come often.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from weft.graph.node import Node, Shape
from weft.graph.tracing import is_tracing, open_traces
from weft.runtime import recording
from weft.runtime.atomic import sections
from weft.runtime.engine import Engine
from weft.runtime.memory import Buffer, View, contiguous_strides, copy_in_a_row

from .single import Shown, publish_shown, shown_by

_FEWEST_PARTS = 8
_LARGEST_PART = 1 << 18
"""If parts have more bytes on average, copying takes longer than planning."""
_OFTEN = 16
"""When a graph comes for this time, what copying took longer than its plan would have is about what planning takes."""
_MOST_SEEN = 4096

_seen: dict[int, int] = {}
"""How often graphs with many parts came, by hashes of their keys."""


def joined_among(nodes: Iterable[Node]) -> list[Node]:
    """Those of the nodes that many inputs are joined to."""
    return [
        node
        for node in nodes
        if len(node.inputs) >= _FEWEST_PARTS and node.primitive is not None and node.primitive.is_joined(node)
    ]


def comes_often(key: Hashable) -> bool:
    """Whether the graph with this key was asked for often. Threads may count wrongly, which is harmless."""
    if len(_seen) >= _MOST_SEEN:
        _seen.clear()
    number = hash(key)
    count = _seen[number] = _seen.get(number, 0) + 1
    return count >= _OFTEN


def copy_parts(node: Node, engine: Engine) -> bool:
    """Give a node its value if its inputs are values, or views of values, that are computed and lie in one piece each.
    Returns whether that was done.

    No lock is held while inputs are read, as in `single.reading_of`, and for the same reason.
    """
    inputs, size = node.inputs, node.size * node.dtype.size
    if not inputs or size > len(inputs) * _LARGEST_PART:  # another thread may have evaluated the node
        return False
    if engine.queues or recording.recorders or (open_traces and is_tracing()):
        return False
    found = _pieces_of(inputs, engine)
    if found is None:
        return False
    pieces, shown = found
    joined = View(Buffer(engine, size), 0, contiguous_strides(node.shape))
    copy_in_a_row(pieces, joined.address)
    with sections:
        if node.value is None:
            node.value = joined
        publish_shown(shown, node)
    return True


def _pieces_of(inputs: tuple[Node, ...], engine: Engine) -> tuple[list[tuple[View, int]], Shown] | None:
    """The view and the bytes of each input, and the inputs that are shown."""
    pieces: list[tuple[View, int]] = []
    shown: list[tuple[Node, View, Node]] = []
    known: dict[Node, View] = {}
    lengths: dict[tuple[Shape, Shape], int] = {}
    item = inputs[0].dtype.size
    for source in inputs:
        view = source.value or known.get(source)
        if view is None:
            found: list[tuple[Node, View, Node]] = []
            view = shown_by(source, found)
            if view is None:
                return None
            known[source] = view
            shown += found
        if view.event is not None or view.buffer.engine is not engine:
            return None
        kind = source.shape, view.strides
        length = lengths.get(kind)
        if length is None:
            if not _is_whole(*kind):
                return None
            length = lengths[kind] = source.size * item
        pieces.append((view, length))
    return pieces, shown


def _is_whole(shape: Shape, strides: Shape) -> bool:
    """Whether an array lies row by row in memory, without gaps."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step and extent != 1:
            return False
        step *= extent
    return True
