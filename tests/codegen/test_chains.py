"""Chains: steps that are run together, for one matrix of a stack after the other. Results have the bits of separate
steps and need less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from tests.sampling import Cases
from weft.compiler.cpu.chains import units_of
from weft.runtime import executor


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many threads there are when plans are made."""
    before = executor.thread_count()
    executor.set_thread_count(request.param)
    yield request.param
    executor.set_thread_count(before)


def numbers(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    x = mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)
    mx.eval(x)
    return x


def stored(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


Keep = Callable[[mx.array], mx.array]


def assert_bits_of_the_steps(function: Callable[..., Any], *arguments: mx.array) -> None:
    """The result of a function that runs as one plan has the same bits as if each intermediate result was stored."""
    found = function(lambda x: x, *arguments)
    mx.eval(found)
    assert_same_bits(found, function(stored, *arguments))


def attended(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
    return keep(mx.softmax(keep(q @ mx.swapaxes(k, -1, -2)), axis=-1)) @ v


def through_views(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
    """Rows that are cut and joined again, and sums of columns of an elementwise function of a product."""
    scores = keep(q @ mx.swapaxes(k, -1, -2))
    large = keep(mx.exp(scores * 0.01))
    joined = keep(mx.concatenate([large[..., :100, :], scores[..., 100:, :]], axis=-2))
    return joined @ v, mx.sum(large, axis=-2)


def of_lanes(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
    """Only elementwise operations between products, one before them and one after them."""
    first = keep(keep(q.astype(mx.float32) + 1) @ mx.swapaxes(k, -1, -2))
    return keep(mx.tanh(first) @ v), keep(mx.swapaxes(first, -1, -2) @ q)


def of_columns(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
    """Softmax over rows, which walks over columns."""
    scores = keep(q @ mx.swapaxes(k, -1, -2))
    return keep(mx.softmax(scores, axis=-2)) @ v


SHAPES = [(12, 200, 40), (2, 3, 256, 48), (6, 2, 150, 200)]


@pytest.mark.parametrize("function", [attended, through_views, of_lanes, of_columns])
def test_bits_are_those_of_the_steps(function: Callable[..., Any], threads: int, cases: Cases) -> None:
    for shape in cases.some(1, SHAPES):
        q, k, v = [numbers(*shape) for _ in range(3)]
        plans = plans_of(lambda: function(lambda x: x, q, k, v))  # noqa: B023  # called at once
        assert "chain of" in str(plans[0])
        assert_bits_of_the_steps(function, q, k, v)


def test_what_is_inside_takes_memory_for_the_turns_at_work(threads: int) -> None:
    q, k, v = [numbers(24, 256, 64) for _ in range(3)]
    (plan,) = plans_of(lambda: attended(lambda x: x, q, k, v))
    assert plan.steps.count == 1
    assert plan.arena == 256 * 256 * 4 * (1 if threads == 1 else 2 * threads)
    assert plan.work > 24 * 256 * 256 * 64


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (lambda q, k, v: attended(lambda x: x, q, k, v)[0], 1),  # what shows a result is no step
        (lambda q, k, v: mx.sum(attended(lambda x: x, q, k, v), axis=0), 2),  # sums over the stack
        (lambda q, k, v: attended(lambda x: x, q, k, v)[::-1] + q, 2),  # of another turn
        (lambda q, k, v: attended(lambda x: x, q[:, :64], k[:, :64], v[:, :64]), 2),  # little memory
        (lambda q, k, v: attended(lambda x: x, q[:1], k[:1], v[:1]), 2),  # no stack
    ],
)
def test_what_is_chained(function: Callable[..., Any], steps: int) -> None:
    before = executor.thread_count()
    executor.set_thread_count(2)
    q, k, v = [numbers(24, 256, 64) for _ in range(3)]
    (plan,) = plans_of(lambda: function(q, k, v))
    executor.set_thread_count(before)
    assert plan.steps.count == steps


def test_a_result_of_the_program_in_the_middle_is_in_memory(threads: int) -> None:
    def function(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
        scores = keep(q @ mx.swapaxes(k, -1, -2))
        weights = keep(mx.exp(scores * 0.01))
        return weights, keep(weights @ v) - keep(scores @ v)

    q, k, v = [numbers(12, 256, 64) for _ in range(3)]
    assert_bits_of_the_steps(function, q, k, v)


def test_what_another_turn_makes_is_made_before(threads: int) -> None:
    """A step that reads the results of a product from the last matrix to the first begins a new chain."""

    def function(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
        weights = keep(mx.exp(keep(q @ mx.swapaxes(k, -1, -2)) * 0.01))
        first = keep(weights @ v)
        mixed = keep(weights * first[::-1, :, :1])
        return keep(mixed @ v)

    q, k, v = [numbers(12, 256, 64) for _ in range(3)]
    (plan,) = plans_of(lambda: function(lambda x: x, q, k, v))
    assert (plan.steps.count, "chain of 2 steps, 12 turns" in str(plan)) == (3, True)
    assert_bits_of_the_steps(function, q, k, v)


def test_what_is_written_twice_is_written_in_order(threads: int) -> None:
    """A scatter writes in matrices of other turns than its own, over what an earlier step wrote there."""
    index, x = mx.array([3, 0, 7, 11, 5]), numbers(5, 240, 240)

    def function(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
        scores = keep(q @ mx.swapaxes(k, -1, -2))
        written = keep(mx.tanh(scores))
        written[index] = x
        return keep(written), keep(mx.cos(scores * 0.01)) @ v

    q, k, v = [numbers(12, 240, 64) for _ in range(3)]
    assert_bits_of_the_steps(function, q, k, v)


def test_what_a_kernel_reads_that_feeds_a_product_behind_is_in_memory(threads: int) -> None:
    def function(keep: Keep, q: mx.array, k: mx.array, v: mx.array) -> Any:
        scores = keep(q @ mx.swapaxes(k, -1, -2))
        reversed_rows = keep(scores.reshape(-1, 512)[::-1] * 2)
        return keep(mx.exp(scores * 0.01) @ v), keep(reversed_rows @ v[0])

    q, k, v = [numbers(6, 512, 64) for _ in range(3)]
    (plan,) = plans_of(lambda: function(lambda x: x, q, k, v))
    assert "fed by" in str(plan)
    assert_bits_of_the_steps(function, q, k, v)


def test_what_is_said_of_a_chain() -> None:
    before = executor.thread_count()
    executor.set_thread_count(2)
    q, k, v = [numbers(8, 256, 64) for _ in range(3)]
    (chain,) = mx.compile(lambda q, k, v: attended(lambda x: x, q, k, v)).explain(q, k, v).steps
    executor.set_thread_count(before)
    assert (chain.kind, chain.name) == ("call", "matmul (2), max, subtract, exp, sum, divide")
    assert chain.bytes_read == q.nbytes + k.nbytes + v.nbytes
    assert chain.bytes_written == q.nbytes
    assert chain.text.startswith("chain of 2 steps, 8 turns:\n  call matmul (8, 256, 256), attached to it:")
    assert chain.writes == ["result 0 float32[8,256,64]"]


@pytest.mark.parametrize(("count", "turns"), [(1, 50), (2, 50), (16, 100), (64, 400), (1500, 0)])
def test_turns_of_kernels_are_enough_for_the_threads(count: int, turns: int) -> None:
    """With many threads, turns are smaller, and there is no chain if even the smallest ones would leave threads
    idle."""
    before = executor.thread_count()
    executor.set_thread_count(count)
    x = numbers(2000, 101)

    def tree() -> mx.array:
        values = x
        for _ in range(8):
            values = 0.5 * values[:, 1:] + 0.3 * values[:, :-1]
        return values

    (plan,) = plans_of(tree)
    text = str(plan)
    executor.set_thread_count(before)
    assert ("chain of" in text, f", {turns} turns" in text) == (turns > 0, turns > 0)


@pytest.mark.parametrize(
    ("turns", "count", "units"), [(15, 16, 15), (17, 16, 0), (49, 16, 0), (56, 16, 32), (65, 16, 32), (9, 1, 1)]
)
def test_few_turns_keep_most_threads_busy(turns: int, count: int, units: int) -> None:
    before = executor.thread_count()
    executor.set_thread_count(count)
    found = units_of(turns)
    executor.set_thread_count(before)
    assert found == units
