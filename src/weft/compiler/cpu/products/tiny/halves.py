"""Elements of groups of small matrices of float16, converted in any order."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.memory import from_memory
from weft.compiler.codegen.values import Value

from .elements import TinyElements
from .groups import GroupWriter, shuffled
from .pairs import TinyPairs


class TinyHalves:
    """Reads elements of the operands of the current group of a ``writer``. Those that are near in memory are converted
    before they are shuffled, others are shuffled as what they are in memory."""

    def __init__(self, writer: GroupWriter) -> None:
        self.e, self.L = writer.e, writer.L
        self.near, self.far = TinyElements(writer), TinyPairs(writer)

    def forget(self) -> None:
        """Read elements again from now on, because registers do not hold so many."""
        self.near.forget()
        self.far.forget()

    def vectors(self, operand: str, orders: Sequence[Sequence[int]]) -> list[Value]:
        """For each of ``orders``, a vector of the elements of an operand."""
        found: list[Value] = []
        for start in range(0, len(orders), 2):
            two = [*orders[start : start + 2], orders[-1]][:2]
            near = self.near.are_near(two)
            found += self.near.vectors(operand, two) if near else self._converted(operand, *two)
        return found[: len(orders)]

    def _converted(self, operand: str, one: Sequence[int], other: Sequence[int]) -> list[Value]:
        words, width = self.far.words(operand, one, other), self.L.width
        halves = [shuffled(self.e, [words], range(n, n + width), 2 * width) for n in (0, width)]
        return [Value(self.L, from_memory(self.L, half, dtypes.float16).name, dtypes.float32) for half in halves]
