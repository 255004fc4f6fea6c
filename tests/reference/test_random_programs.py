"""Random programs whose steps run on the CPU or on the reference device, on any stream, have the bits of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.behaviour import test_streams_random as actions
from tests.checks import assert_same_bits
from tests.programs import Program, programs
from tests.sampling import examples

CHOICES = st.lists(st.sampled_from(["current", "cpu", "gpu", "a stream of the cpu", "a stream of the gpu"]), min_size=8)
"""The choices of where a step of a program runs."""


def contexts(choices: Sequence[str]) -> list[Any]:
    """The devices and streams for the steps."""
    streams: dict[str, Any] = {
        "cpu": mx.cpu,
        "gpu": mx.gpu,
        "a stream of the cpu": mx.new_stream(mx.cpu),
        "a stream of the gpu": mx.new_stream(mx.gpu),
    }
    return [mx.stream(streams[choice]) if choice in streams else nullcontext() for choice in choices]


def distributed(program: Program, choices: Sequence[str]) -> Callable[..., list[mx.array]]:
    """The program with each step on its device or stream."""
    own = contexts(choices)

    def run(*inputs: mx.array) -> list[mx.array]:
        values = list(inputs)
        for statement, context in zip(program.statements, own, strict=False):
            with context:
                values.append(statement.operation.weft(*[values[k] for k in statement.operands], *statement.parameters))
        return values[len(inputs) :][-3:]

    return run


def total(run: Callable[..., list[mx.array]]) -> Callable[..., mx.array]:
    return lambda *inputs: sum((mx.sin(value).sum() for value in run(*inputs)), start=mx.array(0.0))


def check_distributed(program: Program, choices: Sequence[str], default: Any) -> None:
    mx.set_default_device(mx.cpu)
    expected = program(*program.arrays())
    mx.eval(expected)
    run = distributed(program, choices)
    mx.set_default_device(default)
    assert_same_bits(run(*program.arrays()), expected)
    lazy = run(*program.arrays())
    mx.async_eval(lazy)
    assert_same_bits(lazy, expected)
    compiled = mx.compile(run)
    assert_same_bits(compiled(*program.arrays()), expected)
    inputs = program.arrays()
    mx.eval(inputs)
    assert_same_bits(compiled(*inputs), expected)
    assert_same_bits(compiled(*inputs), expected)


@examples(24)
@given(programs(), CHOICES, st.sampled_from([mx.cpu, mx.gpu]))
def test_the_bits_of_the_cpu(program: Program, choices: Sequence[str], default: Any) -> None:
    check_distributed(program, choices, default)


@examples(15)
@given(programs(smooth=True), CHOICES, st.sampled_from([mx.cpu, mx.gpu]))
def test_gradients_and_vmap(program: Program, choices: Sequence[str], default: Any) -> None:
    mx.set_default_device(mx.cpu)
    run = distributed(program, choices)
    inputs = program.arrays()
    expected = mx.value_and_grad(total(program.__call__))(*inputs)
    batches = [mx.stack([x, x * 0.5]) for x in inputs]
    mapped = mx.vmap(lambda *inputs: program(*inputs))(*batches)
    mx.eval(expected, mapped)
    mx.set_default_device(default)
    assert_same_bits(mx.value_and_grad(total(run))(*inputs), expected)
    assert_same_bits(mx.compile(mx.value_and_grad(total(run)))(*inputs), expected)
    assert_same_bits(mx.vmap(run)(*batches), mapped)


def test_an_empty_array_is_not_read() -> None:
    """The position of its elements may be after the end of the memory that it is a view of."""
    mx.set_default_device(mx.gpu)
    x = mx.zeros((1, 0))
    y = mx.zeros((16,))
    mx.eval(x, y)
    assert (x.reshape(0).sum() + 1).item() == 1
    assert mx.broadcast_to(y[16:], (3, 0)).sum(axis=1).tolist() == [0, 0, 0]
    assert mx.broadcast_to(x, (3, 0)).sum().item() == 0


@examples(25)
@given(actions.programs())
def test_streams_of_both_devices_in_any_order(statements: Sequence[actions.Statement]) -> None:
    mx.set_default_device(mx.cpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actions, "STREAMS", [mx.new_stream(mx.gpu if k % 2 else mx.cpu) for k in range(6)])
        actions.check_actions(statements, 4)
