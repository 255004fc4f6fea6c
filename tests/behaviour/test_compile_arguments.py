"""`compile`: which arguments are constants, when two arguments differ, and methods."""

from __future__ import annotations

import enum
import gc
import weakref
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import Counted, assert_same_bits
from weft.compiler.running.prepared import Prepared


class Colour(enum.Enum):
    red = 1
    green = 2


class Level(enum.IntEnum):
    one = 1


class Mode(enum.Flag):
    fast = 1
    exact = 2


class Unhashable(enum.Enum):
    first = 1
    second = 2

    def __eq__(self, other: object) -> bool:
        return self is other


class Metres(float):
    pass


CONSTANTS = [
    *(True, 1, 1.0, 1 + 0j, "1", b"1", None),
    *(0, -1, 0.0, -0.0, complex(0.0, -0.0), complex(-0.0, 0.0), float("nan"), 10**30, ""),
    *(mx.float32, mx.int32, mx.floating, mx.cpu, mx.gpu, mx.Device(mx.cpu), mx.default_stream(mx.cpu)),
    *(Colour.red, Colour.green, Level.one, Mode.fast, Mode.fast | Mode.exact, Unhashable.first, Unhashable.second),
    *(np.float64(1.0), np.complex128(1.0), Metres(1.0)),
]


def test_constants_are_told_apart_by_type_and_value() -> None:
    seen = []

    @mx.compile
    def f(x: mx.array, constant: Any) -> mx.array:
        seen.append(constant)
        return x + len(seen)

    x = mx.array(0)
    for _ in range(2):
        assert [f(x, constant).item() for constant in CONSTANTS] == list(range(1, len(CONSTANTS) + 1))
    assert len(seen) == len(CONSTANTS)
    assert all(mine is given for mine, given in zip(seen, CONSTANTS, strict=True))


@pytest.mark.parametrize("number", [1.5, np.float64(1.5), Metres(1.5)])
def test_numbers_that_are_floats_give_what_they_give_without_compile(number: float) -> None:
    def f(x: mx.array, k: float) -> mx.array:
        return x * k + (100 if type(k) is Metres else 0)

    compiled = mx.compile(f)
    x = mx.array([1.0, 2.0], mx.float16)
    for k in (1.5, number, 1.5):
        assert_same_bits(compiled(x, k), f(x, k))


class Plain:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scaled(self, x: mx.array) -> mx.array:
        return x * self.factor

    @mx.compile
    def compiled(self, x: mx.array) -> mx.array:
        return x * self.factor


class Tagged(float):
    """A float with an attribute."""

    tag: str


def tagged() -> Tagged:
    number = Tagged(1.0)
    number.tag = "a"
    return number


NO_CONSTANTS = {
    "an instance": (Plain(2.0), "Plain"),
    "object": (object(), "object"),
    "a number with attributes": (tagged(), "Tagged"),
    "a function": (mx.exp, "function"),
    "a lambda": (lambda x: x, "function"),
    "a builtin": (len, "builtin_function_or_method"),
    "a type": (int, "type"),
    "a module": (mx, "module"),
    "an ellipsis": (..., "ellipsis"),
    "a slice": (slice(1), "slice"),
    "a range": (range(3), "range"),
    "a frozenset": (frozenset({1}), "frozenset"),
    "a set": ({1}, "set"),
    "a NumPy array": (np.ones(2), "ndarray"),
    "a NumPy integer": (np.int64(1), "int64"),
    "a NumPy float": (np.float32(1), "float32"),
}


@pytest.mark.parametrize("name", NO_CONSTANTS)
def test_what_is_no_constant(name: str) -> None:
    value, kind = NO_CONSTANTS[name]

    def step(x: mx.array, options: Any) -> mx.array:
        raise AssertionError("traced")

    with pytest.raises(ValueError, match=rf"\[compile\].*step.*options\['deep'\]\[1\].*\b{kind}\b"):
        mx.compile(step)(mx.array(1.0), {"deep": [mx.array(1.0), value]})
    with pytest.raises(ValueError, match=rf"\[compile\].*step.*options.*\b{kind}\b"):
        mx.compile(step)(mx.array(1.0), options=value)


