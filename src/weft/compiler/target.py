"""What a target does: it chooses a schedule for each launch of a kernel, and generates code from both.

A `Kernel` says what is computed. A `Schedule` says how a target computes it, and is part of what identifies the code.
The planner uses this interface only, and never tests which target it has.
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
    """How one launch of a kernel is carried out.

    ``units`` are independent pieces of work, of which a thread takes ``grain`` at once. The methods that are not
    abstract are right for a target that has nothing to choose.
    """

    __slots__ = ()
    units: int
    grain: int

    @property
    def text(self) -> str:
        """Everything that the code depends on besides the kernel; "" for the default schedule."""
        return ""

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that the code reads at run time, after the extents of the loops."""
        return {}

    @abstractmethod
    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        """Whether instruction ``load`` reads each element for the last time before ``store`` writes to it."""

    def divided(self, launch: Launch, turns: int) -> Schedule | None:
        """A schedule in which each of ``turns`` turns does its share of the units, in order, for its share of the rows;
        None if there is none. What a turn stores is read again soon."""
        return None

    def check(self, launch: Launch) -> None:  # noqa: B027  # not abstract: there may be nothing to check
        """Raise if this schedule does not fit the launch."""


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """How far fusion goes.

    - ``members``: the most nodes of a group.
    - ``uncut_members``: the most nodes of a group that folds, scans or scatters, since the body of its kernel is not
      cut and a long one takes long to generate. Also the most `Indexed` nodes of a group, since the code of one is
      called from the code of another.
    - ``group_rows``, ``group_size``: rows are walked one by one if there are at least ``group_rows`` of them, or if
      they have at most ``group_size`` elements together.
    - ``fewer``, ``repeated_operations``: a value is computed again by each user instead of being stored if it has at
      least ``fewer`` times the elements of what it is computed from, by at most ``repeated_operations`` cheap
      operations. So is a value that is computed, by as many operations, from values that are in memory anyway.
    - ``uncached_size``: values of at least this many bytes are not expected to stay in caches. For them, the second
      rule allows ``repeated_operations`` for each byte of an element.
    - ``turn_size``: a turn of a chain has temporaries of at least this many bytes for each of its steps. With fewer,
      calling them takes longer than storing and reading these in memory.
    - ``turn_results``, ``chained_size``: a turn of several small matrices, or of a chain of kernels alone, has results
      of about ``turn_results`` bytes (0: there are none). For kernels alone, the steps one by one would need at least
      ``chained_size`` bytes of temporaries at a time. Fewer stay in a cache anyway.
    - ``short_row``: rows of fewer elements are joined; see `short_rows`.
    - ``narrow_row``: reductions of up to so many elements are unrolled whatever else uses these; see
      `short_reductions`.
    - ``taken_row``: rows of at most so many elements that are taken from computed places are done as a whole by one
      body of a kernel; 0 means never. See `narrow_rows`.
    - ``columns``: at most so many arrays that become the columns of one are computed by one group; 0 means none.
    - ``scattered_lanes``: from so many lanes on, what a scatter combines is computed in lanes, which are written one
      after the other; 0 means never.
    - ``grown_size``: a value computed from the results of several calls is updated after each call if it has at least
      this many bytes; 0 means never.
    - ``assigned_size``: results of at least this many elements are written part by part, unless it is 0; see
      `Primitive.assigned`.
    - ``in_parts``: whether the parts of long folds get steps of their own; see `Primitive.in_parts`.
    - ``most_boxes``, ``box_elements``: a result of rotated arrays is computed in at most so many boxes, if it has at
      least so many elements for each; see `rotations`.
    - ``shared_size``, ``shared_members``: groups with equal loops that read the same array of at least so many bytes
      are merged into one of at most so many nodes; 0 means never.
    """

    members: int
    uncut_members: int
    group_rows: int
    group_size: int
    repeated_operations: int
    fewer: int
    uncached_size: int
    turn_size: int = 0
    turn_results: int = 0
    chained_size: int = 0
    short_row: int = 0
    narrow_row: int = 0
    taken_row: int = 0
    columns: int = 0
    scattered_lanes: int = 0
    grown_size: int = 0
    assigned_size: int = 0
    in_parts: bool = False
    most_boxes: int = 0
    box_elements: int = 1 << 12
    shared_size: int = 0
    shared_members: int = 0


