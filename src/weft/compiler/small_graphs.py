"""The key of a small graph whose operations are all plain, found without a `Program`.

Code that runs again, step by step, evaluates the same few operations on other values. The walk of this module finds
the plan of the time before in a third of the time that a program takes. It merges no equal operations and keeps no
order, so several keys may lead to one plan; what they have to do with its inputs is found once, by `Known`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from weft.compiler.plan import Plan
from weft.compiler.program import Program
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import Primitive
from weft.runtime.holders import COUNT_IF_ONCE, numbers_held
from weft.runtime.memory import View

MOST_OPERATIONS = 128
"""In graphs with more operations a program takes less time than everything else."""

_readable: dict[Primitive, bool] = {}


class SmallGraph(NamedTuple):
    """What is read of nodes without values, and of all that they depend on.

    ``key`` is everything that a plan depends on but its engine. ``operations`` are the nodes without values, first
    those that were asked for; ``inputs`` those with values, which are the ``views``; ``counts`` how many references to
    each input are known, as in `numbers_held`; ``constants`` the bits of numbers.

    ``numbers`` has the number of each operation, and that of each input, inverted; ``numbers_of_constants`` that of
    each constant, by bits and dtype.
    """

    key: tuple[Any, ...]
    operations: list[Node]
    inputs: list[Node]
    views: list[View]
    counts: list[int]
    constants: list[int]
    numbers: dict[Node, int]
    numbers_of_constants: dict[tuple[int, Dtype], int]

    def ends_one(self, numbers: Iterable[int]) -> bool:
        """Whether nothing but the graph refers to one of these inputs."""
        inputs, counts = self.inputs, self.counts
        return any(not numbers_held([inputs[number]], [counts[number] + 1]) for number in numbers)


def graph_of(asked: Sequence[Node]) -> SmallGraph | None:
    """The graph of different nodes without values; None if a `Program` has to read it: if it is large, or has
    operations that are not plain, or streams that differ.

    The caller holds the lock of sections.
    """
    operations = [*asked]
    counts = [0] * len(operations)
    """The known references to each operation but those that were asked for."""
    read = _walk(operations, counts)
    if read is None:
        return None
    key, *rest = read
    held = numbers_held(operations, counts, len(asked))
    return SmallGraph((len(asked), *held, *key), operations, *rest)


_COUNT = COUNT_IF_ONCE + 1
"""The known references to a node that is used once: it is also in ``numbers``."""


def _walk(operations: list[Node], counts: list[int]) -> tuple[Any, ...] | None:
    """Append what the operations depend on, and the references to it. Returns the key and what follows ``operations``
    in a `SmallGraph`."""
    numbers = {node: number for number, node in enumerate(operations)}
    inputs: list[Node] = []
    views: list[View] = []
    input_counts: list[int] = []
    constants: list[int] = []
    numbers_of_constants: dict[tuple[int, Dtype], int] = {}
    key: list[Any] = []
    stream = operations[0].stream
    for node in operations:  # the list grows meanwhile
        primitive = node.primitive
        if primitive is None or node.stream is not stream or not (_readable.get(primitive) or _is_readable(primitive)):
            return None
        key += (primitive, node.params, node.shape, node.dtype)
        for source in node.inputs:
            number = numbers.get(source)
            if number is not None:
                if number < 0:
                    input_counts[~number] += 1
                else:
                    counts[number] += 1
                key.append(number)
                continue
            view = source.value
            if view is not None:
                numbers[source] = ~len(inputs)
                inputs.append(source)
                views.append(view)
                input_counts.append(_COUNT)
                key += (source.shape, source.dtype, view.strides)
            elif source.primitive is not None and source.primitive.is_constant:
                if type(source.params[0]) is not int:
                    return None
                key += (source.dtype, _number_of_constant(source, constants, numbers_of_constants))
            else:
                number = numbers[source] = len(operations)
                if number == MOST_OPERATIONS:
                    return None
                key.append(number)
                operations.append(source)
                counts.append(_COUNT)
    return key, inputs, views, input_counts, constants, numbers, numbers_of_constants


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
    """Which of a graph's numbers the inputs, the constants and the outputs of a program have."""

    inputs: list[int]
    constants: list[int]
    outputs: list[int]


def numbering_of(graph: SmallGraph, program: Program, outputs: Sequence[Node]) -> Numbering:
    """How a program of the same nodes, of which ``outputs`` get values, numbers them."""
    constants = [0] * len(program.constants)
    for entry in program.entries:
        if entry[0] is not None and entry[0].is_constant:
            _, number, dtype = entry
            constants[number] = graph.numbers_of_constants[program.constants[number], dtype]
    inputs = [~graph.numbers[node] for node in program.inputs]
    return Numbering(inputs, constants, [graph.numbers[node] for node in outputs])


class KnownPlan(NamedTuple):
    """A plan that was made for a program, and how this numbers the nodes of a `SmallGraph`."""

    plan: Plan
    numbering: Numbering
