"""The steps of a plan, and the table that one run of them reads."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Fields = Mapping[str, str]
"""The 64-bit fields of a structure in order, with their types in LLVM."""

STEP_FIELDS: Fields = {"function": "ptr", "numbers": "ptr", "units": "i64", "grain": "i64"}
"""A step in a `StepTable`."""

TRIAL_FIELDS: Fields = {
    "shared": "i64",
    "turn": "i64",
    "rung": "i64",
    "spent": "i64",
    "waited": "i64",
    "with_own": "i64",
    "won_by_more": "i64",
    "won_by_fewer": "i64",
    "won_by_half": "i64",
}
"""What is in memory before the first step of a `StepTable`: whether threads share any step, and the notes of
`weft.compiler.cpu.threads.trials`, from which native code chooses how many threads the plan uses."""

FIRST_STEP = len(TRIAL_FIELDS)

HEAD_FIELDS: Fields = {"pool": "ptr", "steps": "ptr", "count": "i64", "stop": "i64", "done": "i64"}
"""The fields at the beginning of a `Table`: the pool, the steps, their count, whether to stop, how many were run."""

POOL, _STOP, DONE = map(list(HEAD_FIELDS).index, ("pool", "stop", "done"))
FIRST = len(HEAD_FIELDS)
"""The index in a `Table` of the first address or constant; steps refer to these by number."""


Place = tuple[int, int]
"""A slot of a run's table, and an offset in bytes from the address in it."""
Placement = Mapping[object, Place]
"""Where everything that a plan needs is in memory."""


class Step(NamedTuple):
    """Work for an engine. ``code`` is made by the target of the engine and reads ``numbers``. Threads share its
    ``units`` of work in pieces of ``grain``."""

    code: Any
    numbers: Sequence[int]
    units: int
    grain: int


class Touched(NamedTuple):
    """Memory that a step uses: the bytes from ``low`` up to, but without, ``high`` after the address in a slot of the
    table. Memory that is neither read nor written is scratch memory."""

    slot: int
    low: int
    high: int
    read: bool
    written: bool


class OnHost(NamedTuple):
    """Code of the CPU in a step for another engine, which runs it on copies of the memory that it touches."""

    code: Any
    touched: tuple[Touched, ...]


class Sealed(Protocol):
    """Steps in the form in which an engine runs them. ``address`` is that of the steps in memory for native code, else
    0."""

    count: int
    address: int

    def rows(self) -> list[tuple[Any, list[int], int, int]]:
        """Code, numbers, units and grain of each step."""


class StepList:
    """Steps as they were given, for an engine that goes through them in Python."""

    address = 0

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.count = len(steps)

    def rows(self) -> list[tuple[Any, list[int], int, int]]:
        return [(step.code, list(step.numbers), step.units, step.grain) for step in self.steps]


class StepTable:
    """Steps in memory, laid out as `STEP_FIELDS` says, after the `TRIAL_FIELDS`."""

    def __init__(self, steps: Sequence[Step]) -> None:
        shared = any(units > grain for _, _, units, grain in steps)
        flat = [int(shared), *[0] * (len(TRIAL_FIELDS) - 1)]
        self._numbers: list[ctypes.Array[ctypes.c_int64]] = []
        for function, numbers, units, grain in steps:
            block = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
            self._numbers.append(block)
            flat += [function, ctypes.addressof(block), units, grain]
        # A function's address may be an object that keeps alive what the code reads.
        self._functions = [function for function, *_ in steps]
        self.count = len(steps)
        self._table = (ctypes.c_int64 * len(flat))(*flat)
        self.address = ctypes.addressof(self._table) + FIRST_STEP * ctypes.sizeof(ctypes.c_int64)

    def rows(self) -> list[tuple[int, list[int], int, int]]:
        """The steps, read from memory."""
        table, blocks = self._table[FIRST_STEP:], [list(block) for block in self._numbers]
        return [(table[4 * k], blocks[k], table[4 * k + 2], table[4 * k + 3]) for k in range(self.count)]


class TableLayout(NamedTuple):
    """Which slot of a run's table holds what.

    In this order: addresses of ``inputs``, addresses of ``outputs`` that are new buffers, the address of the memory for
    temporaries, constants.
    """

    inputs: int
    outputs: int

    def input(self, number: int) -> int:
        return number

    def output(self, number: int) -> int:
        return self.inputs + number

    @property
    def arena(self) -> int:
        return self.inputs + self.outputs

    def constant(self, number: int) -> int:
        return self.arena + 1 + number


class Table:
    """64-bit integers in memory that native code reads while it runs steps: `HEAD_FIELDS`, addresses and constants.

    Native code begins with the first step that was not run yet: it continues where it was stopped, and does nothing if
    all steps were run.

    ``is_little``: the steps take so little time that other threads of Python may wait for it. ``run`` runs them all, if
    the engine has made such a function.
    """

    __slots__ = ("address", "is_little", "run", "values")

    def __init__(self, steps: Sealed, entries: Sequence[int], is_little: bool = False) -> None:
        self.is_little = is_little
        self.run: Callable[[], object] | None = None
        self.values = array("Q", (0, steps.address, steps.count, 0, 0, *entries))
        self.address = self.values.buffer_info()[0]

    def cancel(self) -> None:
        """Stop before the next step."""
        self.values[_STOP] = 1

    @property
    def stopped(self) -> bool:
        return bool(self.values[_STOP])

    def allow_again(self) -> None:
        """Undo `cancel`, so that the table can be run again."""
        self.values[_STOP] = 0

    @property
    def steps_run(self) -> int:
        """How many steps have been run when native code returns."""
        return self.values[DONE]
