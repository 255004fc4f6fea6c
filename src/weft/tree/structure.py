"""The structure of nested lists, tuples and dicts without their leaves, and other trees read along a structure.

A dict keeps the order of its keys, and the order is part of the structure: code that iterates over a dict may compute
something else for another order, so a trace for one order is not reused for another. Where two trees are compared by
position, keys are looked up by name instead.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

__all__ = [
    "CONTAINERS",
    "MISSING",
    "Container",
    "Structure",
    "broadcast_prefix",
    "build",
    "refilling",
    "refilling_anew",
]

CONTAINERS: Final = (tuple, list, dict)
"""The types that are not leaves."""


@final
class _Missing:
    """The type of `MISSING`."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The value for positions that a tree does not have."""


class Container(NamedTuple):
    """How a container is rebuilt: its type, and its number of children or, for a dict, its keys.

    ``key_kinds`` distinguishes keys that Python calls equal (1, True and 1.0); None if all keys are strings.
    """

    kind: type
    arity: int
    keys: tuple[Any, ...] | None
    key_kinds: tuple[Any, ...] | None = None


# A structure is a flat tuple of tokens in postorder: None stands for a leaf, a container follows its children.
# Flat tuples hash and compare in C, without recursion.
Token: TypeAlias = Container | None


@final
class Structure:
    """A tree without its leaves; equal for trees of the same nesting.

    >>> from weft.tree import flatten
    >>> leaves, structure = flatten({"weight": 1, "bias": [2, 3]})
    >>> leaves, structure
    ([1, 2, 3], {'weight': *, 'bias': [*, *]})
    >>> structure.unflatten(["a", "b", "c"])
    {'weight': 'a', 'bias': ['b', 'c']}
    """

    __slots__ = ("_hash", "_tokens", "num_leaves")

    num_leaves: int

    def __init__(self, tokens: tuple[Token, ...], num_leaves: int) -> None:
        self._tokens = tokens
        self._hash = hash(tokens)
        self.num_leaves = num_leaves

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return self._hash == other._hash and self._tokens == other._tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return Structure, (self._tokens, self.num_leaves)

    @property
    def num_containers(self) -> int:
        """The number of lists, tuples and dicts, including the root."""
        return len(self._tokens) - self.num_leaves

    def __repr__(self) -> str:
        parts: list[str] = []
        for token in self._tokens:
            if token is None:
                parts.append("*")
            else:
                first = len(parts) - token.arity
                parts[first:] = [_describe(token, parts[first:])]
        return parts[0]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return a tree of this structure with these leaves; dict subclasses become plain dicts.

        Raises:
            ValueError: the number of leaves is not :attr:`num_leaves`.
        """
        leaves = self._checked(leaves)
        tokens = self._tokens
        if len(tokens) == len(leaves) + 1 and tokens[-1] is not None:
            return build(tokens[-1], leaves)
        remaining = iter(leaves)
        built: list[Any] = []
        for token in tokens:
            if token is None:
                built.append(next(remaining))
            else:
                first = len(built) - token.arity
                built[first:] = [build(token, built[first:])]
        return built[0]

    def unflatten_into(self, tree: Any, leaves: Iterable[Any]) -> Any:
        """Write ``leaves`` into the lists and dicts of ``tree`` so that it has this structure; return it.

        Containers of ``tree`` at positions where this structure has one of the same kind are changed and reused; others
        are made. Tuples cannot be changed, so a new tuple is made if one of its leaves is replaced by another object.
        The result is ``tree`` itself unless ``tree`` is a tuple or a leaf.

        >>> from weft.tree import flatten
        >>> state = [{"step": 1}]
        >>> flatten([{"step": 2, "mean": 3}])[1].unflatten_into(state, [4, 5]) is state
        True
        >>> state
        [{'step': 4, 'mean': 5}]
        """
        result, contents = self.contents_into(tree, leaves)
        for container, content in contents:
            for function, *arguments in refilling(container, content):
                function(*arguments)
        return result

    def contents_into(self, tree: Any, leaves: Iterable[Any]) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return what `unflatten_into` would return, and the containers of ``tree`` with the contents that it would
        write into them."""
        contents: list[tuple[Any, Any]] = []
        return self.rebuilt(tree, leaves, lambda token, old, new: _rebuild(token, old, new, contents)), contents

    def rebuilt(self, tree: Any, leaves: Iterable[Any], make: Callable[[Container, Any, list[Any]], Any]) -> Any:
        """Return a tree of this structure whose containers are ``make(token, old, children)``: ``old`` is the node of
        ``tree`` at that position, or `MISSING`. The children are made before the container."""
        remaining = iter(self._checked(leaves))
        built: list[Any] = []
        for token, old in zip(self._tokens, self._beside(tree), strict=True):
            if token is None:
                built.append(next(remaining))
            else:
                first = len(built) - token.arity
                built[first:] = [make(token, old, built[first:])]
        return built[0]

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """Return the nodes of ``tree`` at the positions of this structure's leaves; they may be containers.

        Keys are looked up by name, and lists and tuples are interchangeable. Additional keys and elements of ``tree``
        are ignored.

        Raises:
            ValueError: ``tree`` lacks a position of this structure; the message names it.

        >>> from weft.tree import flatten
        >>> flatten({"a": 0, "b": 0})[1].flatten_up_to({"b": [1, 2], "a": 3, "c": 4})
        [3, [1, 2]]
        """
        leaves: list[Any] = []
        pending = [tree]
        for index in range(len(self._tokens) - 1, -1, -1):
            token = self._tokens[index]
            node = pending.pop()
            if token is None:
                leaves.append(node)
            else:
                children = _children_for(token, node)
                if children is None:
                    raise ValueError(_mismatch(self, index, token, node))
                pending.extend(children)
        leaves.reverse()
        return leaves

    def key_paths(self) -> list[tuple[Any, ...]]:
        """Return for each leaf the indices and dict keys that lead to it.

        >>> from weft.tree import flatten
        >>> flatten({"a": [0, 0]})[1].key_paths()
        [('a', 0), ('a', 1)]
        """
        origins = self._origins()
        return [_keys_to(origins, index) for index, token in enumerate(self._tokens) if token is None]

    def paths(self) -> list[str]:
        """Return for each leaf the Python expression that leads to it, without the name of the tree.

        >>> from weft.tree import flatten
        >>> flatten({"a": [0, 0]})[1].paths()
        ["['a'][0]", "['a'][1]"]
        """
        return [_path_text(keys) for keys in self.key_paths()]

    def leaves_beside(self, tree: Any) -> list[Any]:
        """Return what `flatten_up_to` returns, with `MISSING` for each position that ``tree`` lacks.

        >>> from weft.tree import flatten
        >>> flatten({"a": 0, "b": [0]})[1].leaves_beside({"a": 1, "b": 2})
        [1, MISSING]
        """
        return [node for token, node in zip(self._tokens, self._beside(tree), strict=True) if token is None]

    def entries(self, tree: Any) -> list[tuple[Any, Any, Any]]:
        """Return the entries of all containers of ``tree``, which has this structure: container, key or index, and
        value. Entries of inner containers come first, from left to right.

        >>> from weft.tree import flatten
        >>> tree = {"a": [5], "b": 6}
        >>> flatten(tree)[1].entries(tree)
        [([5], 0, 5), ({'a': [5], 'b': 6}, 'a', [5]), ({'a': [5], 'b': 6}, 'b', 6)]
        """
        found: list[tuple[Any, Any, Any]] = []
        pending: list[tuple[Any, Any, Any]] = [(None, None, tree)]
        for token in reversed(self._tokens):
            entry = pending.pop()
            found.append(entry)
            if token is not None:
                node = entry[2]
                keys = range(token.arity) if token.keys is None else token.keys
                pending += [(node, key, child) for key, child in zip(keys, _beside(token, node), strict=True)]
        found.reverse()
        found.pop()
        return found

    def containers(self, tree: Any) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the containers of ``tree``, which has this structure, each with the indices and dict keys that lead to
        it. Inner containers come after outer ones, from the last to the first.

        >>> from weft.tree import flatten
        >>> tree = {"a": [5], "b": 6}
        >>> flatten(tree)[1].containers(tree)
        [((), {'a': [5], 'b': 6}), (('a',), [5])]
        """
        origins, nodes = self._origins(), self._beside(tree)
        positions = range(len(nodes) - 1, -1, -1)
        return [(_keys_to(origins, index), nodes[index]) for index in positions if self._tokens[index] is not None]

    def _checked(self, leaves: Iterable[Any]) -> list[Any]:
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"the tree {self} has {self.num_leaves} leaves, but {len(leaves)} were given")
        return leaves

    def _beside(self, tree: Any) -> list[Any]:
        """Return, for each token, the node of ``tree`` at its position, or `MISSING`."""
        found: list[Any] = []
        pending = [tree]
        for token in reversed(self._tokens):
            node = pending.pop()
            found.append(node)
            if token is not None:
                pending += _beside(token, node)
        found.reverse()
        return found

    def _origins(self) -> list[tuple[int, Any]]:
        """Return, for each token, the index of its container's token and its key in that container."""
        origins: list[tuple[int, Any]] = []
        pending: list[tuple[int, Any]] = [(-1, None)]
        for index in range(len(self._tokens) - 1, -1, -1):
            token = self._tokens[index]
            origins.append(pending.pop())
            if token is not None:
                keys = range(token.arity) if token.keys is None else token.keys
                pending.extend((index, key) for key in keys)
        origins.reverse()
        return origins


