"""A traced function as plain data: numbers, strings and lists, as docs/exported-functions.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.export.trace import ExportedGraph, sources_of
from weft.graph.node import Node
from weft.graph.symbolic import SymbolicExtent, name_of_function
from weft.graph.tracing import name_of
from weft.primitives.untrusted import inferred

ARRAY = "array"
NUMBER = "constant"
"""The operations in a file that are no primitives: an array of the file, and a number."""


@cache
def primitives() -> dict[str, p.Primitive]:
    """The primitives that a file may contain."""
    found = {one.name: one for one in vars(p).values() if isinstance(one, p.Primitive)}
    return {name: one for name, one in found.items() if not (one.is_constant or one.is_transparent)}


class Encoder:
    """Converts traces to data; ``arrays`` collects the constants that all traces use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._primitives = primitives()
        self._numbers: dict[Node, int] = {}
        self.arrays: list[Node] = []

    def trace(self, trace: ExportedGraph) -> dict[str, Any]:
        """A trace as data."""
        one = _TraceEncoder(self._name, self._array, self._primitives)
        positions = {node: position for position, node in enumerate([*trace.inputs, *trace.order])}
        operations = [one.operation(node, positions) for node in trace.order]
        decisions = [[one.extent(extent), where] for extent, where in trace.decisions.items()]
        return {
            "inputs": [[node.dtype.name, one.numbers(node.shape)] for node in trace.inputs],
            "keywords": list(trace.names),
            "extents": one.extents,
            "decisions": decisions,
            "operations": operations,
            "outputs": [positions[node] for node in trace.outputs],
        }

    def _array(self, node: Node) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.arrays)
            self.arrays.append(node)
        return number


class _TraceEncoder:
    """One trace as data; extents and marks are numbered within the trace."""

    def __init__(self, name: str, array: Callable[[Node], int], known: dict[str, p.Primitive]) -> None:
        self._name = name
        self._array = array
        self._known = known
        self._extent_numbers: dict[SymbolicExtent, int] = {}
        self._marks: dict[Any, int] = {}
        self.extents: list[list[Any]] = []

    def numbers(self, shape: Sequence[Any]) -> list[int]:
        return [extent.value if type(extent) is SymbolicExtent else extent for extent in shape]

    def operation(self, node: Node, positions: dict[Node, int]) -> list[Any]:
        if node.value is not None:
            return [ARRAY, [], [self._array(node)]]
        primitive: Any = node.primitive
        if primitive.is_constant:
            return [NUMBER, [], [self._value(node, "bits", node.params[0]), self._value(node, "dtype", node.dtype)]]
        known = self._known.get(primitive.name)
        if known is None or known is not primitive:
            raise ValueError(
                f"[{self._name}] The operation {primitive.name!r} is not one of Weft's: another process could not "
                "find it."
            )
        if not primitive.is_unique:
            self._require_check(node)
        sources = [positions[source] for source in sources_of(node)]
        params = [self._value(node, name, value) for name, value in node.keywords.items()]
        return [primitive.name, sources, params]

    def _require_check(self, node: Node) -> None:
        """Raise if a reader of the file could not check the operation."""
        try:
            inferred(node.primitive, sources_of(node), node.keywords)
        except NotImplementedError as error:
            raise NotImplementedError(f"[{self._name}] This cannot be exported: {error}.") from None

    def _value(self, node: Node, name: str, value: Any) -> Any:
        """A parameter as data."""
        if node.primitive.is_unique:
            return self._marks.setdefault(value, len(self._marks))
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, Dtype):
            return {"dtype": value.name}
        if type(value) is SymbolicExtent:
            return {"extent": self.extent(value)}
        if isinstance(value, tuple):
            return [self._value(node, name, one) for one in value]
        raise NotImplementedError(
            f"[{self._name}] {node.primitive.name} cannot be exported: a file has no notation for its parameter "
            f"{name}, a {type(value).__name__}."
        )

    def extent(self, extent: SymbolicExtent) -> int:
        """The number of a symbolic extent; the extents in its expression have smaller numbers."""
        stack = [extent]
        while stack:
            top = stack[-1]
            missing = [one for one in top.operands if type(one) is SymbolicExtent and one not in self._extent_numbers]
            if top in self._extent_numbers:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                self._extent_numbers[top] = len(self.extents)
                self.extents.append(self._expression(top))
        return self._extent_numbers[extent]

    def _expression(self, extent: SymbolicExtent) -> list[Any]:
        if extent.function is None:
            return ["input", *extent.operands]
        name = name_of_function(extent.function)
        if name is None:
            raise NotImplementedError(
                f"[{self._name}] This cannot be exported for all shapes: the function {name_of(extent.function)}, "
                "by which an extent is worked out, has no name in files. Export without shapeless=True."
            )
        return [name, *[self._operand(one) for one in extent.operands]]

    def _operand(self, value: Any) -> Any:
        if type(value) is SymbolicExtent:
            return {"extent": self._extent_numbers[value]}
        if isinstance(value, float):
            return {"float": value.hex()}
        return {"dtype": value.name} if isinstance(value, Dtype) else value
