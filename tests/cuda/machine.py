"""Runs the LLVM IR of a kernel for GPUs in NumPy: the threads of some blocks, one instruction for many threads at a
time.

It does what a card does, as far as the IR determines it: each thread has its own program counter, threads wait for each
other at barriers and where they exchange registers, and they share memory. A function, the ``order``, chooses which of
the threads that could go on does so: this finds kernels whose results depend on it. `ReferenceMemory` makes an error of
every access outside of an array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from tests.cuda.arithmetic import OF_CARDS, evaluated
from tests.cuda.messages import Message, Post
from tests.cuda.module import Instruction, Module, Type, constant, listed, type_of, typed
from tests.cuda.races import Accesses, Kind
from tests.reference.memory import REGION, ReferenceMemory

WARP = 32

TURNS = 8

Order = Callable[[np.ndarray], int]
"""Chooses one of the program counters of threads."""


def together(counters: np.ndarray) -> int:
    """Chooses the threads that are furthest behind, so that threads have the same counter wherever they can."""
    return int(counters[0])


class Grid(NamedTuple):
    """The numbers of blocks, of threads of a block, and of blocks of a cluster."""

    blocks: int
    threads: int
    cluster: int = 1


class _Copies(NamedTuple):
    """Copies to shared memory, of ``size`` bytes each, that threads have begun."""

    size: int
    threads: np.ndarray
    targets: np.ndarray
    sources: np.ndarray

    def chosen(self, mask: np.ndarray) -> _Copies:
        return _Copies(self.size, *[array[mask] for array in self[1:]])


class Fault(Exception):
    """A kernel did something that no kernel may do."""


class Machine:
    """One launch of a kernel. A register is an array with a row for each thread of the grid."""

    def __init__(
        self,
        module: Module,
        memory: ReferenceMemory,
        allocate: Callable[[int], int],
        arguments: Sequence[int],
        grid: Grid,
    ) -> None:
        self.module, self.memory, self.grid = module, memory, grid
        self.count = grid.blocks * grid.threads
        threads = np.arange(self.count)
        self.special = {
            "tid.x": threads % grid.threads,
            "ctaid.x": threads // grid.threads,
            "nctaid.x": np.full(self.count, grid.blocks),
            "nctaid.y": np.ones(self.count, np.int64),
            "cluster.ctarank": threads // grid.threads % grid.cluster,
            "clusterid.x": threads // (grid.threads * grid.cluster),
            "nclusterid.x": np.full(self.count, grid.blocks // grid.cluster),
        }
        self.registers: dict[str, np.ndarray] = {}
        for name, value in zip(("%numbers", "%table"), arguments, strict=True):
            self.registers[name] = np.full(self.count, value, np.uint64)
        for name, contents in module.constants.items():
            address = allocate(contents.nbytes)
            memory.write(address, np.arange(contents.size) * contents.itemsize, contents)
            self.registers[name] = np.full(self.count, address, np.uint64)
        self.shared = [
            np.array([allocate(size) for _ in range(grid.blocks)], np.uint64) for size in module.shared.values()
        ]
        for name, addresses in zip(module.shared, self.shared, strict=True):
            self.registers[name] = addresses[self.special["ctaid.x"]]
        for name, type_ in module.slots.items():
            start = allocate(type_.size * self.count)
            self.registers[name] = np.uint64(start) + (threads * type_.size).astype(np.uint64)
        self.accesses: dict[int, Accesses] = {}
        self.copies: list[_Copies] = []
        self.post = Post()
        # How many barriers each thread has passed, counted from another number for each cluster. A kernel has barriers
        # either of blocks or of clusters.
        self.barriers = self.special["clusterid.x"] << 32
        self.counter = np.zeros(self.count, np.int64)
        self.block = np.zeros(self.count, np.int64)
        self.came_from = np.zeros(self.count, np.int64)

    def run(self, order: Order = together) -> None:
        """Run until all threads have returned."""
        with np.errstate(all="ignore"):
            for turn in count():
                counters = np.unique(self.counter[self.counter >= 0])
                if not counters.size:
                    return
                # At times another thread goes on than ``order`` chooses: it may write what others read again and again.
                counter = order(counters) if turn % TURNS else int(counters[turn // TURNS % counters.size])
                while not self._goes_on(counter):
                    counters = counters[counters != counter]
                    if not counters.size:
                        raise Fault("threads wait for others that do not come")
                    counter = order(counters)

    def _goes_on(self, counter: int) -> bool:
        """Let the threads with a program counter execute its part of the code. False if they all wait for threads with
        other counters."""
        part = self.module.parts[counter]
        here = np.flatnonzero(self.counter == counter)
        if part.synchronizes:
            here = self._with_members(part.instructions[0], here)
        self.counter[here] += 1  # a branch sets another one
        for instruction in part.instructions:
            self._execute(instruction, here)
        return bool(here.size)

    def _with_members(self, instruction: Instruction, here: np.ndarray) -> np.ndarray:
        """Those of the threads ``here`` that need not wait: all that the instruction names, of their warp, block or
        cluster, are here, too."""
        at = np.zeros(self.count, bool)
        at[here] = True
        if "barrier" in instruction.text:
            together = self.grid.threads * (self.grid.cluster if "cluster" in instruction.text else 1)
            whole = np.asarray(at.reshape(-1, together).all(axis=1))
            return here[whole[here // together]]
        members = self._arguments(instruction.text, here)[0]
        wanted = (members[:, None] >> np.arange(WARP, dtype=np.uint32)) & 1 == 1
        if not wanted[np.arange(here.size), here % WARP].all():
            raise Fault("a thread is not one of those that it waits for")
        return here[(at.reshape(-1, WARP)[here // WARP] | ~wanted).all(axis=1)]

    def _execute(self, instruction: Instruction, here: np.ndarray) -> None:
        operation = instruction.operation
        method = getattr(self, f"_{operation}", None)
        result = method(instruction.text, here) if method else self._arithmetic(operation, instruction.text, here)
        if instruction.result is not None:
            self._set(instruction.result, here, result)

    def _set(self, name: str, here: np.ndarray, value: np.ndarray) -> None:
        register = self.registers.get(name)
        if register is None:
            register = self.registers[name] = np.zeros((self.count, *value.shape[1:]), value.dtype)
        register[here] = value

    def _value(self, text: str, type_: Type, here: np.ndarray) -> np.ndarray:
        """The value of an operand for each thread."""
        if text[0] in "%@":
            return self.registers[text][here]
        return np.broadcast_to(constant(text, type_), type_.of_threads(here.size))

    def _typed(self, text: str, here: np.ndarray) -> np.ndarray:
        type_, value = typed(text)
        return self._value(value, type_, here)

    def _arguments(self, text: str, here: np.ndarray) -> list[np.ndarray]:
        """The arguments of a call."""
        inside = text[text.index("(", text.index("@")) + 1 : text.rindex(")")]
        return [self._typed(re.sub(r"\bimmarg ", "", part), here) for part in listed(inside)]

    def _arithmetic(self, operation: str, text: str, here: np.ndarray) -> np.ndarray:
        if " to " in text:
            source, target = text.split(" to ")
            type_, value = typed(source)
            result = evaluated(operation, [self._value(value, type_, here)], type_of(target), type_)
            return result.reshape(type_of(target).of_threads(here.size))
        relation = ""
        if operation in ("icmp", "fcmp"):
            relation, text = text.split(" ", 1)
        type_, values = typed(text)
        operands = [self._value(value, type_, here) for value in listed(values)]
        return evaluated(f"{operation} {relation}".strip(), operands, type_, type_)

    def _select(self, text: str, here: np.ndarray) -> np.ndarray:
        condition, yes, no = (self._typed(part, here) for part in listed(text))
        if condition.ndim < yes.ndim:
            condition = condition[:, None]
        return np.where(condition, yes, no)

    def _insertelement(self, text: str, here: np.ndarray) -> np.ndarray:
        vector, element, lane = (self._typed(part, here) for part in listed(text))
        result = vector.copy()
        result[np.arange(here.size), lane.astype(np.int64)] = element
        return result

    def _extractelement(self, text: str, here: np.ndarray) -> np.ndarray:
        vector, lane = (self._typed(part, here) for part in listed(text))
        return vector[np.arange(here.size), lane.astype(np.int64)]

    def _shufflevector(self, text: str, here: np.ndarray) -> np.ndarray:
        first, second, lanes = (self._typed(part, here) for part in listed(text))
        return np.concatenate([first, second], axis=1)[np.arange(here.size)[:, None], lanes.astype(np.int64)]

    def _getelementptr(self, text: str, here: np.ndarray) -> np.ndarray:
        element, pointer, index = listed(text)
        steps = self._typed(index, here).astype(np.uint64) * np.uint64(type_of(element).size)
        start = self._typed(pointer, here)
        return start + steps if steps.ndim == start.ndim else start[:, None] + steps

    def _addrspacecast(self, text: str, here: np.ndarray) -> np.ndarray:
        return self._typed(text.split(" to ")[0], here)

    def _phi(self, text: str, here: np.ndarray) -> np.ndarray:
        type_, rest = typed(text)
        result = np.zeros(here.size, type_.dtype)
        for value, label in re.findall(r"\[ (\S+), %(\w+) \]", rest):
            came = self.came_from[here] == self.module.block_of[label]
            if came.any():
                result[came] = self._value(value, type_, here[came])
        return result

    def _br(self, text: str, here: np.ndarray) -> None:
        labels = re.findall(r"label %(\w+)", text)
        chosen = np.full(here.size, self.module.first_part[labels[0]])
        if len(labels) == 2:
            condition = self._typed(listed(text)[0], here)
            chosen = np.where(condition, chosen, self.module.first_part[labels[1]])
        self.came_from[here] = self.block[here]
        self.counter[here] = chosen
        self.block[here] = self.module.blocks[chosen]

    def _ret(self, text: str, here: np.ndarray) -> None:
        self.counter[here] = -1

    def _call(self, text: str, here: np.ndarray) -> np.ndarray | None:
        if text.startswith('void asm sideeffect "st.async'):
            self._send(*[self._typed(part, here) for part in listed(text[text.rindex('"(') + 2 : -1])])
            return None
        found = re.match(r"(.+?) @([\w.]+)\(", text)
        assert found is not None
        name, arguments = found[2], self._arguments(text, here)
        if name.startswith("llvm.nvvm."):
            return self._call_of_card(name.removeprefix("llvm.nvvm."), arguments, here)
        if name.startswith("llvm.masked."):
            return self._masked(name.split(".")[2], arguments)
        type_ = type_of(found[1])
        return evaluated(name, arguments, type_, type_)

    def _call_of_card(self, name: str, arguments: Sequence[np.ndarray], here: np.ndarray) -> np.ndarray | None:
        """The result of a function that only cards have."""
        if name.startswith("read.ptx.sreg."):
            return self.special[name.removeprefix("read.ptx.sreg.")][here].astype(np.uint32)
        if name.startswith("shfl"):
            return self._exchanged(here, *arguments[1:])
        if name.startswith("vote.ballot"):
            return self._votes(here, arguments[1])
        if name in OF_CARDS:
            return np.asarray(OF_CARDS[name](*arguments))
        if name.startswith("mbarrier."):
            return self._at_message_barriers(name.removeprefix("mbarrier."), *arguments)
        if name.startswith("mapa"):
            return self._in_block(here, *arguments)
        if name.startswith("cp.async"):
            self._copy(name, arguments, here)
        elif name.startswith("bar"):
            self.barriers[here] += "barrier" in name and "arrive" not in name
        else:  # kernels run one after the other, and all threads see at once what one of them writes
            assert name.startswith(("griddepcontrol.", "fence.")), name
        return None

    def _masked(self, operation: str, arguments: Sequence[np.ndarray]) -> np.ndarray | None:
        """A load or store of the lanes of a mask."""
        elements, pointers = arguments[-1], arguments[0]
        mask = arguments[-2]
        if operation in ("store", "scatter"):
            elements, pointers, mask = arguments[0], arguments[1], arguments[-1]
        if operation in ("load", "store"):
            pointers = _neighbours(pointers, mask.shape[1], elements.dtype.itemsize)
        if operation in ("store", "scatter"):
            self._write(pointers[mask], elements[mask])
            return None
        result = elements.copy()
        result[mask] = self._read(pointers[mask], Type(elements.dtype, 1, "", False))
        return result

    def _exchanged(self, here: np.ndarray, words: np.ndarray, source: np.ndarray, clamp: np.ndarray) -> np.ndarray:
        """What ``shfl.sync.idx`` gives: the word of a lane of the same segment of the warp. (PTX ISA, shfl.sync.)"""
        all_words = np.zeros(self.count, np.uint32)
        all_words[here] = words
        segment = (clamp >> 8 & 31).astype(np.int64)
        lane = (here & segment) | (source.astype(np.int64) & ~segment & 31)
        return all_words[here // WARP * WARP + lane]

    def _votes(self, here: np.ndarray, conditions: np.ndarray) -> np.ndarray:
        """The bits of the lanes of a warp for which a condition holds."""
        votes = np.zeros(self.count, np.uint32)
        votes[here] = conditions.astype(np.uint32) << (here % WARP).astype(np.uint32)
        return np.bitwise_or.reduceat(votes, np.arange(0, self.count, WARP))[here // WARP]

    def _atomicrmw(self, text: str, here: np.ndarray) -> np.ndarray:
        """Change numbers in memory, one thread after the other. The result is the numbers before."""
        operation, text = text.split(" ", 1)
        pointer, operand = listed(text)
        addresses, values = self._typed(pointer, here), self._typed(operand.split(" syncscope")[0], here)
        type_, _ = typed(operand)
        self._note(addresses, values.itemsize, here, "changes")
        found, waiting = np.zeros_like(values), np.arange(here.size)
        while waiting.size:
            _, first = np.unique(addresses[waiting], return_index=True)
            now = waiting[first]
            found[now] = self._read(addresses[now], type_)
            self._write(addresses[now], evaluated(operation, [found[now], values[now]], type_, type_))
            waiting = np.delete(waiting, first)
        return found

    def _copy(self, name: str, arguments: Sequence[np.ndarray], here: np.ndarray) -> None:
        """Begin or finish copies to shared memory. They are made when their thread waits for them, and not before."""
        if not name.endswith("wait.all"):
            self.copies.append(_Copies(int(name.rsplit(".", 1)[1]), here, *arguments))
            return
        begun, self.copies = self.copies, []
        for copies in begun:
            ending = np.isin(copies.threads, here)
            size, threads, targets, sources = copies.chosen(ending)
            self._note(sources, size, threads, "reads")
            self._note(targets, size, threads, "writes")
            words = np.dtype(f"u{min(size, 8)}")
            near, far = [_neighbours(one, size // words.itemsize, words.itemsize) for one in (targets, sources)]
            self._write(near, self._read(far, Type(words, 1, "", False)))
            if not ending.all():
                self.copies.append(copies.chosen(~ending))

    def _in_block(self, here: np.ndarray, pointers: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """The same locations in the shared memory of other blocks of the cluster."""
        own = self.special["ctaid.x"][here]
        other, result = own // self.grid.cluster * self.grid.cluster + ranks, np.zeros_like(pointers)
        for addresses in self.shared:
            inside = pointers >> np.uint64(REGION) == addresses[own] >> np.uint64(REGION)
            result[inside] = (pointers - addresses[own] + addresses[other.astype(np.int64)])[inside]
        return result

    def _send(self, targets: np.ndarray, words: np.ndarray, barriers: np.ndarray) -> None:
        for target, word, barrier in zip(targets, words, barriers, strict=True):
            self.post.send(int(barrier), Message(int(target), word))

    def _at_message_barriers(self, name: str, barriers: np.ndarray, numbers: np.ndarray) -> np.ndarray | None:
        """Make barriers, expect messages, or test whether a phase has ended; before a test, a message may arrive."""
        found = np.zeros(barriers.size, bool)
        for position, (barrier, number) in enumerate(zip(map(int, barriers), map(int, numbers), strict=True)):
            if name.startswith("init"):
                self.post.make(barrier, number)
            elif name.startswith("arrive.expect.tx"):
                self.post.barriers[barrier].expect(number)
            else:
                message = self.post.next_for(barrier)
                if message is not None:
                    self._write(np.array([message.address], np.uint64), np.array([message.number]))
                found[position] = self.post.barriers[barrier].phase % 2 != number
        return found if "wait" in name else np.zeros(barriers.size, np.uint64)

    def _load(self, text: str, here: np.ndarray) -> np.ndarray:
        kind, pointer, *rest = listed(_plain(text))
        type_, addresses = type_of(kind), self._typed(pointer, here)
        self._check_alignment(rest, addresses)
        if type_.is_vector:
            addresses = _neighbours(addresses, type_.lanes, type_.dtype.itemsize)
        self._note(addresses, type_.dtype.itemsize, here, "reads")
        if self.post.may_change(addresses, type_.dtype.itemsize):
            raise Fault("a thread reads what a message on its way may change")
        return self._read(addresses, type_)

    def _store(self, text: str, here: np.ndarray) -> None:
        value, pointer, *rest = listed(_plain(text))
        elements, addresses = self._typed(value, here), self._typed(pointer, here)
        self._check_alignment(rest, addresses)
        if elements.ndim > 1:
            addresses = _neighbours(addresses, elements.shape[1], elements.dtype.itemsize)
        self._note(addresses, elements.dtype.itemsize, here, "writes")
        self._write(addresses, elements)

    def _note(self, addresses: np.ndarray, size: int, here: np.ndarray, kind: Kind) -> None:
        """Raise an error for accesses that nothing orders. The lanes of a vector are all accessed by one thread."""
        lanes = addresses.size // max(here.size, 1)
        flat, threads = addresses.ravel(), np.repeat(here, lanes)
        for start, chosen in self._by_block(flat):
            where = (flat[chosen] - np.uint64(start)).astype(np.int64)[:, None] + np.arange(size)
            accesses = self.accesses.setdefault(start, Accesses())
            accesses.grow(int(where.max(initial=-1)) + 1)
            by = threads[chosen]
            if where.min(initial=0) >= 0 and accesses.unordered(where, by // WARP, self.barriers[by], kind):
                raise Fault("threads of two warps access a location, one writes it, and no barrier is between")

    def _check_alignment(self, words: Sequence[str], addresses: np.ndarray) -> None:
        for word in words:
            if word.startswith("align ") and (addresses % np.uint64(word[6:])).any():
                raise Fault(f"an access is not aligned to {word[6:]} bytes")

    def _read(self, addresses: np.ndarray, type_: Type) -> np.ndarray:
        dtype = np.dtype(np.uint8) if type_.dtype == np.bool_ else type_.dtype
        result = np.zeros(addresses.shape, dtype)
        for start, chosen in self._by_block(addresses):
            result[chosen] = self.memory.read(start, (addresses[chosen] - np.uint64(start)).astype(np.int64), dtype)
        return result.astype(type_.dtype)

    def _write(self, addresses: np.ndarray, elements: np.ndarray) -> None:
        for start, chosen in self._by_block(addresses):
            self.memory.write(start, (addresses[chosen] - np.uint64(start)).astype(np.int64), elements[chosen])

    def _by_block(self, addresses: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The blocks of memory that addresses are in, with the positions of their addresses."""
        numbers = addresses >> np.uint64(REGION)
        return [(int(number) << REGION, numbers == number) for number in np.unique(numbers)]


def _plain(text: str) -> str:
    """The text of a load or store without the word "atomic": threads here never interrupt each other."""
    return re.sub(r"^atomic | syncscope.* (monotonic|acquire|release)", "", text)


def _neighbours(addresses: np.ndarray, count: int, size: int) -> np.ndarray:
    return addresses[:, None] + np.arange(count, dtype=np.uint64) * np.uint64(size)
