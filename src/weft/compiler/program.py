"""A graph as a key: everything that a plan depends on, and nothing else.

The key lists each operation once (equal operations, that is common subexpressions, are a single entry), with positions
in place of nodes, and numbers of constants in place of their values. Plans are made from keys alone. So a cached plan
refers to no array, and the same code that is run again with other numbers finds the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from weft.compiler.parameters import ExactParameters
from weft.graph.node import Node, Placeholder, serial_of
from weft.graph.symbolic import SymbolicExtent, open_trace
from weft.graph.tracing import no_value
from weft.runtime.devices import Stream

Entry = tuple[Any, ...]

Strides = tuple[Any, ...]
_NO_LAYOUTS: Mapping[Node, Strides] = {}


class Program:
    """``entries`` are the operations, ``inputs`` the nodes with values, ``constants`` the bits of the numbers in the
    program, ``streams`` those that its nodes name.

    Nodes with values for which ``shown`` gives the same memory are a single input; if it gives None, each is an input
    of its own. An entry is ``(primitive, params, shape, dtype, positions of inputs)``; for an input ``(None, number,
    shape, dtype, strides)``, for a constant ``(primitive, number, dtype)``.
    """

    __slots__ = (
        "_constant_positions",
        "_marks",
        "_nodes",
        "_positions",
        "_shown",
        "constants",
        "entries",
        "inputs",
        "references",
        "streams",
    )

    def __init__(self, shown: Callable[[Node], Hashable] | None = None) -> None:
        self.entries: list[Entry] = []
        self.inputs: list[Node] = []
        self.constants: list[int] = []
        self.references: dict[Node, int] = {}
        self.streams: set[Stream | None] = set()
        self._positions: dict[Entry, int] = {}
        self._constant_positions: dict[tuple[int, Any], int] = {}
        self._shown = shown
        self._nodes: dict[Node, int] = {}
        self._marks: dict[tuple[Any, ...], int] = {}

    def position(self, node: Node) -> int:
        return self._nodes[node]

    def add(self, outputs: Iterable[Node], layouts: Mapping[Node, Strides] = _NO_LAYOUTS) -> None:
        """Append everything that ``outputs`` need. Nodes in ``layouts`` are inputs with these strides, as are all nodes
        with values.

        Raises:
            TraceError: a placeholder has no value.
        """
        outputs = list(outputs)
        nodes, streams = self._nodes, self.streams
        stream: object = self  # different from the stream of every node
        for node in self._needed(outputs, layouts):
            primitive = node.primitive
            if primitive is None:
                assert isinstance(node, Placeholder)
                raise no_value(node, node.trace, "evaluate")
            if primitive.is_constant:
                continue
            if node.stream is not stream:
                stream = node.stream
                streams.add(node.stream)
            if primitive.is_transparent:
                continue
            source = primitive.alias(node) if primitive.has_alias else None
            if source is None:
                nodes[node] = self._position_of_operation(node, layouts)
            else:
                nodes[node] = self._position_of(source, layouts)
        for node in outputs:
            self._position_of(node, layouts)
            if node.stream is not stream:
                streams.add(node.stream)

    def _position_of(self, node: Node, layouts: Mapping[Node, Strides]) -> int:
        """The position of a node. Inputs and constants are added at their first use, so positions do not depend on the
        order in which they were made."""
        position = self._nodes.get(node)
        if position is None:
            strides = layouts.get(node)
            if strides is None:
                value = node.value
                if value is None:
                    return self._add_constant(node)
                strides = value.strides
            if self._shown is not None:
                known = self._known_input(node, strides)
                if known is not None:
                    return known
            position = self._nodes[node] = len(self.entries)
            self.entries.append((None, len(self.inputs), node.shape, node.dtype, strides))
            self.inputs.append(node)
        return position

    def _known_input(self, node: Node, strides: Any) -> int | None:
        """The position of an input that shows the same memory in the same way; None if there is none."""
        assert self._shown is not None
        memory = self._shown(node)
        if memory is None:
            return None
        key = (None, memory, node.shape, node.dtype, strides)
        position = self._positions.setdefault(key, len(self.entries))
        if position == len(self.entries):
            return None
        self._nodes[node] = position
        return position

    def _needed(self, outputs: Iterable[Node], layouts: Mapping[Node, Strides]) -> list[Node]:
        """Nodes without values that ``outputs`` need, in topological order. ``references`` counts the uses of each node
        inside the program."""
        references, known = self.references, self._nodes
        wanted = set(outputs).difference(known)
        needed = [node for node in wanted if node.value is None and node not in layouts]
        for node in needed:  # the list grows meanwhile
            for source in node.inputs:
                if source in references:
                    references[source] += 1
                    continue
                references[source] = 1
                if source.value is None and source not in wanted and source not in known and source not in layouts:
                    needed.append(source)
        needed.sort(key=serial_of)
        return needed

    def _add_constant(self, node: Node) -> int:
        bits = node.params[0]
        if type(bits) is SymbolicExtent:
            raise no_value(node, open_trace(bits), "evaluate")
        key = (bits, node.dtype)
        position = self._constant_positions.get(key)
        if position is None:
            position = self._constant_positions[key] = len(self.entries)
            self.entries.append((node.primitive, len(self.constants), node.dtype))
            self.constants.append(bits)
        self._nodes[node] = position
        return position

    def _position_of_operation(self, node: Node, layouts: Mapping[Node, Strides]) -> int:
        """The position of an operation; that of an equal operation, if there is one."""
        nodes, entries, primitive = self._nodes, self.entries, node.primitive
        positions = []
        for source in node.inputs:
            position = nodes.get(source)
            positions.append(self._position_of(source, layouts) if position is None else position)
        params = node.params
        if not primitive.equal_is_same:
            if primitive.is_unique:
                params = (self._marks.setdefault(params, len(self._marks)),)
            elif params:
                params = ExactParameters(params)
        entry = (primitive, params, node.shape, node.dtype, tuple(positions))
        new = len(entries)
        position = self._positions.setdefault(entry, new)
        if position == new:
            entries.append(entry)
        return position
