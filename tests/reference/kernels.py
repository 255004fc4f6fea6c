"""What a kernel means: its instructions, one after the other, each for the whole index space.

The axes of every value are the row axes, the sweep axes and the lanes; along an axis on which a value does not depend
its extent is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.reference.lanes import ArrayLanes, array_of
from tests.reference.memory import ReferenceMemory
from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.values import Complex, Value
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, number_layout
from weft.dtypes import Dtype

L = ArrayLanes()


class KernelCode:
    """A kernel that can be run with numbers and the slots of a table.

    If it ``recomputes``, each store reads and computes anew all that it needs, as a processor does that has no room to
    keep it.
    """

    def __init__(self, kernel: Kernel, recomputes: bool) -> None:
        self.kernel, self.recomputes = kernel, recomputes
        self.layout = number_layout(kernel, ())

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        with np.errstate(all="ignore"):
            _Run(self, memory, numbers, slots).execute()


class _Run:
    def __init__(self, code: KernelCode, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        self.kernel, self.layout, self.recomputes = code.kernel, code.layout, code.recomputes
        self.memory, self.numbers, self.slots = memory, numbers, slots
        kernel = self.kernel
        self.axes = [("row", axis) for axis in range(kernel.rows)] + [("sweep", axis) for axis in range(kernel.sweeps)]
        self.axes.append(("lane",))  # type: ignore[arg-type]  # the one lane axis has no number
        self.extents = tuple([self.number(*axis) for axis in self.axes])
        self.first_chunk = 0
        self.values: list[Any] = []

    def number(self, *key: Any) -> int:
        return self.numbers[self.layout[key]]

    def execute(self) -> None:
        """The last chunk of a ragged kernel is done by itself: its reduced axis is shorter."""
        if not self.kernel.ragged:
            self.done_for_extents()
            return
        chunks, reduced = self.kernel.rows - 1, len(self.axes) - 1 - self.kernel.sweeps
        extents = list(self.extents)
        count, size = extents[chunks], extents[reduced]
        for first, number, extent in ((0, count - 1, size), (count - 1, 1, self.number("whole") - (count - 1) * size)):
            extents[chunks], extents[reduced] = number, extent
            self.first_chunk, self.extents = first, tuple(extents)
            self.values = []
            self.done_for_extents()

    def done_for_extents(self) -> None:
        """Do all instructions for the index space of the current extents."""
        instructions = list(enumerate(self.kernel.instructions))
        for position, instruction in instructions:
            if self.recomputes and instruction.operation == "store":
                self.values = []
                for earlier, needed in instructions[:position]:
                    self.values.append(None if needed.operation == "store" else self.done(earlier, needed))
            self.values.append(self.done(position, instruction))

    def done(self, position: int, instruction: Instruction) -> Any:
        """The value of an instruction, for the whole index space."""
        match instruction.operation:
            case "load":
                return self.load(position, instruction)
            case "scalar":
                return self.scalar(position, instruction)
            case "index":
                return L.value(self.index(position), dtypes.int64)
            case "apply":
                return self.apply(instruction)
            case "reduce":
                return self.reduce(instruction)
            case "scan":
                return self.scan(instruction)
            case "store":
                return self.store(position, instruction)
        raise AssertionError(instruction.text())

    def index(self, position: int) -> np.ndarray:
        """For each point of the index space, which element an access is about; those of an operand are counted from
        its offset."""
        access = self.kernel.instructions[position].access
        assert access is not None
        index = np.full((1,) * len(self.axes), 0 if access.operand is not None else self.number(position, "offset"))
        strides = (*access.rows, *access.sweeps, access.lane)
        for number, (axis, extent, stride) in enumerate(zip(self.axes, self.extents, strides, strict=True)):
            if stride:
                key = (position, *axis)
                step = self.number(*key) if key in self.layout else 1  # contiguous lanes have no number
                shape = [extent if other == number else 1 for other in range(len(self.axes))]
                first = self.first_chunk if number == self.kernel.rows - 1 else 0
                index = index + np.arange(first, first + extent).reshape(shape) * step
        for number, (value, _) in enumerate(access.computed):
            index = index + array_of(self.values[value]) * self.number(position, "computed", number)
        return index

    def address(self, position: int) -> int:
        """The address of the operand of an access."""
        return self.slots[self.number(position, "slot")]

    def offsets(self, position: int, dtype: Dtype) -> np.ndarray:
        """For each point of the index space, how many bytes behind that address an element is."""
        return self.index(position) * dtype.size + self.number(position, "offset")

    def load(self, position: int, instruction: Instruction) -> Any:
        offsets = self.offsets(position, instruction.dtype)
        if instruction.where is None:
            return self.read(self.address(position), offsets, instruction.dtype)
        where, offsets = np.broadcast_arrays(array_of(self.values[instruction.where]), offsets)
        found = self.read(self.address(position), offsets[where], instruction.dtype)

        def spread(elements: np.ndarray) -> np.ndarray:
            result = np.zeros(where.shape, elements.dtype)
            result[where] = elements
            return result

        return mapped(spread, found)

    def read(self, address: int, offsets: np.ndarray, dtype: Dtype) -> Any:
        return held(self.memory.read(address, offsets, image_dtype(dtype)), dtype)

    def scalar(self, position: int, instruction: Instruction) -> Any:
        dtype = image_dtype(instruction.dtype)
        image = np.array([self.slots[self.number(position, "slot")]], np.uint64).view(np.uint8)[: dtype.itemsize]
        return held(image.view(dtype), instruction.dtype)

    def apply(self, instruction: Instruction) -> Any:
        inputs = [self.values[value] for value in instruction.inputs]
        result = instruction.primitive.lanes(L, *inputs, **instruction.params)
        return rounded(result, instruction.dtype, instruction.primitive.exact)

    def reduce(self, instruction: Instruction) -> Any:
        """Elements are folded one after the other along the sweeps; along reduced lanes every 16th, and in the end
        these 16 in halves."""
        reducer = instruction.primitive.reducer
        if reducer.ordered:
            return self.ordered_reduce(instruction)
        inputs = [mapped(self.everywhere, self.values[value]) for value in instruction.inputs]
        lifted = reducer.lift(L, inputs[0], inputs[1] if len(inputs) > 1 else None)
        lifted = tuple([mapped(self.everywhere, value) for value in lifted])
        rows, sweeps, lanes = self.extents[: self.kernel.rows], self.extents[self.kernel.rows : -1], self.extents[-1]
        reduced = self.kernel.lane == "reduced"
        width = VIRTUAL_LANES if reduced else lanes
        identity = reducer.identity(inputs[0].dtype)
        state = [repeated(L.constant(value, dtype), (*rows, width)) for dtype, value in identity]
        for sweep in np.ndindex(*sweeps):
            for start in range(0, lanes, max(width, 1)):
                lane = slice(start, start + width)
                elements = [part_of(value, (*[slice(None)] * len(rows), *sweep, lane)) for value in lifted]
                here = (..., slice(min(width, lanes - start)))
                merged = reducer.merge(L, tuple([part_of(value, here) for value in state]), tuple(elements))
                for value, new in zip(state, merged, strict=True):
                    array_of(value)[here] = array_of(new)
        while reduced and width > 1:
            width //= 2
            low, high = (
                [part_of(value, (..., half)) for value in state] for half in (slice(width), slice(width, None))
            )
            state = reducer.merge(L, tuple(low), tuple(high))
        result = finished(tuple(state), instruction)
        return mapped(lambda x: np.broadcast_to(x, (*rows, width)).reshape(*rows, *[1] * len(sweeps), width), result)

    def scan(self, instruction: Instruction) -> Any:
        """Elements are joined one after the other along the sweeps; along reduced lanes in vectors of 16, in which each
        is first joined with those 1, 2, 4 and 8 before it, unless the scan is sequential."""
        axis, step = self.walk(instruction)

        def turned_back(x: np.ndarray) -> np.ndarray:
            return np.moveaxis(x[..., ::step], -1, axis)

        joined, before = self.joined(instruction, instruction.params["inclusive"])
        if before:
            joined = instruction.primitive.reducer.merge(L, before, joined)
        return mapped(turned_back, finished(joined, instruction))

    def ordered_reduce(self, instruction: Instruction) -> Any:
        """What a scan comes to in the end."""
        axis, _ = self.walk(instruction)
        joined, _ = self.joined(instruction, inclusive=True)
        last = finished(tuple([part_of(value, (..., slice(-1, None))) for value in joined]), instruction)
        return mapped(lambda x: np.moveaxis(x, -1, axis), last)

    def walk(self, instruction: Instruction) -> tuple[int, int]:
        """The axis along which elements are joined, and the direction."""
        axis = -1 if self.kernel.lane == "reduced" else self.kernel.rows
        return axis, -1 if instruction.params["reverse"] else 1

    def joined(self, instruction: Instruction, inclusive: bool) -> tuple[Any, Any]:
        """The accumulators of a scan, along the last axis, and of what comes before the chunk."""
        reducer = instruction.primitive.reducer
        axis, step = self.walk(instruction)

        def turned(x: np.ndarray) -> np.ndarray:
            return np.moveaxis(self.everywhere(x), axis, -1)[..., ::step]

        inputs = [mapped(turned, self.values[value]) for value in instruction.inputs]
        count = len(inputs) - instruction.params.get("parts", 0)
        elements = reducer.lift(L, *inputs[:count], None)
        shape = array_of(elements[0]).shape
        elements = tuple([repeated(value, shape) for value in elements])
        identity = reducer.identity(instruction.params.get("of", inputs[0].dtype))
        start = tuple([repeated(L.constant(value, dtype), (*shape[:-1], 1)) for dtype, value in identity])
        width = VIRTUAL_LANES if axis == -1 and not reducer.sequential else 1
        return scanned(reducer, elements, start, width, inclusive), tuple(inputs[count:])

    def everywhere(self, elements: np.ndarray) -> np.ndarray:
        return np.broadcast_to(elements, self.extents)

    def store(self, position: int, instruction: Instruction) -> None:
        """Written for all rows and lanes at once, and for one index of the sweeps after the other."""
        first, last = self.kernel.rows, len(self.axes) - 1
        depth = instruction.sweep
        extents = list(self.extents)
        extents[first + depth : last] = [1] * (last - first - depth)
        if not instruction.varying:
            extents[last] = 1
        offsets = np.broadcast_to(self.offsets(position, instruction.dtype), extents)
        value = repeated(self.values[instruction.inputs[0]], tuple(extents))
        where = np.ones((), np.bool_) if instruction.where is None else array_of(self.values[instruction.where])
        where = np.broadcast_to(where, extents)
        for sweep in np.ndindex(*extents[first:last]):
            here = (*[slice(None)] * first, *sweep)
            chosen = where[here]
            elements = part_of(part_of(value, here), chosen)
            self.write(self.address(position), offsets[here][chosen], elements, instruction)

    def write(self, address: int, offsets: np.ndarray, value: Any, instruction: Instruction) -> None:
        access, combine = instruction.access, instruction.combine
        assert access is not None
        dtype = access.dtype
        assert len(np.unique(offsets)) == offsets.size, "rows or lanes write the same element"
        if combine is not None:
            value = rounded(combine.lanes(L, self.read(address, offsets, dtype), value), dtype, exact=False)
        self.memory.write(address, offsets, image_of(value, dtype))


def finished(values: tuple[Any, ...], instruction: Instruction) -> Any:
    """The result of a reduction or a scan, which may be one of its accumulators."""
    part = instruction.params.get("part")
    return instruction.primitive.reducer.finish(L, values, instruction.dtype) if part is None else values[part]


def scanned(reducer: Any, elements: Any, start: Any, width: int, inclusive: bool) -> Any:
    """Elements scanned along the last axis, ``width`` of them at a time; ``start`` is what no element makes."""
    shape = array_of(elements[0]).shape
    result = [repeated(value, shape) for value in elements]
    before = start
    for first in range(0, shape[-1], width):
        here = tuple([part_of(value, (..., slice(first, first + width))) for value in elements])
        for distance in [2**power for power in range(4) if 2**power < min(width, shape[-1] - first)]:
            early, late = (..., slice(None, -distance)), (..., slice(distance, None))
            merged = reducer.merge(L, *[tuple([part_of(value, part) for value in here]) for part in (early, late)])
            here = tuple([with_part(*pair, late) for pair in zip(here, merged, strict=True)])
        here = reducer.merge(L, before, here) if first else here
        for value, new, old in zip(result, here, before, strict=True):
            elements_here = array_of(new)
            if not inclusive:
                elements_here = np.concatenate([array_of(old), elements_here[..., :-1]], -1)
            array_of(value)[..., first : first + width] = elements_here
        before = tuple([part_of(value, (..., slice(-1, None))) for value in here])
    return tuple(result)


def with_part(value: Any, new: Any, part: Any) -> Any:
    """A value with new elements in a part of it."""
    value = mapped(np.copy, value)
    array_of(value)[part] = array_of(new)
    return value


def mapped(function: Callable[[np.ndarray], np.ndarray], value: Any) -> Any:
    """A real or complex value whose elements are those of another in other shapes."""
    if isinstance(value, Complex):
        return Complex(mapped(function, value.real), mapped(function, value.imag))
    return L.value(function(array_of(value)), value.dtype)


def part_of(value: Any, index: Any) -> Any:
    return mapped(lambda x: x[index], value)


def repeated(value: Any, shape: tuple[int, ...]) -> Any:
    return mapped(lambda x: np.broadcast_to(x, shape).copy(), value)


def rounded(result: Any, dtype: Dtype, exact: bool) -> Any:
    """What an operation gave, as a value of its dtype."""
    if dtype in HALVES and not exact:
        return L.round_to(result, dtype)
    return L.value(result.name, dtype) if isinstance(result, Value) else result


def image_dtype(dtype: Dtype) -> np.dtype:
    """What the elements of an array are in memory."""
    if dtype in HALVES:
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if dtype.is_bool else dtype.numpy


def held(image: np.ndarray, dtype: Dtype) -> Any:
    """A value, from its image in memory."""
    if dtype in HALVES:
        return L.half_from_bits(L.value(image, dtypes.uint16), dtype)
    if dtype.is_complex:
        return Complex(*[L.value(part.copy(), dtypes.float32) for part in (image.real, image.imag)])
    return L.value(image != 0 if dtype.is_bool else image, dtype)


def image_of(value: Any, dtype: Dtype) -> np.ndarray:
    """The image of a value in memory."""
    if dtype in HALVES:
        return array_of(L.half_to_bits(L.value(value.name, dtype)))
    if not dtype.is_complex:
        return array_of(value)
    real = array_of(value.real)
    elements = np.empty(real.shape, np.complex64)
    elements.real, elements.imag = real, array_of(value.imag)
    return elements
