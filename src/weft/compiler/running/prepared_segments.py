"""A traced graph in which operations name streams: prepared segments that run one after the other, each on its
stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.compiler.rewriting.segments import segments_of
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, leaf, reachable
from weft.runtime.available import CPU
from weft.runtime.devices import SHORT_WORK, Stream
from weft.runtime.engine import Engine
from weft.runtime.memory import View

from .evaluate import sent_to
from .prepared import Prepared

CALLER = Stream(CPU)
"""A placeholder for the stream of the caller."""


class Sent(NamedTuple):
    """A value that another stream reads, by its position among all values."""

    position: int
    shape: Shape
    dtype: Dtype
    reader: Stream


class PreparedSegments:
    """The segments of a graph, planned for inputs of certain layouts. Short ones are computed on the calling thread if
    their stream is idle."""

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
        self._segments: list[tuple[Stream, Prepared, list[Sent]]] = []
        self.engine = engine
        for stream, nodes, sends in segments_of(order, wanted, CALLER):
            own = engine if stream is CALLER else stream.engine
            segment = Prepared(list(known), nodes, list(known.values()), own)
            first = len(known)
            self._segments.append(
                (stream, segment, [Sent(first + nodes.index(x), x.shape, x.dtype, reader) for x, reader in sends])
            )
            known.update(zip(nodes, segment.strides, strict=True))
        positions = {node: position for position, node in enumerate(known)}
        self._outputs = [(positions.get(node, node), node.shape, node.dtype) for node in outputs]

    def run(self, inputs: Sequence[View], caller: Stream) -> list[Node]:
        """New nodes with the values of the outputs. Operations that name no stream are computed on that of the
        ``caller``."""
        values: list[Any] = list(inputs)
        sent: dict[Engine, dict[int, View]] = {}
        for own, segment, sends in self._segments:
            stream = caller if own is CALLER else own
            run = segment.run_later if segment.work >= SHORT_WORK else segment.run
            there = sent.get(stream.engine)
            given = [there.get(number, view) for number, view in enumerate(values)] if there else values
            values += [node.value for node in run(given, stream)]
            for position, shape, dtype, reader in sends:
                engine = (caller if reader is CALLER else reader).engine
                view = sent_to(engine, shape, dtype, values[position], stream)
                if view is not None:
                    sent.setdefault(engine, {})[position] = view
        return [
            leaf(values[output], shape, dtype) if isinstance(output, int) else output
            for output, shape, dtype in self._outputs
        ]


Runnable = Prepared | PreparedSegments
