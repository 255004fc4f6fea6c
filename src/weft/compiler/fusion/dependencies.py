"""Which groups need which others: to exclude cycles, and to find the order in which groups run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from weft.primitives.index import Terms

from .groups import FusedGroup, Group, Junction, RoutineGroup, Use

MOST_AT_ONCE = 32
"""How many groups `_run_before` completes at once."""


class Dependencies:
    """All groups, in the order in which they were made, and the dependencies between them."""

    def __init__(self) -> None:
        self.groups: dict[Group, None] = {}
        self._junctions: list[Junction] = []
        self._made = 0

    def new_number(self) -> int:
        """A number for a group that is about to be made."""
        self._made += 1
        return self._made - 1

    def add(self, group: Group) -> None:
        """Add a new group."""
        self.groups[group] = None

    def link(self, earlier: Group, uses: Iterable[Use]) -> None:
        """Note that ``earlier`` runs before the groups of ``uses``."""
        gained = 0
        for user, _ in uses:
            if user is not earlier and user not in earlier.users:
                if user.is_behind:
                    _catch_up(user)
                gained |= user.after | (1 << user.number)
                _connect(earlier, user)
        if gained & ~earlier.after and not earlier.is_behind:
            earlier.after |= gained
            _run_before(earlier.needs, gained)

    def link_all(self, several: Collection[Group], uses: Sequence[Use]) -> None:
        """Note that each of ``several`` groups runs before the groups of ``uses``."""
        if len(several) > 1 and len(uses) > 1:
            junction = Junction(self.new_number())
            self._junctions.append(junction)
            self.link(junction, uses)
            uses = [(junction, None)]
        for group in several:
            self.link(group, uses)

    def is_before_call(self, group: Group) -> bool:
        """Whether one of the groups that use what a group stores is a call."""
        return any(
            user.before_calls if isinstance(user, Junction) else isinstance(user, RoutineGroup) for user in group.users
        )

    def are_independent(self, left: Group, right: Group) -> bool:
        """Whether neither of two groups needs the other, so that they may become one."""
        return not (is_among(right, after(left)) or is_among(left, after(right)))

    def unite(self, group: FusedGroup, other: FusedGroup) -> None:
        """Replace two groups by ``group``, which gets the dependencies of both."""
        self._replace(other, group)
        _run_before(group.needs, group.after | (1 << group.number))

    def may_attach(self, group: Group, first: Group) -> bool:
        """Whether a group may become a part of the step that begins with ``first``: nothing else that it needs may need
        ``first``."""
        return not any(is_among(needed, after(first)) for needed in group.needs if needed is not first)

    def attach(self, group: Group, first: Group) -> None:
        """Make a group a part of the step of ``first``, which gets its dependencies."""
        self._replace(group, first)
        first.after &= ~((1 << group.number) | (1 << first.number))
        _run_before(first.needs, first.after | (1 << first.number))

    def _replace(self, group: Group, by: Group) -> None:
        """Remove a group; ``by`` gets its dependencies."""
        by.after = after(by) | after(group)
        del self.groups[group]
        for user in group.users:
            user.needs.discard(group)
            if user is not by:
                _connect(by, user)
        for needed in group.needs:
            needed.users.discard(group)
            if needed is not by:
                _connect(needed, by)

    def in_order(self) -> list[Group]:
        """All groups, each after those that it needs, close to the order of the user's program."""
        waiting = {group: len(group.needs) for group in chain(self.groups, self._junctions)}
        ready = [(group.serial, group.number, group) for group in self.groups if not group.needs]
        heapify(ready)
        order: list[Group] = []
        while ready:
            _, _, group = heappop(ready)
            order.append(group)
            freed = list(group.users)
            for user in freed:
                waiting[user] -= 1
                if waiting[user]:
                    continue
                if isinstance(user, Junction):
                    freed += user.users
                else:
                    heappush(ready, (user.serial, user.number, user))
        if len(order) != len(self.groups):
            raise AssertionError("the groups of a plan need each other in a circle")
        return order


class Users:
    """The groups that use a node. There may be many, so each question about them is answered for all at once."""

    __slots__ = ("_after", "_several", "_uses")

    def __init__(self, uses: Sequence[Use]) -> None:
        self._uses = uses
        self._after = -1
        self._several: dict[Group, list[Terms | None]] | None = None

    def may_need(self, group: Group) -> bool:
        """Whether ``group`` may store what these groups use. It may not if it needs one of them (a cycle)."""
        if self._after < 0:
            self._after = 0
            for user, _ in self._uses:
                self._after |= after(user)
        return not is_among(group, self._after)

    def use_elsewhere(self, group: Group, terms: Terms) -> bool:
        """Whether a group, which is one of these, also uses the node at another index than ``terms``."""
        if self._several is None:
            self._several = {}
            for user, other in self._uses:
                self._several.setdefault(user, []).append(other)
        return any(other != terms for other in self._several[group])


def is_among(group: Group, groups: int) -> bool:
    """Whether a group is in a bit set of groups."""
    return bool(groups & (1 << group.number))


def _connect(earlier: Group, later: Group) -> None:
    earlier.users.add(later)
    later.needs.add(earlier)
    if isinstance(earlier, Junction) and isinstance(later, RoutineGroup):
        earlier.before_calls = True


def after(group: Group) -> int:
    """A bit set of all groups that need a group, directly or not."""
    if group.is_behind:
        _catch_up(group)
    return group.after


def _catch_up(group: Group) -> None:
    """Complete the bit set of a group, after those of the groups that need it."""
    pending = [group]
    while pending:
        one = pending[-1]
        first = [user for user in one.users if user.is_behind]
        if first:
            pending += first
            continue
        pending.pop()
        for user in one.users:
            one.after |= user.after | (1 << user.number)
        one.is_behind = False


def _run_before(groups: Iterable[Group], later: int) -> None:
    """Note that groups, and so all that they need, run before those of a bit set. If a group that is not behind has all
    of it, so have those that it needs. Some bit sets are changed at once; often these are all. The rest is marked as
    behind (``is_behind``), with all that it needs, and completed when it is read. So in a long chain whose last groups
    change one by one, most of them are completed only once."""
    pending, left = [*groups], MOST_AT_ONCE
    while pending and left:
        group = pending.pop()
        if not group.is_behind and later & ~group.after:
            group.after |= later
            pending += group.needs
            left -= 1
    pending = [group for group in pending if later & ~group.after]
    while pending:
        group = pending.pop()
        if not group.is_behind:
            group.is_behind = True
            pending += group.needs
