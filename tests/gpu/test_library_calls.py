"""Calls of libraries in the plans of a card, without a card: when they are queued, and when captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver, FakeTarget
from weft.errors import EvaluationError
from weft.graph.node import Node
from weft.primitives.routine import Routine, RoutineCall, RoutineStep
from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import CudaError
from weft.runtime.cuda.engine import CudaEngine
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.engine import engine_of
from weft.runtime.memory import Buffer
from weft.runtime.steps import Step, Table

ON_HOST_ONLY = 7
"""The library does not compute arrays with this number of rows."""


@dataclass(frozen=True)
class Turn(LibraryCall):
    """A call that reverses ``count`` elements of 4 bytes through scratch memory, in two pieces of work."""

    title: str
    places: tuple[tuple[int, int], ...]
    count: int
    is_captured: bool = True

    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        driver: Any = queue._driver
        source, target, scratch = addresses
        forward = 4 * np.arange(self.count)
        queue.handles["turns"] = queue.handles.get("turns", 0) + 1

        def copy(there: int, here: int, order: np.ndarray) -> None:
            driver.memory.write(there, forward, driver.memory.read(here, order, np.dtype(np.int32)))

        return [
            driver.calling(lambda: copy(scratch, source, forward), queue.handle),
            driver.calling(lambda: copy(target, scratch, forward[::-1]), queue.handle),
        ]

    def check(self, code: int) -> None:
        raise EvaluationError(f"TURN_STATUS_{code} in {self.title}")


class Turned(p.Primitive):
    """The elements of an array in reverse order."""

    name = "turned"
    parameters = ("is_captured",)
    routine: Routine = Routine(scratch=lambda node: 4 * node.size)

    def infer(self, *inputs: Node, **params: Any) -> Any:
        return inputs[0].shape, inputs[0].dtype


turned = Turned()


@turned.routine.on("cuda", declines=lambda node: "" if node.shape[0] != ON_HOST_ONLY else "the library is not here")
def _step(call: RoutineCall) -> RoutineStep:
    (x,), (out,) = call.operands, call.results
    places = (x.slot, x.offset), (out.slot, out.offset), call.scratch
    return RoutineStep(Turn(f"turned {x.shape}", places, int(np.prod(x.shape)), call.params["is_captured"]))


@pytest.fixture(autouse=True)
def _with_the_library(driver: FakeDriver) -> None:
    cast(FakeTarget, engine_of(mx.Device(mx.gpu)).target).routines = {turned}


def turn(x: Any, is_captured: bool = True) -> Any:
    return turned(x, is_captured=is_captured)


def values(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(3).normal(size=shape).astype(np.float32))


def in_numpy(x: Any) -> np.ndarray:
    return np.array(x).reshape(-1)[::-1].reshape(x.shape)


PROGRAMS: dict[str, Any] = {
    "alone": lambda x: turn(x),
    "between kernels": lambda x: mx.exp(turn(mx.sin(x) * 2)) + 1,
    "of a view": lambda x: turn(x[1:]) + x[1:],
    "of a view that is copied": lambda x: turn(x[:, 1:]) * 2,
    "several": lambda x: turn(mx.exp(turn(x))) + turn(x * 2),
    "that cannot be captured": lambda x: turn(x + 1, is_captured=False) * 2,
    "before work of the CPU": lambda x: mx.cumsum(turn(x), axis=0) + turn(x),
    "of nothing": lambda x: turn(x[:0]),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(driver: FakeDriver, name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first run, in captured runs, and in runs with other addresses."""
    inputs = [values(3, 5), values(3, 5) * 2]
    with monkeypatch.context() as patch, mx.stream(mx.cpu):
        patch.setitem(globals(), "turn", lambda x, **params: mx.array(in_numpy(x)))
        wanted = [PROGRAMS[name](x) for x in inputs]
        mx.eval(wanted)
    function = mx.compile(PROGRAMS[name]) if compiled else PROGRAMS[name]
    mx.set_default_device(mx.gpu)
    for number in (0, 0, 0, 1, 0, 1, 1):
        assert_same_bits(function(inputs[number]), wanted[number])


