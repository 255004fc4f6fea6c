"""The graph of one trace of a compiled function, and what has been prepared to run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import tree
from weft.compiler.running.evaluate import caller_stream, evaluate, start
from weft.compiler.running.prepared import Prepared
from weft.compiler.running.prepared_segments import PreparedSegments, Runnable
from weft.errors import TraceError
from weft.graph.extents import values_of
from weft.graph.node import Handle, Node, Placeholder, reachable, wrap
from weft.graph.shown import Extent, shown_extent
from weft.graph.symbolic import Decisions, resolved
from weft.graph.tracing import is_followed, is_tracing, no_value, trace_of, traced_placeholder
from weft.inspection.explanation import Explanation, explain
from weft.runtime.devices import saved_stream, set_current_stream
from weft.runtime.engine import Engine
from weft.runtime.precision import get_matmul_precision
from weft.transforms.aliases import Apart
from weft.transforms.calls import CallArguments
from weft.transforms.containers import StateUpdate, repeats
from weft.transforms.postponing import is_postponed, note_postponed
from weft.transforms.replay import RecordedGraph

TRACE_LIMIT = 64
"""The most traces that are cached for a function, and the most prepared layouts of arguments for a trace."""


def _captures_traced(nodes: Sequence[Node]) -> bool:
    """Whether some of these arrays from outside the function are traced. Raises if one belongs to a trace that has
    ended."""
    found = False
    for node in nodes:
        trace = trace_of(node)
        if trace is not None and not trace.active:
            raise no_value(node, trace, "use")
        found = found or trace is not None
    return found


_FIXED_SHAPE = (
    "What the function reads of a shape (x.shape) stays open in arithmetic, as a number among arrays and in an index. "
    "What it decides by that, or passes on as another argument, as for reshape, is fixed by the first call. Use "
    "flatten, unflatten, -1 or an axis argument instead, or compile without shapeless=True."
)


class Traced:
    """The graph of one trace, and what has been prepared to run it."""

    made_for: CallArguments
    used: int
    """The number of the latest call that used this trace."""
    captures: bool
    """Whether the function uses arrays from outside. While a transformation is tracing, these may be traced, so then
    each call makes a new trace, which is not cached."""

    def __init__(
        self,
        name: str,
        start: int,
        placeholders: list[Placeholder],
        results: list[Any],
        result_nodes: list[Node],
        structure: tree.Structure,
        update: StateUpdate | None,
        decisions: Decisions | None,
        imported: bool = False,
        apart: Apart | None = None,
    ) -> None:
        self._name = name
        self._imported = imported
        self._decisions = decisions
        self._shapeless = decisions is not None
        self.precision = get_matmul_precision()
        self._placeholders = placeholders
        self._structure = structure
        same = repeats(results) or range(len(results))
        self._array_positions = [
            position for position, leaf in enumerate(results) if isinstance(leaf, Handle) and same[position] == position
        ]
        self._again = [(position, first) for position, first in enumerate(same) if first != position]
        self._leaves = [None if isinstance(leaf, Handle) else leaf for leaf in results]
        self._extents = [(position, leaf.symbolic) for position, leaf in enumerate(results) if isinstance(leaf, Extent)]
        self.count = len(self._array_positions)
        self.returns_an_array = structure.num_containers == 0 and len(self._array_positions) == 1
        self.update = update
        self._outputs = outputs = [*result_nodes, *([] if update is None else update.nodes)]
        self._recorded = RecordedGraph(placeholders, outputs, untrusted=imported)
        self._prepared: dict[Any, Runnable] = {}
        own = set(placeholders)
        captured = [node for node in self._recorded.outside if node not in own]
        read = reachable(self._recorded.others)
        self.captures = any(node.serial < start for node in read)
        self.apart = [] if apart is None else apart.arrays(read)
        """Arrays that may not be given to the function as well; see `Apart`."""
        is_own = self._shapeless or not self._recorded.is_open
        needs_history = is_followed(captured) or (self.captures and is_tracing())
        self.cacheable = not _captures_traced(captured) and not needs_history and is_own
        if self.cacheable:
            evaluate([node for node in captured if node.inputs])
        self._own_streams = self._recorded.has_streams

    def prepared(self, inputs: list[Node]) -> Runnable | None:
        """A prepared graph that computes the results for inputs of these shapes and strides; inputs without values are
        started. None if a transformation has to see the operations, or if the call waits (see `is_postponed`)."""
        if is_tracing() or not self.cacheable or is_followed(inputs):
            return None
        pending = [node for node in inputs if node.value is None]
        if pending and self.may_wait_for(pending):
            return None
        try:
            start(pending)
        except TraceError:
            if self._any_traced(inputs):  # checked only now: it takes a walk over all that the inputs depend on
                return None
            raise
        return self._prepared_for(inputs, caller_stream().engine)

    def call(self, inputs: list[Node]) -> list[Node]:
        """The nodes of the results for these inputs, followed by those of the update."""
        return self.run(inputs, self.prepared(inputs))

    def run(self, inputs: list[Node], prepared: Runnable | None) -> list[Node]:
        """As `call`, with the graph ``prepared`` for such inputs."""
        if prepared is None:
            nodes = self._replayed(inputs)
            if not is_tracing():
                note_postponed(nodes)
            return nodes
        return prepared.run([node.value for node in inputs], caller_stream())  # type: ignore[misc]  # they have values

    def results(self, nodes: Sequence[Node], entries: Sequence[Any] = (), inputs: Sequence[Node] = ()) -> Any:
        """The value that the function returns. ``nodes`` are those of the results, followed by those of the update.
        ``entries`` are the contents of the containers of outputs, ``inputs`` the nodes of the arguments, whose shapes
        may be results."""
        leaves = list(self._leaves)
        for position, node in zip(self._array_positions, nodes, strict=False):
            leaves[position] = wrap(node)
        for position, first in self._again:
            leaves[position] = leaves[first]
        for position, number in self.update.returned if entries and self.update else ():
            leaves[position] = entries[number]
        if self._extents:
            binding = self._recorded.binding(inputs)
            for position, symbolic in self._extents:
                leaves[position] = shown_extent(resolved(symbolic, binding))
        return self._structure.unflatten(leaves)

    @property
    def has_short_ways(self) -> bool:
        """Whether calls of arrays and constants can be repeated by a short way; see `repeat_of`."""
        return self.cacheable and not (self._extents or self.apart)

    def may_wait_for(self, pending: Sequence[Node]) -> bool:
        """Whether a call waits if these arguments have no values. A call that updates containers never waits."""
        return self.update is None and is_postponed(pending)

    def _any_traced(self, inputs: Sequence[Node]) -> bool:
        return any(node.value is None and traced_placeholder(node) is not None for node in inputs)

    def _replayed(self, inputs: Sequence[Node]) -> list[Node]:
        return self._reshaped(inputs) if self._shapeless else self._recorded.replay(inputs)

    def _reshaped(self, inputs: Sequence[Node]) -> list[Node]:
        """The outputs for inputs of other shapes."""
        binding = self._recorded.binding(inputs)
        try:
            if self._decisions is not None:
                self._decisions.check(binding)
            return self._recorded.reshaped(inputs, binding)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            traced, called = [", ".join([str(node.shape) for node in nodes]) for nodes in (self._placeholders, inputs)]
            transformation = "import_function" if self._imported else "compile"
            raise ValueError(
                f"[{transformation}] {self._name} was traced with shapes {traced} and shapeless=True, and something in "
                f"it does not fit {called}: {error}\n{_FIXED_SHAPE}"
            ) from error

    def _prepared_for(self, inputs: list[Node], engine: Engine) -> Runnable:
        key = (engine, *_layouts(inputs))
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= TRACE_LIMIT:
                oldest, *_ = self._prepared
                self._prepared.pop(oldest, None)
            prepared = self._prepared[key] = self._prepare(inputs, engine)
        return prepared

    def _prepare(self, inputs: Sequence[Node], engine: Engine) -> Runnable:
        placeholders, outputs = self._graph(inputs)
        prepare = PreparedSegments if self._own_streams else Prepared
        return prepare(placeholders, outputs, [node.value.strides for node in inputs], engine)  # type: ignore[union-attr]

    def _graph(self, inputs: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        """The graph for inputs of these shapes, from placeholders to outputs."""
        if not self._shapeless:
            return self._placeholders, self._outputs
        placeholders = [Placeholder(None, values_of(node.shape), node.dtype) for node in inputs]
        stream = saved_stream()
        set_current_stream(None)  # the nodes get no stream, so that calls on any stream can use this graph
        try:
            return placeholders, self._reshaped(placeholders)
        finally:
            set_current_stream(stream)

    def explain(self, call: str, names: Sequence[str], inputs: list[Node], state: int) -> Explanation:
        """What a call with arrays of these nodes runs. ``call`` describes the arguments, ``names`` are the names of the
        arrays. The last ``state`` arrays may be replaced in their own memory."""
        evaluate(inputs)
        placeholders, outputs = self._graph(inputs)
        first = len(inputs) - state
        replaced = [placeholders[first + number] for number in self.update.replaced] if state and self.update else []
        return explain(f"{self._name}({call})", names, placeholders, inputs, outputs, replaced)


def _layouts(inputs: Sequence[Node]) -> tuple[Any, ...]:
    return tuple([(node.shape, node.value.strides) for node in inputs])  # type: ignore[union-attr]  # evaluated
