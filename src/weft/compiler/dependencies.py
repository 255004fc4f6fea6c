"""Which groups need which: so that none needs itself, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from weft.compiler.groups import FusedGroup, Group, Use


class Dependencies:
    """All groups, each with those that need it. ``groups`` are in the order in which they were made."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._made = 0

    def new_number(self) -> int:
        """The number of a group that is about to be made."""
        self._made += 1
        return self._made - 1

    def link(self, earlier: Group, uses: Iterable[Use]) -> None:
        """Note that ``earlier`` runs before the groups of ``uses``."""
        gained = 0
        for user, _ in uses:
            if user is not earlier and earlier not in user.needs:
                user.needs.add(earlier)
                gained |= user.after | (1 << user.number)
        gained &= ~earlier.after
        if not gained:
            return
        earlier.after |= gained
        bit = 1 << earlier.number
        if earlier.needs:
            for group in self.groups:
                if group.after & bit:
                    group.after |= gained

    def may_precede(self, group: Group, uses: Iterable[Use]) -> bool:
        """Whether ``group`` may store what ``uses`` need. False if it needs one of them itself (a cycle)."""
        bit = 0
        for user, _ in uses:
            if user is not group:
                bit |= user.after & (1 << group.number)
        return not bit

    def are_independent(self, left: Group, right: Group) -> bool:
        """Whether neither of two groups needs the other, so that one may become a part of the other."""
        return not (left.after & (1 << right.number) or right.after & (1 << left.number))

    def unite(self, group: FusedGroup, other: FusedGroup) -> None:
        """What needs one of two groups, or is needed by it, goes on with ``group`` in place of both."""
        bits = (1 << group.number) | (1 << other.number)
        group.needs |= other.needs
        group.after |= other.after
        self.groups.remove(other)
        for one in self.groups:
            if other in one.needs:
                one.needs.discard(other)
                one.needs.add(group)
            if one.after & bits:
                one.after |= bits | group.after

    def may_attach(self, group: Group, first: Group) -> bool:
        """Whether a group may become a part of a step that ``first`` is the first part of: whatever else it needs does
        not need that."""
        return not any(first.after & (1 << needed.number) for needed in group.needs if needed is not first)

    def attach(self, group: Group, first: Group) -> None:
        """What a group needs, and what needs it, goes on with ``first``, as a part of whose step it runs."""
        self.groups.remove(group)
        bits = (1 << group.number) | (1 << first.number)
        first.after = (first.after | group.after) & ~bits
        first.needs = (first.needs | group.needs) - {first, group}
        for one in self.groups:
            if group in one.needs:
                one.needs.discard(group)
                one.needs.add(first)
            if one is not first and one.after & bits:
                one.after |= bits | first.after

    def in_order(self) -> list[Group]:
        """Groups, each after those it needs, close to the order of the user's program."""
        waiting = {group: len(group.needs) for group in self.groups}
        users: dict[Group, list[Group]] = {}
        for group in self.groups:
            for needed in group.needs:
                users.setdefault(needed, []).append(group)
        ready = [(group.serial, group.number, group) for group in self.groups if not group.needs]
        heapify(ready)
        order: list[Group] = []
        while ready:
            _, _, group = heappop(ready)
            order.append(group)
            for user in users.get(group, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (user.serial, user.number, user))
        if len(order) != len(self.groups):
            raise AssertionError("the groups of a plan need each other in a circle")
        return order