def broadcast_prefix(prefix: Any, structure: Structure, name: str = "prefix") -> list[Any]:
    """Return one value per leaf of ``structure``: a leaf of ``prefix`` is repeated for all leaves below its position.

    ``name`` is the name of ``prefix`` in messages.

    Raises:
        ValueError: ``prefix`` has a container where ``structure`` has none, or one with another number of elements or
            other keys.

    >>> from weft.tree import flatten
    >>> broadcast_prefix((0, {"w": 1, "b": None}), flatten(([5, 6], {"b": 7, "w": 8}))[1])
    [0, 0, None, 1]
    """
    values: list[Any] = []
    pending = [prefix]
    for index in range(len(structure._tokens) - 1, -1, -1):
        token = structure._tokens[index]
        node = pending.pop()
        is_container = isinstance(node, CONTAINERS)
        if token is None and not is_container:
            values.append(node)
        elif token is not None and not is_container:
            pending.extend([node] * token.arity)
        else:
            children = None if token is None or len(node) != token.arity else _children_for(token, node)
            if children is None:
                raise ValueError(f"{name}: {_mismatch(structure, index, token, node)}")
            pending.extend(children)
    values.reverse()
    return values


def build(token: Container, children: list[Any]) -> Any:
    """A container with these children; dict subclasses become plain dicts."""
    kind = token.kind
    if token.keys is not None:
        return dict(zip(token.keys, children, strict=True))
    if kind is tuple:
        return tuple(children)
    make: Callable[[list[Any]], Any] = getattr(kind, "_make", kind)
    return make(children)


