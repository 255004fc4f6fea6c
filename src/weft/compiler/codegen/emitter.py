"""Writes the LLVM IR text of functions: names, blocks, loops and stack slots.

Structure of the generated code shows as Python structure: a loop is a ``with`` block, and code that uses an `Emitter`
writes no block labels. The text is written directly because building it with an object model takes ten times as long,
and generating code is a part of a user's first call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Emitter:
    """Collects the body of a function and the declarations that it needs. ``rounds_bfloat16``: the processor has an
    instruction that rounds to bfloat16. ``for_gpu``: it is a GPU."""

    def __init__(self, rounds_bfloat16: bool = False, for_gpu: bool = False) -> None:
        self.rounds_bfloat16, self.for_gpu = rounds_bfloat16 or for_gpu, for_gpu
        self.declarations: dict[str, str] = {}
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._block = "entry"
        self._names = 0

    def fresh(self, prefix: str) -> str:
        """An unused name, without its sigil."""
        self._names += 1
        return f"{prefix}{self._names}"

    def assign(self, instruction: str) -> str:
        """Emit ``instruction`` and return the register that holds its result."""
        self._names += 1
        name = f"%v{self._names}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def emit(self, instruction: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def call(self, function: str, result: str, arguments: list[tuple[str, str]]) -> str:
        """Call an intrinsic or external function; ``arguments`` are pairs of type and value."""
        if function not in self.declarations:
            types = ", ".join(type_ for type_, _ in arguments)
            self.declarations[function] = f"declare {result} @{function}({types})"
        text = ", ".join(f"{type_} {value}" for type_, value in arguments)
        if result == "void":
            self.emit(f"call void @{function}({text})")
            return ""
        return self.assign(f"call {result} @{function}({text})")

    def slot(self, type_: str) -> str:
        """A stack slot in the entry block; LLVM turns it into a register."""
        name = f"%{self.fresh('slot')}"
        self._slots.append(f"  {name} = alloca {type_}")
        return name

    def load(self, type_: str, pointer: str) -> str:
        return self.assign(f"load {type_}, ptr {pointer}")

    def store(self, type_: str, value: str, pointer: str) -> None:
        self.emit(f"store {type_} {value}, ptr {pointer}")

    def begin_block(self, label: str) -> None:
        """Start a block; the block before it falls through into it."""
        self._lines.append(f"  br label %{label}")
        self._lines.append(f"{label}:")
        self._block = label

    @contextmanager
    def loop(self, start: str, stop: str, step: int | str = 1) -> Iterator[str]:
        """``for i in range(start, stop, step)`` over ``i64``; yields the register of ``i``."""
        head, body, done = self.fresh("head"), self.fresh("body"), self.fresh("done")
        before = self._block
        index, following = f"%{self.fresh('i')}", f"%{self.fresh('next')}"
        self._lines.append(f"  br label %{head}")
        self._lines.append(f"{head}:")
        phi = len(self._lines)
        self._lines.append("")
        inside = self.assign(f"icmp slt i64 {index}, {stop}")
        self._lines.append(f"  br i1 {inside}, label %{body}, label %{done}")
        self._lines.append(f"{body}:")
        self._block = body
        yield index
        self._lines.append(f"  {following} = add nsw i64 {index}, {step}")
        self._lines.append(f"  br label %{head}")
        self._lines[phi] = f"  {index} = phi i64 [ {start}, %{before} ], [ {following}, %{self._block} ]"
        self._lines.append(f"{done}:")
        self._block = done

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """``if condition:`` without an else branch."""
        then, done = self.fresh("then"), self.fresh("done")
        self._lines.append(f"  br i1 {condition}, label %{then}, label %{done}")
        self._lines.append(f"{then}:")
        self._block = then
        yield
        self.begin_block(done)

    @contextmanager
    def repeat_while(self, flag: str) -> Iterator[None]:
        """``while flag:`` for an ``i1`` in a stack slot."""
        head, body, done = self.fresh("head"), self.fresh("body"), self.fresh("done")
        self.begin_block(head)
        self._lines.append(f"  br i1 {self.load('i1', flag)}, label %{body}, label %{done}")
        self._lines.append(f"{body}:")
        self._block = body
        yield
        self._lines.append(f"  br label %{head}")
        self._lines.append(f"{done}:")
        self._block = done

    def leave(self) -> None:
        """``return``."""
        self.emit("ret void")
        label = self.fresh("behind")
        self._lines.append(f"{label}:")
        self._block = label

    def function(self, name: str, parameters: str, linkage: str = "", attributes: str = "nounwind") -> str:
        """The finished text of the function."""
        body = "\n".join(["entry:", *self._slots, *self._lines, "  ret void"])
        return f"define {linkage}void @{name}({parameters}) {attributes} {{\n{body}\n}}\n"


def module(emitters: Iterable[Emitter], functions: Iterable[str]) -> str:
    """A module of finished functions, with the declarations that they need."""
    declarations: dict[str, str] = {}
    for emitter in emitters:
        declarations |= emitter.declarations
    return "\n".join([*declarations.values(), "", *functions, "!0 = !{i32 1}", ""])
