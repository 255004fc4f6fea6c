"""A traced graph in which operations name streams: one prepared part after the other, each on its stream."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.evaluate import SHORT_WORK
from weft.compiler.prepared import Prepared
from weft.compiler.segments import segments_of
from weft.graph.node import Node, reachable
from weft.runtime.devices import CPU, Stream
from weft.runtime.engine import Engine

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
        engine: Engine,
    ) -> None:
        known = dict(zip(placeholders, strides, strict=True))
        order = [node for node in reachable(outputs) if node.value is None and node not in known]
        wanted = [node for node in outputs if node.value is None and node not in known]
        self._parts: list[tuple[Stream, Prepared]] = []
        self.engine = engine
        for stream, nodes in segments_of(order, wanted, CALLER):
            own = engine if stream is CALLER else stream.engine
            part = Prepared(list(known), nodes, list(known.values()), own)
            self._parts.append((stream, part))
            known.update(zip(nodes, part.strides, strict=True))
        places = {node: place for place, node in enumerate(known)}
        self._outputs = [places.get(node, node) for node in outputs]

    def run(self, inputs: Sequence[Node], caller: Stream) -> list[Node]:
        """New nodes with the values of the outputs; what names no stream is computed on that of the ``caller``."""
        values = list(inputs)
        for own, part in self._parts:
            stream = caller if own is CALLER else own
            run = part.run_later if part.work >= SHORT_WORK else part.run
            values += run(values, stream)
        return [values[output] if isinstance(output, int) else output for output in self._outputs]


Runnable = Prepared | PreparedParts
