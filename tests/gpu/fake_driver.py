"""A driver without a card: it queues work, and does it only when a thread waits for it.

So a test that reads a result without waiting finds that it is not there yet, and one that uses memory again too early
reads wrong elements. Kernels are those of the reference device.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from tests.cuda.machine import Grid, Machine, together
from tests.cuda.module import Module
from tests.reference.kernels import KernelCode
from tests.reference.memory import REGION, ReferenceMemory
from weft.compiler.cuda import kernels
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.kernel import Kernel, Launch
from weft.compiler.target import FusionLimits, Schedule, Target
from weft.graph.node import Node
from weft.runtime.atomic import first_failure
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.cudnn import plans
from weft.runtime.cuda.driver import CudaError
from weft.runtime.host import host

OTHERS = (1, 2)
"""Streams of other libraries: the default stream, and the default stream of the thread."""

_contexts = count(1)


class RoutineKernel:
    """A kernel of a routine, which runs thread by thread."""

    def __init__(self, code: RoutineCode) -> None:
        self._module = Module(code.text(), code.shared)
        self._grid = Grid(_BLOCKS, code.threads)

    def run(self, memory: ReferenceMemory, numbers: _Words, slots: _Words) -> None:
        with ExitStack() as stack:

            def allocate(size: int) -> int:
                return stack.enter_context(memory.block(size))

            Machine(self._module, memory, allocate, [numbers.address, slots.address], self._grid).run(together)


_BLOCKS = 2
_codes: dict[str, KernelCode | RoutineKernel] = {}
"""The kernels by their names, which stand here in the place of PTX."""


class FakeSchedule(Schedule):
    units = grain = 1

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        return load < store


class FakeTarget(Target):
    """Computes kernels for which ``declines(kernel)`` is false, and calls of ``routines``; the CPU computes the
    rest."""

    kind = key = "cuda"
    limits = FusionLimits(
        members=12, uncut_members=6, group_rows=2, group_size=64, repeated_operations=2, fewer=2, uncached_size=64
    )

    def __init__(self, declines: Callable[[Kernel], bool]) -> None:
        super().__init__()
        self.stand_in = host.target
        self.declines = declines
        self.routines: set[Any] = set()

    def is_waiting(self) -> bool:
        return plans.is_waiting(self.machine)

    def does(self, node: Node) -> bool:
        return node.primitive in self.routines and super().does(node)

    def schedule(self, launch: Launch) -> Schedule | None:
        return None if self.declines(launch.kernel) else FakeSchedule()

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> CudaCode:
        name = f"kernel{len(_codes)}"
        _codes[name] = KernelCode(kernel)
        title = ", ".join([x.name for x in kernel.primitives])
        return CudaCode(name, name, 32, title=title, copied=kernels.copied_by(kernel, schedule))

    def routine_code(self, code: Any) -> Any:
        if not isinstance(code, RoutineCode):
            return code
        key = code.source, ()
        if key not in self._codes:
            name = f"kernel{len(_codes)}"
            _codes[name] = RoutineKernel(code)
            self._codes[key] = CudaCode(name, name, code.threads, title=code.title)
        return self._codes[key]


class _Words(Sequence[int]):
    """64-bit integers in the memory of the card."""

    def __init__(self, memory: ReferenceMemory, address: int, signed: bool) -> None:
        self._memory, self.address = memory, address
        self._dtype = np.dtype(np.int64 if signed else np.uint64)

    def __getitem__(self, place: Any) -> Any:
        return int(self._memory.read(self.address, np.array([8 * place]), self._dtype)[0])

    def __len__(self) -> int:
        raise TypeError("kernels do not know how many there are")


class FakeDriver:
    """A stream does its work when a thread waits for it. Other streams do then only the work that it waits for, so work
    that should have been awaited and was not is done too late, and a test fails.

    ``limit`` is the memory of the ``cards`` in bytes. ``failure`` is reported to the next thread that waits.
    ``library_codes`` are the codes that the next calls of libraries return: 0 is success."""

    def __init__(self, limit: int = 1 << 40, cards: int = 1) -> None:
        self.memory = ReferenceMemory()
        self.cards = cards
        self._context = threading.local()
        self._context_of: dict[int, int] = {}
        """The context of each stream."""
        self.limit = limit
        self.failure: CudaError | None = None
        self.library_codes: list[int] = []
        self.calls: Counter[str] = Counter()
        self.streams: dict[int, deque[Callable[[], None]]] = {stream: deque() for stream in OTHERS}
        self._records: dict[int, tuple[int, int]] = {}
        """For each event, the stream that recorded it last, and how many pieces of work were queued there before."""
        self._done: Counter[int] = Counter()
        self._queued: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self._handles = count(1 + len(OTHERS))
        self._kernels: dict[int, KernelCode | RoutineKernel] = {}
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._captured: dict[int, list[Callable[[], None]]] = {}
        """The work of each stream that is captured."""
        self._pinned: list[Any] = []
        self._asked = 0
        """The stream or event of the last query, if nothing was queued since then."""
        self._lock = threading.RLock()
        """Several threads copy large arrays at the same time."""

    def count(self) -> int:
        return self.cards

    def name_of(self, card: int) -> str:
        return "a fake card"

    def total_memory(self, card: int) -> int:
        return self.limit

    def card_of(self, address: int) -> int:
        return 0

    def free_memory(self) -> int:
        return self.limit - sum(self._sizes.values())

    def multiprocessors(self, card: int) -> int:
        return 4

    def capability(self, card: int) -> tuple[int, int]:
        return 9, 0

    def context(self, card: int) -> int:
        return next(_contexts)  # never that of another driver, which threads may still know

    def use(self, context: int) -> None:
        self.calls["use"] += 1
        self._context.current = context

    def _check_context(self, stream: int) -> None:
        """Raise an error if a stream does not belong to the context of this thread."""
        if stream not in OTHERS:
            assert self._context_of[stream] == self._context.current

    def allocate(self, size: int) -> int:
        if sum(self._sizes.values()) + size > self.limit:
            return 0
        address = self.memory._allocate(size)
        self._sizes[address] = size
        return address

    @property
    def queue(self) -> list[Callable[[], None]]:
        """All work that Weft has queued."""
        return [work for stream, queued in self.streams.items() if stream not in OTHERS for work in queued]

    def _queue(self, stream: int, work: Callable[[], None]) -> None:
        self._check_context(stream)
        self._queue_anywhere(stream, work)

    def _queue_anywhere(self, stream: int, work: Callable[[], None]) -> None:
        if stream in self._captured:
            self._captured[stream].append(work)
            return
        with self._lock:
            self._asked = 0
            self.streams[stream].append(work)
            self._queued[stream] += 1

    def _run_until(self, stream: int, count: int) -> None:
        """Do the work of a stream up to a point. Other streams do only what it waits for."""
        with self._lock:
            while self._done[stream] < count:
                self._done[stream] += 1
                self.streams[stream].popleft()()

    def free(self, address: int) -> None:
        assert not self.queue, "what is queued may still use it"
        del self._sizes[address]
        self.memory._free(address)

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        self._copy_in(target, source, size, stream)

    def copying_in(self, target: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy_in, target, source, size, stream

    def _copy_in(self, target: int, source: int, size: int, stream: int) -> int:
        self.calls["copy_in"] += 1
        read = partial(ctypes.string_at, source, size)
        if not self._is_pinned(source):
            read = partial(bytes, read())
        self._queue(stream, lambda: self.memory.write(target, np.arange(size), np.frombuffer(read(), np.uint8)))
        return 0

    def _is_pinned(self, address: int) -> bool:
        """Whether the card reads and writes this memory itself, when it is the copy's turn in the queue."""
        return any(0 <= address - ctypes.addressof(block) < len(block) for block in self._pinned)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        def copy() -> None:
            block = self.memory._blocks[source >> REGION]
            first = source & ((1 << REGION) - 1)
            assert first + size <= len(block)
            ctypes.memmove(target, block[first : first + size].astype(np.uint8).tobytes(), size)

        self._queue(stream, copy)
        if not self._is_pinned(target):
            self._run_until(stream, self._queued[stream])

    def copying(self, target: int, source: int, size: int, stream: int) -> tuple[Any, ...]:
        return self._copy, target, source, size, stream

    def _copy(self, target: int, source: int, size: int, stream: int) -> int:
        self.calls["copy"] += 1
        places, byte = np.arange(size), np.dtype(np.uint8)
        self._queue(stream, lambda: self.memory.write(target, places, self.memory.read(source, places, byte)))
        return 0

    def copy_peer(self, target: int, to: int, source: int, of: int, size: int, stream: int) -> None:
        assert to != of
        self._copy(target, source, size, stream)

    def waiting(self, stream: int) -> tuple[Any, ...]:
        return self._wait, stream

    def _wait(self, stream: int) -> int:
        if stream in self._captured:
            return 1
        self.synchronize(stream)
        return 0

    def pinned(self, size: int) -> int:
        self._pinned.append(ctypes.create_string_buffer(size))
        return ctypes.addressof(self._pinned[-1])

    def stream(self) -> int:
        found = next(self._handles)
        self.streams[found] = deque()
        self._context_of[found] = self._context.current
        return found

    def synchronize(self, stream: int) -> None:
        self.calls["synchronize"] += 1
        self._run_until(stream, self._queued[stream])
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def event(self) -> int:
        self.calls["event"] += 1
        return next(self._handles)

    def record(self, event: int, stream: int) -> None:
        self.calls["record"] += 1
        self._record(event, stream)

    def recording(self, event: int, stream: int) -> tuple[Any, ...]:
        return self._record, event, stream

    def _record(self, event: int, stream: int) -> int:
        self._check_context(stream)
        self._records[event] = stream, self._queued[stream]
        return 0

    def wait_event(self, stream: int, event: int) -> None:
        self.calls["wait_event"] += 1
        self._check_context(stream)
        if event in self._records:
            self._queue_anywhere(stream, partial(self._run_until, *self._records[event]))

    def is_done(self, stream: int) -> bool:
        with self._lock:  # another thread may be in the middle of the last piece of work
            if self.streams[stream] and self._waits_for(stream):
                self.synchronize(stream)
            return not self.streams[stream]

    def has_happened(self, event: int) -> bool:
        with self._lock:  # another thread may be in the middle of work before the event
            stream, count = self._records.get(event, (0, 0))
            if self._done[stream] < count and self._waits_for(event):
                self._run_until(stream, count)
            return self._done[stream] >= count

    def _waits_for(self, handle: int) -> bool:
        """Whether a thread waits: it asks for the same stream or event for the second time, and nothing was queued
        between."""
        if self._asked == handle:
            return True
        self._asked = handle
        return False

    def record_all(self, context: int, event: int) -> None:
        """Record an event of the work of all streams. Here they do all their work."""
        self.calls["record_all"] += 1
        for stream in self.streams:
            self._run_until(stream, self._queued[stream])
        self._records.pop(event, None)

    def elapsed(self, first: int, second: int) -> int:
        return 1000 * (1 + abs(second - first))

    def version(self) -> int:
        return 0

    def assembled(self, ptx: bytes, name: str) -> bytes:
        self.calls["assembled"] += 1
        return ptx

    def load(self, code: bytes, name: str, shared: int) -> tuple[int, int]:
        function = next(self._handles)
        self._kernels[function] = _codes[code.rstrip(b"\0").decode()]
        return next(self._handles), function

    def resident_blocks(self, function: int, threads: int, shared: int) -> int:
        return 2

    def launching(self, launch: Any, stream: int) -> tuple[Any, ...]:
        return self._launch, launch, stream

    def launching_early(self, launch: Any, stream: int) -> tuple[Any, ...]:
        return self._launch, launch, stream

    def _launch(self, launch: Any, stream: int) -> int:
        self.calls["launch"] += 1
        self._queue(stream, lambda: self._run(launch))
        return 0

    def _run(self, launch: Any) -> None:
        self.calls["kernel"] += 1
        numbers = _Words(self.memory, launch.numbers, signed=True)
        with np.errstate(all="ignore"):
            self._kernels[launch.function].run(self.memory, numbers, _Words(self.memory, launch.slots, signed=False))

    def graph(self, launches: Sequence[Any]) -> int:
        graph = next(self._handles)
        self._graphs[graph] = [partial(self._run, launch) for launch in launches]
        return graph

    def captured(self, actions: Sequence[tuple[Any, ...]], stream: int) -> int:
        self.calls["captured"] += 1
        assert not self.streams[stream], "a stream that captures is used for nothing else"
        self._captured[stream] = []
        if first_failure(actions) is not None:
            return 0
        graph = next(self._handles)
        self._graphs[graph] = self._captured.pop(stream)
        return graph

    def calling(self, work: Callable[[], None], stream: int) -> tuple[Any, ...]:
        """The function and arguments of a library's call, which queues work on a stream."""
        return self._call_library, work, stream

    def _call_library(self, work: Callable[[], None], stream: int) -> int:
        self.calls["library"] += 1
        code = self.library_codes.pop(0) if self.library_codes else 0
        if not code:
            self._queue(stream, work)
        return code

    def launching_graph(self, graph: int, stream: int) -> tuple[Any, ...]:
        return self._launch_graph, graph, stream

    def _launch_graph(self, graph: int, stream: int) -> int:
        self.calls["launch_graph"] += 1
        for work in self._graphs[graph]:
            self._queue(stream, work)
        return 0

    def destroy_graph(self, graph: int) -> None:
        del self._graphs[graph]

    def check(self, code: int, called: str, more: str = "") -> None:
        assert not code
