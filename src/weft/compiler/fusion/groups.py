"""The result of fusion: groups of nodes and calls of routines, and what each stores where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.graph.node import Node, Shape
from weft.primitives import Write
from weft.primitives.index import Terms
from weft.primitives.routine import Factors


@dataclass(eq=False, repr=False, slots=True)
class Group:
    """A step of the plan: a group of fused nodes, or a call of a routine. It comes after the groups that it ``needs``
    and before its ``users``. ``after`` is a bit set of all groups that need it, directly or indirectly. If it
    ``is_behind``, some are missing, and `dependencies.after` finds them."""

    number: int
    serial: int = 0
    after: int = 0
    is_behind: bool = False
    needs: set[Group] = field(default_factory=set)
    users: set[Group] = field(default_factory=set)


@dataclass(eq=False, repr=False, slots=True)
class RoutineGroup(Group):
    """A node that a routine computes, and the nodes of its results."""

    node: Any = None
    results: list[Node] = field(default_factory=list)


@dataclass(eq=False, repr=False, slots=True)
class Root:
    """A value that a group stores: ``node`` at ``terms``, into ``target``, which is the node itself or a node that it
    is a part of."""

    node: Node
    terms: Terms
    target: Node
    write: Write | None = None


class Chunks(NamedTuple):
    """A loop axis that is cut into chunks of ``size``, of which the last one may be shorter. ``number`` is the loop
    axis that counts the chunks."""

    axis: int
    number: int
    size: int


@dataclass(eq=False, repr=False, slots=True)
class FusedGroup(Group):
    """Nodes that one kernel computes.

    ``axes`` are its loop axes in logical order; ``reduced`` are those that are folded; a single one may be scanned
    instead, or be both. ``members`` counts its nodes, ``indexed`` those that are `Indexed`, ``slow`` those that are
    elementwise and not cheap. ``folds``: it has reductions. ``backwards``: its scans begin at the end (None: it has no
    scans). ``chunks`` says how the reduced axis is cut.
    """

    axes: list[int] = field(default_factory=list)
    reduced: tuple[int, ...] = ()
    extents: dict[int, int] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    members: int = 0
    indexed: int = 0
    slow: int = 0
    scattering: bool = False
    folds: bool = False
    backwards: bool | None = None
    chunks: Chunks | None = None

    @property
    def parallel(self) -> tuple[int, ...]:
        return tuple([axis for axis in self.axes if axis not in self.reduced])

    @property
    def is_plain(self) -> bool:
        """Whether nothing is folded, scanned or scattered."""
        return not (self.reduced or self.folds or self.scattering) and self.chunks is None and self.backwards is None

    def absorb(self, other: FusedGroup, in_front: bool = False) -> None:
        """Add what another group computes and stores, in the same loops; its roots come first if ``in_front``."""
        at = 0 if in_front else len(self.roots)
        self.roots[at:at] = other.roots
        self.members += other.members
        self.indexed += other.indexed
        self.slow += other.slow
        self.serial = max(self.serial, other.serial)


@dataclass(eq=False, repr=False, slots=True)
class Junction(Group):
    """No step, but what all users of a node need if several groups store its parts, and what needs all of these. So
    there is one dependency for each part and each user, not for each pair. ``before_calls``: a user is a call."""

    before_calls: bool = False


Use = tuple[Group, Terms | None]


class Layout:
    """Where the elements of a node are: strides and offset, in elements, in the memory of ``base``. If an axis goes
    over several axes in memory, ``factors`` take the place of the strides."""

    __slots__ = ("base", "factors", "offset", "strides")

    def __init__(self, base: Node, strides: Shape, offset: int, factors: Factors | None = None) -> None:
        self.base, self.strides, self.offset, self.factors = base, strides, offset, factors

    def loops(self, shape: Shape) -> tuple[Shape, Shape]:
        """Extents and strides of loops over the elements of a node with this shape."""
        if self.factors is None:
            return shape, self.strides
        found = [factor for factors in self.factors for factor in factors]
        return tuple([extent for extent, _ in found]), tuple([stride for _, stride in found])
