"""Sums of the results of calls: several calls and the additions between them become one call.

The gradient of weights that are used again and again is such a sum: of a product for each use. Not all of them become
one call, as the operands of a call have to be in memory together: the routine says how many (`CallSums`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.graph.node import Node
from weft.primitives.routine import CallSums

MOST_TOGETHER = 64
"""At most this many calls become one."""


@dataclass(eq=False, slots=True)
class _Chain:
    """Results of calls that are added to a total, or up if the sum ``begins`` with the first one. ``additions`` has
    the addition of each call; two calls with which a sum begins have the same one."""

    sums: CallSums
    begins: bool
    calls: list[Node] = field(default_factory=list)
    additions: list[Node] = field(default_factory=list)


class SumsOfCalls:
    """The sums of calls in a graph. ``uses`` says how often a node is used."""

    def __init__(self, order: Sequence[Node], uses: Mapping[Node, int], kind: str) -> None:
        self.uses, self.kind = uses, kind
        self._parts: dict[Node, tuple[_Chain, int, int]] = {}
        """For the last addition of each call that is planned: the chain, and the numbers of its first call and of the
        one after its last."""
        chains: dict[Node, _Chain] = {}
        for node in order:
            if node.primitive is not None and node.primitive.is_sum:
                self._continue(node, chains)
        for chain in dict.fromkeys(chains.values()):
            self._divide(chain)

    @property
    def found(self) -> bool:
        return bool(self._parts)

    def _continue(self, node: Node, chains: dict[Node, _Chain]) -> None:
        """Note an addition in the chain that it continues, or in a new one."""
        first, second = node.inputs
        if self._sums_of(second) is None:
            first, second = second, first
        sums = self._sums_of(second)
        if sums is None or first is second or first.shape != node.shape:
            return
        chain = chains.get(first) if self.uses[first] == 1 else None
        if chain is None or chain.sums is not sums:
            begins = self._sums_of(first) is sums
            chain = _Chain(sums, begins)
            if begins:
                chain.calls.append(first)
                chain.additions.append(node)
        chain.calls.append(second)
        chain.additions.append(node)
        chains[node] = chain

    def _sums_of(self, node: Node) -> CallSums | None:
        """How the results of a call are added up; None if it is no call that is used once."""
        routine = None if node.primitive is None else node.primitive.routine
        found: CallSums | None = None if routine is None or self.uses[node] > 1 else routine.sums(self.kind)
        return found

    def _divide(self, chain: _Chain) -> None:
        start = 0
        while start < len(chain.calls):
            count = chain.sums.together(chain.calls[start : start + MOST_TOGETHER])
            if count > 1:
                self._parts[chain.additions[start + count - 1]] = chain, start, start + count
            start += count

    def replaced(self, node: Node) -> Node | None:
        """The call that adds up what an addition adds, and what others before it do; None for other nodes."""
        part = self._parts.get(node)
        if part is None:
            return None
        chain, start, stop = part
        # By now, the inputs of the additions are those that replaced others.
        begins = chain.begins and not start
        total = None if begins else next(x for x in chain.additions[start].inputs if x is not chain.calls[start])
        return chain.sums.node(total, chain.calls[start:stop])
