"""The contents of a module: as text, as a tree of entries that pass a filter, and replaced in place.

A module is a tree of dicts (modules are dicts too), lists and leaves. Members are named by dotted paths:
``layers.0.weight`` is the weight of the first entry of the list ``layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from weft.tree import (
    CONTAINERS,
    MISSING,
    EndlessTree,
    Filling,
    cycle_of,
    descend,
    dotted,
    items,
    join_path,
    unfold,
)

Path: TypeAlias = tuple[Any, str | int] | None
"""The path of a container and a key in it; None for the root. The text of most paths is never needed."""

EntryFilter: TypeAlias = Callable[[Any, str, Any], bool]
Functions: TypeAlias = tuple[EntryFilter, Callable[[Any], Any], EntryFilter]
"""A filter of entries, a function of leaves, and a function that recognises leaves; see `Module.filter_and_map`."""

MISMATCH = (
    "`{path}` is {current} and cannot be replaced by {new}; "
    "give a tree of the same structure, or strict=False to skip what does not fit."
)


ENDLESS_TREE = (
    "[{name}] `{path}` leads back to a module, list or dict that it is inside of: listing what is in the module would "
    "never end. Keep such a reference behind a function: `self.parent = lambda: parent`."
)


def endless(module: Any, path: str) -> ValueError:
    """The error for a module that contains itself at a path."""
    return ValueError(ENDLESS_TREE.format(path=path, name=type(module).__name__))


def outline(root: Any, own_text: Callable[[Any], tuple[str, list[tuple[str, Any]] | None]]) -> str:
    """A text with a line for each node of a tree; a node inside of itself is shown as three dots.

    own_text: returns the first line of a node without its closing parenthesis, and its children by name; or the whole
    text of a node, and None.

    >>> children = {"top": [("a", "left"), ("b", "right")], "left": [], "right": None}
    >>> print(outline("top", lambda node: (f"{node}(", children[node])))
    top(
      (a): left()
      (b): right(
    )
    """
    lines: list[str] = []
    around: set[int] = set()
    pending: list[tuple[int, str, Any, bool]] = [(0, "", root, False)]
    while pending:
        depth, name, node, is_end = pending.pop()
        indent = "  " * depth
        if is_end:
            around.remove(id(node))
            lines.append(f"{indent})")
            continue
        text, children = ("...", None) if id(node) in around else own_text(node)
        if children:
            around.add(id(node))
            pending.append((depth, "", node, True))
            pending += [(depth + 1, f"({key}): ", child, False) for key, child in reversed(children)]
        ending = ")" if children == [] else ""
        lines.append(indent + f"{name}{text}{ending}".replace("\n", f"\n{indent}"))
    return "\n".join(lines)


def selected(module: Any, functions: Functions, is_module: Callable[[Any], bool]) -> dict[str, Any]:
    """A tree of dicts and lists with the entries of a module that pass a filter; see `Module.filter_and_map`.

    >>> is_number = lambda module, path, value: isinstance(value, int)
    >>> functions = (lambda module, path, value: path != "a", lambda value: -value, is_number)
    >>> selected({"a": 1, "b": [2, {"c": 3}]}, functions, lambda value: False)
    {'b': [-2, {'c': -3}]}

    Raises:
        ValueError: the module contains itself.
    """
    try:
        return selected_inside(module, functions, is_module)
    except EndlessTree:
        keys = cycle_of(module, is_leaf=lambda node: not isinstance(node, (dict, list)))
        if keys is None:
            raise
        raise endless(module, dotted(keys)) from None


def selected_inside(module: Any, functions: Functions, is_module: Callable[[Any], bool]) -> dict[str, Any]:
    """`selected` for a module inside of the one that an error must name: raises `EndlessTree` if it contains itself."""
    found: dict[str, Any] = unfold({}, (module, _Selection(functions, is_module).of_module(module)))
    return found


class _Selection:
    """The function for `unfold`: it returns keys, and leaves or empty containers with what fills them."""

    def __init__(self, functions: Functions, is_module: Callable[[Any], bool]) -> None:
        self._filter, self._map, self._is_leaf = functions
        self._is_module = is_module

    def of_module(self, module: Any) -> Iterator[tuple[Any, Any, Filling]]:
        for key, value in module.items():
            if self._filter(module, key, value):
                yield key, *self._entry(module, key, value)

    def _below(self, module: Any, path: str, container: Any) -> Iterator[tuple[Any, Any, Filling]]:
        """The entries of a dict or list that is at this path of the module."""
        for key, value in items(container):
            inner = join_path(path, key)
            if self._filter(module, inner, value):
                yield key, *self._entry(module, inner, value)
            else:
                yield key, {}, None

    def _entry(self, module: Any, path: str, value: Any) -> tuple[Any, Filling]:
        if self._is_leaf(module, path, value):
            return self._map(value), None
        if self._is_module(value):
            return {}, (value, self.of_module(value))
        if not isinstance(value, (dict, list)):
            raise RuntimeError(
                f"[filter_and_map] `{path}` of `{type(module).__name__}` is of type {type(value).__name__}, "
                "which cannot be entered; `is_leaf_fn` must call it a leaf, or `filter_fn` must leave it out."
            )
        container: Any = {} if isinstance(value, dict) else []
        return container, (value, self._below(module, path, value))


def entries_of(function: str, noun: str, tree: dict[str, Any] | list[Any]) -> dict[str, Any]:
    """The entries of a tree for `replace_leaves`; none if it is the empty list, which `tree_unflatten` returns for no
    entries.

    >>> entries_of("update", "parameters", [])
    {}
    """
    if isinstance(tree, dict):
        return dict(tree)
    if isinstance(tree, list) and not tree:
        return {}
    raise ValueError(f"[{function}] takes a dict of {noun}; got {type(tree).__name__}.")


def replace_leaves(destination: Any, updates: dict[str, Any], leaf_type: type, noun: str, strict: bool) -> None:
    """Put the leaves of the tree ``updates`` at the same paths into ``destination``.

    Empty containers in ``updates`` replace nothing. With ``strict``, an entry that does not exist in ``destination`` or
    does not fit there raises `ValueError`, and nothing is replaced; otherwise it is skipped.

    >>> tree = {"a": [1, 2], "b": 3}
    >>> replace_leaves(tree, {"a": [{}, 5]}, int, "number", True)
    >>> tree
    {'a': [1, 5], 'b': 3}
    """
    changes: list[tuple[Any, Any, Any]] = []
    pending: list[tuple[Any, Any, Path]] = [(updates, destination, None)]
    for container, beside, path in descend(pending, lambda node: isinstance(node, leaf_type)):
        for key, new in items(container):
            current = beside.get(key, MISSING) if isinstance(beside, dict) else _listed(beside, key)
            if isinstance(new, leaf_type) and isinstance(current, leaf_type):
                changes.append((beside, key, new))
            elif isinstance(current, CONTAINERS) and _is_inner(new, leaf_type):
                pending.append((new, current, (path, key)))
            elif strict and (current is MISSING or not (_is_inner(new, leaf_type) and not new)):
                raise ValueError(_refusal(beside, _path_text((path, key)), current, new, noun))
    for container, key, new in changes:
        container[key] = new


def _refusal(container: Any, path: str, current: Any, new: Any, noun: str) -> str:
    if current is MISSING:
        return _no_such_entry(container, path, noun)
    return MISMATCH.format(path=path, current=_describe(current), new=_describe(new))


def _path_text(path: Path) -> str:
    keys = []
    while path is not None:
        path, key = path
        keys.append(key)
    return dotted(reversed(keys))


def put_back(destination: Any, present: Any, former: Any) -> None:
    """Replace each leaf of ``present`` that is still in ``destination`` by the leaf of ``former`` at the same path.

    >>> here, other, before = [object() for _ in range(3)]
    >>> tree = {"a": here, "b": other}
    >>> put_back(tree, {"a": here, "b": here}, {"a": before, "b": before})
    >>> tree == {"a": before, "b": other}
    True
    """
    pending: list[tuple[Any, Any, Any]] = [(present, former, destination)]
    for container, before, beside in descend(pending):
        for key, leaf in items(container):
            current = beside.get(key, MISSING) if isinstance(beside, dict) else _listed(beside, key)
            if isinstance(leaf, CONTAINERS):
                pending.append((leaf, before[key], current))
            elif current is leaf:
                beside[key] = before[key]


def _is_inner(value: Any, leaf_type: type) -> bool:
    return isinstance(value, CONTAINERS) and not isinstance(value, leaf_type)


def _listed(container: Any, key: str | int) -> Any:
    """The entry of a list, or `MISSING`; entries of a tuple cannot be replaced."""
    is_index = isinstance(container, list) and isinstance(key, int) and key < len(container)
    return container[key] if is_index else MISSING


def _describe(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, CONTAINERS) else f"a value of type {type(value).__name__}"


def _no_such_entry(destination: Any, path: str, noun: str) -> str:
    if isinstance(destination, list):
        count = f"{len(destination)} entr{'y' if len(destination) == 1 else 'ies'}"
        return f"The module has no {noun} `{path}`: the list there has {count}."
    names = ", ".join(str(name) for name in destination) if isinstance(destination, dict) else ""
    return f'The module has no {noun} named "{path}"; in that place it has: {names or "nothing"}.'
