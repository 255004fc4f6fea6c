"""Chains: steps of a plan that alternate, one *turn* after the other.

A product of a stack of matrices, elementwise work on it, and a product of that: each of these steps goes over the
stack, and no matrix depends on another one. So all steps may be done for the first matrix, then all for the second: one
turn each. Temporaries between these steps then need the memory of one turn only, and stay in a cache. The same code
runs for the same units of work, so results are the same bits. If matrices are small, a turn has several: each of its
steps is a call, which takes as long as some matrices.

So do kernels without a product between them, such as the time steps of independent systems: each of their turns does
some of the rows of all arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import NamedTuple, TypeVar

from weft.compiler.fusion.groups import FusedGroup, Group, Layout, RoutineGroup
from weft.compiler.kernel import Launch
from weft.compiler.open_numbers import as_a_whole
from weft.compiler.target import ChainEntry, Schedule, Target
from weft.graph.node import Node
from weft.primitives.routine import Routine
from weft.runtime.memory import contiguous_strides
from weft.runtime.steps import Place, Placement

from .arena import Interval, arrange
from .attaching import Attachment
from .feeding import Feeder
from .turn_accesses import NodeAccess, TurnAccesses, access_of_stack, accesses_of_launch

T = TypeVar("T")

MOST_ENTRIES = 200
"""The most addresses and constants that the steps of a chain may use together."""
PASSING_PART = 16
"""If temporaries are a smaller part of what is accessed, storing and reading them takes hardly any time. Then no chain
is made, because threads can share smaller units of work than turns."""
SMALLEST_PART = 8
"""A turn of a chain of kernels alone has results of at least this part of what it may have: with less, the calls of its
steps take longer than what they save."""
PARTS_OF_TURN = 1, 2, 4, 8
"""If turns with all results that they may have would leave threads idle, they have such a part of these."""
LARGEST_ROW = 8
"""If a single row has at most this many times of what such a turn may have, it is a turn."""


@as_a_whole
@cache
def rows_at_once(rows: int, size: int, most: int) -> int:
    """How many of ``rows`` rows of ``size`` bytes are a turn, of at most ``most`` bytes if possible; 0 if no number of
    rows would do, so that each turn has as many."""
    if not most or not size or size > LARGEST_ROW * most:
        return 0
    largest, smallest = max(most // size, 1), max(-(-most // (SMALLEST_PART * size)), 1)
    return next((count for count in range(largest, smallest - 1, -1) if rows % count == 0), 0)


@as_a_whole
def sum_of_largest(sizes: Sequence[int], count: int) -> int:
    """The sum of the ``count`` largest of some sizes."""
    return sum(sorted(sizes)[-count:])


class ScheduledGroup(NamedTuple):
    """A planned step: its group, and for a kernel its launch and its schedule."""

    group: Group
    launch: Launch | None
    schedule: Schedule | None


@dataclass(eq=False, repr=False, slots=True)
class Chain:
    """The steps ``first`` to ``last`` of a plan, done in ``turns``, of which the target does ``units`` at a time.

    ``inside`` are the nodes that only these steps need, with their offsets in the scratch memory of a unit, which has
    ``scratch`` bytes.
    """

    first: int
    last: int
    turns: int
    units: int
    inside: dict[Node, int]
    scratch: int


class GrowingChain:
    """Consecutive steps that may be a chain: no turn reads a part that another turn writes, and no two steps write to
    the part of another turn.

    Each step is compared with what is known of those before it, so the time is in proportion to the steps. ``stored``
    and ``shared`` are those of `ChainFinder`.
    """

    def __init__(self, stored: Mapping[Node, Collection[Group]], shared: Container[Node]) -> None:
        self.stored = stored
        self.shared = shared
        self.groups: set[Group] = set()
        self.touched: set[Node] = set()
        self.read: set[Node] = set()
        self.leaving: set[Node] = set()
        self.constants = 0
        self.outside: set[Group] = set()
        """Groups that store a node whose parts other turns access: these cannot be steps of the chain."""

    def takes(self, group: Group, step: TurnAccesses) -> bool:
        """Whether the step may be added; if so, it is."""
        new = sum([node not in self.touched for node in step.nodes])
        entries = len(self.touched) + new + self.constants + step.constants
        if entries > MOST_ENTRIES or any(node in self.shared for node in step.nodes):
            return False
        ordered = [
            node
            for node in step.nodes
            if (node in step.leaving or node in self.leaving)
            and (node in step.read or node in self.read or node in self.touched)
        ]
        parts = [self.stored.get(node, ()) for node in ordered]
        outside = self.outside.union(*parts) if parts else self.outside
        if group in outside or not outside.isdisjoint(self.groups):
            return False
        self.groups.add(group)
        self.touched |= step.nodes
        self.read |= step.read
        self.leaving |= step.leaving
        self.constants += step.constants
        self.outside = outside
        return True


class ChainFinder:
    """Finds the chains of a plan.

    ``operands`` gives the layouts of the inputs of a call, ``apart`` the launch of a kernel whose lanes are not merged
    with other axes. ``attached`` are the kernels that are attached to calls, ``fed`` the feeders of calls. ``stored``
    gives the groups that store a node. ``fixed`` are nodes that must be in the memory of the run, ``shared`` those that
    share memory with other nodes.
    """

    def __init__(
        self,
        target: Target,
        scheduled: list[ScheduledGroup],
        attached: Mapping[Group, Attachment],
        fed: Mapping[Group, Feeder],
        stored: Mapping[Node, Collection[Group]],
        fixed: Container[Node],
        shared: Container[Node],
        operands: Callable[[RoutineGroup], list[Layout]],
        apart: Callable[[FusedGroup], Launch | None],
    ) -> None:
        self.target = target
        self.scheduled = scheduled
        self.attached = attached
        self.fed = fed
        self.stored = stored
        self.fixed = fixed
        self.shared = shared
        self.operands = operands
        self.apart = apart
        self._of_turns: dict[int, list[tuple[int, ScheduledGroup | None]]] = {}
        self._accessed: dict[int, list[tuple[int, TurnAccesses]]] = {}
        """For each step, what was found for a number of turns. Few numbers are tried, one after the other."""

    @cached_property
    def _uses(self) -> dict[Node, tuple[int, int]]:
        """The first and the last step that accesses a node."""
        found: dict[Node, tuple[int, int]] = {}
        for number, step in enumerate(self.scheduled):
            for access in self._accesses_of(step):
                found[access.node] = found.get(access.node, (number, number))[0], number
        return found

    def found(self) -> list[Chain]:
        """All chains, in order. In ``scheduled``, the steps of chains are replaced by those that can be done in
        turns."""
        chains: list[Chain] = []
        sizes = [node.nbytes for node in self.stored if node not in self.fixed]
        if sum_of_largest(sizes, MOST_ENTRIES) < self.target.limits.uncached_size:
            return chains  # no chain has temporaries that are too large for a cache
        done = 0
        for number, (group, *_) in enumerate(self.scheduled):
            if number < done or not isinstance(group, RoutineGroup):
                continue
            chain = self._chain_around(number, done)
            if chain is not None:
                done = chain.last + 1
                chains.append(chain)
        begins, ends = [chain.first for chain in chains], [chain.last + 1 for chain in chains]
        for begin, end in zip([0, *ends], [*begins, len(self.scheduled)], strict=True):
            chains += self._chains_of_kernels(begin, end)
        for chain in chains:
            for position in range(chain.first, chain.last + 1):
                self.scheduled[position] = self._turned(position, chain.turns)
        return sorted(chains, key=lambda chain: chain.first)

    def _chain_around(self, number: int, start: int) -> Chain | None:
        """The longest chain around a call, with no step before ``start``; None if there is none."""
        node = self.scheduled[number].group.node  # type: ignore[attr-defined]  # it is a call
        for turns in self._turns_of_stack(node):
            units = self.target.chain_units(turns) if turns > 1 else 0
            if units and self._may_turn(number, turns):
                first, last = self._grown(number, start, len(self.scheduled), turns)
                chain = self._chain(first, last, turns, units)
                if chain is not None:
                    return chain
        return None

    def _turns_of_stack(self, node: Node) -> list[int]:
        """In how many turns a stack of matrices may be done, the best number first: with as many small matrices in each
        turn as have `turn_results` bytes together, or with one."""
        matrices, most = prod(node.shape[:-2]), self.target.limits.turn_results
        access = access_of_stack(Layout(node, contiguous_strides(node.shape), 0), node.shape, reads=False)
        at_once = min(most * matrices // max(node.nbytes, 1), matrices // 2)
        numbers = [matrices // count for count in range(at_once, 1, -1) if matrices % count == 0]
        of_several = [turns for turns in numbers if access.stays_in(turns) and self.target.chain_units(turns)]
        return [*of_several[:1], matrices]

    def _chains_of_kernels(self, begin: int, end: int) -> Iterator[Chain]:
        """The chains of kernels alone among the steps from ``begin`` to before ``end``."""
        number = begin
        while number < end:
            turns = self._turns_of_kernel(number)
            units = self.target.chain_units(turns) if turns > 1 else 0
            last = self._grown(number, number, end, turns)[1] if units and self._may_turn(number, turns) else number
            chain = None if last == number else self._chain(number, last, turns, units)
            if chain is not None and turns * chain.scratch >= self.target.limits.chained_size:
                yield chain
            number = last + 1

    def _turns_of_kernel(self, number: int) -> int:
        """How many turns a chain has that begins with a kernel, if there is one; 0 if it begins with no kernel."""
        group, launch, _ = self.scheduled[number]
        if launch is None or not isinstance(group, FusedGroup):
            return 0
        stores = [i.access for i in launch.kernel.instructions if i.operation == "store"]
        written = list(dict.fromkeys([access.operand for access in stores if access is not None]))
        if not written or not written[0].size or not written[0].shape:
            return 0
        rows, most = written[0].shape[0], self.target.limits.turn_results
        for part in PARTS_OF_TURN:
            at_once = rows_at_once(rows, _bytes_of(written) // rows, most // part)
            if at_once and self.target.chain_units(rows // at_once):
                return rows // at_once
        return 0

    def _chain(self, first: int, last: int, turns: int, units: int) -> Chain | None:
        """The chain of those of the steps ``first`` to ``last`` that need it; None if it is not worth it."""
        inside = self._inside(first, last, turns)
        used = [n for n in range(first, last + 1) if not inside.isdisjoint(self._turn_accesses(n, turns).nodes)]
        if not used or used[0] == used[-1] or not self._are_worth_it(inside):
            return None
        accessed = _union([self._turn_accesses(n, turns).nodes for n in range(used[0], used[-1] + 1)])
        if PASSING_PART * _bytes_of(inside) < _bytes_of(accessed):
            return None
        offsets, scratch = self._arranged(turns, inside)
        calls = turns * (used[-1] + 1 - used[0])
        if units * scratch > _bytes_of(inside) or _bytes_of(inside) < calls * self.target.limits.turn_size:
            return None
        return Chain(used[0], used[-1], turns, units, offsets, scratch)

    def _are_worth_it(self, nodes: Iterable[Node]) -> bool:
        """Whether these temporaries are too large for a cache: only then a chain saves time."""
        return _bytes_of([node for node in nodes if node not in self.fixed]) >= self.target.limits.uncached_size

    def _for_turns(self, number: int, turns: int) -> ScheduledGroup | None:
        """The step so that it can be done turn by turn; None if that is not possible."""
        known = self._of_turns.setdefault(number, [])
        return _found_or_made(known, turns, lambda: self._divided(self.scheduled[number], turns))

    def _turned(self, number: int, turns: int) -> ScheduledGroup:
        """The step turn by turn, where `_may_turn` holds."""
        step = self._for_turns(number, turns)
        assert step is not None
        return step

    def _divided(self, step: ScheduledGroup, turns: int) -> ScheduledGroup | None:
        group, launch, schedule = step
        if isinstance(group, RoutineGroup):
            routine: Routine = group.node.primitive.routine
            stacked = routine.is_stacked(self.target.kind) and not routine.scratch_on(group.node, self.target.kind)
            return step if stacked and prod(group.node.shape[:-2]) % turns == 0 else None
        assert isinstance(group, FusedGroup)
        if schedule is None or not schedule.units:
            return None
        for one in filter(None, (launch, self.apart(group))):
            schedule = self.target.schedule(one)
            found = None if schedule is None else schedule.divided(one, turns)
            if found is not None:
                return ScheduledGroup(group, one, found)
        return None

    def _may_turn(self, number: int, turns: int) -> bool:
        return self._for_turns(number, turns) is not None

    def _grown(self, number: int, start: int, end: int, turns: int) -> tuple[int, int]:
        """The first and the last of the most steps around this one that may be a chain, from ``start`` to before
        ``end``."""
        chain = GrowingChain(self.stored, self.shared)

        def takes(added: int) -> bool:
            return self._may_turn(added, turns) and chain.takes(
                self.scheduled[added].group, self._turn_accesses(added, turns)
            )

        first = last = number
        if takes(number):
            while last + 1 < end and takes(last + 1):
                last += 1
            while first > start and takes(first - 1):
                first -= 1
        return first, last

    def _turn_accesses(self, number: int, turns: int) -> TurnAccesses:
        def make() -> TurnAccesses:
            step = self._turned(number, turns)
            return TurnAccesses.of(self._accesses_of(step), turns, step.launch)

        return _found_or_made(self._accessed.setdefault(number, []), turns, make)

    def _accesses_of(self, step: ScheduledGroup) -> list[NodeAccess]:
        """All accesses of a step to memory, without the results that it passes to kernels that are parts of it."""
        group, launch, _ = step
        accesses = [] if launch is None else list(accesses_of_launch(launch))
        if not isinstance(group, RoutineGroup):
            return accesses
        for source, layout in zip(group.node.inputs, self.operands(group), strict=True):
            accesses.append(access_of_stack(layout, source.shape, reads=True))
        for result in group.results:
            layout = Layout(result, contiguous_strides(result.shape), 0)
            accesses.append(access_of_stack(layout, result.shape, reads=False))
        feeder = self.fed.get(group)
        if feeder is not None:
            accesses += accesses_of_launch(feeder.kernel.launch)
        parts = (self.attached.get(group), None if feeder is None else feeder.kernel)
        passed_on = {part.result for part in parts if part is not None and not part.stored}
        return [access for access in accesses if access.node not in passed_on]

    def _inside(self, first: int, last: int, turns: int) -> set[Node]:
        """The nodes that only the steps ``first`` to ``last`` access, each turn its own part."""
        steps = [self._turn_accesses(number, turns) for number in range(first, last + 1)]
        inside = set()
        for node in _union([step.nodes for step in steps]) - _union([step.leaving for step in steps]):
            begin, end = self._uses[node]
            if first <= begin and end <= last and node not in self.fixed:
                inside.add(node)
        return inside

    def _arranged(self, turns: int, inside: set[Node]) -> tuple[dict[Node, int], int]:
        """The offset of each node in the scratch memory of a unit, and the size of that memory."""
        nodes = sorted(inside, key=lambda node: node.serial)
        intervals = [Interval(node.nbytes // turns, *self._uses[node]) for node in nodes]
        offsets, size = arrange(intervals)
        return dict(zip(nodes, offsets, strict=True)), size


def _found_or_made(known: list[tuple[int, T]], turns: int, make: Callable[[], T]) -> T:
    """What is known for a number of turns, or else is made. The number may be open, so it is no key of a dictionary."""
    for other, found in known:
        if other == turns:
            return found
    made = make()
    known.append((turns, made))
    return made


def _union(sets: Iterable[frozenset[Node]]) -> set[Node]:
    return set().union(*sets)


def _bytes_of(nodes: Iterable[Node]) -> int:
    return sum([node.nbytes for node in nodes])


class ChainTable(Mapping[object, Place]):
    """The table of the steps of a chain, used instead of that of the run: slots and offsets of nodes, as in a plan.
    ``entries`` says how each slot is filled.

    ``slots`` are those of the plan. ``scratch`` is where the scratch memory of all units begins. ``homes`` maps nodes
    that are in the memory of other nodes to these.
    """

    def __init__(
        self,
        chain: Chain,
        slots: Placement,
        scratch: Place,
        homes: Mapping[Node, Node],
    ) -> None:
        self.chain, self.slots, self.scratch, self.homes = chain, slots, scratch, homes
        self.entries: list[ChainEntry] = []

    def __getitem__(self, key: object) -> Place:
        node = self.homes.get(key, key) if isinstance(key, Node) else key
        if isinstance(node, Node) and node in self.chain.inside:
            slot, offset = self.scratch
            part = node.nbytes // self.chain.turns
            return self._number(ChainEntry(slot, offset + self.chain.inside[node], self.chain.scratch, -part)), 0
        slot, offset = self.slots[node]
        return self._number(ChainEntry(slot, 0, 0, 0)), offset

    def __iter__(self) -> Iterator[object]:
        return iter([*self.chain.inside, *self.slots])

    def __len__(self) -> int:
        return len(self.chain.inside) + len(self.slots)

    def plain(self, slot: int) -> int:
        """The slot, in this table, of an entry that is copied from the table of the run."""
        return self._number(ChainEntry(slot, 0, 0, 0))

    def _number(self, entry: ChainEntry) -> int:
        if entry not in self.entries:
            self.entries.append(entry)
        return self.entries.index(entry)
