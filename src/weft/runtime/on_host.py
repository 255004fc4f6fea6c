"""Steps of the CPU in a plan of another device: they run on copies of the memory that they touch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.errors import CancelledError
from weft.runtime.host import host
from weft.runtime.memory import Buffer
from weft.runtime.steps import OnHost, Step, Table

Copy = Callable[[int, int, int], object]
"""Copies: the address on the device, that on the host, how many bytes."""


class HostStep:
    """A step whose code is `OnHost`."""

    def __init__(self, step: Step) -> None:
        code: OnHost = step.code
        self._steps = host.seal([Step(code.code, step.numbers, step.units, step.grain)])
        self._touched = code.touched
        self._spans: dict[int, tuple[int, int]] = {}
        """For each slot, where the memory that is touched begins and ends."""
        for slot, low, high, *_ in code.touched:
            before = self._spans.get(slot, (low, high))
            self._spans[slot] = min(before[0], low), max(before[1], high)

    def run(self, slots: Sequence[int], copy_out: Copy, copy_in: Copy) -> None:
        """Run it for the ``slots`` of a run, which name memory of the device."""
        buffers = {slot: Buffer(host, high - low) for slot, (low, high) in self._spans.items()}
        bases = {slot: buffer.address - self._spans[slot][0] for slot, buffer in buffers.items()}
        for slot, low, high, read, written in self._touched:
            # What is written may be a part only, so the rest has to be there before it is copied back.
            if (read or written) and high > low:
                copy_out(slots[slot] + low, bases[slot] + low, high - low)
        table = Table(self._steps, [bases.get(slot, entry) for slot, entry in enumerate(slots)])
        if host.run(self._steps, table) != 1:
            raise CancelledError
        for slot, low, high, _, written in self._touched:
            if written and high > low:
                copy_in(slots[slot] + low, bases[slot] + low, high - low)
