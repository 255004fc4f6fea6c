"""Messages between the blocks of a cluster: numbers that one block writes to the shared memory of another one.

A barrier of the cluster makes everything that its threads wrote visible to all others, which takes microseconds. With
messages, only the numbers sent become visible: a barrier in the shared memory of the block that receives them (an
*mbarrier* of PTX) counts the bytes that have arrived.
"""

from __future__ import annotations

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.row_values import message_bytes, register_bytes
from weft.compiler.cuda.threads import as_word, from_word
from weft.dtypes import Dtype

BARRIERS = "@weft.barriers"

BARRIER_BYTES = 8

_SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
"""The PTX instruction. LLVM has no intrinsic for it."""


class Messages:
    """Messages with ``count`` barriers in each block of a cluster. Each barrier is used once."""

    def __init__(self, e: Emitter, count: int) -> None:
        self.e, self.count = e, count
        e.declarations[BARRIERS] = (
            f"{BARRIERS} = internal addrspace(3) global [{BARRIER_BYTES * count} x i8] undef, align {BARRIER_BYTES}"
        )

    def begin(self, leads: str) -> None:
        """Let one thread of the block (where ``leads`` is true) initialise the block's barriers."""
        e = self.e
        with e.when(leads):
            for number in range(self.count):
                arguments = [("ptr addrspace(3)", self._barrier(number)), ("i32", "1")]
                e.call("llvm.nvvm.mbarrier.init.shared", "void", arguments)
            e.call("llvm.nvvm.fence.mbarrier_init.release.cluster", "void", [])
        e.call("llvm.nvvm.barrier.cluster.arrive.relaxed.aligned", "void", [])

    def meet(self) -> None:
        """Wait until all blocks of the cluster have initialised their barriers. Nothing may be sent before."""
        self.e.call("llvm.nvvm.barrier.cluster.wait.aligned", "void", [])

    def expect(self, number: int, size: str) -> None:
        """Let a barrier of this block wait for ``size`` bytes, some of which may have arrived. One thread calls
        this."""
        size = self.e.assign(f"trunc i64 {size} to i32")
        name = "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"
        self.e.call(name, "i64", [("ptr addrspace(3)", self._barrier(number)), ("i32", size)])

    def send(self, value: Value, pointer: str, number: int, block: str) -> None:
        """Write a value to the shared memory of a block, given by its rank in the cluster as an ``i32``. The location
        is that of ``pointer`` in this block. A barrier of the other block counts the bytes."""
        near = self.e.assign(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
        target, barrier = self._of_block(near, block), self._of_block(self._barrier(number), block)
        type_, word = self._as_message(value)
        register = "r" if type_ == "i32" else "l"
        self.e.emit(
            f'call void asm sideeffect "{_SEND}.b{type_[1:]} [$0], $1, [$2];", "l,{register},l,~{{memory}}"'
            f"(ptr addrspace(7) {target}, {type_} {word}, ptr addrspace(7) {barrier})"
        )

    def wait(self, number: int) -> None:
        """Wait until all bytes that a barrier of this block expects have arrived and are visible."""
        e, waiting = self.e, self.e.slot("i1")
        e.store("i1", "true", waiting)
        arguments = [("ptr addrspace(3)", self._barrier(number)), ("i32", "0")]
        with e.repeat_while(waiting):
            done = e.call("llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta", "i1", arguments)
            e.store("i1", e.assign(f"xor i1 {done}, true"), waiting)

    def read(self, pointer: str, dtype: Dtype) -> str:
        """Load a number that was sent to this block."""
        type_ = REGISTER_TYPES[dtype]
        if register_bytes(dtype) == message_bytes(dtype):
            return self.e.load(type_, pointer)
        return from_word(self.e, self.e.load("i32", pointer), type_)

    def _as_message(self, value: Value) -> tuple[str, str]:
        """The value as an integer that can be sent: its type and register."""
        type_ = REGISTER_TYPES[value.dtype]
        if type_ == "double":
            return "i64", self.e.assign(f"bitcast double {value.name} to i64")
        return (type_, value.name) if type_ == "i64" else ("i32", as_word(self.e, value.name, type_))

    def _barrier(self, number: int) -> str:
        return self.e.assign(f"getelementptr i8, ptr addrspace(3) {BARRIERS}, i64 {BARRIER_BYTES * number}")

    def _of_block(self, pointer: str, block: str) -> str:
        """The same location in the shared memory of another block."""
        arguments = [("ptr addrspace(3)", pointer), ("i32", block)]
        return self.e.call("llvm.nvvm.mapa.shared.cluster", "ptr addrspace(7)", arguments)
