"""What the target of CUDA makes, and the engine of a card loads and launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class CopyPlaces(NamedTuple):
    """Where among the numbers of a step that copies elements as they are the slot and the offset are of what it reads,
    and those of what it writes; and which ones are strides of both, pairwise."""

    source: tuple[int, int]
    target: tuple[int, int]
    strides: tuple[tuple[int, int], ...]

    @property
    def flat(self) -> tuple[int, ...]:
        """All of them, one after the other."""
        return (*self.source, *self.target, *[place for pair in self.strides for place in pair])

    @classmethod
    def of(cls, flat: Sequence[int]) -> CopyPlaces | None:
        """The opposite of `flat`; None if there are none."""
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        return cls(pairs[0], pairs[1], tuple(pairs[2:])) if pairs else None


@dataclass(frozen=True, slots=True, eq=False)
class CudaCode:
    """A kernel for NVIDIA GPUs. Two are the same if they are one object.

    ``title`` says what it computes, for errors. ``ptx`` is its text, or machine code (a cubin) once it was assembled.
    The entry ``name`` takes two addresses of the device: that of the numbers of the step (64-bit integers, as on the
    CPU), and that of the slots of the run: 64-bit addresses and constants. A block has ``threads`` threads, and
    ``shared`` bytes of shared memory besides what the code itself declares. So many blocks as a ``cluster`` has do a
    unit together.

    The units of a step are shared by blocks: block ``b`` of ``n`` does units ``b``, ``b + n``, and so on, so that every
    number of blocks is right. If blocks may ``queue``, there are as many as the step has grains of units: one that ends
    makes room for the next, and all that run are at places of memory near each other, which is faster than as many
    blocks as the card holds at once. Else there are no more than these.

    ``copied`` tells of a copy when it has nothing to do: where an update got the memory of what it updates.
    """

    ptx: str | bytes
    name: str
    threads: int
    shared: int = 0
    title: str = ""
    cluster: int = 1
    queue: bool = False
    copied: CopyPlaces | None = None

    def blocks(self, units: int, grain: int, most: int) -> int:
        """How many blocks a launch has on a card that holds ``most`` at once."""
        if self.cluster > 1:
            return max(1, units) * self.cluster  # how many clusters a card holds depends on where blocks find room
        if self.queue:
            return max(1, -(-units // grain), min(units, most))
        return max(1, min(-(-units // grain), most))
