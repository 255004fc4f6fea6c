"""Errors for invalid input: their types, the shapes and names in them, and that the process continues to work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import without_spaces
from weft.errors import ArgumentTypeError, AxisError, TraceError
from weft.utils import tree_map


@pytest.fixture(autouse=True)
def _later_evaluations_work() -> Iterator[None]:
    yield
    x = mx.array([1.0, 2.0])
    assert (mx.exp(x * 0) + x).tolist() == [2.0, 3.0]
    assert mx.compile(lambda a: a * 2)(x).tolist() == [2.0, 4.0]
    assert mx.grad(lambda a: (a * a).sum())(x).tolist() == [2.0, 4.0]


def ones(*shape: int) -> mx.array:
    return mx.ones(shape)


def wrong(value: Any) -> Any:
    """A value whose type the type checker does not know."""
    return value


def update(target: mx.array, index: Any, value: Any) -> None:
    target[index] = value


@mx.custom_function
def a_custom_function(x: mx.array, n: int) -> mx.array:
    return x * n


@a_custom_function.vjp
def _zero(primals: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return mx.zeros_like(primals)


Case = tuple[Callable[[], Any], type[Exception] | tuple[type[Exception], ...], tuple[str, ...]]

SHAPES: dict[str, Case] = {
    "add": (lambda: ones(2, 3) + ones(4, 5), ValueError, ("(2,3)", "(4,5)")),
    "multiply in place": (lambda: ones(2, 3).__imul__(ones(4)), ValueError, ("(2,3)", "(4,)|(4)")),
    "where": (lambda: mx.where(ones(2, 3) > 0, ones(2, 3), ones(4, 5)), ValueError, ("(2,3)", "(4,5)")),
    "maximum": (lambda: mx.maximum(ones(3), ones(4)), ValueError, ("(3,)|(3)", "(4,)|(4)")),
    "broadcast_to": (lambda: mx.broadcast_to(ones(3), (2, 4)), ValueError, ("(3,)|(3)", "(2,4)")),
    "broadcast_arrays": (lambda: mx.broadcast_arrays(ones(2, 3), ones(4)), ValueError, ("(2,3)", "(4,)|(4)")),
    "matmul": (lambda: ones(2, 3) @ ones(4, 5), ValueError, ("matmul", "(2,3)", "(4,5)")),
    "matmul of batches": (lambda: ones(7, 2, 3) @ ones(6, 3, 5), ValueError, ("7", "6")),
    "matmul of scalars": (lambda: mx.matmul(mx.array(1.0), ones(2)), ValueError, ("matmul",)),
    "addmm": (lambda: mx.addmm(ones(9), ones(2, 3), ones(3, 4)), ValueError, ("(9,)|(9)", "(2,4)")),
    "inner": (lambda: mx.inner(ones(2, 3), ones(2, 4)), ValueError, ("3", "4")),
    "tensordot": (lambda: mx.tensordot(ones(2, 3), ones(4, 5), axes=1), ValueError, ("tensordot",)),
    "reshape": (lambda: ones(2, 3).reshape(4, 5), ValueError, ("reshape", "6|(2,3)", "(4,5)")),
    "reshape with a rest": (lambda: ones(2, 3).reshape(4, -1), ValueError, ("reshape", "6|(2,3)")),
    "reshape with two rests": (lambda: ones(2, 3).reshape(-1, -1), ValueError, ("reshape",)),
    "concatenate": (lambda: mx.concatenate([ones(2, 3), ones(4, 5)]), ValueError, ("concatenate", "(2,3)", "(4,5)")),
    "concatenate nothing": (lambda: mx.concatenate([]), ValueError, ("concatenate",)),
    "stack": (lambda: mx.stack([ones(2, 3), ones(4, 5)]), ValueError, ("stack",)),
    "split": (lambda: mx.split(ones(2, 3), 2, axis=1), ValueError, ("split", "(2,3)")),
    "squeeze": (lambda: mx.squeeze(ones(2, 3), axis=1), ValueError, ("squeeze", "3")),
    "negative size": (lambda: mx.zeros((2, -3)), ValueError, ("-3",)),
    "assignment": (lambda: update(ones(2, 3), 0, ones(5)), ValueError, ("(5,)|(5)", "3")),
    "ragged lists": (lambda: mx.array([[1, 2], [3]]), ValueError, ()),
    "index of nothing": (lambda: ones(0, 3)[mx.array([0])], ValueError, ("getitem", "(0,3)")),
    "take of nothing": (lambda: mx.take(ones(0, 3), mx.array([0]), axis=0), ValueError, ("take", "(0,3)")),
    "assignment to nothing": (lambda: update(ones(2, 0), (0, mx.array([0])), 1), ValueError, ("setitem", "(2,0)")),
    "update of nothing": (
        lambda: ones(0, 3).at[mx.array([0])].subtract(1),
        ValueError,
        ("at.subtract", "(0,3)"),
    ),
    "take_along_axis": (lambda: mx.take_along_axis(ones(2, 3), mx.zeros((4, 1), mx.int32), 1), ValueError, ("4",)),
}

AXES: dict[str, Case] = {
    "sum": (lambda: mx.sum(ones(2, 3), axis=5), IndexError, ("5", "2")),
    "one of several": (lambda: ones(2, 3).mean(axis=(0, -3)), IndexError, ("-3", "2")),
    "twice the same": (lambda: mx.sum(ones(2, 3), axis=(1, -1)), ValueError, ("axes|axis",)),
    "softmax": (lambda: mx.softmax(ones(2, 3), axis=-4), IndexError, ("-4", "2")),
    "argmax": (lambda: mx.argmax(ones(2, 3), axis=2), IndexError, ("2",)),
    "transpose": (lambda: mx.transpose(ones(2, 3), (0, 2)), IndexError, ("transpose", "2")),
    "transpose with too few": (lambda: mx.transpose(ones(2, 3), (0,)), ValueError, ("transpose",)),
    "transpose with a repeat": (lambda: mx.transpose(ones(2, 3), (0, 0)), ValueError, ("transpose",)),
    "expand_dims": (lambda: mx.expand_dims(ones(2, 3), 7), IndexError, ("expand_dims", "7")),
    "squeeze": (lambda: mx.squeeze(ones(2, 1), axis=4), IndexError, ("squeeze", "4")),
    "concatenate": (lambda: mx.concatenate([ones(2, 3)], axis=2), IndexError, ("concatenate", "2")),
    "swapaxes": (lambda: mx.swapaxes(ones(2, 3), 0, 2), IndexError, ("2",)),
    "take": (lambda: mx.take(ones(2, 3), mx.array([0]), axis=4), IndexError, ("take", "4")),
    "scalar": (lambda: mx.sum(mx.array(1.0), axis=0), IndexError, ("0",)),
    "index": (lambda: ones(2, 3)[5], IndexError, ("5", "2")),
    "negative index": (lambda: ones(2, 3)[0, -4], IndexError, ("-4", "3")),
    "too many indices": (lambda: ones(2, 3)[0, 0, 0], (ValueError, IndexError), ("3", "2")),
    "assigning out of range": (lambda: update(ones(2, 3), 2, 1.0), IndexError, ("2",)),
}

TYPES: dict[str, Case] = {
    "astype": (lambda: ones(2).astype("float31"), TypeError, ("float31",)),  # type: ignore[arg-type]  # wrong on purpose
    "zeros": (lambda: mx.zeros((2,), dtype=wrong("float31")), TypeError, ("float31",)),
    "array": (lambda: mx.array([1.0], dtype=wrong("int33")), TypeError, ("int33",)),
    "array of text": (lambda: mx.array("abc"), (TypeError, ValueError), ("str",)),
    "array of objects": (lambda: mx.array([object()]), (TypeError, ValueError), ("object",)),
    "adding text": (lambda: ones(2) + "x", (TypeError, ValueError), ("str",)),
    "adding an object": (lambda: object() * ones(2), (TypeError, ValueError), ("object",)),
    "a list for an array": (lambda: mx.exp([1.0]), (TypeError, ValueError), ("list",)),
    "indexing by text": (lambda: ones(2)["a"], (TypeError, ValueError, IndexError), ("str",)),
    "indexing by a float": (lambda: ones(2)[1.0], (TypeError, ValueError, IndexError), ("float",)),
    "a float as a shape": (lambda: mx.zeros((2.5,)), (TypeError, ValueError), ()),
    "length of a scalar": (lambda: len(mx.array(1)), TypeError, ("0",)),
    "iterating a scalar": (lambda: list(mx.array(1)), TypeError, ("0",)),
    "a NumPy array as an axis": (lambda: mx.sum(ones(2), axis=wrong(np.ones((1, 1)))), TypeError, ("[sum]", "array(")),
    "NumPy floats as a shape": (lambda: mx.zeros(wrong(np.ones(2))), TypeError, ("[zeros]", "1.0")),
    "an array of floats as a shape": (lambda: mx.zeros(wrong(mx.array([2.0]))), TypeError, ("[zeros]", "array([2]")),
    "text as a tolerance": (lambda: mx.isclose(ones(2), ones(2), wrong("1")), TypeError, ("[isclose]", "rtol", "'1'")),
    "none as a tolerance": (
        lambda: mx.allclose(ones(2), 1.0, atol=wrong(None)),
        TypeError,
        ("[isclose]", "atol", "None"),
    ),
    "too large a tolerance": (
        lambda: mx.isclose(ones(2), 1, wrong(ones(3, 2))),
        ValueError,
        ("[isclose]", "rtol", "(3,2)"),
    ),
    "text for nan": (lambda: mx.nan_to_num(ones(2), wrong("0")), TypeError, ("[nan_to_num]", "'0'")),
    "bitwise on floats": (lambda: ones(2) & ones(2), (TypeError, ValueError), ("float32",)),
}

VALUES: dict[str, Case] = {
    "bool of many": (lambda: bool(ones(2, 3)), ValueError, ("(2,3)|6",)),
    "bool of none": (lambda: bool(mx.array([])), ValueError, ("(0,)|0",)),
    "if": (lambda: 1 if ones(2) == ones(2) else 0, ValueError, ("(2,)|2",)),
    "item of many": (lambda: ones(2, 3).item(), ValueError, ("(2,3)|6",)),
    "float of many": (lambda: float(ones(2)), (ValueError, TypeError), ("(2,)|2",)),
}

TRANSFORMATIONS: dict[str, Case] = {
    "grad of a vector": (lambda: mx.grad(lambda x: x * 2)(ones(2, 3)), ValueError, ("scalar", "(2,3)")),
    "grad of one element": (lambda: mx.grad(lambda x: x)(ones(1)), ValueError, ("scalar", "(1,)|(1)")),
    "grad of nothing": (lambda: mx.grad(lambda x: None)(ones(1)), ValueError, ("NoneType|None",)),
    "grad of a number": (lambda: mx.grad(lambda x: 1.0)(ones(1)), ValueError, ("float",)),
    "grad of a tuple": (lambda: mx.grad(lambda x: (x.sum(), x))(ones(1)), ValueError, ("tuple",)),
    "value_and_grad of a list": (lambda: mx.value_and_grad(lambda x: [x.sum()])(ones(1)), ValueError, ("list",)),
    "argnums out of range": (lambda: mx.grad(lambda x: x.sum(), argnums=2)(ones(1)), ValueError, ("2", "1")),
    "negative argnums": (lambda: mx.grad(lambda x: x.sum(), argnums=-1)(ones(1)), ValueError, ("-1",)),
    "repeated argnums": (lambda: mx.grad(lambda x: x.sum(), argnums=(0, 0))(ones(1)), ValueError, ("0",)),
    "no argnums": (lambda: mx.grad(lambda x: x.sum(), argnums=())(ones(1)), ValueError, ()),
    "unknown argnames": (lambda: mx.grad(lambda x: x.sum(), argnames="zebra")(ones(1)), ValueError, ("zebra",)),
    "grad in a float": (lambda: mx.grad(lambda x: x * 2)(1.0), ValueError, ("Argument0is", "float", "mx.array")),
    "grad in text": (
        lambda: mx.grad(lambda n, p: p["a"].sum(), argnums=1)(2, {"a": ones(1), "b": "x"}),
        ValueError,
        ("Argument1['b']is", "str"),
    ),
    "grad in a number with a name": (
        lambda: mx.grad(lambda x, y: x * y[0], argnames="y")(ones(), y=[2]),
        ValueError,
        ("Argumenty[0]is", "int"),
    ),
    "custom function of a number": (
        lambda: a_custom_function(ones(2), 2),
        ValueError,
        ("Argument1is", "int", "byname"),
    ),
    "jvp with too many tangents": (lambda: mx.jvp(mx.sin, [ones(2)], [ones(2), ones(2)]), ValueError, ("1", "2")),
    "jvp with another shape": (lambda: mx.jvp(mx.sin, [ones(2)], [ones(3)]), ValueError, ("(2,)|(2)", "(3,)|(3)")),
    "vjp with another shape": (lambda: mx.vjp(mx.sin, [ones(2)], [ones(3)]), ValueError, ("(2,)|(2)", "(3,)|(3)")),
    "vjp with too few": (lambda: mx.vjp(lambda x: (x, x), [ones(2)], [ones(2)]), ValueError, ("2", "1")),
    "in_axes out of range": (lambda: mx.vmap(mx.sin, in_axes=3)(ones(2, 3)), (ValueError, IndexError), ("3", "(2,3)")),
    "in_axes of a scalar": (lambda: mx.vmap(mx.sin)(mx.array(1.0)), (ValueError, IndexError), ("0", "()")),
    "in_axes of text": (lambda: mx.vmap(mx.sin, in_axes="x")(ones(2)), (ValueError, TypeError), ("in_axes|axis",)),
    "too many in_axes": (
        lambda: mx.vmap(mx.add, in_axes=(0, 0, 0))(ones(2), ones(2)),
        ValueError,
        ("in_axes", "3", "2"),
    ),
    "nothing is mapped": (
        lambda: mx.vmap(mx.add, in_axes=(None, None))(ones(2), ones(2)),
        ValueError,
        ("in_axes",),
    ),
    "mapped sizes differ": (lambda: mx.vmap(mx.add)(ones(2), ones(3)), ValueError, ("2", "3")),
    "in_axes of another tree": (
        lambda: mx.vmap(lambda d: d["a"], in_axes=({"b": 0},))({"a": ones(2)}),
        ValueError,
        ("in_axes", "a", "b"),
    ),
    "out_axes out of range": (
        lambda: mx.vmap(mx.sin, out_axes=5)(ones(2, 3)),
        (ValueError, IndexError),
        ("5", "out_axes|output"),
    ),
    "too many out_axes": (
        lambda: mx.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(ones(2)),
        ValueError,
        ("out_axes", "3", "2"),
    ),
    "vmap of different values": (
        lambda: mx.vmap(mx.unique_values)(ones(2, 2)),
        TraceError,
        ("unique_values", "mx.unique(a,size)"),
    ),
    "compile of what is not zero": (
        lambda: mx.compile(mx.nonzero)(ones(2)),
        TraceError,
        ("nonzero", "shapeoftheresult"),
    ),
    "vmap of a float": (lambda: mx.vmap(mx.multiply)(ones(2), 2.0), (ValueError, TypeError), ("float",)),
    "vmap with keywords": (lambda: mx.vmap(lambda x, y: x)(ones(2), y=ones(2)), TypeError, ("[Kk]eyword",)),
    "compile of an object": (lambda: mx.compile(lambda x: x)(object()), (ValueError, TypeError), ("object",)),
    "compile of no function": (lambda: mx.compile(3), TypeError, ("int",)),  # type: ignore[arg-type]  # wrong on purpose
}

CASES = {
    f"{family}: {name}": case
    for family, cases in {
        "shapes": SHAPES,
        "axes": AXES,
        "types": TYPES,
        "values": VALUES,
        "transformations": TRANSFORMATIONS,
    }.items()
    for name, case in cases.items()
}


def test_an_axis_out_of_range_is_both_kinds_of_error() -> None:
    for call in (AXES["sum"][0], AXES["expand_dims"][0], TRANSFORMATIONS["out_axes out of range"][0]):
        with pytest.raises(AxisError) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, IndexError)


def assert_mentions(error: BaseException, wanted: tuple[str, ...]) -> None:
    """Assert that the message contains each text; `|` separates alternatives."""
    message = without_spaces(error)
    for alternatives in wanted:
        patterns = [p if p.startswith("[") else re.escape(p) for p in alternatives.split("|")]
        assert any(re.search(pattern, message) for pattern in patterns), f"{alternatives} is not in: {error}"


@pytest.mark.parametrize(
    "call",
    [
        lambda: mx.add(ones(2), "x"),
        lambda: ones(2).__add__([1, 2]),
        lambda: mx.exp("x"),
        lambda: mx.array("abc"),
        lambda: mx.array([None]),
        lambda: mx.array(object()),
        lambda: ~ones(2),
        lambda: mx.sum(ones(2), axis="x"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_is_both_kinds_of_error(call: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str) -> None:
    call, kind, wanted = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    assert_mentions(caught.value, wanted)


@pytest.mark.parametrize("name", ["shapes: add", "shapes: matmul", "axes: sum", "types: astype", "axes: index"])
@pytest.mark.parametrize("transformation", [mx.grad, mx.vmap, mx.compile, mx.checkpoint])
def test_bad_input_inside_transformations(name: str, transformation: Callable[..., Any]) -> None:
    """The same error at the same line, in every transformation."""
    call, kind, wanted = CASES[name]
    argument = ones(2) if transformation is mx.vmap else mx.array(1.0)
    with pytest.raises(kind) as caught:
        transformation(lambda x: x * call())(argument)
    assert_mentions(caught.value, wanted)
    assert any(entry.name == "<lambda>" for entry in caught.traceback)


def test_the_error_comes_from_the_line_not_from_the_evaluation() -> None:
    x = ones(2, 3)
    good = x * 2
    with pytest.raises(ValueError, match="broadcast"):
        good + ones(4, 5)
    assert good.tolist() == [[2.0] * 3] * 2


@pytest.mark.parametrize(("transformation", "offered"), [(mx.compile, True), (mx.vmap, False)])
def test_remedies_are_those_of_the_transformation(transformation: Callable[..., Any], offered: bool) -> None:
    """The advice to disable compilation is useless in `vmap`, and so is `outputs=`."""
    leaked: list[mx.array] = []

    def f(x: mx.array) -> Any:
        leaked.append(x)
        return x.tolist()

    with pytest.raises(TraceError, match=r"mx\.where") as inside:
        transformation(f)(ones(2))
    with pytest.raises(TraceError, match="Return it") as after:
        leaked[0].tolist()
    assert ("disable_compile" in str(inside.value)) is offered
    assert ("outputs=" in str(after.value)) is offered


def test_mismatched_trees() -> None:
    with pytest.raises((ValueError, KeyError), match="bias"):
        tree_map(lambda a, b: a + b, {"weight": ones(2), "bias": ones(2)}, {"weight": ones(2)})


def test_an_exception_in_a_rule_of_a_custom_function_comes_through() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return x * 2

    @f.vjp
    def f_vjp(primal: Any, cotangent: Any, output: Any) -> Any:
        raise LookupError("the rule")

    with pytest.raises(LookupError, match="the rule"):
        mx.grad(f)(mx.array(1.0))


def test_a_custom_gradient_of_the_wrong_shape() -> None:
    @mx.custom_function
    def f(x: mx.array) -> mx.array:
        return x.sum()

    @f.vjp
    def f_vjp(primal: Any, cotangent: Any, output: Any) -> Any:
        return ones(7)

    with pytest.raises(ValueError, match="7") as caught:
        mx.eval(mx.grad(f)(ones(2, 3)))
    assert "(2,3)" in without_spaces(caught.value)
