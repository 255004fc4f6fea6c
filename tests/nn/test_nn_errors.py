"""The errors of `weft.nn` for wrong settings, inputs and trees."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_map

UNTYPED: Any = nn  # so that the type checker lets wrong arguments pass


def linear() -> Any:
    return nn.Linear(2, 3)


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "text as a size": (lambda: UNTYPED.Linear("2", 3), TypeError, r"\[Linear\] input_dims must be an int; got '2'"),
    "a float as a size": (lambda: UNTYPED.Linear(2, 3.0), TypeError, r"\[Linear\] output_dims .* float"),
    "a negative size": (
        lambda: UNTYPED.Embedding(-1, 3),
        ValueError,
        r"\[Embedding\] num_embeddings .* at least 0; got -1",
    ),
    "a size of zero": (lambda: UNTYPED.Embedding(3, 0), ValueError, r"\[Embedding\] dims must be at least 1; got 0"),
    "NumPy floats as a size": (lambda: UNTYPED.Linear(2, np.ones(2)), TypeError, r"\[Linear\] output_dims .* ndarray"),
    "a list of approximations": (lambda: UNTYPED.GELU(["fast"]), ValueError, r"\[GELU\] approx .* got \['fast'\]"),
    "text for a norm": (lambda: UNTYPED.LayerNorm("a"), TypeError, r"\[LayerNorm\] dims .* 'a'"),
    "a negative norm": (lambda: UNTYPED.RMSNorm(-2), ValueError, r"\[RMSNorm\] dims .* -2"),
    "a list as input": (
        lambda: linear()([1.0, 2.0]),
        TypeError,
        r"\[Linear\(input_dims=2.*\] the input must be an array, .* list\. .*mx\.array",
    ),
    "nothing as input": (lambda: linear()(None), TypeError, r"\[Linear\(.*NoneType"),
    "numbers that are no rows": (
        lambda: UNTYPED.Embedding(3, 2)(mx.array([1.0])),
        ValueError,
        r"\[Embedding\(3, 2\)\] .* integers.* float32: .*astype\(mx\.int32\)",
    ),
    "nothing to normalise": (lambda: UNTYPED.LayerNorm(2)(None), TypeError, r"\[LayerNorm\(2, .*NoneType"),
    "text to normalise": (lambda: UNTYPED.RMSNorm(2)("ab"), TypeError, r"\[RMSNorm\(2, .* str"),
    "a list in Sequential": (
        lambda: UNTYPED.Sequential([linear()]),
        TypeError,
        r"\[Sequential\] module 0 cannot be called: \[Linear.*Sequential\(\*modules\)",
    ),
    "a number in Sequential": (lambda: UNTYPED.Sequential(linear(), 3), TypeError, r"\[Sequential\] module 1 .*: 3"),
    "a shape for an initialiser": (lambda: UNTYPED.init.he_normal()((2, 3)), TypeError, r"\[he_normal\] .* tuple"),
    "no function to differentiate": (
        lambda: UNTYPED.value_and_grad(linear(), None),
        TypeError,
        r"\[value_and_grad\] .* function; got NoneType",
    ),
    "arguments exchanged": (
        lambda: UNTYPED.value_and_grad(linear, linear()),
        TypeError,
        r"\[value_and_grad\] .* Module; got function",
    ),
    "no weights": (lambda: linear().load_weights(None), TypeError, r"\[load_weights\] .* NoneType"),
    "a number as weights": (lambda: linear().load_weights(3), TypeError, r"\[load_weights\] .* int"),
    "an array as weights": (lambda: linear().load_weights(mx.ones((3,))), TypeError, r"\[load_weights\] .* array"),
    "triples as weights": (lambda: linear().load_weights([("a", 1, 2)]), TypeError, r"\[load_weights\] .* pairs"),
    "numbers as paths": (
        lambda: linear().load_weights([(1, mx.ones((3,)))], strict=False),
        TypeError,
        r"\[load_weights\] paths are strings; got 1",
    ),
    "a number as a weight": (
        lambda: linear().load_weights([("x", 3)], strict=False),
        ValueError,
        r"\[load_weights\] `x` must be an array; got int",
    ),
    "NumPy as a weight": (
        lambda: linear().load_weights([("bias", np.ones(3))], strict=False),
        ValueError,
        r"`bias` must be an array; got ndarray: .*mx\.array",
    ),
    "a tree as weights": (
        lambda: UNTYPED.Sequential(linear()).load_weights({"layers": [linear().parameters()]}),
        ValueError,
        r"`layers` must be an array; got list: .*tree_flatten",
    ),
    "no file": (lambda: linear().save_weights(None), TypeError, r"\[save_weights\] file .* NoneType"),
    "a number to freeze": (lambda: linear().freeze(keys=3), TypeError, r"\[freeze\] keys .* 3"),
    "numbers to unfreeze": (lambda: linear().unfreeze(keys=["bias", 1]), TypeError, r"\[unfreeze\] keys .*'bias', 1"),
    "assigning the mode": (
        lambda: setattr(linear(), "training", False),
        AttributeError,
        r"\[Linear\] `training` .* `train\(\)` or `eval\(\)`",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_right(name: str) -> None:
    call, kind, message = CASES[name]
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    "function",
    ["relu", "leaky_relu", "elu", "gelu", "gelu_approx", "gelu_fast_approx", "silu", "sigmoid", "softplus", "softmax"],
)
def test_activations_take_numbers_not_lists(function: str) -> None:
    with pytest.raises(TypeError, match=r"^\[\w+\] \w+ must be an array.*Make an array of it with mx\.array"):
        getattr(nn, function)([1.0])
    if function != "softmax":
        assert mx.array_equal(getattr(nn, function)(2.0), getattr(nn, function)(mx.array(2.0)))


def test_layers_take_numpy_data() -> None:
    x = np.array([[1.0, 2.0]], np.float32)
    for layer in (linear(), UNTYPED.LayerNorm(2), UNTYPED.RMSNorm(2)):
        assert mx.array_equal(layer(x), layer(mx.array(x)))


def test_a_path_that_is_empty_leads_nowhere() -> None:
    model = linear()
    before = model.bias
    model.load_weights([("", mx.ones((1,))), ("bias.x", mx.ones((1,)))], strict=False)
    assert model.bias is before


def _its_own_child() -> nn.Module:
    model = linear()
    model.me = model
    return model


def _child_and_parent() -> nn.Module:
    parent, child = linear(), linear()
    parent.child, child.parent = [child], {"it": parent}
    return parent


def _list_in_itself() -> nn.Module:
    model = linear()
    entries: list[Any] = []
    entries.append(entries)
    model.entries = entries
    return model


@pytest.mark.parametrize(
    ("make", "path"),
    [(_its_own_child, "me"), (_child_and_parent, r"child\.0\.parent\.it"), (_list_in_itself, r"entries\.0")],
)
@pytest.mark.parametrize(
    "method", ["parameters", "trainable_parameters", "leaf_modules", "modules", "freeze", "eval", "apply_to_modules"]
)
def test_a_tree_that_goes_in_circles(make: Callable[[], nn.Module], path: str, method: str) -> None:
    model = make()
    arguments = [lambda path, module: None] if method == "apply_to_modules" else []
    with pytest.raises(ValueError, match=rf"\[Linear\] `{path}` leads back to .* `self\.parent = lambda: parent`"):
        getattr(model, method)(*arguments)


def _called_from_below(call: Callable[[], Any], depth: int) -> Any:
    return call() if depth == 0 else _called_from_below(call, depth - 1)


@pytest.mark.parametrize("method", ["leaf_modules", "modules"])
def test_the_circle_is_the_same_wherever_the_stack_ends(method: str) -> None:
    model = _child_and_parent()
    for depth in range(20):
        with pytest.raises(ValueError, match=r"`child\.0\.parent\.it` leads back to"):
            _called_from_below(getattr(model, method), depth)


def test_circles_can_be_printed() -> None:
    assert repr(_its_own_child()) == "Linear(input_dims=2, output_dims=3, bias=True\n  (me): ...\n)"


def test_modules_nested_deeply_can_be_printed() -> None:
    class Short(nn.Identity):
        def __repr__(self) -> str:
            return "short\n|"

    model = nn.Sequential(Short(), linear(), nn.Sequential())
    for _ in range(1500):
        model = nn.Sequential(model)
    lines = repr(model).split("\n")
    assert len(lines) == 2 * 1501 + 4
    assert [line.strip() for line in lines[1500:1505]] == [
        "(layers.0): Sequential(",
        "(layers.0): short",
        "|",
        "(layers.1): Linear(input_dims=2, output_dims=3, bias=True)",
        "(layers.2): Sequential()",
    ]
    indents = [len(line) - len(line.lstrip()) for line in lines]
    assert indents == [*range(0, 3002, 2), *[3002] * 4, *range(3000, -2, -2)]


def test_modules_may_be_shared_and_nested_deeply() -> None:
    shared = linear()
    model = nn.Sequential(shared, nn.Sequential(shared))
    assert [path for path, _ in model.named_modules()] == ["", "layers.1", "layers.1.layers.0", "layers.0"]
    assert len(model.parameters()["layers"]) == 2
    for _ in range(100):
        model = nn.Sequential(model)
    assert len(model.modules()) == 104
    for _ in range(2000):
        model = nn.Sequential(model)
    assert len(tree_flatten(model.trainable_parameters())) == 4
    doubled = tree_map(lambda p: 2 * p, model.parameters())
    expected = 2 * shared.weight
    model.update(doubled)
    assert mx.array_equal(shared.weight, expected)
    optim.SGD(1.0, momentum=0.5).update(model, doubled)
    assert mx.array_equal(shared.weight, mx.zeros_like(expected))


@pytest.mark.parametrize("updates", [{"bias": 1.0}, {"scale": mx.ones((3,))}, {"weight": [mx.ones((3, 2))]}])
def test_what_is_refused_replaces_nothing(updates: Any) -> None:
    model = linear()
    before = dict(model)
    fitting = {"weight": mx.zeros((3, 2)), "bias": mx.zeros((3,))}
    with pytest.raises(ValueError, match=next(iter(updates))):
        model.update({key: value for key, value in fitting.items() if key not in updates} | updates)
    assert all(model[key] is value for key, value in before.items())


def test_what_is_refused_far_inside_is_named_by_its_path() -> None:
    model = nn.Sequential(nn.Sequential(linear(), nn.ReLU()))
    with pytest.raises(ValueError, match=r"no parameter named \"layers\.0\.layers\.0\.scale\"; .* weight, bias"):
        model.update({"layers": [{"layers": [{"scale": mx.ones((1,))}, {}]}]})
    with pytest.raises(ValueError, match=r"`layers\.0\.layers\.1` is a ReLU .* replaced by a value of type int"):
        model.update_modules({"layers": [{"layers": [{}, 1]}]})


def test_of_shared_updates_the_path_is_that_of_the_one_that_does_not_fit() -> None:
    model = nn.Sequential(nn.ReLU(), linear())
    shared = {"weight": mx.zeros((3, 2))}
    with pytest.raises(ValueError, match=r"no parameter named \"layers\.0\.weight\""):
        model.update({"layers": [shared, shared]})


@pytest.mark.parametrize("change", [lambda tree: _its_own_child().update(tree), optim.SGD(0.1).init])
def test_trees_in_circles_are_no_arguments(change: Callable[[Any], Any]) -> None:
    tree: dict[str, Any] = {}
    tree["me"] = tree
    with pytest.raises(ValueError, match=r"^a dict contains itself"):
        change(tree)


@pytest.mark.parametrize("name", ["nn", "nn.losses", "nn.init", "optimizers", "utils"])
def test_public_names_are_those_of_mlx(mlx_package: Any, name: str) -> None:
    """Every public name of a namespace is one of MLX's or of Weft's own; helpers are not public."""
    found, expected = operator.attrgetter(name)(weft), operator.attrgetter(name)(mlx_package)
    assert sorted(dir(found)) == sorted(found.__all__)
    assert all(hasattr(found, key) for key in found.__all__)
    names = set(dir(expected))
    if name == "nn":  # Weft has no submodules of these names
        names.update(dir(mlx_package.nn.layers.distributed), dir(mlx_package.nn.utils))
    assert set(found.__all__) - {"summary"} <= names


def test_attributes_may_be_set_before_the_module_is_initialised() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.weight = mx.ones((1,))
            self.size = 3
            super().__init__()

    model = Early()
    assert model.freeze().parameters()["weight"] is model.weight
    assert (model.size, model.training) == (3, True)


def test_a_forgotten_initialisation_is_named_wherever_it_shows() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            self.layer = linear()

    for use in (lambda: Careless().training, lambda: Careless().freeze(), lambda: Careless().trainable_parameters()):
        with pytest.raises(AttributeError, match=r"`Careless` has no .*super\(\).__init__\(\)"):
            use()


def test_errors_of_value_and_grad_name_the_function() -> None:
    model = linear()

    def many_losses() -> mx.array:
        return model(mx.ones((4, 2)))

    with pytest.raises(ValueError, match=r"\[value_and_grad\] .*many_losses returned an array of shape \(4, 3\)"):
        nn.value_and_grad(model, many_losses)()


def test_value_and_grad_passes_any_argument_on() -> None:
    model = linear()

    def loss(scale: float, parameters: float = 1.0) -> mx.array:
        return (model(mx.ones((1, 2))) * scale * parameters).sum()

    _, gradients = nn.value_and_grad(model, loss)(2.0, parameters=3.0)
    assert gradients["bias"].tolist() == [6.0] * 3
    _, gradients = nn.value_and_grad(model, functools.partial(loss, parameters=0.5))(2.0)
    assert gradients["bias"].tolist() == [1.0] * 3
