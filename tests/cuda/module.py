"""Reads the text of a module in LLVM IR, as far as kernels for GPUs need it."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

_DTYPES = {
    "i1": np.bool_,
    "i8": np.uint8,
    "i16": np.uint16,
    "i32": np.uint32,
    "i64": np.uint64,
    "ptr": np.uint64,
    "half": np.float16,
    "bfloat": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
}
_TYPE = re.compile(r"<\d+ x \w+>|\[\d+ x \w+\]|ptr addrspace\(\d\)|\w+")
_SYNCHRONIZING = (
    "@llvm.nvvm.shfl",
    "@llvm.nvvm.bar.warp.sync",
    "@llvm.nvvm.barrier.cta",
    "@llvm.nvvm.barrier.cluster.wait",
    "@llvm.nvvm.vote",
)


class Type(NamedTuple):
    """A dtype and the number of elements. A vector may have one element, too."""

    dtype: np.dtype
    lanes: int
    name: str
    is_vector: bool

    @property
    def size(self) -> int:
        return self.dtype.itemsize * self.lanes

    def of_threads(self, count: int) -> tuple[int, ...]:
        """The shape of the values of so many threads."""
        return (count, self.lanes) if self.is_vector else (count,)


@cache
def type_of(text: str) -> Type:
    found = re.fullmatch(r"[<\[](\d+) x (\w+)[>\]]", text)
    lanes, name = (int(found[1]), found[2]) if found else (1, text.split()[0])
    return Type(np.dtype(_DTYPES[name]), lanes, name, text.startswith("<"))


@cache
def typed(text: str) -> tuple[Type, str]:
    """The type at the beginning of a text, and the rest of the text."""
    found = _TYPE.match(text)
    assert found is not None, text
    return type_of(found[0]), text[found.end() :].strip()


@cache
def listed(text: str) -> list[str]:
    """The parts of a text between commas that are outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter in "(<[{") - (letter in ")>]}")
        if letter == "," and not depth:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()] if text.strip() else []


class Instruction(NamedTuple):
    """``result`` is the name of the result or None; ``text`` is the rest of the line after the name of the
    operation."""

    result: str | None
    operation: str
    text: str


class Part(NamedTuple):
    """Instructions that a thread executes without waiting for others, or a single one that ``synchronizes`` threads.
    ``block`` is the number of the basic block that they belong to."""

    block: int
    instructions: list[Instruction]
    synchronizes: bool


class Module:
    """The kernel of a module, cut into parts in the order of the text, and its constants and memory. A launch adds
    ``shared`` bytes of shared memory."""

    def __init__(self, text: str, shared: int = 0) -> None:
        self._shared_of_launch = shared
        self.constants: dict[str, np.ndarray] = {}
        self.shared: dict[str, int] = {}
        self.slots: dict[str, Type] = {}
        self.parts: list[Part] = []
        self.first_part: dict[str, int] = {}
        self.block_of: dict[str, int] = {}
        for line in text.split("\n"):
            self._read(line)
        self.blocks = np.array([part.block for part in self.parts])

    def _read(self, line: str) -> None:
        if found := re.match(r"(@[\w.]+) = internal (?:unnamed_addr )?constant (\[.*?\]) \[(.*)\]", line):
            type_, numbers = type_of(found[2]), [typed(part) for part in listed(found[3])]
            self.constants[found[1]] = np.array([constant(value, kind) for kind, value in numbers], type_.dtype)
        elif found := re.match(r"(@[\w.]+) = internal addrspace\(3\) global (\[.*?\])", line):
            self.shared[found[1]] = type_of(found[2]).size
        elif found := re.match(r"(@[\w.]+) = external addrspace\(3\) global", line):
            self.shared[found[1]] = self._shared_of_launch
        elif found := re.match(r"(\w+):", line):
            self._begin(found[1])
        elif found := re.match(r"  (?:(%\w+) = )?(\w+) ?(?:nsw )?(.*)", line):
            self._add(Instruction(*found.groups()))

    def _begin(self, label: str) -> None:
        self.block_of[label] = len(self.block_of)
        self.first_part[label] = len(self.parts)
        self.parts.append(Part(self.block_of[label], [], False))

    def _add(self, instruction: Instruction) -> None:
        if instruction.operation == "alloca":
            assert instruction.result is not None
            self.slots[instruction.result] = type_of(listed(instruction.text)[0])
            return
        if instruction.operation == "call" and any(name in instruction.text for name in _SYNCHRONIZING):
            block = self.parts[-1].block
            self.parts += [Part(block, [instruction], True), Part(block, [], False)]
        else:
            self.parts[-1].instructions.append(instruction)


@cache
def constant(text: str, type_: Type) -> np.ndarray:
    """The numbers of a constant."""
    if text.startswith("splat ("):
        return constant(*reversed(typed(text[len("splat (") : -1])))
    if text.startswith("<"):
        return np.array([constant(value, kind) for kind, value in map(typed, listed(text[1:-1]))])
    if text in ("poison", "undef", "zeroinitializer", "false", "null"):
        return np.zeros((), type_.dtype)
    if text == "true":
        return np.ones((), type_.dtype)
    if type_.dtype.kind == "f":
        number = np.array(int(text, 16), np.uint64).view(np.float64) if text.startswith("0x") else float(text)
        return np.array(number, type_.dtype)
    return np.array(int(text) & ((1 << 8 * type_.dtype.itemsize) - 1), type_.dtype)
