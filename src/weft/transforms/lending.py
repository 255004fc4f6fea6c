"""Containers in the arguments of a transformed function: they hold other arrays while the function runs."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

from weft import tree
from weft.graph.node import Handle, Node, point
from weft.graph.tracing import note_assignment
from weft.runtime.atomic import Action, do_all, done_at_end
from weft.runtime.filled import filled

Convert = Callable[[Handle, Any], Handle]
"""Makes the array that the caller gets for one that the function assigned. The second argument is what the function got
in that position, or `tree.MISSING`."""
_NOTHING_FILLED = nullcontext()


def exclusive(*arguments: Any) -> AbstractContextManager[None]:
    """A context manager that other threads wait for before they read or fill containers that `Lending` passes
    themselves. It begins before the leaves of ``arguments`` are read: those that another thread filled are its own."""
    trees = [found for found in arguments if not isinstance(found, Handle)]
    if not trees:
        return _NOTHING_FILLED
    lent = [found for found in tree.mutable_containers(trees) if type(found) is not list and type(found) is not dict]
    return filled(lent) if lent else _NOTHING_FILLED


class _Lent(NamedTuple):
    """A list or dict of the caller, what the function gets instead of it, and the content of that in the beginning."""

    own: Any
    given: Any
    content: Any


class _Replaced(NamedTuple):
    """An array of the caller, what the function gets instead of it, and the node that this names in the beginning."""

    own: Any
    given: Handle
    node: Node


class Lending:
    """The arguments that a function gets instead of the caller's: ``arguments``, the same tree with other arrays in it.

    Plain lists and dicts are copied, because other threads may use them. Instances of their subclasses, such as
    modules, are passed themselves (*lent*) and hold the other arrays while the function runs. When it has returned,
    `take_back` puts into the caller's containers what the function assigned, and the caller's own arrays where it
    assigned nothing.
    """

    def __init__(
        self, arguments: Any, structure: tree.Structure, leaves: Sequence[Any], given: Sequence[Any], around: int
    ) -> None:
        """``around`` is how many outer containers of ``arguments`` are not the caller's."""
        self._lent: list[_Lent] = []
        self._tuples: dict[int, tuple[Any, Any]] = {}
        self._undoing: list[Action] = []
        self._filling: list[Action] = []
        self._assigned: dict[int, Handle] | None = None
        self._arrays: list[tuple[Any, Handle, Node]] = []
        if structure.num_containers == around:
            self.arguments = structure.unflatten(given)
            return
        pairs = zip(leaves, given, strict=True)
        self._arrays = [(own, new, new.node) for own, new in pairs if isinstance(new, Handle)]
        self.arguments = structure.rebuilt(arguments, given, self._stand_in)

    @cached_property
    def _replaced(self) -> dict[int, _Replaced]:
        """The arrays of the caller's, by the identities of those that the function gets for them."""
        return {id(given): _Replaced(own, given, node) for own, given, node in self._arrays}

    def _stand_in(self, token: tree.Container, old: Any, children: list[Any]) -> Any:
        if isinstance(old, tuple):
            new = tree.build(token, children)
            self._tuples[id(new)] = (new, old)
            return new
        content = children if token.keys is None else dict(zip(token.keys, children, strict=True))
        if type(old) is list or type(old) is dict:
            self._lent.append(_Lent(old, content, content.copy()))
            return content
        self._undoing += tree.refilling_anew(old, dict(old) if isinstance(old, dict) else list(old))
        self._filling += tree.refilling(old, content)
        self._lent.append(_Lent(old, old, content))
        return old

    def running(self) -> AbstractContextManager[None]:
        """A context manager in which containers that are lent themselves hold the other arrays. If the block raises
        before `take_back`, they get their former content back."""
        return self._filled() if self._undoing else _NOTHING_FILLED

    @contextmanager
    def _filled(self) -> Iterator[None]:
        with done_at_end(self._undoing):
            do_all(self._filling)
            yield

    def assigned(self) -> list[Handle]:
        """The arrays that the function put into containers, and the arrays in them that it assigned to in place. After
        a call of this method, `take_back` converts exactly these."""
        arrays = [leaf for container, _ in self._containers() for item in _items(container) for leaf in _leaves(item)]
        found = {id(array): array for array in arrays if isinstance(array, Handle) and self._is_new(array)}
        self._assigned = found
        return list(found.values())

    def _is_new(self, array: Handle) -> bool:
        if self._assigned is not None:
            return id(array) in self._assigned
        known = self._replaced.get(id(array))
        return known is None or array.node is not known.node

    def take_back(self, convert: Convert = lambda array, _: array) -> None:
        """Put what the function assigned into the caller's containers, after ``convert`` was applied to the arrays."""
        if not self._undoing and self._assigned is None and self._is_untouched():
            return
        given = {id(lent.given): lent for lent in self._lent}
        contents: list[tuple[Any, Any]] = []
        actions: list[Action] = []
        for container, before in self._containers():
            lent = given.get(id(container))
            if lent is not None and lent.given is not lent.own and self._is_unchanged(lent):
                continue
            content = self._taken(container, before, lambda item, was: self._own(item, was, given, convert, actions))
            contents.append((container if lent is None else lent.own, content))
        for container, content in contents:
            actions += tree.refilling(container, content)
        do_all(actions)
        self._undoing.clear()

    def _is_untouched(self) -> bool:
        """Whether the function has assigned nothing, to no copy and to no array."""
        for _, given, node in self._arrays:
            if given.node is not node:
                return False
        for _, now, before in self._lent:
            if type(now) is dict:
                if list(now) != list(before):
                    return False
                now, before = now.values(), before.values()
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                return False
        return True

    def _is_unchanged(self, lent: _Lent) -> bool:
        """Whether the function has changed neither a copied container nor the arrays in it."""
        now, before = lent.given, lent.content
        if type(now) is dict:
            if list(now) != list(before):
                return False
            now, before = list(now.values()), list(before.values())
        if len(now) != len(before) or not all(map(operator.is_, now, before)):
            return False
        leaves = [leaf for item in now if not isinstance(item, (dict, list)) for leaf in _leaves(item)]
        return not any(isinstance(leaf, Handle) and self._is_new(leaf) for leaf in leaves)

    def _containers(self) -> Iterator[tuple[Any, Any]]:
        """All lists and dicts that the function may have changed, each with its content before (None if it is new)."""
        pending = [(lent.given, lent.content) for lent in self._lent]
        seen = {id(container) for container, _ in pending}
        while pending:
            container, before = pending.pop()
            yield container, before
            for item in _items(container):
                for leaf in _leaves(item):
                    if isinstance(leaf, (dict, list)) and id(leaf) not in seen:
                        seen.add(id(leaf))
                        pending.append((leaf, None))

    def _taken(self, container: Any, before: Any, own: Callable[[Any, Any], Any]) -> Any:
        """The content that the caller's container gets."""
        items = [(key, own(item, _at(before, key))) for key, item in _keyed(container)]
        return dict(items) if isinstance(container, dict) else [item for _, item in items]

    def _own(self, item: Any, before: Any, given: dict[int, _Lent], convert: Convert, actions: list[Action]) -> Any:
        """The object that stands for ``item`` in the caller's containers."""
        if isinstance(item, Handle):
            known = self._replaced.get(id(item))
            if known is None:
                return convert(item, before)
            if self._is_new(item):
                note_assignment(known.own)
                actions.append((point, known.own, convert(item, item).node))
            return known.own
        if isinstance(item, (dict, list)):
            lent = given.get(id(item))
            return item if lent is None else lent.own
        if not isinstance(item, tuple):
            return item
        leaves, structure = tree.flatten(item, _is_list_or_dict)
        own = [self._own(leaf, tree.MISSING, given, convert, actions) for leaf in leaves]
        _, old = self._tuples.get(id(item), (item, item))
        if all(map(operator.is_, own, tree.flatten(old, _is_list_or_dict)[0])):
            return old
        return structure.unflatten(own)


def _is_list_or_dict(item: Any) -> bool:
    return isinstance(item, (dict, list))


def _leaves(item: Any) -> list[Any]:
    """The parts of an entry of a container: several if it is a tuple."""
    return tree.flatten(item, _is_list_or_dict)[0] if isinstance(item, tuple) else [item]


def _items(container: Any) -> list[Any]:
    return list(dict.values(container) if isinstance(container, dict) else container)


def _keyed(container: Any) -> list[tuple[Any, Any]]:
    if isinstance(container, OrderedDict):  # dict.items would give the order in which the keys were added
        return list(OrderedDict.items(container))
    return list(dict.items(container) if isinstance(container, dict) else enumerate(container))


def _at(content: Any, key: Any) -> Any:
    """The value under a key or index of a dict or list, or `tree.MISSING`."""
    if isinstance(content, dict):
        return content.get(key, tree.MISSING)
    return content[key] if isinstance(content, list) and key < len(content) else tree.MISSING
