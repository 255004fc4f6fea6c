"""Shared by the kernels of products: they load all numbers of the step when they begin."""

from __future__ import annotations

from contextlib import AbstractContextManager

from weft.compiler.cuda.code import BlockCode


class NumberedCode(BlockCode):
    """Writes a kernel that loads ``count`` numbers when it begins. The first one says how many units of work there are.
    ``position`` is the number of the thread in its block, as ``i64``."""

    def __init__(self, threads: int, count: int, blocks: int = 1) -> None:
        self._count = count
        super().__init__(threads, blocks)
        self.position = self.wide(self.thread)

    def _begin(self) -> None:
        self._found = [super(NumberedCode, self).number(position) for position in range(self._count)]
        super()._begin()

    def number(self, position: int | str) -> str:
        return self._found[int(position)]

    def each_unit(self) -> AbstractContextManager[str]:
        """A loop over the units of a block; gives the number of a unit."""
        return self.units(self.number(0))
