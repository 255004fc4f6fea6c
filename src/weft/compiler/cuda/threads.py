"""Threads of a block in LLVM IR: their numbers, barriers, and the exchange of registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.compiler.codegen.crossing import Merge
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.kernel import VIRTUAL_LANES

WARP = 32

WIDEST_COPY = 16
"""The most bytes that a thread copies to shared memory at once."""

ALL = "-1"
"""The mask of all threads of a warp."""


def special(e: Emitter, register: str) -> str:
    """A special register, such as ``tid.x``, as ``i64``."""
    number = e.call(f"llvm.nvvm.read.ptx.sreg.{register}", "i32", [])
    return e.assign(f"zext i32 {number} to i64")


def wait_for_kernels(e: Emitter) -> None:
    """Wait until the kernels before this one have ended, and see what they wrote to memory. A kernel that did not wait
    would let the next one begin too early. Cards before Hopper have neither this instruction nor that of
    `let_next_begin`."""
    e.call("llvm.nvvm.griddepcontrol.wait", "void", [])


def let_next_begin(e: Emitter) -> None:
    """Let the next kernel begin. It waits for this one in turn, and what it does before that takes no extra time."""
    e.call("llvm.nvvm.griddepcontrol.launch.dependents", "void", [])


def synchronize_block(e: Emitter) -> None:
    """Wait for the other threads of the block, and see what they wrote to memory."""
    e.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", [("i32", "0")])


def copy_to_shared(e: Emitter, target: str, source: str, size: int) -> None:
    """Begin to copy 4, 8 or 16 bytes of memory to shared memory."""
    near = e.assign(f"addrspacecast ptr {target} to ptr addrspace(3)")
    far = e.assign(f"addrspacecast ptr {source} to ptr addrspace(1)")
    way = "cg" if size == WIDEST_COPY else "ca"  # the widest copies need no room in the first cache
    name = f"llvm.nvvm.cp.async.{way}.shared.global.{size}"
    e.call(name, "void", [("ptr addrspace(3)", near), ("ptr addrspace(1)", far)])


class Threads:
    """``count`` neighbouring threads of a warp, which exchange registers. The other threads of the warp may be at other
    places in the code, unless all are known to be ``together``. ``number`` is that of a thread within the ``count``."""

    def __init__(self, e: Emitter, thread: str, count: int, together: bool = False) -> None:
        self.e, self.count = e, count
        self.number = e.assign(f"and i64 {thread}, {count - 1}")
        narrow = e.assign(f"trunc i64 {thread} to i32")
        first = e.assign(f"and i32 {narrow}, {WARP - count}")
        self.members = ALL if together else e.assign(f"shl i32 {(1 << count) - 1}, {first}")
        self.leads = e.assign(f"icmp eq i64 {self.number}, 0")

    def synchronize(self) -> None:
        """Wait for the other threads of the group, and see what they wrote to memory."""
        self.e.call("llvm.nvvm.bar.warp.sync", "void", [("i32", self.members)])

    def taken(self, name: str, type_: str, source: str) -> str:
        """The register of another thread of the group, whose number is an ``i32``."""
        if type_ in ("double", "i64"):
            return self._taken_in_halves(name, type_, source)
        return from_word(self.e, self._shuffle(as_word(self.e, name, type_), source), type_)

    def _taken_in_halves(self, name: str, type_: str, source: str) -> str:
        e = self.e
        bits = e.assign(f"bitcast double {name} to i64") if type_ == "double" else name
        parts: list[str] = []
        for shift in (0, 32):
            part = e.assign(f"trunc i64 {e.assign(f'lshr i64 {bits}, {shift}')} to i32")
            parts.append(e.assign(f"zext i32 {self._shuffle(part, source)} to i64"))
        joined = e.assign(f"or i64 {parts[0]}, {e.assign(f'shl i64 {parts[1]}, 32')}")
        return e.assign(f"bitcast i64 {joined} to double") if type_ == "double" else joined

    def _shuffle(self, word: str, source: str) -> str:
        clamp = (WARP - self.count) << 8 | 31  # lanes are numbered within segments (PTX ISA, shfl.sync, operand c)
        arguments = [("i32", self.members), ("i32", word), ("i32", source), ("i32", str(clamp))]
        return self.e.call("llvm.nvvm.shfl.sync.idx.i32", "i32", arguments)


class Team(Threads):
    """Sixteen neighbouring threads that do a row together. Each one is a lane of a `Crossing`."""

    def __init__(self, vector: Lanes, scalar: Lanes, thread: str, together: bool = False) -> None:
        super().__init__(vector.emitter, thread, VIRTUAL_LANES, together)
        self.vector, self.scalar = vector, scalar

    def folded(self, values: tuple[Value, ...], merge: Merge) -> tuple[Value, ...]:
        distance = self.count // 2
        while distance:
            numbers = [(lane + distance) % self.count for lane in range(self.count)]
            values = merge(self.vector, values, tuple([self.shuffled(v, v, numbers.__getitem__) for v in values]))
            distance //= 2
        return tuple([self.lane(value, 0) for value in values])

    def lane(self, value: Value, number: int) -> Value:
        return Value(self.scalar, self.taken(value.name, REGISTER_TYPES[value.dtype], str(number)), value.dtype)

    def with_lane(self, value: Value, element: Value, number: int) -> Value:
        type_ = self.vector.type_of(value.dtype)
        here = self.e.assign(f"icmp eq i64 {self.number}, {number}")
        return Value(
            self.vector, self.e.assign(f"select i1 {here}, {type_} {element.name}, {type_} {value.name}"), value.dtype
        )

    def joined(
        self, values: tuple[Value, ...], elements: tuple[Value, ...], number: str, merge: Merge
    ) -> tuple[Value, ...]:
        here, found = self.e.assign(f"icmp eq i64 {self.number}, {number}"), []
        for value, one in zip(values, merge(self.vector, values, elements), strict=True):
            type_ = self.vector.type_of(value.dtype)
            text = f"select i1 {here}, {type_} {one.name}, {type_} {value.name}"
            found.append(Value(self.vector, self.e.assign(text), value.dtype))
        return tuple(found)

    def shuffled(self, first: Value, second: Value, source: Callable[[int], int]) -> Value:
        sources = [source(lane) for lane in range(self.count)]
        own = REGISTER_TYPES[first.dtype]
        result = self.taken(first.name, own, self._entry([number % self.count for number in sources]))
        if any(number >= self.count for number in sources):
            other = self.taken(second.name, own, self._entry([number % self.count for number in sources]))
            type_, mask = self.vector.type_of(first.dtype), self.chosen([number >= self.count for number in sources])
            result = self.e.assign(f"select {mask}, {type_} {other}, {type_} {result}")
        return Value(self.vector, result, first.dtype)

    def chosen(self, lanes: Sequence[bool]) -> str:
        bits = sum(1 << lane for lane, one in enumerate(lanes) if one)
        shifted = self.e.assign(f"lshr i64 {bits}, {self.number}")
        return f"i1 {self.e.assign(f'trunc i64 {shifted} to i1')}"

    def _entry(self, numbers: Sequence[int]) -> str:
        """The entry for this lane in a list of lane numbers of four bits each, as ``i32``."""
        if len(set(numbers)) == 1:
            return str(numbers[0])
        packed = sum(number << 4 * lane for lane, number in enumerate(numbers))
        signed = packed - (1 << 64) if packed >> 63 else packed
        shift = self.e.assign(f"shl i64 {self.number}, 2")
        shifted = self.e.assign(f"trunc i64 {self.e.assign(f'lshr i64 {signed}, {shift}')} to i32")
        return self.e.assign(f"and i32 {shifted}, {self.count - 1}")


def as_word(e: Emitter, name: str, type_: str) -> str:
    """The bits of a register of at most 32 bits, as ``i32``."""
    if type_ == "float":
        return e.assign(f"bitcast float {name} to i32")
    return name if type_ == "i32" else e.assign(f"zext {type_} {name} to i32")


def from_word(e: Emitter, word: str, type_: str) -> str:
    """A register of type ``type_`` with the bits of a word; the inverse of `as_word`."""
    if type_ == "float":
        return e.assign(f"bitcast i32 {word} to float")
    return word if type_ == "i32" else e.assign(f"trunc i32 {word} to {type_}")
