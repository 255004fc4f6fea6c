"""Compiled functions run on the stream of the call, and nothing is traced or planned again for another stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import weft
import weft.core as mx
from tests.checks import Counted, assert_same_bits
from tests.devices import needs_no_gpu
from tests.gates import Gate, is_there

LEFT, RIGHT = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)


def plain(x: mx.array) -> mx.array:
    return mx.tanh(x @ x.T).sum(axis=0) * x.sum()


def named(x: mx.array) -> mx.array:
    """Operations on two named streams and on the stream of the caller."""
    y = mx.sin(x, stream=LEFT)
    with mx.stream(RIGHT):
        z = mx.exp(x) + y
    return (y * z + x).sum(axis=0)


def on_the_device(x: mx.array) -> mx.array:
    """Operations that name the device, as many programs do."""
    with mx.stream(mx.cpu):
        y = mx.sin(x)
    return mx.multiply(y, x, stream=mx.cpu).sum(axis=0, stream=mx.Device(mx.cpu))


def through_a_compiled_one(x: mx.array) -> mx.array:
    return mx.compile(named)(x * 2) + mx.compile(plain)(x)


def with_its_own_rule(x: mx.array) -> mx.array:
    @mx.custom_function
    def half(x: mx.array) -> mx.array:
        return mx.multiply(x, mx.sin(x, stream=LEFT), stream=RIGHT)

    @half.vjp
    def half_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
        return mx.multiply(cotangent, mx.cos(x, stream=RIGHT), stream=LEFT)

    return half(x).sum(axis=0)


def with_a_checkpoint(x: mx.array) -> mx.array:
    return mx.checkpoint(named)(mx.tanh(x))


FUNCTIONS = [plain, named, on_the_device, through_a_compiled_one, with_its_own_rule, with_a_checkpoint]

TRANSFORMATIONS: dict[str, Callable[[Any], Callable[[mx.array], Any]]] = {
    "nothing else": lambda f: f,
    "grad": lambda f: mx.grad(lambda x: f(x).sum()),
    "value_and_grad": lambda f: mx.value_and_grad(lambda x: f(x).sum()),
    "grad of grad": lambda f: mx.grad(lambda x: (mx.grad(lambda x: f(x).sum())(x) * x).sum()),
    "vmap": lambda f: mx.vmap(lambda row: f(mx.expand_dims(row, 1))),
    "vmap of grad": lambda f: mx.vmap(mx.grad(lambda row: f(mx.expand_dims(row, 1)).sum())),
    "jvp": lambda f: lambda x: mx.jvp(f, [x], [mx.cos(x)]),
    "vjp": lambda f: lambda x: mx.vjp(f, [x], [mx.ones((4,))]),
}

TEN = [mx.new_stream(mx.cpu) for _ in range(10)]


def check_ten_streams(function: Callable[[mx.array], Any], counted: Counted, x: mx.array, expected: Any) -> None:
    """The results of `function` on ten streams; only the first one needs traces and plans."""
    seen = []
    for stream in TEN:
        with mx.stream(stream):
            result = function(x)
            mx.async_eval(result)
        assert_same_bits(result, expected)
        seen.append((counted.calls, weft.counters()))
    assert seen[1:] == seen[:-1]


@pytest.mark.some_rows(28)
@pytest.mark.parametrize("compiled_first", [False, True], ids=["compiled last", "compiled first"])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_ten_streams_are_traced_planned_and_generated_for_once(
    function: Callable[[mx.array], mx.array], transformation: str, compiled_first: bool
) -> None:
    if function is with_its_own_rule and transformation == "jvp":
        pytest.skip("it has a rule for reverse mode only")
    transform = TRANSFORMATIONS[transformation]
    x = mx.random.normal((4, 4), key=mx.random.key(0))
    expected = transform(function)(x)
    mx.eval(x, expected)
    counted = Counted(function)
    inner, outer = (mx.compile, transform) if compiled_first else (transform, mx.compile)
    check_ten_streams(outer(inner(counted.function)), counted, x, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shapeless_on_ten_streams(function: Callable[[mx.array], mx.array]) -> None:
    counted = Counted(function)
    compiled = mx.compile(counted.function, shapeless=True)
    for rows, stream in enumerate(TEN, 2):
        x = mx.random.normal((rows, rows), key=mx.random.key(rows))
        expected = function(x)
        with mx.stream(stream):
            assert_same_bits(compiled(x), expected)
    assert counted.calls == 1


@pytest.mark.parametrize("function", FUNCTIONS)
def test_state_on_ten_streams(function: Callable[[mx.array], mx.array]) -> None:
    def step(state: list[mx.array], x: mx.array) -> mx.array:
        y = function(x + state[0])
        state[0] = mx.multiply(state[0], 0.5, stream=LEFT) + y.sum()
        return y

    plain_state, state = [mx.array(1.0)], [mx.array(1.0)]
    counted = Counted(lambda x: step(state, x))
    compiled = mx.compile(counted.function, inputs=state, outputs=state)
    x = mx.random.normal((4, 4), key=mx.random.key(0)) * 0.1
    for stream in TEN:
        expected = step(plain_state, x)
        with mx.stream(stream):
            assert_same_bits(compiled(x), expected)
        assert_same_bits(state, plain_state)
    assert counted.calls == 1


# Beside a GPU, naming the CPU names its default stream.
@pytest.mark.parametrize("function", [plain, pytest.param(on_the_device, marks=needs_no_gpu)])
def test_it_does_not_wait_for_the_stream_of_the_first_call(function: Callable[[mx.array], mx.array]) -> None:
    first, second = TEN[:2]
    compiled = mx.compile(function)
    x = mx.ones((4, 4))
    expected = function(x)
    mx.eval(x, expected)
    with mx.stream(first):
        mx.eval(compiled(x))
    with Gate() as gate:
        gate.block(first)
        with mx.stream(second):
            assert_same_bits(compiled(x), expected)
        with mx.stream(first):
            late = compiled(x)
            mx.async_eval(late)
        assert not is_there(late)
    assert_same_bits(late, expected)


def test_a_named_stream_inside_stays() -> None:
    compiled = mx.compile(lambda x: mx.add(mx.multiply(x, 2, stream=LEFT), 1))
    x = mx.ones((4, 4))
    mx.eval(compiled(x))
    with Gate() as gate:
        gate.block(LEFT)
        with mx.stream(TEN[0]):
            late = compiled(x)
            mx.async_eval(late)
        assert not is_there(late)
        gate.open()
        assert late.tolist() == [[3.0] * 4] * 4


def test_a_call_returns_before_its_arguments_are_there() -> None:
    compiled = mx.compile(lambda x: x * 2 + 1)
    assert compiled(mx.array(3.0)).item() == 7
    with Gate() as gate:
        with mx.stream(TEN[0]):
            late = compiled(gate.behind(4.0))
            later = compiled(late)
        with mx.stream(TEN[1]):
            assert compiled(mx.array(5.0)).item() == 11
        assert not is_there(late)
        gate.open()
        assert (late.item(), later.item()) == (9, 19)


def test_a_long_call_on_a_stream_of_its_own_is_left_to_that_stream() -> None:
    compiled = mx.compile(lambda x: mx.sin(x).sum())
    x = mx.ones((1 << 19,))
    mx.eval(x, compiled(x))
    stream = mx.new_stream(mx.cpu)
    with mx.stream(stream):
        result = compiled(x)
    assert stream.worker is not None
    assert_same_bits(result, compiled(x))


def test_a_stream_for_each_thread_is_a_constant_argument() -> None:
    stream = mx.new_thread_local_stream(mx.cpu)
    counted = Counted(lambda x, stream: mx.multiply(x, 2, stream=stream))
    compiled = mx.compile(counted.function)
    assert [compiled(mx.array(k), stream).item() for k in range(3)] == [0, 2, 4]
    assert counted.calls == 1


def test_a_stream_for_each_thread_is_that_of_the_thread_that_traced() -> None:
    stream = mx.new_thread_local_stream(mx.cpu)
    inside = mx.compile(lambda x: mx.multiply(x, 2, stream=stream))
    outside = mx.compile(lambda x: x * 2)
    x = mx.array(3.0)
    mx.eval(x, inside(x), outside(x))
    there: list[bool] = []

    def call() -> None:
        late = inside(x)
        with mx.stream(stream):
            there.extend([is_there(late), outside(x).item() == 6])

    with Gate() as gate:
        gate.block(stream.here)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert there == [False, True]
