"""Transforms of long rows as several steps of a plan; in each step, threads share one row.

A long row of complex numbers is treated as a matrix, whose columns are transformed in one step and whose rows in the
next; see `split_of`. Real numbers take one more step, before or after. Lengths that are computed as convolutions take
two such transforms, and steps that multiply.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from weft.compiler.cpu.fourier import tables
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, ComplexAccess
from weft.compiler.cpu.fourier.parts import PART
from weft.compiler.cpu.fourier.runner import Axis, TransformLoops, other_axes
from weft.compiler.cpu.fourier.stages import End, Stages, plane_bytes, vector_width
from weft.primitives.fourier import between_bytes, row_bytes
from weft.primitives.fourier_lengths import Floats, convolution_length, scale_of, split_of
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.memory import contiguous_strides


class Rows(NamedTuple):
    """Rows of complex numbers in memory: slot and offset of the first one, and the strides in bytes along all axes but
    that of the transform."""

    start: tuple[int, int]
    steps: tuple[int, ...]


class _TransformCall:
    """The rows of operand and result of a call, and its scratch memory."""

    def __init__(self, call: RoutineCall) -> None:
        (source,), (target,) = call.operands, call.results
        others = other_axes(source, target, call.params["axis"])
        self.extents = [axis.extent for axis in others]
        self.source = Rows((source.slot, source.offset), tuple([axis.source for axis in others]))
        self.target = Rows((target.slot, target.offset), tuple([axis.target for axis in others]))
        self.roots = call.params["roots"]
        self.scratch = call.scratch
        self._between: Rows | None = None

    def taken(self, size: int) -> Rows:
        """Take scratch memory for rows of ``size`` bytes."""
        slot, offset = self.scratch
        self.scratch = slot, offset + prod(self.extents) * size
        return Rows((slot, offset), tuple([step * size for step in contiguous_strides(tuple(self.extents))]))

    def walk(self, source: Rows, target: Rows, lanes: Axis, in_parts: bool = False) -> TransformLoops:
        rows = zip(self.extents, source.steps, target.steps, strict=True)
        axes = [Axis(extent, read, written) for extent, read, written in rows]
        return TransformLoops(
            source.start, target.start, lanes, axes, whole_blocks=in_parts, block=PART if in_parts else 0
        )

    def complex(
        self,
        split: tuple[int, int],
        ends: tuple[Rows, Rows],
        accesses: tuple[ComplexAccess, ComplexAccess],
        scale: float,
    ) -> list[RoutineStep]:
        """The two steps of a complex transform."""
        first, second = split
        width = vector_width()
        between = self._between = self._between or self.taken(between_bytes(split))
        work = 2 * first * second * prod(self.extents)
        columns = Stages(False, plane_bytes(first, False, width), 1.0, width=width)
        block = End(ComplexAccess("planes"), columns.step, plane=FLOAT * first * width)
        columns.complex(first, End(accesses[0], COMPLEX * second), block)
        rows = Stages(False, plane_bytes(second, False, width), scale, width=width)
        rows.load_blocks(split)
        rows.complex(second, End(ComplexAccess("planes"), rows.step), End(accesses[1], COMPLEX * first))
        return [
            self.walk(ends[0], between, Axis(second, COMPLEX, COMPLEX * first)).step(columns, self.scratch, work),
            self.walk(between, ends[1], Axis(first, FLOAT * width, COMPLEX)).step(rows, self.scratch, work),
        ]

    def product(
        self,
        ends: tuple[Rows, Rows],
        count: int,
        accesses: tuple[ComplexAccess, ComplexAccess],
        table: Floats,
        scale: float = 1.0,
    ) -> RoutineStep:
        """The step that multiplies numbers by those of a table."""
        stages = Stages(True, 0, scale)
        stages.product_in_parts(count, *accesses, table)
        return self.parts(ends, count, stages)

    def parts(self, ends: tuple[Rows, Rows], count: int, stages: Stages) -> RoutineStep:
        """A step over ``count`` numbers of each row, in parts that threads share."""
        return self.walk(*ends, Axis(count, 0, 0), in_parts=True).step(stages, self.scratch, count * prod(self.extents))


def _columns(swapped: bool, scaled: bool = False) -> ComplexAccess:
    return ComplexAccess("columns", swapped, scaled, ahead=True)


def long_rows(call: RoutineCall, split: tuple[int, int]) -> list[RoutineStep]:
    """The steps for transforms of complex numbers."""
    rows, inverse = _TransformCall(call), call.params["inverse"]
    accesses = _columns(inverse), _columns(inverse, rows.roots > 0)
    return rows.complex(split, (rows.source, rows.target), accesses, scale_of(prod(split), rows.roots))


def long_convolutions(call: RoutineCall, length: int) -> list[RoutineStep]:
    """The steps for transforms of complex numbers that are computed as convolutions; see `Stages.complex`."""
    rows, inverse, whole = _TransformCall(call), call.params["inverse"], convolution_length(length)
    split = split_of(whole)
    assert split is not None
    columns = _columns(False), _columns(False)
    first, second = rows.taken(row_bytes(whole)), rows.taken(row_bytes(whole))
    plain, swapped, source = ComplexAccess("row"), ComplexAccess("row", True), ComplexAccess("row", inverse)
    chirp, spectrum = tables.shared(tables.chirp, length), tables.shared(tables.chirp_spectrum, length, whole)
    padding = Stages(True, 0, 1.0)
    padding.zeros_in_parts(length)
    scale, sink = scale_of(length, rows.roots), ComplexAccess("row", inverse, rows.roots > 0)
    return [
        rows.product((rows.source, first), length, (source, plain), chirp),
        rows.parts((first, first), whole - length, padding),
        *rows.complex(split, (first, second), columns, 1.0),
        rows.product((second, first), whole, (plain, swapped), spectrum),
        *rows.complex(split, (first, second), columns, 1.0),
        rows.product((second, rows.target), length, (swapped, sink), chirp, scale),
    ]


def long_real_rows(call: RoutineCall, split: tuple[int, int]) -> list[RoutineStep]:
    """The steps for transforms of real numbers."""
    rows, half = _TransformCall(call), prod(split)
    whole = rows.taken(row_bytes(half))
    steps = rows.complex(split, (rows.source, whole), (_columns(False), _columns(False)), 1.0)
    stages = Stages(True, 0, scale_of(2 * half, rows.roots))
    stages.halves_to_real_in_parts(half, ComplexAccess("row", scaled=rows.roots > 0))
    return [*steps, rows.parts((whole, rows.target), half + 1, stages)]


def long_half_rows(call: RoutineCall, split: tuple[int, int]) -> list[RoutineStep]:
    """The steps for transforms to real numbers."""
    rows, half = _TransformCall(call), prod(split)
    whole = rows.taken(row_bytes(half))
    stages = Stages(True, 0, 1.0)
    stages.real_to_halves_in_parts(half)
    accesses = _columns(False), _columns(True, rows.roots > 0)
    steps = rows.complex(split, (whole, rows.target), accesses, scale_of(2 * half, rows.roots))
    return [rows.parts((rows.source, whole), half, stages), *steps]
