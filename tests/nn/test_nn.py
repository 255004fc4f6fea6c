"""Modules of `weft.nn`: their tree, the functions that replace parts of it, freezing, files."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from weft.utils import tree_flatten, tree_map, tree_unflatten


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=rtol, atol=atol)


def shapes(tree):
    return tree_map(lambda array: array.shape, tree)


class Nested(nn.Module):
    """Parameters and modules in every kind of container."""

    def __init__(self):
        super().__init__()
        self.weight: Any = mx.ones((2,))
        self._hidden = mx.zeros((1,))
        self.count = 3
        self.layers: list[Any] = [nn.Linear(2, 3), mx.ones((4,))]
        self.table: dict[str, Any] = {"act": nn.ReLU(), "inner": [mx.ones((5,))], "deep": {"weight": mx.ones((6,))}}
        self.fixed = (nn.Linear(1, 1), mx.ones((7,)))
        self.function = nn.relu

    def __call__(self, x):
        return x


def test_parameters_are_the_arrays_in_attributes_lists_and_dicts():
    expected = {
        "weight": (2,),
        "layers": [{"weight": (3, 2), "bias": (3,)}, (4,)],
        "table": {"act": {}, "inner": [(5,)], "deep": {"weight": (6,)}},
    }
    assert shapes(Nested().parameters()) == expected
    assert shapes(Nested().trainable_parameters()) == expected


def test_only_arrays_and_containers_become_entries():
    model = Nested()
    assert set(model) == {"weight", "_hidden", "layers", "table", "fixed"}
    assert (model.count, model.function) == (3, nn.relu)


def test_assigning_another_kind_of_value_moves_the_attribute():
    model = Nested()
    model.weight = None
    assert "weight" not in model
    assert model.weight is None
    model.weight = mx.zeros((3,))
    assert model.weight is model["weight"]
    assert "weight" not in vars(model)
    del model.weight
    assert not hasattr(model, "weight")


def test_missing_attributes_name_the_class():
    with pytest.raises(AttributeError, match="'Nested' object has no attribute 'absent'"):
        _ = Nested().absent
    with pytest.raises(AttributeError, match="absent"):
        del Nested().absent


def test_forgotten_super_init_is_named():
    class Careless(nn.Module):
        def __init__(self):
            self.weight = mx.ones((1,))

    with pytest.raises(AttributeError, match=r"Careless.*super\(\).__init__\(\)"):
        Careless().trainable_parameters()


@pytest.mark.parametrize("name", ["state", "keys", "update", "parameters"])
def test_names_that_could_not_be_read_back_are_refused(name):
    with pytest.raises(AttributeError, match=name):
        setattr(nn.Module(), name, mx.ones((1,)))


def test_state_is_the_module_itself():
    model = Nested()
    assert model.state is model
    assert "_hidden" in model.state


def test_children_leaf_modules_and_named_modules():
    model = nn.Sequential(Nested(), nn.Sequential(nn.Tanh()))
    first, second = model.layers
    assert model.children() == {"layers": [first, second]}
    leaves = dict(tree_flatten(model.leaf_modules(), is_leaf=nn.Module.is_module))
    assert list(leaves) == ["layers.0.layers.0", "layers.0.table.act", "layers.1.layers.0"]
    assert [name for name, _ in model.named_modules()] == [
        "",
        "layers.1",
        "layers.1.layers.0",
        "layers.0",
        "layers.0.table.act",
        "layers.0.layers.0",
    ]
    assert [type(module) for _, module in model.named_modules()] == [type(module) for module in model.modules()]


def test_repr_shows_the_tree():
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(0.2), nn.GELU()))) == (
        "Sequential(\n"
        "  (layers.0): Linear(input_dims=2, output_dims=3, bias=True)\n"
        "  (layers.1): Sequential(\n"
        "    (layers.0): Dropout(p=0.2)\n"
        "    (layers.1): GELU()\n"
        "  )\n"
        ")"
    )


def test_the_summary_counts_what_is_inside():
    model = Nested()
    model.layers.append(model.layers[0])
    found = nn.summary(model)
    assert [(layer.path, layer.depth) for layer in found.layers] == [
        ("", 0),
        ("layers.0", 1),
        ("layers.2", 1),
        ("table.act", 1),
    ]
    assert [layer.parameters for layer in found.layers] == [26, 9, 9, 0]
    model.set_dtype(mx.float16)
    model.layers[0].freeze(keys="bias")
    assert (nn.summary(model).trainable, nn.summary(model).bytes) == (23, 52)
    assert str(nn.summary(model)).endswith("26 parameters, 3 of them frozen: 52 B")
    with pytest.raises(TypeError, match=r"\[summary\] takes a Module; got list"):
        nn.summary([model])  # type: ignore[arg-type]


def test_filter_and_map_names_entries_by_path_inside_their_module():
    seen = []

    def record(module, key, value):
        seen.append((type(module).__name__, key))
        return isinstance(value, (dict, list))

    Nested().filter_and_map(record)
    assert ("Nested", "layers.1") in seen
    assert ("Nested", "table.deep.weight") in seen
    assert ("Linear", "weight") in seen


def test_filter_and_map_refuses_what_it_cannot_enter():
    with pytest.raises(RuntimeError, match=r"`weight` of `Nested`"):
        Nested().filter_and_map(lambda *_: True, is_leaf_fn=lambda *_: False)


def test_deep_copies_share_nothing():
    model = Nested()
    twin = copy.deepcopy(model)
    assert type(twin) is Nested
    twin.layers[0].bias = mx.zeros((3,))
    twin.eval()
    assert twin.layers[0].bias is not model.layers[0].bias
    assert model.training


def test_update_replaces_any_part_in_place():
    model = Nested()
    assert model.update({"layers": [{}, mx.zeros((1,))], "table": {"inner": [mx.zeros((2,))]}}) is model
    assert model.layers[1].shape == (1,)
    assert model.table["inner"][0].shape == (2,)
    assert model.weight.shape == (2,)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"absent": mx.ones((1,))}, 'no parameter named "absent"'),
        ({"count": mx.ones((1,))}, 'no parameter named "count"'),
        ({"layers": [{"absent": mx.ones((1,))}]}, r'no parameter named "layers\.0\.absent"'),
        ({"layers": [{}, {}, mx.ones((1,))]}, r"no parameter `layers\.2`: the list there has 2 entries"),
        ({"table": {"absent": mx.ones((1,))}}, r'"table\.absent"'),
        ({"weight": 3}, "`weight` is a value of type array and cannot be replaced by a value of type int"),
        ({"weight": {"x": mx.ones((1,))}}, "`weight`"),
        ({"layers": mx.ones((1,))}, "`layers` is a list"),
    ],
)
def test_update_refuses_what_has_no_place_unless_told_otherwise(parameters, message):
    with pytest.raises(ValueError, match=message):
        Nested().update(parameters)
    model = Nested().update(parameters, strict=False)
    assert shapes(model.parameters()) == shapes(Nested().parameters())


@pytest.mark.parametrize("method", ["update", "update_modules"])
def test_updates_take_dicts(method):
    with pytest.raises(ValueError, match="takes a dict"):
        getattr(Nested(), method)([1])


def test_update_modules_replaces_any_part_in_place():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh()))
    model.update_modules({"layers": [{}, {"layers": [nn.ReLU()]}]})
    assert isinstance(model.layers[0], nn.Linear)
    assert isinstance(model.layers[1].layers[0], nn.ReLU)
    model.update_modules({"layers": [nn.Dropout()]})
    assert isinstance(model.layers[0], nn.Dropout)
    with pytest.raises(ValueError, match='no sub-module named "absent"'):
        model.update_modules({"absent": nn.ReLU()})
    with pytest.raises(ValueError, match=r"`layers\.0`"):
        model.update_modules({"layers": [mx.ones((1,))]})
    with pytest.raises(ValueError, match="`weight`"):
        Nested().update_modules({"weight": nn.ReLU()})


def test_apply_and_set_dtype_convert_parameters_only():
    model = Nested()
    model.set_dtype(mx.float16)
    assert {array.dtype for _, array in tree_flatten(model.parameters())} == {mx.float16}
    assert model._hidden.dtype == mx.float32
    model.apply(lambda array: array + 1, lambda module, key, value: isinstance(module, Nested) and key == "weight")
    assert model.weight.tolist() == [2, 2]
    assert model.layers[1].tolist() == [1, 1, 1, 1]


def test_set_dtype_leaves_integers_alone_unless_told_otherwise():
    model = nn.Module()
    model.index = mx.array([1])
    model.set_dtype(mx.float16)
    assert model.index.dtype == mx.int32
    model.set_dtype(mx.float16, predicate=None)
    assert model.index.dtype == mx.float16


def test_freeze_takes_everything_out():
    model = Nested().freeze()
    assert tree_flatten(model.trainable_parameters()) == []
    assert shapes(model.unfreeze().trainable_parameters()) == shapes(Nested().parameters())


def test_freeze_by_name_goes_down_unless_told_otherwise():
    trainable = shapes(Nested().freeze(keys="weight").trainable_parameters())
    assert "weight" not in trainable
    assert trainable["layers"][0] == {"bias": (3,)}
    trainable = shapes(Nested().freeze(keys=["weight"], recurse=False).trainable_parameters())
    assert "weight" not in trainable
    assert set(trainable["layers"][0]) == {"weight", "bias"}
    model = Nested().freeze()
    model.unfreeze(keys="bias")
    assert [path for path, _ in tree_flatten(model.trainable_parameters())] == ["layers.0.bias"]


def test_freeze_without_recursion_leaves_sub_modules():
    trainable = Nested().freeze(recurse=False).trainable_parameters()
    assert [path for path, _ in tree_flatten(trainable)] == ["layers.0.weight", "layers.0.bias"]


@pytest.mark.parametrize("method", ["freeze", "unfreeze"])
def test_strict_freezing_knows_its_names(method):
    freeze = getattr(Nested(), method)
    freeze(keys="bias", strict=True)
    freeze(keys="absent")
    with pytest.raises(KeyError, match="absent"):
        freeze(keys="absent", strict=True)
    with pytest.raises(KeyError, match="bias"):
        freeze(keys="bias", strict=True, recurse=False)


def test_modes_reach_all_modules():
    model = nn.Sequential(nn.Dropout(), Nested())
    assert all(module.training for module in model.modules())
    assert model.eval() is model
    assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.train().modules())
    with pytest.raises(AttributeError):
        model.training = False


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_weights_survive_a_file(tmp_path, suffix):
    model, other = Nested(), Nested()
    file = tmp_path / f"weights.{suffix}"
    model.save_weights(file)
    assert other.load_weights(str(file)) is other
    saved, loaded = tree_flatten(model.parameters()), tree_flatten(other.parameters())
    assert [path for path, _ in saved] == [path for path, _ in loaded]
    assert all(mx.array_equal(a, b) for (_, a), (_, b) in zip(saved, loaded, strict=True))


def test_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.npz nor in \.safetensors"):
        nn.Linear(1, 1).save_weights(str(tmp_path / "weights.txt"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": mx.ones((2, 3))}, r"`weight` has shape \(3, 2\) in the model; got \(2, 3\)"),
        ({"bias": 1.0}, "`bias` must be an array; got float"),
        ({"extra": mx.ones((1,))}, "Parameters not in model: extra; strict=False skips them"),
        ({"bias": None}, "Missing parameters: bias; strict=False"),
    ],
)
def test_loading_is_strict(change, message):
    weights = {"weight": mx.ones((3, 2)), "bias": mx.ones((3,))} | change
    pairs = [(name, array) for name, array in weights.items() if array is not None]
    with pytest.raises(ValueError, match=message):
        nn.Linear(2, 3).load_weights(pairs)


def test_loading_loosely_takes_what_fits():
    model = nn.Linear(2, 3).load_weights([("bias", mx.zeros((3,))), ("extra", mx.ones((1,)))], strict=False)
    assert model.bias.tolist() == [0, 0, 0]
    assert set(model.parameters()) == {"weight", "bias"}
    model.load_weights([], strict=False)


@pytest.mark.parametrize("nothing", [[], {}])
def test_an_empty_tree_updates_nothing(nothing):
    """`tree_unflatten` returns an empty list where there is nothing to update, as for a module without parameters."""
    assert tree_unflatten([]) == []
    model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
    before = dict(tree_flatten(model))
    assert model.update(nothing) is model
    assert model.update_modules(nothing) is model
    assert nn.ReLU().update(nothing).parameters() == {}
    assert {name: value is before[name] for name, value in tree_flatten(model)} == dict.fromkeys(before, True)
    with pytest.raises(ValueError, match=r"\[update\] takes a dict of parameters; got list"):
        model.update([mx.zeros(2)])
    with pytest.raises(ValueError, match=r"\[update_modules\] takes a dict of modules; got list"):
        model.update_modules([nn.ReLU()])
