"""Fourier transforms as steps of a plan.

A unit of work is one row, or as many transforms side by side as a vector has lanes. Its stages alternate between two
buffers, which the caches hold.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import weft.primitives as p
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, ComplexAccess
from weft.compiler.cpu.fourier.long_rows import long_convolutions, long_half_rows, long_real_rows, long_rows
from weft.compiler.cpu.fourier.runner import Axis, TransformLoops, other_axes
from weft.compiler.cpu.fourier.stages import End, Stages, plane_bytes, runs_in_row, share_vectors, vector_width
from weft.compiler.cpu.kinds import FAR_BYTES
from weft.primitives.fourier_lengths import scale_of, split_of, work_length
from weft.primitives.routine import RoutineCall, RoutineStep

Transform = Callable[[Stages, End, End], None]
"""Adds the stages of a transform, from its source to its target."""

_LONGEST_SHORT_ROW = 128
"""Rows up to this length are transformed side by side, if there are several of them."""


@p.fft.routine.on("cpu")
def complex_step(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The step for transforms of complex numbers; two of them for long rows."""
    length = call.results[0].shape[call.params["axis"]]
    inverse = call.params["inverse"]
    split = split_of(length)
    if split is not None:
        return long_rows(call, split)
    if split_of(work_length(length)) is not None:
        return long_convolutions(call, length)

    def together(stages: Stages, source: End, sink: End) -> None:
        stages.rows_together(length, source, sink)

    def apart(stages: Stages, source: End, sink: End) -> None:
        stages.complex(length, source, sink)

    return _Maker(call, length, length, inverse, inverse).step(together, apart, (length, length))


def _planes(stages: Stages) -> End:
    """The buffers between stages, as an end."""
    return End(ComplexAccess("planes"), stages.step)


