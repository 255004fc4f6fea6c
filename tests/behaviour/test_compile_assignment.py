"""Assignments in place to arrays from outside, while a function is traced."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from tests.checks import assert_same_bits


def set_item(c: mx.array, x: mx.array) -> None:
    c[0] = x


IN_PLACE: dict[str, Callable[[mx.array, mx.array], Any]] = {
    "[]": set_item,
    **{
        name: getattr(operator, name)
        for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul")
    },
}
IN_PLACE_OF_INTEGERS = {name: getattr(operator, name) for name in ("iand", "ior", "ixor", "ilshift", "irshift")}


@pytest.mark.parametrize("name", [*IN_PLACE, *IN_PLACE_OF_INTEGERS])
def test_an_outside_array_is_as_before(name: str) -> None:
    assign = {**IN_PLACE, **IN_PLACE_OF_INTEGERS}[name]
    dtype = mx.int32 if name in IN_PLACE_OF_INTEGERS else mx.float32

    def outside() -> mx.array:
        return mx.array([[7, 2], [3, 1]], dtype)

    c = outside()
    alias = c

    def f(x: mx.array) -> mx.array:
        assign(c, x)
        assign(c, x + 1)
        return c * 2

    for transformed in (mx.compile(f), mx.compile(f, shapeless=True)):
        for x in (mx.array([[1, 2], [3, 1]], dtype), mx.array([[2, 1], [1, 1]], dtype)):
            x = x[0] if name == "[]" else x
            result = transformed(x)
            assert c is alias
            assert_same_bits(c, outside())
            expected = f(x)
            assert_same_bits(result, expected)
            assert not mx.array_equal(c, outside()).item()
            c[:] = outside()


def test_the_state_of_a_compiled_function_inside_is_as_before() -> None:
    state = [mx.array(1.0)]

    def step(x: mx.array) -> mx.array:
        state[0] += x
        return state[0] * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    held = state[0]
    assert mx.compile(lambda x: compiled(x) + compiled(x))(mx.array(2.0)).item() == 16.0
    assert state[0] is held
    assert held.item() == 1.0
    assert compiled(mx.array(2.0)).item() == 6.0
    assert held.item() == 3.0


def test_an_outside_array_that_is_returned_has_its_new_value_there() -> None:
    c = mx.zeros(2)

    def f(x: mx.array) -> mx.array:
        c[0] = x
        return c

    compiled = mx.compile(f)
    assert [compiled(mx.array(value)).tolist() for value in (3.0, 4.0)] == [[3.0, 0.0], [4.0, 0.0]]
    assert c.tolist() == [0.0, 0.0]
    assert mx.vmap(f)(mx.array([5.0, 6.0])).tolist() == [[5.0, 0.0], [6.0, 0.0]]
    assert c.tolist() == [0.0, 0.0]


def test_an_outside_array_that_vmap_returns_unmapped() -> None:
    c = mx.zeros(2)

    def f(x: mx.array) -> tuple[mx.array, mx.array]:
        c[0] = 8.0
        return x, c

    assert mx.vmap(f, out_axes=(0, None))(mx.ones(3))[1].tolist() == [8.0, 0.0]
    assert c.tolist() == [0.0, 0.0]


def test_an_argument_that_vmap_passes_whole() -> None:
    c = mx.zeros(2)

    def f(x: mx.array, whole: mx.array) -> mx.array:
        whole[0] = x
        return whole

    assert mx.vmap(f, in_axes=(0, None))(mx.array([5.0, 6.0]), c).tolist() == [[5.0, 0.0], [6.0, 0.0]]
    assert c.tolist() == [0.0, 0.0]


def test_a_gradient_assigns_as_the_function_does() -> None:
    c = mx.zeros(2)

    def f(x: mx.array) -> mx.array:
        c[0] = x * 2
        return (c * c).sum()

    assert mx.grad(f)(mx.array(3.0)).item() == 24.0
    assert c.tolist() == [6.0, 0.0]
    assert mx.jvp(f, [mx.array(4.0)], [mx.array(1.0)])[1][0].item() == 32.0
    assert c.tolist() == [8.0, 0.0]
    c[0] = 1.0
    assert mx.compile(mx.grad(f))(mx.array(3.0)).item() == 24.0
    assert c.tolist() == [1.0, 0.0]
    assert mx.vmap(mx.grad(f))(mx.array([3.0, 4.0])).tolist() == [24.0, 32.0]
    assert c.tolist() == [1.0, 0.0]
    assert mx.grad(mx.compile(f))(mx.array(3.0)).item() == 24.0
    assert c.tolist() == [1.0, 0.0]


def test_transformations_in_each_other_restore_what_was_there_when_they_began() -> None:
    c = mx.zeros(2)
    inside = []

    def inner(x: mx.array) -> mx.array:
        c[1] = x
        return c.sum()

    @mx.compile
    def outer(x: mx.array) -> mx.array:
        c[0] = x
        mapped = mx.vmap(inner)(mx.stack([x, x + 1]))
        inside.append(c)
        return mapped + c

    assert outer(mx.array(5.0)).tolist() == [15.0, 11.0]
    assert inside[0] is c
    assert c.tolist() == [0.0, 0.0]


def test_a_function_that_raises_restores_too() -> None:
    c = mx.zeros(2)

    def f(x: mx.array) -> mx.array:
        c[0] = x
        raise LookupError

    for transformed in (mx.compile(f), mx.vmap(f)):
        with pytest.raises(LookupError):
            transformed(mx.ones(1))
        assert c.tolist() == [0.0, 0.0]


def test_without_compile_assignments_stay() -> None:
    c = mx.zeros(2)

    @mx.compile
    def f(x: mx.array) -> mx.array:
        c[0] = x
        return c

    mx.disable_compile()
    try:
        f(mx.array(3.0))
    finally:
        mx.enable_compile()
    assert c.tolist() == [3.0, 0.0]


def test_other_threads_assign_while_one_is_tracing() -> None:
    c = mx.zeros(2)
    tracing, assigned = threading.Event(), threading.Event()

    def assign() -> None:
        tracing.wait(30)
        c[0] = 9.0
        assigned.set()

    def f(x: mx.array) -> mx.array:
        tracing.set()
        assert assigned.wait(30)
        return x

    thread = threading.Thread(target=assign)
    thread.start()
    mx.compile(f)(mx.array(1.0))
    thread.join()
    assert c.tolist() == [9.0, 0.0]