def test_the_remedies_for_what_is_no_constant() -> None:
    def step(x: mx.array, other: Any) -> mx.array:
        return x

    for value, remedy in [
        (np.ones(2), "mx.array"),
        (np.int64(1), r"\.item\(\)"),
        (mx.exp, "functools.partial"),
        (Plain(1.0), "functools.partial"),
    ]:
        with pytest.raises(ValueError, match=remedy):
            mx.compile(step)(mx.array(1.0), value)
    with pytest.raises(ValueError, match=r"inputs\[0\].*Plain"):
        mx.compile(step, inputs=[Plain(1.0)])(mx.array(1.0), 1)


def test_a_compiled_method_of_a_plain_class_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"Plain\.compiled.*self.*Plain.*mx\.compile\(instance\.compiled\)"):
        Plain(2.0).compiled(mx.array(1.0))


def test_a_bound_method_may_be_compiled() -> None:
    instance = Plain(2.0)
    compiled = mx.compile(instance.scaled)
    x = mx.array([1.0, 2.0])
    assert compiled(x).tolist() == [2.0, 4.0]
    assert mx.compile(Plain(3.0).scaled)(x).tolist() == [3.0, 6.0]
    assert mx.grad(lambda x: compiled(x).sum())(x).tolist() == [2.0, 2.0]
    instance.factor = 5.0
    assert mx.compile(instance.scaled)(x).tolist() == [5.0, 10.0]


