"""Evaluation of graphs that were evaluated before on other values, without a `Program`.

Code that runs again evaluates the same operations each time. The walk of this module finds their plan in less time than
a program takes: it merges no equal operations and puts nothing in order, so several graphs that it tells apart may have
one plan. How such a plan numbers the inputs of a graph is found once, when a program was made for it, and remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from weft.compiler.bounded import BoundedCache
from weft.compiler.planning.plan import Plan
from weft.compiler.program import Program
from weft.dtypes import Dtype
from weft.graph import tracing
from weft.graph.node import Node
from weft.primitives.base import Primitive
from weft.runtime.atomic import refuse_reentry, sections
from weft.runtime.devices import Stream
from weft.runtime.engine import Engine
from weft.runtime.holders import COUNT_IF_ONCE, numbers_held
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import View

from .single import Shown, publish_all, shown_by
from .submission import Donations, Inputs, Submission

Item = TypeVar("Item")

MOST_OPERATIONS = 1 << 14
"""Larger graphs are hardly made again, and their keys take memory."""
MOST_PLANS = 4096
MOST_ENTRIES = 1 << 18
"""The most operations of all graphs with known plans. A key takes some 100 bytes for each."""

_LARGEST_PART = 1 << 18
"""Parts of values with more elements are never read as values: computing takes longer than planning, and a plan of the
parts knows which of them overlap."""

_COUNT = COUNT_IF_ONCE + 1
"""The known references to a node that is used once: it is also in the ``numbers`` of a reading."""

_readable: set[Primitive] = set()
"""Primitives that `_is_readable` is true of."""


class GraphReading(Submission):
    """What is read of nodes without values, and of all that they depend on.

    ``structure`` is everything that a plan depends on but its engine and what is held. ``operations`` are the nodes
    without values, first those that were asked for. ``numbers`` has the number of each operation, and that of each
    input, inverted; ``numbers_of_constants`` that of each constant, by bits and dtype. ``again`` has the number of an
    operation or input for each use of it after the first one; the operations that were asked for are there from their
    first use on. ``shown`` are inputs that are parts of values (``x[i]``), if these are read as values: then the
    structure does not say where they begin, nor which of them begin at the same element.
    """

    __slots__ = ("_order", "again", "numbers", "numbers_of_constants", "operations", "shown", "structure")

    def __init__(self, operations: list[Node]) -> None:
        """``operations`` are those that were asked for; the others are added to the list."""
        self.operations = operations
        self.numbers = {node: number for number, node in enumerate(operations)}
        self.numbers_of_constants: dict[tuple[int, Dtype], int] = {}
        self.views: list[View] = []
        self.constants: list[int] = []
        self.again: list[int] = []
        self.shown: list[tuple[Node, View, Node]] = []

    def walk(self, shows: bool) -> bool:
        """Read what the operations depend on, with parts of values as values if ``shows`` is true. Returns whether a
        reading has all of it."""
        operations, numbers, views, again = self.operations, self.numbers, self.views, self.again
        constants, numbers_of_constants = self.constants, self.numbers_of_constants
        structure: list[Any] = []
        stream = operations[0].stream
        for node in operations:  # the list grows meanwhile
            primitive = node.primitive
            if node.stream is not stream or (primitive not in _readable and not _is_readable(primitive)):
                return False
            structure += (primitive, node.params, node.shape, node.dtype)
            for source in node.inputs:
                if source in numbers:
                    number = numbers[source]
                    again.append(number)
                    structure.append(number)
                    continue
                view, primitive = source.value, source.primitive
                if shows and view is None and primitive is not None and primitive.is_view:
                    view = self._part(source)
                if view is not None:
                    numbers[source] = ~len(views)
                    views.append(view)
                    structure += (source.shape, source.dtype, view.strides)
                elif primitive is not None and primitive.is_constant:
                    if type(source.params[0]) is not int:
                        return False
                    structure += (source.dtype, _number_of_constant(source, constants, numbers_of_constants))
                else:
                    number = numbers[source] = len(operations)
                    if number >= MOST_OPERATIONS:
                        return False
                    structure.append(number)
                    operations.append(source)
        self.structure = tuple(structure)
        return True

    def _part(self, node: Node) -> View | None:
        """The view of a part of a value; None if a node is something else."""
        owner = node.inputs[0]
        while owner.value is None:
            primitive = owner.primitive
            if primitive is None or not primitive.is_view:
                return None
            owner = owner.inputs[0]
        size = node.size
        if size > _LARGEST_PART or size >= owner.size or (tracing.open_traces and tracing.is_tracing()):
            return None
        found: list[tuple[Node, View, Node]] = []
        view = shown_by(node, found)
        self.shown += found
        return view

    def held_after(self, asked: int) -> list[int]:
        """The numbers of operations with inputs that are held, after those that were ``asked`` for."""
        operations = self.operations
        counts = [_COUNT] * len(operations)
        for number in self.again:
            if number >= 0:
                counts[number] += 1
        found = numbers_held(operations, counts, asked)
        return [number for number in found if operations[number].inputs] if found else []

    def number_as(self, numbering: Numbering) -> None:
        """Bring what a plan is run on into the order in which it is numbered there."""
        inputs, constants, outputs = numbering
        self._order = inputs
        if inputs is not None:
            self.views = _chosen(self.views, inputs)
        if constants is not None:
            self.constants = _chosen(self.constants, constants)
        self.nodes = self.operations[:1] if outputs is None else _chosen(self.operations, outputs)

    def release(self) -> None:
        super().release()
        if self.shown:
            publish_all(self.shown)

    def ended(self, donations: Donations) -> list[int]:
        nodes = [node for node, number in self.numbers.items() if number < 0]
        known = [2] * len(nodes)  # one use, and nodes are also in `numbers`
        for number in self.again:
            if number < 0:
                known[~number] += 1
        if self._order is not None:
            nodes, known = _chosen(nodes, self._order), _chosen(known, self._order)
        return Inputs(nodes, self.views, known).ended(donations)


Held = tuple[int, ...]
"""How many nodes were asked for, and the numbers of other operations that have inputs and are held, so that they get
values too."""


def reading_of_graph(asked: Sequence[Node], shows: bool) -> tuple[Held, GraphReading] | None:
    """What is held of different nodes without values, and their reading. None if a `Program` has to read them: if the
    graph is large, or has operations of several results, or on several streams.

    The caller holds the lock of sections.
    """
    graph = GraphReading([*asked])
    return ((len(asked), *graph.held_after(len(asked))), graph) if graph.walk(shows) else None


def graph_with(asked: Sequence[Node], key: Key) -> GraphReading | None:
    """The reading of different nodes without values; None if it has changed since `evaluate_known` returned ``key``,
    because another thread evaluated some of it or let it go. The caller holds the lock of sections."""
    *_, structure, shows = key
    found = reading_of_graph(asked, shows)
    return found[1] if found is not None and found[1].structure == structure else None


def shown_in(asked: Sequence[Node], key: Key) -> Shown:
    """The inputs that are parts of values. Nothing else of a reading is returned: it refers to nodes, which would seem
    to be held. The caller holds the lock of sections."""
    graph = graph_with(asked, key)
    return () if graph is None else graph.shown


def _number_of_constant(node: Node, constants: list[int], numbers: dict[tuple[int, Dtype], int]) -> int:
    """The number of a constant among all, to which it is added unless there is an equal one."""
    (bits,) = node.params
    number = numbers.setdefault((bits, node.dtype), len(constants))
    if number == len(constants):
        constants.append(bits)
    return number


def _is_readable(primitive: Primitive | None) -> bool:
    """Whether nodes of a primitive are operations with one result, which do the same if their parameters are equal."""
    if primitive is None or not primitive.equal_is_same:
        return False
    if primitive.is_constant or primitive.several or primitive.is_result or primitive.is_transparent:
        return False
    _readable.add(primitive)
    return True


class Numbering(NamedTuple):
    """Which numbers the inputs, the constants and the outputs of a program have in a `GraphReading`. None for inputs or
    constants that have the same numbers in both, and if the only output is the first operation."""

    inputs: list[int] | None
    constants: list[int] | None
    outputs: list[int] | None


def numbering_of(graph: GraphReading, held: Held, program: Program, outputs: Sequence[Node]) -> Numbering | None:
    """How a program of the same nodes, of which ``outputs`` get values, numbers them. None if these are not what was
    ``held`` when the graph was read: what a cycle of references, or another thread, has let go since gets no value."""
    asked, *others = held
    numbers = [graph.numbers[node] for node in outputs]
    if sorted(numbers) != [*range(asked), *others]:
        return None
    constants = [0] * len(program.constants)
    for entry in program.entries:
        if entry[0] is not None and entry[0].is_constant:
            _, number, dtype = entry
            constants[number] = graph.numbers_of_constants[program.constants[number], dtype]
    inputs = [~graph.numbers[node] for node in program.inputs]
    return Numbering(_unless_same(inputs), _unless_same(constants), None if numbers == [0] else numbers)


def _unless_same(numbers: list[int]) -> list[int] | None:
    return None if numbers == [*range(len(numbers))] else numbers


def _chosen(items: list[Item], numbers: list[int]) -> list[Item]:
    return [items[number] for number in numbers]


_known: BoundedCache[tuple[Plan, Numbering]] = BoundedCache(MOST_PLANS, MOST_ENTRIES)
_lock = fork_safe_lock()

_MOST_FORMS = 4096
_forms: set[int] = set()
"""Hashes of graphs with parts of values, whichever parts these are."""
_with_chosen_parts: set[tuple[Any, ...]] = set()
"""The results of graphs that came with other parts of values each time: how many were asked for, and the primitive and
the shape of the first one."""

Key = tuple[Engine, Any, Held, tuple[Any, ...], bool]
"""The engine and the key of its target, what is held, the structure, and whether it is one for any parts of values."""


def learn(key: Key, plan: Plan, numbering: Numbering) -> None:
    """Remember the plan of a graph under the key that `evaluate_known` returned."""
    refuse_reentry(_lock)
    with _lock:
        _known.add(key, (plan, numbering), len(plan.entries))


def forget() -> None:
    """Forget which plans are known."""
    with _lock:
        _known.clear()
    _forms.clear()
    _with_chosen_parts.clear()


def evaluate_known(asked: Sequence[Node], stream: Stream, at_once: int) -> Key | bool:
    """Give nodes their values if the plan of their graph is known; see `Submission.submit` for ``at_once``. Returns
    whether that was done, or a key if their plan is to be learnt."""
    engine = stream.engine
    shows = _result_of(asked) in _with_chosen_parts
    with sections:
        found = reading_of_graph(asked, shows)
    if found is None:
        return False
    held, graph = found
    key = engine, engine.target.key, held, graph.structure, shows
    known = _known.get(key)
    if known is None:
        return key
    plan, numbering = known
    graph.number_as(numbering)
    graph.submit(plan, stream, at_once)
    return True


def has_chosen_parts(asked: Sequence[Node]) -> bool:
    """Whether a graph that is not known differs from one that came before only in which parts of values it has. From
    then on `evaluate_known` reads such parts as values."""
    result = _result_of(asked)
    if result in _with_chosen_parts:
        return False
    with sections:
        found = reading_of_graph(asked, True)
    if found is None or not found[1].shown:
        return False
    if len(_forms) >= _MOST_FORMS:
        _forms.clear()
        _with_chosen_parts.clear()
    form = hash((found[0], found[1].structure))
    if form not in _forms:
        _forms.add(form)
        return False
    _with_chosen_parts.add(result)
    return True


def _result_of(asked: Sequence[Node]) -> tuple[Any, ...]:
    return len(asked), asked[0].primitive, asked[0].shape
