"""Finds which inputs an `Indexed` primitive reads, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.node import Node, Shape
from weft.primitives.index import Term, Terms


class ReadRecorder:
    """Takes the place of the kernel's `Reader`, and records which inputs an `Indexed` primitive reads, and where."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.reads: list[tuple[int, Terms]] = []

    def read(self, position: int, terms: Sequence[Term], where: int | None = None) -> int:
        self.reads.append((position, tuple(terms)))
        return 0

    def read_index(self, position: int, terms: Sequence[Term], count: int, extent: int) -> tuple[Term, int | None]:
        self.reads.append((position, tuple(terms)))
        return Term(0, (), ((0, 1),)), 0

    def zero(self, dtype: Any) -> int:
        return 0

    def inside(self, bounds: Sequence[Any]) -> int | None:
        return 0 if bounds else None

    def apply(self, primitive: Any, *values: int, **params: Any) -> int:
        return 0

    def index_value(self, term: Term) -> int:
        return 0

    def number(self, value: int) -> int:
        return 0

    def linear(self, terms: Sequence[Term], shape: Shape) -> int:
        return 0

    def fixed(self, value: int) -> Term:
        return Term(value)

    def shift(self, term: Term, distance: int) -> Term:
        return Term(term.start + distance, term.axes, term.computed)

    def plus(self, left: Term, right: Term) -> Term:
        return Term(left.start + right.start, left.axes + right.axes, left.computed + right.computed)
