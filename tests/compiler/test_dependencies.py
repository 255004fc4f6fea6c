"""Which groups depend on which, as the planner needs to know, compared with a search of all paths."""

from __future__ import annotations

import random

import pytest

from weft.compiler.fusion import dependencies as dependencies_module
from weft.compiler.fusion.dependencies import Dependencies, Users
from weft.compiler.fusion.groups import FusedGroup, Group, Junction, RoutineGroup


def reached(group: Group) -> set[Group]:
    """All groups that need a group, directly or not."""
    found: set[Group] = set()
    pending = list(group.users)
    while pending:
        user = pending.pop()
        if user not in found:
            found.add(user)
            pending.extend(user.users)
    return found


def check(dependencies: Dependencies, groups: list[Group], random_numbers: random.Random) -> None:
    """Make some of the queries that the planner makes; their answers are stored, and change how later ones are
    found."""
    for _ in range(random_numbers.randrange(4)):
        left, right, third = [random_numbers.choice(groups) for _ in range(3)]
        after = reached(left)
        assert dependencies.are_independent(left, right) == (right not in after and left not in reached(right))
        users = [left, third]
        assert Users([(user, None) for user in users]).may_need(right) == all(
            right not in reached(one) for one in users
        )
        uses = [one.users if isinstance(one, Junction) else [one] for one in left.users]
        calls = any(isinstance(user, RoutineGroup) for found in uses for user in found)
        assert dependencies.is_before_call(left) == calls
        assert dependencies.may_attach(right, left) == all(one is left or one not in after for one in right.needs)


def test_random_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        monkeypatch.setattr(dependencies_module, "MOST_AT_ONCE", number % 4)
        random_numbers = random.Random(f"{seed} {number}")
        dependencies, groups = Dependencies(), list[Group]()
        for _ in range(60):
            kind = random_numbers.random()
            if kind < 0.5 or len(groups) < 3:
                kinds = random_numbers.choices((FusedGroup, RoutineGroup), (3, 1), k=random_numbers.choice((1, 1, 3)))
                made: list[Group] = [kind(dependencies.new_number()) for kind in kinds]
                users = random_numbers.sample(groups, min(len(groups), random_numbers.randrange(4)))
                for group in made:
                    dependencies.add(group)
                dependencies.link_all(made, [(user, None) for user in users])
                groups += made
                check(dependencies, groups, random_numbers)
                continue
            left, right = random_numbers.sample(groups, 2)
            is_fused = isinstance(right, FusedGroup)
            if kind < 0.75 and Users([(right, None)]).may_need(left):
                dependencies.link(left, [(right, None)])
            elif kind < 0.9 and dependencies.are_independent(left, right):
                if isinstance(left, FusedGroup) and isinstance(right, FusedGroup):
                    dependencies.unite(left, right)
                    groups.remove(right)
            elif is_fused and left in right.needs and right.users and dependencies.may_attach(right, left):
                dependencies.attach(right, left)
                groups.remove(right)
            check(dependencies, groups, random_numbers)
        order = dependencies.in_order()
        assert set(order) == set(groups)
        for group in groups:
            later = [user for user in reached(group) if not isinstance(user, Junction)]
            assert all(order.index(group) < order.index(user) for user in later)
