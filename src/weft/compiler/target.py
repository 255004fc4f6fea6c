"""What a target is: it chooses a schedule for each launch of a kernel, and makes code of both.

A `Kernel` says what is computed. A `Schedule` says how a target does it, and is a part of the identity of the code. The
planner goes through this interface and does not test which target it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.compiler import dumps
from weft.compiler.kernel import Kernel, Launch
from weft.graph.node import Node
from weft.primitives.replacing import replacement
from weft.primitives.routine import Routine
from weft.runtime import counters
from weft.runtime.atomic import refuse_reentry
from weft.runtime.locks import fork_safe_lock
from weft.runtime.steps import Step


class Schedule(ABC):
    """How one launch of a kernel is done.

    ``units`` are independent pieces of work; threads take ``grain`` of them at once. What is not abstract is right for
    a target that has nothing to choose.
    """

    __slots__ = ()
    units: int
    grain: int

    @property
    def text(self) -> str:
        """All that the code depends on besides the kernel; "" for the default schedule."""
        return ""

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that the code reads at run time, behind the extents of the loops."""
        return {}

    @abstractmethod
    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        """Whether, for each element, instruction ``load`` has been executed for the last time before ``store`` writes
        that location."""

    def divided(self, launch: Launch, turns: int) -> Schedule | None:
        """A schedule of which each of so many turns does its share of the units, in order, for its share of the rows;
        None if there is none. What it stores is read again soon."""
        return None

    def check(self, launch: Launch) -> None:  # noqa: B027  # not abstract: there may be nothing to check
        """Raise if this is no schedule for the launch."""


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """How far fusion goes.

    ``members`` is how many nodes a group has at most. ``uncut_members`` is how many it has if it folds, scans or
    scatters, for the body of its kernel is not cut and a long one takes long to generate; and how many of its nodes are
    `Indexed`, for their code is called from within the code of each other. Rows are walked one by one if
    there are at least ``group_rows`` of them, or at most ``group_size`` elements in all. A value with at least
    ``fewer`` times the elements of what it is made of, by at most ``repeated_operations`` cheap operations, is
    recomputed in each user instead of stored. So is one that is made of what is in memory in any case, at a cost of at
    most so many such operations; of values that caches do not hold, which have ``uncached_size`` bytes and more, per
    byte of an element. Rows of less than ``short_row`` elements are joined; see `short_rows`. What is made of
    results of several calls grows with each of them, if it has at least ``grown_size`` bytes; 0 is never. Results of at
    least ``assigned_size`` elements are written part by part, if that is not 0; see `Primitive.assigned`. There are
    steps for parts of long folds if these are done ``in_parts``; see `Primitive.in_parts`. Results made of rotated
    arrays are made in at most ``most_boxes`` boxes of what these are copies of; see `rotations`.
    """

    members: int
    uncut_members: int
    group_rows: int
    group_size: int
    repeated_operations: int
    fewer: int
    uncached_size: int
    short_row: int = 0
    grown_size: int = 0
    assigned_size: int = 0
    in_parts: bool = False
    most_boxes: int = 0


class ChainEntry(NamedTuple):
    """An entry of the table that the steps of a chain have: that in ``slot`` of the table of the run, and ``offset``
    more, and ``by_unit`` and ``by_turn`` more for each unit and turn before this one."""

    slot: int
    offset: int
    by_unit: int
    by_turn: int


class Target(ABC):
    """A kind of processor to generate code for.

    ``kind`` names it where routines are registered; ``key`` is a part of the keys of plans: two targets with equal keys
    run the same code. What it has no code for is done by its ``stand_in``, the CPU, on copies of the memory.
    ``code_is_general``: of a step, only the other fields depend on the numbers of a program (see `templates`).
    """

    kind: str
    key: str
    limits: FusionLimits
    stand_in: Target | None = None
    machine: Any = None
    """What rules of `replacing` may ask about the machine, if it is more than a kind of processor."""
    code_is_general = False

    def __init__(self) -> None:
        self._codes: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._lock = fork_safe_lock()

    @abstractmethod
    def schedule(self, launch: Launch) -> Schedule | None:
        """How a launch is done here; None if that is left to the stand-in."""

    def does(self, node: Node) -> bool:
        """Whether a call of a routine is not left to the stand-in."""
        routine: Routine = node.primitive.routine
        return self.stand_in is None or routine.does(node, self.kind)

    def kind_for(self, node: Node) -> str:
        """The kind of the target that does a call of a routine: this one, or its stand-in."""
        return self.kind if self.stand_in is None or self.does(node) else self.stand_in.kind

    def replaced(self, node: Node) -> Sequence[Node] | None:
        """Nodes for all results of a node that this target computes instead of what it expands to; None if it has
        nothing better."""
        return replacement(node, self.kind, self.machine)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Where steps of routines are found: its own kind, and that of its stand-in."""
        return (self.kind,) if self.stand_in is None else (self.kind, *self.stand_in.kinds)

    def note_plan(self, key: bytes, parts: Any) -> None:  # noqa: B027  # not abstract: most have nothing to do
        """Record that a plan is used, which has this key on disk."""

    def ready_plan(self, key: bytes) -> Any:
        """What a plan with this key on disk is made of, if that was read in advance. It is given once."""
        return None

    def attached_schedule(self, launch: Launch) -> Schedule | None:
        """How a launch is done whose kernel is attached to a step: its units are rows. None if it has to be a step of
        its own."""
        return None

    def chain_units(self, turns: int) -> int:
        """How many units of work a chain of so many turns has, each with scratch memory of its own; 0 if its steps have
        to be done one by one."""
        return 0

    def chained(self, turns: int, units: int, entries: Sequence[ChainEntry], steps: Sequence[Step]) -> Step:
        """One step that does all ``steps`` for one turn after the other, with a table of ``entries``."""
        raise NotImplementedError(f"chains of steps on {self.kind}")

    def code(self, kernel: Kernel, schedule: Schedule) -> Any:
        """The code of a kernel, in the form in which the engine of this target seals it into steps; made if it is new
        to this process."""
        text = kernel.described(schedule.text)
        key = text, kernel.identity
        found = self._codes.get(key)
        if found is None:
            refuse_reentry(self._lock)
            with self._lock:
                found = self._codes.get(key)
                if found is None:
                    if "kernel" in dumps.stages:
                        dumps.show("kernel", text)
                    found = self._codes[key] = self.make_code(kernel, schedule, text)
                    counters.kernels += 1
        return found

    @property
    def cache_key(self) -> str | None:
        """What plans for this target depend on that another process may have otherwise; None if they are not cached on
        disk."""
        return None

    def code_description(self, code: Any) -> Any:
        """Numbers and texts by which another process finds the code of a step, or code that is among the numbers of
        one; None if it cannot."""
        return None

    def described_code(self, data: Any) -> Any:
        """The code that `code_description` gave the data for; None if it is not there any more."""
        return None

    def routine_code(self, code: Any) -> Any:
        """The code of a routine's step in the form in which the engine of this target seals it into steps."""
        return code

    @abstractmethod
    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Any:
        """Make that code; ``text`` describes the kernel with its schedule."""
