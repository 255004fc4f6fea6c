"""What an engine is: the part of the runtime that belongs to one device.

It has the device's memory, copies to and from it, and runs tables of steps. What steps compute it does not know. Work
goes through this interface and does not test which device it has; only what needs memory of the process, as NumPy does,
asks whether it is the host's.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from weft.runtime import recording, streams
from weft.runtime.available import engine_at
from weft.runtime.devices import Device, Stream
from weft.runtime.dlpack import Sharing
from weft.runtime.memory import Allocator, Buffer
from weft.runtime.steps import DONE, FIRST, Sealed, Step, StepList, Table, TableLayout

_SECOND = 1_000_000_000


class Engine(ABC):
    """Runs the work of one device.

    What is not abstract serves a device whose steps are begun one by one, by `execute`, and whose memory is reached by
    copies to and from the host; an engine that can do better does it in its own way.
    """

    queues = False
    """Whether `run` returns when the steps are queued on the device. What reads their results, through this engine, is
    queued behind them or waits."""

    works_in_parallel = False
    """Whether the device has several queues, whose work is not in the order in which it was begun."""
    takes_at_once = sys.maxsize
    """Arrays of so many bytes and more that are made of data of the host while this is the engine of the current stream
    have their memory here from the beginning."""
    sharing: Sharing | None = None
    """How other libraries see the memory of the device, and Weft theirs; None: they see memory of the host only."""
    export_ended: Callable[[Any], object] | None = None
    """Called with a weak reference when others share a buffer no more; native code, so that no interrupt is lost."""

    def __init__(self, device: Device, memory: Allocator) -> None:
        self.device = device
        self.memory = memory
        self.target: Any = None
        """The `Target` for this engine, set by `weft.compiler`."""

    def info(self) -> dict[str, str | int]:
        """Facts about the device, for users; 0 is what is not known."""
        kind = self.target.kind
        return {"device_name": kind, "architecture": kind, "memory_size": 0, "resource_limit": 0}

    def will_be_used(self) -> None:  # noqa: B027  # not abstract: most have nothing to do
        """A stream of the device is made: what takes long before it can be used may begin."""

    @abstractmethod
    def copy_in(self, source: memoryview, buffer: Buffer, offset: int) -> None:
        """Copy bytes of the host to a buffer of this engine, from byte ``offset`` on; done when this returns."""

    @abstractmethod
    def copy_out(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        """Copy from byte ``offset`` of a buffer of this engine on as many bytes as ``target`` has."""

    def copied_out(self, buffer: Buffer, offset: int, size: int) -> bytearray:
        """A copy of ``size`` bytes from byte ``offset`` of a buffer of this engine on."""
        found = bytearray(size)
        self.copy_out(buffer, offset, memoryview(found))
        return found

    def copy_across(self, source: Buffer, start: int, target: Buffer, size: int) -> None:
        """Copy ``size`` bytes of a buffer of another engine to the beginning of one of this engine."""
        staging = bytearray(size)
        source.engine.copy_out(source, start, memoryview(staging))
        self.copy_in(memoryview(staging), target, 0)

    def seal(self, steps: Sequence[Step], layout: TableLayout | None = None) -> Sealed:
        """Steps as something that can be run, with tables of this layout."""
        return StepList(steps)

    def run(self, steps: Sealed, table: Table, stream: Stream | None = None) -> int:
        """Run the steps that were not run yet, for a stream if it is known; returns how many were run in all.

        It writes that number into ``table.values[DONE]``, and stops before the next step when ``table.stopped``.
        """
        return self.run_timed(steps, table, array("q"), stream)

    def run_all(self, steps: Sealed, table: Table, stream: Stream | None) -> bool:
        """Run all steps of a table in which nothing was run yet; whether that was done. Should it raise, nobody looks
        at the table any more."""
        return self.run(steps, table, stream) == steps.count

    def run_unless(self, steps: Sealed, table: Table, stream: Stream, doubts: Iterator[bool]) -> bool:
        """Queue all steps in one call of native code, in which ``doubts`` are read first, unless one of these is true.
        False if nothing was done, which is so where steps cannot be queued like that."""
        return False

    def run_timed(self, steps: Sealed, table: Table, times: array[int], stream: Stream | None = None) -> int:
        """Like `run`, and writes into ``times``, in seconds and nanoseconds, when each step began and when it ended, or
        has it written by `recording.later`."""
        assert isinstance(steps, StepList)
        for number in range(table.values[DONE], steps.count):
            if table.stopped:
                break
            began = recording.now()
            self.execute(steps.steps[number], table.values[FIRST:])
            if times:
                moments = divmod(began, _SECOND), divmod(recording.now(), _SECOND)
                times[4 * number : 4 * number + 4] = array("q", [*moments[0], *moments[1]])
            table.values[DONE] = number + 1
        return table.values[DONE]

    def execute(self, step: Step, slots: Sequence[int]) -> None:
        """Run one step. Its numbers refer to ``slots``: the addresses and constants in the table of the run."""
        raise NotImplementedError(
            f"{type(self).__name__} runs no step by itself: it needs execute, or a run of its own"
        )

    # Work is queued by threads of the host, unless the device has queues of its own.

    def submit(
        self, stream: Stream, task: Callable[[], None], cancel: Callable[[], None] | None = None
    ) -> streams.Event:
        """Queue work on a stream; the event tells when it is done. ``cancel`` asks it to end early, with an error."""
        return streams.worker_of(stream).submit(task, cancel)

    def finish(  # noqa: B027  # not abstract: most have done the work when `run` returns
        self, buffers: Collection[Buffer] | None = None
    ) -> None:
        """Wait until what is in ``buffers`` was computed, or all that was queued on the device is done; raises what
        failed."""

    def make_room(self, stream: Stream) -> None:
        """Wait until more may be queued on a stream."""
        streams.worker_of(stream).make_room()


def engine_of(device: Device) -> Engine:
    """The engine of a device that is there."""
    engine: Engine = engine_at(device)
    return engine
