"""The loops of a kernel around its instructions, for every target: rows, stages and sweeps.

Loops over lanes are written by the subclasses for the targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.instructions import InstructionWriter
from weft.compiler.codegen.prefix import OrderedFold, Prefix
from weft.compiler.kernel import (
    CHUNK,
    SWEEP_PART,
    Instruction,
    Kernel,
    Level,
    copied_numbers,
    folds_in_chunks,
    folds_in_parts,
)
from weft.compiler.passes import Pass

Reductions = dict[int, Accumulator | OrderedFold]
"""The states of the reductions of a pass, by the numbers of their instructions."""


def folded_in_parts(reductions: Reductions) -> list[Accumulator]:
    """The states that fold a sweep part by part."""
    return [s for s in dict.fromkeys(reductions.values()) if isinstance(s, Accumulator) and s.in_parts]


class NestWriter(InstructionWriter, ABC):
    """Writes the rows, stages and sweeps of a kernel. ``passes`` are its passes over a row; ``in_chunks`` says whether
    the lanes of a row are folded chunk by chunk, ``in_parts`` whether a sweep is folded part by part."""

    def __init__(
        self,
        kernel: Kernel,
        scheduled: Iterable[str],
        width: int,
        passes: list[Pass],
        in_chunks: bool = False,
        in_parts: bool = False,
    ) -> None:
        super().__init__(kernel, scheduled, width)
        self.passes = passes
        self.in_chunks, self.in_parts = in_chunks, in_parts
        self.sweep_count = "0"
        self.chunk_extent: str | None = None
        self.backwards = self.passes[0].backwards

    def _begin(self) -> None:
        """What is done once in a call: loading the numbers, finding operands, values at the level of the kernel."""
        for position in self.layout.values():
            pointer = self.e.assign(f"getelementptr i64, ptr %numbers, i64 {position}")
            self.numbers[position] = self.e.load("i64", pointer)
        for position in range(len(self.kernel.instructions)):
            self._prepare(position)
        self._wait()
        self._leave_if_in_place()
        self._emit_where(lambda i: i.level is Level.KERNEL and not i.varying)

    def _wait(self) -> None:
        """Wait for work that must end before memory is accessed. Most targets need not wait."""

    def _leave_if_in_place(self) -> None:
        """Return if a kernel that copies would copy every element to where it is. Whether an update was given the
        memory of the array it updates is known only at run time."""
        copied = copied_numbers(self.kernel)
        if copied is None:
            return
        same = self.e.assign(f"icmp eq ptr {self.bases[0]}, {self.bases[1]}")
        for left, right in copied.strides:
            equal = self.e.assign(f"icmp eq i64 {self.number(*left)}, {self.number(*right)}")
            same = self.e.assign(f"and i1 {same}, {equal}")
        with self.e.when(same):
            self.e.leave()

    def _enter_rows(self, row: str, axes: int) -> None:
        """Set the indices of the first ``axes`` row axes from their row-major number ``row``."""
        remaining = row
        indices: list[str] = []
        for axis in reversed(range(axes)):
            if axis == 0:
                indices.append(remaining)
                break
            extent = self.number("row", axis)
            indices.append(self.e.assign(f"urem i64 {remaining}, {extent}"))
            remaining = self.e.assign(f"udiv i64 {remaining}, {extent}")
        indices.reverse()
        for axis, index in enumerate(indices):
            self._enter_axis(axis, index)

    def _enter_axis(self, axis: int, index: str) -> None:
        """Set the index of a row axis."""
        if self.kernel.ragged and axis == self.kernel.rows - 1:
            self.chunk_extent = self._extent_of_chunk(index)
        self._advance("row", axis, index, range(len(self.kernel.instructions)))

    def _extent_of_chunk(self, chunk: str) -> str:
        """How many elements of the reduced axis a chunk has; the last one may have fewer."""
        size = self.number("sweep", 0) if self.kernel.sweeps else self.number("lane")
        before = self.e.assign(f"mul i64 {chunk}, {size}")
        return self._smaller(self.e.assign(f"sub i64 {self.number('whole')}, {before}"), size)

    def _emit_row_values(self) -> None:
        self._emit_where(
            lambda i: i.level is Level.ROW and not i.varying and i.stage == 0 and i.operation not in ("reduce", "store")
        )

    def _smaller(self, left: str, right: str) -> str:
        less = self.e.assign(f"icmp slt i64 {left}, {right}")
        return self.e.assign(f"select i1 {less}, i64 {left}, i64 {right}")

    def _larger(self, left: str, right: str) -> str:
        greater = self.e.assign(f"icmp sgt i64 {left}, {right}")
        return self.e.assign(f"select i1 {greater}, i64 {left}, i64 {right}")

    def _body(self) -> None:
        """All stages of a row (or of some lanes of a row)."""
        for current in self.passes:
            self._emit_where(lambda i, stage=current.stage: self._is_between(i, stage))
            self._sweep(current)

    def _is_between(self, instruction: Instruction, stage: int) -> bool:
        """Whether a value or store is done before the sweep of a stage."""
        if instruction.stage != stage or instruction.operation == "reduce" or instruction.level is Level.SWEEP:
            return False
        return instruction.varying or instruction.stage > 0 or instruction.operation == "store"

    def _emit_where(self, chosen: Any) -> None:
        for position, instruction in enumerate(self.kernel.instructions):
            if position not in self.values and chosen(instruction):
                self.values[position] = self._instruction(position, instruction)

    def _sweep(self, current: Pass) -> None:
        """One pass over the swept axes."""
        if not current.roots:
            return
        self.backwards = current.backwards
        reductions = self._accumulators(current)
        self.scans = self._prefixes(current)
        self._make_room(current)
        with self._scope():
            self._open_sweep(1, current, reductions)
        for position, accumulator in reductions.items():
            self.values[position] = self._result(accumulator, self.kernel.instructions[position])

    def _result(self, state: Accumulator | OrderedFold, instruction: Instruction) -> Any:
        """The result of a reduction."""
        return state.result(instruction)

    def _accumulators(self, current: Pass, vectors: int = 0) -> Reductions:
        """States for the reductions of a pass, set to identities. Those that give parts of one result share a state."""
        states: Reductions = {}
        shared: dict[Any, Accumulator | OrderedFold] = {}
        for position in current.roots:
            instruction = self.kernel.instructions[position]
            if instruction.operation != "reduce":
                continue
            key = (instruction.primitive, instruction.inputs) if "part" in instruction.params else position
            if key not in shared:
                kind = OrderedFold if instruction.primitive.reducer.ordered else Accumulator
                shared[key] = kind(self, instruction, vectors)
            states[position] = shared[key]
        return states

    def _prefixes(self, current: Pass, vectors: int = 0) -> dict[int, Prefix]:
        """States for the scans of a pass, set to identities."""
        scans = [(number, self.kernel.instructions[number]) for number in current.computed]
        return {number: Prefix(self, scan, vectors) for number, scan in scans if scan.operation == "scan"}

    def is_first(self) -> str:
        """Whether the current element, or vector of reduced lanes, is the first of its row."""
        if self.kernel.lane != "reduced":
            return self.e.assign(f"icmp eq i64 {self.sweep_count}, 0")
        if not self.backwards:
            return self.e.assign(f"icmp eq i64 {self.lane_index}, 0")
        end = self.e.assign(f"add i64 {self.lane_index}, {self.width}")
        return self.e.assign(f"icmp eq i64 {end}, {self._lane_extent}")

    @property
    def _lanes_inside(self) -> bool:
        """Whether there is a loop over lanes inside the sweeps."""
        return self.kernel.lane == "reduced"

    def _open_sweep(self, depth: int, current: Pass, reductions: Reductions) -> None:
        """Loops over the sweep axes from ``depth`` on; inside them, over the lanes if these are innermost."""
        if depth > self.kernel.sweeps:
            if self._lanes_inside:
                self._sweep_lanes(current, reductions)
            return
        extent = self._sweep_extent(depth)

        def turns(start: str, stop: str) -> None:
            if depth == self.kernel.sweeps and not self._lanes_inside:
                self._last_turns(start, stop, extent, current, reductions)
                return
            with self.e.loop(start, stop) as count, self._scope():
                self._enter_sweep(depth, count, extent, current)
                self._open_sweep(depth + 1, current, reductions)

        self._by_parts(reductions, "0", extent, turns)

    def _last_turns(self, start: str, stop: str, extent: str, current: Pass, reductions: Reductions) -> None:
        """Turns of the innermost sweep, with no loop inside."""
        with self.e.loop(start, stop) as count, self._scope():
            self._ask_ahead_of_sweep(count, extent)
            self._enter_sweep(self.kernel.sweeps, count, extent, current)
            self._accumulate(current, reductions)

    def _sweep_extent(self, depth: int) -> str:
        return self.chunk_extent or self.number("sweep", depth - 1)

    def _ask_ahead_of_sweep(self, count: str, extent: str) -> None:
        """Prefetch memory that later turns of the last sweep need."""

    @abstractmethod
    def _sweep_lanes(self, current: Pass, reductions: Reductions) -> None:
        """What is done with the lanes inside the sweeps."""

    def folds_chunks(self, instruction: Instruction) -> bool:
        """Whether a reduction folds a row chunk by chunk."""
        return self.in_chunks and folds_in_chunks(self.kernel, instruction)

    def _by_chunks(self, reductions: Reductions, do: Callable[[str, str], None]) -> None:
        """Call ``do`` with the range of all lanes of a row, or of each chunk if some of the reductions fold chunk by
        chunk."""
        states = [s for s in dict.fromkeys(reductions.values()) if isinstance(s, Accumulator) and s.in_chunks]
        if not states:
            do("0", self._lane_extent)
            return
        with self.e.loop("0", self._lane_extent, CHUNK) as first, self._scope():
            do(first, self._smaller(self.e.assign(f"add i64 {first}, {CHUNK}"), self._lane_extent))
            for state in states:
                state.end_chunk(first)

    def folds_parts(self, instruction: Instruction) -> bool:
        """Whether a reduction folds a sweep part by part."""
        return self.in_parts and folds_in_parts(self.kernel, instruction)

    def _by_parts(self, reductions: Reductions, start: str, stop: str, do: Callable[[str, str], None]) -> None:
        """Call ``do`` with the range from ``start`` to ``stop`` of a sweep, or with each part of it if some of the
        reductions fold part by part."""
        states = folded_in_parts(reductions)
        if not states:
            do(start, stop)
            return
        with self.e.loop(start, stop, SWEEP_PART) as first, self._scope():
            do(first, self._smaller(self.e.assign(f"add i64 {first}, {SWEEP_PART}"), stop))
            self._end_part(states)

    def _end_part(self, states: Sequence[Accumulator]) -> None:
        """Join the states of a part of a sweep with those of the parts before it."""
        for state in states:
            state.end_part()

    def _enter_sweep(self, depth: int, count: str, extent: str, current: Pass) -> None:
        """Set the index of a sweep axis, and compute the values that it determines."""
        self._set_sweep(depth, count, extent, current)
        self._emit_needed(current.needed, depth)

    def _set_sweep(self, depth: int, count: str, extent: str, current: Pass) -> None:
        index = count
        if self.backwards:
            index = self.e.assign(f"sub i64 {self.e.assign(f'sub i64 {extent}, 1')}, {count}")
        self.sweep_count = count
        self._advance("sweep", depth - 1, index, current.needed)

    @property
    def _lane_extent(self) -> str:
        """How many lanes the current row has."""
        ragged = self.chunk_extent if self.kernel.lane == "reduced" else None
        return ragged or self.number("lane")

    def _emit_needed(self, needed: list[int], depth: int) -> None:
        """Values that can be computed once ``depth`` sweep loops are open."""
        last = depth == self.kernel.sweeps and not self._lanes_inside
        for position in needed:
            instruction = self.kernel.instructions[position]
            uniform = not (instruction.varying and self._lanes_inside)
            if position in self.values or instruction.operation in ("reduce", "store"):
                continue
            if uniform and (instruction.sweep <= depth or last) and self._ready(instruction):
                self.values[position] = self._instruction(position, instruction)

    def _ready(self, instruction: Instruction) -> bool:
        return all(value in self.values for value in instruction.inputs)

    def _accumulate(self, current: Pass, reductions: Reductions) -> None:
        """All that a pass does for the current lanes."""
        for position in current.needed:
            self._accumulate_one(position, current, reductions)

    def _accumulate_one(self, position: int, current: Pass, reductions: Reductions) -> None:
        instruction = self.kernel.instructions[position]
        if position in reductions:
            if reductions[position].instruction is instruction:
                reductions[position].step()
        elif position in current.recalled:
            self.values[position] = self._recall(position, instruction)
        elif position not in self.values:
            self.values[position] = self._instruction(position, instruction)
        if position in current.saved:
            self._save(position, instruction)

    def _make_room(self, current: Pass) -> None:
        """Reserve memory for the values that a pass saves."""

    @abstractmethod
    def _save(self, position: int, instruction: Instruction) -> None:
        """Save a value for the current lanes."""

    @abstractmethod
    def _recall(self, position: int, instruction: Instruction) -> Any:
        """The saved value for the current lanes."""
