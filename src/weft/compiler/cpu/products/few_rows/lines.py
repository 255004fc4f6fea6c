"""The kernel of products of few rows that reads whole lines of columns whose terms are neighbours in memory: see
`kernel`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.cpu.memory import keep_order
from weft.compiler.cpu.overlapping import evenly, run

from .kernel import FewRowsKernel


class LinesKernel(FewRowsKernel):
    """Reads both halves of each line of a square one after the other: the first cache, which does not hold the lines of
    all columns, would have lost a line when its second half is read later. Nothing is prefetched for the same
    reason."""

    def _sum_in_turns(self, starts: Sequence[str], pointers: Sequence[str], count: str) -> None:
        half = self._terms_of_square() // 2
        with self.e.loop("0", count, 2 * half) as term:
            here = self._at(starts, term)
            for sums in self.sums_of_row:
                lines = self._lines(self._of_vector(pointers, sums[1]), term)
                first, second = [self._turn(here, lines, start, sums) for start in (0, half)]
                run(evenly(first.reading, second.reading))
                run([*first.transposing, *evenly(second.transposing, first.adding), *second.adding])
                keep_order(self.e)
