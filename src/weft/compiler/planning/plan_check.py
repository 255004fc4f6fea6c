"""Checks a plan against what its steps read and write; done for each new plan if ``WEFT_CHECKS=1``."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.graph.node import Node
from weft.runtime.steps import Placement

from .donation import Accesses, Touches


@dataclass(eq=False, repr=False, slots=True)
class LastWriters:
    """For the memory for temporaries, which node was last written to which bytes, while steps are visited in order.

    ``starts`` are the beginnings of the written pieces, sorted; pieces do not overlap. ``pieces`` has the end and the
    node of each piece, ``low`` the beginning of the piece of a node.
    """

    starts: list[int] = field(default_factory=list)
    pieces: list[tuple[int, Node]] = field(default_factory=list)
    low: dict[Node, int] = field(default_factory=dict)

    def write(self, low: int, high: int, node: Node) -> None:
        self._forget(node)
        self.low[node] = low
        if low == high:
            return
        first = bisect_right(self.starts, low)
        if first and self.pieces[first - 1][0] > low:
            first -= 1
        last = bisect_left(self.starts, high, first)
        for _, owner in self.pieces[first:last]:
            del self.low[owner]
        self.starts[first:last] = [low]
        self.pieces[first:last] = [(high, node)]

    def holds(self, node: Node) -> bool:
        return node in self.low

    def _forget(self, node: Node) -> None:
        if node in self.low:
            number = bisect_left(self.starts, self.low.pop(node))
            if number < len(self.pieces) and self.pieces[number][1] is node:
                del self.starts[number], self.pieces[number]


def check_memory(
    steps: Sequence[Accesses],
    slots: Placement,
    arena: int,
    size: int,
    inputs: Mapping[Node, int],
    homes: Mapping[Node, Node],
) -> None:
    """Raise unless everything is read after it was written, and before its memory is overwritten.

    ``arena`` is the slot of the memory for temporaries, of ``size`` bytes. ``homes`` says which of them have the memory
    of another one.
    """
    left: dict[Node, int] = {}
    for _, written, *_ in steps:
        for node in written:
            left[node] = left.get(node, 0) + 1
    memory = LastWriters()
    for number, (read, written, *_) in enumerate(steps):
        for node in set(read) - inputs.keys() - set(written):
            if left.get(node, 1):
                raise AssertionError(f"step {number} reads {node} before it is written")
            if slots[node][0] == arena and not memory.holds(homes.get(node, node)):
                raise AssertionError(f"step {number} reads {node}, whose memory another step has overwritten")
        for node in written:
            left[node] -= 1
            if slots[node][0] == arena:
                home = homes.get(node, node)
                others = {other for other in {*read, *written} if homes.get(other, other) is not home}
                _check_write(number, node, others, slots, size)
                low = slots[node][1]
                memory.write(low, low + node.nbytes, home)


def _check_write(number: int, node: Node, others: set[Node], slots: Placement, size: int) -> None:
    """Raise if a step writes beyond the memory for temporaries, or over something else that it reads or writes."""
    slot, low = slots[node]
    high = low + node.nbytes
    if high > size:
        raise AssertionError(f"step {number} writes {node} beyond the {size} bytes for temporaries")
    for other in others:
        other_slot, start = slots[other]
        if other_slot == slot and start < high and low < start + other.nbytes:
            raise AssertionError(f"step {number} writes {node} where it reads or writes {other}")


def check_donations(
    steps: Sequence[Accesses],
    donations: Sequence[tuple[int, int]],
    inputs: Mapping[Node, int],
    shown: set[int],
    buffers: Mapping[Node, int],
    homes: Mapping[Node, Node],
) -> None:
    """Raise unless each donated input has been read when the buffer that takes its memory is written.

    ``shown`` are the inputs that outputs show, ``homes`` the temporaries that have the memory of other nodes.
    """
    given, taken = [number for number, _ in donations], [number for _, number in donations]
    if len(set(given)) != len(given) or len(set(taken)) != len(taken) or shown.intersection(given):
        raise AssertionError(f"the donations {donations} use memory twice, or that of a result")
    node_of_input = {number: node for node, number in inputs.items()}
    node_of_buffer = {number: node for node, number in buffers.items()}
    touches = Touches(steps)
    for number, output in donations:
        source, target = node_of_input[number], node_of_buffer[output]
        if not touches.may_end(source, touches.stores_in(target, homes)):
            raise AssertionError(f"a step reads input {number}, whose memory {target} has taken")