def test_a_compiled_bound_method_lets_its_instance_go() -> None:
    class Stepper:
        def __init__(self) -> None:
            self.step = mx.compile(self.plain)

        def plain(self, x: mx.array) -> mx.array:
            @mx.custom_function
            def doubled(y: mx.array) -> mx.array:
                return y * 2

            @doubled.vjp
            def _(primal: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
                return cotangent * 2 if self else cotangent

            return doubled(x)

    instance = Stepper()
    assert instance.step(mx.array(1.0)).item() == 2.0
    gone = weakref.ref(instance)
    del instance
    gc.collect()
    assert gone() is None


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = mx.array(factor)
        self.exponent = 1
        self.activation: Any = mx.abs
        self.inner = nn.Linear(1, 1, bias=False)

    def combine(self, x: mx.array) -> mx.array:
        return x * self.weight

    def plain(self, x: mx.array, power: int = 1) -> mx.array:
        y = self.activation(self.combine(x)) ** (self.exponent * power)
        return y + (0 if self.inner.training else 1000)

    compiled = mx.compile(plain)


class Shift(Scale):
    def combine(self, x: mx.array) -> mx.array:
        return x + self.weight


def test_a_compiled_method_of_a_module_follows_its_arguments() -> None:
    model = Scale(2.0)
    for value in (1.0, 5.0, -7.0):
        x = mx.array(value)
        assert_same_bits(model.compiled(x), model.plain(x))
        assert_same_bits(model.compiled(x, power=2), model.plain(x, power=2))
    assert isinstance(model.weight, mx.array)
    assert model.weight.item() == 2.0


def test_a_compiled_method_of_a_module_follows_its_state() -> None:
    model = Scale(2.0)
    x = mx.array(-3.0)

    def check() -> None:
        assert_same_bits(model.compiled(x), model.plain(x))

    check()
    model.weight = mx.array(5.0)
    check()
    model.exponent = 2
    check()
    model.activation = mx.exp
    check()
    model.eval()
    check()
    model.train()
    check()
    model.inner.weight = mx.zeros((2, 2))
    check()


def test_a_compiled_method_of_a_module_is_traced_once() -> None:
    model = Scale(2.0)
    counted = Counted(Scale.plain)
    compiled = mx.compile(counted.function)
    for value in range(4):
        model.weight = mx.array(float(value))
        assert compiled(model, mx.array(2.0)).item() == 2.0 * value
        assert compiled(Scale(float(value)), mx.array(2.0)).item() == 2.0 * value
    assert counted.calls == 1


def test_modules_of_two_classes_are_two_arguments() -> None:
    compiled = mx.compile(Scale.plain)
    x = mx.array(3.0)
    assert compiled(Scale(2.0), x).item() == 6.0
    assert compiled(Shift(2.0), x).item() == 5.0


def test_frozen_parameters_are_part_of_a_module() -> None:
    def trainable(model: nn.Module, x: mx.array) -> mx.array:
        return x * len(model.trainable_parameters())

    compiled = mx.compile(trainable)
    model = nn.Linear(2, 2)
    x = mx.array(1.0)
    assert compiled(model, x).item() == 2.0
    model.freeze(keys="bias")
    assert compiled(model, x).item() == 1.0


def test_a_compiled_method_lets_modules_go() -> None:
    model = Scale(2.0)
    model.activation = model.combine
    model.compiled(mx.array(1.0))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_state_follows_the_mode_of_its_modules() -> None:
    model = nn.Dropout(0.5)
    compiled = mx.compile(lambda x: model(x), inputs=model.state)
    x = mx.ones((100,))
    assert compiled(x).tolist() != x.tolist()
    model.eval()
    assert compiled(x).tolist() == x.tolist()


def test_keys_of_dicts_are_told_apart_by_type() -> None:
    compiled = mx.compile(lambda d: d[next(iter(d))] * len(repr(next(iter(d)))))
    x = mx.array(1)
    keys: list[Any] = [1, True, 1.0, "1", (1, 2), (True, 2), (1.0, 2), 0.0, -0.0, None, Level.one]
    for _ in range(2):
        assert [compiled({key: x}).item() for key in keys] == [len(repr(key)) for key in keys]
        mixed: list[Any] = [{"a": x, 1: x}, {"a": x, True: x}]
        assert [compiled(d).item() for d in mixed] == [3, 3]


@pytest.mark.parametrize("transform", [mx.compile, lambda f: mx.grad(lambda d, x: f(d, x).sum(), argnums=1)])
def test_an_ordered_dict_keeps_its_order(transform: Any) -> None:
    """It has an order of its own, beside that of the dict that it is."""
    given = OrderedDict()
    for key in (3.5, "a", 1, (1, 2)):
        given[key] = 1
    del given["a"], given[(1, 2)]
    given.move_to_end(3.5)
    for _ in range(3):
        transform(lambda d, x: x * len(d))(given, mx.array([1.0]))
        assert list(given.items()) == [(1, 1), (3.5, 1)]


def test_keys_that_a_function_moves_in_an_ordered_dict() -> None:
    def moving(d: Any, x: mx.array) -> mx.array:
        d["new"] = x * 2
        d.move_to_end("a")
        return (x * d["b"]).sum()

    given = OrderedDict(a=mx.array(1.0), b=mx.array(2.0))
    for transform in (lambda f: mx.grad(f, argnums=1), lambda f: mx.vmap(f, in_axes=(None, 0))):
        transform(moving)(given, mx.ones((1,)))
        assert list(given) == ["b", "new", "a"]


def test_kinds_of_dicts_are_told_apart() -> None:
    compiled = mx.compile(lambda d: d["a"] + (10 if isinstance(d, OrderedDict) else 0))
    for _ in range(2):
        assert compiled({"a": mx.array(1)}).item() == 1
        assert compiled(OrderedDict(a=mx.array(1))).item() == 11


def test_a_partial_function_may_be_compiled_with_what_is_no_constant() -> None:
    compiled = mx.compile(partial(lambda options, x: x * options.factor, Plain(3.0)))
    assert compiled(mx.array(2.0)).item() == 6.0


def test_only_the_latest_traces_are_cached() -> None:
    counted = Counted(lambda x, k: x + k)
    compiled = mx.compile(counted.function)
    x = mx.array(0)
    for k in range(64):
        assert compiled(x, k).item() == k
    assert compiled(x, 0).item() == 0
    assert counted.calls == 64
    assert compiled(x, 64).item() == 64
    assert compiled(x, 0).item() == 0
    assert counted.calls == 65, "what was used lately stays"
    assert compiled(x, 1).item() == 1
    assert counted.calls == 66, "what was not used for longest goes"


def test_traces_do_not_pile_up() -> None:
    compiled = mx.compile(lambda x, k: x + k)
    x = mx.ones((1000,))

    def objects_after(first: int, last: int) -> int:
        for k in range(first, last):
            mx.eval(compiled(x, k))
        gc.collect()
        return len(gc.get_objects())

    before = objects_after(0, 100)
    assert objects_after(100, 300) - before < 200


def test_layouts_of_shapeless_traces_do_not_pile_up() -> None:
    compiled = mx.compile(lambda x: x * 2, shapeless=True)
    gc.collect()
    before = sum(isinstance(thing, Prepared) for thing in gc.get_objects())
    for size in [*range(1, 200), 3]:
        assert compiled(mx.ones((size,))).shape == (size,)
    gc.collect()
    assert sum(isinstance(thing, Prepared) for thing in gc.get_objects()) - before <= 64
