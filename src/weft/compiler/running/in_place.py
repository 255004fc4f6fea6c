"""Runs of a plan whose results take the memory and the objects of arrays to which nothing else refers.

A step of training gives a new value to each array of its state. If only its container refers to an old array, that
object can become the new array, with new elements in its memory: then no array is created, and no container is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import getweakrefcount

from weft.compiler.planning.plan import Plan
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, leaf
from weft.runtime import recording
from weft.runtime.devices import Stream
from weft.runtime.holders import others_refer
from weft.runtime.memory import Buffer, View
from weft.runtime.steps import DONE, FIRST, Table
from weft.runtime.streams import is_idle
from weft.runtime.transfers import copy_on

from .input_tables import InputLayout, distinct_values

_event_of, _copies_of, _address_of = attrgetter("event"), attrgetter("copies"), attrgetter("address")
_engine_of, _offset_of = attrgetter("buffer.engine"), attrgetter("offset")
_is_own, _size_of = attrgetter("buffer.is_own"), attrgetter("buffer.size")


FEW_MISSES, SELDOM = 8, 16
"""After ``FEW_MISSES`` calls in which something referred to an array, this is tried in every ``SELDOM``-th call
only."""


class _TableInPlace(NamedTuple):
    """A table that no run is using, filled with the addresses of inputs; the addresses of arrays, the serials of their
    nodes, and the arrays in the memory of another engine, each with its slot."""

    table: Table
    addresses: list[int]
    serials: list[int]
    elsewhere: list[tuple[int, int]]


class InPlace:
    """Runs of a plan in which some arrays of a call, ``replaced``, each take the value of an output.

    For each input of the plan, ``sources`` gives the number of an array, whose layout is in ``layouts``, or a node with
    a value. An array that may be replaced has ``holders`` references. ``avals`` are shapes and dtypes of the first
    outputs, which replace no array.
    """

    def __init__(
        self,
        plan: Plan,
        constants: Sequence[int],
        sources: Sequence[int | Node],
        layouts: Sequence[InputLayout],
        replaced: dict[int, int],
        avals: Sequence[tuple[Shape, Dtype]],
        holders: int,
    ) -> None:
        self._plan, self._constants, self._sources, self._layouts = plan, constants, sources, layouts
        self._outputs = list(zip(plan.outputs, avals, strict=False))
        self._replaced = list(replaced)
        self._known = holders, 2, 2, 1
        """How many references there are to an array, to its node and its value (from lists of the call), and to its
        buffer."""
        self._positions = {number: position for position, number in enumerate(replaced.values())}
        self._sizes = [plan.sizes[number] for number in replaced.values()]
        self._fresh = [(number, block) for number, block in enumerate(plan.blocks) if number not in self._positions]
        self._free: list[_TableInPlace] = []
        self._misses = 0
        """How many calls in a row were not run in this way."""

    def run_often(self, arrays: Sequence[Any], stream: Stream) -> list[Node] | None:
        """The result of `run`. After several calls without success, it is tried in some calls only."""
        tried = self._misses < FEW_MISSES or self._misses % SELDOM == 0
        found = self.run(arrays, stream) if tried else None
        self._misses = self._misses + 1 if found is None else 0
        return found

    def run(self, arrays: Sequence[Any], stream: Stream) -> list[Node] | None:
        """New nodes for the first outputs, if everything is queued on a stream in a single call of native code. None if
        nothing was done, for example because something refers to one of the arrays: then the caller takes another
        way."""
        try:
            nodes = [array.node for array in arrays]
            serials = [node.serial for node in nodes]
        except AttributeError:
            return None
        if recording.recorders or not is_idle(stream):
            return None
        filled = self._free.pop() if self._free else None
        values = [node.value for node in nodes]
        if filled is None or filled.serials != serials or [*map(_address_of, values)] != filled.addresses:
            filled = self._filled(arrays, serials, filled)
        if filled is None:
            return None
        own = [arrays[number] for number in self._replaced]
        views: list[Any] = [values[number] for number in self._replaced]
        of_own = [array.node for array in own]
        buffers = [view.buffer for view in views]
        there = [*map(_event_of, values)].count(None) == len(values)
        if not there or [*map(_copies_of, views)].count(None) < len(views) or any(map(getweakrefcount, own)):
            self._free.append(filled)
            return None
        engine, table, fresh = self._plan.engine, filled.table, {}
        copies = [copy_on(engine, values[number], self._plan.spans[slot - FIRST]) for slot, number in filled.elsewhere]
        for (slot, _), copy in zip(filled.elsewhere, copies, strict=True):
            table.values[slot] = copy.address
        for number, (slot, size, block) in self._fresh:
            fresh[number] = buffer = Buffer(engine, size, block)
            table.values[slot] = buffer.address
        table.values[DONE] = 0
        doubts = others_refer([own, of_own, views, buffers], self._known)
        queued = engine.run_unless(self._plan.steps, table, stream, doubts)
        self._free.append(filled)
        if not queued:
            return None
        found = []
        for output, (shape, dtype) in self._outputs:
            buffer = fresh.get(output.number) or buffers[self._positions[output.number]]
            found.append(leaf(View(buffer, output.offset, output.strides), shape, dtype))
        return found

    def _filled(self, arrays: Sequence[Any], serials: list[int], before: _TableInPlace | None) -> _TableInPlace | None:
        """A table with the addresses of arrays; None if these are not distinct arrays with values of the right layouts,
        if an array that the function captured has not arrived, or if memory that should be replaced cannot be."""
        plan = self._plan
        values = distinct_values(arrays, self._layouts)
        if values is None:
            return None
        views = [values[number] for number in self._replaced]
        if any(map(_offset_of, views)) or not all(map(_is_own, views)) or [*map(_size_of, views)] != self._sizes:
            return None
        if [*map(_engine_of, views)].count(plan.engine) < len(views):
            return None
        table = plan.new_table(self._constants) if before is None else before.table
        addresses = [*map(_address_of, values)]
        elsewhere = []
        for slot, source in enumerate(self._sources, FIRST):
            if isinstance(source, int):
                table.values[slot] = addresses[source]
                if values[source].buffer.engine is not plan.engine:
                    elsewhere.append((slot, source))
            else:
                view = source.value
                if view is None or view.event is not None or view.buffer.engine is not plan.engine:
                    return None
                table.values[slot] = view.address
        for number, position in self._positions.items():
            table.values[plan.blocks[number][0]] = addresses[self._replaced[position]]
        return _TableInPlace(table, addresses, serials, elsewhere)


def in_place(
    plan: Plan,
    constants: Sequence[int],
    sources: Sequence[int | Node],
    layouts: Sequence[InputLayout],
    pairs: Sequence[tuple[int, int]],
    avals: Sequence[tuple[Shape, Dtype]],
    holders: int,
) -> InPlace | None:
    """Runs of a plan in which, for each of ``pairs``, an array (the first) takes the value of an output (the second).
    None if the plan does not write that output to the array's memory. ``avals`` are those of all outputs."""
    takers = dict(plan.donations)
    numbers = {source: number for number, source in enumerate(sources) if isinstance(source, int)}
    for source, position in pairs:
        output, aval = plan.outputs[position], avals[position]
        if output.from_input or output.offset or takers.get(numbers.get(source, -1)) != output.number:
            return None
        if layouts[source] != (*aval, output.strides):
            return None
    first = min([position for _, position in pairs], default=0)
    results = plan.outputs[:first]
    if not pairs or not plan.engine.queues or any(output.from_input for output in results):
        return None
    replaced = {source: plan.outputs[position].number for source, position in pairs}
    return InPlace(plan, constants, sources, layouts, replaced, avals[:first], holders)
