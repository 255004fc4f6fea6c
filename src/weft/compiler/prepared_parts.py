"""A traced graph in which operations name streams: one prepared part after the other, each on its stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.compiler.evaluate import SHORT_WORK, caller_stream
from weft.compiler.prepared import Prepared
from weft.compiler.segments import segments_of
from weft.graph.node import Node, reachable
from weft.runtime.devices import CPU, Device, Stream, current_stream, set_current_stream

CALLER = Stream(CPU)
"""Stands for the stream of the caller."""


class PreparedParts:
    """The parts of a graph, planned for inputs of certain layouts. Short ones are computed on the calling thread if
    their stream has nothing else to do."""

    def __init__(
        self,
        placeholders: Sequence[Node],
        outputs: Sequence[Node],
        strides: Sequence[tuple[int, ...]],
        device: Device,
    ) -> None:
        known = dict(zip(placeholders, strides, strict=True))
        order = [node for node in reachable(outputs) if node.value is None and node not in known]
        wanted = [node for node in outputs if node.value is None and node not in known]
        self._parts: list[tuple[Stream, Prepared]] = []
        self.device = device
        for stream, nodes in segments_of(order, wanted, CALLER):
            place = device if stream is CALLER else stream.device
            part = Prepared(list(known), nodes, list(known.values()), place)
            self._parts.append((stream, part))
            known.update(zip(nodes, part.strides, strict=True))
        places = {node: place for place, node in enumerate(known)}
        self._outputs = [places.get(node, node) for node in outputs]

    def run(self, inputs: Sequence[Node]) -> list[Node]:
        """New nodes with the values of the outputs."""
        values = list(inputs)
        caller = caller_stream()
        for stream, part in self._parts:
            place = caller if stream is CALLER else stream
            if part.work >= SHORT_WORK:
                values += part.run_later(values, place)
            else:
                values += _on(place, part.run, values)
        return [values[output] if isinstance(output, int) else output for output in self._outputs]


Runnable = Prepared | PreparedParts


def _on(stream: Stream, run: Callable[[Sequence[Node]], list[Node]], inputs: Sequence[Node]) -> list[Node]:
    before = current_stream()
    set_current_stream(stream)
    try:
        return run(inputs)
    finally:
        set_current_stream(before)
