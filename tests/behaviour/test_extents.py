"""Symbolic extents: which operations they support, and that all others raise an error with the remedy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits
from weft.graph import extents
from weft.graph.node import Node
from weft.graph.symbolic import AmbiguousExtentError, Decisions, SymbolicExtent, input_shape, is_open, resolved


def traced(*shape: int) -> tuple[Decisions, tuple[Any, ...]]:
    decisions = Decisions(None)
    return decisions, input_shape(0, shape, decisions)


MISUSE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "==": (lambda d: d == 3, "decide_equal"),
    "== from the left": (lambda d: d == 3, "identical"),
    "!=": (lambda d: d != 3, "agree"),
    "== of another": (lambda d: d == d + 1, "identical"),
    "== None": (lambda d: d == None, "identical"),  # noqa: E711  # what is meant
    "<": (lambda d: d < 3, "decide"),
    "<=": (lambda d: d <= 3, "decide"),
    ">": (lambda d: d > 3, "decide"),
    ">=": (lambda d: d >= 3, "value_of"),
    "< from the left": (lambda d: d > 3, "decide"),
    "truth": (lambda d: 1 if d else 0, "decide_equal"),
    "int": (int, "fixed"),
    "float": (float, "value_of"),
    "complex": (complex, "fixed"),
    "index": (operator.index, "fixed"),
    "range": (range, "fixed"),
    "position in a list": (lambda d: [1, 2, 3, 4][d], "fixed"),
    "repeating": (lambda d: [0] * d, "fixed"),
    "floor": (math.floor, "value_of"),
    "max": (lambda d: max(d, 1), "largest"),
    "sorted": (lambda d: sorted([d, 1]), "smallest"),
    "in": (lambda d: d in (1, 2), "agree"),
    "shape ==": (lambda d: (2, d) == (2, 3), "identical"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_raises_and_names_what_to_call(name: str) -> None:
    misuse, remedy = MISUSE[name]
    decisions, (extent,) = traced(3)
    with pytest.raises(AmbiguousExtentError, match=rf"\b{remedy}\b.*weft\.graph\.extents.* is 3 "):
        misuse(extent)
    assert not decisions.made


@pytest.mark.parametrize("other", [2.0, 1j, "x", None, (1,)])
def test_arithmetic_is_among_integers(other: Any) -> None:
    _, (extent,) = traced(3)
    for operation in (operator.add, operator.mul, operator.floordiv):
        with pytest.raises((TypeError, AmbiguousExtentError)):
            operation(extent, other)


def test_equal_expressions_are_one_object() -> None:
    _, (rows, columns) = traced(3, 3)
    assert rows + 1 is rows + 1
    assert rows is not columns
    assert rows + 0 is rows
    assert 1 * rows is rows
    assert (rows, 2) == (rows, 2)
    assert {rows: "rows", columns: "columns", 3: "three"}[columns] == "columns"
    assert hash(rows) != hash(columns)
    assert type(rows) is SymbolicExtent
    assert int not in type(rows).mro()


def test_what_is_worked_out_again() -> None:
    _, (rows, columns) = traced(3, 4)
    binding = {rows: 10, columns: 7}
    found = (rows * columns - 1, 20 // rows, rows % columns, -rows, extents.product((2, rows)), 5, "x")
    assert [extents.value_of(one) for one in found[:5]] == [11, 6, 3, -3, 6]
    assert resolved(found, binding) == (69, 2, 3, -10, 20, 5, "x")
    assert resolved((extents.largest(columns - 8, 0), extents.smallest(rows, columns)), binding) == (0, 7)
    assert resolved(extents.derived(pow, rows, 2), binding) == 100
    assert resolved(rows + columns, {rows: 10}) is not None
    assert is_open(resolved(rows + columns, {rows: 10}))


def test_what_is_asked_without_a_note() -> None:
    decisions, (rows, columns) = traced(3, 3)
    assert extents.agree(rows, columns)
    assert extents.agree(rows, 3)
    assert not extents.agree(rows, 4)
    assert extents.agree((rows, 2), [3, 2])
    assert not extents.agree((rows, 2), (3,))
    assert not extents.identical(rows, columns)
    assert not extents.identical(rows, 3)
    assert extents.identical((rows, 2), (rows, 2))
    assert not extents.identical((rows, 2), (columns, 2))
    assert not extents.identical((rows,), (rows, 1))
    assert extents.values_of((rows, 2)) == (3, 2)
    assert not decisions.made


def test_what_is_noted() -> None:
    decisions, (rows, columns) = traced(3, 5)
    assert extents.decide_equal(rows, rows)
    assert extents.decide_equal(3, 3)
    assert not decisions.made
    assert not extents.decide_equal((rows, 2), (columns, 2))
    assert extents.decide(operator.lt, rows, columns)
    assert not extents.decide(operator.ge, rows, 7)
    assert extents.fixed(columns) == 5
    binding = {rows: 10, columns: 7}
    assert [extent.text(binding) for extent in decisions.made] == [
        "False (10 == 7)", "False (10 < 7)", "True (10 >= 7)", "7",
    ]  # fmt: skip
    assert all("test_what_is_noted" in where for where in decisions.made.values())


def test_the_extent_that_two_broadcast_to() -> None:
    decisions, (rows, columns) = traced(3, 3)
    assert extents.joint_extent(rows, 1) is rows
    assert extents.joint_extent(1, rows) is rows
    assert extents.joint_extent(rows, rows) is rows
    assert extents.joint_extent(4, 1) == extents.joint_extent(1, 4) == 4
    joint = extents.joint_extent(rows, columns)
    assert (resolved(joint, {rows: 1, columns: 7}), resolved(joint, {rows: 7, columns: 1})) == (7, 7)
    with pytest.raises(ValueError, match="6 and 7"):
        resolved(joint, {rows: 6, columns: 7})
    with pytest.raises(ValueError, match="2 and 4"):
        extents.joint_extent(2, 4)
    assert not decisions.made


def test_the_table_of_the_module_names_every_function() -> None:
    documented = extents.__doc__ or ""
    assert [name for name in extents.__all__ if f"``{name}" not in documented] == []


class Widened(p.Primitive):
    """Rows of an even number of elements, repeated twice."""

    name = "widened"

    def __init__(self, is_odd: Callable[[Any], bool]) -> None:
        self.is_odd = is_odd

    def infer(self, *inputs: Node, **params: Any) -> tuple[Any, Any]:
        x = inputs[0]
        *outer, last = x.shape
        if self.is_odd(last):
            raise ValueError(f"[widened] Rows of {last} elements are odd.")
        return (*outer, 2 * last), x.dtype

    def lowered(self, node: Node) -> Node:
        return Node(p.concatenate, node.inputs * 2, (node.ndim - 1,), node.shape, node.dtype, None)


def test_a_shape_rule_that_compares_an_extent_raises() -> None:
    careless = Widened(lambda extent: extent % 2 == 1)
    assert careless(mx.ones((1, 2))).shape == (1, 4)
    with pytest.raises(AmbiguousExtentError, match=r"call identical .*, agree .* or decide_equal"):
        mx.compile(lambda x: careless(x), shapeless=True)(mx.ones((1, 2)))


def test_a_shape_rule_that_calls_the_module_is_right_for_every_shape() -> None:
    widened = Widened(lambda extent: not extents.agree(extent % 2, 0))
    traces: list[Any] = []

    def function(x: mx.array) -> mx.array:
        traces.append(x)
        return widened(x) * 2 + mx.concatenate([x, x], axis=-1)

    compiled = mx.compile(function, shapeless=True)
    for shape in ((2, 4), (3, 2), (1, 6), (0, 2), (4, 0)):
        x = mx.random.normal(shape, key=mx.random.key(sum(shape)))
        assert_same_bits(compiled(x), mx.concatenate([x, x], axis=-1) * 3)
    with pytest.raises(ValueError, match=r"does not fit \(2, 3\): \[widened\] Rows of 3 elements are odd"):
        compiled(mx.ones((2, 3)))
    assert len(traces) == 1


def test_two_shapes_that_are_equal_by_chance_take_the_general_way() -> None:
    """`binary` compares shapes with ``==``, which raises for extents of different inputs."""
    compiled = mx.compile(lambda x, y: x + y, shapeless=True)
    assert compiled(mx.ones(3), mx.ones(3)).tolist() == [2, 2, 2]
    assert compiled(mx.ones(3), mx.ones(1)).tolist() == [2, 2, 2]
