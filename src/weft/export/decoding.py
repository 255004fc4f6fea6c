"""Data from a file as a traced function; everything in it is checked."""

from __future__ import annotations

from typing import Any, NoReturn

import weft.primitives as p
from weft import tree
from weft.dtypes import ALL_DTYPES, Dtype
from weft.errors import FileFormatError
from weft.export.bounded import bounded_function, fitting
from weft.export.encoding import ARRAY, NUMBER, primitives
from weft.graph.node import Node, Placeholder, wrap
from weft.graph.symbolic import Decisions, SymbolicExtent, derived, input_shape
from weft.graph.tracing import Trace
from weft.primitives.untrusted import check_shape, inferred
from weft.transforms.traced import Traced

_DTYPES = {dtype.name: dtype for dtype in ALL_DTYPES}
_DEEPEST = 8
"""How deeply lists in parameters may be nested."""


class DecodedTrace:
    """A trace from a file: placeholders for its inputs, and the nodes of its results."""

    def __init__(self, what: str, function: str, shapeless: bool, data: Any, arrays: list[Node]) -> None:
        """``what`` is the name of the file in messages; ``arrays`` are those in the file."""
        self._what = what
        self._arrays = arrays
        self._extents: list[Any] = []
        self._marks: dict[int, object] = {}
        self._decisions = Decisions(None)
        self._nodes: list[Node] = []
        fields = self._dict(data, ("inputs", "keywords", "extents", "decisions", "operations", "outputs"))
        record = Trace("import_function", function)
        record.active = False
        self.inputs = [
            self._input(record, number, one, shapeless) for number, one in enumerate(self._list(fields["inputs"]))
        ]
        self.names = self._names(fields["keywords"])
        self.count = len(self.inputs) - len(self.names)
        for one in self._list(fields["extents"]):
            self._extents.append(self._extent(one))
        self._nodes += self.inputs
        for number, one in enumerate(self._list(fields["operations"])):
            self._nodes.append(self._operation(number, one))
        for one in self._list(fields["decisions"]):
            self._decide(one)
        outputs = [self._source(position) for position in self._list(fields["outputs"])]
        results = [wrap(node) for node in outputs]
        structure = tree.flatten(tuple(results))[1]
        decisions = self._decisions if shapeless else None
        self._parts: tuple[Any, ...] = (function, 0, self.inputs, results, outputs, structure, None, decisions, True)

    @property
    def traced(self) -> Traced:
        """The trace in the form in which functions are run."""
        return Traced(*self._parts)

    def _refuse(self, reason: str) -> NoReturn:
        raise FileFormatError(f"[import_function] {self._what} is no sound file of a function: {reason}.")

    def _dict(self, data: Any, keys: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(data, dict) or set(data) != set(keys):
            self._refuse(f"a part of it does not have exactly {', '.join(keys)}")
        return data

    def _list(self, data: Any, size: int | None = None) -> list[Any]:
        if not isinstance(data, list) or size not in (None, len(data)):
            self._refuse(f"it has something else where {'a list' if size is None else f'{size} entries'} should stand")
        return data

    def _text(self, data: Any) -> str:
        if not isinstance(data, str):
            self._refuse("it has something else where a text should stand")
        return data

    def _dtype(self, data: Any) -> Dtype:
        dtype = _DTYPES.get(data) if isinstance(data, str) else None
        if dtype is None:
            self._refuse(f"there is no dtype {data!r}")
        return dtype

    def _names(self, data: Any) -> tuple[str, ...]:
        names = tuple([self._text(one) for one in self._list(data)])
        if len(set(names)) != len(names) or list(names) != sorted(names) or len(names) > len(self.inputs):
            self._refuse("the names of its arguments are not sound")
        return names

    def _input(self, record: Trace, number: int, data: Any, shapeless: bool) -> Placeholder:
        name, extents = self._list(data, 2)
        dtype, shape = self._dtype(name), tuple(self._list(extents))
        try:
            check_shape(shape, dtype)
        except ValueError as error:
            self._refuse(f"the shape of input {number} is none ({error})")
        return Placeholder(record, input_shape(number, shape, self._decisions) if shapeless else shape, dtype)

    def _extent(self, data: Any) -> Any:
        """A symbolic extent; an int if the expression in the file has a constant value, which Weft does not write."""
        name, *operands = self._list(data) or [None]
        if name == "input":
            number, axis = self._list(operands, 2)
            source = self.inputs[self._index(number, len(self.inputs))]
            return source.shape[self._index(axis, source.ndim)]
        function = bounded_function(name)
        if function is None:
            self._refuse(f"there is no function {name!r} of extents")
        values = [self._operand(one) for one in operands]
        try:
            return fitting(derived(function, *values))
        except Exception as error:
            self._refuse(f"an extent cannot be worked out ({error})")

    def _operand(self, data: Any) -> Any:
        return self._value(data, 0) if isinstance(data, dict) else self._plain(data)

    def _plain(self, data: Any) -> Any:
        if not (data is None or type(data) is int):
            self._refuse(f"{data!r} is no operand of an extent")
        return data

    def _index(self, data: Any, count: int) -> int:
        if type(data) is not int or not 0 <= data < count:
            self._refuse(f"{data!r} does not name one of {count}")
        return data

    def _source(self, position: Any) -> Node:
        """A node with one result."""
        node = self._nodes[self._index(position, len(self._nodes))]
        if node.primitive is not None and node.primitive.several:
            self._refuse(f"{node.primitive.name} is used as if it had one result")
        return node

    def _operation(self, number: int, data: Any) -> Node:
        name, sources, params = self._list(data, 3)
        positions, values = self._list(sources), self._list(params)
        if name == ARRAY:
            (array,) = self._list(values, 1)
            return self._arrays[self._index(array, len(self._arrays))]
        if name == NUMBER:
            return self._number(*self._list(values, 2))
        primitive = primitives().get(name) if isinstance(name, str) else None
        if primitive is None:
            self._refuse(f"there is no operation {name!r}; it may have been written by a later version of Weft")
        if len(values) != len(primitive.parameters):
            self._refuse(f"operation {number}, {name}, has {len(values)} parameters, not {len(primitive.parameters)}")
        if primitive.is_result:
            nodes = tuple([self._nodes[self._index(position, len(self._nodes))] for position in positions])
        else:
            nodes = tuple([self._source(position) for position in positions])
        decoded = tuple([self._mark(one) if primitive.is_unique else self._value(one, 0) for one in values])
        try:
            shape, dtype = inferred(primitive, nodes, dict(zip(primitive.parameters, decoded, strict=True)))
        except Exception as error:  # a shape rule may raise any error for inputs that no program makes
            self._refuse(f"operation {number}, {name}, does not fit its inputs and parameters ({error})")
        return Node(primitive, nodes, decoded, shape, dtype, None)

    def _number(self, bits: Any, dtype_data: Any) -> Node:
        dtype, value = self._value(dtype_data, 0), self._value(bits, 0)
        known = value.value if type(value) is SymbolicExtent else value
        largest = 1 if isinstance(dtype, Dtype) and dtype.is_bool else (1 << 64) - 1
        if not isinstance(dtype, Dtype) or type(known) is not int or not 0 <= known <= largest:
            self._refuse("a number in it is none")
        return Node(p.constant, (), (value,), (), dtype, None)

    def _mark(self, data: Any) -> object:
        return self._marks.setdefault(self._index(data, 1 << 32), object())

    def _value(self, data: Any, depth: int) -> Any:
        """A parameter."""
        if data is None or isinstance(data, (bool, int, str)):
            return data
        if isinstance(data, list) and depth < _DEEPEST:
            return tuple([self._value(one, depth + 1) for one in data])
        if not isinstance(data, dict) or len(data) != 1:
            self._refuse("a parameter in it is none")
        ((kind, content),) = data.items()
        if kind == "dtype":
            return self._dtype(content)
        if kind == "extent":
            return self._extents[self._index(content, len(self._extents))]
        return self._float(content) if kind == "float" else self._refuse(f"there are no parameters of kind {kind!r}")

    def _float(self, data: Any) -> float:
        text = self._text(data)
        try:
            return float.fromhex(text)
        except (ValueError, OverflowError):
            self._refuse(f"{text[:40]!r} is no number")

    def _decide(self, data: Any) -> None:
        number, where = self._list(data, 2)
        extent = self._extents[self._index(number, len(self._extents))]
        if type(extent) is SymbolicExtent:
            self._decisions.made[extent] = self._text(where)
