"""Code that the CUDA target makes, and that the engine of a card loads and launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_WAITS = "griddepcontrol.wait"
"""The instruction of PTX that waits for the kernels before."""

_BY_VALUE = ".param .align 8 .b8"
"""The text that PTX contains if a parameter is not an address, but the numbers of a step themselves."""


class CopyPlaces(NamedTuple):
    """Positions among the numbers of a step that copies elements unchanged: of the slots and offsets of what it reads
    and writes, and of the strides, as pairs of one that is read and one that is written."""

    source: tuple[int, int]
    target: tuple[int, int]
    strides: tuple[tuple[int, int], ...]

    @property
    def flat(self) -> tuple[int, ...]:
        """All positions in one tuple."""
        return (*self.source, *self.target, *[place for pair in self.strides for place in pair])

    @classmethod
    def of(cls, flat: Sequence[int]) -> CopyPlaces | None:
        """The inverse of `flat`; None if it is empty."""
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        return cls(pairs[0], pairs[1], tuple(pairs[2:])) if pairs else None


@dataclass(frozen=True, slots=True, eq=False)
class CudaCode:
    """A kernel for NVIDIA GPUs. It is equal only to itself, so that the object is its identity.

    ``title`` says what it computes, for error messages. ``ptx`` is its text. The entry ``name`` has
    two parameters: the numbers of the step (64-bit integers, as on the CPU), or their device address if there are too
    many, and the device address of the slots of the run (64-bit addresses and constants). A block has ``threads``
    threads, and ``shared`` bytes of shared memory besides what the code itself declares. ``cluster`` blocks do a unit
    together.

    Blocks share the units of a step: block ``b`` of ``n`` does the units ``b``, ``b + n``, and so on, so that any
    number of blocks gives the same result. If ``queue`` is set, there is one block for each grain of units, and the
    card starts a block when another one ends: the blocks that run at one time then work on neighbouring memory, which
    is faster. Otherwise there are at most as many blocks as the card holds at once. A cluster does one unit.

    ``copied`` tells when a copy has nothing to do, because an update writes to the memory of what it updates.
    """

    ptx: str
    name: str
    threads: int
    shared: int = 0
    title: str = ""
    cluster: int = 1
    queue: bool = False
    copied: CopyPlaces | None = None

    @property
    def waits(self) -> bool:
        """Whether the kernel waits in its own code for the kernels before it."""
        return _WAITS in self.ptx

    @property
    def by_value(self) -> bool:
        """Whether the kernel gets the numbers of a step, not their address."""
        return _BY_VALUE in self.ptx

    def blocks(self, units: int, grain: int, most: int) -> int:
        """How many blocks a launch has on a card that holds at most ``most`` of them at once."""
        if self.cluster > 1:
            return max(1, units) * self.cluster  # how many clusters a card holds depends on where blocks find room
        if self.queue:
            return max(1, -(-units // grain), min(units, most))
        return max(1, min(-(-units // grain), most))
