"""Random graphs over several streams, evaluated, awaited and dropped in any order: the bits are those of one stream."""

from __future__ import annotations

import faulthandler
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.checks import assert_same_bits
from tests.sampling import examples

STREAMS = [mx.new_stream(mx.cpu) for _ in range(6)]

Operation = Callable[[mx.array, mx.array, Any], mx.array]

OPERATIONS: dict[str, Operation] = {
    "add": lambda x, y, s: mx.multiply(mx.add(x, y, stream=s), 0.5, stream=s),
    "sin": lambda x, y, s: mx.sin(x, stream=s),
    "product": lambda x, y, s: mx.tanh(mx.matmul(x, y, stream=s), stream=s),
    "mean": lambda x, y, s: mx.add(x, mx.mean(y, axis=0, stream=s), stream=s),
    "softmax": lambda x, y, s: mx.softmax(mx.subtract(x, y, stream=s), axis=-1, stream=s),
    "roll": lambda x, y, s: mx.concatenate([x[1:], y[:1]], axis=0, stream=s),
    "transpose": lambda x, y, s: mx.transpose(x, stream=s),
    "where": lambda x, y, s: mx.where(mx.greater(x, y, stream=s), x, y, stream=s),
    "assign": lambda x, y, s: mx.slice_update(x, y[:2], mx.array([1, 0]), (0, 1), stream=s),
}

ACTIONS = ["nothing"] * 4 + ["start", "start all", "evaluate", "read", "synchronize", "clear", "drop", "compile"]


@dataclass(frozen=True)
class Statement:
    """One operation on earlier values, the stream that it names (None for the current one), and what is done then."""

    operation: str
    operands: tuple[int, int]
    stream: int | None
    action: str
    chosen: int


@st.composite
def programs(draw: Callable[..., Any]) -> tuple[Statement, ...]:
    count = draw(st.integers(2, 6))
    statements = []
    for position in range(2, draw(st.integers(3, 25))):
        earlier = st.integers(0, position - 1)
        operands = draw(earlier), draw(earlier)
        stream = draw(st.one_of(st.none(), st.integers(0, count - 1)))
        operation, action = draw(st.sampled_from(sorted(OPERATIONS))), draw(st.sampled_from(ACTIONS))
        statements.append(Statement(operation, operands, stream, action, draw(st.integers(0, position))))
    return tuple(statements)


def inputs(size: int) -> list[mx.array]:
    values = [mx.random.normal((size, size), key=mx.random.key(k)) for k in range(2)]
    mx.eval(values)
    return values


def computed(statements: Sequence[Statement], *values: mx.array) -> list[mx.array]:
    """All values, on the streams that the statements name."""
    known = list(values)
    for statement in statements:
        stream = None if statement.stream is None else STREAMS[statement.stream]
        x, y = (known[operand] for operand in statement.operands)
        known.append(OPERATIONS[statement.operation](x, y, stream))
    return known


def on_one_stream(statements: Sequence[Statement], *values: mx.array) -> list[mx.array]:
    return computed(
        [Statement(statement.operation, statement.operands, None, "nothing", 0) for statement in statements], *values
    )


def with_actions(statements: Sequence[Statement], *values: mx.array) -> list[mx.array]:
    """The same values, with the actions of the statements between them."""
    known = list(values)
    for statement in statements:
        stream = None if statement.stream is None else STREAMS[statement.stream]
        x, y = (known[operand] for operand in statement.operands)
        operation = OPERATIONS[statement.operation]
        if statement.action == "compile":
            known.append(mx.compile(lambda x, y, operation=operation, stream=stream: operation(x, y, stream))(x, y))
        else:
            known.append(operation(x, y, stream))
        chosen = known[statement.chosen]
        if statement.action == "start":
            mx.async_eval(chosen)
        elif statement.action == "start all":
            mx.async_eval(known)
        elif statement.action == "evaluate":
            mx.eval(chosen)
        elif statement.action == "read":
            chosen[0, 0].item()
        elif statement.action == "synchronize":
            mx.synchronize(stream)
        elif statement.action == "clear":
            mx.clear_streams()
        elif statement.action == "drop":
            known[statement.chosen] = chosen + 0
            gc.collect()
    return known


@pytest.fixture(autouse=True)
def _shown_if_stuck(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the stacks of all threads if these tests do not end."""
    slow = request.node.get_closest_marker("slow") is not None
    faulthandler.dump_traceback_later(3600 if slow else 600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


SIZES = st.sampled_from([4, 4, 4, 100])
"""Work of more element steps is left to the workers of streams."""


def check_actions(statements: Sequence[Statement], size: int) -> None:
    values = inputs(size)
    expected = on_one_stream(statements, *values)
    mx.eval(expected)
    assert_same_bits(with_actions(statements, *values), expected)
    lazy = computed(statements, *values)
    mx.eval(lazy)
    assert_same_bits(lazy, expected)


@examples(8)
@given(programs(), SIZES)
def test_the_same_bits_as_on_one_stream(statements: Sequence[Statement], size: int) -> None:
    check_actions(statements, size)


@pytest.mark.slow
@examples(500)
@given(programs(), SIZES)
def test_the_same_bits_as_on_one_stream_at_length(statements: Sequence[Statement], size: int) -> None:
    check_actions(statements, size)


def loss(run: Callable[..., list[mx.array]], statements: Sequence[Statement]) -> Callable[..., mx.array]:
    return lambda x, y: mx.tanh(run(statements, x, y)[-1]).sum()


@examples(5)
@given(programs())
def test_transformed_and_compiled(statements: Sequence[Statement]) -> None:
    x, y = inputs(4)
    transformations: list[Callable[[Any], Callable[..., Any]]] = [
        lambda f: f,
        lambda f: mx.value_and_grad(f, argnums=(0, 1)),
        lambda f: mx.grad(lambda x, y: mx.grad(f)(x, y).sum(), argnums=1),
        lambda f: mx.vmap(mx.grad(f), in_axes=(0, None)),
    ]
    for transform in transformations:
        batch = mx.stack([x, y]) if transform is transformations[-1] else x
        expected = transform(loss(on_one_stream, statements))(batch, y)
        mx.eval(expected)
        assert_same_bits(transform(loss(computed, statements))(batch, y), expected)
        compiled = mx.compile(transform(loss(computed, statements)))
        assert_same_bits(compiled(batch, y), expected)
        with mx.stream(STREAMS[0]):
            assert_same_bits(compiled(batch, y), expected)
        assert_same_bits(transform(mx.compile(loss(computed, statements)))(batch, y), expected)


@examples(4)
@given(st.lists(programs(), min_size=2, max_size=4), SIZES)
def test_several_threads_on_the_same_streams(several: Sequence[Sequence[Statement]], size: int) -> None:
    values = inputs(size)
    expected = [on_one_stream(statements, *values) for statements in several]
    mx.eval(expected)
    results: dict[int, list[mx.array]] = {}

    def run(number: int) -> None:
        results[number] = with_actions(several[number], *values)
        mx.eval(results[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(several))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same_bits([results[number] for number in range(len(several))], expected)
