"""Shared by the kernels of routines: threads of a block, shared memory, units, votes of a warp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.integers import Integers
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.cuda.nests import entry_of
from weft.compiler.cuda.threads import ALL, WARP, let_next_begin, special, synchronize_block, wait_for_kernels


class BlockCode(Integers):
    """Writes a kernel whose blocks have ``threads`` threads. Numbers inside a block are ``i32``, others ``i64``.
    Threads get few enough registers for ``blocks`` blocks to fit on a multiprocessor."""

    waits_first = True
    """Whether the kernel begins by waiting for the kernels before it. If not, its code must wait in all blocks."""

    def __init__(self, threads: int, blocks: int = 1) -> None:
        super().__init__(Emitter(for_gpu=True))
        self._numbers_read = 0
        self.threads, self.warps, self._blocks = threads, threads // WARP, blocks
        self.scalar = Lanes(self.e, 1)
        self.thread = self.e.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32", [])
        self.lane, self.warp = self.word("and", self.thread, WARP - 1), self.word("lshr", self.thread, 5)
        self._begin()

    def _begin(self) -> None:
        """What each thread does first."""
        let_next_begin(self.e)
        if self.waits_first:
            wait_for_kernels(self.e)

    def number(self, position: int | str) -> str:
        self._numbers_read = max(self._numbers_read, int(position) + 1)
        return super().number(position)

    def word(self, operation: str, left: str | int, right: str | int) -> str:
        """Arithmetic on ``i32``, or a comparison such as ``icmp ult``."""
        return self.e.assign(f"{operation} i32 {left}, {right}")

    def wide(self, word: str) -> str:
        """An unsigned ``i32`` as ``i64``."""
        return self.e.assign(f"zext i32 {word} to i64")

    def narrow(self, number: str) -> str:
        """The lower half of an ``i64``."""
        return self.e.assign(f"trunc i64 {number} to i32")

    def chosen(self, condition: str, yes: str | int, no: str | int) -> str:
        return self.e.assign(f"select i1 {condition}, i32 {yes}, i32 {no}")

    def at(self, pointer: str, index: str | int, type_: str = "i32") -> str:
        """``pointer`` moved by a number of elements, which is an ``i32``."""
        return self.e.assign(f"getelementptr {type_}, ptr {pointer}, i32 {index}")

    def global_memory(self, position: int) -> str:
        """The address from two numbers of the step, marked as one in the device's global memory."""
        cast = self.e.assign(f"addrspacecast ptr {self.memory(position)} to ptr addrspace(1)")
        return self.e.assign(f"addrspacecast ptr addrspace(1) {cast} to ptr")

    def shared(self, size: int) -> str:
        """A pointer to new shared memory of ``size`` bytes."""
        name = f"@weft.{self.e.fresh('shared')}"
        self.e.declarations[name] = f"{name} = internal addrspace(3) global [{size} x i8] undef, align 16"
        return self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def shared_of_launch(self) -> str:
        """A pointer to the shared memory that a launch provides (`RoutineCode.shared`); it may be more than a kernel
        may declare."""
        name = "@weft_launch"  # without a dot: LLVM keeps external names as they are, and PTX allows no dots
        self.e.declarations[name] = f"{name} = external addrspace(3) global [0 x i8], align 16"
        return self.e.assign(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def synchronize(self) -> None:
        """Wait for the other threads of the block, and see what they wrote to memory."""
        synchronize_block(self.e)

    def synchronize_warp(self) -> None:
        """Wait for the other threads of the warp, and see what they wrote to memory."""
        self.e.call("llvm.nvvm.bar.warp.sync", "void", [("i32", ALL)])

    def add_to(self, pointer: str, word: str) -> str:
        """Add atomically to a number in memory; returns the number before."""
        return self.e.assign(f'atomicrmw add ptr {pointer}, i32 {word} syncscope("device") monotonic')

    def voted(self, condition: str) -> str:
        """The threads of the warp for which a condition holds, one bit for each."""
        return self.e.call("llvm.nvvm.vote.ballot.sync", "i32", [("i32", ALL), ("i1", condition)])

    def taken(self, word: str, lane: str | int) -> str:
        """The ``i32`` that another thread of the warp has."""
        arguments = [("i32", ALL), ("i32", word), ("i32", str(lane)), ("i32", "31")]
        return self.e.call("llvm.nvvm.shfl.sync.idx.i32", "i32", arguments)

    def counted(self, bits: str) -> str:
        """How many bits are set."""
        return self.e.call("llvm.ctpop.i32", "i32", [("i32", bits)])

    def lowest(self, bits: str) -> str:
        """The number of the lowest bit that is set; at least one must be."""
        return self.e.call("llvm.cttz.i32", "i32", [("i32", bits), ("i1", "true")])

    def sum_of_lanes_before(self, word: str) -> tuple[str, str]:
        """The sum of ``word`` over the threads of the warp before this one, and over all of them."""
        total, distance = word, 1
        while distance < WARP:
            other = self.taken(total, self.word("and", self.word("sub", self.lane, distance), WARP - 1))
            joins = self.word("icmp uge", self.lane, distance)
            total = self.word("add", total, self.chosen(joins, other, 0))
            distance *= 2
        return self.word("sub", total, word), self.taken(total, WARP - 1)

    def sums_before(self, words: Sequence[str]) -> list[str]:
        """For each of the ``words`` of this thread, the sum of all words before it in the block. The words of a thread
        follow each other, and threads are in order."""
        own = [words[0]]
        for word in words[1:]:
            own.append(self.word("add", own[-1], word))
        before, of_warp = self.sum_of_lanes_before(own[-1])
        if self.warps > 1:
            before = self.word("add", before, self._sum_of_warps_before(of_warp))
        return [before, *[self.word("add", before, word) for word in own[:-1]]]

    def _sum_of_warps_before(self, word: str) -> str:
        memory = self.shared(4 * WARP)
        with self.e.when(self.word("icmp eq", self.lane, 0)):
            self.e.store("i32", word, self.at(memory, self.warp))
        self.synchronize()
        is_there = self.word("icmp ult", self.lane, self.warps)
        found = self.e.load("i32", self.at(memory, self.chosen(is_there, self.lane, 0)))
        before, _ = self.sum_of_lanes_before(self.chosen(is_there, found, 0))
        self.synchronize()
        return self.taken(before, self.warp)

    @contextmanager
    def tickets(self, counter: str, count: str) -> Iterator[str]:
        """Blocks take units in the order in which they arrive, by adding to a counter in memory that begins at zero.
        Yields the number of a unit. A unit may wait for earlier ones: they are done, or some block is working on
        them."""
        e, memory, ticket, waiting = self.e, self.shared(8), self.e.slot("i64"), self.e.slot("i1")
        self._take(counter, count, memory, ticket, waiting)
        with e.repeat_while(waiting):
            yield e.load("i64", ticket)
            self._take(counter, count, memory, ticket, waiting)

    def _take(self, counter: str, count: str, memory: str, ticket: str, waiting: str) -> None:
        e = self.e
        with e.when(self.word("icmp eq", self.thread, 0)):
            e.store("i64", e.assign(f'atomicrmw add ptr {counter}, i64 1 syncscope("device") monotonic'), memory)
        self.synchronize()
        taken = e.load("i64", memory)
        self.synchronize()
        e.store("i64", taken, ticket)
        e.store("i1", self.compare("slt", taken, count), waiting)

    @contextmanager
    def units(self, count: str) -> Iterator[str]:
        """Units are divided among blocks: each takes every n-th, if there are n blocks. Yields the number of a unit."""
        with self.e.loop(special(self.e, "ctaid.x"), count, special(self.e, "nctaid.x")) as unit:
            yield unit

    def finished(self, name: str) -> str:
        """The text of the module."""
        attributes = f'nounwind "nvvm.maxntid"="{self.threads}" "nvvm.minctasm"="{self._blocks}"'
        return module([self.e], [self.e.function(name, entry_of(self._numbers_read), "ptx_kernel ", attributes)])
