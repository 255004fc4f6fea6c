"""Evaluation of graphs that were evaluated before on other values, without a `Program`.

Code that runs again evaluates the same operations each time. The walk of this module finds their plan in less time than
a program takes: it merges no equal operations and puts nothing in order, so several graphs that it tells apart may have
one plan. How such a plan numbers the inputs of a graph is found once, when a program was made for it, and remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from weft.compiler.bounded import BoundedCache
from weft.compiler.plan import Plan
from weft.compiler.program import Program
from weft.compiler.run import Run, give_values, run_for_one, run_now
from weft.dtypes import Dtype
from weft.graph import tracing
from weft.graph.node import Node, give_value
from weft.primitives.base import Primitive
from weft.runtime.atomic import consume, refuse_reentry, sections
from weft.runtime.devices import LONG_WORK, Stream
from weft.runtime.engine import Engine
from weft.runtime.holders import COUNT_IF_ONCE, numbers_held, only_known
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import View
from weft.runtime.streams import is_idle

Item = TypeVar("Item")

MOST_OPERATIONS = 4096
"""Larger graphs are hardly made again, and their keys take memory."""
MOST_PLANS = 4096
MOST_ENTRIES = 1 << 18
"""The most operations of all graphs with known plans. A key takes some 100 bytes for each."""

_COUNT = COUNT_IF_ONCE + 1
"""The known references to a node that is used once: it is also in the ``numbers`` of a reading."""
_TO_MEMORY = (2, 1)
"""References to the value of an input, by its node and in the ``views`` of a reading; to its buffer, by the value."""

_readable: dict[Primitive, bool] = {}
"""What `_is_readable` said of primitives."""


class GraphReading(NamedTuple):
    """What is read of nodes without values, and of all that they depend on.

    ``structure`` is everything that a plan depends on but its engine and what is held. ``operations`` are the nodes
    without values, first those that were asked for; ``views`` the values of inputs; ``constants`` the bits of numbers.

    ``numbers`` has the number of each operation, and that of each input, inverted; ``numbers_of_constants`` that of
    each constant, by bits and dtype.
    """

    structure: tuple[Any, ...]
    operations: list[Node]
    views: list[View]
    constants: list[int]
    numbers: dict[Node, int]
    numbers_of_constants: dict[tuple[int, Dtype], int]

    def ended(self, plan: Plan, order: Sequence[int] | None) -> list[int]:
        """Those inputs of a plan whose memory its outputs may take: only the graph refers to them, and nothing else to
        their memory. ``order`` is that of `Numbering`. The caller holds the lock of sections."""
        if tracing.followed or tracing.is_tracing():
            return []
        inputs = [node for node, number in self.numbers.items() if number < 0]
        # The structure has the inverted number of an input at each use but the first.
        again = Counter([entry for entry in self.structure if type(entry) is int and entry < 0])
        found = []
        for position, _ in plan.donations:
            number = position if order is None else order[position]
            count = _COUNT + again[~number] + 1  # `inputs` is one reference more
            if not numbers_held([inputs[number]], [count]) and only_known(
                [self.views[number], self.views[number].buffer], _TO_MEMORY
            ):
                found.append(position)
        return found


Held = tuple[int, ...]
"""How many nodes were asked for, and the numbers of other operations that have inputs and are held, so that they get
values too."""


def reading_of_graph(asked: Sequence[Node]) -> tuple[Held, GraphReading] | None:
    """What is held of different nodes without values, and their reading. None if a `Program` has to read them: if the
    graph is large, or has operations of several results, or on several streams.

    The caller holds the lock of sections.
    """
    operations = [*asked]
    counts = [0] * len(operations)
    """The known references to each operation but those that were asked for."""
    reading = _walk(operations, counts)
    if reading is None:
        return None
    held = [number for number in numbers_held(operations, counts, len(asked)) if operations[number].inputs]
    return (len(asked), *held), reading


def _walk(operations: list[Node], counts: list[int]) -> GraphReading | None:
    """Append what the operations depend on, and the known references to it."""
    numbers = dict(zip(operations, range(len(operations)), strict=True))
    views: list[View] = []
    constants: list[int] = []
    numbers_of_constants: dict[tuple[int, Dtype], int] = {}
    structure: list[Any] = []
    stream = operations[0].stream
    for node in operations:  # the list grows meanwhile
        primitive = node.primitive
        if primitive is None or node.stream is not stream or not (_readable.get(primitive) or _is_readable(primitive)):
            return None
        structure += (primitive, node.params, node.shape, node.dtype)
        for source in node.inputs:
            number = numbers.get(source)
            if number is not None:
                if number >= 0:
                    counts[number] += 1
                structure.append(number)
                continue
            view = source.value
            if view is not None:
                numbers[source] = ~len(views)
                views.append(view)
                structure += (source.shape, source.dtype, view.strides)
            elif source.primitive is not None and source.primitive.is_constant:
                if type(source.params[0]) is not int:
                    return None
                structure += (source.dtype, _number_of_constant(source, constants, numbers_of_constants))
            else:
                number = numbers[source] = len(operations)
                if number >= MOST_OPERATIONS:
                    return None
                structure.append(number)
                operations.append(source)
                counts.append(_COUNT)
    return GraphReading(tuple(structure), operations, views, constants, numbers, numbers_of_constants)


def _number_of_constant(node: Node, constants: list[int], numbers: dict[tuple[int, Dtype], int]) -> int:
    """The number of a constant among all, to which it is added unless there is an equal one."""
    (bits,) = node.params
    number = numbers.setdefault((bits, node.dtype), len(constants))
    if number == len(constants):
        constants.append(bits)
    return number


def _is_readable(primitive: Primitive) -> bool:
    """Whether nodes of a primitive are operations with one result, which do the same if their parameters are equal."""
    other = primitive.is_constant or primitive.several or primitive.is_result or primitive.is_transparent
    found = primitive.equal_is_same and not other
    _readable[primitive] = found
    return found


class Numbering(NamedTuple):
    """Which numbers the inputs, the constants and the outputs of a program have in a `GraphReading`. None for inputs or
    constants that have the same numbers in both."""

    inputs: list[int] | None
    constants: list[int] | None
    outputs: list[int]


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
    return Numbering(_unless_same(inputs), _unless_same(constants), numbers)


def _unless_same(numbers: list[int]) -> list[int] | None:
    return None if numbers == [*range(len(numbers))] else numbers


def _chosen(items: list[Item], numbers: list[int] | None) -> list[Item]:
    return items if numbers is None else [items[number] for number in numbers]


_known: BoundedCache[tuple[Plan, Numbering]] = BoundedCache(MOST_PLANS, MOST_ENTRIES)
_lock = fork_safe_lock()

Key = tuple[Engine, Any, Held, tuple[Any, ...]]
"""The engine and the key of its target, what is held, the structure."""


def learn(key: Key, plan: Plan, numbering: Numbering) -> None:
    """Remember the plan of a graph under the key that `evaluate_known` returned."""
    refuse_reentry(_lock)
    with _lock:
        _known.add(key, (plan, numbering), len(plan.entries))


def forget() -> None:
    """Forget which plans are known."""
    with _lock:
        _known.clear()


def evaluate_known(asked: Sequence[Node], stream: Stream) -> Key | bool:
    """Give nodes their values if the plan of their graph is known. Returns whether that was done, or a key if their
    plan is to be learnt."""
    engine = stream.engine
    with sections:
        found = reading_of_graph(asked)
    if found is None:
        return False
    held, graph = found
    key = engine, engine.target.key, held, graph.structure
    known = _known.get(key)
    if known is None:
        return key
    plan, numbering = known
    if plan.work >= LONG_WORK or not is_idle(stream):
        return False
    if not plan.donates or not _run_donating(graph, plan, numbering, stream):
        _run(graph, plan, numbering, stream)
    return True


def _run(graph: GraphReading, plan: Plan, numbering: Numbering, stream: Stream) -> None:
    views = _chosen(graph.views, numbering.inputs)
    table = plan.table_for(_chosen(graph.constants, numbering.constants))
    if plan.sole is None:
        found = run_now(plan, table, views, stream)
        assert found is not None
    else:
        found = [run_for_one(plan, table, views, stream)]
    plan.spare_tables.append(table)
    nodes = _chosen(graph.operations, numbering.outputs)
    with sections:
        give_values(nodes, found)
        tracing.release(nodes)


def _run_donating(graph: GraphReading, plan: Plan, numbering: Numbering, stream: Stream) -> bool:
    """Run in the memory of inputs that end. Returns False if there are none.

    The nodes get values before these are computed: another thread that evaluates the same nodes must wait for this
    run, because it overwrites what they are made of.
    """
    nodes = _chosen(graph.operations, numbering.outputs)
    with sections:
        if any(node.value is not None for node in nodes):  # evaluated meanwhile, so its inputs have been released
            return False
        ended = graph.ended(plan, numbering.inputs)
        if not ended:
            return False
        views = _chosen(graph.views, numbering.inputs)
        run = Run(plan, views, _chosen(graph.constants, numbering.constants), ended, stream=stream)
        consume(map(give_value, nodes, run.promised()))  # without a gap: what they are made of is overwritten
        tracing.release(nodes)
    run.wait()
    return True
