"""Paths in a module, and replacing what is inside of it in place.

A module is a tree of dicts (modules are dicts too), lists and leaves. Members are named by dotted paths:
``layers.0.weight`` is the weight of the first entry of the list ``layers``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.tree import MISSING, descend, flatten

MISMATCH = (
    "`{path}` is {current} and cannot be replaced by {new}; "
    "give a tree of the same structure, or strict=False to skip what does not fit."
)


def join_path(path: str, key: str | int) -> str:
    """The dotted path of the entry `key` of the container at `path`.

    >>> join_path("layers", 0)
    'layers.0'
    """
    return f"{path}.{key}" if path else str(key)


def dotted(keys: Iterable[str | int]) -> str:
    """The path of what these keys and indices lead to.

    >>> dotted(("layers", 0))
    'layers.0'
    """
    return ".".join(map(str, keys))


def entries(container: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Iterable[tuple[str | int, Any]]:
    """The keys (or indices) of a container with their values.

    >>> list(entries(["a", "b"]))
    [(0, 'a'), (1, 'b')]
    """
    return container.items() if isinstance(container, dict) else enumerate(container)


def replace_leaves(destination: Any, updates: dict[str, Any], leaf_type: type, noun: str, strict: bool) -> None:
    """Put the leaves of the tree `updates` at the same paths into `destination`.

    Empty containers in `updates` stand for "nothing to replace here", whatever is there. With `strict`, what
    has no entry in `destination` or does not fit there raises `ValueError`, and nothing is replaced; otherwise it is
    skipped.

    >>> tree = {"a": [1, 2], "b": 3}
    >>> replace_leaves(tree, {"a": [{}, 5]}, int, "number", True)
    >>> tree
    {'a': [1, 5], 'b': 3}
    """
    changes: list[tuple[Any, Any, Any]] = []
    pending: list[tuple[Any, Any]] = [(updates, destination)]
    for container, beside in descend(pending, lambda node: isinstance(node, leaf_type)):
        for key, new in entries(container):
            current = beside.get(key, MISSING) if isinstance(beside, dict) else _listed(beside, key)
            if isinstance(new, leaf_type) and isinstance(current, leaf_type):
                changes.append((beside, key, new))
            elif current is not MISSING and _is_container(current) and _is_inner(new, leaf_type):
                pending.append((new, current))
            elif strict and (current is MISSING or not (_is_inner(new, leaf_type) and not new)):
                path = join_path(_path_of(container, updates, leaf_type), key)
                raise ValueError(_refusal(beside, path, current, new, noun))
    for container, key, new in changes:
        container[key] = new


def _refusal(container: Any, path: str, current: Any, new: Any, noun: str) -> str:
    if current is MISSING:
        return _no_such_entry(container, path, noun)
    return MISMATCH.format(path=path, current=_describe(current), new=_describe(new))


def _path_of(container: Any, tree: Any, leaf_type: type) -> str:
    found = flatten(tree, lambda node: isinstance(node, leaf_type))[1].containers(tree)
    return next(dotted(keys) for keys, one in found if one is container)


def put_back(destination: Any, present: Any, former: Any) -> None:
    """Replace each leaf of the tree `present` by that of `former`, where it is what stands in `destination`.

    >>> here, other, before = [object() for _ in range(3)]
    >>> tree = {"a": here, "b": other}
    >>> put_back(tree, {"a": here, "b": here}, {"a": before, "b": before})
    >>> tree == {"a": before, "b": other}
    True
    """
    pending: list[tuple[Any, Any, Any]] = [(present, former, destination)]
    for container, before, beside in descend(pending):
        for key, leaf in entries(container):
            current = beside.get(key, MISSING) if isinstance(beside, dict) else _listed(beside, key)
            if _is_container(leaf):
                pending.append((leaf, before[key], current))
            elif current is leaf:
                beside[key] = before[key]


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple))


def _is_inner(value: Any, leaf_type: type) -> bool:
    return _is_container(value) and not isinstance(value, leaf_type)


def _listed(container: Any, key: str | int) -> Any:
    """The entry of a list, or `MISSING`; those of a tuple cannot be replaced."""
    is_index = isinstance(container, list) and isinstance(key, int) and key < len(container)
    return container[key] if is_index else MISSING


def _describe(value: Any) -> str:
    return f"a value of type {type(value).__name__}" if not _is_container(value) else f"a {type(value).__name__}"


def _no_such_entry(destination: Any, path: str, noun: str) -> str:
    if isinstance(destination, list):
        count = f"{len(destination)} entr{'y' if len(destination) == 1 else 'ies'}"
        return f"The module has no {noun} `{path}`: the list there has {count}."
    names = ", ".join(str(name) for name in destination) if isinstance(destination, dict) else ""
    return f'The module has no {noun} named "{path}"; in that place it has: {names or "nothing"}.'