def _rebuild(token: Container, old: Any, children: list[Any], contents: list[tuple[Any, Any]]) -> Any:
    """``old`` if it can hold these children (its new contents are added to ``contents``), else another container."""
    if token.keys is not None and isinstance(old, dict):
        contents.append((old, dict(zip(token.keys, children, strict=True))))
        return old
    if issubclass(token.kind, list) and isinstance(old, list):
        contents.append((old, children))
        return old
    if isinstance(old, tuple) and type(old) is token.kind and len(old) == len(children):
        unchanged = all(mine is new for mine, new in zip(old, children, strict=True))
        return old if unchanged else build(token, children)
    return build(token, children)


def refilling(container: Any, content: Any) -> list[tuple[Any, ...]]:
    """Functions with arguments; calling them in order replaces the contents of a list or dict by those of another
    one."""
    if isinstance(container, dict):
        return _updates(container, content) if list(container) == list(content) else refilling_anew(container, content)
    return [(operator.setitem, container, slice(None), content)]


def refilling_anew(container: Any, content: Any) -> list[tuple[Any, ...]]:
    """The same, whatever the container holds when they are called."""
    if isinstance(container, dict):
        clear = OrderedDict.clear if isinstance(container, OrderedDict) else dict.clear
        return [(clear, container), *_updates(container, content)]
    return refilling(container, content)


