"""The running state of a reduction or a scan in generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.kernel import CHUNK, VIRTUAL_LANES, Instruction, depends_on_order


class Running:
    """The state of a reduction or a scan, in stack slots that LLVM turns into registers. If several ``vectors`` of
    lanes are done side by side, the slots hold the state of the current one, and `save` and `recall` move it to and
    from memory."""

    def __init__(self, generator: Any, instruction: Instruction, L: Lanes, vectors: int = 0) -> None:
        self.g = generator
        self.instruction = instruction
        self.vectors = vectors
        self.reducer = instruction.primitive.reducer
        elements = generator.kernel.instructions[instruction.inputs[0]].dtype
        self.identity = self.reducer.identity(instruction.params.get("of", elements))
        self.L = L
        types = [self.L.type_of(dtype) for dtype, _ in self.identity]
        self.slots = [generator.e.slot(type_) for type_ in types]
        self.memory = [generator.e.slot(f"[{vectors} x {type_}]") for type_ in types if vectors]
        if not vectors:
            self.begin()

    def begin(self) -> None:
        """Set the state to the identity."""
        self.write([self.L.constant(value, dtype) for dtype, value in self.identity])

    def recall(self) -> None:
        """Load the saved state of the current lanes."""
        for type_, pointer, slot in self._saved():
            self.g.e.store(type_, self.g.e.load(type_, pointer), slot)

    def save(self) -> None:
        """Save the state of the current lanes."""
        for type_, pointer, slot in self._saved():
            self.g.e.store(type_, self.g.e.load(type_, slot), pointer)

    def _saved(self) -> list[tuple[str, str, str]]:
        """Type, address and slot of each part of the state, for the current lanes."""
        if not self.memory:
            return []
        e = self.g.e
        lane = e.assign(f"sub i64 {self.g.lane_index}, {self.g.first_lane}")
        number = e.assign(f"udiv i64 {lane}, {self.L.width}")
        types = [self.L.type_of(dtype) for dtype, _ in self.identity]
        pointers = [
            e.assign(f"getelementptr {type_}, ptr {memory}, i64 {number}")
            for type_, memory in zip(types, self.memory, strict=True)
        ]
        return list(zip(types, pointers, self.slots, strict=True))

    def write(self, values: Sequence[Value]) -> None:
        for slot, value in zip(self.slots, values, strict=True):
            self.g.e.store(self.L.type_of(value.dtype), value.name, slot)

    def read(self) -> tuple[Value, ...]:
        pairs = zip(self.slots, self.identity, strict=True)
        return tuple([Value(self.L, self.g.e.load(self.L.type_of(dtype), slot), dtype) for slot, (dtype, _) in pairs])

    def finished(self, L: Lanes, values: tuple[Any, ...], instruction: Instruction) -> Any:
        """The result of an instruction: the finished state, or one part of it."""
        part = instruction.params.get("part")
        return self.reducer.finish(L, values, instruction.dtype) if part is None else values[part]


class Accumulator(Running):
    """The state of one reduction. If rows are folded ``in_chunks``, or sweeps ``in_parts``, it is that of the current
    chunk or part, and ``totals`` is the state of all before it."""

    def __init__(self, generator: Any, instruction: Instruction, vectors: int = 0) -> None:
        lanes_reduced = generator.kernel.lane == "reduced"
        L = generator.vector if lanes_reduced or instruction.varying else generator.scalar
        super().__init__(generator, instruction, L, vectors)
        self.in_chunks, self.in_parts = generator.folds_chunks(instruction), generator.folds_parts(instruction)
        if self.in_chunks or self.in_parts:
            self.totals = Running(generator, instruction, L, vectors)

    @property
    def depends_on_order(self) -> bool:
        """Whether the bits of the result depend on how elements are grouped."""
        return depends_on_order(self.g.kernel, self.instruction)

    def lifted(self) -> tuple[Any, ...]:
        """The current element (of each lane) as a state."""
        inputs = [self.g.fitted(self.g.values[value], self.L) for value in self.instruction.inputs]
        index = inputs.pop() if self.reducer.needs_index else None
        found: tuple[Any, ...] = self.reducer.lift(self.L, *inputs, index)
        return found

    def step(self) -> None:
        """Fold the current element (of each lane) in."""
        g, L = self.g, self.L
        here, before = self.lifted(), self.read()
        after = self.reducer.later(L, before, here)
        if g.mask is not None and g.kernel.lane == "reduced":
            mask = Value(L, g.mask, dtypes.bool_)
            after = tuple([L.select(mask, new, old) for new, old in zip(after, before, strict=True)])
        self.write(after)

    def end_chunk(self, first: str) -> None:
        """Join the state of the chunk that begins at lane ``first`` with the totals. Chunks go to the lanes of the
        totals in turn."""
        total = self.g.crossing.folded(self.read(), self.reducer.merge)
        number = self.g.e.assign(f"and i64 {self.g.e.assign(f'udiv i64 {first}, {CHUNK}')}, {VIRTUAL_LANES - 1}")
        self.totals.write(self.g.crossing.joined(self.totals.read(), total, number, self.reducer.merge))
        self.begin()

    def end_part(self, before: Accumulator | None = None) -> None:
        """Join the state of a part of a sweep with the totals: its own ones, or those of ``before``."""
        totals = self.totals if before is None else before.totals
        totals.write(self.reducer.merge(self.L, totals.read(), self.read()))
        self.begin()

    def result(self, instruction: Instruction) -> Any:
        """The finished value. Reduced lanes are folded first, one half with the other."""
        values: tuple[Any, ...] = self.totals.read() if self.in_chunks or self.in_parts else self.read()
        L: Lanes = self.L
        if self.g.kernel.lane == "reduced":
            L, values = self.g.scalar, self.g.crossing.folded(values, self.reducer.merge)
        return self.finished(L, values, instruction)