class ChainEntry(NamedTuple):
    """An entry of the table that the steps of a chain get: the entry in ``slot`` of the table of the run, plus
    ``offset``, plus ``by_unit`` for each unit and ``by_turn`` for each turn before this one."""

    slot: int
    offset: int
    by_unit: int
    by_turn: int


class PlanAgainError(Exception):
    """A target cannot do what it has put in place of an operation (see `Target.replaced`). It knows that now, so the
    program is planned again."""


class Target(ABC):
    """A kind of processor to generate code for.

    ``kind`` is its name where routines are registered. ``key`` is part of the keys of plans: two targets with equal
    keys run the same code. Its ``stand_in``, the CPU, runs what the target has no code for, on copies of the memory. If
    ``code_is_general``, the numbers of a program change only the other fields of a step, not its code (see
    `templates`).
    """

    kind: str
    key: str
    limits: FusionLimits
    stand_in: Target | None = None
    machine: Any = None
    """What the rules of `replacing` may ask about the machine, where the kind of processor is not enough."""
    code_is_general = False

    def __init__(self) -> None:
        self._codes: dict[tuple[str, tuple[Any, ...]], Any] = {}
        self._lock = fork_safe_lock()

    @abstractmethod
    def schedule(self, launch: Launch) -> Schedule | None:
        """The schedule of a launch on this target; None if the launch is left to the stand-in."""

    def does(self, node: Node) -> bool:
        """Whether this target runs a call of a routine itself, instead of leaving it to the stand-in."""
        routine: Routine = node.primitive.routine
        return self.stand_in is None or routine.does(node, self.kind)

    def kind_for(self, node: Node) -> str:
        """The kind of the target that runs a call of a routine: this one, or its stand-in."""
        return self.kind if self.stand_in is None or self.does(node) else self.stand_in.kind

    def replaced(self, node: Node) -> Sequence[Node] | None:
        """Nodes for all results of a node, which this target computes instead of the operations that the node expands
        to; None if it has nothing better."""
        return replacement(node, self.kind, self.machine)

    def is_waiting(self) -> bool:
        """Whether a library still finds out how much scratch memory its calls need."""
        return False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds under which steps of routines are looked up: that of this target, and that of its stand-in."""
        return (self.kind,) if self.stand_in is None else (self.kind, *self.stand_in.kinds)

    def note_plan(self, key: bytes, parts: Any) -> None:  # noqa: B027  # not abstract: most targets do nothing
        """Record that a plan is used which has this key on disk."""

    def ready_plan(self, key: bytes) -> Any:
        """The parts of the plan with this key on disk, if they were read in advance. They are returned only once."""
        return None

    def joined(self, rows: Launch, schedule: Schedule, columns: Launch) -> tuple[Launch, Schedule] | None:
        """One launch for two: one that does rows, and one that folds the columns of what that reads or writes. None if
        they are done one by one."""
        return None

    def attached_schedule(self, launch: Launch) -> Schedule | None:
        """The schedule of a launch whose kernel is attached to a step. Its units are rows. None if the kernel has to be
        a step of its own."""
        return None

    def chain_units(self, turns: int) -> int:
        """How many units of work a chain of ``turns`` turns has, each with its own scratch memory; 0 if the steps have
        to be done one by one."""
        return 0

    def chained(self, turns: int, units: int, entries: Sequence[ChainEntry], steps: Sequence[Step]) -> Step:
        """One step that does all ``steps`` once for each turn, with a table of ``entries``."""
        raise NotImplementedError(f"chains of steps on {self.kind}")

    def code(self, kernel: Kernel, schedule: Schedule) -> Any:
        """The code of a kernel, in the form in which the engine of this target seals it into steps. It is generated if
        this process does not have it yet."""
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
        """What plans for this target depend on and what may differ in another process; None if plans are not cached on
        disk."""
        return None

    def code_description(self, code: Any) -> Any:
        """Numbers and texts by which another process finds the code of a step, or code that is among a step's numbers;
        None if it cannot be found in this way."""
        return None

    def described_code(self, data: Any) -> Any:
        """The code for which `code_description` returned the data; None if the code does not exist any more."""
        return None

    def routine_code(self, code: Any) -> Any:
        """The code of a routine's step, in the form in which the engine of this target seals it into steps."""
        return code

    @abstractmethod
    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Any:
        """Generate the code of a kernel with a schedule; ``text`` describes both."""
