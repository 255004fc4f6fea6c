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
from weft.runtime.filled import restoring
from weft.transforms.constants import attribute_key, object_keys


def restored(*states: Any) -> AbstractContextManager[None]:
    """A context manager that undoes, at its end, what the block does to the containers in ``states``."""
    return done_at_end(restoring(tree.mutable_containers(list(states))))


def fixed_arrays(state: Any) -> list[Handle]:
    """The arrays of ``state`` that are in no list or dict, so that they cannot be replaced where they are."""
    leaves, _ = tree.flatten(state, lambda item: isinstance(item, (dict, list)))
    return [leaf for leaf in leaves if isinstance(leaf, Handle)]


def fill(state: Any, leaves: Sequence[Any]) -> None:
    """Put leaves into the containers of ``state``. The `fixed_arrays` cannot be replaced and have to be the same."""
    tree.flatten(state)[1].unflatten_into(state, leaves)


def distinct(leaves: Iterable[Any]) -> list[Handle]:
    """The arrays among leaves, each once."""
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Handle)}.values())


def repeats(leaves: Sequence[Any]) -> tuple[int, ...] | None:
    """For each leaf, the position at which the same array occurs first; None if no array occurs twice."""
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
    """The content of the containers when a compiled function is called."""

    inputs: list[Any]
    outputs: list[Any]
    is_shared: bool
    """Whether an argument is one of the containers, or contains one."""
    key: tuple[Any, ...]
    """What decides, besides the inputs, whether a trace can be used."""

    def has_function(self, value: Any) -> bool:
        """Whether a value is a function that the state holds, such as one that a module was given for a layer. Like an
        attribute of a module it counts as unchanged as long as it is the same object."""
        return callable(value) and any(value is leaf for leaf in self.inputs)

    @property
    def replaceable(self) -> int:
        """How many arrays of the state a call may write over: all or none."""
        if self.is_shared or self.outputs is not self.inputs:
            return 0
        return len(self.inputs) if all(isinstance(leaf, Handle) for leaf in self.inputs) else 0


class State:
    """The containers that a compiled function reads (``inputs``) and changes (``outputs``). None: there are none."""

    def __init__(self, inputs: Any, outputs: Any) -> None:
        self.inputs, self.outputs = inputs, outputs

    def now(self, arguments: Any, structure: tree.Structure) -> Moment:
        """The content of the state at a call with these arguments."""
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
        """For each container in the arguments, its position in the state; None if no container is in both."""
        own = tree.mutable_containers([self.inputs, self.outputs])
        positions = {id(container): position for position, container in enumerate(own)}
        found = tuple([positions.get(id(container)) for container in tree.mutable_containers(arguments)])
        return None if found.count(None) == len(found) else found


EntryChange = tuple[int | None, int | None, Any]
"""What an entry becomes: the position of the former entry that it is, the position of the node that it gets, and the
constant that it becomes. Each may be None."""


class ContainerWriter:
    """Makes the changes of an update, if no entry moves: each change replaces an entry or assigns to its array."""

    def __init__(self, slots: Sequence[tuple[int, Any]], changes: Sequence[EntryChange]) -> None:
        """``slots`` are the entries: each is the number of a container, and an index or key in it."""
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
        """Make all changes to ``containers``, whose entries are ``current``, with these nodes.

        If an exception stops it in between, the changes are completed before it is raised. Returns the new entries.
        """
        changed = [containers[number] for number in self._containers]
        values = [constant if position is None else wrap(nodes[position]) for position, constant in self._values]
        assigned = [(current[number], nodes[position]) for number, position in self._assigned]
        # A container may define its own assignment in Python.
        completed(self._write, changed, values, assigned)
        return values

    def replaced_by_nodes(self) -> list[tuple[int, int]]:
        """The entries that get new arrays, each with the position of its node; empty if there are other changes as
        well."""
        found = [
            (entry, node) for entry, (node, _) in zip(self._replaced, self._values, strict=True) if node is not None
        ]
        return [] if self._assigned or len(found) < len(self._values) else found

    def after(self, before: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        """The entries after the changes."""
        after = list(before)
        for number, value in zip(self._replaced, new, strict=True):
            after[number] = value
        return after

    def _write(self, containers: Sequence[Any], values: Sequence[Any], assigned: Sequence[tuple[Any, Node]]) -> None:
        consume(chain(map(operator.setitem, containers, self._keys, values), starmap(point, assigned)))


class StateUpdate:
    """What a traced call does to the containers of outputs.

    The leaves before and after the call are compared. An entry that the function did not touch keeps whatever it holds.
    An entry that it assigned to in place keeps its handle. All other entries are new. ``nodes`` are those that a call
    computes.
    """

    def __init__(self, outputs: Any) -> None:
        self._before, self._structure_before = tree.flatten(outputs)
        self._nodes_before = [leaf.node if isinstance(leaf, Handle) else None for leaf in self._before]
        self.nodes: list[Node] = []
        self.replaced: frozenset[int] = frozenset()
        """The entries whose former values are gone after a call: they were replaced or assigned to in place."""
        self.in_place: Sequence[EntryChange] | None = None
        """The changes, if no entry moves."""
        self.returned: Sequence[tuple[int, int]] = ()
        """Pairs of a result and an entry that are the same array, by their positions."""
        self._changes: list[EntryChange] = []

    def finish(self, outputs: Any, results: Sequence[Any]) -> None:
        """Note how the containers have changed, and which of the function's results are arrays in them."""
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
        """Make the same changes to the containers, which hold ``current``, with these nodes. Returns the new
        entries."""
        # Freeing these nodes may run Python code, so they are kept until all changes are made.
        before = [leaf.node for leaf in current if isinstance(leaf, Handle)]
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
