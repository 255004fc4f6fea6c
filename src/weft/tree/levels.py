"""Nested containers that are read many times while their nesting does not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, compress
from operator import is_, itemgetter
from typing import Any, NamedTuple, final

from weft.tree.structure import CONTAINERS

__all__ = ["END", "Levels", "ReadDicts", "Reading", "read_dicts"]

DEPTH_LIMIT = 32
"""The deepest tree to read level by level: deeper trees have too few containers on each level to be faster this way."""

_flat = chain.from_iterable
_NONE: list[Any] = []
_ITERATED_NATIVELY = frozenset({tuple.__iter__, list.__iter__, dict.__iter__})


END = object()
"""Ends the keys of a dict in a list of the keys of many dicts."""

ReadDicts = Callable[[list[Any], list[type], list[Any]], list[Any] | None]


def read_dicts(dicts: list[Any], types: list[type], keys: list[Any]) -> list[Any] | None:
    """The values of dicts in one list; None if one is not of its type, or if there are other keys than these objects,
    in which `END` comes after the keys of each dict."""
    if [*map(type, dicts)] != types:
        return None
    found = [*_flat([(*items, END) for items in dicts])]
    if len(found) != len(keys) or not all(map(is_, found, keys)):
        return None
    return [*_flat(map(dict.values, dicts))]


class Reading(NamedTuple):
    """The contents of a tree: its leaves from left to right, and its containers, outer ones before inner ones."""

    leaves: Sequence[Any]
    containers: list[Any]


class _Level(NamedTuple):
    """The nodes at one depth of a tree, above the last one. The next level consists of the children of its sequences,
    and then those of its dicts.

    ``types``, ``is_leaf``, ``is_sequence`` and ``is_dict`` have an entry for each node; ``types`` is None if all are
    dicts. ``lengths`` are those of the sequences, ``dict_types`` and ``keys`` what `read_dicts` compares.
    """

    types: list[type] | None
    is_leaf: list[bool]
    is_sequence: list[bool]
    is_dict: list[bool]
    lengths: list[int]
    dict_types: list[type]
    keys: list[Any]


@final
class Levels:
    """The levels of a tree. Reading them again and comparing them takes a few native calls per level, in total a tenth
    of the time of `flatten`.

    A tree that is read later may have other containers and leaves of the same types, if containers have the same
    lengths and keys. Keys are compared by identity, because equal ones (1 and True) may mean different things. No
    container and no leaf is kept alive.
    """

    def __init__(self, tree: Any, read: ReadDicts = read_dicts) -> None:
        """``read`` does what `read_dicts` does."""
        self._read_dicts = read
        self._levels: list[_Level] = []
        paths: list[tuple[int, ...]] = []
        found: list[tuple[tuple[int, ...], Any]] = [((), tree)]
        while any(isinstance(node, CONTAINERS) for _, node in found) and len(self._levels) <= DEPTH_LIMIT:
            sequences = [(path, node) for path, node in found if isinstance(node, (tuple, list))]
            dicts = [(path, node) for path, node in found if isinstance(node, dict)]
            nodes = [node for _, node in found]
            self._levels.append(
                _Level(
                    None if len(dicts) == len(found) else list(map(type, nodes)),
                    [not isinstance(node, CONTAINERS) for node in nodes],
                    [isinstance(node, (tuple, list)) for node in nodes],
                    [isinstance(node, dict) for node in nodes],
                    [len(node) for _, node in sequences],
                    [type(node) for _, node in dicts],
                    [key for _, node in dicts for key in (*node, END)],
                )
            )
            paths += [path for path, node in found if not isinstance(node, CONTAINERS)]
            children = [*sequences, *[(path, node.values()) for path, node in dicts]]
            found = [((*path, index), child) for path, node in children for index, child in enumerate(node)]
        self._is_whole = len(self._levels) <= DEPTH_LIMIT
        paths += [path for path, _ in found]
        self._count = len(paths)
        order = sorted(range(len(paths)), key=paths.__getitem__)
        is_in_order = order == list(range(len(paths)))  # else there are two or more, and `itemgetter` returns a tuple
        self._in_order: Callable[[list[Any]], Sequence[Any]] = list if is_in_order else itemgetter(*order)

    @staticmethod
    def of(tree: Any, read: ReadDicts = read_dicts) -> Levels | None:
        """The levels of a tree; None if reading them is not faster than `flatten`, or if a class of containers defines
        its own way of reading its contents.

        >>> levels = Levels.of([{"a": 1}, 2])
        >>> levels.read([{"a": 3}, 4])
        Reading(leaves=(3, 4), containers=[[{'a': 3}, 4], {'a': 3}])
        >>> levels.read([{"b": 3}, 4]) is None
        True
        """
        levels = Levels(tree, read)
        known = [kind for level in levels._levels for kind in (*(level.types or ()), *level.dict_types)]
        kinds = {kind for kind in known if issubclass(kind, CONTAINERS)}
        return levels if levels._is_whole and all(map(_is_plain, kinds)) else None

    def read(self, tree: Any) -> Reading | None:
        """The contents of a tree; None if its nesting differs from that of the first tree.

        Where the first tree has only leaves on its last level, this one may have containers, which are returned as
        leaves.
        """
        leaves: list[Any] = []
        containers: list[Any] = []
        nodes = [tree]
        try:
            for types, is_leaf, is_sequence, is_dict, lengths, dict_types, keys in self._levels:
                sequences, dicts = _NONE, nodes
                if types is not None:
                    if [*map(type, nodes)] != types:
                        return None
                    leaves += compress(nodes, is_leaf)
                    sequences, dicts = [*compress(nodes, is_sequence)], [*compress(nodes, is_dict)]
                    if [*map(len, sequences)] != lengths:
                        return None
                    containers += sequences
                containers += dicts
                values = self._read_dicts(dicts, dict_types, keys)
                if values is None:
                    return None
                nodes = [*_flat(sequences), *values] if sequences else values
        except RuntimeError:  # another thread changed a dict meanwhile
            return None
        leaves += nodes
        if len(leaves) != self._count:  # another thread changed a list meanwhile
            return None
        return Reading(self._in_order(leaves), containers)


def _is_plain(kind: type[Any]) -> bool:
    """Whether the contents of a container class are read as those of its base class."""
    if issubclass(kind, dict) and kind.values is not dict.values:
        return False
    base = next(base for base in CONTAINERS if issubclass(kind, base))
    return kind.__iter__ in _ITERATED_NATIVELY and kind.__len__ is base.__len__
