"""Functions over trees: nested lists, tuples and dicts, such as the parameters of a model.

Positions in a tree are written as paths with dots: ``"layers.0.weight"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

from weft.checks import function_of, integer_of, wrong_type
from weft.tree import CONTAINERS, Filling, Structure, Unfinished, dotted, flatten, unfold

__all__ = ["tree_flatten", "tree_map", "tree_map_with_path", "tree_merge", "tree_reduce", "tree_unflatten"]


def __dir__() -> list[str]:
    return __all__


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return a tree like ``tree`` whose leaves are ``fn(leaf, ...)``.

    Each tree in ``rest`` gives a further argument: its node at the position of the leaf. It may have more entries than
    ``tree``. ``is_leaf(node)`` may declare a container to be a leaf.

    Raises:
        ValueError: a tree in ``rest`` lacks a position of ``tree``.

    >>> tree_map(lambda x, y: x + y, {"a": [1, 2]}, {"a": [10, 20], "b": 30})
    {'a': [11, 22]}
    """
    function_of("tree_map", "fn", fn)
    leaves, structure = _flattened("tree_map", tree, is_leaf)
    others = _flatten_rest("tree_map", structure, rest)
    return structure.unflatten([fn(*values) for values in zip(leaves, *others, strict=True)])


def tree_map_with_path(
    fn: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    path: Any = None,
) -> Any:
    """Return a tree like ``tree`` whose leaves are ``fn(path, leaf, ...)``, otherwise like `tree_map`.

    The path of a leaf begins with the argument ``path``, if it is given; if ``tree`` itself is a leaf, its path is
    ``path``. ``rest`` and ``is_leaf`` are as in `tree_map`.

    >>> tree_map_with_path(lambda path, x: f"{path}={x}", {"a": [1, 2]})
    {'a': ['a.0=1', 'a.1=2']}
    """
    function_of("tree_map_with_path", "fn", fn)
    leaves, structure = _flattened("tree_map_with_path", tree, is_leaf)
    others = _flatten_rest("tree_map_with_path", structure, rest)
    if path is not None and not isinstance(path, str):
        path = integer_of("tree_map_with_path", "path (if it is no string)", path)
    start = (path,) if path else ()
    paths = [dotted(start + keys) if keys else path for keys in structure.key_paths()]
    return structure.unflatten([fn(*values) for values in zip(paths, leaves, *others, strict=True)])


def _flattened(function: str, tree: Any, is_leaf: Callable[[Any], bool] | None) -> tuple[list[Any], Structure]:
    return flatten(tree, None if is_leaf is None else function_of(function, "is_leaf", is_leaf))


def _flatten_rest(function: str, structure: Structure, rest: tuple[Any, ...]) -> list[list[Any]]:
    flattened = []
    for number, tree in enumerate(rest, start=2):
        try:
            flattened.append(structure.flatten_up_to(tree))
        except ValueError as error:
            raise ValueError(f"[{function}] tree number {number} does not fit the first tree: {error}") from None
    return flattened


@overload
def tree_flatten(
    tree: Any,
    prefix: str = "",
    is_leaf: Callable[[Any], bool] | None = None,
    destination: list[tuple[str, Any]] | None = None,
) -> list[tuple[str, Any]]: ...
@overload
def tree_flatten(
    tree: Any,
    prefix: str = "",
    is_leaf: Callable[[Any], bool] | None = None,
    *,
    destination: dict[str, Any],
) -> dict[str, Any]: ...
def tree_flatten(
    tree: Any,
    prefix: str = "",
    is_leaf: Callable[[Any], bool] | None = None,
    destination: list[tuple[str, Any]] | dict[str, Any] | None = None,
) -> list[tuple[str, Any]] | dict[str, Any]:
    """Return the leaves of ``tree`` with their positions, as a list of pairs or in ``destination``.

    ``prefix`` is put before every position; it begins with a dot, which is removed. ``destination`` is a list to append
    to, or a dict to fill. ``is_leaf`` is as in `tree_map`.

    >>> tree_flatten({"layers": [{"weight": 1}, {"weight": 2}]})
    [('layers.0.weight', 1), ('layers.1.weight', 2)]
    >>> tree_flatten([5, 6], destination={})
    {'0': 5, '1': 6}
    """
    if destination is None:
        destination = []
    if not isinstance(prefix, str):
        raise wrong_type("tree_flatten", "prefix", "a string", prefix)
    leaves, structure = _flattened("tree_flatten", tree, is_leaf)
    positions = [dotted((prefix, *keys))[1:] for keys in structure.key_paths()]
    pairs = zip(positions, leaves, strict=True)
    if isinstance(destination, dict):
        destination.update(pairs)
    elif isinstance(destination, list):
        destination.extend(pairs)
    else:
        raise ValueError(
            f"[tree_flatten] destination must be a list, a dict or None, not {type(destination).__name__}."
        )
    return destination


def tree_unflatten(tree: list[tuple[str, Any]] | dict[str, Any]) -> Any:
    """Return the tree for which `tree_flatten` returned these pairs, or this dict, of positions and leaves.

    If all keys of a container are different numbers it becomes a list, with an empty dict for each missing number;
    tuples become lists, too.

    Raises:
        ValueError: a position occurs twice.

    >>> tree_unflatten([("layers.0.weight", 1), ("layers.1.weight", 2)])
    {'layers': [{'weight': 1}, {'weight': 2}]}
    """
    expected = "a list of pairs or a dict, of positions (strings) and leaves"
    try:
        given = iter(tree.items() if isinstance(tree, dict) else tree)
    except TypeError:
        raise wrong_type("tree_unflatten", "tree", expected, tree) from None
    pairs = list(given)
    if not all(map(_is_position_and_leaf, pairs)):
        raise wrong_type("tree_unflatten", "tree", expected, tree)
    return unfold(*_below_position("", pairs))


