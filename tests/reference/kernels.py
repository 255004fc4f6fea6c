"""Executes the instructions of a kernel one after the other, each for the whole index space.

A value is an array. Its axes are the row axes, the sweep axes and the lanes; along an axis on which a value does not
depend its extent is 1. Half precision is held as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.reference.folds import Fold
from tests.reference.lanes import L, array_of, from_memory, rounded, value_of
from tests.reference.memory import ReferenceMemory
from weft.compiler.kernel import Instruction, Kernel, folds_in_parts, number_layout


class KernelCode:
    """A kernel that can be run with its numbers and the slots of its table."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.layout = number_layout(kernel, ())

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        Run(self.kernel, memory, {key: numbers[position] for key, position in self.layout.items()}, slots).execute()


class Run:
    """One run of a kernel. ``numbers`` are those of the launch, by key."""

    def __init__(self, kernel: Kernel, memory: ReferenceMemory, numbers: dict[Any, int], slots: Sequence[int]) -> None:
        self.kernel, self.memory, self.numbers, self.slots = kernel, memory, numbers, slots
        axes = [("row", axis) for axis in range(kernel.rows)] + [("sweep", axis) for axis in range(kernel.sweeps)]
        self.axes: list[tuple[Any, ...]] = [*axes, ("lane",)]

    def execute(self) -> None:
        for space in self.index_spaces():
            self.coordinates = np.ogrid[tuple(space)]
            self.extents = np.broadcast_shapes(*[x.shape for x in self.coordinates])
            self.values: list[Any] = []
            for position in range(len(self.kernel.instructions)):
                self.values.append(self.value(position))

    def value(self, position: int) -> Any:
        """The value of an instruction, by the method with the name of its operation."""
        instruction = self.kernel.instructions[position]
        return getattr(self, instruction.operation)(position, instruction)

    def index_spaces(self) -> Iterator[list[slice]]:
        """The parts of the axes to run for. A ragged kernel is run chunk by chunk, because the last chunk may be
        shorter."""
        space = [slice(self.numbers[axis]) for axis in self.axes]
        if not self.kernel.ragged:
            yield space
            return
        chunks, reduced = self.kernel.rows - 1, self.kernel.rows
        size, count = space[reduced].stop, space[chunks].stop
        for chunk in range(count):
            space[chunks] = slice(chunk, chunk + 1)
            space[reduced] = slice(min(size, self.numbers["whole",] - chunk * size))
            yield space

    def scalar(self, position: int, instruction: Instruction) -> np.ndarray:
        image = np.array([self.slots[self.numbers[position, "slot"]]], np.uint64)
        return from_memory(image.view(instruction.dtype.numpy)[0], instruction.dtype)

    def apply(self, position: int, instruction: Instruction) -> np.ndarray:
        result = instruction.primitive.lanes(L, *self.inputs(instruction), **instruction.params)
        return rounded(result, instruction.dtype, instruction.primitive.exact)

    def inputs(self, instruction: Instruction, arranged: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> list[Any]:
        """The inputs of an instruction, in the form that formulas take."""
        dtypes = [self.kernel.instructions[number].dtype for number in instruction.inputs]
        arrays = [arranged(self.values[number]) for number in instruction.inputs]
        return [value_of(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]

    def fold(self, instruction: Instruction) -> Fold:
        return Fold(instruction, self.kernel.instructions[instruction.inputs[0]].dtype)

    def reduce(self, position: int, instruction: Instruction) -> np.ndarray:
        """Reduce the sweep axes, and the lanes if they are reduced."""
        fold = self.fold(instruction)
        if fold.reducer.ordered:
            return self.scan(position, instruction)
        inputs = self.inputs(instruction, lambda x: np.broadcast_to(x, self.extents))
        elements = fold.lifted(*inputs, *([] if fold.reducer.needs_index else [None]))
        rows = self.kernel.rows
        in_parts = folds_in_parts(self.kernel, instruction)
        found = fold.finished(fold.reduced(elements, rows, self.kernel.lane == "reduced", in_parts))
        return found.reshape(*self.extents[:rows], *[1] * self.kernel.sweeps, -1)

    def scan(self, position: int, instruction: Instruction) -> np.ndarray:
        """A scan along the sweep or reduced lanes. An ordered reduction is the last element of a scan."""
        fold, by_lanes = self.fold(instruction), self.kernel.lane == "reduced"
        axis, step = -1 if by_lanes else self.kernel.rows, -1 if instruction.params["reverse"] else 1
        inputs = self.inputs(
            instruction, lambda x: np.moveaxis(np.broadcast_to(x, self.extents), axis, -1)[..., ::step]
        )
        count = len(inputs) - instruction.params.get("parts", 0)  # further inputs are the totals before this chunk
        joined = fold.scanned(fold.lifted(*inputs[:count], None), by_lanes)
        if instruction.operation == "reduce":
            joined = [x[..., -1:] for x in joined]
        elif not instruction.params["inclusive"]:
            start = fold.start(*joined[0].shape[:-1], 1)
            joined = [np.concatenate([x, y[..., :-1]], -1) for x, y in zip(start, joined, strict=True)]
        if inputs[count:]:
            joined = fold.merged([array_of(x) for x in inputs[count:]], joined)
        return np.moveaxis(fold.finished(joined)[..., ::step], -1, axis)

    def index(self, position: int, instruction: Instruction) -> np.ndarray:
        return self.distance(position, instruction) + self.numbers[position, "offset"]

    def distance(self, position: int, instruction: Instruction) -> np.ndarray:
        """The distance from an operand's first element, in elements, for each point of the index space."""
        access = instruction.access
        assert access is not None
        total = np.zeros((1,) * len(self.axes), np.int64)
        strides = (*access.rows, *access.sweeps, access.lane)
        for axis, coordinate, stride in zip(self.axes, self.coordinates, strides, strict=True):
            if stride:
                total = total + coordinate * self.numbers.get((position, *axis), 1)  # contiguous lanes have no number
        for number, (value, _) in enumerate(access.computed):
            total = total + self.values[value] * self.numbers[position, "computed", number]
        return total

    def locations(self, position: int, instruction: Instruction) -> tuple[int, np.ndarray, np.ndarray]:
        """The address of an operand, the offset in bytes of each element from it, and whether the element is
        accessed."""
        offsets = self.distance(position, instruction) * instruction.access.dtype.size  # type: ignore[union-attr]
        where = np.True_ if instruction.where is None else self.values[instruction.where]
        offsets, where = np.broadcast_arrays(offsets + self.numbers[position, "offset"], where)
        return self.slots[self.numbers[position, "slot"]], offsets, where

    def load(self, position: int, instruction: Instruction) -> np.ndarray:
        address, offsets, where = self.locations(position, instruction)
        found = np.zeros(where.shape, instruction.dtype.numpy)
        found[where] = self.memory.read(address, offsets[where], found.dtype)
        return from_memory(found, instruction.dtype)

    def store(self, position: int, instruction: Instruction) -> None:
        """Write elements for all rows and lanes at once, and for one index of the sweeps after the other."""
        address, *parts = self.locations(position, instruction)
        rows, inner = self.kernel.rows, self.kernel.sweeps - instruction.sweep
        extents = [*self.extents[: len(self.axes) - 1 - inner], *[1] * inner]
        extents.append(self.extents[-1] if instruction.varying else 1)
        offsets, where, elements = (np.broadcast_to(x, extents) for x in (*parts, self.values[instruction.inputs[0]]))
        for sweep in np.ndindex(*extents[rows:-1]):
            here = (..., *sweep, slice(None))
            self.write(address, offsets[here][where[here]], elements[here][where[here]], instruction)

    def write(self, address: int, offsets: np.ndarray, elements: np.ndarray, instruction: Instruction) -> None:
        assert len(np.unique(offsets)) == offsets.size, "rows or lanes write the same element"
        dtype, combine = instruction.dtype, instruction.combine
        if combine is not None:
            old = from_memory(self.memory.read(address, offsets, dtype.numpy), dtype)
            elements = rounded(combine.lanes(L, value_of(old, dtype), value_of(elements, dtype)), dtype, exact=False)
        self.memory.write(address, offsets, elements.astype(dtype.numpy))