@pytest.mark.parametrize("count", range(1, 9))
def test_functions_of_several_arrays(driver: FakeDriver, count: int) -> None:
    """Their slots fill the memory that these have, if there are as many as a size class has room for."""
    function = mx.compile(lambda *arrays: turn(mx.sin(sum(arrays))) * 2)
    given = [values(4, 6) for _ in range(count)]
    mx.set_default_device(mx.gpu)
    arrays = [x * number for number, x in enumerate(given, 1)]  # in the memory of the card
    mx.eval(arrays)
    wanted = [np.array(mx.sin(sum(arrays))) for _ in range(4)]
    for elements in wanted:
        found = function(*arrays)
        assert np.array_equal(np.array(found), in_numpy(elements) * 2)
        del found  # the next result gets the same memory


def training_step(x: mx.array) -> mx.array:
    return turn(mx.sin(x)) * mx.array(0.5)


def test_the_same_addresses_are_one_launch(driver: FakeDriver) -> None:
    """The first run queues its steps one by one, the second is captured, and from then on a graph is launched."""
    mx.set_default_device(mx.gpu)
    compiled, x = mx.compile(training_step), values(4, 6)
    counted = []
    for _ in range(4):
        before = driver.calls.copy()
        mx.eval(compiled(x))
        counted.append({name: driver.calls[name] - before[name] for name in ("launch", "library", "launch_graph")})
    first, second, *later = counted
    assert first == {"launch": 2, "library": 2, "launch_graph": 0}
    assert second == {"launch": 2, "library": 2, "launch_graph": 1}  # the captured work is not queued
    assert later == [{"launch": 0, "library": 0, "launch_graph": 1}] * 2


