"""Steps of the CPU in a plan of another device: they run on copies of the memory that they touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.errors import CancelledError
from weft.runtime.host import host
from weft.runtime.memory import Buffer
from weft.runtime.steps import OnHost, Step, Table, Touched


class Copy(NamedTuple):
    """So many bytes at an address on the device and at one on the host."""

    there: int
    here: int
    size: int


class HostSteps:
    """Steps whose code is `OnHost`, one behind the other: what several of them touch, scratch memory too, is copied
    once."""

    def __init__(self, steps: Sequence[Step]) -> None:
        codes: list[OnHost] = [step.code for step in steps]
        self.count = len(steps)
        self._steps = host.seal([Step(step.code.code, step.numbers, step.units, step.grain) for step in steps])
        # What is written may be a part only, so the rest has to be there before it is copied back.
        self._needed = _ranges([one for code in codes for one in code.touched if one.read or one.written])
        self._written = _ranges([one for code in codes for one in code.touched if one.written])
        self._spans: dict[int, tuple[int, int]] = {}
        """For each slot, where the memory that is touched begins and ends."""
        for slot, low, high in _ranges([one for code in codes for one in code.touched]):
            before = self._spans.get(slot, (low, high))
            self._spans[slot] = min(before[0], low), max(before[1], high)

    def run(self, slots: Sequence[int], copy_out: Callable[[int, int, int], object]) -> tuple[list[Copy], object]:
        """Run them for the ``slots`` of a run, which name memory of the device. Returns what is to be copied back, and
        what keeps it there."""
        buffers = {slot: Buffer(host, high - low) for slot, (low, high) in self._spans.items()}
        bases = {slot: buffer.address - self._spans[slot][0] for slot, buffer in buffers.items()}
        for slot, low, high in self._needed:
            copy_out(slots[slot] + low, bases[slot] + low, high - low)
        table = Table(self._steps, [bases.get(slot, entry) for slot, entry in enumerate(slots)])
        if host.run(self._steps, table) != self.count:
            raise CancelledError
        return [Copy(slots[slot] + low, bases[slot] + low, high - low) for slot, low, high in self._written], buffers


def _ranges(touched: Sequence[Touched]) -> list[tuple[int, int, int]]:
    """Each range of bytes once; those without a byte are left out."""
    return list(dict.fromkeys([(one.slot, one.low, one.high) for one in touched if one.high > one.low]))
