"""The pool does each unit of a step once, and ends a step before the next one begins."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from tests.gates import wait_until
from weft.compiler.codegen import loading
from weft.compiler.cpu.step_loop import runtime_functions
from weft.compiler.cpu.threads.waiting import SPIN_NANOSECONDS
from weft.runtime.executor import Executor
from weft.runtime.steps import POOL, Step, StepTable, Table

# Adds one and element ``unit * 7 mod units`` of the first half of some memory to element ``unit`` of the second half.
# The first two numbers of a step are the extent of a half, and where the first half begins.
SHUFFLE = """
define void @shuffle(ptr %numbers, ptr %table, i64 %begin, i64 %end) {
entry:
  %memory = load ptr, ptr %table
  %units = load i64, ptr %numbers
  %from_place = getelementptr i64, ptr %numbers, i64 1
  %from_offset = load i64, ptr %from_place
  %to_offset = sub i64 %units, %from_offset
  %from = getelementptr i64, ptr %memory, i64 %from_offset
  %to = getelementptr i64, ptr %memory, i64 %to_offset
  br label %loop
loop:
  %unit = phi i64 [%begin, %entry], [%next, %body]
  %more = icmp slt i64 %unit, %end
  br i1 %more, label %body, label %out
body:
  %seventh = mul i64 %unit, 7
  %other = urem i64 %seventh, %units
  %source = getelementptr i64, ptr %from, i64 %other
  %target = getelementptr i64, ptr %to, i64 %unit
  %read = load i64, ptr %source
  %increment = add i64 %read, 1
  %before = load i64, ptr %target
  %sum = add i64 %before, %increment
  store i64 %sum, ptr %target
  %next = add i64 %unit, 1
  br label %loop
out:
  ret void
}
"""
STEPS = 60


def expected(units: int) -> int:
    """The value of each element of the half that the last step writes."""
    halves = [0, 0]
    for number in range(STEPS):
        halves[1 - number % 2] += halves[number % 2] + 1
        halves = [half % 2**64 for half in halves]
    return halves[STEPS % 2]


def run(executor: Executor, units: int, grain: int) -> list[int]:
    """The elements of both halves of the memory after many steps."""
    code = loading.load(SHUFFLE, lambda: SHUFFLE, ("shuffle",))["shuffle"]
    memory = (ctypes.c_uint64 * (2 * units))()
    steps = StepTable([Step(code, (units, units * (number % 2)), units, grain) for number in range(STEPS)])
    table = Table(steps, [ctypes.addressof(memory)])
    table.values[POOL] = executor.pool
    assert executor.run(table.address) == STEPS
    return list(array("Q", memory))[units * (STEPS % 2) :][:units]


@pytest.fixture(params=[1, 2, 5, 16, 43])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor with a pool that no other test uses."""
    made = Executor(runtime_functions(), request.param)
    yield made
    made.stop()


def test_each_unit_of_each_step_once(executor: Executor, rng: np.random.Generator) -> None:
    for _ in range(12):
        units, grain = int(rng.choice([2, 3, 16, 17, 42, 100, 1000])), int(rng.choice([1, 2, 7]))
        assert run(executor, units, grain) == [expected(units)] * units, (units, grain)


@pytest.mark.parametrize(
    ("threads", "units", "grain", "expected"),
    [
        (2, 30, 10, [8, 8, 8, 6]),
        (2, 40, 10, [10] * 4),
        (5, 30, 10, [10] * 3),
        (3, 7, 1, [1] * 7),
        (4, 9, 2, [2] * 4 + [1]),
    ],
)
def test_shares_are_equal(threads: int, units: int, grain: int, expected: list[int]) -> None:
    """Three grains are divided for two threads, so that none does two of them while the other one does one."""
    found: list[tuple[int, int]] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    def note(numbers: int, table: int, begin: int, end: int) -> None:
        found.append((begin, end))

    address = ctypes.cast(note, ctypes.c_void_p).value
    steps = StepTable([Step(address, (), units, grain)])
    table = Table(steps, [])
    executor = Executor(runtime_functions(), threads)
    table.values[POOL] = executor.pool
    assert executor.run(table.address) == steps.count
    executor.stop()
    found.sort()
    assert [end - begin for begin, end in found] == expected
    assert [begin for begin, _ in found] == [0, *[end for _, end in found[:-1]]]


