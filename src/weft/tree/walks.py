"""Walks over nested containers: flattening, building from the top down, listing, and finding cycles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, final

from weft.tree.structure import CONTAINERS, Container, Structure, Token

__all__ = [
    "EndlessTree",
    "Filling",
    "Unfinished",
    "cycle_of",
    "descend",
    "flatten",
    "items",
    "leaves_of",
    "mutable_containers",
    "unfold",
]

IsLeaf: TypeAlias = Callable[[Any], bool]

# How `unfold` fills a container: None for a leaf, else the object from which the container is made, and its entries in
# order: a key (which lists ignore), a leaf or an empty container, and how the latter is filled.
Filling: TypeAlias = tuple[Any, Iterator[tuple[Any, Any, Any]]] | None


class EndlessTree(ValueError):
    """A container contains itself, so that a walk over it would never end."""


_LEAF = Structure((None,), 1)
# Most calls have a few arrays as arguments, so the tokens of short tuples and lists are made once.
_SHORT = 32
_SHORT_TOKENS: dict[type, tuple[Container, ...]] = {
    kind: tuple(Container(kind, n, None) for n in range(_SHORT)) for kind in (tuple, list)
}
_FLAT: dict[type, tuple[Structure, ...]] = {
    kind: tuple(Structure((None,) * token.arity + (token,), token.arity) for token in tokens)
    for kind, tokens in _SHORT_TOKENS.items()
}


def flatten(tree: Any, is_leaf: IsLeaf | None = None, objects: list[Any] | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of ``tree`` from left to right, and its structure.

    ``is_leaf(node)`` may declare a container to be a leaf. Containers whose class is a subclass of dict or list, which
    may have attributes besides their children, are added to ``objects``.

    Raises:
        ValueError: a container contains itself.

    >>> flatten((1, [2, None], {}))
    ([1, 2, None], (*, [*, *], {}))
    """
    if is_leaf is None:
        if not isinstance(tree, CONTAINERS):
            return [tree], _LEAF
        structures = _FLAT.get(type(tree))
        if structures is not None and len(tree) < _SHORT:
            for child in tree:
                if isinstance(child, CONTAINERS):
                    break
            else:
                return list(tree), structures[len(tree)]
    return _flatten_nested(tree, is_leaf, objects)


# A walk over this many containers is checked for a cycle once. A walk through a cycle always reaches this count.
_SUSPICIOUS = 2000


def _flatten_nested(tree: Any, is_leaf: IsLeaf | None, objects: list[Any] | None) -> tuple[list[Any], Structure]:
    leaves: list[Any] = []
    tokens: list[Token] = []
    containers = 0
    pending = [tree]
    # The last child is visited first, so tokens are collected in reverse postorder.
    while pending:
        node = pending.pop()
        if not isinstance(node, CONTAINERS) or (is_leaf is not None and is_leaf(node)):
            leaves.append(node)
            tokens.append(None)
            continue
        containers += 1
        if containers == _SUSPICIOUS:
            _refuse_cycles(tree, is_leaf)
        kind = type(node)
        if isinstance(node, dict):
            keys = tuple(node)
            key_kinds = None if _STRINGS.issuperset(map(type, keys)) else tuple([_kind_of_key(key) for key in keys])
            tokens.append(Container(dict, len(keys), keys, key_kinds))
            if objects is not None and kind is not dict:
                objects.append(node)
            pending.extend(node.values())
        else:
            short = _SHORT_TOKENS.get(kind)
            length = len(node)
            tokens.append(short[length] if short and length < _SHORT else Container(kind, length, None))
            if objects is not None and short is None and isinstance(node, list):
                objects.append(node)
            pending.extend(node)
    leaves.reverse()
    tokens.reverse()
    return leaves, Structure(tuple(tokens), len(leaves))


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of ``tree`` from left to right, as `flatten` returns them, in a third of its time.

    >>> leaves_of((1, [2, None], {}))
    [1, 2, None]
    """
    leaves: list[Any] = []
    containers = 0
    pending = [tree]
    while pending:
        node = pending.pop()
        if not isinstance(node, CONTAINERS):
            leaves.append(node)
            continue
        containers += 1
        if containers == _SUSPICIOUS:
            _refuse_cycles(tree, None)
        pending.extend(node.values() if isinstance(node, dict) else node)
    leaves.reverse()
    return leaves


_STRINGS = frozenset({str})


def _kind_of_key(key: Any) -> Any:
    """What distinguishes a dict's key from equal ones: its type and, for a tuple, those of its elements."""
    kinds: list[Any] = []
    pending = [key]
    while pending:
        part = pending.pop()
        kind = type(part)
        if isinstance(part, tuple):
            kinds.append((kind, len(part)))
            pending.extend(part)
        else:
            kinds.append((kind, float.hex(part)) if isinstance(part, float) else kind)
    return tuple(kinds)


def _refuse_cycles(tree: Any, is_leaf: IsLeaf | None) -> None:
    keys = cycle_of(tree, is_leaf)
    if keys is not None:
        node = tree
        for key in keys:
            node = node[key]
        raise _endless(node)


