"""A traced graph in which operations name streams: one prepared segment after the other, each on its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.evaluate import sent_to
from weft.compiler.prepared import Prepared
from weft.compiler.segments import segments_of
from weft.graph.node import Node, leaf, reachable
from weft.runtime.devices import CPU, SHORT_WORK, Stream
from weft.runtime.engine import Engine
from weft.runtime.memory import View

CALLER = Stream(CPU)
"""Stands for the stream of the caller."""


class PreparedSegments:
    """The segments of a graph, planned for inputs of certain layouts. Short ones are computed on the calling thread if
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
        self._segments: list[tuple[Stream, Prepared, list[tuple[Node, int, Stream]]]] = []
        self.engine = engine
        for stream, nodes, sends in segments_of(order, wanted, CALLER):
            own = engine if stream is CALLER else stream.engine
            segment = Prepared(list(known), nodes, list(known.values()), own)
            first = len(known)
            self._segments.append((stream, segment, [(x, first + nodes.index(x), target) for x, target in sends]))
            known.update(zip(nodes, segment.strides, strict=True))
        positions = {node: position for position, node in enumerate(known)}
        self._outputs = [(positions.get(node, node), node.shape, node.dtype) for node in outputs]

    def run(self, inputs: Sequence[View], caller: Stream) -> list[Node]:
        """New nodes with the values of the outputs; what names no stream is computed on that of the ``caller``."""
        values: list[Any] = list(inputs)
        sent = []
        for own, segment, sends in self._segments:
            stream = caller if own is CALLER else own
            run = segment.run_later if segment.work >= SHORT_WORK else segment.run
            values += [node.value for node in run(values, stream)]
            for node, position, target in sends:
                sent.append(sent_to(caller if target is CALLER else target, node, values[position], stream))
        return [
            leaf(values[output], shape, dtype) if isinstance(output, int) else output
            for output, shape, dtype in self._outputs
        ]


Runnable = Prepared | PreparedSegments