def _is_position_and_leaf(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str)


def _below_position(position: str, pairs: list[tuple[str, Any]]) -> tuple[Any, Filling]:
    """The tree at a position, with its filling for `unfold`; ``pairs`` are the positions and leaves below it."""
    if len(pairs) == 1 and pairs[0][0] == "":
        return pairs[0][1], None
    if pairs and not any(key for key, _ in pairs):
        raise ValueError(f"[tree_unflatten] the position {position!r} is given {len(pairs)} times.")
    children: dict[str, list[tuple[str, Any]]] = {}
    for key, value in pairs:
        first, _, remainder = key.partition(".")
        children.setdefault(first, []).append((remainder, value))
    inside = f"{position}." if position else ""
    numbered = {int(key): below for key, below in children.items() if key.isdecimal()}
    if len(numbered) < len(children):  # a key is no number, or two keys are the same number (1 and 01)
        return {}, (pairs, _entries_below(inside, children.items()))
    everything = [(number, numbered.get(number)) for number in range(max(numbered, default=-1) + 1)]
    return [], (pairs, _entries_below(inside, everything))


def _entries_below(
    inside: str, children: Iterable[tuple[Any, list[tuple[str, Any]] | None]]
) -> Iterator[tuple[Any, Any, Filling]]:
    for key, below in children:
        if below is None:
            yield key, {}, None
        elif len(below) == 1 and below[0][0] == "":
            yield key, below[0][1], None
        else:
            yield key, *_below_position(f"{inside}{key}", below)


def tree_reduce(
    fn: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = None,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Return ``fn(... fn(fn(initializer, leaf), leaf) ..., leaf)`` over the leaves from left to right.

    Without an initializer, the first leaf is used as one; if ``tree`` has no leaves, the result is the initializer.
    ``is_leaf`` is as in `tree_map`.

    >>> tree_reduce(lambda total, x: total + x, {"a": [1, 2], "b": 3})
    6
    """
    function_of("tree_reduce", "fn", fn)
    accumulator = initializer
    for leaf in _flattened("tree_reduce", tree, is_leaf)[0]:
        accumulator = leaf if accumulator is None else fn(accumulator, leaf)
    return accumulator


def tree_merge(tree_a: Any, tree_b: Any, merge_fn: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return one tree with the leaves of both; ``None`` and empty containers are replaced by the other tree's node.

    ``merge_fn(a, b)`` combines two leaves at the same position. Lists and tuples are merged element by element, with
    the remaining elements of the longer one, and have the type in ``tree_a``; keys are in the order of ``tree_a``, then
    of ``tree_b``.

    Raises:
        ValueError: both trees have a leaf at one position and there is no ``merge_fn``.

    >>> tree_merge({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3})
    {'a': {'x': 1, 'y': 2}, 'b': 3}
    """
    if merge_fn is not None:
        function_of("tree_merge", "merge_fn", merge_fn)
    return unfold(*_merged(tree_a, tree_b, merge_fn))


MergeFunction: TypeAlias = Callable[[Any, Any], Any] | None


def _merged(a: Any, b: Any, merge_fn: MergeFunction) -> tuple[Any, Filling]:
    """The merged tree, with its filling for `unfold`."""
    if merge_fn is not None and _is_leaf(a) and _is_leaf(b):
        return merge_fn(a, b), None
    if _is_blank(a) or _is_blank(b):
        return _merge_blank(a, b, merge_fn), None
    if isinstance(a, dict) and isinstance(b, dict):
        return {}, (a, _merged_items(a, b, merge_fn))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        make = getattr(type(a), "_make", type(a))
        return [] if make is list else Unfinished(make), (a, _merged_elements(a, b, merge_fn))
    return _merge_values(a, b, merge_fn), None


def _merged_items(a: dict[Any, Any], b: dict[Any, Any], merge_fn: MergeFunction) -> Iterator[tuple[Any, Any, Filling]]:
    for key, value in a.items():
        yield (key, *_merged(value, b[key], merge_fn)) if key in b else (key, value, None)
    for key, value in b.items():
        if key not in a:
            yield key, value, None


def _merged_elements(a: Sequence[Any], b: Sequence[Any], merge_fn: MergeFunction) -> Iterator[tuple[Any, Any, Filling]]:
    for mine, other in zip(a, b, strict=False):
        yield (None, *_merged(mine, other, merge_fn))
    for value in [*a[len(b) :], *b[len(a) :]]:
        yield None, value, None


def _is_leaf(tree: Any) -> bool:
    return tree is not None and not isinstance(tree, CONTAINERS)


def _is_blank(tree: Any) -> bool:
    return tree is None or (isinstance(tree, CONTAINERS) and not tree)


def _merge_blank(tree_a: Any, tree_b: Any, merge_fn: Callable[[Any, Any], Any] | None) -> Any:
    if not _is_blank(tree_b):
        return tree_b
    if not _is_blank(tree_a) or (tree_b is None and tree_a is not None):
        return tree_a
    if tree_a is None and tree_b is None:
        return _merge_values(tree_a, tree_b, merge_fn)
    if tree_a is not None and type(tree_a) is not type(tree_b):
        raise ValueError(f"[tree_merge] cannot merge {type(tree_a).__name__} with {type(tree_b).__name__}.")
    return tree_b


def _merge_values(a: Any, b: Any, merge_fn: Callable[[Any, Any], Any] | None) -> Any:
    if merge_fn is None:
        raise ValueError(
            f"[tree_merge] both trees have something at one position, a {type(a).__name__} and a {type(b).__name__}; "
            "pass merge_fn to say which one counts."
        )
    return merge_fn(a, b)
