"""Steps of a card's plan that a library of NVIDIA computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from weft.runtime.atomic import Action
from weft.runtime.cuda.queues import Queue
from weft.runtime.steps import Place


class LibraryCall(ABC):
    """The request to the library, without addresses. Two calls are equal if they request the same work at the same
    ``places``. A call that consists of nested tuples of numbers can be adapted to other extents (see
    `compiler/planning/templates.py`).

    ``title`` says what is computed, for error messages. ``places`` are the slots and offsets in bytes of the memory
    that the library gets: operands, results, scratch memory of the plan.

    The first run with new addresses runs the actions of `queued`. When the same addresses come again, these are
    captured into a graph, unless ``is_captured`` is false; later runs launch the graph.
    """

    title: str
    places: tuple[Place, ...]
    is_captured = True

    @abstractmethod
    def queued(self, addresses: Sequence[int], queue: Queue) -> list[Action]:
        """Native calls that queue the work on a queue, for the addresses of ``places``. Each returns a code, which is 0
        if it succeeded. The card's context is the current one of the calling thread.

        What native code reads when it is called (descriptors, numbers of the host) must live as long as the arguments
        of a call. Store what belongs to one queue, such as a handle of the library, in ``queue.handles``, and what all
        queues of a card may share in ``queue.shared``.
        """

    @abstractmethod
    def check(self, code: int) -> None:
        """Raise the error of a code other than 0, with the ``title``."""

    def addresses(self, slots: Sequence[int]) -> list[int]:
        """The addresses of ``places`` in a run whose table has these ``slots``."""
        return [slots[slot] + offset for slot, offset in self.places]