def _endless(container: Any) -> EndlessTree:
    return EndlessTree(
        f"a {type(container).__name__} contains itself at some depth; "
        "only trees of lists, tuples and dicts can be taken apart"
    )


def cycle_of(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[Any, ...] | None:
    """Return the indices and dict keys that lead to a container inside of itself, or None.

    >>> tree = {"a": [1, 2]}
    >>> tree["a"].append(tree)
    >>> cycle_of(tree)
    ('a', 2)
    """
    finished: set[int] = set()
    is_open = {id(tree)}
    above: list[tuple[Any, Any, Iterator[tuple[Any, Any]]]] = [(None, tree, iter(_items(tree, is_leaf)))]
    while above:
        _, container, rest = above[-1]
        for key, node in rest:
            if not isinstance(node, CONTAINERS) or id(node) in finished:
                continue
            if id(node) in is_open and not (is_leaf is not None and is_leaf(node)):
                return (*[key for key, _, _ in above[1:]], key)
            is_open.add(id(node))
            above.append((key, node, iter(_items(node, is_leaf))))
            break
        else:
            above.pop()
            is_open.discard(id(container))
            finished.add(id(container))
    return None


def _items(node: Any, is_leaf: IsLeaf | None) -> Iterable[tuple[Any, Any]]:
    """The keys or indices of a container with its entries; nothing for a leaf."""
    if not isinstance(node, CONTAINERS) or (is_leaf is not None and is_leaf(node)):
        return ()
    return items(node)


def items(container: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[tuple[Any, Any]]:
    """The keys or indices of a container with its entries.

    >>> list(items(["a", "b"]))
    [(0, 'a'), (1, 'b')]
    """
    return container.items() if isinstance(container, dict) else enumerate(container)


def mutable_containers(tree: Any) -> list[Any]:
    """Return the dicts and lists in ``tree``, each once even if it occurs several times, in the order of a walk that
    visits the last child of a container first.

    >>> shared = [1]
    >>> mutable_containers(({"a": shared}, shared))
    [[1], {'a': [1]}]
    """
    # Calls of compiled functions use this: making a `Structure`, with keys and order, would take five times as long.
    found: dict[int, Any] = {}
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (dict, list)):
            if id(node) in found:
                continue
            found[id(node)] = node
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, (list, tuple)):
            pending.extend(node)
    return list(found.values())


def descend(pending: list[Any], is_leaf: IsLeaf | None = None) -> Iterator[Any]:
    """Take entries from the list ``pending``, the last first, until it is empty.

    To walk over several trees at once, begin with a tuple of them, and append a tuple for each container inside that is
    to be entered. Leaves of the first tree, as in `flatten`, are not entered.

    Raises:
        EndlessTree: a container of the first tree contains itself.

    >>> pending = [({"a": [5], "b": 6}, {"a": [7]})]
    >>> for mine, other in descend(pending):
    ...     print(mine, other)
    ...     if isinstance(mine, dict):
    ...         pending += [(mine[key], other[key]) for key in mine if key in other]
    {'a': [5], 'b': 6} {'a': [7]}
    [5] [7]
    """
    tree = pending[0][0]
    found = 0
    while pending:
        found += 1
        if found == _SUSPICIOUS:
            _refuse_cycles(tree, is_leaf)
        yield pending.pop()


@final
class Unfinished(list[Any]):
    """An empty list for `unfold` to fill, and the function that then converts it, for example to a tuple."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        self.make = make


# `unfold` looks for a cycle when containers are nested this deeply, and again at each doubling.
_DEEP = 500


def unfold(tree: Any, filling: Filling) -> Any:
    """Return a tree that is built from the top down.

    ``tree`` is a leaf, or an empty dict, list or `Unfinished`. ``filling`` is None for a leaf; else the object from
    which the container is made, and an iterator of its entries: a key (which lists ignore), and a tree with its
    filling. An entry is finished before the next one is taken from the iterator.

    Raises:
        EndlessTree: a container is made from an object from which a container around it is made.

    >>> def halves(number):
    ...     return (number, None) if number < 2 else ([], (None, ((None, *halves(part)) for part in (number // 2, 1))))
    >>> unfold(*halves(5))
    [[1, 1], 1]
    """
    if filling is None:
        return tree
    limit = _DEEP
    above = [(tree, None, *filling)]
    while above:
        container, slot, _, entries = above[-1]
        is_dict = type(container) is dict
        for key, child, inner in entries:
            if is_dict:
                container[key] = child
            else:
                container.append(child)
            if inner is not None:
                above.append((child, key if is_dict else -1, *inner))
                break
        else:
            above.pop()
            if type(container) is Unfinished:
                made = container.make(container)
                if not above:
                    return made
                above[-1][0][slot] = made
            continue
        if len(above) == limit:
            _refuse_repeated([source for _, _, source, _ in above])
            limit *= 2
    return tree


def _refuse_repeated(sources: list[Any]) -> None:
    """Raise if one of the objects, each of which is inside of the one before, occurs twice."""
    seen: set[int] = set()
    for source in sources:
        if id(source) in seen:
            raise _endless(source)
        seen.add(id(source))