def test_other_addresses_queue_the_steps_again(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    compiled, inputs = mx.compile(lambda x: turn(mx.sin(x))), [values(4, 6) * n for n in range(1, 4)]
    wanted = [mx.array(in_numpy(mx.sin(x, stream=mx.cpu))) for x in inputs]
    for _ in range(3):
        kept = [compiled(x) for x in inputs]
        assert_same_bits(kept, wanted)
    captured = driver.calls["captured"]
    held = [compiled(inputs[0]) for _ in range(9)]  # each has its own memory
    assert_same_bits(held, [wanted[0]] * 9)
    assert captured <= driver.calls["captured"] <= captured + 3


def test_graphs_of_addresses_that_do_not_come_again_end(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    compiled, x = mx.compile(lambda x: turn(mx.sin(x))), values(4, 6)
    held = []
    for _ in range(12):
        mx.eval(compiled(x))
        held.append(compiled(x))  # in the same memory
        mx.eval(held)
    mx.eval(mx.tan(x))  # a new plan
    assert driver.calls["captured"] > 6
    assert len(driver._graphs) < 8


def test_another_number_leaves_the_graph(driver: FakeDriver) -> None:
    """Kernels read numbers of the program from the slots, but libraries cannot."""
    mx.set_default_device(mx.gpu)
    x = values(4, 6)
    turned_x = mx.array(in_numpy(x))
    for number in range(6):
        assert_same_bits(turn(x) * (number + 0.5), mx.multiply(turned_x, number + 0.5, stream=mx.cpu))
    assert driver.calls["captured"] == 1
    assert driver.calls["launch_graph"] == 5


def test_results_that_alternate_between_two_blocks_are_not_sent_again(driver: FakeDriver) -> None:
    """As the loss of a training loop does, if that of the step before is still there."""
    mx.set_default_device(mx.gpu)
    compiled, x = mx.compile(lambda x: turn(mx.sin(x)) * 2), values(4, 6)
    wanted = np.array(compiled(x))
    loss = None
    for _ in range(8):
        loss = compiled(x)
        mx.eval(loss)
    before = driver.calls.copy()
    for _ in range(6):
        loss = compiled(x)
        mx.eval(loss)
    made = {name: driver.calls[name] - before[name] for name in ("copy_in", "captured", "library", "launch_graph")}
    assert made == {"copy_in": 0, "captured": 0, "library": 0, "launch_graph": 6}
    assert np.array_equal(np.array(loss), wanted)


def test_several_queues(driver: FakeDriver) -> None:
    """Each has its own handle; a queue waits for what it needs from another."""
    streams = [mx.new_stream(mx.gpu) for _ in range(3)]
    x = values(4, 6)
    wanted = np.array(x)
    y = x
    for number in range(12):
        with mx.stream(streams[number % 3]):
            y = turn(y) + 1
        wanted = wanted.reshape(-1)[::-1].reshape(wanted.shape) + np.float32(1)
    assert np.array_equal(np.array(y), wanted)


def test_a_call_that_cannot_be_captured_is_queued_each_time(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    compiled, x = mx.compile(lambda x: turn(x * 2, is_captured=False)), values(4)
    for _ in range(4):
        assert_same_bits(compiled(x), mx.array(in_numpy(np.array(x) * 2)))
    assert driver.calls["captured"] == driver.calls["launch_graph"] == 0


def test_a_capture_that_fails_is_no_error(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    mx.set_default_device(mx.gpu)
    monkeypatch.setattr(driver, "captured", lambda actions, stream: 0)
    compiled, x = mx.compile(training_step), values(4)
    for _ in range(4):
        assert_same_bits(compiled(x), mx.array(in_numpy(mx.sin(x, stream=mx.cpu))) * 0.5)


def test_a_failure_is_named(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    y = turn(mx.exp(values(4))) + 1
    driver.library_codes = [3]
    with pytest.raises(weft.errors.EvaluationError, match=r"TURN_STATUS_3 in turned \(4,\)"):
        mx.eval(y)
    assert_same_bits(y, mx.array(in_numpy(mx.exp(values(4), stream=mx.cpu))) + 1)


def test_a_run_goes_on_with_the_call_that_failed(driver: FakeDriver) -> None:
    """Work that was queued before is not queued again: it would read memory that it has already overwritten."""
    engine = cast(CudaEngine, engine_of(mx.Device(mx.gpu)))
    here, there, scratch = (Buffer(engine, 16) for _ in range(3))
    x = np.arange(4, dtype=np.int32)
    engine.copy_in(memoryview(x.data), here, 0)
    forth, back = Turn("forth", ((0, 0), (1, 0), (2, 0)), 4), Turn("back", ((1, 0), (0, 0), (2, 0)), 4)
    steps = engine.seal([Step(code, [], 1, 1) for code in (forth, back, forth)])
    table = Table(steps, [here.address, there.address, scratch.address])
    driver.library_codes = [0, 0, 5]
    with pytest.raises(EvaluationError, match="TURN_STATUS_5 in back"):
        engine.run(steps, table)
    assert table.steps_run == 1
    assert engine.run(steps, table) == 3
    assert driver.calls["library"] == 7
    found = np.empty_like(x)
    engine.copy_out(there, 0, memoryview(found.data))
    assert found.tolist() == [3, 2, 1, 0]


def test_an_error_of_the_card_names_calls(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    x = turn(values(4))
    mx.async_eval(x)
    driver.failure = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered", "here")
    with pytest.raises(weft.errors.EvaluationError, match=r"(?s)CUDA_ERROR_ILLEGAL_ADDRESS.*queued last:.*turned"):
        x.tolist()


def test_each_step_has_its_time(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    with weft.profile() as profile:
        mx.eval(mx.exp(turn(mx.sin(values(4, 6)))))
    assert all(name in str(profile) for name in ("sin", "turned", "exp"))


def test_what_a_library_declines_is_left_to_the_cpu(driver: FakeDriver) -> None:
    mx.set_default_device(mx.gpu)
    explained = mx.compile(lambda x: turn(x)).explain(values(4, 6))
    assert [step.runs_on for step in explained.steps] == [""]
    with pytest.raises(NotImplementedError, match="turned"):  # the CPU has no step for it
        mx.eval(turn(values(ON_HOST_ONLY, 2)))
