"""The graph of one trace of a compiled function, and what has been planned for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.compiler.evaluate import evaluate
from weft.compiler.prepared import Prepared
from weft.compiler.run import Run
from weft.dtypes import float32
from weft.graph.dims import Fixed
from weft.graph.node import Handle, Node, Placeholder, leaf, reachable, wrap
from weft.graph.tracing import is_tracing, no_value, traced_placeholder
from weft.runtime.memory import Buffer, View
from weft.transforms.calls import Call
from weft.transforms.containers import Update
from weft.transforms.replay import Recording

TRACE_LIMIT = 64
"""How many traces are kept of a function, and how many layouts of its arguments of a trace."""


def _captures_traced(nodes: Sequence[Node]) -> bool:
    """Whether arrays from outside belong to a trace around this one. Those of a trace that is over cannot be used."""
    found = False
    for node in nodes:
        placeholder = traced_placeholder(node)
        if placeholder is not None and not placeholder.trace.active:
            raise no_value(node, placeholder, "use")
        found = found or placeholder is not None
    return found


_FIXED_SHAPE = (
    "A shape that the function reads (x.shape) or writes out, as for reshape, is fixed by the first call. Use flatten, "
    "unflatten, -1 or an axis argument instead, or compile without shapeless=True."
)


class Traced:
    """The graph of one trace, and what has been planned for it."""

    made_for: Call
    used: int
    """The number of the latest call that used it."""
    captures: bool
    """Whether it uses arrays from outside. While a transformation is tracing, these may be what it traces: such a trace
    is made anew for each call then, and not kept."""

    def __init__(
        self,
        name: str,
        start: int,
        placeholders: list[Placeholder],
        results: list[Any],
        result_nodes: list[Node],
        structure: tree.Structure,
        update: Update | None,
        fixed: list[Fixed] | None,
    ) -> None:
        self._name = name
        self._fixed = fixed or []
        self._placeholders = placeholders
        self._structure = structure
        self._places = [position for position, leaf in enumerate(results) if isinstance(leaf, Handle)]
        self._leaves = [None if isinstance(leaf, Handle) else leaf for leaf in results]
        self.returns_an_array = structure.num_containers == 0 and len(self._places) == 1
        self.update = update
        self._outputs = outputs = [*result_nodes, *([] if update is None else update.nodes)]
        self._recording = Recording(placeholders, outputs)
        self._shapes = tuple([tuple(map(int, placeholder.shape)) for placeholder in placeholders])
        self._shapeless = fixed is not None
        self._prepared: dict[Any, Prepared] = {}
        own = set(placeholders)
        captured = [node for node in self._recording.outside if node not in own]
        self.captures = any(node.serial < start for node in reachable(self._recording.others))
        self.cacheable = not _captures_traced(captured) and not (self.captures and is_tracing())
        if self.cacheable:
            evaluate([node for node in captured if node.inputs])
        self._own_streams = self._recording.has_streams

    def call(self, arrays: Sequence[Handle], state: int = 0) -> tuple[Any, list[Node], Run | None]:
        """The results for other arrays, and the nodes of the update.

        The last ``state`` arrays are from the containers that the update changes. If their memory is used for what
        replaces them, the nodes get their values from a run that is to be finished when the containers hold them.
        """
        inputs = [array.node for array in arrays]
        run = None
        if is_tracing() or self._own_streams or not self.cacheable or self._any_traced(inputs):
            nodes = self._replayed(inputs)
        else:
            prepared = self._prepared_for(inputs)
            ended = self._ended(arrays, len(arrays) - state) if state and prepared.can_replace else []
            if ended:
                nodes, run = prepared.begin(inputs, ended)
            else:
                nodes = prepared.run(inputs)
        return self.results(nodes), nodes[len(self._places) :], run

    def _ended(self, arrays: Sequence[Handle], first: int) -> list[int]:
        """The arrays of the state that the update lets go of and that nobody else refers to."""
        assert self.update is not None
        replaced = self.update.replaced
        return [
            number
            for number in range(first, len(arrays))
            if number - first in replaced and _references(arrays, number) == _UNUSED
        ]

    def results(self, nodes: Sequence[Node]) -> Any:
        """What the function returned, made of other nodes; behind them are those of the update."""
        leaves = list(self._leaves)
        for position, node in zip(self._places, nodes, strict=False):
            leaves[position] = wrap(node)
        return self._structure.unflatten(leaves)

    def repeat(self, arrays: Sequence[Handle]) -> Repeat | None:
        """A short way to do the same for arrays like these; None if it takes more than that."""
        inputs = [array.node for array in arrays]
        if self._own_streams or not self.cacheable or self.update is not None or any(x.value is None for x in inputs):
            return None
        key = _layouts(inputs)
        prepared = self._prepared.get(key)
        return None if prepared is None else Repeat(self, prepared, inputs)

    def _any_traced(self, inputs: Sequence[Node]) -> bool:
        return any(node.value is None and traced_placeholder(node) is not None for node in inputs)

    def _replayed(self, inputs: Sequence[Node]) -> list[Node]:
        if not self._shapeless or tuple([node.shape for node in inputs]) == self._shapes:
            return self._recording.replay(inputs)
        return self._reshaped(inputs)

    def _reshaped(self, inputs: Sequence[Node]) -> list[Node]:
        binding = {
            (number, axis): extent for number, node in enumerate(inputs) for axis, extent in enumerate(node.shape)
        }
        for rule, value, where in self._fixed:
            if rule(binding) != value:
                raise ValueError(
                    f"[compile] {self._name} was traced with shapes {', '.join(map(str, self._shapes))} and "
                    f"shapeless=True, and what it computed from a shape ({where}) is fixed: {value}, which would be "
                    f"{rule(binding)} for {', '.join(str(node.shape) for node in inputs)}.\n{_FIXED_SHAPE}"
                )
        try:
            return self._recording.reshaped(inputs, binding)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"[compile] {self._name} was traced with shapes {', '.join(map(str, self._shapes))} and "
                "shapeless=True, "
                f"and something in it does not fit {', '.join(str(node.shape) for node in inputs)}: "
                f"{error}\n{_FIXED_SHAPE}"
            ) from error

    def _prepared_for(self, inputs: list[Node]) -> Prepared:
        evaluate([node for node in inputs if node.value is None])
        key = _layouts(inputs)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= TRACE_LIMIT:
                oldest, *_ = self._prepared
                self._prepared.pop(oldest, None)
            prepared = self._prepared[key] = self._prepare(inputs)
        return prepared

    def _prepare(self, inputs: Sequence[Node]) -> Prepared:
        placeholders: list[Node] = list(self._placeholders)
        outputs = self._outputs
        if self._shapeless:
            placeholders = [Placeholder(None, tuple(map(int, node.shape)), node.dtype) for node in inputs]
            outputs = self._reshaped(placeholders)
        return Prepared(placeholders, outputs, [node.value.strides for node in inputs])  # type: ignore[union-attr]


def _layouts(inputs: Sequence[Node]) -> tuple[Any, ...]:
    return tuple([(node.shape, node.value.strides) for node in inputs])  # type: ignore[union-attr]  # evaluated


def _references(arrays: Sequence[Handle], number: int) -> tuple[int, int, int, int]:
    """How many references there are to an array of a call, its node, its view and its buffer."""
    node = arrays[number].node
    view = node.value
    assert view is not None
    counts = sys.getrefcount(node), sys.getrefcount(view), sys.getrefcount(view.buffer)
    return sys.getrefcount(arrays[number]), *counts


def _unused_references() -> tuple[int, int, int, int]:
    """The same for an array that only a container of the state refers to, and the lists of `_Compiled` and `Traced`."""
    container = [wrap(leaf(View(Buffer(4), 0, ()), (), float32))]
    leaves = list(container)
    moment = list(container)
    arrays = list(container)
    inputs = [array.node for array in arrays]
    found = _references(arrays, 0)
    del container, leaves, moment, inputs
    return found


_UNUSED = _unused_references()


class Repeat:
    """The latest call of a function of arrays, ready for arrays of the same shapes, dtypes and strides."""

    __slots__ = ("_bare", "_expected", "_prepared", "_traced")

    def __init__(self, traced: Traced, prepared: Prepared, inputs: Sequence[Node]) -> None:
        self._traced, self._prepared = traced, prepared
        self._expected = [(node.shape, node.dtype, node.value.strides) for node in inputs]  # type: ignore[union-attr]  # evaluated
        self._bare = traced.returns_an_array

    def __call__(self, arguments: Sequence[Any], tick: Callable[[], int]) -> Any:
        """The results; `NotImplemented` if these arguments are not what is expected."""
        expected = self._expected
        if len(arguments) != len(expected) or is_tracing():
            return NotImplemented
        array = Handle.concrete
        inputs = []
        for argument, (shape, dtype, strides) in zip(arguments, expected, strict=True):
            if type(argument) is not array:
                return NotImplemented
            node = argument.node
            value = node.value
            if value is None or node.shape != shape or node.dtype is not dtype or value.strides != strides:
                return NotImplemented
            inputs.append(node)
        self._traced.used = tick()
        nodes = self._prepared.run(inputs)
        return wrap(nodes[0]) if self._bare else self._traced.results(nodes)
