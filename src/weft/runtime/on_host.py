"""Steps of the CPU in a plan of another device: they run on host copies of the memory that they touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.errors import CancelledError
from weft.runtime.host import host
from weft.runtime.memory import Buffer
from weft.runtime.steps import OnHost, Step, Table, Touched


class Copy(NamedTuple):
    """A range of ``size`` bytes on the device and its copy on the host."""

    there: int
    here: int
    size: int


class HostSteps:
    """Consecutive steps whose code is `OnHost`: memory that several of them touch, also scratch memory, is copied
    once."""

    def __init__(self, steps: Sequence[Step]) -> None:
        codes: list[OnHost] = [step.code for step in steps]
        self.count = len(steps)
        self._steps = host.seal([Step(step.code.code, step.numbers, step.units, step.grain) for step in steps])
        # Steps may write only a part of a range, so all of it is copied to the host before it is copied back.
        self._needed = _ranges([one for code in codes for one in code.touched if one.read or one.written])
        self._written = _ranges([one for code in codes for one in code.touched if one.written])
        self._spans: dict[int, tuple[int, int]] = {}
        """For each slot, the first byte and the end of the touched memory."""
        for slot, low, high in _ranges([one for code in codes for one in code.touched]):
            before = self._spans.get(slot, (low, high))
            self._spans[slot] = min(before[0], low), max(before[1], high)

    def run(self, slots: Sequence[int], copy_out: Callable[[int, int, int], object]) -> tuple[list[Copy], object]:
        """Run the steps for the ``slots`` of a run, which have addresses of the device. Returns what must be copied
        back, and the object that holds these copies."""
        buffers = {slot: Buffer(host, high - low) for slot, (low, high) in self._spans.items()}
        bases = {slot: buffer.address - self._spans[slot][0] for slot, buffer in buffers.items()}
        for slot, low, high in self._needed:
            copy_out(slots[slot] + low, bases[slot] + low, high - low)
        table = Table(self._steps, [bases.get(slot, entry) for slot, entry in enumerate(slots)])
        if host.run(self._steps, table) != self.count:
            raise CancelledError
        return [Copy(slots[slot] + low, bases[slot] + low, high - low) for slot, low, high in self._written], buffers


def _ranges(touched: Sequence[Touched]) -> list[tuple[int, int, int]]:
    """Each range of bytes once, without empty ones."""
    return list(dict.fromkeys([(one.slot, one.low, one.high) for one in touched if one.high > one.low]))