def test_callers_at_once(executor: Executor) -> None:
    """One of them gets the pool, the others work on their own thread only."""
    found: list[list[int]] = []
    callers = [threading.Thread(target=lambda: found.append(run(executor, 100, 1))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [[expected(100)] * 100] * 4


def test_more_units_than_a_claim_can_count(executor: Executor) -> None:
    units = 100_003
    assert run(executor, units, 1) == [expected(units)] * units


# ``meet`` brings the thread that does unit 1 to the processor in the first set, and lets it use those in the second.
# ``where`` stores the number of the processor in the element of each unit. Threads sleep before or after that, so each
# of them does a unit.
PLACES = """
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @usleep(i32)

define void @meet(ptr %numbers, ptr %table, i64 %begin, i64 %end) {
entry:
  %second = icmp ne i64 %begin, 0
  br i1 %second, label %move, label %out
move:
  %one = load ptr, ptr %numbers
  %place = getelementptr ptr, ptr %numbers, i64 1
  %all = load ptr, ptr %place
  call i32 @usleep(i32 12000)
  call i32 @sched_setaffinity(i32 0, i64 128, ptr %one)
  call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %out
out:
  ret void
}

define void @where(ptr %numbers, ptr %table, i64 %begin, i64 %end) {
entry:
  %memory = load ptr, ptr %table
  %offset = load i64, ptr %numbers
  %index = add i64 %offset, %begin
  %place = getelementptr i64, ptr %memory, i64 %index
  %number = call i32 @sched_getcpu()
  %processor = sext i32 %number to i64
  store i64 %processor, ptr %place
  call i32 @usleep(i32 2000)
  ret void
}
"""


def set_of(processors: set[int]) -> ctypes.Array[ctypes.c_char]:
    """A set of processors as C libraries have it."""
    return ctypes.create_string_buffer(sum(1 << processor for processor in processors).to_bytes(128, sys.byteorder))


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, threads do not choose their processors")
def test_a_worker_leaves_the_processor_of_the_caller() -> None:
    """The system would leave it there for some time. It may use that processor later: soon after the run, as it may be
    late for a job that the caller has done alone. While other programs use the processors the caller often does both
    units, so there are several runs."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one processor only")
    code = loading.load(PLACES, lambda: PLACES, ("meet", "where"))
    first, times = min(allowed), 20
    sets = set_of({first}), set_of(allowed)
    memory = (ctypes.c_uint64 * (2 * times))()
    steps = StepTable(
        [
            Step(code[name], numbers, 2, 1)
            for time in range(times)
            for name, numbers in (("meet", tuple(map(ctypes.addressof, sets))), ("where", (2 * time,)))
        ]
    )
    table, functions = Table(steps, [ctypes.addressof(memory)]), runtime_functions()
    before = set(os.listdir("/proc/self/task"))
    executor = Executor(functions, 2)
    table.values[POOL] = executor.pool
    (worker,) = set(os.listdir("/proc/self/task")) - before
    try:
        os.sched_setaffinity(0, {first})
        for _ in range(5):
            assert executor.run(table.address) == steps.count
            wait_until(lambda: os.sched_getaffinity(int(worker)) == allowed)
            apart = sum(a != b for a, b in zip(memory[::2], memory[1::2], strict=True))
            if apart > times / 2:
                break
    finally:
        os.sched_setaffinity(0, allowed)
        executor.stop()
    assert apart > times / 2


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems, files do not tell how often threads sleep")
def test_a_worker_stays_awake_between_calls_that_follow_soon() -> None:
    """And it sleeps when no more calls come."""
    before = set(os.listdir("/proc/self/task"))
    executor = Executor(runtime_functions(), 2)
    (worker,) = set(os.listdir("/proc/self/task")) - before

    def facts() -> dict[str, str]:
        with open(f"/proc/self/task/{worker}/status", encoding="ascii") as lines:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    calls = 60
    try:
        run(executor, 2, 1)
        sleeps = -int(facts()["voluntary_ctxt_switches"])
        for _ in range(calls):
            end = time.perf_counter() + 3 * SPIN_NANOSECONDS / 1e9
            while time.perf_counter() < end:
                pass
            run(executor, 2, 1)
        sleeps += int(facts()["voluntary_ctxt_switches"])
        assert sleeps < calls / 2
        wait_until(lambda: facts()["State"].startswith("S"))
    finally:
        executor.stop()
