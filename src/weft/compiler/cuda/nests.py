"""Shared by all walks of a GPU: the entry, units, and turns of a loop that a thread does together.

The generated entry is ``kernel(ptr numbers, ptr table)``. `number_layout` says what the 64-bit ``numbers`` are;
``table`` holds the addresses of buffers and the constants of the run. Each block takes every n-th unit, if there are n
blocks, so any number of blocks is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.nest import NestWriter, Reductions
from weft.compiler.cuda.row_values import is_ahead
from weft.compiler.cuda.schedule import CudaSchedule, meets, weight_of
from weft.compiler.cuda.threads import let_next_begin, special, wait_for_kernels
from weft.compiler.kernel import Instruction, Kernel
from weft.compiler.passes import Pass

MOST_BY_VALUE = 500
"""A kernel may have parameters of 4 KB: with at most so many numbers it has these as a parameter, and reads them as
quickly as constants. Otherwise it has their address."""


def entry_of(count: int) -> str:
    """The parameters of a kernel with so many numbers: these, and the address of the slots."""
    by_value = f"byval([{count} x i64]) align 8" if 0 < count <= MOST_BY_VALUE else "readonly"
    return f"ptr noalias {by_value} %numbers, ptr noalias readonly %table"


BODY_TOGETHER = 64
"""The most cheap operations in the bodies of all turns that are done together."""

Turns = Callable[[Sequence[str], bool], None]
AtTurn = Callable[[str, bool], None]


class _State(NamedTuple):
    """The position of a writer in its loops, and the values that are known there."""

    values: dict[int, Any]
    offsets: dict[int, str]
    lane_index: str
    mask: str | None
    sweep_count: str
    first_of_vector: str

    def copied(self) -> _State:
        return self._replace(values=dict(self.values), offsets=dict(self.offsets))


class ThreadWriter(NestWriter):
    """Shared by all walks: units, rows, and turns of a sweep that are done together."""

    for_gpu = True
    loads_first = False
    """Whether loads come first even if a thread does all its turns together."""
    most_together = 12
    """The most elements of a row, or turns of a sweep, that a thread does together. It waits for memory once for
    all."""
    body_together = BODY_TOGETHER

    def __init__(self, kernel: Kernel, schedule: CudaSchedule, width: int) -> None:
        super().__init__(
            kernel, schedule.numbers, width, schedule.passes(kernel), schedule.in_chunks, schedule.in_parts
        )
        self.schedule = schedule
        self.first_of_vector = "0"

    def _address(self, pointer: str) -> str:
        """A pointer from the table, marked as one to global memory, for which LLVM has faster instructions."""
        cast = self.e.assign(f"addrspacecast ptr {pointer} to ptr addrspace(1)")
        return self.e.assign(f"addrspacecast ptr addrspace(1) {cast} to ptr")

    def function(self, name: str) -> str:
        """The text of the module."""
        self.thread = special(self.e, "tid.x")
        self._begin_threads()
        self._begin()
        with self._units() as unit, self._scope():
            self._unit(unit)
        attributes = f'nounwind "nvvm.maxntid"="{self.schedule.threads}"'
        resident = max(self.schedule.resident_blocks(self.kernel), self.schedule.light_blocks(self.kernel))
        if resident > 1:
            attributes += f' "nvvm.minctasm"="{resident}"'
        if self.schedule.cluster > 1:
            attributes += f' "nvvm.cluster_dim"="{self.schedule.cluster}"'
        entry = entry_of(len(self.layout))
        return module([self.e], [self.e.function(name, entry, "ptx_kernel ", attributes)])

    def _units(self) -> AbstractContextManager[str]:
        """The units of this block, one after the other."""
        return self.e.loop(special(self.e, "ctaid.x"), self.number("units"), special(self.e, "nctaid.x"))

    def _wait(self) -> None:
        let_next_begin(self.e)
        wait_for_kernels(self.e)

    def _begin_threads(self) -> None:
        """Compute what each thread needs to know about its place in the block."""

    def _unit(self, unit: str) -> None:
        """The work of a block for one unit."""
        raise NotImplementedError

    def _row_of_thread(self, block: str) -> str:
        """The row of this thread in a block of rows. Threads that are neighbours in a row have the same one."""
        bits = self.number("bits")
        together = self.e.assign(f"lshr i64 {self.schedule.threads}, {bits}")
        first = self.e.assign(f"mul i64 {block}, {together}")
        return self.e.assign(f"add i64 {first}, {self.e.assign(f'lshr i64 {self.thread}, {bits}')}")

    def _together(self, turns: Sequence[Callable[[], None]], current: Pass, reductions: Reductions, count: int) -> None:
        """All that a pass does in several ``turns``: first the loads of all turns, then everything else for ``count``
        turns at a time, each instruction for all of these turns before the next one."""
        start, states = self._state(), []
        for begin_turn in turns:
            self._go_to(start.copied())
            begin_turn()
            states.append(self._state())
        ahead = self._loads_ahead(current) if count < len(turns) or self.loads_first else []
        for position in ahead:
            self._accumulate_at(states, position, current, reductions)
        self._after_loads()
        for first in range(0, len(turns), count):
            for position in current.needed:
                if position not in ahead:
                    self._accumulate_at(states[first : first + count], position, current, reductions)
        self._go_to(start)

    def _after_loads(self) -> None:
        """What is done as soon as the loads of all turns have begun."""

    def _loads_ahead(self, current: Pass) -> list[int]:
        """The loads of a pass that may come before everything else."""
        return [number for number in current.computed if is_ahead(self.kernel.instructions[number])]

    def _accumulate_at(self, states: Sequence[_State], position: int, current: Pass, reductions: Reductions) -> None:
        """One instruction of a pass, in several turns."""
        for state in states:
            self._go_to(state)
            self._accumulate_one(position, current, reductions)

    def _state(self) -> _State:
        return _State(
            dict(self.values), dict(self.offsets), self.lane_index, self.mask, self.sweep_count, self.first_of_vector
        )

    def _go_to(self, state: _State) -> None:
        self.values, self.offsets = state.values, state.offsets
        self.lane_index, self.mask = state.lane_index, state.mask
        self.sweep_count, self.first_of_vector = state.sweep_count, state.first_of_vector

    def _in_turns(self, start: str, stop: str, step: int, count: int, body: Turns) -> None:
        """A loop over ``range(start, stop, step)``: ``count`` turns at a time; for the rest, a quarter of that, and so
        on."""
        e = self.e
        while count > 1:
            several = step * count
            length = e.assign(f"sub i64 {stop}, {start}")
            whole = e.assign(f"mul i64 {e.assign(f'sdiv i64 {length}, {several}')}, {several}")
            middle = self._larger(e.assign(f"add i64 {start}, {whole}"), start)
            with e.loop(start, middle, several) as index, self._scope():
                body([index, *[e.assign(f"add i64 {index}, {step * turn}") for turn in range(1, count)]], True)
            start, count = middle, count // 4
        with e.loop(start, stop, step) as index, self._scope():
            body([index], False)

    def _by_turns(
        self, start: str, stop: str, step: int, begin_turn: AtTurn, current: Pass, reductions: Reductions
    ) -> None:
        """A pass over ``range(start, stop, step)``. ``begin_turn`` selects an index, and is told whether all ``step``
        elements from there on are before ``stop``."""

        count = self._turns_together(current)

        def body(indices: Sequence[str], whole: bool) -> None:
            self._together([partial(begin_turn, index, whole) for index in indices], current, reductions, count)

        self._in_turns(start, stop, step, self._turns_loaded(current, count), body)

    def _turns_together(self, current: Pass) -> int:
        """How many turns are done together: as many as the registers hold the values of."""
        if sum([meets(self.kernel.instructions[number]) for number in current.needed]) > 1:
            return 1
        weight = sum([weight_of(self.kernel.instructions[number]) for number in current.computed])
        return max(1, min(self.most_together, self.body_together // max(1, weight * self.width)))

    def _turns_loaded(self, current: Pass, count: int) -> int:
        """For how many turns a pass loads before it does ``count`` of them."""
        return count

    def _open_sweep(self, depth: int, current: Pass, reductions: Reductions) -> None:
        """The last sweep does several turns at a time."""
        if depth < self.kernel.sweeps or self._lanes_inside:
            super()._open_sweep(depth, current, reductions)
            return

        def turn(count: str, whole: bool) -> None:
            self._set_sweep(depth, count, extent, current)

        def turns(start: str, stop: str) -> None:
            self._by_turns(start, stop, 1, turn, current, reductions)

        extent = self._sweep_extent(depth)
        self._by_parts(reductions, "0", extent, turns)

    def _save(self, position: int, instruction: Instruction) -> None:
        raise AssertionError("nothing is saved")

    def _recall(self, position: int, instruction: Instruction) -> Any:
        raise AssertionError("nothing is saved")

    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        raise AssertionError("no lanes are swept")
