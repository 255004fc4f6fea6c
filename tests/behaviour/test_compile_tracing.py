"""While a function is traced its arrays have no value: reading one, or using one afterwards, raises a clear error."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from tests.checks import line_of


def prints(x: mx.array) -> mx.array:
    y = x * 2
    print(y)  # asks here
    return y


def formats(x: mx.array) -> mx.array:
    y = x * 2
    text = f"{y}"  # asks here
    return y * len(text)


def takes_the_item(x: mx.array) -> mx.array:
    total = x.sum()
    scale = total.item()  # asks here
    return x * scale


def lists(x: mx.array) -> mx.array:
    values = (x + 1).tolist()  # asks here
    return mx.array(values)


def branches(x: mx.array) -> mx.array:
    if x.sum() > 0:  # asks here
        return x
    return -x


def loops(x: mx.array) -> mx.array:
    while x.max() < 10:  # asks here
        x = x * 2
    return x


def converts(x: mx.array) -> mx.array:
    return x * float(x.sum())  # asks here


def counts(x: mx.array) -> mx.array:
    return x * int(x.sum())  # asks here


def evaluates(x: mx.array) -> mx.array:
    y = x + 1
    mx.eval(y)  # asks here
    return y


def evaluates_later(x: mx.array) -> mx.array:
    y = x + 1
    mx.async_eval([y])  # asks here
    return y


def goes_to_numpy(x: mx.array) -> mx.array:
    import numpy as np

    return mx.array(np.array(x + 1))  # asks here


ASKING = [
    prints,
    formats,
    takes_the_item,
    lists,
    branches,
    loops,
    converts,
    counts,
    evaluates,
    evaluates_later,
    goes_to_numpy,
]


def assert_names_the_line(error: BaseException, function: Callable[..., Any]) -> None:
    message = str(error)
    assert os.path.basename(__file__) in message
    assert str(line_of(function, "asks here")) in message


@pytest.mark.parametrize("function", ASKING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shapeless", [False, True])
def test_asking_for_a_value_while_compiling(function: Callable[..., Any], shapeless: bool) -> None:
    x = mx.array([1.0, 2.0])
    with pytest.raises(ValueError, match="trac") as caught:
        mx.compile(function, shapeless=shapeless)(x)
    assert_names_the_line(caught.value, function)
    assert "compile" in str(caught.value)
    assert (x + 1).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("function", [prints, takes_the_item, branches, evaluates], ids=lambda f: f.__name__)
def test_asking_for_a_value_while_mapping(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="trac") as caught:
        mx.vmap(function)(mx.array([[1.0, 2.0]]))
    assert_names_the_line(caught.value, function)
    assert "vmap" in str(caught.value)


@pytest.mark.parametrize("function", [takes_the_item, branches, evaluates], ids=lambda f: f.__name__)
def test_a_gradient_inside_a_compiled_function_has_no_values_either(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="trac") as caught:
        mx.compile(mx.grad(lambda x: function(x).sum()))(mx.array([1.0, 2.0]))
    assert_names_the_line(caught.value, function)


def test_asking_for_a_value_while_differentiating_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    x = mx.array([1.0, 2.0])
    for function in ASKING:
        mx.eval(mx.grad(lambda a, function=function: function(a).sum())(x))
    assert "array([2, 4], dtype=float32)" in capsys.readouterr().out


def test_shape_dtype_and_size_are_known_while_tracing() -> None:
    @mx.compile
    def f(x: mx.array) -> mx.array:
        assert (x.shape, x.ndim, x.size, x.dtype, len(x)) == ((2, 3), 2, 6, mx.float32, 2)
        assert [row.shape for row in x] == [(3,), (3,)]
        return x * x.size

    assert f(mx.ones((2, 3))).tolist() == [[6.0] * 3] * 2


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="trac") as caught:
        mx.compile(prints)(mx.array([1.0]))
    assert "disable_compile" in str(caught.value)


def leaked_from(transformation: Callable[..., Any]) -> mx.array:
    leaked = []

    def keeping(x: mx.array) -> mx.array:
        leaked.append(x * 2)
        return x + 1

    assert transformation(keeping)(mx.array([1.0, 2.0])).tolist() == [2.0, 3.0]
    return leaked[0]


USES: dict[str, Callable[[mx.array], Any]] = {
    "eval": mx.eval,
    "item": lambda a: a.sum().item(),
    "tolist": lambda a: a.tolist(),
    "bool": lambda a: bool((a > 0).all()),
    "arithmetic": lambda a: mx.eval(a + 1),
    "inside grad": lambda a: mx.eval(mx.grad(lambda x: (x * a).sum())(mx.array([1.0]))),
    "inside another compiled function": lambda a: mx.eval(mx.compile(lambda x: x * a)(mx.array([1.0, 1.0]))),
    "as an argument of a compiled function": lambda a: mx.eval(mx.compile(lambda x: x * 2)(a)),
}


@pytest.mark.parametrize("transformation", [mx.compile, mx.vmap], ids=["compile", "vmap"])
@pytest.mark.parametrize("use", USES)
def test_using_what_leaked_says_what_it_is(use: str, transformation: Callable[..., Any]) -> None:
    leaked = leaked_from(transformation)
    with pytest.raises(ValueError, match="trac") as caught:
        USES[use](leaked)
    message = str(caught.value)
    assert "trac" in message
    assert transformation.__name__ in message
    assert (mx.array(1.0) + 1).item() == 2.0


@pytest.mark.parametrize("transformation", [mx.compile, mx.vmap], ids=["compile", "vmap"])
def test_printing_what_leaked_says_what_it_is(transformation: Callable[..., Any]) -> None:
    leaked = leaked_from(transformation)
    try:
        text = repr(leaked)
    except ValueError as error:
        text = str(error)
    assert "trac" in text
    assert transformation.__name__ in text


def test_what_leaked_still_has_shape_and_dtype() -> None:
    leaked = leaked_from(mx.compile)
    assert leaked.shape == (2,)
    assert leaked.dtype == mx.float32


def test_what_leaked_from_a_gradient_is_a_value() -> None:
    leaked = []

    def loss(x: mx.array) -> mx.array:
        leaked.append(x * 2)
        return x * x

    assert mx.grad(loss)(mx.array(3.0)).item() == 6.0
    assert repr(leaked[0]) == "array(6, dtype=float32)"


def test_a_failed_trace_is_forgotten() -> None:
    should_print = [True]

    @mx.compile
    def f(x: mx.array) -> mx.array:
        if should_print[0]:
            print(x)
        return x + 1

    with pytest.raises(ValueError, match="trac"):
        f(mx.array(1.0))
    should_print[0] = False
    assert f(mx.array(1.0)).item() == 2.0


def test_a_failed_trace_leaves_outer_transformations_working() -> None:
    def inner(x: mx.array) -> mx.array:
        try:
            x.item()
        except ValueError:
            return x * 3
        return x

    assert mx.compile(lambda x: mx.vmap(inner)(x) + 1)(mx.array([1.0])).tolist() == [4.0]
    assert mx.compile(mx.grad(inner))(mx.array(1.0)).item() == 3.0
