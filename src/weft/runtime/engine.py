"""What an engine is: the part of the runtime that belongs to one device.

It has the device's memory, copies to and from it, and runs tables of steps, without knowing what steps compute. Other
code uses this interface and does not test which device it has; only code that needs memory of the process, as NumPy
does, asks whether the engine is the host's.
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

    The methods that are not abstract suit a device whose steps are started one by one, by `execute`, and whose memory
    is reached by copies to and from the host. An engine overrides them where its device can do better.
    """

    queues = False
    """Whether `run` returns when the steps are queued on the device. Later reads of their results through this engine
    are queued after them, or wait."""

    works_in_parallel = False
    """Whether the device has several queues, which may run work in another order than that in which it was
    submitted."""
    takes_at_once = sys.maxsize
    """Arrays of at least this many bytes that are made of data of the host while this engine's stream is current get
    their memory on this device at once."""
    sharing: Sharing | None = None
    """How memory is shared with other libraries; None if they can share memory of the host only."""
    export_ended: Callable[[Any], object] | None = None
    """Called with a weak reference when other libraries stop sharing a buffer. It is native code, so that no interrupt
    is lost."""

    def __init__(self, device: Device, memory: Allocator) -> None:
        self.device = device
        self.memory = memory
        self.target: Any = None
        """The `Target` for this engine, set by `weft.compiler`."""

    def info(self) -> dict[str, str | int]:
        """Facts about the device, for users; what is not known is 0."""
        kind = self.target.kind
        return {"device_name": kind, "architecture": kind, "memory_size": 0, "resource_limit": 0}

    def will_be_used(self) -> None:  # noqa: B027  # not abstract: most have nothing to do
        """Called when a stream of the device is made: preparations that take long may begin."""

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
        """Run the steps that were not run yet, on a stream if one is given; returns how many steps of the table have
        been run.

        Writes that number into ``table.values[DONE]``, and stops before the next step when ``table.stopped``.
        """
        return self.run_timed(steps, table, array("q"), stream)

    def run_all(self, steps: Sealed, table: Table, stream: Stream | None) -> bool:
        """Run all steps of a table in which none was run yet; returns whether that was done. The caller drops the table
        if this raises."""
        return self.run(steps, table, stream) == steps.count

    def run_unless(self, steps: Sealed, table: Table, stream: Stream, doubts: Iterator[bool]) -> bool:
        """Queue all steps in one call of native code, unless one of ``doubts``, which are read first in that call, is
        true. Returns False if nothing was queued, also where steps cannot be queued like that."""
        return False

    def run_timed(self, steps: Sealed, table: Table, times: array[int], stream: Stream | None) -> int:
        """Do what `run` does, and write into ``times``, in seconds and nanoseconds, when each step began and ended, or
        have `recording.later` write it."""
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
        """Queue work on a stream; the event tells when it is done. Calling ``cancel`` asks the work to end early, with
        an error."""
        return streams.worker_of(stream).submit(task, cancel)

    def finish(  # noqa: B027  # not abstract: most have done the work when `run` returns
        self, buffers: Collection[Buffer] | None = None
    ) -> None:
        """Wait until the work that writes to ``buffers``, or all work queued on the device, is done; raises what
        failed."""

    def make_room(self, stream: Stream) -> None:
        """Wait until more may be queued on a stream."""
        streams.worker_of(stream).make_room()


def engine_of(device: Device) -> Engine:
    """The engine of a device that is there."""
    engine: Engine = engine_at(device)
    return engine
