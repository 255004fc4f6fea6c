"""The definitions of reductions and scans: the order in which they join elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.reference.lanes import L, array_of, value_of
from weft.compiler.kernel import CHUNK, SWEEP_PART, VIRTUAL_LANES, Instruction
from weft.dtypes import Dtype
from weft.primitives.reductions import PARTED_SWEEP

State = Sequence[np.ndarray]
"""The accumulators of a reducer: the elements joined so far."""


class Fold:
    """The reducer of an instruction, computed on arrays. ``dtype`` is that of its input."""

    def __init__(self, instruction: Instruction, dtype: Dtype) -> None:
        self.instruction, self.reducer = instruction, instruction.primitive.reducer
        self.identity = self.reducer.identity(instruction.params.get("of", dtype))

    def start(self, *shape: int) -> State:
        """The state before any element."""
        return [np.full(shape, array_of(L.constant(value, dtype))) for dtype, value in self.identity]

    def lifted(self, *inputs: Any) -> State:
        """A state for each single element."""
        return np.broadcast_arrays(*[array_of(x) for x in self.reducer.lift(L, *inputs)])

    def merged(self, left: State, right: State) -> State:
        return [array_of(x) for x in self.reducer.merge(L, self._values(left), self._values(right))]

    def finished(self, state: State) -> np.ndarray:
        """The result of the fold, or the accumulator that the instruction asks for."""
        part = self.instruction.params.get("part")
        if part is not None:
            return state[part]
        return array_of(self.reducer.finish(L, self._values(state), self.instruction.dtype))

    def _values(self, state: State) -> tuple[Any, ...]:
        return tuple([value_of(x, dtype) for x, (dtype, _) in zip(state, self.identity, strict=True)])

    def reduced(self, elements: State, rows: int, by_lanes: bool, in_parts: bool = False) -> State:
        """Fold the sweep axes, which follow the first ``rows`` axes, and with ``by_lanes`` the lanes, too. If there
        are more lanes than a chunk has, each chunk is folded first. With ``in_parts``, so is each part of a sweep."""
        lanes = elements[0].shape[-1]
        if by_lanes and lanes > CHUNK:
            chunks = [[x[..., first : first + CHUNK] for x in elements] for first in range(0, lanes, CHUNK)]
            totals = [self._folded(chunk, elements[0].ndim - 1, True) for chunk in chunks]
            elements = [np.concatenate(parts, -1) for parts in zip(*totals, strict=True)]
        if in_parts and elements[0].shape[-2] >= PARTED_SWEEP:
            starts = range(0, elements[0].shape[-2], SWEEP_PART)
            parts = [self._folded([x[..., i : i + SWEEP_PART, :] for x in elements], rows, False) for i in starts]
            elements = [np.stack(totals, -2) for totals in zip(*parts, strict=True)]
        return self._folded(elements, rows, by_lanes)

    def _folded(self, elements: State, rows: int, by_lanes: bool) -> State:
        """Fold elements one after the other; with ``by_lanes``, every 16th lane into one accumulator, and then the 16
        accumulators in halves."""
        *outer, lanes = elements[0].shape
        width = VIRTUAL_LANES if by_lanes else lanes
        state = self.start(*outer[:rows], width)
        for sweep in np.ndindex(*outer[rows:]):
            for first in range(0, lanes, max(width, 1)):
                part = [x[(..., *sweep, slice(first, first + width))] for x in elements]
                count = part[0].shape[-1]
                for x, new in zip(state, self.merged([x[..., :count] for x in state], part), strict=True):
                    x[..., :count] = new
        while by_lanes and width > 1:
            width //= 2
            state = self.merged([x[..., :width] for x in state], [x[..., width:] for x in state])
        return state

    def scanned(self, elements: State, by_lanes: bool) -> State:
        """Join elements one after the other along the last axis; with ``by_lanes``, in vectors of 16 elements, in which
        each is first joined with those 1, 2, 4 and 8 before it, unless the scan is sequential."""
        width = VIRTUAL_LANES if by_lanes and not self.reducer.sequential else 1
        vectors: list[State] = []
        for first in range(0, elements[0].shape[-1], width):
            here: State = [x[..., first : first + width] for x in elements]
            for distance in (1, 2, 4, 8):
                if distance < here[0].shape[-1]:
                    late = self.merged([x[..., :-distance] for x in here], [x[..., distance:] for x in here])
                    here = [np.concatenate([x[..., :distance], y], -1) for x, y in zip(here, late, strict=True)]
            vectors.append(self.merged([x[..., -1:] for x in vectors[-1]], here) if vectors else here)
        return [np.concatenate(parts, -1) for parts in zip(*vectors, strict=True)]
