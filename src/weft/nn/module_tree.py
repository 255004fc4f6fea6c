"""Walks over the containers of a module: mapping what is inside, and replacing it in place.

A module is a tree of dicts (modules are dicts too), lists and leaves. Members are named by dotted paths:
``layers.0.weight`` is the weight of the first entry of the list ``layers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from weft.tree import flatten

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


def entries(container: dict[str, Any] | list[Any] | tuple[Any, ...]) -> Iterable[tuple[str | int, Any]]:
    """The keys (or indices) of a container with their values.

    >>> list(entries(["a", "b"]))
    [(0, 'a'), (1, 'b')]
    """
    return container.items() if isinstance(container, dict) else enumerate(container)


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths.

    >>> named_leaves({"layers": [1, {"weight": 2}]})
    [('layers.0', 1), ('layers.1.weight', 2)]
    """
    leaves, structure = flatten(tree, is_leaf)
    return [(".".join(map(str, keys)), leaf) for keys, leaf in zip(structure.key_paths(), leaves, strict=True)]


def path_of_cycle(tree: dict[str, Any] | list[Any]) -> str | None:
    """The path of a dict or list in a tree that is inside of itself, if there is one.

    >>> tree = {"a": [1, 2]}
    >>> tree["a"].append(tree)
    >>> path_of_cycle(tree)
    'a.2'
    """
    above = [("", tree, iter(entries(tree)))]
    while above:
        path, _, rest = above[-1]
        found = next(((key, entry) for key, entry in rest if isinstance(entry, (dict, list))), None)
        if found is None:
            above.pop()
            continue
        key, entry = found
        here = join_path(path, key)
        if any(container is entry for _, container, _ in above):
            return here
        above.append((here, entry, iter(entries(entry))))
    return None


def map_container(value: Any, visit: Callable[[str | int, Any], Any]) -> Any:
    """A dict or list like `value`, with `visit(key, entry)` in place of each entry.

    >>> map_container({"a": 1, "b": 2}, lambda key, entry: entry + 1)
    {'a': 2, 'b': 3}
    """
    if isinstance(value, dict):
        return {key: visit(key, entry) for key, entry in value.items()}
    return [visit(index, entry) for index, entry in enumerate(value)]


def replace_leaves(destination: Any, updates: Any, leaf_type: type, noun: str, strict: bool, path: str = "") -> None:
    """Put the leaves of the tree `updates` at the same paths into `destination`.

    Empty containers in `updates` stand for "nothing to replace here", whatever is there. With `strict`, what
    has no entry in `destination` or does not fit there raises `ValueError`; otherwise it is skipped.

    >>> tree = {"a": [1, 2], "b": 3}
    >>> replace_leaves(tree, {"a": [{}, 5]}, int, "number", True)
    >>> tree
    {'a': [1, 5], 'b': 3}
    """
    for key, new in entries(updates):
        here = join_path(path, key)
        if not _has(destination, key):
            if strict:
                raise ValueError(_no_such_entry(destination, here, noun))
            continue
        current = destination[key]
        if isinstance(new, leaf_type) and isinstance(current, leaf_type):
            destination[key] = new
        elif _is_container(new) and not isinstance(new, leaf_type) and _is_container(current):
            replace_leaves(current, new, leaf_type, noun, strict, here)
        elif strict and not (_is_container(new) and len(new) == 0 and not isinstance(new, leaf_type)):
            raise ValueError(MISMATCH.format(path=here, current=_describe(current), new=_describe(new)))


# This and `replace_leaves` walk by hand, over two trees of which one may lack what the other has.
def put_back(destination: Any, present: Any, former: Any) -> None:
    """Replace each leaf of the tree `present` by that of `former`, where it is what stands in `destination`.

    >>> here, other, before = [object() for _ in range(3)]
    >>> tree = {"a": here, "b": other}
    >>> put_back(tree, {"a": here, "b": here}, {"a": before, "b": before})
    >>> tree == {"a": before, "b": other}
    True
    """
    for key, leaf in entries(present):
        if not _has(destination, key):
            continue
        if _is_container(leaf):
            put_back(destination[key], leaf, former[key])
        elif destination[key] is leaf:
            destination[key] = former[key]


def _is_container(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple))


def _has(container: Any, key: str | int) -> bool:
    if isinstance(container, dict):
        return key in container
    return isinstance(container, list) and isinstance(key, int) and key < len(container)


def _describe(value: Any) -> str:
    return f"a value of type {type(value).__name__}" if not _is_container(value) else f"a {type(value).__name__}"


def _no_such_entry(destination: Any, path: str, noun: str) -> str:
    if isinstance(destination, list):
        count = f"{len(destination)} entr{'y' if len(destination) == 1 else 'ies'}"
        return f"The module has no {noun} `{path}`: the list there has {count}."
    names = ", ".join(str(name) for name in destination) if isinstance(destination, dict) else ""
    return f'The module has no {noun} named "{path}"; in that place it has: {names or "nothing"}.'
