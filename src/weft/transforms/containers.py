"""Containers of arrays that a compiled function reads and updates: ``inputs=state``, ``outputs=state``."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain, starmap
from typing import Any, NamedTuple

from weft import tree
from weft.graph.node import Handle, Node, point, wrap
from weft.graph.shown import Extent
from weft.graph.tracing import note_assignment
from weft.runtime.atomic import Action, completed, consume, do_all, done_at_end
from weft.transforms.constants import attribute_key, object_keys


def restored(*states: Any) -> AbstractContextManager[None]:
    """Whatever the block does to the containers in ``states`` is undone at its end."""
    undoing: list[Action] = []
    for container in tree.mutable_containers(list(states)):
        if isinstance(container, dict):
            undoing += [(dict.clear, container), (dict.update, container, dict(container))]
        else:
            undoing.append((operator.setitem, container, slice(None), list(container)))
    return done_at_end(undoing)


def fixed_arrays(state: Any) -> list[Handle]:
    """The arrays of ``state`` that are in no list or dict, so that no others can be put in their positions."""
    leaves, _ = tree.flatten(state, lambda item: isinstance(item, (dict, list)))
    return [leaf for leaf in leaves if isinstance(leaf, Handle)]


def fill(state: Any, leaves: Sequence[Any]) -> None:
    """Put leaves into the containers of ``state``. Those of `fixed_arrays` are there already."""
    tree.flatten(state)[1].unflatten_into(state, leaves)


def distinct(leaves: Iterable[Any]) -> list[Handle]:
    """The arrays among leaves, each once."""
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Handle)}.values())


def repeats(leaves: Sequence[Any]) -> tuple[int, ...] | None:
    """For each leaf at which position the same array comes first; None if none comes twice."""
    arrays = [id(leaf) for leaf in leaves if isinstance(leaf, Handle)]
    if len(set(arrays)) == len(arrays):
        return None
    first: dict[int, int] = {}
    return tuple(
        [
            first.setdefault(id(leaf), number) if isinstance(leaf, Handle) else number
            for number, leaf in enumerate(leaves)
        ]
    )


class Moment(NamedTuple):
    """What the containers hold when a compiled function is called."""

    inputs: list[Any]
    outputs: list[Any]
    is_shared: bool
    """Whether an argument is, or contains, one of the containers."""
    key: tuple[Any, ...]
    """What another trace depends on, besides the inputs."""

    def has_function(self, value: Any) -> bool:
        """Whether a value is a function that the state holds, as a module that was given one for a layer does. Like an
        attribute of a module it is what it was as long as it is the same object."""
        return callable(value) and any(value is leaf for leaf in self.inputs)

    @property
    def replaceable(self) -> int:
        """How many arrays a call may replace in their own memory: all of the state, or none."""
        if self.is_shared or self.outputs is not self.inputs:
            return 0
        return len(self.inputs) if all(isinstance(leaf, Handle) for leaf in self.inputs) else 0


class State:
    """The containers that a compiled function reads (``inputs``) and changes (``outputs``); None if it has none."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        self.inputs, self.outputs = inputs, outputs

    def now(self, arguments: Any, structure: tree.Structure) -> Moment:
        """The state as a call finds it that has these arguments."""
        inputs: list[Any] = []
        outputs: list[Any] = []
        key: list[Any] = []
        if self.inputs is not None:
            objects: list[Any] = []
            inputs, inner = tree.flatten(self.inputs, objects=objects)
            key.append(inner)
            if objects:
                key.append(object_keys(objects))
        if self.outputs is self.inputs:
            outputs = inputs
        elif self.outputs is not None:
            outputs, inner = tree.flatten(self.outputs)
            key.append(inner)
            key.append(tuple([None if isinstance(leaf, Handle) else attribute_key(leaf) for leaf in outputs]))
        shared = self._shared(arguments) if structure.num_containers > 1 else None
        key.append(shared)
        return Moment(inputs, outputs, shared is not None, tuple(key))

    def _shared(self, arguments: Any) -> tuple[int | None, ...] | None:
        """For each container in the arguments its position in the state; None if no container is in both."""
        own = tree.mutable_containers([self.inputs, self.outputs])
        positions = {id(container): position for position, container in enumerate(own)}
        found = tuple([positions.get(id(container)) for container in tree.mutable_containers(arguments)])
        return None if found.count(None) == len(found) else found


Change = tuple[int | None, int | None, Any]
"""What becomes of an entry: which one it was before, which node it gets, or a constant."""


