"""The graph of one trace of a compiled function, and what has been planned for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import tree
from weft.compiler.evaluate import evaluate
from weft.compiler.prepared import Prepared
from weft.compiler.run import Run
from weft.graph.dims import Fixed
from weft.graph.node import Handle, Node, Placeholder, reachable, wrap
from weft.graph.tracing import is_tracing, no_value, traced_placeholder
from weft.transforms.calls import Call
from weft.transforms.containers import Update
from weft.transforms.holders import References, references, unused_references
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


UNUSED = unused_references(lists=3)
"""The references to an array that a container of the state holds, and `_Compiled` and `Traced` in so many lists."""


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
        self.count = len(self._places)
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
            ended = self.ended(arrays, state, UNUSED) if state and prepared.can_replace else []
            if ended:
                nodes, run = prepared.begin(inputs, ended)
            else:
                nodes = prepared.run(inputs)
        return self.results(nodes), nodes[self.count :], run

    def ended(self, arrays: Sequence[Handle], state: int, unused: References) -> list[int]:
        """The arrays of the state, the last ones, that the update lets go of and that nobody else refers to."""
        assert self.update is not None
        first = len(arrays) - state
        return [number + first for number in self.update.replaced if references(arrays, number + first) == unused]

    def results(self, nodes: Sequence[Node]) -> Any:
        """What the function returned, made of other nodes; behind them are those of the update."""
        leaves = list(self._leaves)
        for position, node in zip(self._places, nodes, strict=False):
            leaves[position] = wrap(node)
        return self._structure.unflatten(leaves)

    def prepared_again(self, arrays: Sequence[Handle]) -> Prepared | None:
        """What was prepared for arrays with values like these; None if it takes more than that to call it."""
        inputs = [array.node for array in arrays]
        if self._own_streams or not self.cacheable or any(node.value is None for node in inputs):
            return None
        return self._prepared.get(_layouts(inputs))

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
