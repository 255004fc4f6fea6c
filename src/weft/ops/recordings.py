"""Recordings of the nodes that a function makes, from which the nodes for other inputs are made without it.

To record the nodes takes longer than to make them, and most functions are never called with like arguments again. So
`Recordings` says of a key only at its second time that a recording is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import weft.primitives as p
from weft.compiler.bounded import BoundedCache
from weft.dtypes import Dtype
from weft.graph.node import BareNode, Node, Shape, next_serial, serial_of, wrap
from weft.runtime.devices import Stream
from weft.runtime.locks import fork_safe_lock

Take = Callable[[Sequence[Node]], tuple[Node, ...]]
_Operation = tuple[p.Primitive, int, Take | None, tuple[Any, ...], Shape, Dtype]
"""Of a node to be made: the primitive; the position of its only input in a list of nodes, or what selects its inputs
from the list; parameters, shape and dtype."""


class Recording:
    """The operations from the inputs of a call to its results. ``several`` is the type of a list or tuple of results,
    and None for a single one.

    ``is_plain``: all operations are among those recorded, and no node has a mark of its own. ``uses_all``: no input is
    used by no operation, so that the function may have read its value as a number.
    """

    def __init__(self, inputs: Sequence[Node], results: Sequence[Node], several: type | None) -> None:
        made = between(inputs, results)
        used = set(results).union(*[node.inputs for node in made])
        self._numbers = [node for node in made if p.is_constant(node)]
        inner = [node for node in made if not p.is_constant(node)]
        self.uses_all = used.issuperset(inputs)
        self.is_plain = not any(node.primitive is None or node.primitive.is_unique for node in inner)
        positions = {node: position for position, node in enumerate([*inputs, *self._numbers, *inner])}
        self.operations = [_operation(node, [positions[source] for source in node.inputs]) for node in inner]
        self._results = [positions[result] for result in results]
        self._result = self._results[0] if several is None else 0
        self._several = several

    def replay(self, nodes: list[Node], stream: Stream | None, is_traced: bool) -> Any:
        """The results for other inputs, which are in ``nodes``, from new nodes on a stream, which are added to them.
        Numbers are the same nodes in each replay, but for traces, which distinguish nodes that are made while they run
        from earlier ones."""
        if self._numbers:
            nodes += map(_again, self._numbers) if is_traced else self._numbers
        for primitive, first, take, params, shape, dtype in self.operations:
            node = BareNode()  # what `new_node` does, inlined because a call takes as long
            node.primitive = primitive
            node.inputs = (nodes[first],) if take is None else take(nodes)
            node.params = params
            node.shape = shape
            node.dtype = dtype
            node.stream = stream
            node.serial = next_serial()
            node.value = None
            nodes.append(node)
        if self._several is None:
            return wrap(nodes[self._result])
        return self._several([wrap(nodes[position]) for position in self._results])


def _again(number: Node) -> Node:
    return Node(p.constant, (), number.params, (), number.dtype, None)


def between(inputs: Sequence[Node], results: Sequence[Node]) -> list[Node]:
    """The nodes from which results are computed, in the order of creation, without the inputs and what these come
    from."""
    seen, pending = set(inputs), list(results)
    found = []
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            found.append(node)
            pending += node.inputs
    return sorted(found, key=serial_of)


def _operation(node: Node, positions: Sequence[int]) -> _Operation:
    first = positions[0] if positions else 0
    take = None if len(positions) == 1 else itemgetter(*positions) if positions else _nothing
    return node.primitive, first, take, node.params, node.shape, node.dtype


def _nothing(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return ()


class Kept(Protocol):
    """What `Recordings` keep."""

    @property
    def operations(self) -> Sequence[Any]: ...


Item = TypeVar("Item", bound=Kept)


class Recordings(Generic[Item]):
    """At most ``most`` recordings by their keys; the operations in them and the entries of their keys are at most
    ``heaviest`` together. The oldest are dropped. ``get`` is `dict.get`.

    Keys that were seen once, and those without a recording that can be replayed, are known by their hashes. Two keys of
    one hash do no harm: one is recorded a time earlier, or never.
    """

    def __init__(self, most: int, heaviest: int) -> None:
        self._recorded: BoundedCache[Item] = BoundedCache(most, heaviest)
        self._most = most
        self._seen: set[int] = set()
        self._never: set[int] = set()
        self._lock = fork_safe_lock()
        self.get = self._recorded.get

    def note(self, key: tuple[Any, ...], record: Callable[[], Item | None]) -> None:
        """Note that something with this key was made. What ``record`` returns is kept, if it was made before and that
        is not known to be None."""
        number = hash(key)
        if number not in self._seen:
            self._note_hash(self._seen, number)
        elif number not in self._never:
            item = record()
            if item is None:
                self._note_hash(self._never, number)
                return
            with self._lock:
                self._recorded.add(key, item, len(item.operations) + len(key))

    def _note_hash(self, numbers: set[int], number: int) -> None:
        """Add to hashes. If there are many, all are forgotten."""
        if len(numbers) >= self._most:
            numbers.clear()
        numbers.add(number)

    def clear(self) -> None:
        """Forget all recordings."""
        with self._lock:
            self._recorded.clear()

    def __len__(self) -> int:
        return len(self._recorded)


def check_same(inputs: Sequence[Node], replayed: Sequence[Node], made: Sequence[Node]) -> None:
    """Raise unless nodes are computed from the inputs by the same operations, with the same numbers."""
    pairs, seen = list(zip(replayed, made, strict=True)), set(inputs)
    while pairs:
        one, other = pairs.pop()
        if one is other or one in seen:
            continue
        seen.add(one)
        described = [(node.primitive, node.params, node.shape, node.dtype, len(node.inputs)) for node in (one, other)]
        if described[0] != described[1] or other in inputs:
            raise AssertionError(f"{one} was replayed, where {other} is what the function makes")
        pairs += zip(one.inputs, other.inputs, strict=True)