class ContainerWriter:
    """Makes the changes of an update, each of which changes the entry in its own place."""

    def __init__(self, slots: Sequence[tuple[int, Any]], changes: Sequence[Change]) -> None:
        """``slots`` are the entries: each the number of a container, and an index or a key there."""
        self._replaced = [number for number, (origin, _, _) in enumerate(changes) if origin is None]
        replaced = [(slots[number], changes[number]) for number in self._replaced]
        self._containers = [container for (container, _), _ in replaced]
        self._keys = [key for (_, key), _ in replaced]
        self._values = [(position, constant) for _, (_, position, constant) in replaced]
        self._assigned = [
            (number, position)
            for number, (origin, position, _) in enumerate(changes)
            if origin is not None and position is not None
        ]

    def __call__(self, containers: Sequence[Any], current: Sequence[Any], nodes: Sequence[Node]) -> list[Any]:
        """Make all changes to the entries of ``containers``, which are ``current``, or none, with other values for the
        nodes.

        Returns the new entries.
        """
        changed = [containers[number] for number in self._containers]
        values = [constant if position is None else wrap(nodes[position]) for position, constant in self._values]
        assigned = [(current[number], nodes[position]) for number, position in self._assigned]
        # A container may have a way of its own to assign, written in Python.
        completed(self._write, changed, values, assigned)
        return values

    def replaced_by_nodes(self) -> list[tuple[int, int]]:
        """The entries that get new arrays, and of which nodes; none if there are other changes, too."""
        found = [
            (entry, node) for entry, (node, _) in zip(self._replaced, self._values, strict=True) if node is not None
        ]
        return [] if self._assigned or len(found) < len(self._values) else found

    def after(self, before: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        """What the entries are afterwards."""
        after = list(before)
        for number, value in zip(self._replaced, new, strict=True):
            after[number] = value
        return after

    def _write(self, containers: Sequence[Any], values: Sequence[Any], assigned: Sequence[tuple[Any, Node]]) -> None:
        consume(chain(map(operator.setitem, containers, self._keys, values), starmap(point, assigned)))


class StateUpdate:
    """What a traced call does to the containers of outputs.

    Their leaves ``before`` and ``after`` are compared: an entry that the function left alone stays whatever it is, one
    that it assigned to in place stays the same handle, all others are new. ``nodes`` are those that a call computes.
    """

    def __init__(self, outputs: Any) -> None:
        self._before, self._structure_before = tree.flatten(outputs)
        self._nodes_before = [leaf.node if isinstance(leaf, Handle) else None for leaf in self._before]
        self.nodes: list[Node] = []
        self.replaced: frozenset[int] = frozenset()
        """The entries whose arrays are not there any more afterwards."""
        self.in_place: Sequence[Change] | None = None
        """The changes, if each only changes the entry in its own place."""
        self.returned: Sequence[tuple[int, int]] = ()
        """Results that are arrays in the containers, and the numbers of these."""
        self._changes: list[Change] = []

    def finish(self, outputs: Any, results: Sequence[Any]) -> None:
        """Note what has become of the containers, and which of the function's results are arrays in them."""
        positions: dict[int, int] = {}
        for position, leaf in enumerate(self._before):
            positions.setdefault(id(leaf), position)
        after, self._structure = tree.flatten(outputs)
        numbers: dict[int, int] = {}
        for leaf in after:
            origin = positions.get(id(leaf))
            node = leaf.node if isinstance(leaf, Handle) else None
            if node is None or (origin is not None and node is self._nodes_before[origin]):
                constant = int(leaf) if isinstance(leaf, Extent) else leaf
                self._changes.append((origin, None, None if origin is not None else constant))
            else:
                number = numbers.setdefault(id(leaf), len(self.nodes))
                self._changes.append((origin, number, None))
                if number == len(self.nodes):
                    self.nodes.append(node)
        entries = {id(leaf): number for number, leaf in enumerate(after) if isinstance(leaf, Handle)}
        self.returned = [(number, entries[id(leaf)]) for number, leaf in enumerate(results) if id(leaf) in entries]
        own = all(origin in (None, position) for position, (origin, _, _) in enumerate(self._changes))
        if own and self._structure == self._structure_before and repeats(after) is None:
            self.in_place = self._changes
        remaining = {origin for origin, position, _ in self._changes if position is None}
        self.replaced = frozenset(positions.values()) - remaining
        del self._before, self._nodes_before

    def apply(self, outputs: Any, current: Sequence[Any], nodes: Sequence[Node]) -> list[Any]:
        """Do the same to the containers, which hold ``current``, with other values for the nodes; what they hold
        then."""
        before = [leaf.node for leaf in current if isinstance(leaf, Handle)]  # what ends there would run Python code
        leaves = []
        actions: list[Action] = []
        arrays = [wrap(node) for node in nodes]
        for origin, position, constant in self._changes:
            if origin is None:
                leaves.append(constant if position is None else arrays[position])
                continue
            leaf = current[origin]
            if position is not None:
                note_assignment(leaf)
                actions.append((point, leaf, nodes[position]))
            leaves.append(leaf)
        for container, content in self._structure.contents_into(outputs, leaves)[1]:
            actions += tree.refilling(container, content)
        do_all(actions)
        del before
        return leaves
