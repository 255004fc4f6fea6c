"""What fusion makes: clusters of nodes and library calls, and what they store where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import weft.primitives as p
from weft.compiler.index import Terms
from weft.graph.node import Node, Shape


@dataclass(eq=False, slots=True)
class Unit:
    """A step of the plan: a cluster of fused nodes, or a library call. ``after`` is a bit set of all units that need
    it."""

    number: int
    serial: int = 0
    after: int = 0
    needs: set[Unit] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class CallUnit(Unit):
    node: Any = None


@dataclass(eq=False, slots=True)
class Root:
    """A value that a cluster stores: ``node`` at ``terms``, into ``target`` (the node itself, or one that it is a
    part of)."""

    node: Node
    terms: Terms
    target: Node
    part: Any = None


@dataclass(eq=False, slots=True)
class Cluster(Unit):
    """Nodes that one kernel computes. ``axes`` are its loop axes in logical order, ``reduced`` those that are
    folded."""

    axes: list[int] = field(default_factory=list)
    reduced: tuple[int, ...] = ()
    extents: dict[int, int] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    members: int = 0
    scattering: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple([axis for axis in self.axes if axis not in self.reduced])


Use = tuple[Unit, Terms | None]


class Layout:
    """Where the elements of a node are: strides and offset (in elements) within the memory of ``base``."""

    __slots__ = ("base", "offset", "strides")

    def __init__(self, base: Node, strides: Shape, offset: int) -> None:
        self.base, self.strides, self.offset = base, strides, offset


@dataclass(frozen=True, slots=True)
class RegionPart:
    """A strided region of the result: where each axis starts and how far apart elements are."""

    starts: Shape
    steps: Shape


@dataclass(frozen=True, slots=True)
class ScatterPart:
    """Slices at computed places."""

    axes: tuple[int, ...]
    mode: str
    outside: str


def parts_of(node: Node) -> list[tuple[int, RegionPart | ScatterPart]]:
    """Which inputs of an `Update` are written where, in order."""
    zero, one = (0,) * node.ndim, (1,) * node.ndim
    if isinstance(node.primitive, p.Concatenate):
        axis, start = node.params[0], 0
        parts: list[tuple[int, RegionPart | ScatterPart]] = []
        for position, source in enumerate(node.inputs):
            parts.append((position, RegionPart((*zero[:axis], start, *zero[axis + 1 :]), one)))
            start += source.shape[axis]
        return parts
    if isinstance(node.primitive, p.SliceUpdate):
        starts, steps = node.params
        return [(0, RegionPart(zero, one)), (1, RegionPart(starts, steps))]
    axes, mode, outside = node.params
    return [(0, RegionPart(zero, one)), (len(node.inputs) - 1, ScatterPart(axes, mode, outside))]
