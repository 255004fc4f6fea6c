"""The state of a scan in generated code.

Along reduced lanes, each vector of 16 elements is first scanned alone: in four steps, each lane is joined with the one
that is 1, 2, 4 and 8 lanes before it. Then each element is joined with the result of all vectors before. Along sweeps,
and if the scan is sequential, elements are joined one by one.
"""

from __future__ import annotations

from typing import Any

from weft import dtypes
from weft.compiler.codegen.accumulator import Running
from weft.compiler.codegen.crossing import Crossing
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.kernel import Instruction


class Prefix(Running):
    """The state of one scan."""

    def __init__(self, generator: Any, instruction: Instruction, vectors: int = 0) -> None:
        self.in_lanes = generator.kernel.lane == "reduced"
        self.crossing: Crossing = generator.crossing
        varies = self.in_lanes or instruction.varying
        super().__init__(generator, instruction, generator.vector if varies else generator.scalar, vectors * varies)
        self.backwards = instruction.params["reverse"]

    def step(self) -> Any:
        """The result at the current element (of each lane)."""
        elements, before_chunk = self._inputs()
        return self._result(before_chunk, *self.join(self.reducer.lift(self.L, *elements, None)))

    def alone(self) -> tuple[Value, ...]:
        """The vector of the current lanes, scanned without what comes before it."""
        elements, _ = self._inputs()
        return self._within_vector(self.reducer.lift(self.L, *elements, None))

    def behind(self, before: tuple[Value, ...], alone: tuple[Value, ...]) -> Any:
        """The result at the current lanes, from ``alone``, their own scan, and ``before``, the result of all before
        them."""
        _, before_chunk = self._inputs()
        return self._result(before_chunk, before, self._from_first(before, alone, self.L))

    def _inputs(self) -> tuple[list[Any], list[Any]]:
        """The current element, and the total of all chunks before the current one, if there are chunks."""
        inputs = [self.g.fitted(self.g.values[value], self.L) for value in self.instruction.inputs]
        count = len(inputs) - self.instruction.params.get("parts", 0)
        return inputs[:count], inputs[count:]

    def _result(self, before_chunk: list[Any], before: tuple[Value, ...], joined: tuple[Value, ...]) -> Any:
        if not self.instruction.params["inclusive"]:
            joined = self._without_itself(before, joined)
        if before_chunk:
            joined = self.reducer.merge(self.L, tuple(before_chunk), joined)
        return self.finished(self.L, joined, self.instruction)

    def join(self, here: tuple[Value, ...]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Join the current element (of each lane) with the state; return the states before and after it."""
        before = self.read()
        if self.in_lanes and self.reducer.sequential:
            joined = self._lane_after_lane(before, here)
        else:
            joined = self._from_first(before, self._within_vector(here) if self.in_lanes else here, self.L)
        self.write([self._everywhere(value) for value in joined] if self.in_lanes else joined)
        return before, joined

    def _from_first(self, before: tuple[Value, ...], here: tuple[Value, ...], L: Lanes) -> tuple[Value, ...]:
        """``before`` joined with ``here``; for the first element of a row, which has nothing before it, ``here``
        alone."""
        merged = self.reducer.merge(L, before, here)
        first = f"i1 {self.g.is_first()}"
        return self.chosen(first, here, merged)

    def chosen(self, condition: str, yes: tuple[Value, ...], no: tuple[Value, ...]) -> tuple[Value, ...]:
        """One of two states, by a condition with its type."""
        return tuple([self._selected(condition, *pair) for pair in zip(yes, no, strict=True)])

    def _lane_after_lane(self, before: tuple[Value, ...], here: tuple[Value, ...]) -> tuple[Value, ...]:
        """All lanes joined with what came before them, one after the other."""
        order = list(reversed(range(self.crossing.count)) if self.backwards else range(self.crossing.count))
        joined = tuple([Value(self.L, "poison", value.dtype) for value in here])
        results = tuple([self.crossing.lane(value, order[0]) for value in before])
        for lane in order:
            elements = tuple([self.crossing.lane(value, lane) for value in here])
            merge = self._from_first if lane == order[0] else lambda a, b, L: self.reducer.merge(L, a, b)
            results = merge(results, elements, self.g.scalar)
            joined = tuple([self.crossing.with_lane(*pair, lane) for pair in zip(joined, results, strict=True)])
        return joined

    def _within_vector(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Each lane joined with all lanes before it."""
        L, count, distance = self.L, self.crossing.count, 1
        while distance < count:
            moved = tuple([self._moved(value, distance) for value in values])
            merged = self.reducer.merge(L, moved, values)
            joined = [(lane < count - distance) if self.backwards else (lane >= distance) for lane in range(count)]
            chosen, pairs = self.crossing.chosen(joined), zip(merged, values, strict=True)
            values = tuple([self._selected(chosen, *pair) for pair in pairs])
            distance *= 2
        return values

    def _moved(self, value: Value, distance: int) -> Value:
        """Lanes rotated by ``distance`` in the direction of the scan."""
        step = distance if self.backwards else -distance
        return self.crossing.shuffled(value, value, lambda lane: (lane + step) % self.crossing.count)

    def _everywhere(self, value: Value) -> Value:
        """The value of the last lane, in the direction of the scan, in all lanes."""
        last = 0 if self.backwards else self.crossing.count - 1
        return self.crossing.shuffled(value, value, lambda lane: last)

    def _without_itself(self, before: tuple[Value, ...], joined: tuple[Value, ...]) -> tuple[Value, ...]:
        """What comes before each element: lanes are moved by one in the direction of the scan."""
        if not self.in_lanes:
            return before
        crossing, pairs = self.crossing, list(zip(joined, before, strict=True))
        if self.backwards:
            return tuple([crossing.shuffled(*pair, lambda lane: lane + 1) for pair in pairs])
        last = 2 * crossing.count - 1
        return tuple([crossing.shuffled(*pair, lambda lane: lane - 1 if lane else last) for pair in pairs])

    def _selected(self, condition: str, yes: Value, no: Value) -> Value:
        type_ = yes.lanes.type_of(yes.dtype)
        text = f"select {condition}, {type_} {yes.name}, {type_} {no.name}"
        return Value(yes.lanes, self.L.emitter.assign(text), yes.dtype)


class OrderedFold(Prefix):
    """The state of a reduction that joins elements in their order."""

    def step(self) -> None:
        """Join the current element. In an incomplete vector, lanes that do not exist change nothing."""
        L = self.L
        inputs = [self.g.fitted(self.g.values[value], L) for value in self.instruction.inputs]
        here = self.reducer.lift(L, *inputs, None)
        if self.in_lanes and self.g.mask is not None:
            mask = f"{L.type_of(dtypes.bool_)} {self.g.mask}"
            nothing = [L.constant(value, dtype) for dtype, value in self.identity]
            here = tuple([self._selected(mask, *pair) for pair in zip(here, nothing, strict=True)])
        self.join(here)

    def result(self, instruction: Instruction) -> Any:
        """The result of an instruction that shares this state."""
        values, L = self.read(), self.L
        if self.in_lanes:
            L = self.g.scalar
            values = tuple([self.crossing.lane(value, 0) for value in values])
        return self.finished(L, values, instruction)
