"""Nested containers taken apart and put together; the public functions are compared with real MLX's."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import utils
from weft.tree import MISSING, Structure, broadcast_prefix, flatten, leaves_of


class Point(NamedTuple):
    x: Any
    y: Any


class Parameters(dict):
    """A dict subclass, as modules are."""


class Layers(list):
    pass


class Leaf:
    pass


def trees():
    leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3))
    keys = st.one_of(st.text(alphabet="abc", max_size=2), st.integers(0, 3))

    def nest(children):
        return st.one_of(
            st.lists(children, max_size=4),
            st.lists(children, max_size=4).map(tuple),
            st.dictionaries(keys, children, max_size=4),
            st.builds(Point, children, children),
        )

    return st.recursive(leaves, nest, max_leaves=20)


def count_leaves(tree) -> int:
    if not isinstance(tree, (list, tuple, dict)):
        return 1
    return sum(count_leaves(child) for child in (tree.values() if isinstance(tree, dict) else tree))


def nested_tuples(depth: int, innermost: Any) -> Any:
    tree = innermost
    for _ in range(depth):
        tree = (tree,)
    return tree


def nested_lists(depth: int, innermost: Any) -> Any:
    tree = innermost
    for _ in range(depth):
        tree = [tree]
    return tree


@given(trees())
def test_round_trip(tree):
    leaves, structure = flatten(tree)
    assert structure.num_leaves == len(leaves) == count_leaves(tree)
    assert leaves_of(tree) == leaves
    again = structure.unflatten(leaves)
    assert again == tree
    assert repr(again) == repr(tree)
    assert flatten(again)[1] == structure
    assert pickle.loads(pickle.dumps(structure)) == structure


@given(trees())
def test_shapes_of_text(tree):
    leaves, structure = flatten(tree)

    class Star:
        def __repr__(self):
            return "*"

    assert repr(structure) == repr(structure.unflatten([Star() for _ in leaves]))


@given(trees(), trees())
def test_structures_are_equal_if_trees_nest_alike(tree, other):
    structure, other_structure = flatten(tree)[1], flatten(other)[1]
    alike = repr(structure) == repr(other_structure)
    assert (structure == other_structure) is alike
    if alike:
        assert hash(structure) == hash(other_structure)


@given(trees())
def test_paths_lead_to_the_leaves(tree):
    leaves, structure = flatten(tree)
    for path, keys, leaf in zip(structure.paths(), structure.key_paths(), leaves, strict=True):
        node = tree
        for key in keys:
            node = node[key]
        assert node is leaf
        assert eval(f"tree{path}", {"tree": tree}) is leaf


@given(trees(), st.integers(0, 3))
def test_leaf_broadcasts_over_any_tree(tree, value):
    leaves, structure = flatten(tree)
    assert broadcast_prefix(value, structure) == [value] * len(leaves)
    if leaves:
        assert broadcast_prefix(tree, structure) == leaves


@given(trees())
def test_unflatten_into_another_tree_gives_the_structure(tree):
    leaves, structure = flatten(tree)
    for target in ([], {}, [1, [2]], {"a": {"b": 1}, "c": ()}, copy.deepcopy(tree)):
        result = structure.unflatten_into(target, leaves)
        assert flatten(result) == (leaves, structure)


@pytest.mark.parametrize(
    ("tree", "leaves", "text"),
    [
        (5, [5], "*"),
        (None, [None], "*"),
        ((), [], "()"),
        ((1,), [1], "(*,)"),
        ([1, (2, 3)], [1, 2, 3], "[*, (*, *)]"),
        ({"b": 1, "a": {}}, [1], "{'b': *, 'a': {}}"),
        (Point(1, [2]), [1, 2], "Point(x=*, y=[*])"),
        (Layers([1]), [1], "Layers([*])"),
        (Parameters(w=1), [1], "{'w': *}"),
        (list(range(50)), list(range(50)), "[" + ", ".join("*" * 50) + "]"),
    ],
)
def test_flatten(tree, leaves, text):
    found, structure = flatten(tree)
    assert found == leaves_of(tree) == leaves
    assert repr(structure) == text


def test_kinds_of_containers():
    leaves, structure = flatten([Point(1, 2), Layers([3]), Parameters(w=4), OrderedDict(b=5), defaultdict(int, c=6)])
    again = structure.unflatten(leaves)
    assert [type(node) for node in again] == [Point, Layers, dict, dict, dict]
    assert flatten([1])[1] != flatten((1,))[1] != flatten(Layers([1]))[1]
    assert flatten(Point(1, 2))[1] != flatten((1, 2))[1]
    assert flatten(Parameters(w=1))[1] == flatten({"w": 1})[1]


def test_order_of_keys_is_part_of_the_structure():
    ab, ba = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert flatten(ab)[1] != flatten(ba)[1]
    assert flatten(ba)[0] == [2, 1]
    assert list(flatten(ba)[1].unflatten([2, 1])) == ["b", "a"]
    assert flatten(ab)[1].flatten_up_to(ba) == [1, 2]


def test_is_leaf():
    leaves, structure = flatten([[1], (2, [3])], is_leaf=lambda node: isinstance(node, list) and 3 in node)
    assert leaves == [1, 2, [3]]
    assert structure.unflatten("abc") == [["a"], ("b", "c")]
    leaves, structure = flatten((1, 2), is_leaf=lambda node: isinstance(node, tuple))
    assert (leaves, repr(structure)) == ([(1, 2)], "*")


def test_wrong_number_of_leaves():
    structure = flatten({"a": [1, 2]})[1]
    for leaves in ([1], [1, 2, 3]):
        with pytest.raises(ValueError, match=rf"\{{'a': \[\*, \*\]\}} has 2 leaves, but {len(leaves)} were given"):
            structure.unflatten(leaves)
        with pytest.raises(ValueError, match="has 2 leaves"):
            structure.unflatten_into({}, leaves)


def test_depth_is_no_limit():
    depth = 10_000
    tree = nested_lists(depth, {"x": 1, "y": 2})
    leaves, structure = flatten(tree)
    assert leaves == [1, 2]
    assert flatten(nested_lists(depth, {"x": 3, "y": 4}))[1] == structure
    assert flatten(nested_lists(depth + 1, {"x": 3, "y": 4}))[1] != structure
    node = structure.unflatten([5, 6])
    for _ in range(depth):
        (node,) = node
    assert node == {"x": 5, "y": 6}
    assert structure.unflatten_into(tree, [7, 8]) is tree
    assert structure.flatten_up_to(tree) == [7, 8]
    assert broadcast_prefix(None, structure) == [None, None]
    assert [len(keys) for keys in structure.key_paths()] == [depth + 1] * 2
    assert repr(structure) == "[" * depth + "{'x': *, 'y': *}" + "]" * depth
    assert utils.tree_reduce(lambda a, b: a + b, utils.tree_map(lambda x: 2 * x, tree)) == 30


def test_depth_is_no_limit_in_keys():
    key: Any = 1
    for _ in range(3000):
        key = (key,)
    structure = flatten({key: 5})[1]
    assert flatten({key: 6})[1] == structure
    assert flatten({((1,), 2): 0})[1] == flatten({((1,), 2): 1})[1]
    for other in ((1.0,), (True,), (1.0, 2), (1,)):
        assert flatten({(1, 2): 0, (other, 2): 1})[1] != flatten({(1, 2): 0, ((1,), 2.0): 1})[1]


def test_depth_is_no_limit_where_a_tree_is_built_from_the_top():
    tree, other = nested_lists(10_000, {"x": 1}), nested_lists(10_000, {"y": 2})
    positions = [("0." * 10_000 + "x", 1), ("0." * 10_000 + "y", 2)]
    assert utils.tree_flatten(utils.tree_merge(tree, other)) == positions
    assert utils.tree_flatten(utils.tree_unflatten(positions)) == positions
    merged = utils.tree_merge(nested_tuples(10_000, 1), nested_tuples(10_000, 2), lambda a, b: a + b)
    assert flatten(merged) == flatten(nested_tuples(10_000, 3))


def test_merging_trees_that_contain_themselves():
    first: dict[str, Any] = {"x": [0]}
    second: dict[str, Any] = {"x": [0]}
    first["x"].append(first)
    second["x"].append(second)
    with pytest.raises(ValueError, match="a dict contains itself"):
        utils.tree_merge(first, second, lambda a, b: a)


def test_what_another_tree_has_in_the_same_positions():
    structure = flatten({"a": [0, 0], "b": 0, "c": {"d": 0}})[1]
    assert structure.leaves_beside({"c": {"d": 4}, "b": [3], "a": (1,)}) == [1, MISSING, [3], 4]
    assert structure.leaves_beside({"a": {0: 1}, "c": 5}) == [MISSING] * 4
    assert not any(structure.leaves_beside(None))


def test_cycles():
    itself: list[Any] = [1]
    itself.append(itself)
    through: dict[str, Any] = {"a": (1, {"b": 2})}
    through["a"][1]["c"] = [through]
    for tree, kind in ((itself, "list"), (through, "dict")):
        for walk in (flatten, leaves_of):
            with pytest.raises(ValueError, match=f"a {kind} contains itself"):
                walk(tree)
    assert flatten(itself, is_leaf=lambda node: node is itself)[0] == [itself]


def test_the_same_container_many_times_is_no_cycle():
    shared = [1, 2]
    leaves, structure = flatten([[shared] * 2000, shared])
    assert len(leaves) == 4002
    assert len(structure.unflatten(leaves)[0]) == 2000


def test_leaves_are_let_go():
    leaf = Leaf()
    watched = weakref.ref(leaf)
    structure = flatten([{"a": leaf}, (leaf,)])[1]
    del leaf
    gc.collect()
    assert watched() is None
    assert structure.num_leaves == 2


def test_unflatten_into_keeps_the_containers():
    inner, names = Parameters(w=1, b=2), ["x"]
    state = [inner, {"step": 0, "old": 1}, names]
    leaves, structure = flatten([{"w": 10, "b": 20}, {"step": 1, "new": [3]}, ["y", "z"]])
    kept = list(state)
    assert structure.unflatten_into(state, leaves) is state
    assert all(mine is old for mine, old in zip(state, kept, strict=True))
    assert state == [{"w": 10, "b": 20}, {"step": 1, "new": [3]}, ["y", "z"]]
    assert list(state[1]) == ["step", "new"]


def test_unflatten_into_tuples():
    inner: dict[str, int] = {"w": 1}
    unchanged = ([inner], Point(inner, ()))
    leaves, structure = flatten(([{"w": 2}], Point({"w": 2}, ())))
    assert structure.unflatten_into(unchanged, leaves) is unchanged
    assert inner == {"w": 2}
    result = flatten(({"w": 3}, 4))[1].unflatten_into((inner, 0), [3, 4])
    assert result == ({"w": 3}, 4)
    assert result[0] is inner


def test_flatten_up_to():
    structure = flatten({"a": (0, 0), "b": 0})[1]
    assert structure.flatten_up_to({"c": 0, "b": {"deep": 1}, "a": [2, 3, 4]}) == [2, 3, {"deep": 1}]
    with pytest.raises(ValueError, match=r"at the top, expected a dict with the keys \['a', 'b'\], got .*\['a'\]"):
        structure.flatten_up_to({"a": (1, 2)})
    with pytest.raises(ValueError, match=r"at \['a'\], expected a tuple of 2 elements, got a list of 1 elements"):
        structure.flatten_up_to({"a": [1], "b": 2})
    with pytest.raises(ValueError, match=r"at \['a'\], expected a tuple of 2 elements, got a value of type int"):
        structure.flatten_up_to({"a": 1, "b": 2})


def test_broadcast_prefix():
    structure = flatten(([1, {"x": 2, "y": 3}], 4))[1]
    assert broadcast_prefix((0, None), structure) == [0, 0, 0, None]
    assert broadcast_prefix([[0, {"y": 1, "x": None}], 2], structure) == [0, None, 1, 2]
    for prefix, where in (
        ((0,), r"in_axes: at the top, expected a tuple of 2 elements, got a tuple of 1 elements"),
        ((0, 1, 2), "in_axes: at the top"),
        ((0, [1]), r"in_axes: at \[1\], expected a single value, got a list of 1 elements"),
        (([0, {"x": 1}], 1), r"in_axes: at \[0\]\[1\], expected a dict with the keys \['x', 'y'\], got .*\['x'\]"),
        (([0, {"x": 1, "y": 1, "z": 1}], 1), r"at \[0\]\[1\]"),
        (({"x": 1}, 1), r"at \[0\], expected a list of 2 elements, got a dict"),
    ):
        with pytest.raises(ValueError, match=where):
            broadcast_prefix(prefix, structure, "in_axes")


def test_structure_compares_with_anything():
    structure = flatten([1])[1]
    assert structure != "[*]"
    assert structure == Structure(*structure.__reduce__()[1])


@pytest.fixture(scope="module")
def mlx_utils(mlx_package):
    return mlx_package.utils


def pair(*arguments):
    return arguments


def is_list(node) -> bool:
    return isinstance(node, list)


NESTED = {"b": [1, 2, {"c": 3}], "a": (4, None), "d": {}, "e": []}

# Calls, by the name of the function, whose result must be the same as MLX's.
SAME_AS_MLX: list[tuple[str, tuple, dict[str, Any]]] = [
    ("tree_flatten", (NESTED,), {}),
    ("tree_flatten", (NESTED,), {"prefix": ".model"}),
    ("tree_flatten", (NESTED,), {"is_leaf": is_list}),
    ("tree_flatten", (NESTED,), {"destination": {}}),
    ("tree_flatten", ([1],), {"destination": {"first": 0}}),
    ("tree_flatten", ([1],), {"destination": [("first", 0)]}),
    ("tree_flatten", (5,), {}),
    ("tree_flatten", (5, ".x"), {}),
    ("tree_flatten", (Point(1, [2]),), {}),
    ("tree_flatten", ({1: 2, (1, 2): {"": [3]}, "a.b": 4},), {}),
    ("tree_unflatten", ([("a.0", 1), ("a.1", 2), ("b.c", 3)],), {}),
    ("tree_unflatten", ([("a.1", 1), ("a.0", 2)],), {}),
    ("tree_unflatten", ([("a.1", 1), ("a.3", 2)],), {}),
    ("tree_unflatten", ([("10", 1), ("9", 2)],), {}),
    ("tree_unflatten", ([("0", 1), ("x", 2)],), {}),
    ("tree_unflatten", ([("0.0", 1), ("0.1", 3)],), {}),
    ("tree_unflatten", ([("a", 1), ("a.b", 2)],), {}),
    ("tree_unflatten", ([("", 5)],), {}),
    ("tree_unflatten", ({"": 5},), {}),
    ("tree_unflatten", ([],), {}),
    ("tree_unflatten", ({},), {}),
    ("tree_unflatten", ({"a.0": 1, "a.1.b": 2},), {}),
    ("tree_unflatten", ([("\u00b2", 1)],), {}),
    ("tree_unflatten", ([("a.1", 1), ("a.01", 2), ("a.0", 0)],), {}),
    ("tree_unflatten", ([("a.01", 5)],), {}),
    ("tree_unflatten", ([("a..b", 1)],), {}),
    ("tree_unflatten", ([("..", 1)],), {}),
    ("tree_map", (pair, NESTED), {}),
    ("tree_map", (pair, NESTED), {"is_leaf": is_list}),
    ("tree_map", (pair, Point(1, Layers([2]))), {}),
    ("tree_map", (pair, Parameters(w=1)), {}),
    ("tree_map", (pair, {"a": 1, "b": 2}, {"b": 3, "c": 5, "a": [4]}), {}),
    ("tree_map", (pair, [1, 2], (3, 4, 5), [6, {}]), {}),
    ("tree_map", (pair, 1, [2, 3]), {}),
    ("tree_map_with_path", (pair, NESTED), {}),
    ("tree_map_with_path", (pair, NESTED, NESTED), {}),
    ("tree_map_with_path", (pair, NESTED), {"path": "model"}),
    ("tree_map_with_path", (pair, [[1]]), {"path": ""}),
    ("tree_map_with_path", (pair, {3: Point(1, 2)}), {"path": 9}),
    ("tree_map_with_path", (pair, 5), {}),
    ("tree_map_with_path", (pair, 5), {"path": "model"}),
    ("tree_map_with_path", (pair, NESTED), {"is_leaf": is_list}),
    ("tree_reduce", (pair, NESTED), {}),
    ("tree_reduce", (pair, NESTED, 10), {}),
    ("tree_reduce", (pair, NESTED), {"initializer": 1, "is_leaf": is_list}),
    ("tree_reduce", (pair, [None, 1, None]), {}),
    ("tree_reduce", (pair, []), {}),
    ("tree_reduce", (pair, [], 5), {}),
    ("tree_merge", ({"a": {"c": 1}}, {"a": {"d": 2}, "b": 3}), {}),
    ("tree_merge", ({"a": 1}, {"a": 2}, pair), {}),
    ("tree_merge", ([1], [2, 3], pair), {}),
    ("tree_merge", ([1, 2], [3], pair), {}),
    ("tree_merge", ([None, 2], [3, None]), {}),
    ("tree_merge", ((None, 2), (3, None, 5)), {}),
    ("tree_merge", (Point(None, 1), Point(2, None)), {}),
    ("tree_merge", ([{"a": 1}], [{"b": 2}, {"c": 3}]), {}),
    ("tree_merge", ([1], (None, 2)), {}),
    ("tree_merge", ({"a": 1}, [1], pair), {}),
    ("tree_merge", (5, {"a": 1}, pair), {}),
    ("tree_merge", (None, None, pair), {}),
    ("tree_merge", ({"a": None}, {"a": {"b": 1}}), {}),
    ("tree_merge", (None, 5), {}),
    ("tree_merge", (0, None), {}),
    ("tree_merge", ({}, 5), {}),
    ("tree_merge", (5, ()), {}),
    ("tree_merge", ([], (1,)), {}),
    ("tree_merge", ((), [1]), {}),
    ("tree_merge", ({}, {}), {}),
    ("tree_merge", ([], []), {}),
    ("tree_merge", ([], {"a": 1}), {}),
    ("tree_merge", ({"a": 1}, []), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "keywords"), SAME_AS_MLX)
def test_helpers_against_mlx(mlx_utils, name, arguments, keywords):
    ours = getattr(utils, name)(*copy.deepcopy(arguments), **copy.deepcopy(keywords))
    theirs = getattr(mlx_utils, name)(*copy.deepcopy(arguments), **copy.deepcopy(keywords))
    assert ours == theirs
    assert type(ours) is type(theirs)
    if name != "tree_merge":
        assert repr(ours) == repr(theirs)


def named_trees():
    """Trees that the positions of their leaves describe completely: lists and dicts with leaves, and keys that are not
    numbers."""
    keys = st.text(alphabet="abc", min_size=1, max_size=2)
    return st.recursive(
        st.integers(),
        lambda children: st.one_of(
            st.lists(children, min_size=1, max_size=4), st.dictionaries(keys, children, min_size=1, max_size=4)
        ),
        max_leaves=20,
    )


@given(named_trees())
def test_positions_come_back(tree):
    pairs = utils.tree_flatten(tree)
    positions = utils.tree_flatten(tree, destination={})
    assert list(positions.items()) == pairs
    assert utils.tree_unflatten(pairs) == utils.tree_unflatten(positions) == tree


def test_merge_keeps_the_order_of_keys():
    merged = utils.tree_merge({"b": 1, "a": 2}, {"c": 3, "a": None})
    assert list(merged.items()) == [("b", 1), ("a", 2), ("c", 3)]
    assert utils.tree_merge({}, None) == utils.tree_merge(None, {}) == {}


def test_helpers_say_what_does_not_fit():
    with pytest.raises(
        ValueError, match=r"^\[tree_map\] tree number 3 does not fit the first tree: at \['a'\], expected"
    ):
        utils.tree_map(pair, {"a": [1, 2]}, {"a": [1, 2]}, {"a": [1]})
    with pytest.raises(ValueError, match=r"^\[tree_map_with_path\] tree number 2"):
        utils.tree_map_with_path(pair, {"a": 1}, 5)
    with pytest.raises(ValueError, match=r"^\[tree_flatten\] destination must be a list, a dict or None, not int"):
        utils.tree_flatten([1], destination=5)  # type: ignore[call-overload]  # on purpose
    with pytest.raises(ValueError, match=r"position 'a\.b' is given 2 times"):
        utils.tree_unflatten([("a.b", 1), ("a.b", 2), ("a.c", 3)])
    with pytest.raises(ValueError, match=r"position 'a' is given 2 times"):
        utils.tree_unflatten([("a", 1), ("a", 2)])
    with pytest.raises(ValueError, match="something at one position, a int and a float"):
        utils.tree_merge({"a": 1}, {"a": 2.0})
    with pytest.raises(ValueError, match="cannot merge dict with list"):
        utils.tree_merge({}, [])
    with pytest.raises(ValueError, match="something at one position"):
        utils.tree_merge(None, None)