@p.rfft.routine.on("cpu")
def real_step(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The step for transforms of real numbers: a complex transform of half the length, and the stage that converts
    it."""
    length = call.operands[0].shape[call.params["axis"]]
    half = length // 2
    split = split_of(half)
    if split is not None:
        return long_real_rows(call, split)

    def together(stages: Stages, source: End, sink: End) -> None:
        stages.real_rows_together(half, source, sink)

    def apart(stages: Stages, source: End, sink: End) -> None:
        stages.complex(half, source, _planes(stages))
        stages.halves_to_real(half, sink)

    return _Maker(call, length, half, False, False).step(together, apart, (half, half + 1))


@p.irfft.routine.on("cpu")
def inverse_real_step(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The step for transforms to real numbers."""
    length = call.results[0].shape[call.params["axis"]]
    half = length // 2
    split = split_of(half)
    if split is not None:
        return long_half_rows(call, split)

    def together(stages: Stages, source: End, sink: End) -> None:
        stages.half_rows_together(half, source, sink)

    def apart(stages: Stages, source: End, sink: End) -> None:
        stages.real_to_halves(half, source)
        stages.complex(half, _planes(stages), sink)

    return _Maker(call, length, half, False, True).step(together, apart, (half + 1, half))


def _write_apart(apart: Transform, stages: Stages, source: End, sink: End, read: int, written: int) -> None:
    if source.rows:
        stages.load_rows(read, source)
    apart(stages, _planes(stages) if source.rows else source, _planes(stages) if sink.rows else sink)
    if sink.rows:
        stages.store_rows(written, sink)


class _Maker:
    """Divides a call into units, and makes its step.

    ``length`` is that of the whole transform, ``inner`` that of the complex one. ``swapped_in`` and ``swapped_out`` say
    whether real and imaginary parts are exchanged there.
    """

    def __init__(self, call: RoutineCall, length: int, inner: int, swapped_in: bool, swapped_out: bool) -> None:
        self.call, self.length, self.inner = call, length, inner
        self.swapped_in, self.swapped_out = swapped_in, swapped_out
        (self.source,), (self.target,) = call.operands, call.results
        self.axis = call.params["axis"]
        self.others = other_axes(self.source, self.target, self.axis)
        self.transforms = prod([axis.extent for axis in self.others])
        self.width = vector_width()
        self.last = self.target.strides[self.axis] == 1
        self.dense = self.source.strides[self.axis] == 1 or self.source.shape[self.axis] == 1
        self.single = self._is_single()
        self.lane_axis = None if self.single else self._lane_axis()
        self.together = self._shares_vectors()

    def _is_single(self) -> bool:
        if not (self.dense and self.last and runs_in_row(self.inner, self.width)):
            return False
        return self.transforms < self.width // 2 or self.inner > _LONGEST_SHORT_ROW

    def _shares_vectors(self) -> bool:
        """Whether there are enough short rows for several to share a vector."""
        if self.lane_axis is None or not (self.dense and self.last):
            return False
        return self.lane_axis.extent >= self.width and share_vectors(self.inner, self.width)

    def _lane_axis(self) -> Axis:
        """The axis along which transforms are done side by side. It is removed from ``others``."""
        element = self.source.dtype.size
        candidates = self.others
        if not self.last:
            candidates = [axis for axis in self.others if axis.target == self.target.dtype.size] or self.others
        elif not self.dense:
            candidates = [axis for axis in self.others if axis.source == element]
        largest = max(candidates, key=lambda axis: axis.extent, default=Axis(1, 0, 0))
        self.others = [axis for axis in self.others if axis is not largest]
        return largest

    def _ahead(self) -> tuple[int, int]:
        """How many bytes ahead a unit prefetches what the next one reads and writes; zeros if that does not pay."""
        if sum([prod(one.shape) * one.dtype.size for one in (self.source, self.target)]) < FAR_BYTES:
            return 0, 0
        if self.length * COMPLEX > 16384 and self.single:
            return 0, 0
        axis = self.lane_axis
        if axis is not None and axis.extent > self.width:
            return axis.source * self.width, axis.target * self.width
        if not self.others:
            return 0, 0
        return self.others[-1].source, self.others[-1].target

    def _ends(self) -> tuple[End, End]:
        """The source and the target of the transform."""
        ends = []
        ahead = self._ahead() != (0, 0)
        scaled = self.call.params["roots"] > 0
        sides = ((self.source, self.dense, self.swapped_in), (self.target, self.last, self.swapped_out))
        for operand, dense, swapped in sides:
            is_source = operand is self.source
            apply = scaled and not is_source
            if self.single:
                ends.append(End(ComplexAccess("row", swapped, apply, ahead), COMPLEX))
                continue
            assert self.lane_axis is not None
            step = self.lane_axis.source if is_source else self.lane_axis.target
            stride = operand.strides[self.axis] * operand.dtype.size
            if step == operand.dtype.size and not dense:
                pairs = operand.dtype.size == FLOAT
                ends.append(
                    End(ComplexAccess("pairs" if pairs else "columns", swapped, apply, ahead), stride * (1 + pairs))
                )
            else:
                ends.append(End(ComplexAccess("row", swapped, apply, ahead), step, rows=True))
        return ends[0], ends[1]

    def step(self, together: Transform, apart: Transform, lengths: tuple[int, int]) -> RoutineStep:
        """The step. Its stages are added by ``together`` for short rows that share vectors, else by ``apart``: between
        source and target, or between planes into which rows are read, and from which they are written, with these
        ``lengths``."""
        plane = plane_bytes(work_length(self.inner), self.single, self.width)
        scale = scale_of(self.length, self.call.params["roots"])
        stages = Stages(self.single, plane, scale, self._ahead(), self.width)
        if self.together:
            together(stages, *self._ends())
        else:
            _write_apart(apart, stages, *self._ends(), *lengths)
        axes, lanes = self.others, self.lane_axis or Axis(1, 0, 0)
        work = self.transforms * self.inner * 2
        source, target = (self.source.slot, self.source.offset), (self.target.slot, self.target.offset)
        return TransformLoops(source, target, lanes, axes, self.together).step(stages, self.call.scratch, work)
