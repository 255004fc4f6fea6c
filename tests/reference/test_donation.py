"""Memory of arrays that are not used afterwards is used again on the second device, in the order that its schedule
promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.reference.device import ReferenceEngine, ReferenceSchedule
from tests.reference.kernels import Run
from tests.reference.values import numbers, view_of
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.running import evaluate

pytestmark = pytest.mark.usefixtures("donated_from_one_byte")

ENDING: dict[str, Callable[[mx.array], mx.array]] = {
    "elementwise": lambda x: mx.exp(x) * 2,
    "rows": lambda x: mx.softmax(x, axis=-1),
    "transposed": lambda x: x.T + 1,
    "columns": lambda x: x - x.sum(axis=0),
    "another device": lambda x: mx.add(mx.sin(x, stream=mx.gpu), mx.cos(x, stream=mx.cpu)),
}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("device", [mx.cpu, mx.gpu], ids=str)
@pytest.mark.parametrize("name", ENDING)
def test_memory_that_ends_is_used_again_only_if_nobody_needs_it(name: str, device: Any, copied: bool) -> None:
    mx.set_default_device(mx.cpu)
    expected = ENDING[name](numbers(6, 6))
    other = mx.square(numbers(6, 6))
    mx.eval(expected, other)
    mx.set_default_device(device)
    x = numbers(6, 6) + 0
    mx.eval(x)
    there = mx.square(x, stream=mx.gpu if device == mx.cpu else mx.cpu)  # a copy of x is on the other device
    if copied:
        mx.eval(there)
    x = ENDING[name](x)
    mx.eval(x)
    assert_same_bits(x, expected)
    assert_same_bits(there, other)


def test_memory_that_ends_is_used_again() -> None:
    mx.set_default_device(mx.gpu)
    x = numbers(64) + 1
    before = view_of(x).address
    x = x * 2
    assert view_of(x).address == before


class Careless(ReferenceSchedule):
    """A schedule of a target that cannot store values: before each store, everything that it needs is read and computed
    again. It does not tell the planner that later stores read the input again."""


class Careful(Careless):
    """The same schedule, but it tells the planner so."""

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        later = [number for number, i in enumerate(kernel.instructions) if number > store and i.operation == "store"]
        return load < store and not any(load in needed_by(kernel, other) for other in later)


def needed_by(kernel: Kernel, number: int) -> set[int]:
    """The instructions that instruction ``number`` needs, directly or through others."""
    found: set[int] = set()
    pending = [number]
    while pending:
        sources = set(kernel.instructions[pending.pop()].sources) - found
        found |= sources
        pending += sources
    return found


def store_anew(run: Run, position: int, instruction: Instruction) -> None:
    run.values = []
    for earlier, needed in enumerate(run.kernel.instructions[:position]):
        run.values.append(None if needed.operation == "store" else run.value(earlier))
    STORE(run, position, instruction)


STORE = Run.store


@pytest.mark.parametrize("schedule", [Careful, Careless])
def test_the_order_that_a_schedule_promises(
    schedule: type[ReferenceSchedule], engine: ReferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel stores a product in the memory of x, unless the schedule says that it reads x again for the
    maximum."""
    host = numbers(8)
    expected = np.array(host * host.max()), np.array(host.max())
    monkeypatch.setattr(engine.target, "key", schedule.__name__)
    monkeypatch.setattr(engine.target, "schedule", lambda launch: schedule())
    monkeypatch.setattr(Run, "store", store_anew)
    monkeypatch.setattr(evaluate, "LITTLE_WORK", 0)  # one kernel computes both results
    with mx.stream(mx.gpu):
        x = numbers(8) + 0
        mx.eval(x)
        largest = x.max()
        x = x * largest
        mx.eval(x, largest)
    right = [np.array_equal(found, wanted) for found, wanted in zip((x, largest), expected, strict=True)]
    assert all(right) == (schedule is Careful)
