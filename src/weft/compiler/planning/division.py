"""Which target does the work of a group: that of the engine, or its stand-in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.compiler.fusion.groups import FusedGroup, Group, RoutineGroup
from weft.compiler.kernel import Launch
from weft.compiler.target import Schedule, Target
from weft.graph.node import Node, Shape
from weft.runtime.memory import span_of
from weft.runtime.steps import OnHost, Placement, Touched


class Division:
    """The groups of a plan, divided between a target and its stand-in."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._left: set[Group] = set()
        """Fused groups that are left to the stand-in."""

    def schedule(self, group: Group, launch: Launch) -> Schedule:
        """The schedule of a group's launch, from the target that does it."""
        schedule = self._target.schedule(launch)
        if schedule is None and self._target.stand_in is not None:
            self._left.add(group)
            schedule = self._target.stand_in.schedule(launch)
        if schedule is None:
            raise NotImplementedError(f"{self._target.kind} has no schedule for\n{launch.kernel}")
        return schedule

    def target_of(self, group: Group) -> Target:
        """The target that does the work of a group."""
        left = not self._target.does(group.node) if isinstance(group, RoutineGroup) else group in self._left
        return self._target.stand_in or self._target if left else self._target

    def runs_on(self, group: Group) -> str:
        """What inspection says about where a group runs, and why; empty if it runs on the device itself."""
        target = self.target_of(group)
        if target is self._target:
            return ""
        reason = ""
        if isinstance(group, RoutineGroup):
            reason = group.node.primitive.routine.declines(group.node, self._target.kind)
        return f"on the {target.kind.upper()}" + (f": {reason}" if reason else "")

    def with_memory(
        self,
        code: Any,
        group: Group,
        read: Iterable[Node],
        inputs: Mapping[Node, Shape],
        slots: Placement,
        scratch: int,
    ) -> OnHost:
        """Code of the stand-in for a group, together with the memory that it accesses, as the engine expects it.

        ``read`` are nodes in memory; for those that are ``inputs``, this gives the strides.
        """
        if isinstance(group, FusedGroup):
            written = [root.target for root in group.roots]
        else:
            assert isinstance(group, RoutineGroup)
            written = group.results
        known = dict.fromkeys([*read, *written])
        touched = [_touched(node, inputs.get(node), slots[node], node in read, node in written) for node in known]
        if scratch:
            slot, offset = slots[group]
            touched.append(Touched(slot, offset, offset + scratch, False, False))
        return OnHost(code, tuple(touched))


def _touched(node: Node, strides: Shape | None, start: tuple[int, int], read: bool, written: bool) -> Touched:
    slot, offset = start
    low, high = 0, node.nbytes
    if strides is not None:
        low, high = span_of(node.shape, strides, node.dtype.size)
    return Touched(slot, offset + low, offset + high, read, written)
