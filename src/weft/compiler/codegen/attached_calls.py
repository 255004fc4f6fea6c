"""The function by which the steps of routines call kernels that are attached to them: shared by all, and made once.

A section of numbers describes the kernel: its address, its numbers, and which of these change from rectangle to
rectangle of the result. They are changed in a copy on the stack, so the same code of a kernel serves all its uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.integers import Integers

MOST_NUMBERS = 512
"""An attached kernel may have at most this many numbers: the stack has room for them."""

# The positions of a section. After them come the numbers of the kernel, then pairs of a position and what is added
# there for each lane before the first one, then the positions of the offsets of accesses to the result.
CODE, SCRATCH, PITCH, TURNED, UNITS, LANE, COUNT, SHIFTS, READS, HEAD = range(10)

CALL_ATTACHED = "weft.call_attached"

_RECTANGLE = ("%matrix", "%row", "%rows", "%column", "%columns")


def call(e: Emitter, section: str, rectangle: Sequence[str], made: str, size: int) -> None:
    """Call the kernel of a section for a ``rectangle`` of a result: matrix, row, rows, column, columns. Elements have
    ``size`` bytes, and if they are in scratch memory, they begin at ``made``."""
    integers = [("i64", number) for number in (*rectangle, str(size))]
    e.call(CALL_ATTACHED, "void", [("ptr", section), ("ptr", "%table"), ("ptr", made), *integers])


def text() -> str:
    """The LLVM IR of the function."""
    code = _Caller(Emitter())
    code.write()
    integers = ", ".join([f"i64 {name}" for name in (*_RECTANGLE, "%size")])
    return module([code.e], [code.e.function(CALL_ATTACHED, f"ptr %section, ptr %table, ptr %made, {integers}")])


class _Caller(Integers):
    """Writes the function."""

    def write(self) -> None:
        turned = self.compare("ne", self.head(TURNED), 0)
        row, column = self.either(turned, "%column", "%row"), self.either(turned, "%row", "%column")
        rows, columns = self.either(turned, "%columns", "%rows"), self.either(turned, "%rows", "%columns")
        begin = self.add(self.multiply("%matrix", self.head(UNITS)), row)
        block = self.copied()
        self.set(block, self.head(LANE), columns)
        shifts = self.add(self.head(COUNT), HEAD)
        with self.e.loop("0", self.head(SHIFTS)) as shift:
            pair = self.add(shifts, self.multiply(shift, 2))
            position, step = self.head(pair), self.head(self.add(pair, 1))
            self.set(block, position, self.add(self.get(block, position), self.multiply(column, step)))
        reads = self.add(shifts, self.multiply(self.head(SHIFTS), 2))
        with self.e.when(self.compare("ne", self.head(SCRATCH), 0)):
            before = self.multiply(begin, self.multiply(self.head(PITCH), "%size"))
            start = self.subtract(self.e.assign("ptrtoint ptr %made to i64"), before)
            with self.e.loop("0", self.head(READS)) as read:
                offset = self.head(self.add(reads, read))
                slot = self.get(block, self.subtract(offset, 1))
                entry = self.e.load("i64", self.moved("%table", slot, "i64"))
                self.set(block, offset, self.subtract(start, entry))
        address = self.e.assign(f"inttoptr i64 {self.head(CODE)} to ptr")
        self.e.emit(f"call void {address}(ptr {block}, ptr %table, i64 {begin}, i64 {self.add(begin, rows)})")

    def head(self, position: int | str) -> str:
        """A number of the section."""
        return self.get("%section", position)

    def get(self, numbers: str, position: int | str) -> str:
        return self.e.load("i64", self.moved(numbers, position, "i64"))

    def set(self, numbers: str, position: str, value: str) -> None:
        self.e.store("i64", value, self.moved(numbers, position, "i64"))

    def copied(self) -> str:
        """A copy of the numbers of the kernel on the stack."""
        block = self.e.slot(f"[{MOST_NUMBERS} x i64]")
        with self.e.loop("0", self.head(COUNT)) as position:
            self.set(block, position, self.head(self.add(position, HEAD)))
        return block
