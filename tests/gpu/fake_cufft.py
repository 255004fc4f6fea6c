"""cuFFT without a card: functions that do what its manual says, with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from tests.gpu.fake_driver import FakeDriver
from weft.runtime.cuda.cufft import TransformKind

INVALID_PLAN, INVALID_VALUE = 1, 4
FORWARD = -1


class _Layout(NamedTuple):
    """The distances in memory between the numbers of a transform, and between transforms."""

    stride: int
    distance: int

    def places(self, transforms: int, numbers: int) -> np.ndarray:
        return np.arange(transforms)[:, None] * self.distance + np.arange(numbers) * self.stride


class _Plan(NamedTuple):
    kind: TransformKind
    length: int
    taken: _Layout
    given: _Layout
    transforms: int


class FakeCufft:
    """A plan needs ``scratch`` bytes of memory, which an execution overwrites."""

    def __init__(self, driver: FakeDriver, scratch: int = 48) -> None:
        self._driver = driver
        self.scratch = scratch
        self.executed: list[_Plan] = []
        self.plans: dict[int, _Plan | None] = {}
        self._numbers = count(1)
        self._streams: dict[int, int] = {}
        self._areas: dict[int, int] = {}
        self.functions: dict[str, Callable[..., int]] = {
            "cufftCreate": self._create,
            "cufftDestroy": self._destroy,
            "cufftSetAutoAllocation": lambda plan, automatic: int(automatic != 0),
            "cufftMakePlanMany64": self._make,
            "cufftSetStream": partial(self._note, self._streams),
            "cufftSetWorkArea": partial(self._note, self._areas),
            "cufftExecC2C": partial(self._execute, TransformKind.COMPLEX),
            "cufftExecR2C": partial(self._execute, TransformKind.FROM_REAL),
            "cufftExecC2R": partial(self._execute, TransformKind.TO_REAL),
        }

    def _create(self, made: Any) -> int:
        made._obj.value = next(self._numbers)
        self.plans[made._obj.value] = None
        return 0

    def _destroy(self, plan: int) -> int:
        del self.plans[plan]
        return 0

    def _make(self, plan: Any, rank: int, lengths: Any, *more: Any) -> int:
        _, stride, distance, _, result_stride, result_distance, kind, transforms, size = more
        taken, given = _Layout(stride, distance), _Layout(result_stride, result_distance)
        assert rank == 1
        self.plans[plan._as_parameter_] = _Plan(TransformKind(kind), lengths[0], taken, given, transforms)
        size._obj.value = self.scratch
        return 0

    def _note(self, known: dict[int, int], plan: Any, value: int) -> int:
        known[plan._as_parameter_] = value
        return 0

    def _execute(self, kind: TransformKind, plan: Any, source: Any, result: int, direction: int = FORWARD) -> int:
        number, source = plan._as_parameter_, source._as_parameter_.value
        known, area = self.plans[number], self._areas[number]
        if known is None or known.kind is not kind:
            return INVALID_PLAN
        if source % 8 or result % 8 or area % 256:
            return INVALID_VALUE
        self.executed.append(known)
        self._driver._queue(self._streams[number], partial(self._transform, known, source, result, area, direction))
        return 0

    def _transform(self, plan: _Plan, source: int, result: int, area: int, direction: int) -> None:
        memory = self._driver.memory
        memory.write(area, np.arange(self.scratch), np.full(self.scratch, 0xEE, np.uint8))
        half = plan.length // 2 + 1
        places = plan.taken.places(plan.transforms, half if plan.kind is TransformKind.TO_REAL else plan.length)
        real = np.dtype(np.float32)
        if plan.kind is TransformKind.FROM_REAL:
            x = memory.read(source, 4 * places, real)
        else:
            x = memory.read(source, 8 * places, real) + 1j * memory.read(source, 8 * places + 4, real)
        found: Any
        if plan.kind is TransformKind.TO_REAL:
            ends = x[:, [0] if plan.length % 2 else [0, -1]]
            found = (
                np.full((len(x), plan.length), np.nan)
                if ends.imag.any()
                else np.fft.irfft(x, plan.length, norm="forward")
            )
        elif plan.kind is TransformKind.FROM_REAL:
            found = np.fft.rfft(x)
        else:
            found = np.fft.fft(x) if direction == FORWARD else np.fft.ifft(x, norm="forward")
        there = plan.given.places(plan.transforms, found.shape[1])
        if plan.kind is TransformKind.TO_REAL:
            memory.write(result, 4 * there, found.astype(np.float32))
        else:
            memory.write(result, 8 * there, found.real.astype(np.float32))
            memory.write(result, 8 * there + 4, found.imag.astype(np.float32))
