"""A plan finds by trial how many threads it uses; here a function says how long its runs would take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from weft.compiler.cpu.step_loop import runtime_functions
from weft.compiler.cpu.threads.trials import RESTED, ROUNDS, TURNS_OF_ROUND, TURNS_OF_RUNG, WATCHED
from weft.runtime.executor import Executor
from weft.runtime.steps import DONE, POOL, Step, StepTable, Table

THREADS = 64
TRIED = TURNS_OF_ROUND * ROUNDS
LONG = 8 * (RESTED + WATCHED + TRIED)
"""As many runs as are enough to go from one end to the other."""


class Plan:
    """The notes of a plan that shares its steps among 64 threads."""

    def __init__(self) -> None:
        self.steps = StepTable([Step(0, (), 2, 1)])
        functions = runtime_functions()
        self._trial = self.steps._table
        ask = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(functions["weft_threads_of_run"])
        note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(functions["weft_note_run"])
        address = ctypes.addressof(self._trial)
        self._ask: Callable[[], int] = lambda: ask(address, THREADS)
        self._note: Callable[[int, int], None] = lambda spent, waited: note(address, spent, waited)

    def run(self, count: int, time_of: Callable[[int, int], int], waiting: float = 0.5) -> list[int]:
        """The threads of so many runs. ``time_of(number, threads)`` is the time of a run; in ``waiting`` of it the
        caller waits."""
        found = []
        for number in range(count):
            found.append(self._ask())
            spent = time_of(number, found[-1])
            self._note(spent, int(waiting * spent))
        return found


def fastest_with(best: int) -> Callable[[int, int], int]:
    return lambda number, threads: 10_000 + 500 * abs(threads - best)


@pytest.mark.parametrize("best", [64, 48, 32, 24, 16])
def test_the_fastest_number_is_found_and_kept(best: int) -> None:
    found = Plan().run(2 * LONG, fastest_with(best))
    settled = found[LONG:]
    assert settled.count(best) >= 0.93 * len(settled)


def test_fewer_threads_than_a_fourth_are_never_used() -> None:
    assert min(Plan().run(LONG, lambda number, threads: threads)) == THREADS // 4


def test_without_waiting_all_threads_are_used_in_every_run() -> None:
    assert set(Plan().run(LONG, fastest_with(16), waiting=0.1)) == {THREADS}


def test_trials_of_what_is_fastest_already_are_rare() -> None:
    found = Plan().run(LONG, lambda number, threads: 64_000_000 // threads)
    slower = [threads for threads in found if threads != THREADS]
    assert set(slower) == {48, 32}
    assert len(slower) <= len(found) * 2 * TURNS_OF_RUNG * (ROUNDS + 1) / (RESTED + WATCHED + TRIED)


def test_all_threads_are_used_again_when_that_is_faster_again() -> None:
    plan = Plan()
    assert plan.run(LONG, fastest_with(16))[-1] == 16
    assert plan.run(LONG, lambda number, threads: 64_000_000 // threads, waiting=0.0).count(THREADS) > LONG // 2


def test_interrupted_runs_decide_nothing() -> None:
    """Each eleventh run takes a hundred times as long."""

    def time_of(number: int, threads: int) -> int:
        return 64_000_000 // threads * (100 if number % 11 == 0 else 1)

    assert set(Plan().run(LONG, time_of)) == {THREADS, 48, 32}
    assert Plan().run(LONG, time_of)[-RESTED // 2 :].count(THREADS) >= RESTED // 2 - 2 * TURNS_OF_RUNG * ROUNDS


def test_equal_times_lead_to_all_threads() -> None:
    plan = Plan()
    plan.run(LONG, fastest_with(16))
    assert plan.run(LONG, lambda number, threads: 1000).count(THREADS) > LONG // 2


def test_runs_with_any_number_of_threads_do_all_units() -> None:
    """Each run adds one to every element, whatever number of threads it tries."""
    units = 100
    counts = (ctypes.c_int64 * units)()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    def count(numbers: int, table: int, begin: int, end: int) -> None:
        for unit in range(begin, end):
            counts[unit] += 1

    executor = Executor(runtime_functions(), 8)
    table = Table(StepTable([Step(ctypes.cast(count, ctypes.c_void_p).value, (), units, 1)] * 2), [])
    table.values[POOL] = executor.pool
    runs = WATCHED + TRIED + 5
    for _ in range(runs):
        table.values[DONE] = 0
        assert executor.run(table.address) == 2
    executor.stop()
    assert list(counts) == [2 * runs] * units
