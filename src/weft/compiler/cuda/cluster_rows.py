"""Kernels in which each row is done by a cluster of blocks. The blocks divide the chunks of a long row, and the total
of each chunk is sent to all blocks.

A cluster does only one row, so totals that a block sends never overwrite totals of an earlier row that others still
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.long_rows import LongRowsWriter
from weft.compiler.cuda.messages import Messages
from weft.compiler.cuda.row_values import folding_passes, message_bytes
from weft.compiler.cuda.threads import special
from weft.dtypes import Dtype


class ClusterRowsWriter(LongRowsWriter):
    """The writer of such kernels. Each pass that folds has its own barrier, which counts the totals of all chunks."""

    def _begin_threads(self) -> None:
        super()._begin_threads()
        e, self.leads_block, self.has_met = self.e, self.leads, False
        folding = len(folding_passes(self.kernel, self.passes))
        rank = special(e, "cluster.ctarank")
        of_first_block = e.assign(f"mul i64 {self.first_chunk}, {self.schedule.cluster}")
        self.first_chunk = e.assign(f"add i64 {of_first_block}, {rank}")
        self.leads = e.assign(f"icmp eq i64 {e.assign(f'or i64 {self.thread}, {rank}')}, 0")
        self.barriers, self.messages = iter(range(folding)), Messages(e, folding)
        self.messages.begin(self.leads_block)

    @contextmanager
    def _units(self) -> Iterator[str]:
        unit = special(self.e, "clusterid.x")
        with self.e.when(self.e.assign(f"icmp slt i64 {unit}, {self.number('units')}")):
            yield unit

    def _begin_totals(self, chunks: str, states: Sequence[Accumulator]) -> None:
        if not self.has_met:
            self.messages.meet()
        self.has_met, self.barrier = True, next(self.barriers)
        size = sum([message_bytes(dtype) for state in states for dtype, _ in state.identity])
        with self.e.when(self.leads_block):
            self.messages.expect(self.barrier, self.e.assign(f"mul i64 {chunks}, {size}"))

    def _wait_for_totals(self) -> None:
        self.messages.wait(self.barrier)

    def _end_totals(self) -> None:
        """Do nothing: the memory of these totals is not written again."""

    def _wait_for_reads(self) -> None:
        """Do nothing: values that a row has only one of never overwrite loaded memory (`CudaSchedule.reads_first`)."""

    def _bytes_of_total(self, dtype: Dtype) -> int:
        return message_bytes(dtype)

    def _put(self, parts: Sequence[Value], pointers: Sequence[str], chunk: str) -> None:
        """Send the total of a chunk to all blocks, to each one from another thread."""
        e = self.e
        with e.when(e.assign(f"icmp slt i64 {self.team.number}, {self.schedule.cluster}")):
            block = e.assign(f"trunc i64 {self.team.number} to i32")
            for part, pointer in zip(parts, pointers, strict=True):
                self.messages.send(part, self._place(pointer, chunk, part.dtype), self.barrier, block)

    def _total(self, pointer: str, chunk: str, dtype: Dtype) -> str:
        return self.messages.read(self._place(pointer, chunk, dtype), dtype)

    def _place(self, pointer: str, chunk: str, dtype: Dtype) -> str:
        return self.e.assign(f"getelementptr i{8 * message_bytes(dtype)}, ptr {pointer}, i64 {chunk}")
