"""Exchange between the lanes of a row: folds over reduced lanes, and moves between lanes in scans.

On a CPU the lanes are those of a vector. On a GPU each lane is a thread, so a value has one lane in the generated code,
and threads exchange registers (`compiler/cuda/threads.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.values import Value

Merge = Callable[[Lanes, tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]]


class Crossing(Protocol):
    """Exchange between the ``count`` lanes of a row."""

    count: int

    def folded(self, values: tuple[Value, ...], merge: Merge) -> tuple[Value, ...]:
        """The fold of all lanes as a value of one lane: the upper half is merged with the lower until one is left."""

    def lane(self, value: Value, number: int) -> Value:
        """Lane ``number``, as a value of one lane."""

    def with_lane(self, value: Value, element: Value, number: int) -> Value:
        """``value`` with ``element`` in lane ``number``."""

    def joined(
        self, values: tuple[Value, ...], elements: tuple[Value, ...], number: str, merge: Merge
    ) -> tuple[Value, ...]:
        """``values`` with ``elements``, which have one lane, merged into the lane of a ``number``, an ``i64``."""

    def shuffled(self, first: Value, second: Value, source: Callable[[int], int]) -> Value:
        """In each lane, the lane of ``first`` that ``source`` names; from ``count`` on it names lanes of ``second``."""

    def chosen(self, lanes: Sequence[bool]) -> str:
        """The condition, with its type, that is true in the chosen lanes."""


class VectorCrossing:
    """The lanes are those of a vector."""

    def __init__(self, vector: Lanes, scalar: Lanes) -> None:
        self.vector, self.scalar = vector, scalar
        self.count = vector.width

    def folded(self, values: tuple[Value, ...], merge: Merge) -> tuple[Value, ...]:
        L = self.vector
        while L.width > 1:
            low, high = [_half(L, v, 0) for v in values], [_half(L, v, 1) for v in values]
            L = low[0].lanes
            values = merge(L, tuple(low), tuple(high))
        return tuple([Value(self.scalar, v.name, v.dtype) for v in values])

    def lane(self, value: Value, number: int) -> Value:
        text = f"extractelement {self.vector.type_of(value.dtype)} {value.name}, i64 {number}"
        return Value(self.scalar, self.vector.emitter.assign(text), value.dtype)

    def with_lane(self, value: Value, element: Value, number: int) -> Value:
        vector, scalar = self.vector.type_of(value.dtype), self.scalar.type_of(value.dtype)
        text = f"insertelement {vector} {value.name}, {scalar} {element.name}, i64 {number}"
        return Value(self.vector, self.vector.emitter.assign(text), value.dtype)

    def joined(
        self, values: tuple[Value, ...], elements: tuple[Value, ...], number: str, merge: Merge
    ) -> tuple[Value, ...]:
        e, L = self.vector.emitter, self.vector
        scalars = [e.assign(f"extractelement {L.type_of(v.dtype)} {v.name}, i64 {number}") for v in values]
        before = tuple([Value(self.scalar, scalar, v.dtype) for scalar, v in zip(scalars, values, strict=True)])
        after = merge(self.scalar, before, elements)
        joined = []
        for value, one in zip(values, after, strict=True):
            type_, element = L.type_of(value.dtype), self.scalar.type_of(value.dtype)
            text = f"insertelement {type_} {value.name}, {element} {one.name}, i64 {number}"
            joined.append(Value(L, e.assign(text), value.dtype))
        return tuple(joined)

    def shuffled(self, first: Value, second: Value, source: Callable[[int], int]) -> Value:
        type_ = self.vector.type_of(first.dtype)
        lanes = ", ".join([f"i32 {source(lane)}" for lane in range(self.count)])
        text = f"shufflevector {type_} {first.name}, {type_} {second.name}, <{self.count} x i32> <{lanes}>"
        return Value(self.vector, self.vector.emitter.assign(text), first.dtype)

    def chosen(self, lanes: Sequence[bool]) -> str:
        return f"<{self.count} x i1> <{', '.join([f'i1 {str(one).lower()}' for one in lanes])}>"


def _half(L: Lanes, value: Value, which: int) -> Value:
    """The lower or upper half of the lanes."""
    width = L.width // 2
    narrow = MathLanes(L.emitter, width)
    type_ = L.type_of(value.dtype)
    if width == 1:
        return Value(narrow, L.emitter.assign(f"extractelement {type_} {value.name}, i64 {which}"), value.dtype)
    lanes = ", ".join(f"i32 {which * width + lane}" for lane in range(width))
    text = f"shufflevector {type_} {value.name}, {type_} poison, <{width} x i32> <{lanes}>"
    return Value(narrow, L.emitter.assign(text), value.dtype)
