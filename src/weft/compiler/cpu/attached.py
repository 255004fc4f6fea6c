"""Kernels that a step calls for each rectangle of its result, as soon as it is made.

A section after the numbers of the step describes the kernel: its address, its numbers, and which of these change from
rectangle to rectangle. They are changed in a copy on the stack, so the same code of a kernel serves all its uses.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.primitives.routine import Attached

MOST_NUMBERS = 512
"""An attached kernel may have at most this many numbers: the stack has room for them."""

# The positions of a section. After them come the numbers of the kernel, then pairs of a position and what is added
# there for each lane before the first one, then the positions of the offsets of accesses to the result.
CODE, SCRATCH, PITCH, TURNED, UNITS, LANE, COUNT, SHIFTS, READS, HEAD = range(10)

NONE = (0,) * HEAD
"""The section of a step without an attached kernel."""

# Where the result is made: 0 is in memory, USED in scratch memory, REUSED in scratch that each rectangle uses again.
USED, REUSED = 1, 2


class Lines(NamedTuple):
    """The rows, or if ``turned`` the columns, of a result that are the units of an attached kernel.

    A matrix has ``units`` of them. In scratch memory they are ``pitch`` elements apart, and the scratch memory may be
    ``reused`` from rectangle to rectangle.
    """

    units: int
    turned: bool
    pitch: int
    reused: bool = False


def section(attached: Attached | None, lines: Lines) -> tuple[int, ...]:
    """The section for a kernel. A result that is not made in memory is in scratch memory of the step."""
    if attached is None:
        return NONE
    numbers, shifts = list(attached.numbers), attached.shifts
    if not attached.in_memory:
        lanes = numbers[attached.lane]
        for _, strides in attached.reads:
            for position in strides:
                numbers[position] = numbers[position] // lanes * lines.pitch
        offsets = {offset for offset, _ in attached.reads}
        shifts = tuple([shift for shift in shifts if shift[0] not in offsets])
    scratch = 0 if attached.in_memory else REUSED if lines.reused else USED
    head = [attached.code, scratch, lines.pitch, int(lines.turned), lines.units, attached.lane, len(numbers)]
    changed = [number for shift in shifts for number in shift] + [offset for offset, _ in attached.reads]
    return (*head, len(shifts), len(attached.reads), *numbers, *changed)


def caller(size: int) -> EmittedFunction:
    """The function that calls the kernel of a section for a rectangle of a matrix. Elements have ``size`` bytes, and if
    they are in scratch memory, they begin at ``%made``."""
    code = _Caller(Emitter())
    code.write(size)
    parameters = ", ".join(["ptr %section", "ptr %table", *[f"i64 {name}" for name in _RECTANGLE], "ptr %made"])
    return code.e, code.e.function("call_attached", parameters, "internal ")


_RECTANGLE = ("%matrix", "%row", "%rows", "%column", "%columns")


class _Caller(Integers):
    """Writes the function `caller`."""

    def write(self, size: int) -> None:
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
            before = self.multiply(begin, self.multiply(self.head(PITCH), size))
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
