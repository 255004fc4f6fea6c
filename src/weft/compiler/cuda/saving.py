"""Values that one pass over a row leaves to later ones in the shared memory of a block."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.nests import ThreadWriter
from weft.compiler.cuda.schedule import arranged_in_shared
from weft.compiler.kernel import Instruction
from weft.compiler.passes import Pass

SHARED = "@weft_saved"


class SavingWriter(ThreadWriter):
    """The thread that saves a value is the one that recalls it, so nobody waits for anybody."""

    places: dict[int, str]

    def _make_room(self, current: Pass) -> None:
        schedule = self.schedule
        if not current.saved:
            return
        slots, sizes = arranged_in_shared(self.kernel, self.passes)
        lanes = schedule.lanes_in_shared
        self.e.declarations[SHARED] = f"{SHARED} = external addrspace(3) global [0 x i8], align 16"
        pointer = self.e.assign(f"addrspacecast ptr addrspace(3) {SHARED} to ptr")
        for number in current.saved:
            before = sum(sizes[: slots[number]]) * lanes
            self.places[number] = self.e.assign(f"getelementptr i8, ptr {pointer}, i64 {before}")

    @abstractmethod
    def _saved_index(self) -> str:
        """Where among all lanes of the block the current one is."""

    def _saved_at(self, position: int, instruction: Instruction) -> tuple[str, str]:
        """Type and address of what is saved of a value for the current lane."""
        type_ = REGISTER_TYPES[instruction.dtype]
        return type_, self.e.assign(f"getelementptr {type_}, ptr {self.places[position]}, i64 {self._saved_index()}")

    def _save(self, position: int, instruction: Instruction) -> None:
        type_, pointer = self._saved_at(position, instruction)
        self.e.store(type_, self.values[position].name, pointer)

    def _recall(self, position: int, instruction: Instruction) -> Any:
        type_, pointer = self._saved_at(position, instruction)
        return Value(self.vector, self.e.load(type_, pointer), instruction.dtype)
