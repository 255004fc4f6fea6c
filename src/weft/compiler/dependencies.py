"""Which groups need which: so that none needs itself, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from weft.compiler.groups import FusedGroup, Group, Use
from weft.primitives.index import Terms


class Dependencies:
    """All groups, each with those that need it. ``groups`` are in the order in which they were made."""

    def __init__(self) -> None:
        self.groups: dict[Group, None] = {}
        self._made = 0

    def new_number(self) -> int:
        """The number of a group that is about to be made."""
        self._made += 1
        return self._made - 1

    def add(self, group: Group) -> None:
        """Take in a new group."""
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

    def are_independent(self, left: Group, right: Group) -> bool:
        """Whether neither of two groups needs the other, so that one may become a part of the other."""
        return not (is_among(right, after(left)) or is_among(left, after(right)))

    def unite(self, group: FusedGroup, other: FusedGroup) -> None:
        """What needs one of two groups, or is needed by it, goes on with ``group`` in place of both."""
        self._replace(other, group)
        _run_before(group.needs, group.after | (1 << group.number))

    def may_attach(self, group: Group, first: Group) -> bool:
        """Whether a group may become a part of a step that ``first`` is the first part of: whatever else it needs does
        not need that."""
        return not any(is_among(needed, after(first)) for needed in group.needs if needed is not first)

    def attach(self, group: Group, first: Group) -> None:
        """What a group needs, and what needs it, goes on with ``first``, as a part of whose step it runs."""
        self._replace(group, first)
        first.after &= ~((1 << group.number) | (1 << first.number))
        _run_before(first.needs, first.after | (1 << first.number))

    def _replace(self, group: Group, by: Group) -> None:
        """Remove a group, in whose place stands another one."""
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
        """Groups, each after those it needs, close to the order of the user's program."""
        waiting = {group: len(group.needs) for group in self.groups}
        ready = [(group.serial, group.number, group) for group in self.groups if not group.needs]
        heapify(ready)
        order: list[Group] = []
        while ready:
            _, _, group = heappop(ready)
            order.append(group)
            for user in group.users:
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (user.serial, user.number, user))
        if len(order) != len(self.groups):
            raise AssertionError("the groups of a plan need each other in a circle")
        return order


class Users:
    """The groups of a node's uses. They may be many, so what is asked about each of them is found for all at once."""

    __slots__ = ("_after", "_several", "_uses")

    def __init__(self, uses: Sequence[Use]) -> None:
        self._uses = uses
        self._after = -1
        self._several: dict[Group, list[Terms | None]] | None = None

    def may_need(self, group: Group) -> bool:
        """Whether ``group`` may store what these use. False if it needs one of them itself (a cycle)."""
        if self._after < 0:
            self._after = 0
            for user, _ in self._uses:
                self._after |= after(user)
        return not is_among(group, self._after)

    def use_elsewhere(self, group: Group, terms: Terms) -> bool:
        """Whether a group, which is one of these, has uses at another index than ``terms``, too."""
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


def after(group: Group) -> int:
    """A bit set of all groups that need a group, directly or not."""
    if group.is_behind:
        _catch_up(group)
    return group.after


def _catch_up(group: Group) -> None:
    """Complete the bit set of a group, and before it those of the groups that need it."""
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
    """Note that groups, and so all that they need, run before those of a bit set. If that is new, their bit sets are
    behind until somebody asks: in a long chain, whose last groups change one after the other, most are asked once."""
    pending = [group for group in groups if later & ~group.after]
    while pending:
        group = pending.pop()
        if not group.is_behind:
            group.is_behind = True
            pending += group.needs
