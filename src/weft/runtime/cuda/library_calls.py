"""Steps that a library of NVIDIA computes, in the plans of a card."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from weft.runtime.atomic import Action
from weft.runtime.cuda.queues import Queue
from weft.runtime.steps import Place


class LibraryCall(ABC):
    """What the library is asked for, without addresses. Two are equal if they ask for the same of the same places. One
    that is a tuple of numbers and tuples can be worked out for other extents (see `compiler/templates.py`).

    ``title`` says what is computed, for errors. ``places`` are slots of the run's table, and how many bytes behind the
    addresses there the memory begins that the library is given: operands, results, scratch memory of the plan.

    The first run with new addresses queues what `queued` gives for them. When the same addresses come again, that is
    captured into a graph, unless it ``is_captured`` is false, and from then on the graph is launched.
    """

    title: str
    places: tuple[Place, ...]
    is_captured = True

    @abstractmethod
    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        """The native calls that queue the work on a queue, for the addresses of ``places``. They give a code, 0 if all
        is well. The context of the card is that of the calling thread.

        What native code reads when it is called (descriptors, numbers of the host) must live as long as the arguments
        of a call. What belongs to a queue, such as a handle of the library, is kept in ``queue.handles``; what may be
        shared by all queues of a card, in ``queue.shared``.
        """

    @abstractmethod
    def check(self, code: int) -> None:
        """Raise what a code other than 0 means, with the ``title``."""

    def addresses(self, slots: Sequence[int]) -> list[int]:
        """Those of ``places``, in a run whose table has these ``slots``."""
        return [slots[slot] + offset for slot, offset in self.places]