def _updates(container: dict[Any, Any], content: dict[Any, Any]) -> list[tuple[Any, ...]]:
    if isinstance(
        container, OrderedDict
    ):  # it has the order of its keys elsewhere, where functions of dict do not write
        return [(OrderedDict.__setitem__, container, key, value) for key, value in content.items()]
    return [(dict.update, container, content)]


def _children_for(token: Container, node: Any) -> Sequence[Any] | None:
    """Return the entries of ``node`` at the positions of ``token``, or None if it lacks one."""
    if token.keys is not None:
        if isinstance(node, dict) and all(key in node for key in token.keys):
            return [node[key] for key in token.keys]
        return None
    if isinstance(node, (list, tuple)) and len(node) >= token.arity:
        return node[: token.arity]
    return None


def _beside(token: Container, node: Any) -> Sequence[Any]:
    """The entries of ``node`` at the positions of ``token``, with `MISSING` for those it lacks."""
    arity = token.arity
    if token.keys is not None:
        if isinstance(node, dict):
            return [node.get(key, MISSING) for key in token.keys]
    elif isinstance(node, (list, tuple)):
        return node if len(node) == arity else [*node[:arity], *[MISSING] * (arity - len(node))]
    return [MISSING] * arity


def _describe(token: Container, children: list[str]) -> str:
    if token.keys is not None:
        return "{" + ", ".join(f"{key!r}: {child}" for key, child in zip(token.keys, children, strict=True)) + "}"
    inside = ", ".join(children)
    if token.kind is list:
        return f"[{inside}]"
    if token.kind is tuple:
        return f"({inside},)" if token.arity == 1 else f"({inside})"
    fields: Sequence[str] | None = getattr(token.kind, "_fields", None)
    if fields is not None:
        inside = ", ".join(f"{field}={child}" for field, child in zip(fields, children, strict=True))
        return f"{token.kind.__name__}({inside})"
    return f"{token.kind.__name__}([{inside}])"


def _keys_to(origins: list[tuple[int, Any]], index: int) -> tuple[Any, ...]:
    keys = []
    container, key = origins[index]
    while container >= 0:
        keys.append(key)
        container, key = origins[container]
    return tuple(reversed(keys))


def _path_text(keys: tuple[Any, ...]) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _mismatch(structure: Structure, index: int, token: Token, node: Any) -> str:
    path = _path_text(_keys_to(structure._origins(), index))
    where = f"at {path}" if path else "at the top"
    if token is None:
        expected = "a single value"
    elif token.keys is not None:
        expected = f"a dict with the keys {list(token.keys)}"
    else:
        expected = f"a {token.kind.__name__} of {token.arity} elements"
    return f"{where}, expected {expected}, got {_summary(node)}"


def _summary(node: Any) -> str:
    if isinstance(node, dict):
        return f"a dict with the keys {list(node)}"
    if isinstance(node, (list, tuple)):
        return f"a {type(node).__name__} of {len(node)} elements"
    return f"a value of type {type(node).__name__}"
